// SPDX-License-Identifier: Apache-2.0
// session.c: from a configuration to opened data, devices and compiled graphs.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trainer/file.h"
#include "trainer/thread.h"
#include "train_impl.h"

char *session_path(const struct session *session, const char *name)
{
    struct text path = {0};
    text_printf(&path, "%s/%s", session->options->model_dir, name);
    return path.data;
}

int64_t session_total_steps(const struct session *session)
{
    return session->epochs * session->steps_per_epoch;
}

struct step_spec session_spec(const struct session *session, int rows)
{
    return (struct step_spec){.model = session->model,
                              .config = session->config,
                              .strategy = session->strategy,
                              .example = session->example,
                              .variables = (struct variables *)(uintptr_t)&session->variables,
                              .real = DTYPE_F32,
                              .rows = rows,
                              .replicas = session->replica_count,
                              .parts = session->parts,
                              .seed = session->seed};
}

// ---- Devices ----------------------------------------------------------------------------------------

// Everything is computed in float32: another wish is refused, not quietly ignored.
static enum status check_precision(const struct config *config)
{
    static const char *const paths[] = {"runtime.mixed_precision_dtype", "train_dataset.dtype",
                                        "validation_dataset.dtype"};
    char place[256];
    for (size_t i = 0; i < ARRAY_COUNT(paths); i++) {
        const char *dtype = config_string(config, paths[i]);
        if (dtype && strcmp(dtype, "float32") != 0 && strcmp(dtype, "fp32") != 0) {
            return FAIL(ERR_USAGE, "%s: %s is %s; this version computes in float32 only",
                        config_place(config, paths[i], place, sizeof place), paths[i], dtype);
        }
    }
    return STATUS_OK;
}

static enum status choose_backend(struct session *session)
{
    const char *wanted = config_string(session->config, "runtime.device");
    int64_t gpus = config_int(session->config, "runtime.num_gpus");
    char place[256];
    if (gpus > 0 && !config_bool(session->config, "runtime.cpu_fallback")) {
        return FAIL(ERR_USAGE,
                    "%s: runtime.num_gpus is %lld, but there is no GPU: this build has no CUDA "
                    "backend. Set runtime.cpu_fallback=true to run %lld replica%s on the CPU, or "
                    "runtime.num_gpus=0",
                    config_place(session->config, "runtime.num_gpus", place, sizeof place),
                    (long long)gpus, (long long)gpus, gpus == 1 ? "" : "s");
    }
    if (gpus > 0) {
        LOG_WARN("no GPU: running %lld replica%s on the CPU (runtime.cpu_fallback)",
                 (long long)gpus, gpus == 1 ? "" : "s");
    }
    const char *reason = "no backend was built";
    for (const struct backend_def *const *row = backend_table; *row; row++) {
        bool asked = strcmp(wanted, "auto") == 0 || strcmp(wanted, (*row)->name) == 0;
        if (asked && (*row)->device_count(&reason) > 0) {
            session->backend = *row;
            return STATUS_OK;
        }
    }
    return FAIL(ERR_USAGE, "%s: runtime.device is %s, which this build does not have; use auto, cpu "
                "or ref", config_place(session->config, "runtime.device", place, sizeof place),
                wanted);
}

static enum status open_devices(struct session *session, bool profile)
{
    TRY(choose_backend(session));
    int64_t threads = config_int(session->config, "runtime.threads");
    if (threads == 0) {
        threads = thread_cpu_count();
    }
    if (threads > 4 * thread_cpu_count()) {
        LOG_WARN("runtime.threads is %lld on %d cores: this will be slow", (long long)threads,
                 thread_cpu_count());
    }
    struct replicas_options options = {.backend = session->backend,
                                       .count = session->replica_count,
                                       .threads = (int)threads,
                                       .timeout = config_float(session->config, "runtime.timeout"),
                                       .profile = profile};
    TRY(replicas_open(&options, &session->replicas));
    struct text text = {0};
    text_printf(&text, "%d x %s: %s", session->replica_count, session->backend->name,
                replicas_describe(session->replicas));
    session->devices = text.data;
    return STATUS_OK;
}

// ---- Data -------------------------------------------------------------------------------------------

static int64_t int_or(const struct config *config, const char *section, const char *key,
                      int64_t otherwise)
{
    char path[128];
    snprintf(path, sizeof path, "%s.%s", section, key);
    return config_is_null(config, path) ? otherwise : config_int(config, path);
}

static const char *string_of(const struct config *config, const char *section, const char *key)
{
    char path[128];
    snprintf(path, sizeof path, "%s.%s", section, key);
    return config_string(config, path);
}

