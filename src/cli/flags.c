// SPDX-License-Identifier: Apache-2.0
// flags.c: the table of flags and absl's way of writing them: --f=v, --f v, -f v, --bool, --nobool,
// --bool=true, --flagfile=F.
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli.h"
#include "trainer/file.h"

#define CT "classifier_trainer"
#define MM "mnist_main"

const char *const program_names[] = {CT, MM, NULL};

const struct flag flag_table[] = {
    {"mode", NULL, FLAG_TEXT, 0, NULL, FLAG_MODE, NULL, "What to do; see the modes below."},
    {"model_type", NULL, FLAG_TEXT, 0, NULL, FLAG_MODEL_TYPE, NULL, "Model; see below."},
    {"dataset", NULL, FLAG_TEXT, 0, NULL, 0, "train_dataset.name validation_dataset.name",
     "mnist or fashion_mnist."},
    {"data_dir", "dd", FLAG_TEXT, 0, NULL, 0, "train_dataset.data_dir validation_dataset.data_dir",
     "Folder of the data; without it mnist uses the digits that come with the program."},
    {"model_dir", "md", FLAG_TEXT, 0, NULL, FLAG_MODEL_DIR, "model_dir",
     "Folder for everything that is written."},
    {"config_file", NULL, FLAG_TEXT, FLAG_REPEATS, NULL, FLAG_CONFIG_FILE, NULL,
     "YAML file, or a.b=c,d=e, or a YAML or JSON mapping."},
    {"params_override", NULL, FLAG_TEXT, FLAG_REPEATS, NULL, FLAG_PARAMS_OVERRIDE, NULL,
     "The same, applied after --config_file."},
    {"checkpoint", NULL, FLAG_TEXT, 0, NULL, FLAG_CHECKPOINT, NULL,
     "Checkpoint of eval, predict and export_only; default: the latest of model_dir."},
    {"predict_input", NULL, FLAG_TEXT, 0, NULL, FLAG_PREDICT_INPUT, NULL,
     "Folder of the inputs of predict; default: the validation data."},
    {"predict_output", NULL, FLAG_TEXT, 0, NULL, FLAG_PREDICT_OUTPUT, NULL,
     "File of the predictions: .tsv, .jsonl or .npy; default: the terminal."},
    {"log_steps", NULL, FLAG_TEXT, 0, NULL, 0, "train.time_history.log_steps",
     "Steps between two TimeHistory lines."},
    {"quiet", "q", FLAG_BOOL, 0, NULL, FLAG_QUIET, NULL, "Print results only."},
    {"verbose", "v", FLAG_BOOL, 0, NULL, FLAG_VERBOSE, NULL, "Print more about what happens."},
    {"profile", NULL, FLAG_BOOL, 0, NULL, FLAG_PROFILE, NULL,
     "Time every operation and print the table at the end."},
    {"help", "h", FLAG_BOOL, 0, NULL, FLAG_HELP, NULL, "This page."},
    {"helpfull", NULL, FLAG_BOOL, 0, NULL, FLAG_HELP, NULL, "This page."},
    {"version", NULL, FLAG_BOOL, 0, NULL, FLAG_VERSION, NULL, "Version and what was built in."},
    {"flagfile", NULL, FLAG_TEXT, FLAG_REPEATS, NULL, FLAG_FLAGFILE, NULL,
     "File with one flag a line."},
    {"tpu", NULL, FLAG_TEXT, 0, NULL, 0, "runtime.tpu", "Address of a TPU."},
    {"worker_hosts", NULL, FLAG_TEXT, 0, NULL, 0, "runtime.worker_hosts",
     "host:port,... of multi_worker_mirrored."},
    {"task_index", NULL, FLAG_TEXT, 0, NULL, 0, "runtime.task_index",
     "This host's place in worker_hosts."},
    {"run_eagerly", NULL, FLAG_BOOL, FLAG_IGNORED, CT, 0, NULL, ""},
    {"enable_eager", NULL, FLAG_BOOL, FLAG_IGNORED, CT, 0, NULL, ""},
    {"train_batch_size", NULL, FLAG_TEXT, FLAG_IGNORED, CT, 0, NULL, ""},
    {"eval_batch_size", NULL, FLAG_TEXT, FLAG_IGNORED, CT, 0, NULL, ""},
    {"precision", NULL, FLAG_TEXT, FLAG_IGNORED, CT, 0, NULL, ""},
    {"save_checkpoint_freq", NULL, FLAG_TEXT, FLAG_IGNORED, CT, 0, NULL, ""},
    {"tpu_zone", NULL, FLAG_TEXT, FLAG_IGNORED, NULL, 0, NULL, ""},
    {"tpu_gcp_project", NULL, FLAG_TEXT, FLAG_IGNORED, NULL, 0, NULL, ""},
    {"num_tpu_shards", NULL, FLAG_TEXT, FLAG_IGNORED, NULL, 0, NULL, ""},
    {"all_reduce_alg", "ara", FLAG_TEXT, FLAG_IGNORED, CT, 0, NULL, ""},
    {"num_packs", NULL, FLAG_TEXT, FLAG_IGNORED, CT, 0, NULL, ""},
    {"strategy_type", NULL, FLAG_TEXT, FLAG_IGNORED, CT, 0, NULL, ""},
    {"num_gpus", "ng", FLAG_TEXT, FLAG_IGNORED, CT, 0, NULL, ""},
    {"num_gpus", "ng", FLAG_TEXT, 0, MM, 0, "runtime.num_gpus", "GPUs to use; 0 = CPU."},
    {"clean", NULL, FLAG_BOOL, 0, MM, FLAG_CLEAN, NULL, "Remove an earlier run's files first."},
    {"train_epochs", "te", FLAG_TEXT, 0, MM, 0, "train.epochs", "Passes over the data."},
    {"epochs_between_evals", "ebe", FLAG_TEXT, 0, MM, 0, "evaluation.epochs_between_evals",
     "Epochs from one evaluation to the next."},
    {"batch_size", "bs", FLAG_TEXT, 0, MM, 0,
     "train_dataset.batch_size validation_dataset.batch_size", "Examples a step, of all replicas."},
    {"distribution_strategy", "ds", FLAG_TEXT, 0, MM, 0, "runtime.distribution_strategy",
     "off, one_device or mirrored."},
    {"download", NULL, FLAG_BOOL, FLAG_IGNORED, MM, 0, NULL, ""},
    {"profiler_port", NULL, FLAG_TEXT, FLAG_IGNORED, MM, 0, NULL, ""},
};
const int flag_count = ARRAY_COUNT(flag_table);

