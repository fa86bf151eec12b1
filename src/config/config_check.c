// SPDX-License-Identifier: Apache-2.0
// config_check.c: a value against its row: type, range, choices; and what to say about a key that
// no row has.
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config_impl.h"

const char *config_type_name(enum config_type type)
{
    static const char *const names[] = {
        "true or false",     "an integer",         "a number",
        "a string",          "a list of integers", "a list of numbers",
        "a list of strings", "a number or a word", "any value"};
    return names[type];
}

static bool is_ranged(const struct config_field *field)
{
    return field->minimum != 0 || field->maximum != 0;
}

static void append_range(const struct config_field *field, struct text *out)
{
    if (!is_ranged(field)) {
        return;
    }
    bool low = isfinite(field->minimum), high = isfinite(field->maximum);
    text_append(out, low && high ? " from " : low ? " of at least " : high ? " of at most " : "");
    if (low) {
        text_append_number(out, field->minimum);
    }
    text_append(out, low && high ? " to " : "");
    if (high) {
        text_append_number(out, field->maximum);
    }
}

void config_append_expected(const struct config_field *field, struct text *out)
{
    if (field->choices) {
        text_append(out, field->type == CONFIG_STRING_LIST ? "a list of: " : "one of: ");
        text_append_list(out, field->choices);
    } else {
        text_append(out, config_type_name(field->type));
    }
    append_range(field, out);
    if (field->flags & CONFIG_NULLABLE) {
        text_append(out, ", or null");
    }
}

// "gpu.yaml:12:3: model.x is WHAT, expected ...".
static enum status refuse(const struct config_field *field, const struct value *value,
                          const char *what, const char *advice)
{
    struct text expected = {0};
    config_append_expected(field, &expected);
    enum status status = fail_at(value->place, "%s is %s, expected %s%s", field->path, what,
                                 text_get(&expected), advice);
    text_release(&expected);
    return status;
}

static enum status wrong_type(const struct config_field *field, const struct value *value)
{
    char what[128];
    bool typed = value->kind != VALUE_NULL && value->raw;
    snprintf(what, sizeof what, typed ? "%s (%.60s)" : "%s", value_kind_name(value->kind),
             value->raw);
    return refuse(field, value, what,
                  value->kind == VALUE_STRING && value->quoted ? "; leave out the quotes"
                  : typed && value->kind < VALUE_STRING && field->type == CONFIG_STRING
                      ? "; put it in quotes"
                      : "");
}

// "$NUM_GPUS" that nothing expanded.
static enum status check_expanded(const struct config_field *field, const struct value *value)
{
    for (const char *dollar = strchr(value->string, '$'); dollar;
         dollar = strchr(dollar + 1, '$')) {
        if (isalpha((unsigned char)dollar[1]) || dollar[1] == '_' || dollar[1] == '{') {
            return fail_at(
                value->place, "%s is '%.200s': %s", field->path, value->string,
                value->place.line > 0
                    ? "variables of the shell are not expanded in files; write the value"
                    : "the shell did not expand the variable; single quotes keep it from "
                      "doing so, use double quotes");
        }
    }
    return STATUS_OK;
}

static bool is_choice(const struct config_field *field, const char *text)
{
    for (const char *const *choice = field->choices; choice && *choice; choice++) {
        if (strcmp(*choice, text) == 0) {
            return true;
        }
    }
    return false;
}

static enum status check_string(const struct config_field *field, struct value *value)
{
    // An unquoted off, yes or 5 among the choices: the word as it was typed.
    if (value->kind < VALUE_STRING && value->raw && is_choice(field, value->raw)) {
        value->kind = VALUE_STRING;
        value->string = value->raw;
    }
    if (value->kind != VALUE_STRING) {
        return wrong_type(field, value);
    }
    if (!field->choices || is_choice(field, value->string)) {
        return STATUS_OK;
    }
    char what[128], advice[128] = "";
    const char *near = text_nearest(value->string, field->choices);
    snprintf(what, sizeof what, "'%.100s'", value->string);
    if (near) {
        snprintf(advice, sizeof advice, "; did you mean '%s'?", near);
    }
    return refuse(field, value, what, advice);
}

static enum status check_number(const struct config_field *field, struct value *value)
{
    double number = value->kind == VALUE_INT ? (double)value->integer : value->number;
    bool outside = is_ranged(field) && !(number >= field->minimum && number <= field->maximum);
    if (isnan(number) || outside) {
        char what[128];
        snprintf(what, sizeof what, "%.60s", value->raw);
        return refuse(field, value, what, "");
    }
    return STATUS_OK;
}