static enum status open_source(const struct session *session, const char *section,
                               const struct source_def **def, struct source **out)
{
    const struct config *config = session->config;
    int64_t size = int_or(config, section, "image_size", 28);
    struct source_options options = {
        .data_dir = string_of(config, section, "data_dir"),
        .dataset = string_of(config, section, "name"),
        .split = string_of(config, section, "split"),
        .num_examples = int_or(config, section, "num_examples", 0),
        .seed = session->seed,
        .spec = {.dtype = DTYPE_U8,
                 .shape = SHAPE(size, size, int_or(config, section, "num_channels", 1)),
                 .num_classes = (int)int_or(config, section, "num_classes", 10)},
    };
    return source_open(string_of(config, section, "builder"), &options, def, out);
}

static int batch_of(const struct session *session, const char *section)
{
    char path[128];
    snprintf(path, sizeof path, "%s.use_per_replica_batch_size", section);
    int64_t batch = int_or(session->config, section, "batch_size", 1);
    return (int)(config_bool(session->config, path) ? batch * session->replica_count : batch);
}

static enum status open_train_data(struct session *session)
{
    TRY(open_source(session, "train_dataset", &session->train_def, &session->train_source));
    session->example = session->train_def->spec(session->train_source);
    session->train_examples = session->train_def->count(session->train_source);
    return STATUS_OK;
}

// The training pipeline needs to know whether the model computes batch statistics.
static enum status open_pipeline(struct session *session, bool batch_stats)
{
    const struct config *config = session->config;
    bool drop = config_bool(config, "train_dataset.drop_remainder");
    int shares = session->replica_count * session->parts;
    if (batch_stats && session->global_batch % shares != 0) {
        return FAIL(ERR_USAGE,
                    "the global batch of %d cannot be split evenly into %d (replicas times "
                    "accumulation steps), which batch normalisation needs", session->global_batch,
                    shares);
    }
    if (batch_stats && !drop && session->train_examples % session->global_batch != 0) {
        LOG_WARN("batch normalisation: the last %lld examples of an epoch, less than a batch, are "
                 "left out", (long long)(session->train_examples % session->global_batch));
        drop = true;
    }
    struct pipeline_options options = {
        .batch_size = session->global_batch,
        .shuffle = config_bool(config, "train_dataset.shuffle"),
        .drop_remainder = drop,
        .seed = session->seed,
        .threads = (int)config_int(config, "train_dataset.workers"),
        .prefetch = (int)config_int(config, "train_dataset.prefetch"),
        .max_bad_records = config_int(config, "train.max_bad_records"),
    };
    TRY(pipeline_new(session->train_def, session->train_source, &options, &session->pipeline));
    session->steps_per_epoch = pipeline_batches_per_epoch(session->pipeline);
    if (!config_is_null(config, "train.steps") && config_int(config, "train.steps") > 0) {
        session->steps_per_epoch = config_int(config, "train.steps");
    }
    return STATUS_OK;
}

static enum status open_val_data(struct session *session)
{
    TRY(open_source(session, "validation_dataset", &session->val_def, &session->val_source));
    const struct example_spec *spec = session->val_def->spec(session->val_source);
    session->val_examples = session->val_def->count(session->val_source);
    if (session->example && (!shape_equal(spec->shape, session->example->shape) ||
                             spec->num_classes != session->example->num_classes)) {
        return FAIL(ERR_MISMATCH,
                    "training images are %s with %d classes, validation images %s with %d",
                    shape_str(session->example->shape), session->example->num_classes,
                    shape_str(spec->shape), spec->num_classes);
    }
    session->example = spec;
    struct pipeline_options options = {.batch_size = session->eval_batch,
                                       .seed = session->seed,
                                       .prefetch = 2,
                                       .threads = 0};
    return pipeline_new(session->val_def, session->val_source, &options, &session->val_pipeline);
}

// ---- Graphs -----------------------------------------------------------------------------------------

static enum status build_graphs(struct session *session)
{
    struct step_spec spec = session_spec(session, session->part_rows);
    if (session->parts > 1) {
        TRY(accumulate_graph_build(&session->train_graph, &spec));
        return update_graph_build(&session->update_graph, &spec);
    }
    return train_graph_build(&session->train_graph, &spec);
}

static enum status compile_training(struct session *session)
{
    if (session->parts > 1) {
        TRY(replicas_compile(session->replicas, SLOT_ACCUMULATE, &session->train_graph,
                             session->part_rows));
        return replicas_compile(session->replicas, SLOT_UPDATE, &session->update_graph, 0);
    }
    return replicas_compile(session->replicas, SLOT_TRAIN, &session->train_graph,
                            session->part_rows);
}

