// SPDX-License-Identifier: Apache-2.0
// config.c: the tables: declaring, applying, reading, and writing params.yaml.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_impl.h"

struct config *config_new(void)
{
    struct config *config = MEM_NEW(struct config);
    arena_init(&config->arena);
    return config;
}

void config_free(struct config *config)
{
    if (config) {
        arena_release(&config->arena);
        mem_free(config->entries);
        mem_free(config);
    }
}

static struct config_entry *find_entry(const struct config *config, const char *path)
{
    for (int i = 0; i < config->count; i++) {
        if (strcmp(config->entries[i].field->path, path) == 0) {
            return &config->entries[i];
        }
    }
    return NULL;
}

const struct config_field *config_find(const struct config *config, const char *path)
{
    const struct config_entry *entry = find_entry(config, path);
    return entry ? entry->field : NULL;
}

// ---- Declaring ----------------------------------------------------------------------------------

static const struct value *parse_default(struct config *config, const struct config_field *field,
                                         const char *yaml)
{
    struct value *value = NULL;
    enum status status = value_load_yaml(&config->arena, "default", yaml, strlen(yaml), &value);
    if (status == STATUS_OK) {
        value->place = (struct value_place){0};
        status = config_check(field, value);
    }
    CHECK(status == STATUS_OK, "the default of %s: %s", field->path, error_get()->message);
    return value;
}

void config_declare(struct config *config, const struct config_field *fields, int count)
{
    for (int i = 0; i < count; i++) {
        CHECK(!find_entry(config, fields[i].path), "%s is declared twice", fields[i].path);
        GROW(config->entries, config->count, config->capacity);
        config->entries[config->count++] = (struct config_entry){
            .field = &fields[i], .value = parse_default(config, &fields[i], fields[i].initial)};
    }
}

void config_default(struct config *config, const char *path, const char *yaml)
{
    struct config_entry *entry = find_entry(config, path);
    CHECK(entry, "a default for %s, which is not declared", path);
    entry->value = parse_default(config, entry->field, yaml);
}

// ---- Applying -----------------------------------------------------------------------------------

static bool is_section(const struct config *config, const char *path)
{
    size_t size = strlen(path);
    for (int i = 0; i < config->count; i++) {
        const char *known = config->entries[i].field->path;
        if (strncmp(known, path, size) == 0 && known[size] == '.') {
            return true;
        }
    }
    return false;
}

// Checks everything and leaves it pending, so that a failure has changed nothing.
static enum status collect(struct config *config, const struct value *map, const char *prefix)
{
    for (int i = 0; i < map->map.count; i++) {
        struct value *value = map->map.items[i];
        const char *path =
            arena_printf(&config->arena, "%s%s%s", prefix, *prefix ? "." : "", map->map.keys[i]);
        struct config_entry *entry = find_entry(config, path);
        if (entry && entry->pending) {  // as train.epochs, and as epochs in train
            return fail_at(map->map.key_places[i], "'%s' is given twice", path);
        }
        if (entry) {
            TRY(config_check(entry->field, value));
            entry->pending = value;
        } else if (!is_section(config, path)) {
            return config_unknown_key(config, map->map.key_places[i], path);
        } else if (value->kind == VALUE_MAP) {
            TRY(collect(config, value, path));
        } else if (value->kind != VALUE_NULL) {  // "train:" with nothing below it changes nothing
            return fail_at(value->place, "'%s' is a section with keys of its own, got %s", path,
                           value_kind_name(value->kind));
        }
    }
    return STATUS_OK;
}

// Takes a checked value. Appends the path to `ignored` when the row has no effect and this is not
// what it said before: params.yaml, which has every row, is read without a word.
static void take(struct config_entry *entry, const struct value *value, struct text *ignored)
{
    if ((entry->field->flags & CONFIG_IGNORED) && !value_equal(entry->value, value)) {
        text_printf(ignored, "%s%s", ignored->size ? ", " : "", entry->field->path);
    }
    entry->value = value;
    entry->given = true;
}

static void log_ignored(struct value_place place, struct text *ignored)
{
    if (ignored->size) {
        LOG_WARN("%s: accepted, without effect here: %s", place.source ? place.source : "default",
                 text_get(ignored));
    }
    text_release(ignored);
}

enum status config_apply(struct config *config, const struct value *map)
{
    CHECK(map->kind == VALUE_MAP, "config_apply wants a mapping");
    struct value *copy = value_copy(&config->arena, map);  // the caller's arena may go before us
    struct text ignored = {0};
    enum status status = collect(config, copy, "");
    for (int i = 0; i < config->count; i++) {
        struct config_entry *entry = &config->entries[i];
        if (entry->pending && status == STATUS_OK) {
            take(entry, entry->pending, &ignored);
        }
        entry->pending = NULL;
    }
    log_ignored(copy->place, &ignored);
    return status;
}

