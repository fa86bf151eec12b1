// SPDX-License-Identifier: Apache-2.0
// value_option.c: the text of --config_file and --params_override: "a.b=c,d=e", a YAML or JSON
// mapping, or a file name.
#include <ctype.h>
#include <string.h>

#include "config_impl.h"
#include "trainer/file.h"

#define BLANKS " \t\r\n"

struct scanner {
    struct arena *arena;
    const char *option, *text, *at;
    struct value_budget budget;
    const char *counted;  // text up to here has `characters`
    int characters;
};

// The position of `at`, in characters. Counts on from the last one: all places of a long text cost
// one pass.
static struct value_place here(struct scanner *s, const char *at)
{
    if (at < s->counted) {
        s->counted = s->text;
        s->characters = 0;
    }
    for (; s->counted < at; s->counted++) {
        s->characters += ((unsigned char)*s->counted & 0xc0) != 0x80;
    }
    return (struct value_place){s->option, 0, s->characters + 1};
}

static void skip_blanks(struct scanner *s)
{
    s->at += strspn(s->at, BLANKS);
}

// After the quoted text that begins at `at`, or NULL when it is not closed.
static const char *skip_quoted(const char *at)
{
    char quote = *at++;
    while (*at && (*at != quote || (quote == '\'' && at[1] == quote))) {
        bool pair = at[1] && (quote == '"' ? *at == '\\' : *at == quote);
        at += pair ? 2 : 1;
    }
    return *at ? at + 1 : NULL;
}

// The end of a value: after a quoted text or balanced brackets, or at the next comma or line end.
static enum status find_end(struct scanner *s, const char **end)
{
    const char *at = s->at, *quote = at;
    if (!*at || !strchr("'\"[{", *at)) {
        *end = at + strcspn(at, ",\n");
        return STATUS_OK;
    }
    int depth = 0;
    char before = '[';  // last one that was not blank: a quote after a word is an apostrophe
    do {
        if ((*at == '\'' || *at == '"') && strchr("[{,:", before)) {
            quote = at;
            at = skip_quoted(quote);
            if (!at) {
                return fail_at(here(s, quote), "the quote %c is not closed", *quote);
            }
            before = *quote;
            continue;
        }
        depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
        before = strchr(BLANKS, *at) ? before : *at;
        at++;
    } while (depth > 0 && *at);
    *end = at;
    return depth > 0 ? fail_at(here(s, s->at), "the bracket %c is not closed", *s->at) : STATUS_OK;
}

// What stands after "=". Unquoted text is one scalar: it may hold ':', '/', '*' and '='.
static enum status parse_value(struct scanner *s, struct value **out)
{
    const char *start = s->at, *end = start;
    TRY(find_end(s, &end));
    s->at = end;
    while (end > start && strchr(BLANKS, end[-1])) {
        end--;
    }
    struct value_place place = here(s, start);
    if (*start && strchr("'\"[{", *start)) {
        return value_parse_yaml(s->arena, s->option, place.column, start, (size_t)(end - start),
                                &s->budget, out);
    }
    TRY(value_spend(&s->budget, place, 1, (size_t)(end - start)));
    struct value *value = value_new(s->arena, VALUE_NULL, place);
    value->raw = arena_strndup(s->arena, start, (size_t)(end - start));
    *out = value;
    return value_resolve_scalar(value->raw, value)
               ? STATUS_OK
               : fail_at(place, "%.60s does not fit into 64 bits", value->raw);
}

static enum status given_twice(struct value_place place, const char *name)
{
    return fail_at(place, "'%.200s' is given twice; each key can be given once an option", name);
}

// a.b.c = value as nested mappings. What was written as a mapping, a={...}, is not added to.
static enum status insert(struct scanner *s, struct value *map, const char *name,
                          struct value_place place, struct value *value)
{
    const char *key = name, *dot;
    for (; (dot = strchr(key, '.')); key = dot + 1) {
        const char *section = arena_strndup(s->arena, key, (size_t)(dot - key));
        struct value *inner = NULL;
        for (int i = 0; i < map->map.count; i++) {
            if (strcmp(map->map.keys[i], section) == 0) {
                inner = map->map.items[i];
            }
        }
        if (!inner) {
            TRY(value_spend(&s->budget, place, 1, 0));
            // Column 0: made by dots.
            inner = value_new(s->arena, VALUE_MAP, (struct value_place){s->option, 0, 0});
            value_map_append(s->arena, map, section, place, inner);
        } else if (inner->place.column) {
            return given_twice(place, name);
        }
        map = inner;
    }
    if (value_find(map, key)) {
        return given_twice(place, name);
    }
    value_map_append(s->arena, map, key, place, value);
    return STATUS_OK;
}