static enum status check_metrics(struct session *session)
{
    static const char *const known[] = {"accuracy", "acc", "top_1", "top_5", NULL};
    const struct config *config = session->config;
    for (int i = 0; i < config_count(config, "train.metrics"); i++) {
        const char *name = config_string_at(config, "train.metrics", i);
        bool found = false;
        for (const char *const *k = known; *k; k++) {
            found |= strcmp(*k, name) == 0;
        }
        if (!found) {
            char place[256];
            return FAIL(ERR_USAGE,
                        "%s: unknown metric '%s'; known: accuracy (acc, top_1), top_5",
                        config_place(config, "train.metrics", place, sizeof place), name);
        }
        session->wants_top_5 |= strcmp(name, "top_5") == 0;
    }
    return STATUS_OK;
}

static enum status configure(struct session *session)
{
    const struct config *config = session->config;
    TRY(check_precision(config));
    TRY(check_metrics(session));
    TRY(strategy_get(config, &session->strategy));
    TRY(session->strategy->replicas(config, &session->replica_count));
    session->seed = (uint64_t)config_int(config, "runtime.seed");
    session->parts = (int)config_int(config, "train.gradient_accumulation_steps");
    session->epochs = config_int(config, "train.epochs");
    session->global_batch = batch_of(session, "train_dataset");
    session->eval_batch = batch_of(session, "validation_dataset");
    int shares = session->replica_count * session->parts;
    if (session->global_batch < shares) {
        return FAIL(ERR_USAGE,
                    "the global batch has %d examples, too few for %d replicas times %d "
                    "accumulation steps", session->global_batch, session->replica_count,
                    session->parts);
    }
    session->part_rows = CEIL_DIV(session->global_batch, shares);
    session->eval_rows = CEIL_DIV(session->eval_batch, session->replica_count);
    return STATUS_OK;
}

static enum status open_training(struct session *session, unsigned want)
{
    TRY(build_graphs(session));
    if (want & WANT_TRAIN_DATA) {
        TRY(open_pipeline(session, session->train_graph.batch_stats));
        TRY(schedule_init(&session->schedule, session->config, session->steps_per_epoch,
                          session->epochs, session->global_batch));
    }
    if (want & WANT_DEVICES) {
        TRY(open_devices(session, session->options->profile));
        TRY(replicas_state(session->replicas, &session->variables));
        TRY(compile_training(session));
    }
    return STATUS_OK;
}

// Without training the variables come from the evaluation graph: no slots, no training memory.
static enum status open_inference(struct session *session)
{
    struct step_spec spec = session_spec(session, session->eval_rows);
    TRY(eval_graph_build(&session->eval_graph, &spec));
    TRY(open_devices(session, session->options->profile));
    return replicas_state(session->replicas, &session->variables);
}

enum status session_open(const struct run_options *options, struct config *config, unsigned want,
                         struct session *session)
{
    *session = (struct session){.options = options,
                                .config = config,
                                .model = options->model,
                                .lock_fd = -1,
                                .best_val_loss = INFINITY};
    variables_init(&session->variables);
    enum status status;
    TRY_GOTO(status, configure(session), failed);
    if (options->model_dir && (want & WANT_DIRECTORY)) {
        TRY_GOTO(status, file_mkdirs(options->model_dir), failed);
        TRY_GOTO(status, session_lock(session), failed);
    }
    if (want & (WANT_TRAIN_DATA | WANT_SOURCES_ONLY)) {
        TRY_GOTO(status, open_train_data(session), failed);
    }
    if (want & WANT_SOURCES_ONLY) {
        TRY_GOTO(status, open_source(session, "validation_dataset", &session->val_def,
                                     &session->val_source), failed);
    }
    if (want & WANT_VAL_DATA) {
        TRY_GOTO(status, open_val_data(session), failed);
        session->evaluates = true;
    }
    if (want & WANT_TRAIN_DATA) {
        TRY_GOTO(status, open_training(session, want), failed);
    } else if (want & WANT_DEVICES) {
        TRY_GOTO(status, open_inference(session), failed);
    }
    return STATUS_OK;
failed:
    session_close(session);
    return status;
}

void session_close(struct session *session)
{
    pipeline_free(session->pipeline);
    pipeline_free(session->val_pipeline);
    replicas_close(session->replicas);
    step_graph_release(&session->train_graph);
    step_graph_release(&session->update_graph);
    step_graph_release(&session->eval_graph);
    variables_release(&session->variables);
    if (session->train_def) {
        session->train_def->close(session->train_source);
    }
    if (session->val_def) {
        session->val_def->close(session->val_source);
    }
    evaluation_release(&session->evaluation);
    session_unlock(session);
    file_list_free(session->kept, session->kept_count);
    mem_free(session->checkpoint_prefix);
    mem_free(session->history);
    mem_free(session->devices);
    *session = (struct session){.lock_fd = -1};
}
