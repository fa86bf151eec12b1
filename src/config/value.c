// SPDX-License-Identifier: Apache-2.0
// value.c: trees of values: building, look-up, comparing, and places in messages.
#include <stdio.h>
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

struct value *value_new(struct arena *arena, enum value_kind kind, struct value_place place)
{
    struct value *value = ARENA_NEW(arena, struct value);
    value->kind = kind;
    value->place = place;
    return value;
}

// Arrays of a tree have room for the next power of two: full exactly when the count is one, or 0.
static bool is_full(int count)
{
    return (count & (count - 1)) == 0;
}

static void *grown(struct arena *arena, const void *items, int count, size_t size)
{
    void *more = arena_alloc(arena, size * (size_t)MAX(2 * count, 1));
    if (count) {
        memcpy(more, items, size * (size_t)count);
    }
    return more;
}

void value_list_append(struct arena *arena, struct value *list, struct value *item)
{
    int count = list->list.count++;
    if (is_full(count)) {
        list->list.items = grown(arena, list->list.items, count, sizeof *list->list.items);
    }
    list->list.items[count] = item;
}

void value_map_append(struct arena *arena, struct value *map, const char *key,
                      struct value_place place, struct value *item)
{
    struct value_map *m = &map->map;
    int count = m->count++;
    if (is_full(count)) {
        m->keys = grown(arena, m->keys, count, sizeof *m->keys);
        m->key_places = grown(arena, m->key_places, count, sizeof *m->key_places);
        m->items = grown(arena, m->items, count, sizeof *m->items);
    }
    m->keys[count] = key;
    m->key_places[count] = place;
    m->items[count] = item;
}

struct value *value_copy(struct arena *arena, const struct value *from)
{
    struct value_place place = from->place;
    place.source = place.source ? arena_strdup(arena, place.source) : NULL;
    struct value *to = value_new(arena, from->kind, place);
    if (from->kind == VALUE_LIST) {
        for (int i = 0; i < from->list.count; i++) {
            value_list_append(arena, to, value_copy(arena, from->list.items[i]));
        }
    } else if (from->kind == VALUE_MAP) {
        for (int i = 0; i < from->map.count; i++) {
            struct value_place key_place = from->map.key_places[i];
            key_place.source = place.source;
            value_map_append(arena, to, arena_strdup(arena, from->map.keys[i]), key_place,
                             value_copy(arena, from->map.items[i]));
        }
    } else {
        *to = *from;
        to->place = place;
        to->raw = from->raw ? arena_strdup(arena, from->raw) : NULL;
        if (from->kind == VALUE_STRING) {
            to->string = arena_strdup(arena, from->string);
        }
    }
    return to;
}

bool value_equal(const struct value *a, const struct value *b)
{
    if (a->kind != b->kind) {
        return false;
    }
    switch (a->kind) {
    case VALUE_NULL: return true;
    case VALUE_BOOL: return a->boolean == b->boolean;
    case VALUE_INT: return a->integer == b->integer;
    case VALUE_FLOAT: // a NaN is the same as a NaN, 0.0 is not -0.0
        return (a->number != a->number && b->number != b->number) ||
               memcmp(&a->number, &b->number, sizeof a->number) == 0;
    case VALUE_STRING: return strcmp(a->string, b->string) == 0;
    case VALUE_LIST:
        for (int i = 0; a->list.count == b->list.count && i < a->list.count; i++) {
            if (!value_equal(a->list.items[i], b->list.items[i])) {
                return false;
            }
        }
        return a->list.count == b->list.count;
    case VALUE_MAP:
        for (int i = 0; a->map.count == b->map.count && i < a->map.count; i++) {
            const struct value *other = value_find(b, a->map.keys[i]);
            if (!other || !value_equal(a->map.items[i], other)) {
                return false;
            }
        }
        return a->map.count == b->map.count;
    }
    return false;
}

// ---- Text ---------------------------------------------------------------------------------------

int utf8_decode(const char *text, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};  // by length: no longer forms
    const unsigned char *byte = (const unsigned char *)text;
    int length = *byte < 0x80             ? 1
                 : (*byte & 0xe0) == 0xc0 ? 2
                 : (*byte & 0xf0) == 0xe0 ? 3
                 : (*byte & 0xf8) == 0xf0 ? 4
                                          : 0;
    *code = length > 1 ? *byte & (0x7fu >> length) : *byte;
    for (int i = 1; i < length; i++) {
        if ((byte[i] & 0xc0) != 0x80) {
            return 0;
        }
        *code = *code << 6 | (byte[i] & 0x3f);
    }
    bool surrogate = *code >= 0xd800 && *code <= 0xdfff;
    return length && *code >= least[length] && *code <= 0x10ffff && !surrogate ? length : 0;
}

enum status value_check_text(const char *source, const char *text)
{
    struct value_place place = {source, 0, 1};
    uint32_t code;
    if (strlen(text) > VALUE_TEXT_LIMIT) {
        return FAIL(ERR_USAGE, "%s: has %zu bytes, more than the limit of %d", source, strlen(text),
                    VALUE_TEXT_LIMIT);
    }
    for (int length; *text; text += length, place.column++) {
        length = utf8_decode(text, &code);
        if (!length) {
            return fail_at(place, "the byte 0x%02x is not valid UTF-8", (unsigned char)*text);
        }
    }
    return STATUS_OK;
}

void place_text(struct value_place place, struct text *out)
{
    const char *source = place.source ? place.source : "default";
    if (place.line > 0) {
        text_printf(out, "%s:%d:%d", source, place.line, place.column);
    } else if (place.column > 0) {
        text_printf(out, "%s, at %d", source, place.column);
    } else {
        text_append(out, source);
    }
}

enum status fail_at(struct value_place place, const char *format, ...)
{
    struct text where = {0};
    char message[ERROR_MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    place_text(place, &where);
    enum status status = FAIL(ERR_USAGE, "%s: %s", text_get(&where), message);
    text_release(&where);
    return status;
}