struct parser {
    struct arena *arena;
    const char *program;       // NULL = not known yet: the flags of all
    struct given *given;
    int count, capacity;
    int depth;                 // of flag files
};

static bool of_program(const struct flag *flag, const char *program)
{
    return !flag->program || !program || strcmp(flag->program, program) == 0;
}

static const struct flag *find_flag(const struct parser *parser, const char *name, size_t size)
{
    for (int i = 0; i < flag_count; i++) {
        const struct flag *flag = &flag_table[i];
        bool is_name = strlen(flag->name) == size && memcmp(flag->name, name, size) == 0;
        bool is_short = flag->short_name && strlen(flag->short_name) == size &&
                        memcmp(flag->short_name, name, size) == 0;
        if ((is_name || is_short) && of_program(flag, parser->program)) {
            return flag;
        }
    }
    return NULL;
}

static enum status unknown_flag(const struct parser *parser, const char *argument,
                                const char *name)
{
    const char *names[ARRAY_COUNT(flag_table) + 1];
    int count = 0;
    for (int i = 0; i < flag_count; i++) {
        if (of_program(&flag_table[i], parser->program)) {
            names[count++] = flag_table[i].name;
        }
    }
    names[count] = NULL;
    const char *near = text_nearest(name, names);
    return FAIL(ERR_USAGE, "%s: unknown flag%s%s%s; trainer --help lists the flags", argument,
                near ? "; did you mean --" : "", near ? near : "", near ? "?" : "");
}

