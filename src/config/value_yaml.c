// SPDX-License-Identifier: Apache-2.0
// value_yaml.c: libyaml's events to a tree, with places, limits and YAML 1.1's scalars.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "config_impl.h"

enum {
    TEXT_LIMIT = 1 << 20,  // bytes: a configuration has a few thousand
    DEPTH_LIMIT = 64,      // the deepest shipped file has 5 levels
    NODE_LIMIT = 10000     // after aliases are expanded: stops "billion laughs"
};

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
    char message[2048];
    struct text where = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    place_text(place, &where);
    enum status status = FAIL(ERR_USAGE, "%s: %s", text_get(&where), message);
    text_release(&where);
    return status;
}

// ---- Scalars ----------------------------------------------------------------------------------------

static bool one_of(const char *text, const char *const *words)
{
    for (; *words; words++) {
        if (strcmp(text, *words) == 0) {
            return true;
        }
    }
    return false;
}

// Digits of `base` with underscores between; NULL when there is anything else.
static const char *clean_digits(const char *text, const char *allowed, char *buffer, size_t size)
{
    size_t used = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '_') {
            continue;
        }
        if (!strchr(allowed, *c) || used + 1 >= size) {
            return NULL;
        }
        buffer[used++] = *c;
    }
    buffer[used] = '\0';
    return used ? buffer : NULL;
}

// 1:30 = 90: base 60, every part after the first below 60.
static bool base_60(const char *text, double *out, bool *integral)
{
    double total = 0;
    *integral = true;
    for (int part = 0;; part++) {
        size_t digits = strspn(text, "0123456789_");
        if (digits == 0 || digits > 18) {
            return false;
        }
        char *end;
        double value = strtod(text, &end);
        if (part > 0 && value >= 60) {
            return false;
        }
        total = total * 60 + value;
        *integral &= (size_t)(end - text) == digits;
        if (!*end) {
            *out = total;
            return part > 0;
        }
        if (*end != ':') {
            return false;
        }
        text = end + 1;
    }
}

static enum status set_integer(struct value *value, const char *text, bool negative,
                               const char *digits, int base)
{
    errno = 0;
    unsigned long long magnitude = strtoull(digits, NULL, base);
    unsigned long long limit = negative ? (unsigned long long)INT64_MAX + 1 : INT64_MAX;
    if (errno == ERANGE || magnitude > limit) {
        return FAIL(ERR_USAGE, "%s does not fit into 64 bits", text);
    }
    value->kind = VALUE_INT;
    value->integer = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return STATUS_OK;
}

// Integers: decimal, 0x, 0b, octal with a leading 0. *matched: it was one.
static enum status resolve_integer(const char *text, struct value *value, bool *matched)
{
    bool negative = *text == '-';
    const char *digits = text + (*text == '-' || *text == '+');
    char buffer[80];
    static const struct {
        const char *prefix, *allowed;
        int base;
    } forms[] = {{"0x", "0123456789abcdefABCDEF", 16}, {"0b", "01", 2}, {"0", "01234567", 8},
                 {"", "0123456789", 10}};
    *matched = false;
    for (size_t i = 0; i < ARRAY_COUNT(forms); i++) {
        size_t skip = strlen(forms[i].prefix);
        bool octal = forms[i].base == 8;
        if (strncmp(digits, forms[i].prefix, skip) != 0 || (octal && !digits[1])) {
            continue;
        }
        bool leading_zero = forms[i].base == 10 && digits[0] == '0' && digits[1];
        const char *clean = digits[skip] == '_' ? NULL
                                                : clean_digits(digits + skip, forms[i].allowed,
                                                               buffer, sizeof buffer);
        if (clean && !leading_zero) {
            *matched = true;
            return set_integer(value, text, negative, clean, forms[i].base);
        }
    }
    return STATUS_OK;
}

// 1.5, .5, 5., 1e-4, 1.5e3: digits with a dot or an exponent.
static bool resolve_float(const char *text, struct value *value)
{
    const char *rest = text + (*text == '-' || *text == '+');
    double sign = *text == '-' ? -1 : 1;
    static const char *const infinities[] = {".inf", ".Inf", ".INF", NULL};
    static const char *const nans[] = {".nan", ".NaN", ".NAN", NULL};
    char buffer[320];
    if (one_of(rest, infinities)) {
        value->number = sign * INFINITY;
    } else if (one_of(text, nans)) {
        value->number = NAN;
    } else {
        size_t whole = strspn(rest, "0123456789_");
        const char *at = rest + whole;
        bool dot = *at == '.';
        size_t fraction = dot ? strspn(at + 1, "0123456789_") : 0;
        at += dot + fraction;
        bool exponent = *at == 'e' || *at == 'E';
        if (exponent) {
            at += 1 + (at[1] == '-' || at[1] == '+');
            size_t digits = strspn(at, "0123456789");
            exponent = digits > 0;
            at += digits;
        }
        if (*at || !(dot || exponent) || whole + fraction == 0 || rest[0] == '_' ||
            !clean_digits(rest, "0123456789.eE+-", buffer, sizeof buffer)) {
            return false;
        }
        value->number = sign * strtod(buffer, NULL);
    }
    value->kind = VALUE_FLOAT;
    return true;
}

