// SPDX-License-Identifier: Apache-2.0
// value_dump.c: trees of values as YAML or JSON text that reads back the same. The YAML looks as
// PyYAML's: sorted keys, two spaces, lists of scalars in brackets, quotes only where needed.
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_impl.h"

// The shortest text that reads back as the same double, and as a float: with a dot.
static void dump_number(struct text *out, double value)
{
    if (isnan(value) || isinf(value)) {
        text_append(out, isnan(value) ? ".nan" : value > 0 ? ".inf" : "-.inf");
        return;
    }
    struct text number = {0};
    text_append_number(&number, value);
    const char *text = text_get(&number);
    size_t mantissa = strcspn(text, "e");
    text_append_bytes(out, text, mantissa);
    if (!memchr(text, '.', mantissa)) {
        text_append(out, ".0");  // 1.0, and 1.0e-05 as PyYAML: readers of YAML 1.1 want the dot
    }
    text_append(out, text + mantissa);
    text_release(&number);
}

// What libyaml lets through unescaped, less its line breaks, which would be folded.
static bool is_printable(uint32_t code)
{
    return (code >= 0x20 && code <= 0x7e) ||
           (code >= 0xa0 && code <= 0xfffd && code != 0xfeff && code != 0x2028 && code != 0x2029) ||
           code >= 0x10000;
}

static bool needs_escapes(const char *text)
{
    uint32_t code;
    for (int length; *text; text += length) {
        length = utf8_decode(text, &code);
        CHECK(length > 0, "a string that is not UTF-8 is written as YAML");
        if (!is_printable(code)) {
            return true;
        }
    }
    return false;
}

// A plain scalar must read back as the same string, here and in PyYAML (which stops at a ? within
// brackets): not as another type, not as syntax.
static bool needs_quotes(const char *text)
{
    struct value resolved;
    size_t size = strlen(text);
    if (!size || text[0] == ' ' || text[size - 1] == ' ' ||
        strchr("?:,[]{}#&*!|>'\"%@`=<", text[0])) {
        return true;
    }
    if (text[0] == '-' && (!text[1] || text[1] == ' ' || text[1] == '-')) {
        return true;
    }
    if (strncmp(text, "...", 3) == 0 || (strspn(text, "0123456789") == 4 && text[4] == '-')) {
        return true;  // the end of a document; a date to other readers
    }
    for (const char *c = text; *c; c++) {
        if ((*c == ':' && (!c[1] || c[1] == ' ')) || (*c == ' ' && c[1] == '#') ||
            strchr(",[]{}?", *c)) {
            return true;
        }
    }
    return !value_resolve_scalar(text, &resolved) || resolved.kind != VALUE_STRING;
}

static void dump_escaped(struct text *out, const char *text)
{
    uint32_t code;
    text_append(out, "\"");
    for (int length; *text; text += length) {
        length = utf8_decode(text, &code);
        if (code == '"' || code == '\\') {
            text_printf(out, "\\%c", (int)code);
        } else if (code == '\n' || code == '\t') {
            text_append(out, code == '\n' ? "\\n" : "\\t");
        } else if (is_printable(code)) {
            text_append_bytes(out, text, (size_t)length);
        } else {
            text_printf(out, code > 0xff ? "\\u%04x" : "\\x%02x", code);
        }
    }
    text_append(out, "\"");
}

static void dump_string(struct text *out, const char *text)
{
    if (needs_escapes(text)) {
        dump_escaped(out, text);
    } else if (!needs_quotes(text)) {
        text_append(out, text);
    } else {
        text_append(out, "'");
        for (const char *c = text; *c; c++) {
            text_append(out, *c == '\'' ? "'" : "");
            text_append_bytes(out, c, 1);
        }
        text_append(out, "'");
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
    for (int i = 0; value->kind == VALUE_LIST && i < value->list.count; i++) {
        if (is_container(value->list.items[i])) {
            return false;
        }
    }
    return true;
}

static void dump_flow(struct text *out, const struct value *value)
{
    switch (value->kind) {
    case VALUE_NULL: text_append(out, "null"); break;
    case VALUE_BOOL: text_append(out, value->boolean ? "true" : "false"); break;
    case VALUE_INT: text_printf(out, "%lld", (long long)value->integer); break;
    case VALUE_FLOAT: dump_number(out, value->number); break;
    case VALUE_STRING: dump_string(out, value->string); break;
    case VALUE_MAP: text_append(out, "{}"); break;
    case VALUE_LIST:
        text_append(out, "[");
        for (int i = 0; i < value->list.count; i++) {
            text_append(out, i ? ", " : "");
            dump_flow(out, value->list.items[i]);
        }
        text_append(out, "]");
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

// Lines of a list or mapping; the first begins where the caller stands, after "- " or the indent.
static void dump_block(struct text *out, const struct value *value, int indent)
{
    bool list = value->kind == VALUE_LIST;
    int count = list ? value->list.count : value->map.count;
    struct sorted_key *lines = MEM_NEW_ARRAY(struct sorted_key, count);
    for (int i = 0; i < count; i++) {
        lines[i] = list ? (struct sorted_key){"", value->list.items[i]}
                        : (struct sorted_key){value->map.keys[i], value->map.items[i]};
    }
    if (!list) {
        qsort(lines, (size_t)count, sizeof *lines, compare_keys);
    }
    for (int i = 0; i < count; i++) {
        text_printf(out, "%*s", i ? indent : 0, "");
        if (list) {
            text_append(out, "-");
        } else {
            dump_string(out, lines[i].key);
            text_append(out, ":");
        }
        if (is_flow(lines[i].item)) {
            text_append(out, " ");
            dump_flow(out, lines[i].item);
            text_append(out, "\n");
        } else {
            text_append(out, list ? " " : "\n");
            text_printf(out, "%*s", list ? 0 : indent + 2, "");
            dump_block(out, lines[i].item, indent + 2);
        }
    }
    mem_free(lines);
}

void value_dump_yaml(struct text *out, const struct value *value, int indent)
{
    text_printf(out, "%*s", indent, "");
    if (is_flow(value)) {
        dump_flow(out, value);
        text_append(out, "\n");
    } else {
        dump_block(out, value, indent);
    }
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
    default: dump_flow(out, value); break;
    }
}
