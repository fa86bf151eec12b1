// SPDX-License-Identifier: Apache-2.0
// modes.c: the ways to run that compute: train_and_eval, train, eval, predict, export_only.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "trainer/file.h"
#include "trainer/io.h"
#include "modes_impl.h"

const struct mode_def mode_table[] = {
    {"train_and_eval", "train, evaluate as it goes, export if export.destination is set",
     mode_train_and_eval},
    {"train", "the same without evaluation", mode_train},
    {"eval", "evaluate the latest checkpoint, or --checkpoint, on the validation data", mode_eval},
    {"predict", "one line an input, from --predict_input to --predict_output", mode_predict},
    {"export_only", "write export.destination from the latest checkpoint", mode_export},
    {"plan", "say what would run, without data or devices: layers, memory, steps, files",
     mode_plan},
    {"check_data", "read every record of both splits and say which are bad", mode_check_data},
};
const int mode_count = ARRAY_COUNT(mode_table);

const struct mode_def *mode_find(const char *name)
{
    for (int i = 0; i < mode_count; i++) {
        if (strcmp(mode_table[i].name, name) == 0) {
            return &mode_table[i];
        }
    }
    return NULL;
}

// ---- Training ---------------------------------------------------------------------------------------

// At most eight lines: what runs, on what, for how long, and where to.
static void print_header(const struct session *session)
{
    if (session->options->quiet) {
        return;
    }
    printf("model      %s, %lld parameters, %lld trained\n", session->model->name,
           (long long)model_parameter_count(&session->train_graph.net, false),
           (long long)model_parameter_count(&session->train_graph.net, true));
    printf("devices    %s\n", session->devices);
    printf("strategy   %s, %d replica%s\n", session->strategy->name, session->replica_count,
           session->replica_count == 1 ? "" : "s");
    printf("batch      %d examples a step%s; learning rate %s from %g\n", session->global_batch,
           session->parts > 1 ? ", in parts" : "", session->schedule.def->name,
           schedule_rate(&session->schedule, 0));
    printf("steps      %lld an epoch, %lld epochs; seed %llu\n",
           (long long)session->steps_per_epoch, (long long)session->epochs,
           (unsigned long long)session->seed);
    printf("data       %s\n", session->train_def->describe(session->train_source));
    if (session->evaluates) {
        printf("evaluation %s\n", session->val_def->describe(session->val_source));
    }
    printf("output     %s\n", session->options->model_dir
                                  ? session->options->model_dir
                                  : "nothing is written: no --model_dir was given");
    fflush(stdout);
}

static enum status write_params(const struct session *session)
{
    struct text yaml = {0};
    config_dump(session->config, &yaml);
    char *path = session_path(session, "params.yaml");
    enum status status = file_write(path, yaml.data, yaml.size);
    mem_free(path);
    text_release(&yaml);
    return status;
}

static enum status export_to(struct session *session, const char *directory)
{
    struct step_graph step = {0};
    struct step_spec spec = session_spec(session, 1);
    enum status status = export_graph_build(&step, &spec);
    if (status == STATUS_OK) {
        struct saved_model_info info = {.net = &step.net,
                                        .input = step.image,
                                        .output = step.probabilities,
                                        .model_output = step.output,
                                        .model_name = session->model->name,
                                        .variables = &session->variables};
        struct variable_store store = replicas_store(session->replicas);
        status = saved_model_save(directory, &info, &store);
    }
    step_graph_release(&step);
    if (status == STATUS_OK && !session->options->quiet) {
        printf("SavedModel %s\n", directory);
    }
    return status;
}

static void print_profile(const struct session *session)
{
    if (session->options->profile) {
        struct text report = {0};
        replicas_report(session->replicas, &report);
        fputs(text_get(&report), stdout);
        text_release(&report);
    }
}

static enum status train_with(const struct run_options *options, struct config *config,
                              bool evaluates)
{
    struct session session;
    unsigned want = WANT_TRAIN_DATA | WANT_DEVICES | WANT_DIRECTORY;
    if (evaluates && !config_bool(config, "evaluation.skip_eval")) {
        want |= WANT_VAL_DATA;
    }
    TRY(session_open(options, config, want, &session));
    print_header(&session);
    enum status status = options->model_dir ? write_params(&session) : STATUS_OK;
    if (status == STATUS_OK) {
        status = train_session(&session);
    }
    const char *destination = config_string(config, "export.destination");
    if (status == STATUS_OK && destination) {
        status = export_to(&session, destination);
    }
    if (status == STATUS_OK) {
        print_profile(&session);
    }
    session_close(&session);
    return status;
}

enum status mode_train_and_eval(const struct run_options *options, struct config *config)
{
    return train_with(options, config, true);
}

enum status mode_train(const struct run_options *options, struct config *config)
{
    return train_with(options, config, false);
}

// ---- Weights from a checkpoint ------------------------------------------------------------------------

static enum status load_weights(struct session *session)
{
    const struct run_options *options = session->options;
    const char *prefix = options->checkpoint ? options->checkpoint
                                             : config_string(session->config, "export.checkpoint");
    if (!prefix && !options->model_dir) {
        return FAIL(ERR_USAGE, "no weights: give --model_dir of a trained run, or --checkpoint");
    }
    TRY(session_initialize(session));
    bool found;
    TRY(session_restore(session, prefix, &found));
    if (!found) {
        return FAIL(ERR_NOT_FOUND,
                    "%s: holds no checkpoint (no file 'checkpoint'); train first, or give "
                    "--checkpoint", options->model_dir);
    }
    return STATUS_OK;
}