enum status value_resolve_scalar(const char *text, struct value *value)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const yes[] = {"yes", "Yes", "YES", "true", "True", "TRUE",
                                      "on",  "On",  "ON",  NULL};
    static const char *const no[] = {"no",  "No",  "NO",  "false", "False", "FALSE",
                                     "off", "Off", "OFF", NULL};
    bool matched, integral;
    double number;
    if (one_of(text, nulls)) {
        value->kind = VALUE_NULL;
        return STATUS_OK;
    }
    if (one_of(text, yes) || one_of(text, no)) {
        value->kind = VALUE_BOOL;
        value->boolean = one_of(text, yes);
        return STATUS_OK;
    }
    TRY(resolve_integer(text, value, &matched));
    if (matched || resolve_float(text, value)) {
        return STATUS_OK;
    }
    const char *unsigned_text = text + (*text == '-' || *text == '+');
    if (base_60(unsigned_text, &number, &integral)) {
        number = *text == '-' ? -number : number;
        value->kind = integral ? VALUE_INT : VALUE_FLOAT;
        if (integral) {
            value->integer = (int64_t)number;
        } else {
            value->number = number;
        }
        return STATUS_OK;
    }
    value->kind = VALUE_STRING;
    value->string = text;
    return STATUS_OK;
}

// ---- Events to a tree -------------------------------------------------------------------------------

struct anchor {
    const char *name;
    struct value *value;   // NULL while it is being read: an alias to it would be a cycle
};

struct loader {
    struct arena *arena;
    const char *source;
    yaml_parser_t parser;
    int depth, nodes;
    struct anchor *anchors;
    int anchor_count, anchor_capacity;
};

static struct value_place place_of(const struct loader *loader, yaml_mark_t mark)
{
    return (struct value_place){loader->source, (int)mark.line + 1, (int)mark.column + 1};
}

static enum status next_event(struct loader *loader, yaml_event_t *event)
{
    if (!yaml_parser_parse(&loader->parser, event)) {
        const yaml_parser_t *parser = &loader->parser;
        yaml_mark_t mark = parser->problem_mark;
        return fail_at(place_of(loader, mark), "not valid YAML: %s%s%s",
                       parser->problem ? parser->problem : "unreadable bytes",
                       parser->context ? ", " : "", parser->context ? parser->context : "");
    }
    return STATUS_OK;
}

static enum status count_nodes(struct loader *loader, struct value_place place, int more)
{
    loader->nodes += more;
    return loader->nodes > NODE_LIMIT
               ? fail_at(place, "more than %d values, aliases counted where they are used",
                         NODE_LIMIT)
               : STATUS_OK;
}

static int tree_size(const struct value *value)
{
    int size = 1;
    if (value->kind == VALUE_LIST) {
        for (int i = 0; i < value->list.count; i++) {
            size = MIN(size + tree_size(value->list.items[i]), 2 * NODE_LIMIT);
        }
    } else if (value->kind == VALUE_MAP) {
        for (int i = 0; i < value->map.count; i++) {
            size = MIN(size + tree_size(value->map.items[i]), 2 * NODE_LIMIT);
        }
    }
    return size;
}

static enum status check_tag(struct value_place place, const yaml_char_t *tag, const char *core)
{
    const char *text = (const char *)tag;
    if (text && strcmp(text, core) != 0 && strcmp(text, "!") != 0) {
        return fail_at(place, "the tag %s has no meaning here", text);
    }
    return STATUS_OK;
}

static enum status load_node(struct loader *loader, yaml_event_t *event, struct value **out);

// The index of a new anchor, or -1 without one.
static int remember(struct loader *loader, const yaml_char_t *name)
{
    if (!name) {
        return -1;
    }
    GROW(loader->anchors, loader->anchor_count, loader->anchor_capacity);
    loader->anchors[loader->anchor_count] =
        (struct anchor){arena_strdup(loader->arena, (const char *)name), NULL};
    return loader->anchor_count++;
}

