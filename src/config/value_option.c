// SPDX-License-Identifier: Apache-2.0
// value_option.c: the text of --config_file and --params_override: "a.b=c,d=e", a YAML or JSON
// mapping, or a file name.
#include <ctype.h>
#include <string.h>

#include "config_impl.h"
#include "trainer/file.h"

enum { FILE_LIMIT = 1 << 20 };  // bytes, as value_load_yaml

struct scanner {
    struct arena *arena;
    const char *option, *text, *at;
};

static struct value_place here(const struct scanner *s, const char *at)
{
    return (struct value_place){s->option, 0, (int)(at - s->text) + 1};
}

static void skip_blanks(struct scanner *s)
{
    s->at += strspn(s->at, " \t");
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

// True when the text begins "name =": then it is meant as a list of key=value, and its errors are
// reported as such.
static bool looks_like_pairs(const char *text)
{
    text += strspn(text, " \t");
    size_t size = 0;
    while (is_name(text[size])) {
        size++;
    }
    return size > 0 && text[size + strspn(text + size, " \t")] == '=';
}

// The end of a value: a quoted text, a balanced [...] or {...}, or a run up to the next comma.
static enum status value_end(struct scanner *s, const char **end)
{
    const char *at = s->at;
    *end = at;
    if (*at == '\'' || *at == '"') {
        char quote = *at++;
        while (*at && *at != quote) {
            at += quote == '"' && *at == '\\' && at[1] ? 2 : 1;
        }
        if (!*at) {
            return fail_at(here(s, s->at), "the quote %c is not closed", quote);
        }
        *end = at + 1;
        return STATUS_OK;
    }
    if (*at == '[' || *at == '{') {
        int depth = 0;
        for (char quote = 0; *at; at++) {
            if (quote) {
                quote = *at == quote ? 0 : quote;
            } else if (*at == '\'' || *at == '"') {
                quote = *at;
            } else {
                depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
                if (depth == 0) {
                    *end = at + 1;
                    return STATUS_OK;
                }
            }
        }
        return fail_at(here(s, s->at), "the bracket %c is not closed", *s->at);
    }
    *end = at + strcspn(at, ",");
    return STATUS_OK;
}

// Places of a value that was read as YAML, as positions in the whole text.
static void move_places(struct value *value, const char *option, int offset)
{
    value->place = (struct value_place){option, 0, offset + value->place.column};
    if (value->kind == VALUE_LIST) {
        for (int i = 0; i < value->list.count; i++) {
            move_places(value->list.items[i], option, offset);
        }
    } else if (value->kind == VALUE_MAP) {
        for (int i = 0; i < value->map.count; i++) {
            value->map.key_places[i] = (struct value_place){
                option, 0, offset + value->map.key_places[i].column};
            move_places(value->map.items[i], option, offset);
        }
    }
}

// What stands after "=". Unquoted text is one scalar: it may hold ':', '/', '*' and '='.
static enum status parse_value(struct scanner *s, struct value **out)
{
    const char *start = s->at, *end;
    TRY(value_end(s, &end));
    bool structured = strchr("'\"[{", *start) && *start;
    const char *last = end;
    while (last > start && isspace((unsigned char)last[-1])) {
        last--;
    }
    s->at = end;
    if (structured) {
        enum status status =
            value_load_yaml(s->arena, s->option, start, (size_t)(last - start), out);
        if (status != STATUS_OK) {
            return fail_at(here(s, start), "%s", error_get()->message);
        }
        move_places(*out, s->option, (int)(start - s->text));
        return STATUS_OK;
    }
    struct value *value = ARENA_NEW(s->arena, struct value);
    value->raw = arena_strndup(s->arena, start, (size_t)(last - start));
    value->place = here(s, start);
    *out = value;
    enum status status = value_resolve_scalar(value->raw, value);
    return status == STATUS_OK ? STATUS_OK : fail_at(value->place, "%s", error_get()->message);
}

static void map_append(struct arena *arena, struct value *map, const char *key,
                       struct value_place place, struct value *item)
{
    int count = map->map.count++;
    const char **keys = ARENA_NEW_ARRAY(arena, const char *, count + 1);
    struct value_place *places = ARENA_NEW_ARRAY(arena, struct value_place, count + 1);
    struct value **items = ARENA_NEW_ARRAY(arena, struct value *, count + 1);
    for (int i = 0; i < count; i++) {
        keys[i] = map->map.keys[i];
        places[i] = map->map.key_places[i];
        items[i] = map->map.items[i];
    }
    keys[count] = key;
    places[count] = place;
    items[count] = item;
    map->map.keys = keys;
    map->map.key_places = places;
    map->map.items = items;
}

static struct value *new_map(struct arena *arena, struct value_place place)
{
    struct value *map = ARENA_NEW(arena, struct value);
    map->kind = VALUE_MAP;
    map->place = place;
    return map;
}

// a.b.c = value as nested mappings; a key that was given before is an error.
static enum status insert(struct scanner *s, struct value *map, const char *name,
                          struct value_place place, struct value *value)
{
    const char *dot;
    for (const char *at = name; (dot = strchr(at, '.')); at = dot + 1) {
        const char *key = arena_strndup(s->arena, at, (size_t)(dot - at));
        struct value *inner = (struct value *)(uintptr_t)value_find(map, key);
        if (!inner) {
            inner = new_map(s->arena, place);
            map_append(s->arena, map, key, place, inner);
        }
        if (inner->kind != VALUE_MAP) {
            return fail_at(place, "'%s' is already given as %s", key,
                           value_kind_name(inner->kind));
        }
        map = inner;
        name = dot + 1;
    }
    if (value_find(map, name)) {
        return fail_at(place, "the key '%s' is given twice", name);
    }
    map_append(s->arena, map, arena_strdup(s->arena, name), place, value);
    return STATUS_OK;
}

static enum status parse_pairs(struct scanner *s, struct value **out)
{
    *out = new_map(s->arena, here(s, s->at));
    for (;;) {
        skip_blanks(s);
        if (!*s->at) {
            return STATUS_OK;  // a trailing comma is fine
        }
        const char *name = s->at;
        while (is_name(*s->at)) {
            s->at++;
        }
        size_t size = (size_t)(s->at - name);
        const char *full = arena_strndup(s->arena, name, size);
        skip_blanks(s);
        bool good = size && !isdigit((unsigned char)*name) && *name != '.' && full[size - 1] != '.' &&
                    !strstr(full, "..");
        if (*s->at != '=' || !good) {
            return fail_at(here(s, name), "expected key=value, as in train.epochs=3, got '%.20s'",
                           name);
        }
        s->at++;
        skip_blanks(s);
        struct value *value;
        TRY(parse_value(s, &value));
        TRY(insert(s, *out, full, here(s, name), value));
        skip_blanks(s);
        if (*s->at && *s->at != ',') {
            return fail_at(here(s, s->at), "expected a comma before '%.20s'", s->at);
        }
        s->at += *s->at == ',';
    }
}

static enum status expect_map(struct arena *arena, struct value *value, struct value **out)
{
    if (value->kind == VALUE_NULL) {  // an empty file changes nothing
        *out = new_map(arena, value->place);
        return STATUS_OK;
    }
    if (value->kind != VALUE_MAP) {
        return fail_at(value->place, "expected sections and keys (a mapping), got %s",
                       value_kind_name(value->kind));
    }
    *out = value;
    return STATUS_OK;
}

static enum status load_file(struct arena *arena, const char *option, const char *path,
                             struct value **out)
{
    uint8_t *data;
    size_t size;
    enum status status = file_read(path, FILE_LIMIT, &data, &size);
    if (status == ERR_NOT_FOUND) {
        return FAIL(ERR_USAGE,
                    "%s: '%s' is neither key=value pairs nor a YAML mapping, and there is no such "
                    "file", option, path);
    }
    if (status != STATUS_OK) {
        return error_prefix(ERR_USAGE, "%s", option);
    }
    struct value *value = NULL;
    status = value_load_yaml(arena, path, (const char *)data, size, &value);
    mem_free(data);
    TRY(status);
    return expect_map(arena, value, out);
}

enum status value_load_option(struct arena *arena, const char *option_name, const char *text,
                              struct value **out)
{
    struct scanner s = {arena, arena_strdup(arena, option_name), text, text};
    *out = NULL;
    if (!text[strspn(text, " \t\r\n")]) {
        *out = new_map(arena, here(&s, text));
        return STATUS_OK;
    }
    if (looks_like_pairs(text)) {
        return parse_pairs(&s, out);
    }
    bool yaml = text[strspn(text, " \t\r\n")] == '{' || strchr(text, '\n') || strstr(text, ": ");
    if (yaml && !file_exists(text)) {
        struct value *value;
        TRY(value_load_yaml(arena, option_name, text, strlen(text), &value));
        return expect_map(arena, value, out);
    }
    return load_file(arena, s.option, text, out);
}