static bool is_name(const char *name)
{
    size_t size = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.");
    bool dots = *name == '.' || strstr(name, "..") || (size && name[size - 1] == '.');
    return size && !name[size] && !dots && !isdigit((unsigned char)*name);
}

// What params.yaml could not hold: it is read with the same limits.
static enum status check_name(struct scanner *s, struct value_place place, const char *name)
{
    s->budget.depth = value_budget_full.depth;  // left for the value
    for (const char *key = name; *key; key += strcspn(key, ".")) {
        key += *key == '.';
        s->budget.depth--;
        if (strcspn(key, ".") > VALUE_KEY_LIMIT) {
            return fail_at(place, "a key of %zu bytes; the limit is %d", strcspn(key, "."),
                           VALUE_KEY_LIMIT);
        }
    }
    return s->budget.depth < 1 ? fail_at(place, "nested more than %d deep", value_budget_full.depth)
                               : STATUS_OK;
}

static enum status parse_pairs(struct scanner *s, struct value **out)
{
    *out = value_new(s->arena, VALUE_MAP, here(s, s->at));
    for (skip_blanks(s); *s->at; skip_blanks(s)) {  // a trailing comma is fine
        size_t size = strcspn(s->at, "=,'\"[{" BLANKS);
        struct value_place place = here(s, s->at);
        const char *start = s->at, *name = arena_strndup(s->arena, s->at, size);
        s->at += size;
        skip_blanks(s);
        if (*s->at != '=' || !is_name(name)) {
            return fail_at(place, "expected key=value, as in train.epochs=3, got '%.40s'", start);
        }
        s->at++;
        skip_blanks(s);
        TRY(check_name(s, place, name));
        struct value *value;
        TRY(parse_value(s, &value));
        TRY(insert(s, *out, name, place, value));
        skip_blanks(s);
        if (*s->at && *s->at != ',') {
            return fail_at(here(s, s->at), "expected a comma before '%.40s'", s->at);
        }
        s->at += *s->at == ',';
    }
    return STATUS_OK;
}

static enum status expect_map(struct arena *arena, struct value *value, struct value **out)
{
    if (value->kind == VALUE_NULL && (!value->raw || !*value->raw)) {  // an empty file: no change
        value = value_new(arena, VALUE_MAP, value->place);
    }
    *out = value;
    return value->kind == VALUE_MAP
               ? STATUS_OK
               : fail_at(value->place, "expected sections and keys (a mapping), got %s",
                         value_kind_name(value->kind));
}

static enum status load_file(struct arena *arena, const char *option, const char *path,
                             struct value **out)
{
    uint8_t *data;
    size_t size;
    enum status status = file_read(path, VALUE_TEXT_LIMIT, &data, &size);
    if (status == ERR_NOT_FOUND) {
        bool shell = *path == '~' || strchr(path, '$');
        return FAIL(ERR_USAGE,
                    "%s: '%.300s' is neither key=value pairs nor a YAML or JSON mapping, and there "
                    "is no such file%s",
                    option, path,
                    shell ? "; the shell did not expand ~ or $, write the path out" : "");
    }
    if (status != STATUS_OK) {
        return error_prefix(ERR_USAGE, "%s", option);
    }
    struct value *value;
    status = value_load_yaml(arena, path, (const char *)data, size, &value);
    mem_free(data);
    TRY(status);
    return expect_map(arena, value, out);
}

enum status value_load_option(struct arena *arena, const char *option_name, const char *text,
                              struct value **out)
{
    struct scanner s = {.arena = arena,
                        .option = arena_strdup(arena, option_name),
                        .text = text,
                        .at = text,
                        .budget = value_budget_full,
                        .counted = text};
    *out = NULL;
    skip_blanks(&s);
    const char *start = s.at, *first = s.at + strcspn(s.at, "='\"[{:/\n");
    size_t size = strlen(text);
    TRY(value_check_text(option_name, text));
    if (!*start) {
        *out = value_new(arena, VALUE_MAP, here(&s, text));
        return STATUS_OK;
    }
    if (*first == '=') {  // before anything that belongs to a mapping or a path: meant as pairs
        return parse_pairs(&s, out);
    }
    bool path = *start == '/' || strncmp(start, "./", 2) == 0 || strncmp(start, "../", 3) == 0;
    bool yaml = *start == '{' || *start == '[' || strpbrk(text, "\r\n") || strstr(text, ": ") ||
                text[size - 1] == ':';
    if (path || !yaml) {
        return load_file(arena, option_name, text, out);
    }
    struct value *value;
    TRY(value_parse_yaml(arena, option_name, 1, text, size, &s.budget, &value));
    return expect_map(arena, value, out);
}
