// SPDX-License-Identifier: Apache-2.0
// value.c: trees of values: look-up, and writing them as YAML or JSON that reads back the same.
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_impl.h"

const char *value_kind_name(enum value_kind kind)
{
    static const char *const names[] = {"null",     "true or false", "an integer", "a number",
                                        "a string", "a list",        "a mapping"};
    return names[kind];
}

const struct value *value_find(const struct value *map, const char *key)
{
    for (int i = 0; map->kind == VALUE_MAP && i < map->map.count; i++) {
        if (strcmp(map->map.keys[i], key) == 0) {
            return map->map.items[i];
        }
    }
    return NULL;
}

// The shortest text that reads back as the same double, and as a float: with a dot or an exponent.
static void dump_number(struct text *out, double value)
{
    if (isnan(value) || isinf(value)) {
        text_append(out, isnan(value) ? ".nan" : value > 0 ? ".inf" : "-.inf");
        return;
    }
    size_t start = out->size;
    text_append_number(out, value);
    const char *text = out->data + start, *exponent = strchr(text, 'e');
    if (!strchr(text, '.') && !exponent) {
        text_append(out, ".0");
    } else if (exponent && !strchr(text, '.')) {  // 1e-05 as 1.0e-05: PyYAML's form
        char tail[16];
        snprintf(tail, sizeof tail, "%s", exponent);
        out->size = (size_t)(exponent - out->data);
        text_printf(out, ".0%s", tail);
    }
}

// A plain scalar must read back as the same string: not as another type, not as syntax.
static bool needs_quotes(const char *text)
{
    struct value resolved;
    size_t size = strlen(text);
    if (!size || isspace((unsigned char)text[0]) || isspace((unsigned char)text[size - 1]) ||
        strchr("-?:,[]{}#&*!|>'\"%@`=<", text[0])) {
        return true;
    }
    for (const char *c = text; *c; c++) {
        bool breaks = (*c == ':' && (!c[1] || c[1] == ' ')) || (*c == '#' && c[-1] == ' ');
        if (breaks || (unsigned char)*c < 0x20 || strchr(",[]{}", *c)) {
            return true;
        }
    }
    return value_resolve_scalar(text, &resolved) != STATUS_OK || resolved.kind != VALUE_STRING;
}

static void dump_string(struct text *out, const char *text)
{
    bool control = false;
    for (const char *c = text; *c; c++) {
        control |= (unsigned char)*c < 0x20;
    }
    if (control) {
        text_append_json(out, text);  // double quotes: JSON's escapes are YAML's
    } else if (needs_quotes(text)) {
        text_append(out, "'");
        for (const char *c = text; *c; c++) {
            text_append_bytes(out, c, 1);
            if (*c == '\'') {
                text_append(out, "'");
            }
        }
        text_append(out, "'");
    } else {
        text_append(out, text);
    }
}

static void dump_scalar(struct text *out, const struct value *value)
{
    switch (value->kind) {
    case VALUE_NULL: text_append(out, "null"); break;
    case VALUE_BOOL: text_append(out, value->boolean ? "true" : "false"); break;
    case VALUE_INT: text_printf(out, "%lld", (long long)value->integer); break;
    case VALUE_FLOAT: dump_number(out, value->number); break;
    default: dump_string(out, value->string); break;
    }
}

static bool is_container(const struct value *value)
{
    return value->kind == VALUE_LIST || value->kind == VALUE_MAP;
}

static bool is_flow(const struct value *value)
{
    if (value->kind == VALUE_MAP) {
        return value->map.count == 0;
    }
    for (int i = 0; i < value->list.count; i++) {
        if (is_container(value->list.items[i])) {
            return false;
        }
    }
    return true;
}

static void dump_flow(struct text *out, const struct value *value)
{
    if (value->kind == VALUE_MAP) {
        text_append(out, "{}");
        return;
    }
    text_append(out, "[");
    for (int i = 0; i < value->list.count; i++) {
        text_append(out, i ? ", " : "");
        dump_scalar(out, value->list.items[i]);
    }
    text_append(out, "]");
}

// What follows "key:" or "-".
static void dump_after(struct text *out, const struct value *value, int indent)
{
    if (!is_container(value)) {
        text_append(out, " ");
        dump_scalar(out, value);
        text_append(out, "\n");
    } else if (is_flow(value)) {
        text_append(out, " ");
        dump_flow(out, value);
        text_append(out, "\n");
    } else {
        text_append(out, "\n");
        value_dump_yaml(out, value, indent);
    }
}

struct sorted_key {
    const char *key;
    const struct value *item;
};

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct sorted_key *)a)->key, ((const struct sorted_key *)b)->key);
}

void value_dump_yaml(struct text *out, const struct value *value, int indent)
{
    if (!is_container(value) || is_flow(value)) {
        text_printf(out, "%*s", indent, "");
        is_container(value) ? dump_flow(out, value) : dump_scalar(out, value);
        text_append(out, "\n");
        return;
    }
    if (value->kind == VALUE_LIST) {
        for (int i = 0; i < value->list.count; i++) {
            text_printf(out, "%*s-", indent, "");
            dump_after(out, value->list.items[i], indent + 2);
        }
        return;
    }
    int count = value->map.count;
    struct sorted_key *keys = MEM_NEW_ARRAY(struct sorted_key, count);
    for (int i = 0; i < count; i++) {
        keys[i] = (struct sorted_key){value->map.keys[i], value->map.items[i]};
    }
    qsort(keys, (size_t)count, sizeof *keys, compare_keys);
    for (int i = 0; i < count; i++) {
        text_printf(out, "%*s", indent, "");
        dump_string(out, keys[i].key);
        text_append(out, ":");
        dump_after(out, keys[i].item, indent + 2);
    }
    mem_free(keys);
}

void value_dump_json(struct text *out, const struct value *value)
{
    switch (value->kind) {
    case VALUE_STRING: text_append_json(out, value->string); break;
    case VALUE_FLOAT: text_append_number(out, value->number); break;
    case VALUE_LIST:
        text_append(out, "[");
        for (int i = 0; i < value->list.count; i++) {
            text_append(out, i ? ", " : "");
            value_dump_json(out, value->list.items[i]);
        }
        text_append(out, "]");
        break;
    case VALUE_MAP:
        text_append(out, "{");
        for (int i = 0; i < value->map.count; i++) {
            text_append(out, i ? ", " : "");
            text_append_json(out, value->map.keys[i]);
            text_append(out, ": ");
            value_dump_json(out, value->map.items[i]);
        }
        text_append(out, "}");
        break;
    default: dump_scalar(out, value); break;
    }
}
