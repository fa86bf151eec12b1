// SPDX-License-Identifier: Apache-2.0
// command.c: from flags to a configuration: defaults of program, model and data set, then files, then
// overrides, then flags that were given.
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "trainer/backend.h"
#include "trainer/dataset.h"
#include "trainer/optimizer.h"
#include "trainer/strategy.h"

struct flags {
    const char *program;
    struct given *given;
    int count;
};

static const char *flag_text(const struct flags *flags, enum flag_id id)
{
    for (int i = 0; i < flags->count; i++) {
        if (flags->given[i].flag->id == (int)id) {
            return flags->given[i].text;
        }
    }
    return NULL;
}

static bool flag_true(const struct flags *flags, enum flag_id id)
{
    const char *text = flag_text(flags, id);
    return text && strcmp(text, "true") == 0;
}

// ---- Help -------------------------------------------------------------------------------------------

static void print_version(void)
{
    printf("trainer %s\n", TRAINER_VERSION);
    for (const struct backend_def *const *row = backend_table; *row; row++) {
        printf("  backend %-5s %s\n", (*row)->name, (*row)->help);
    }
}

static void print_help(const struct flags *flags, const struct config *config)
{
    struct text out = {0};
    text_append(&out, "usage: trainer [PROGRAM] [--flag=value ...]\n"
                      "Trains known models from the command line.\n\nprograms\n");
    text_append(&out, "  classifier_trainer   the default\n"
                      "  mnist_main           the Model Garden's mnist_main.py\n\nmodels\n");
    for (const struct model_def *const *row = model_table; *row; row++) {
        text_printf(&out, "  %-20s %s\n", (*row)->name, (*row)->help);
    }
    text_append(&out, "\nmodes\n");
    for (int i = 0; i < mode_count; i++) {
        text_printf(&out, "  %-20s %s\n", mode_table[i].name, mode_table[i].help);
    }
    text_append(&out, "\n");
    flags_help(flags->program, &out);
    if (config) {
        text_append(&out, "\nkeys of --config_file and --params_override\n");
        config_help(config, &out);
    } else {
        text_append(&out, "\nWith --model_type=M, --help lists the keys of the configuration too.\n");
    }
    text_append(&out,
                "\nexample\n  trainer --mode=train_and_eval --model_type=mnist_cnn "
                "--dataset=mnist --model_dir=/tmp/m\n");
    fputs(text_get(&out), stdout);
    text_release(&out);
}

// ---- Choices ----------------------------------------------------------------------------------------

static enum status unknown(const char *flag, const char *what, const char *name,
                           const char *const *names)
{
    struct text list = {0};
    text_append_list(&list, names);
    const char *near = text_nearest(name, names);
    enum status status =
        FAIL(ERR_USAGE, "%s=%s: unknown %s%s%s%s; this version has: %s", flag, name, what,
             near ? "; did you mean '" : "", near ? near : "", near ? "'" : "", text_get(&list));
    text_release(&list);
    return status;
}

static enum status choose_model(const struct flags *flags, struct run_options *options)
{
    const char *name = flag_text(flags, FLAG_MODEL_TYPE);
    const char *names[32];
    int count = 0;
    for (const struct model_def *const *row = model_table; *row && count < 31; row++) {
        names[count++] = (*row)->name;
    }
    names[count] = NULL;
    if (!name && strcmp(flags->program, "mnist_main") == 0) {
        name = "mnist_main";
    }
    if (!name) {
        struct text list = {0};
        text_append_list(&list, names);
        enum status status = FAIL(ERR_USAGE, "--model_type is missing; this version has: %s",
                                  text_get(&list));
        text_release(&list);
        return status;
    }
    options->model = model_find(name);
    if (!options->model) {
        return unknown("--model_type", "model", name, names);
    }
    if (strcmp(options->model->program, flags->program) != 0) {
        return FAIL(ERR_USAGE, "--model_type=%s belongs to the program %s, not to %s", name,
                    options->model->program, flags->program);
    }
    return STATUS_OK;
}

static enum status choose_mode(const struct flags *flags, struct command *command)
{
    const char *name = flag_text(flags, FLAG_MODE);
    const char *names[16];
    for (int i = 0; i < mode_count; i++) {
        names[i] = mode_table[i].name;
    }
    names[mode_count] = NULL;
    if (!name && strcmp(flags->program, "mnist_main") == 0) {
        name = "train_and_eval";
    }
    if (!name) {
        struct text list = {0};
        text_append_list(&list, names);
        enum status status = FAIL(ERR_USAGE, "--mode is missing; it is one of: %s", text_get(&list));
        text_release(&list);
        return status;
    }
    command->mode = mode_find(name);
    command->options.mode = name;
    return command->mode ? STATUS_OK : unknown("--mode", "mode", name, names);
}

// ---- Configuration ------------------------------------------------------------------------------------

