// SPDX-License-Identifier: Apache-2.0
// value_yaml.c: libyaml's events to a tree, with places and limits. Aliases are expanded here, so
// that what leaves is a tree whose parts can be changed one by one.
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "config_impl.h"

const struct value_budget value_budget_full = {
    .nodes = 10000,               // the longest list anyone writes has a few hundred
    .depth = 64,                  // the deepest shipped file has 5 levels
    .bytes = 4 * VALUE_TEXT_LIMIT // of strings: a file's own, and its aliases
};

struct anchor {
    const char *name;
    struct value *value;  // NULL while it is being read: an alias to it would be a cycle
};

struct loader {
    struct arena *arena;
    const char *source;
    int position;  // of the text in an option; 0: a file
    const char *text;
    yaml_parser_t parser;
    int depth;
    struct value_budget *budget;
    struct anchor *anchors;
    int anchor_count, anchor_capacity;
};

enum status value_spend(struct value_budget *budget, struct value_place place, int nodes,
                        size_t bytes)
{
    if (nodes > budget->nodes || bytes > budget->bytes) {
        return fail_at(place,
                       "more than %d values or %zu bytes, counting aliases where they are "
                       "used",
                       value_budget_full.nodes, value_budget_full.bytes);
    }
    budget->nodes -= nodes;
    budget->bytes -= bytes;
    return STATUS_OK;
}

static struct value_place place_of(const struct loader *loader, yaml_mark_t mark)
{
    if (loader->position) {
        return (struct value_place){loader->source, 0, loader->position + (int)mark.index};
    }
    return (struct value_place){loader->source, (int)mark.line + 1, (int)mark.column + 1};
}

// libyaml marks everything but unreadable bytes, for which it gives an offset.
static yaml_mark_t mark_of_offset(const struct loader *loader)
{
    yaml_mark_t mark = {0};
    for (size_t i = 0; i < loader->parser.problem_offset; i++) {
        if (((unsigned char)loader->text[i] & 0xc0) != 0x80) {  // once a character
            mark.index++;
            mark.column++;
        }
        if (loader->text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        }
    }
    return mark;
}

static enum status next_event(struct loader *loader, yaml_event_t *event)
{
    const yaml_parser_t *parser = &loader->parser;
    if (yaml_parser_parse(&loader->parser, event)) {
        return STATUS_OK;
    }
    if (parser->error == YAML_MEMORY_ERROR) {
        return FAIL(ERR_NO_MEMORY, "%s: no memory for the YAML parser", loader->source);
    }
    bool reader = parser->error == YAML_READER_ERROR;
    yaml_mark_t mark = reader ? mark_of_offset(loader) : parser->problem_mark;
    char begun[32] = "";  // an open bracket is noticed far from where it stands
    if (parser->context && parser->context_mark.line < mark.line && !loader->position) {
        snprintf(begun, sizeof begun, " begun in line %zu", parser->context_mark.line + 1);
    }
    return fail_at(place_of(loader, mark), "not valid YAML: %s%s%s%s",
                   parser->problem ? parser->problem : "unreadable", parser->context ? ", " : "",
                   parser->context ? parser->context : "", begun);
}

// ---- Anchors and aliases ------------------------------------------------------------------------

struct extent {
    int nodes, depth;
    size_t bytes;
};

static struct extent measure(const struct value *value)
{
    struct extent all = {.nodes = 1, .bytes = value->raw ? strlen(value->raw) : 0};
    bool list = value->kind == VALUE_LIST, map = value->kind == VALUE_MAP;
    int count = list ? value->list.count : map ? value->map.count : 0;
    for (int i = 0; i < count; i++) {
        struct extent item = measure(list ? value->list.items[i] : value->map.items[i]);
        all.nodes += item.nodes;
        all.bytes += item.bytes + (map ? strlen(value->map.keys[i]) : 0);
        all.depth = MAX(all.depth, item.depth);
    }
    all.depth++;
    return all;
}

// The index of a new anchor, or -1 without one.
static int add_anchor(struct loader *loader, const yaml_char_t *name)
{
    if (!name) {
        return -1;
    }
    GROW(loader->anchors, loader->anchor_count, loader->anchor_capacity);
    loader->anchors[loader->anchor_count] =
        (struct anchor){arena_strdup(loader->arena, (const char *)name), NULL};
    return loader->anchor_count++;
}