static enum status load_alias(struct loader *loader, const yaml_event_t *event,
                              struct value_place place, struct value **out)
{
    const char *name = (const char *)event->data.alias.anchor;
    for (int i = loader->anchor_count - 1; i >= 0; i--) {
        if (strcmp(loader->anchors[i].name, name) == 0) {
            if (!loader->anchors[i].value) {
                return fail_at(place, "the alias *%s stands inside what it names", name);
            }
            *out = loader->anchors[i].value;
            return count_nodes(loader, place, tree_size(*out));
        }
    }
    return fail_at(place, "the alias *%s names nothing before it", name);
}

static enum status load_scalar(struct loader *loader, const yaml_event_t *event,
                               struct value *value)
{
    const char *text = (const char *)event->data.scalar.value;
    const char *tag = (const char *)event->data.scalar.tag;
    if (strlen(text) != event->data.scalar.length) {
        return fail_at(value->place, "a string holds a NUL byte");
    }
    value->raw = arena_strdup(loader->arena, text);
    value->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    bool as_string = value->quoted || (tag && strcmp(tag, YAML_STR_TAG) == 0);
    if (tag && !as_string && strcmp(tag, "!") != 0) {
        static const char *const known[] = {YAML_INT_TAG, YAML_FLOAT_TAG, YAML_BOOL_TAG,
                                            YAML_NULL_TAG, NULL};
        if (!one_of(tag, known)) {
            return check_tag(value->place, event->data.scalar.tag, YAML_STR_TAG);
        }
    }
    if (as_string || (tag && strcmp(tag, "!") == 0)) {
        value->kind = VALUE_STRING;
        value->string = value->raw;
        return STATUS_OK;
    }
    enum status status = value_resolve_scalar(value->raw, value);
    return status == STATUS_OK ? STATUS_OK : fail_at(value->place, "%s", error_get()->message);
}

static enum status load_list(struct loader *loader, struct value *value)
{
    int capacity = 0, count = 0;
    struct value **items = NULL;
    enum status status = STATUS_OK;
    value->kind = VALUE_LIST;
    for (bool open = true; open && status == STATUS_OK;) {
        yaml_event_t event;
        status = next_event(loader, &event);
        if (status != STATUS_OK) {
            break;
        }
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            open = false;
        } else {
            GROW(items, count, capacity);
            status = load_node(loader, &event, &items[count++]);
        }
    }
    value->list.count = count;
    value->list.items = ARENA_NEW_ARRAY(loader->arena, struct value *, count);
    if (count) {
        memcpy(value->list.items, items, sizeof *items * (size_t)count);
    }
    mem_free(items);
    return status;
}

struct pairs {
    const char **keys;
    struct value_place *places;
    struct value **items;
    int count, capacity;
};

static enum status load_pair(struct loader *loader, yaml_event_t *key_event, struct pairs *pairs)
{
    struct value_place place = place_of(loader, key_event->start_mark);
    if (key_event->type != YAML_SCALAR_EVENT) {
        yaml_event_delete(key_event);
        return fail_at(place, "a key must be a plain word, not a list, a mapping or an alias");
    }
    bool nul = strlen((char *)key_event->data.scalar.value) != key_event->data.scalar.length;
    const char *key = arena_strdup(loader->arena, (const char *)key_event->data.scalar.value);
    yaml_event_delete(key_event);
    if (nul || strcmp(key, "<<") == 0) {
        return fail_at(place, nul ? "a key holds a NUL byte"
                                  : "the merge key '<<' is not supported; write the keys out");
    }
    for (int i = 0; i < pairs->count; i++) {
        if (strcmp(pairs->keys[i], key) == 0) {
            return fail_at(place, "the key '%s' is already given in line %d", key,
                           pairs->places[i].line);
        }
    }
    int capacity = pairs->capacity, same = pairs->capacity;
    GROW(pairs->keys, pairs->count, pairs->capacity);
    GROW(pairs->places, pairs->count, capacity);
    GROW(pairs->items, pairs->count, same);
    pairs->keys[pairs->count] = key;
    pairs->places[pairs->count] = place;
    yaml_event_t event;
    TRY(next_event(loader, &event));
    return load_node(loader, &event, &pairs->items[pairs->count++]);
}