static enum status check_scalar(const struct config_field *field, struct value *value)
{
    enum value_kind kind = value->kind;
    if (kind == VALUE_STRING) {
        TRY(check_expanded(field, value));
    }
    switch (field->type) {
    case CONFIG_BOOL: return kind == VALUE_BOOL ? STATUS_OK : wrong_type(field, value);
    case CONFIG_STRING: return check_string(field, value);
    case CONFIG_INT:
        return kind == VALUE_INT ? check_number(field, value) : wrong_type(field, value);
    case CONFIG_FLOAT:
        if (kind != VALUE_INT && kind != VALUE_FLOAT) {
            return wrong_type(field, value);
        }
        TRY(check_number(field, value));
        if (kind == VALUE_INT) {
            value->kind = VALUE_FLOAT;
            value->number = (double)value->integer;
        }
        return STATUS_OK;
    default:
        return kind == VALUE_NULL || kind == VALUE_LIST || kind == VALUE_MAP
                   ? wrong_type(field, value)
                   : STATUS_OK;
    }
}

// Each item is checked as the value of a row of its own, called path[3].
static enum status check_list(const struct config_field *field, struct value *value)
{
    struct config_field row = *field;
    char name[256];
    row.type = field->type == CONFIG_INT_LIST     ? CONFIG_INT
               : field->type == CONFIG_FLOAT_LIST ? CONFIG_FLOAT
                                                  : CONFIG_STRING;
    row.flags = 0;
    if (value->kind != VALUE_LIST) {
        return row.type == CONFIG_STRING ? check_scalar(&row, value) : wrong_type(field, value);
    }
    row.path = name;
    for (int i = 0; i < value->list.count; i++) {
        snprintf(name, sizeof name, "%s[%d]", field->path, i);
        TRY(check_scalar(&row, value->list.items[i]));
    }
    return STATUS_OK;
}

// Any tree is fine, but for variables that nothing expanded.
static enum status check_any(const struct config_field *field, const struct value *value)
{
    bool list = value->kind == VALUE_LIST, map = value->kind == VALUE_MAP;
    int count = list ? value->list.count : map ? value->map.count : 0;
    if (value->kind == VALUE_STRING) {
        return check_expanded(field, value);
    }
    for (int i = 0; i < count; i++) {
        TRY(check_any(field, list ? value->list.items[i] : value->map.items[i]));
    }
    return STATUS_OK;
}

enum status config_check(const struct config_field *field, struct value *value)
{
    if (field->type == CONFIG_ANY) {
        return check_any(field, value);
    }
    if (value->kind == VALUE_NULL) {
        return field->flags & CONFIG_NULLABLE ? STATUS_OK : refuse(field, value, "null", "");
    }
    return field->type >= CONFIG_INT_LIST && field->type <= CONFIG_STRING_LIST
               ? check_list(field, value)
               : check_scalar(field, value);
}

// ---- Unknown keys -------------------------------------------------------------------------------

static void add_name(const char **names, int *count, const char *name)
{
    for (int i = 0; i < *count; i++) {
        if (strcmp(names[i], name) == 0) {
            return;
        }
    }
    names[(*count)++] = name;
}

// What the section of `path` holds, keys and sections, as names without the section;
// NULL-terminated.
static int list_known(struct arena *arena, const struct config *config, const char *path,
                      size_t prefix, const char **known)
{
    const struct config_entry **sorted = config_sorted(config);
    int count = 0;
    for (int i = 0; i < config->count; i++) {
        const char *row = sorted[i]->field->path;
        if (strncmp(row, path, prefix) == 0) {
            const char *rest = row + prefix;
            add_name(known, &count, arena_strndup(arena, rest, strcspn(rest, ".")));
        }
    }
    mem_free(sorted);
    return count;
}

// One spelt alike in the same section; or of the same name in another ("epochs": "train.epochs").
static const char *find_meant(struct arena *arena, const struct config *config, const char *path,
                              size_t prefix, const char *const *known)
{
    const char *last = path + prefix, *near = text_nearest(last, known);
    if (near) {
        return arena_printf(arena, "%.*s%s", (int)prefix, path, near);
    }
    for (int i = 0; i < config->count; i++) {
        const char *row = config->entries[i].field->path, *dot = strrchr(row, '.');
        if (dot && strcmp(dot + 1, last) == 0) {
            return row;
        }
    }
    return NULL;
}

enum status config_unknown_key(const struct config *config, struct value_place place,
                               const char *path)
{
    struct arena arena;
    arena_init(&arena);
    const char **known = ARENA_NEW_ARRAY(&arena, const char *, config->count + 1);
    const char *dot = strrchr(path, '.');
    size_t prefix = dot ? (size_t)(dot - path) + 1 : 0;
    int count = list_known(&arena, config, path, prefix, known);
    const char *near = find_meant(&arena, config, path, prefix, known);
    struct text message = {0};
    text_printf(&message, "unknown key '%.250s'", path);
    if (near) {
        text_printf(&message, "; did you mean '%s'?", near);
    } else {
        text_append(&message, ".");
    }
    if (count && prefix) {
        text_printf(&message, " Known in '%.*s': ", (int)prefix - 1, path);
    } else if (count) {
        text_append(&message, " Known: ");
    }
    text_append_list(&message, known);
    enum status status = fail_at(place, "%s", text_get(&message));
    text_release(&message);
    arena_release(&arena);
    return status;
}