static enum status parse_bool(const char *argument, const char *text, const char **out)
{
    static const char *const yes[] = {"true", "t", "1", "yes"};
    static const char *const no[] = {"false", "f", "0", "no"};
    for (size_t i = 0; i < ARRAY_COUNT(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0 ? "true" : "false";
            return STATUS_OK;
        }
    }
    return FAIL(ERR_USAGE, "%s: expected true or false, got '%s'", argument, text);
}

static enum status add_given(struct parser *parser, const struct flag *flag, const char *text)
{
    for (int i = 0; i < parser->count && !(flag->flags & FLAG_REPEATS); i++) {
        if (parser->given[i].flag == flag) {
            parser->given[i].text = text;
            return STATUS_OK;
        }
    }
    GROW(parser->given, parser->count, parser->capacity);
    parser->given[parser->count++] = (struct given){flag, text};
    return STATUS_OK;
}

static enum status parse_file(struct parser *parser, const char *path);

// Parses argument i (and its value in i + 1); *used says how many were taken.
static enum status parse_flag(struct parser *parser, int count, char *const *arguments, int i,
                              int *used)
{
    const char *argument = arguments[i];
    const char *name = argument + 1 + (argument[1] == '-');
    const char *equals = strchr(name, '=');
    size_t size = equals ? (size_t)(equals - name) : strlen(name);
    const struct flag *flag = find_flag(parser, name, size);
    const char *text = equals ? equals + 1 : NULL;
    *used = 1;
    if (!flag && !equals && strncmp(name, "no", 2) == 0) {
        flag = find_flag(parser, name + 2, size - 2);
        if (flag && flag->kind == FLAG_BOOL) {
            return add_given(parser, flag, "false");
        }
        flag = NULL;
    }
    if (!flag) {
        return unknown_flag(parser, argument, arena_strndup(parser->arena, name, size));
    }
    if (flag->kind == FLAG_BOOL) {
        const char *value = "true";
        if (text) {
            TRY(parse_bool(argument, text, &value));
        }
        return add_given(parser, flag, value);
    }
    if (!text) {
        if (i + 1 >= count) {
            return FAIL(ERR_USAGE, "%s: needs a value, as in --%s=VALUE", argument, flag->name);
        }
        text = arguments[i + 1];
        *used = 2;
    }
    if (flag->id == FLAG_FLAGFILE) {
        return parse_file(parser, text);
    }
    return add_given(parser, flag, text);
}

static enum status parse_arguments(struct parser *parser, int count, char *const *arguments)
{
    for (int i = 0, used; i < count; i += used) {
        if (arguments[i][0] != '-' || !arguments[i][1]) {
            return FAIL(ERR_USAGE,
                        "%s: expected a flag; a program name (%s, %s) goes first, and a value "
                        "follows its flag as --flag=value", arguments[i], program_names[0],
                        program_names[1]);
        }
        TRY(parse_flag(parser, count, arguments, i, &used));
    }
    return STATUS_OK;
}

// One flag a line; # and // begin comments.
static enum status parse_file(struct parser *parser, const char *path)
{
    enum { LIMIT = 1 << 20, DEEPEST = 8 };
    if (++parser->depth > DEEPEST) {
        return FAIL(ERR_USAGE, "%s: flag files include each other more than %d deep", path,
                    DEEPEST);
    }
    uint8_t *data;
    size_t size;
    enum status status = file_read(path, LIMIT, &data, &size);
    if (status != STATUS_OK) {
        (void)error_prefix(ERR_USAGE, "--flagfile");
        return ERR_USAGE;
    }
    char *text = arena_strndup(parser->arena, (const char *)data, size);
    mem_free(data);
    for (char *line = text, *end; line; line = end) {
        end = strchr(line, '\n');
        if (end) {
            *end++ = '\0';
        }
        line += strspn(line, " \t\r");
        line[strcspn(line, "\r")] = '\0';
        if (*line && *line != '#' && strncmp(line, "//", 2) != 0) {
            status = parse_arguments(parser, 1, &line);
            if (status != STATUS_OK) {
                return error_prefix(status, "%s", path);
            }
        }
    }
    parser->depth--;
    return STATUS_OK;
}