static enum status check_depth(const struct loader *loader, struct value_place place, int depth)
{
    return depth <= loader->budget->depth
               ? STATUS_OK
               : fail_at(place, "nested more than %d deep", value_budget_full.depth);
}

static enum status load_alias(struct loader *loader, const char *name, struct value_place place,
                              struct value **out)
{
    int i = loader->anchor_count - 1;
    while (i >= 0 && strcmp(loader->anchors[i].name, name) != 0) {
        i--;
    }
    if (i < 0) {
        return fail_at(place, "the alias *%.60s names nothing before it", name);
    }
    if (!loader->anchors[i].value) {
        return fail_at(place, "the alias *%.60s stands inside what it names", name);
    }
    struct extent extent = measure(loader->anchors[i].value);
    TRY(value_spend(loader->budget, place, extent.nodes, extent.bytes));
    TRY(check_depth(loader, place, loader->depth + extent.depth));
    *out = value_copy(loader->arena, loader->anchors[i].value);
    (*out)->place = place;
    return STATUS_OK;
}

// ---- Scalars ------------------------------------------------------------------------------------

static enum status resolve_tagged(struct value *value, const char *tag)
{
    static const struct {
        const char *tag;
        enum value_kind kind;
    } known[] = {{YAML_NULL_TAG, VALUE_NULL},  {YAML_BOOL_TAG, VALUE_BOOL},
                 {YAML_INT_TAG, VALUE_INT},    {YAML_FLOAT_TAG, VALUE_FLOAT},
                 {YAML_STR_TAG, VALUE_STRING}, {"!", VALUE_STRING}};
    size_t i = 0;
    while (i < ARRAY_COUNT(known) && tag && strcmp(tag, known[i].tag) != 0) {
        i++;
    }
    if (i == ARRAY_COUNT(known)) {
        return fail_at(value->place, "the tag %.100s has no meaning here; write the value alone",
                       tag);
    }
    if (tag ? known[i].kind == VALUE_STRING : value->quoted) {
        value->kind = VALUE_STRING;
        value->string = value->raw;
        return STATUS_OK;
    }
    if (!value_resolve_scalar(value->raw, value)) {
        return fail_at(value->place, "%.60s does not fit into 64 bits", value->raw);
    }
    if (tag && known[i].kind == VALUE_FLOAT && value->kind == VALUE_INT) {
        value->kind = VALUE_FLOAT;
        value->number = (double)value->integer;
    }
    return !tag || known[i].kind == value->kind
               ? STATUS_OK
               : fail_at(value->place, "%.60s is %s, not %s as its tag says", value->raw,
                         value_kind_name(value->kind), value_kind_name(known[i].kind));
}

static enum status load_scalar(struct loader *loader, const yaml_event_t *event,
                               struct value *value)
{
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length) {
        return fail_at(value->place, "a string holds a NUL byte");
    }
    TRY(value_spend(loader->budget, value->place, 0, event->data.scalar.length));
    value->raw = arena_strdup(loader->arena, text);
    value->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return resolve_tagged(value, (const char *)event->data.scalar.tag);
}

// ---- Lists and mappings -------------------------------------------------------------------------

static enum status load_node(struct loader *loader, yaml_event_t *event, struct value **out);

static enum status check_key(const struct value *map, const struct value *key)
{
    if (!key->raw) {
        return fail_at(key->place, "a key must be a word, not %s", value_kind_name(key->kind));
    }
    if (strcmp(key->raw, "<<") == 0 && !key->quoted) {
        return fail_at(key->place, "the merge key '<<' is not supported; write the keys out");
    }
    if (strlen(key->raw) > VALUE_KEY_LIMIT) {
        return fail_at(key->place, "a key of %zu bytes; the limit is %d", strlen(key->raw),
                       VALUE_KEY_LIMIT);
    }
    for (int i = 0; i < map->map.count; i++) {
        if (strcmp(map->map.keys[i], key->raw) == 0) {
            struct text earlier = {0};
            place_text(map->map.key_places[i], &earlier);
            enum status status = fail_at(key->place, "the key '%s' is given twice, first in %s",
                                         key->raw, text_get(&earlier));
            text_release(&earlier);
            return status;
        }
    }
    return STATUS_OK;
}