enum status mode_eval(const struct run_options *options, struct config *config)
{
    struct session session;
    TRY(session_open(options, config, WANT_VAL_DATA | WANT_DEVICES, &session));
    enum status status = load_weights(&session);
    if (status == STATUS_OK) {
        status = evaluate(&session, &session.evaluation);
    }
    if (status == STATUS_OK) {
        const struct evaluation *e = &session.evaluation;
        printf("evaluated %lld of %lld examples with %s (step %lld)\n", (long long)e->count,
               (long long)session.val_examples, session.checkpoint_prefix,
               (long long)session.step);
        printf("loss: %.9g - accuracy: %.9g - top_5_accuracy: %.9g\n", e->loss, e->accuracy,
               e->top_5_accuracy);
    }
    session_close(&session);
    return status;
}

enum status mode_export(const struct run_options *options, struct config *config)
{
    const char *destination = config_string(config, "export.destination");
    if (!destination) {
        return FAIL(ERR_USAGE, "mode export_only needs export.destination, for example "
                    "--params_override=export.destination=saved_model");
    }
    struct session session;
    TRY(session_open(options, config, WANT_VAL_DATA | WANT_DEVICES, &session));
    enum status status = load_weights(&session);
    if (status == STATUS_OK) {
        status = export_to(&session, destination);
    }
    session_close(&session);
    return status;
}

// ---- Predict ----------------------------------------------------------------------------------------

struct prediction_output {
    const char *path;
    bool npy, jsonl;
    struct text text;
    float *probabilities;  // (examples, classes), for .npy
    int64_t count, classes;
};

static bool ends_with(const char *text, const char *ending)
{
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

static void write_prediction(struct prediction_output *out, const struct session *session,
                             int64_t index, const float *probabilities)
{
    int best = metric_argmax(probabilities, (int)out->classes);
    const char *const *names = session->example->class_names;
    const char *name = names && best < session->example->num_classes ? names[best] : "";
    if (out->npy) {
        memcpy(out->probabilities + out->count * out->classes, probabilities,
               sizeof(float) * (size_t)out->classes);
    } else if (out->jsonl) {
        text_printf(&out->text, "{\"index\": %lld, \"class\": %d, \"name\": ", (long long)index,
                    best);
        text_append_json(&out->text, name);
        text_append(&out->text, ", \"probabilities\": [");
        for (int64_t k = 0; k < out->classes; k++) {
            text_printf(&out->text, "%s%.9g", k ? ", " : "", (double)probabilities[k]);
        }
        text_append(&out->text, "]}\n");
    } else {
        text_printf(&out->text, "%lld\t%d\t%s\t%.9g\n", (long long)index, best, name,
                    (double)probabilities[best]);
    }
    out->count++;
}

static enum status finish_predictions(struct prediction_output *out)
{
    if (out->npy) {
        return npy_write(out->path, DTYPE_F32, SHAPE(out->count, out->classes),
                         out->probabilities);
    }
    if (out->path) {
        return file_write(out->path, text_get(&out->text), out->text.size);
    }
    fwrite(text_get(&out->text), 1, out->text.size, stdout);
    return STATUS_OK;
}

static enum status predict_all(struct session *session, struct prediction_output *out)
{
    TRY(evaluate_compile(session));
    int64_t batches = pipeline_batches_per_epoch(session->val_pipeline);
    int64_t rows = (int64_t)session->eval_rows * session->replica_count;
    out->classes = session->eval_graph.probabilities->shape.dim[1];
    if (out->npy) {
        out->probabilities = MEM_NEW_ARRAY(float, session->val_examples * out->classes);
    } else if (!out->jsonl) {
        text_append(&out->text, "index\tclass\tname\tprobability\n");
    }
    float *probabilities = MEM_NEW_ARRAY(float, rows * out->classes);  // (rows, classes)
    void **fetches = MEM_NEW_ARRAY(void *, session->replica_count * FETCH_COUNT);
    for (int r = 0; r < session->replica_count; r++) {
        fetches[r * FETCH_COUNT + FETCH_PROBABILITIES] =
            probabilities + r * session->eval_rows * out->classes;
    }
    enum status status = pipeline_seek(session->val_pipeline, (struct pipeline_state){0});
    for (int64_t b = 0; b < batches && status == STATUS_OK; b++) {
        const struct batch *batch;
        status = pipeline_next(session->val_pipeline, &batch);
        struct run_inputs inputs = {.batch = status == STATUS_OK ? batch : NULL, .weight = 1};
        if (status == STATUS_OK) {
            status = replicas_run(session->replicas, SLOT_EVAL, &inputs, fetches);
        }
        for (int i = 0; status == STATUS_OK && i < batch->count; i++) {
            write_prediction(out, session, batch->indices[i], probabilities + i * out->classes);
        }
    }
    mem_free(fetches);
    mem_free(probabilities);
    return status == STATUS_OK ? finish_predictions(out) : status;
}

enum status mode_predict(const struct run_options *options, struct config *config)
{
    struct prediction_output out = {.path = options->predict_output};
    out.npy = out.path && ends_with(out.path, ".npy");
    out.jsonl = out.path && ends_with(out.path, ".jsonl");
    if (out.path && !out.npy && !out.jsonl && !ends_with(out.path, ".tsv")) {
        return FAIL(ERR_USAGE, "--predict_output=%s: the name must end in .tsv, .jsonl or .npy",
                    out.path);
    }
    if (options->predict_input) {
        TRY(config_set(config, "validation_dataset.data_dir", "--predict_input",
                       options->predict_input));
    }
    struct session session;
    TRY(session_open(options, config, WANT_VAL_DATA | WANT_DEVICES, &session));
    enum status status = load_weights(&session);
    if (status == STATUS_OK) {
        status = predict_all(&session, &out);
    }
    text_release(&out.text);
    mem_free(out.probabilities);
    session_close(&session);
    return status;
}