static enum status load_map(struct loader *loader, struct value *value)
{
    struct pairs pairs = {0};
    enum status status = STATUS_OK;
    value->kind = VALUE_MAP;
    for (bool open = true; open && status == STATUS_OK;) {
        yaml_event_t event;
        status = next_event(loader, &event);
        if (status != STATUS_OK) {
            break;
        }
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            open = false;
        } else {
            status = load_pair(loader, &event, &pairs);
        }
    }
    struct arena *arena = loader->arena;
    size_t count = (size_t)pairs.count;
    value->map.count = pairs.count;
    value->map.keys = ARENA_NEW_ARRAY(arena, const char *, pairs.count);
    value->map.key_places = ARENA_NEW_ARRAY(arena, struct value_place, pairs.count);
    value->map.items = ARENA_NEW_ARRAY(arena, struct value *, pairs.count);
    if (count) {
        memcpy(value->map.keys, pairs.keys, sizeof *pairs.keys * count);
        memcpy(value->map.key_places, pairs.places, sizeof *pairs.places * count);
        memcpy(value->map.items, pairs.items, sizeof *pairs.items * count);
    }
    mem_free(pairs.keys);
    mem_free(pairs.places);
    mem_free(pairs.items);
    return status;
}

// Takes the event.
static enum status load_node(struct loader *loader, yaml_event_t *event, struct value **out)
{
    struct value_place place = place_of(loader, event->start_mark);
    enum status status;
    int anchor = -1;
    *out = NULL;
    if (event->type == YAML_ALIAS_EVENT) {
        status = load_alias(loader, event, place, out);
        yaml_event_delete(event);
        return status;
    }
    struct value *value = ARENA_NEW(loader->arena, struct value);
    value->place = place;
    status = count_nodes(loader, place, 1);
    if (status == STATUS_OK && ++loader->depth > DEPTH_LIMIT) {
        status = fail_at(place, "nested more than %d deep", DEPTH_LIMIT);
    }
    yaml_event_type_t type = event->type;
    if (status == STATUS_OK && type == YAML_SCALAR_EVENT) {
        anchor = remember(loader, event->data.scalar.anchor);
        status = load_scalar(loader, event, value);
    } else if (status == STATUS_OK && type == YAML_SEQUENCE_START_EVENT) {
        anchor = remember(loader, event->data.sequence_start.anchor);
        status = check_tag(place, event->data.sequence_start.tag, YAML_SEQ_TAG);
    } else if (status == STATUS_OK && type == YAML_MAPPING_START_EVENT) {
        anchor = remember(loader, event->data.mapping_start.anchor);
        status = check_tag(place, event->data.mapping_start.tag, YAML_MAP_TAG);
    }
    yaml_event_delete(event);
    if (status == STATUS_OK && type == YAML_SEQUENCE_START_EVENT) {
        status = load_list(loader, value);
    } else if (status == STATUS_OK && type == YAML_MAPPING_START_EVENT) {
        status = load_map(loader, value);
    }
    loader->depth--;
    if (anchor >= 0) {
        loader->anchors[anchor].value = value;
    }
    *out = value;
    return status;
}

static enum status load_stream(struct loader *loader, struct value **out)
{
    yaml_event_t event;
    TRY(next_event(loader, &event));  // stream start
    yaml_event_delete(&event);
    TRY(next_event(loader, &event));  // document start, or the end of an empty stream
    bool empty = event.type == YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
    if (empty) {
        *out = ARENA_NEW(loader->arena, struct value);  // null
        (*out)->place = (struct value_place){loader->source, 1, 1};
        return STATUS_OK;
    }
    TRY(next_event(loader, &event));
    TRY(load_node(loader, &event, out));
    TRY(next_event(loader, &event));  // document end
    yaml_event_delete(&event);
    TRY(next_event(loader, &event));
    struct value_place place = place_of(loader, event.start_mark);
    bool more = event.type != YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
    return more ? fail_at(place, "a second document begins here; expected one") : STATUS_OK;
}

enum status value_load_yaml(struct arena *arena, const char *source, const char *text, size_t size,
                            struct value **out)
{
    struct loader loader = {.arena = arena, .source = arena_strdup(arena, source)};
    *out = NULL;
    if (size > TEXT_LIMIT) {
        return FAIL(ERR_USAGE, "%s: has %zu bytes, more than the limit of %d", source, size,
                    TEXT_LIMIT);
    }
    if (!yaml_parser_initialize(&loader.parser)) {
        return FAIL(ERR_NO_MEMORY, "%s: no memory for the YAML parser", source);
    }
    yaml_parser_set_input_string(&loader.parser, (const unsigned char *)text, size);
    enum status status = load_stream(&loader, out);
    yaml_parser_delete(&loader.parser);
    mem_free(loader.anchors);
    return status;
}