static enum status find_program(const char *name, const char **program)
{
    for (const char *const *known = program_names; *known; known++) {
        if (strcmp(*known, name) == 0) {
            *program = *known;
            return STATUS_OK;
        }
    }
    struct text list = {0};
    text_append_list(&list, program_names);
    const char *near = text_nearest(name, program_names);
    enum status status = FAIL(ERR_USAGE, "unknown program '%s'%s%s%s; this version has: %s", name,
                              near ? "; did you mean '" : "", near ? near : "", near ? "'" : "",
                              text_get(&list));
    text_release(&list);
    return status;
}

// The program follows from --model_type where it was not named; then each flag has to be one of its.
static enum status settle_program(struct parser *parser)
{
    for (int i = 0; i < parser->count && !parser->program; i++) {
        const struct model_def *model = parser->given[i].flag->id == FLAG_MODEL_TYPE
                                            ? model_find(parser->given[i].text) : NULL;
        parser->program = model ? model->program : NULL;
    }
    parser->program = parser->program ? parser->program : program_names[0];
    for (int i = 0; i < parser->count; i++) {
        const struct flag *flag = parser->given[i].flag;
        parser->given[i].flag = find_flag(parser, flag->name, strlen(flag->name));
        if (!parser->given[i].flag) {
            return FAIL(ERR_USAGE, "--%s: is a flag of the program %s, not of %s; "
                        "trainer %s --help lists its flags", flag->name, flag->program,
                        parser->program, parser->program);
        }
    }
    return STATUS_OK;
}

enum status flags_parse(struct arena *arena, int argc, char **argv, const char **program,
                        struct given **given, int *count)
{
    struct parser parser = {.arena = arena};
    int first = 1;
    *program = NULL;
    *given = NULL;
    *count = 0;
    if (argc > 1 && argv[1][0] != '-') {
        TRY(find_program(argv[1], program));
        first = 2;
    }
    parser.program = *program;
    enum status status = parse_arguments(&parser, argc - first, argv + first);
    if (status == STATUS_OK) {
        status = settle_program(&parser);
    }
    *program = parser.program;
    if (status == STATUS_OK && parser.count) {
        *given = ARENA_NEW_ARRAY(arena, struct given, parser.count);
        memcpy(*given, parser.given, sizeof **given * (size_t)parser.count);
        *count = parser.count;
    }
    mem_free(parser.given);
    return status;
}

enum { HELP_COLUMNS = 100 };

void flags_help(const char *program, struct text *out)
{
    text_printf(out, "flags of %s\n", program);
    for (int i = 0; i < flag_count; i++) {
        const struct flag *flag = &flag_table[i];
        if (of_program(flag, program) && !(flag->flags & FLAG_IGNORED)) {
            char name[64];
            snprintf(name, sizeof name, "--%s%s%s%s", flag->name, flag->short_name ? ", -" : "",
                     flag->short_name ? flag->short_name : "",
                     flag->kind == FLAG_BOOL ? "" : " VALUE");
            text_printf(out, "  %-34s %s\n", name, flag->help);
        }
    }
    const char *start = "  accepted without effect:";
    size_t column = strlen(start);
    text_append(out, start);
    for (int i = 0; i < flag_count; i++) {
        if (of_program(&flag_table[i], program) && (flag_table[i].flags & FLAG_IGNORED)) {
            size_t size = strlen(flag_table[i].name) + 3;  // with the space and the dashes
            bool wraps = column + size > HELP_COLUMNS;
            text_printf(out, "%s --%s", wraps ? "\n   " : "", flag_table[i].name);
            column = (wraps ? 3 : column) + size;
        }
    }
    text_append(out, "\n");
}