static struct config *declare(const struct run_options *options)
{
    const struct model_def *model = options->model;
    struct config *config = config_new();
    config_declare(config, train_fields, train_field_count);
    config_declare(config, strategy_fields, strategy_field_count);
    config_declare(config, dataset_fields, dataset_field_count);
    config_declare(config, optimizer_fields, optimizer_field_count);
    config_declare(config, schedule_fields, schedule_field_count);
    config_declare(config, model->fields, model->field_count);
    config_default(config, "train_dataset.name", model->dataset);
    config_default(config, "validation_dataset.name", model->dataset);
    for (const struct model_default *row = model->defaults; row->path; row++) {
        config_default(config, row->path, row->yaml);
    }
    return config;
}

static enum status apply_text(struct command *command, const char *flag, const char *text)
{
    struct value *map;
    TRY(value_load_option(&command->arena, flag, text, &map));
    return config_apply(command->config, map);
}

// Sets one key, or two separated by a space.
static enum status set_paths(struct command *command, const struct given *given)
{
    const char *at = given->flag->path;
    char flag[80];
    snprintf(flag, sizeof flag, "--%s", given->flag->name);
    while (*at) {
        size_t size = strcspn(at, " ");
        const char *path = arena_strndup(&command->arena, at, size);
        TRY(config_set(command->config, path, flag, given->text));
        at += size + strspn(at + size, " ");
    }
    return STATUS_OK;
}

static void name_ignored(const struct flags *flags)
{
    struct text list = {0};
    for (int i = 0; i < flags->count; i++) {
        if (flags->given[i].flag->flags & FLAG_IGNORED) {
            text_printf(&list, "%s--%s", list.size ? ", " : "", flags->given[i].flag->name);
        }
    }
    if (list.size) {
        LOG_WARN("without effect here: %s", text_get(&list));
    }
    text_release(&list);
}

static enum status merge(struct command *command, const struct flags *flags)
{
    for (int id = FLAG_CONFIG_FILE; id <= FLAG_PARAMS_OVERRIDE; id++) {
        const char *flag = id == FLAG_CONFIG_FILE ? "--config_file" : "--params_override";
        for (int i = 0; i < flags->count; i++) {
            if (flags->given[i].flag->id == id) {
                TRY(apply_text(command, flag, flags->given[i].text));
            }
        }
    }
    struct config *config = command->config;
    TRY(config_set(config, "mode", "--mode", command->options.mode));
    TRY(config_set(config, "model.name", "--model_type", command->options.model->name));
    for (int i = 0; i < flags->count; i++) {
        if (flags->given[i].flag->path) {
            TRY(set_paths(command, &flags->given[i]));
        }
    }
    command->options.model_dir = config_string(config, "model_dir");
    // mnist_main.py always leaves a SavedModel beside its checkpoints.
    if (strcmp(flags->program, "mnist_main") == 0 && command->options.model_dir &&
        config_is_null(config, "export.destination")) {
        TRY(config_set(config, "export.destination", "--model_dir",
                       arena_printf(&command->arena, "%s/saved_model",
                                    command->options.model_dir)));
    }
    return STATUS_OK;
}

static const char *join_arguments(struct arena *arena, int argc, char **argv)
{
    struct text line = {0};
    for (int i = 0; i < argc; i++) {
        text_printf(&line, "%s%s", i ? " " : "", argv[i]);
    }
    const char *joined = arena_strdup(arena, text_get(&line));
    text_release(&line);
    return joined;
}

enum status command_parse(int argc, char **argv, struct command *command)
{
    *command = (struct command){0};
    arena_init(&command->arena);
    struct run_options *options = &command->options;
    struct flags flags;
    TRY(flags_parse(&command->arena, argc, argv, &flags.program, &flags.given, &flags.count));
    if (flag_true(&flags, FLAG_VERBOSE)) {
        log_set_level(LOG_INFO);
    }
    if (flag_true(&flags, FLAG_VERSION)) {
        print_version();
        return STATUS_OK;
    }
    bool wants_help = flag_true(&flags, FLAG_HELP);
    if (wants_help && !flag_text(&flags, FLAG_MODEL_TYPE) &&
        strcmp(flags.program, "mnist_main") != 0) {
        print_help(&flags, NULL);
        return STATUS_OK;
    }
    TRY(choose_model(&flags, options));
    command->config = declare(options);
    if (wants_help) {
        print_help(&flags, command->config);
        return STATUS_OK;
    }
    TRY(choose_mode(&flags, command));
    options->program = flags.program;
    options->checkpoint = flag_text(&flags, FLAG_CHECKPOINT);
    options->predict_input = flag_text(&flags, FLAG_PREDICT_INPUT);
    options->predict_output = flag_text(&flags, FLAG_PREDICT_OUTPUT);
    options->quiet = flag_true(&flags, FLAG_QUIET);
    options->profile = flag_true(&flags, FLAG_PROFILE);
    options->clean = flag_true(&flags, FLAG_CLEAN);
    options->command_line = join_arguments(&command->arena, argc, argv);
    name_ignored(&flags);
    return merge(command, &flags);
}

void command_release(struct command *command)
{
    config_free(command->config);
    arena_release(&command->arena);
    *command = (struct command){0};
}
