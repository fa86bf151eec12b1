// SPDX-License-Identifier: Apache-2.0
// config_impl.h: what the files of the part share. Private to src/config.
#ifndef TRAINER_CONFIG_IMPL_H
#define TRAINER_CONFIG_IMPL_H

#include "trainer/config.h"

enum {
    VALUE_TEXT_LIMIT = 1 << 20,  // bytes of a file or an option: real ones have a few thousand
    VALUE_KEY_LIMIT = 200        // bytes: libyaml reads keys of 1024 characters, four an escape
};

// ---- Trees (value.c) ----------------------------------------------------------------------------

struct value *value_new(struct arena *arena, enum value_kind kind, struct value_place place);
void value_list_append(struct arena *arena, struct value *list, struct value *item);
// `key` is kept, not copied. The caller has looked that it is new.
void value_map_append(struct arena *arena, struct value *map, const char *key,
                      struct value_place place, struct value *item);
struct value *value_copy(struct arena *arena, const struct value *from);  // deep
bool value_equal(const struct value *a, const struct value *b);  // places and spelling aside

// Length of the UTF-8 character at `text`, and its code point; 0 when it is not one.
int utf8_decode(const char *text, uint32_t *code);
// ERR_USAGE when `text` is longer than VALUE_TEXT_LIMIT or not UTF-8, which params.yaml cannot
// hold.
enum status value_check_text(const char *source, const char *text);

// "gpu.yaml:12:3", "--params_override, at 5".
void place_text(struct value_place place, struct text *out);
// Fails with the place in front.
enum status fail_at(struct value_place place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// ---- Reading (value_scalar.c, value_yaml.c) -----------------------------------------------------

// Fills kind and the scalar from plain (unquoted) text by YAML 1.1's rules, as PyYAML applies them.
// A string's pointer is `text` itself. False: a number that does not fit into 64 bits.
bool value_resolve_scalar(const char *text, struct value *value);

// What the values of one file or option may still hold, aliases expanded: stops "billion laughs".
struct value_budget {
    int nodes, depth;
    size_t bytes;
};
extern const struct value_budget value_budget_full;
enum status value_spend(struct value_budget *budget, struct value_place place, int nodes,
                        size_t bytes);

// `position`: where `text` begins in an option (1-based, in characters); 0: a file, whose places
// are lines and columns.
enum status value_parse_yaml(struct arena *arena, const char *source, int position,
                             const char *text, size_t size, struct value_budget *budget,
                             struct value **out);

// ---- Tables (config.c, config_check.c, config_help.c) -------------------------------------------

struct config_entry {
    const struct config_field *field;
    const struct value *value;
    struct value *pending;  // checked by config_apply, not yet taken
    bool given;
};

struct config {
    struct arena arena;
    struct config_entry *entries;
    int count, capacity;
};

const char *config_type_name(enum config_type type);
// "an integer from 0 to 64", "off or mirrored, or null": what a row takes.
void config_append_expected(const struct config_field *field, struct text *out);
// Paths in order, for people: pointers into the config. Caller frees the array with mem_free.
const struct config_entry **config_sorted(const struct config *config);
// Checks a value against its row. Changes it where the row says more than YAML can: an integer
// for a number, an unquoted off for a word.
enum status config_check(const struct config_field *field, struct value *value);
enum status config_unknown_key(const struct config *config, struct value_place place,
                               const char *path);

#endif
