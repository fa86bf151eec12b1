// SPDX-License-Identifier: Apache-2.0
// config.h: typed options from tables. A part declares its options as rows; defaults, YAML,
// --params_override, flags, --help, range checks and params.yaml all follow from the row. Floor 1.
#ifndef TRAINER_CONFIG_H
#define TRAINER_CONFIG_H

#include "trainer/base.h"
#include "trainer/mem.h"
#include "trainer/text.h"

// ---- Values: what YAML can say ------------------------------------------------------------------

enum value_kind {
    VALUE_NULL,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_MAP
};
const char *value_kind_name(enum value_kind kind);  // "null", "true or false", "an integer", ...

// Where a value was said, for messages: "gpu.yaml", line 12, column 3. For an option's text the
// line is 0 and the column is the position in it (in characters, from 1); for a flag and for a
// default both are 0. A value that came by an alias has the place of the alias.
struct value_place {
    const char *source;
    int line, column;
};

// A tree. All of it lives in the arena it was loaded into; immutable after loading.
struct value {
    enum value_kind kind;
    struct value_place place;
    const char *raw;      // a scalar as it was typed; NULL for lists and mappings
    bool quoted;          // it was in quotes
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char *string;
        struct value_list {
            struct value **items;
            int count;
        } list;
        struct value_map {
            const char **keys;        // unique, in order of appearance
            struct value_place *key_places;
            struct value **items;
            int count;
        } map;
    };
};

// YAML 1.1 scalars as PyYAML resolves them, plus 1e-4 and 1.5e3 as floats (see docs/config.md).
// Limits: 1 MiB of text, 64 levels, 10,000 values and 4 MiB of strings after aliases are expanded;
// duplicate keys, merge keys (<<), tags other than the core ones, and several documents are errors.
// An empty text is null. ERR_USAGE with source, line, column.
enum status value_load_yaml(struct arena *arena, const char *source, const char *text, size_t size,
                            struct value **out);
// The text of --config_file or --params_override: "a.b=c,d=e" (dots become nested mappings), a YAML
// or JSON mapping, or a file name. A text that has "=" before any of ' " [ { : / and the line end
// is meant as pairs; one that begins with / ./ or ../ is a file. `*out` is a map, empty for an
// empty text or file. ERR_USAGE with the place.
enum status value_load_option(struct arena *arena, const char *option_name, const char *text,
                              struct value **out);
const struct value *value_find(const struct value *map, const char *key);  // NULL when absent
// Appends block-style YAML, keys sorted, lists of scalars in flow style; re-reads to the same tree.
void value_dump_yaml(struct text *out, const struct value *value, int indent);
void value_dump_json(struct text *out, const struct value *value);

// ---- Tables -------------------------------------------------------------------------------------

enum config_type {
    CONFIG_BOOL,
    CONFIG_INT,
    CONFIG_FLOAT,        // an integer is fine where a float is expected
    CONFIG_STRING,
    CONFIG_INT_LIST,
    CONFIG_FLOAT_LIST,
    CONFIG_STRING_LIST,  // a single string is a list of one
    CONFIG_SCALAR,       // string, number or bool: "loss_scale: dynamic" or 128
    CONFIG_ANY           // any tree: the layers of custom_cnn
};

// Flags of a row.
// IGNORED: accepted without effect; a warning names it when it is given another value than it had.
enum { CONFIG_NULLABLE = 1, CONFIG_IGNORED = 2 };

struct config_field {
    const char *path;          // "train.epochs"
    enum config_type type;
    unsigned flags;
    const char *initial;       // default, in YAML: "null", "64", "[1e-3, 1e-4]"
    double minimum, maximum;   // numbers and each list element; both 0 = no range
    const char *const *choices;  // strings: NULL-terminated, or NULL = any
    const char *help;          // one sentence
};

struct config;
struct config *config_new(void);
void config_free(struct config *config);  // NULL is fine
// Declares rows with their defaults. A path declared twice is a bug. Rows are borrowed for the
// life of the config. Floors above declare theirs before anything is applied.
void config_declare(struct config *config, const struct config_field *fields, int count);
// Another default for this program, model and dataset: said before files and overrides. Bug if the
// path is unknown or the YAML text does not fit the row.
void config_default(struct config *config, const char *path, const char *yaml);
// Applies a map over what is there; later wins. Strict: unknown key (names the nearest), wrong
// type, out of range, not one of the choices, a key given twice (a.b, and b within a): ERR_USAGE
// with the place. "$NAME" left in a string: an error that says that single quotes kept the shell
// from expanding it. A null for a row that is not nullable is an error; a section that is null
// changes nothing. A key may have dots in it. On failure nothing was applied. The map is copied.
enum status config_apply(struct config *config, const struct value *map);
// A flag's text for one path; `flag` ("--model_dir") is for messages.
enum status config_set(struct config *config, const char *path, const char *flag, const char *text);

// Reading. A path that was not declared, or another type, is a bug (CHECK), not the user's error.
bool config_is_null(const struct config *config, const char *path);
bool config_is_given(const struct config *config, const char *path);  // by file, override or flag
bool config_bool(const struct config *config, const char *path);
int64_t config_int(const struct config *config, const char *path);
double config_float(const struct config *config, const char *path);
const char *config_string(const struct config *config, const char *path);  // NULL when null
int config_count(const struct config *config, const char *path);           // of a list; null = 0
int64_t config_int_at(const struct config *config, const char *path, int i);
double config_float_at(const struct config *config, const char *path, int i);
const char *config_string_at(const struct config *config, const char *path, int i);
const struct value *config_value(const struct config *config, const char *path);
// "gpu.yaml:12:3" or "--params_override, at 5" or "default": for messages of the owner's checks.
const char *config_place(const struct config *config, const char *path, char *buffer, size_t size);

// params.yaml: every declared key, sorted; re-reads as --config_file to the same result.
void config_dump(const struct config *config, struct text *out);
// The rows with help, defaults and ranges, for --help.
void config_help(const struct config *config, struct text *out);
const struct config_field *config_find(const struct config *config, const char *path);  // or NULL

#endif
