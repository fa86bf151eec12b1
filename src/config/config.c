// SPDX-License-Identifier: Apache-2.0
// config.c: the tables: declaring, checking, applying, reading.
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_impl.h"

struct entry {
    const struct config_field *field;
    const struct value *value;
    bool given;
};

struct config {
    struct arena arena;
    struct entry *entries;
    int count, capacity;
};

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

static struct entry *find_entry(const struct config *config, const char *path)
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
    const struct entry *entry = find_entry(config, path);
    return entry ? entry->field : NULL;
}

static const char *type_name(enum config_type type)
{
    static const char *const names[] = {"true or false",      "an integer",        "a number",
                                        "a string",           "a list of integers", "a list of numbers",
                                        "a list of strings", "a number or a word", "any value"};
    return names[type];
}

// ---- Checking ---------------------------------------------------------------------------------------

// "$NUM_GPUS" that the shell did not expand.
static bool unexpanded(const char *text)
{
    const char *dollar = strchr(text, '$');
    return dollar && (isalpha((unsigned char)dollar[1]) || dollar[1] == '_' || dollar[1] == '{');
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

static enum status check_number(const struct config_field *field, const struct value *value)
{
    double number = value->kind == VALUE_INT ? (double)value->integer : value->number;
    bool ranged = field->minimum != 0 || field->maximum != 0;
    if (isnan(number) || (ranged && !(number >= field->minimum && number <= field->maximum))) {
        struct text range = {0};
        text_append_number(&range, field->minimum);
        text_append(&range, " to ");
        text_append_number(&range, field->maximum);
        enum status status = ranged ? fail_at(value->place, "%s is %s, expected %s from %s",
                                              field->path, value->raw, type_name(field->type),
                                              text_get(&range))
                                    : fail_at(value->place, "%s is not a number", field->path);
        text_release(&range);
        return status;
    }
    return STATUS_OK;
}

static enum status wrong_type(const struct config_field *field, const struct value *value,
                              const char *expected)
{
    bool quoted_number = value->kind == VALUE_STRING && value->quoted;
    return fail_at(value->place, "%s is %s%s%s%s, expected %s%s", field->path,
                   value_kind_name(value->kind), value->raw ? " (" : "",
                   value->raw ? value->raw : "", value->raw ? ")" : "", expected,
                   quoted_number                                              ? "; leave out the quotes"
                   : field->type == CONFIG_STRING && value->kind < VALUE_STRING ? "; put it in quotes"
                                                                               : "");
}

static enum status check_string(const struct config_field *field, struct value *value)
{
    // An unquoted off, yes or 5 where a word is expected: the word as it was typed.
    if (value->kind != VALUE_STRING && value->raw && is_choice(field, value->raw)) {
        value->kind = VALUE_STRING;
        value->string = value->raw;
    }
    if (value->kind != VALUE_STRING) {
        return wrong_type(field, value, "a string");
    }
    if (field->choices && !is_choice(field, value->string)) {
        struct text list = {0};
        text_append_list(&list, field->choices);
        const char *near = text_nearest(value->string, field->choices);
        enum status status = fail_at(value->place, "%s is '%s'%s%s%s, expected one of: %s",
                                     field->path, value->string, near ? "; did you mean '" : "",
                                     near ? near : "", near ? "'" : "", text_get(&list));
        text_release(&list);
        return status;
    }
    return STATUS_OK;
}

static enum status check_scalar(const struct config_field *field, enum config_type type,
                                struct value *value)
{
    enum value_kind kind = value->kind;
    if (kind == VALUE_STRING && unexpanded(value->string)) {
        return fail_at(value->place,
                       "%s is '%s': the shell did not expand the variable; single quotes keep it "
                       "from doing so, use double quotes", field->path, value->string);
    }
    switch (type) {
    case CONFIG_BOOL:
        return kind == VALUE_BOOL ? STATUS_OK : wrong_type(field, value, type_name(type));
    case CONFIG_INT:
        return kind == VALUE_INT ? check_number(field, value)
                                 : wrong_type(field, value, "an integer");
    case CONFIG_FLOAT:
        return kind == VALUE_INT || kind == VALUE_FLOAT ? check_number(field, value)
                                                        : wrong_type(field, value, "a number");
    case CONFIG_STRING: return check_string(field, value);
    default:
        return kind == VALUE_LIST || kind == VALUE_MAP ? wrong_type(field, value, type_name(type))
                                                       : STATUS_OK;
    }
}

static enum status check_list(const struct config_field *field, struct value *value)
{
    static const enum config_type items[] = {[CONFIG_INT_LIST] = CONFIG_INT,
                                             [CONFIG_FLOAT_LIST] = CONFIG_FLOAT,
                                             [CONFIG_STRING_LIST] = CONFIG_STRING};
    enum config_type item = items[field->type];
    if (value->kind != VALUE_LIST) {
        return item == CONFIG_STRING && value->kind == VALUE_STRING
                   ? check_scalar(field, item, value)
                   : wrong_type(field, value, type_name(field->type));
    }
    for (int i = 0; i < value->list.count; i++) {
        TRY(check_scalar(field, item, value->list.items[i]));
    }
    return STATUS_OK;
}

static enum status check_value(const struct config_field *field, struct value *value)
{
    if (value->kind == VALUE_NULL) {
        bool nullable = (field->flags & CONFIG_NULLABLE) || field->type == CONFIG_ANY;
        return nullable ? STATUS_OK
                        : fail_at(value->place, "%s is null, expected %s", field->path,
                                  type_name(field->type));
    }
    switch (field->type) {
    case CONFIG_ANY: return STATUS_OK;
    case CONFIG_INT_LIST:
    case CONFIG_FLOAT_LIST:
    case CONFIG_STRING_LIST: return check_list(field, value);
    default: return check_scalar(field, field->type, value);
    }
}

// ---- Declaring --------------------------------------------------------------------------------------

static const struct value *parse_default(struct config *config, const struct config_field *field,
                                         const char *yaml)
{
    struct value *value = NULL;
    enum status status = value_load_yaml(&config->arena, "default", yaml, strlen(yaml), &value);
    if (status == STATUS_OK) {
        value->place = (struct value_place){0};
        status = check_value(field, value);
    }
    CHECK(status == STATUS_OK, "the default of %s: %s", field->path, error_get()->message);
    return value;
}

void config_declare(struct config *config, const struct config_field *fields, int count)
{
    for (int i = 0; i < count; i++) {
        CHECK(!find_entry(config, fields[i].path), "%s is declared twice", fields[i].path);
        GROW(config->entries, config->count, config->capacity);
        config->entries[config->count++] =
            (struct entry){&fields[i], parse_default(config, &fields[i], fields[i].initial), false};
    }
}

void config_default(struct config *config, const char *path, const char *yaml)
{
    struct entry *entry = find_entry(config, path);
    CHECK(entry, "a default for %s, which is not declared", path);
    entry->value = parse_default(config, entry->field, yaml);
}

// ---- Applying ---------------------------------------------------------------------------------------

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

static enum status unknown_key(const struct config *config, struct value_place place,
                               const char *path)
{
    const char **paths = MEM_NEW_ARRAY(const char *, config->count + 1);
    const char **siblings = MEM_NEW_ARRAY(const char *, config->count + 1);
    const char *dot = strrchr(path, '.');
    size_t prefix = dot ? (size_t)(dot - path) + 1 : 0;
    int count = 0;
    for (int i = 0; i < config->count; i++) {
        paths[i] = config->entries[i].field->path;
        if (strncmp(paths[i], path, prefix) == 0 && prefix && !strchr(paths[i] + prefix, '.')) {
            siblings[count++] = paths[i] + prefix;
        }
    }
    const char *near = text_nearest(path, paths);
    struct text list = {0};
    text_append_list(&list, siblings);
    enum status status =
        fail_at(place, "unknown key '%s'%s%s%s%s%.*s%s%s", path, near ? "; did you mean '" : "",
                near ? near : "", near ? "'?" : "", count ? " Known in '" : "",
                count ? (int)prefix - 1 : 0, path, count ? "': " : "", text_get(&list));
    text_release(&list);
    mem_free(paths);
    mem_free(siblings);
    return status;
}

// First pass: everything is checked; second: everything is taken.
static enum status walk(struct config *config, const struct value *map, const char *prefix,
                        bool apply)
{
    for (int i = 0; i < map->map.count; i++) {
        struct value *value = map->map.items[i];
        const char *path = arena_printf(&config->arena, "%s%s%s", prefix, *prefix ? "." : "",
                                        map->map.keys[i]);
        struct entry *entry = find_entry(config, path);
        if (entry && apply) {
            entry->value = value;
            entry->given = true;
            if ((entry->field->flags & CONFIG_IGNORED) && value->kind != VALUE_NULL) {
                struct text place = {0};
                place_text(value->place, &place);
                LOG_NOTE("%s: %s has no effect here", text_get(&place), path);
                text_release(&place);
            }
        } else if (entry) {
            TRY(check_value(entry->field, value));
        } else if (!is_section(config, path)) {
            return unknown_key(config, map->map.key_places[i], path);
        } else if (value->kind == VALUE_MAP) {
            TRY(walk(config, value, path, apply));
        } else if (value->kind != VALUE_NULL) {
            return fail_at(value->place, "'%s' is a section with keys of its own, got %s", path,
                           value_kind_name(value->kind));
        }
    }
    return STATUS_OK;
}

// A deep copy: the caller's arena may go before the configuration.
static struct value *copy_value(struct arena *arena, const struct value *from)
{
    struct value *to = ARENA_NEW(arena, struct value);
    *to = *from;
    to->raw = from->raw ? arena_strdup(arena, from->raw) : NULL;
    to->place.source = from->place.source ? arena_strdup(arena, from->place.source) : NULL;
    if (from->kind == VALUE_STRING) {
        to->string = arena_strdup(arena, from->string);
    } else if (from->kind == VALUE_LIST) {
        to->list.items = ARENA_NEW_ARRAY(arena, struct value *, from->list.count);
        for (int i = 0; i < from->list.count; i++) {
            to->list.items[i] = copy_value(arena, from->list.items[i]);
        }
    } else if (from->kind == VALUE_MAP) {
        to->map.keys = ARENA_NEW_ARRAY(arena, const char *, from->map.count);
        to->map.key_places = ARENA_NEW_ARRAY(arena, struct value_place, from->map.count);
        to->map.items = ARENA_NEW_ARRAY(arena, struct value *, from->map.count);
        for (int i = 0; i < from->map.count; i++) {
            to->map.keys[i] = arena_strdup(arena, from->map.keys[i]);
            to->map.key_places[i] = from->map.key_places[i];
            to->map.key_places[i].source = to->place.source;
            to->map.items[i] = copy_value(arena, from->map.items[i]);
        }
    }
    return to;
}

enum status config_apply(struct config *config, const struct value *map)
{
    CHECK(map->kind == VALUE_MAP, "config_apply wants a mapping");
    struct value *copy = copy_value(&config->arena, map);
    TRY(walk(config, copy, "", false));
    return walk(config, copy, "", true);
}

enum status config_set(struct config *config, const char *path, const char *flag, const char *text)
{
    struct entry *entry = find_entry(config, path);
    CHECK(entry, "the flag %s sets %s, which is not declared", flag, path);
    struct value *value = ARENA_NEW(&config->arena, struct value);
    struct value_place place = {arena_strdup(&config->arena, flag), 0, 0};
    *value = (struct value){.kind = VALUE_STRING,
                            .place = place,
                            .raw = arena_strdup(&config->arena, text)};
    value->string = value->raw;
    enum config_type type = entry->field->type;
    if (type >= CONFIG_INT_LIST && type <= CONFIG_STRING_LIST) {
        TRY(value_load_yaml(&config->arena, flag, text, strlen(text), &value));
        value->place = place;
    } else if (type != CONFIG_STRING) {
        enum status status = value_resolve_scalar(value->raw, value);
        if (status != STATUS_OK) {
            return fail_at(place, "%s", error_get()->message);
        }
    }
    TRY(check_value(entry->field, value));
    entry->value = value;
    entry->given = true;
    return STATUS_OK;
}

// ---- Reading ----------------------------------------------------------------------------------------

static const struct value *read_value(const struct config *config, const char *path,
                                      enum config_type type)
{
    const struct entry *entry = find_entry(config, path);
    CHECK(entry, "%s is read but not declared", path);
    CHECK(entry->field->type == type, "%s is read as %s but declared as %s", path, type_name(type),
          type_name(entry->field->type));
    return entry->value;
}

bool config_is_null(const struct config *config, const char *path)
{
    const struct entry *entry = find_entry(config, path);
    CHECK(entry, "%s is read but not declared", path);
    return entry->value->kind == VALUE_NULL;
}

bool config_is_given(const struct config *config, const char *path)
{
    const struct entry *entry = find_entry(config, path);
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

static double number_of(const struct value *value)
{
    return value->kind == VALUE_INT ? (double)value->integer : value->number;
}

double config_float(const struct config *config, const char *path)
{
    const struct value *value = read_value(config, path, CONFIG_FLOAT);
    CHECK(value->kind != VALUE_NULL, "%s is null", path);
    return number_of(value);
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
    return number_of(item_at(config, path, CONFIG_FLOAT_LIST, i));
}

const char *config_string_at(const struct config *config, const char *path, int i)
{
    return item_at(config, path, CONFIG_STRING_LIST, i)->string;
}

const struct value *config_value(const struct config *config, const char *path)
{
    const struct entry *entry = find_entry(config, path);
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

// ---- Writing ----------------------------------------------------------------------------------------

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->field->path, ((const struct entry *)b)->field->path);
}

// The entries with this prefix as a mapping; `depth` is where the rest of the path begins.
static struct value *build_tree(struct arena *arena, const struct entry *entries, int count,
                                size_t depth)
{
    struct value *map = ARENA_NEW(arena, struct value);
    map->kind = VALUE_MAP;
    map->map.keys = ARENA_NEW_ARRAY(arena, const char *, count);
    map->map.items = ARENA_NEW_ARRAY(arena, struct value *, count);
    for (int i = 0, next; i < count; i = next) {
        const char *rest = entries[i].field->path + depth;
        size_t size = strcspn(rest, ".");
        next = i + 1;
        struct value *item;
        if (rest[size]) {
            while (next < count && strncmp(entries[next].field->path + depth, rest, size + 1) == 0) {
                next++;
            }
            item = build_tree(arena, entries + i, next - i, depth + size + 1);
        } else {
            item = copy_value(arena, entries[i].value);
        }
        map->map.keys[map->map.count] = arena_strndup(arena, rest, size);
        map->map.items[map->map.count++] = item;
    }
    return map;
}

void config_dump(const struct config *config, struct text *out)
{
    struct arena arena;
    arena_init(&arena);
    struct entry *sorted = MEM_NEW_ARRAY(struct entry, config->count);
    memcpy(sorted, config->entries, sizeof *sorted * (size_t)config->count);
    qsort(sorted, (size_t)config->count, sizeof *sorted, compare_entries);
    value_dump_yaml(out, build_tree(&arena, sorted, config->count, 0), 0);
    mem_free(sorted);
    arena_release(&arena);
}

static void help_kind(const struct config_field *field, struct text *out)
{
    bool ranged = field->minimum != 0 || field->maximum != 0;
    if (field->choices) {
        text_append_list(out, field->choices);
    } else {
        text_append(out, type_name(field->type));
    }
    if (ranged) {
        text_append(out, " from ");
        text_append_number(out, field->minimum);
        text_append(out, " to ");
        text_append_number(out, field->maximum);
    }
    if (field->flags & CONFIG_NULLABLE) {
        text_append(out, " or null");
    }
}

void config_help(const struct config *config, struct text *out)
{
    struct entry *sorted = MEM_NEW_ARRAY(struct entry, config->count);
    memcpy(sorted, config->entries, sizeof *sorted * (size_t)config->count);
    qsort(sorted, (size_t)config->count, sizeof *sorted, compare_entries);
    for (int i = 0; i < config->count; i++) {
        const struct config_field *field = sorted[i].field;
        struct text initial = {0};
        value_dump_json(&initial, sorted[i].value);
        text_printf(out, "  %-46s %s\n", field->path, text_get(&initial));
        text_printf(out, "      %s%s (", (field->flags & CONFIG_IGNORED) ? "[no effect] " : "",
                    field->help);
        help_kind(field, out);
        text_append(out, ")\n");
        text_release(&initial);
    }
    mem_free(sorted);
}