// Items up to the end of a list or mapping.
static enum status load_items(struct loader *loader, struct value *value)
{
    for (;;) {
        yaml_event_t event;
        struct value *key, *item;
        TRY(next_event(loader, &event));
        if (event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return STATUS_OK;
        }
        if (value->kind == VALUE_LIST) {
            TRY(load_node(loader, &event, &item));
            value_list_append(loader->arena, value, item);
            continue;
        }
        TRY(load_node(loader, &event, &key));
        TRY(check_key(value, key));
        TRY(next_event(loader, &event));
        TRY(load_node(loader, &event, &item));
        value_map_append(loader->arena, value, key->raw, key->place, item);
    }
}

static enum status check_tag(struct value_place place, const yaml_char_t *tag, const char *core)
{
    const char *text = (const char *)tag;
    return text && strcmp(text, core) != 0 && strcmp(text, "!") != 0
               ? fail_at(place, "the tag %.100s has no meaning here; write the value alone", text)
               : STATUS_OK;
}

// The node that begins with an event which is no alias; *anchor: the index of its anchor, or -1.
static enum status start_node(struct loader *loader, const yaml_event_t *event, struct value *value,
                              int *anchor)
{
    switch (event->type) {
    case YAML_SEQUENCE_START_EVENT:
        value->kind = VALUE_LIST;
        *anchor = add_anchor(loader, event->data.sequence_start.anchor);
        return check_tag(value->place, event->data.sequence_start.tag, YAML_SEQ_TAG);
    case YAML_MAPPING_START_EVENT:
        value->kind = VALUE_MAP;
        *anchor = add_anchor(loader, event->data.mapping_start.anchor);
        return check_tag(value->place, event->data.mapping_start.tag, YAML_MAP_TAG);
    default:
        *anchor = add_anchor(loader, event->data.scalar.anchor);
        return load_scalar(loader, event, value);
    }
}

// Takes the event.
static enum status load_node(struct loader *loader, yaml_event_t *event, struct value **out)
{
    struct value_place place = place_of(loader, event->start_mark);
    int anchor = -1;
    if (event->type == YAML_ALIAS_EVENT) {
        enum status status = load_alias(loader, (const char *)event->data.alias.anchor, place, out);
        yaml_event_delete(event);
        return status;
    }
    struct value *value = value_new(loader->arena, VALUE_NULL, place);
    enum status status = start_node(loader, event, value, &anchor);
    yaml_event_delete(event);
    TRY(status);
    TRY(value_spend(loader->budget, place, 1, 0));
    loader->depth++;
    TRY(check_depth(loader, place, loader->depth));
    if (value->kind == VALUE_LIST || value->kind == VALUE_MAP) {
        TRY(load_items(loader, value));
    }
    loader->depth--;
    if (anchor >= 0) {
        loader->anchors[anchor].value = value;
    }
    *out = value;
    return STATUS_OK;
}

static enum status load_stream(struct loader *loader, struct value **out)
{
    yaml_event_t event;
    TRY(next_event(loader, &event));  // stream start
    yaml_event_delete(&event);
    TRY(next_event(loader, &event));  // document start, or the end of an empty stream
    struct value_place place = place_of(loader, event.start_mark);
    bool empty = event.type == YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
    if (empty) {
        *out = value_new(loader->arena, VALUE_NULL, place);
        return STATUS_OK;
    }
    TRY(next_event(loader, &event));
    TRY(load_node(loader, &event, out));
    TRY(next_event(loader, &event));  // document end
    yaml_event_delete(&event);
    TRY(next_event(loader, &event));
    place = place_of(loader, event.start_mark);
    bool more = event.type != YAML_STREAM_END_EVENT;
    yaml_event_delete(&event);
    return more ? fail_at(place, "a second document begins here; expected one") : STATUS_OK;
}

enum status value_parse_yaml(struct arena *arena, const char *source, int position,
                             const char *text, size_t size, struct value_budget *budget,
                             struct value **out)
{
    struct loader loader = {.arena = arena,
                            .source = arena_strdup(arena, source),
                            .position = position,
                            .text = text,
                            .budget = budget};
    *out = NULL;
    if (size > VALUE_TEXT_LIMIT) {
        return FAIL(ERR_USAGE, "%s: has %zu bytes, more than the limit of %d", source, size,
                    VALUE_TEXT_LIMIT);
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

enum status value_load_yaml(struct arena *arena, const char *source, const char *text, size_t size,
                            struct value **out)
{
    struct value_budget budget = value_budget_full;
    return value_parse_yaml(arena, source, 0, text, size, &budget, out);
}
