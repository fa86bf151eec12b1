// SPDX-License-Identifier: Apache-2.0
// cli.h: the command line. Private to the executable. Floor 8.
#ifndef TRAINER_CLI_H
#define TRAINER_CLI_H

#include "trainer/train.h"

// What the flags said, and the configuration that followed.
struct command {
    struct arena arena;
    struct config *config;
    struct run_options options;
    const struct mode_def *mode;   // NULL: help or version was printed, nothing to run
};

// Parses, merges defaults, files, overrides and flags. ERR_USAGE with a sentence.
// Release also after a failure.
enum status command_parse(int argc, char **argv, struct command *command);
void command_release(struct command *command);

enum flag_kind { FLAG_TEXT, FLAG_BOOL };
enum {
    FLAG_REPEATS = 1,   // may be given several times
    FLAG_IGNORED = 2    // of the original, without meaning here
};

// One row a flag. Either `path` (a key of the configuration, set at the end) or `id` counts.
struct flag {
    const char *name, *short_name;
    enum flag_kind kind;
    unsigned flags;
    const char *program;  // NULL = all
    int id;               // enum flag_id, 0 = none
    const char *path;     // configuration key; two, separated by a space, are both set
    const char *help;
};
enum flag_id {
    FLAG_NONE,
    FLAG_MODE,
    FLAG_MODEL_TYPE,
    FLAG_MODEL_DIR,
    FLAG_CONFIG_FILE,
    FLAG_PARAMS_OVERRIDE,
    FLAG_CHECKPOINT,
    FLAG_PREDICT_INPUT,
    FLAG_PREDICT_OUTPUT,
    FLAG_QUIET,
    FLAG_VERBOSE,
    FLAG_PROFILE,
    FLAG_CLEAN,
    FLAG_HELP,
    FLAG_VERSION,
    FLAG_FLAGFILE
};
extern const struct flag flag_table[];
extern const int flag_count;

// A flag that was given.
struct given {
    const struct flag *flag;
    const char *text;   // "true" or "false" for booleans
};

// Splits the arguments into flags (absl's rules; of a flag given twice the last counts) and at most one
// program name. Without a name --model_type says which program it is, else the first.
enum status flags_parse(struct arena *arena, int argc, char **argv, const char **program,
                        struct given **given, int *count);
void flags_help(const char *program, struct text *out);

extern const char *const program_names[];  // NULL-terminated

#endif