enum status config_set(struct config *config, const char *path, const char *flag, const char *text)
{
    struct config_entry *entry = find_entry(config, path);
    CHECK(entry, "the flag %s sets %s, which is not declared", flag, path);
    struct value_place place = {arena_strdup(&config->arena, flag), 0, 0};
    struct value *value = value_new(&config->arena, VALUE_STRING, place);
    enum config_type type = entry->field->type;
    struct value_budget budget = value_budget_full;
    struct text ignored = {0};
    TRY(value_check_text(flag, text));
    value->raw = value->string = arena_strdup(&config->arena, text);
    if (type == CONFIG_ANY || (type >= CONFIG_INT_LIST && type <= CONFIG_STRING_LIST)) {
        TRY(value_parse_yaml(&config->arena, flag, 1, text, strlen(text), &budget, &value));
    } else if (type != CONFIG_STRING && !value_resolve_scalar(value->raw, value)) {
        return fail_at(place, "%.60s does not fit into 64 bits", text);
    }
    TRY(config_check(entry->field, value));
    take(entry, value, &ignored);
    log_ignored(place, &ignored);
    return STATUS_OK;
}

// ---- Reading ------------------------------------------------------------------------------------

static const struct value *read_value(const struct config *config, const char *path,
                                      enum config_type type)
{
    const struct config_entry *entry = find_entry(config, path);
    CHECK(entry, "%s is read but not declared", path);
    CHECK(entry->field->type == type, "%s is read as %s but declared as %s", path,
          config_type_name(type), config_type_name(entry->field->type));
    return entry->value;
}

bool config_is_null(const struct config *config, const char *path)
{
    const struct config_entry *entry = find_entry(config, path);
    CHECK(entry, "%s is read but not declared", path);
    return entry->value->kind == VALUE_NULL;
}

bool config_is_given(const struct config *config, const char *path)
{
    const struct config_entry *entry = find_entry(config, path);
    CHECK(entry, "%s is read but not declared", path);
    return entry->given;
}

bool config_bool(const struct config *config, const char *path)
{
    const struct value *value = read_value(config, path, CONFIG_BOOL);
    CHECK(value->kind == VALUE_BOOL, "%s is null", path);
    return value->boolean;
}

int64_t config_int(const struct config *config, const char *path)
{
    const struct value *value = read_value(config, path, CONFIG_INT);
    CHECK(value->kind == VALUE_INT, "%s is null", path);
    return value->integer;
}

double config_float(const struct config *config, const char *path)
{
    const struct value *value = read_value(config, path, CONFIG_FLOAT);
    CHECK(value->kind != VALUE_NULL, "%s is null", path);
    return value->number;
}

const char *config_string(const struct config *config, const char *path)
{
    const struct value *value = read_value(config, path, CONFIG_STRING);
    return value->kind == VALUE_NULL ? NULL : value->string;
}

int config_count(const struct config *config, const char *path)
{
    const struct value *value = config_value(config, path);
    return value->kind == VALUE_NULL ? 0 : value->kind == VALUE_LIST ? value->list.count : 1;
}

static const struct value *item_at(const struct config *config, const char *path,
                                   enum config_type type, int i)
{
    const struct value *value = read_value(config, path, type);
    CHECK(i >= 0 && i < config_count(config, path), "%s has no entry %d", path, i);
    return value->kind == VALUE_LIST ? value->list.items[i] : value;
}

int64_t config_int_at(const struct config *config, const char *path, int i)
{
    return item_at(config, path, CONFIG_INT_LIST, i)->integer;
}

double config_float_at(const struct config *config, const char *path, int i)
{
    return item_at(config, path, CONFIG_FLOAT_LIST, i)->number;
}

const char *config_string_at(const struct config *config, const char *path, int i)
{
    return item_at(config, path, CONFIG_STRING_LIST, i)->string;
}

const struct value *config_value(const struct config *config, const char *path)
{
    const struct config_entry *entry = find_entry(config, path);
    CHECK(entry, "%s is read but not declared", path);
    return entry->value;
}

const char *config_place(const struct config *config, const char *path, char *buffer, size_t size)
{
    struct text text = {0};
    place_text(config_value(config, path)->place, &text);
    snprintf(buffer, size, "%s", text_get(&text));
    text_release(&text);
    return buffer;
}

// ---- Writing ------------------------------------------------------------------------------------

static int compare_entries(const void *a, const void *b)
{
    const struct config_entry *const *left = a, *const *right = b;
    return strcmp((*left)->field->path, (*right)->field->path);
}

const struct config_entry **config_sorted(const struct config *config)
{
    const struct config_entry **sorted = MEM_NEW_ARRAY(const struct config_entry *, config->count);
    for (int i = 0; i < config->count; i++) {
        sorted[i] = &config->entries[i];
    }
    qsort(sorted, (size_t)config->count, sizeof *sorted, compare_entries);
    return sorted;
}

void config_dump(const struct config *config, struct text *out)
{
    struct arena arena;
    arena_init(&arena);
    struct value_place nowhere = {0};
    struct value *tree = value_new(&arena, VALUE_MAP, nowhere);
    for (int i = 0; i < config->count; i++) {
        const char *at = config->entries[i].field->path, *dot;
        struct value *map = tree;
        for (; (dot = strchr(at, '.')); at = dot + 1) {
            const char *section = arena_strndup(&arena, at, (size_t)(dot - at));
            int k = 0;
            while (k < map->map.count && strcmp(map->map.keys[k], section) != 0) {
                k++;
            }
            if (k == map->map.count) {
                value_map_append(&arena, map, section, nowhere,
                                 value_new(&arena, VALUE_MAP, nowhere));
            }
            map = map->map.items[k];
        }
        value_map_append(&arena, map, at, nowhere, value_copy(&arena, config->entries[i].value));
    }
    value_dump_yaml(out, tree, 0);
    arena_release(&arena);
}
