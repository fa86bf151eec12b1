// SPDX-License-Identifier: Apache-2.0
// callback_logs.c: what programs read: TensorBoard's event files and metrics.jsonl.
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "train_impl.h"
#include "trainer/file.h"
#include "trainer/io.h"

// ---- TensorBoard ------------------------------------------------------------------------------------

struct tensorboard {
    struct event_writer *root, *train, *validation;  // opened at their first scalar
    int64_t last_step;
    double last_time;
};

static bool tensorboard_enabled(const struct session *session)
{
    return session->options->model_dir &&
           config_bool(session->config, "train.callbacks.enable_tensorboard");
}

static enum status tensorboard_open(struct session *session, void **self)
{
    struct tensorboard *board = MEM_NEW(struct tensorboard);
    board->last_step = session->step;
    board->last_time = time_now();
    *self = board;
    return STATUS_OK;
}

static enum status scalar(struct session *session, struct event_writer **writer,
                          const char *folder, const char *tag, int64_t step, double value)
{
    if (!*writer) {
        char *path = session_path(session, folder);
        enum status status = file_mkdirs(path);
        if (status == STATUS_OK) {
            status = event_open(path, writer);
        }
        mem_free(path);
        TRY(status);
    }
    return event_scalar(*writer, tag, step, value);
}

static enum status tensorboard_step(struct session *session, void *self, double loss, double rate)
{
    (void)loss, (void)rate;
    struct tensorboard *board = self;
    int64_t steps = session->step - board->last_step;
    if (steps < config_int(session->config, "train.time_history.log_steps")) {
        return STATUS_OK;
    }
    double now = time_now(), rate_steps = (double)steps / (now - board->last_time);
    board->last_step = session->step;
    board->last_time = now;
    TRY(scalar(session, &board->root, ".", "steps_per_second", session->step, rate_steps));
    return scalar(session, &board->root, ".", "examples_per_second", session->step,
                  rate_steps * session->global_batch);
}

static enum status tensorboard_epoch(struct session *session, void *self,
                                     const struct epoch_row *row)
{
    struct tensorboard *board = self;
    int64_t at = row->epoch - 1;  // Keras counts epochs from 0 here
    TRY(scalar(session, &board->train, "train", "epoch_loss", at, row->loss));
    TRY(scalar(session, &board->train, "train", "epoch_accuracy", at, row->accuracy));
    if (config_bool(session->config, "train.tensorboard.track_lr")) {
        TRY(scalar(session, &board->train, "train", "epoch_learning_rate", at,
                   row->learning_rate));
    }
    if (isnan(row->val_loss)) {
        return STATUS_OK;
    }
    const char *folder = "validation";
    TRY(scalar(session, &board->validation, folder, "epoch_loss", at, row->val_loss));
    if (session->wants_top_5) {
        TRY(scalar(session, &board->validation, folder, "epoch_top_5_accuracy", at,
                   row->val_top_5));
    }
    return scalar(session, &board->validation, folder, "epoch_accuracy", at, row->val_accuracy);
}

static void tensorboard_close(void *self)
{
    struct tensorboard *board = self;
    if (board) {
        event_close(board->root);
        event_close(board->train);
        event_close(board->validation);
        mem_free(board);
    }
}

const struct callback_def callback_tensorboard = {
    .name = "tensorboard",
    .enabled = tensorboard_enabled,
    .open = tensorboard_open,
    .on_step = tensorboard_step,
    .on_epoch = tensorboard_epoch,
    .close = tensorboard_close,
};

// ---- metrics.jsonl ----------------------------------------------------------------------------------

struct metrics {
    int fd;
    char *path;
    double start;
    int64_t last_step;
};

static void put(struct text *line, const char *key, double value)
{
    text_printf(line, ", \"%s\": ", key);
    text_append_number(line, value);
}

static void put_count(struct text *line, const char *key, int64_t value)
{
    text_printf(line, ", \"%s\": %lld", key, (long long)value);
}

static void put_text(struct text *line, const char *key, const char *value)
{
    text_printf(line, ", \"%s\": ", key);
    text_append_json(line, value);
}

static struct text begin_line(const struct metrics *metrics, const char *event)
{
    struct text line = {0};
    text_printf(&line, "{\"event\": \"%s\", \"time\": %.3f, \"seconds\": %.3f", event, time_wall(),
                time_now() - metrics->start);
    return line;
}

// One write a line: a reader never sees half of one.
static enum status end_line(const struct metrics *metrics, struct text *line)
{
    text_append(line, "}\n");
    enum status status = file_append(metrics->fd, metrics->path, line->data, line->size);
    text_release(line);
    return status;
}

static bool metrics_enabled(const struct session *session)
{
    return session->options->model_dir != NULL;
}

static enum status metrics_open(struct session *session, void **self)
{
    struct metrics *metrics = MEM_NEW(struct metrics);
    metrics->fd = -1;
    metrics->start = time_now();
    metrics->last_step = session->step;
    metrics->path = session_path(session, "metrics.jsonl");
    *self = metrics;
    TRY(file_append_open(metrics->path, session->step == 0, &metrics->fd));
    struct text line = begin_line(metrics, "start");
    put_text(&line, "version", TRAINER_VERSION);
    put_text(&line, "model", session->model->name);
    put_count(&line, "parameters", model_parameter_count(&session->train_graph.net, false));
    put_text(&line, "devices", session->devices);
    put_count(&line, "replicas", session->replica_count);
    put_count(&line, "global_batch", session->global_batch);
    put_count(&line, "steps_per_epoch", session->steps_per_epoch);
    put_count(&line, "epochs", session->epochs);
    put_count(&line, "train_examples", session->train_examples);
    put_count(&line, "validation_examples", session->val_examples);
    put_count(&line, "seed", (int64_t)session->seed);
    put_count(&line, "step", session->step);
    return end_line(metrics, &line);
}

static enum status metrics_step(struct session *session, void *self, double loss, double rate)
{
    struct metrics *metrics = self;
    int64_t every = config_int(session->config, "train.time_history.log_steps");
    if (session->step - metrics->last_step < every) {
        return STATUS_OK;
    }
    metrics->last_step = session->step;
    struct text line = begin_line(metrics, "step");
    put_count(&line, "step", session->step);
    put_count(&line, "epoch", session->epoch + 1);
    put(&line, "loss", loss);
    put(&line, "learning_rate", rate);
    put(&line, "wait_seconds", pipeline_wait_seconds(session->pipeline));
    return end_line(metrics, &line);
}

static enum status metrics_epoch(struct session *session, void *self, const struct epoch_row *row)
{
    struct metrics *metrics = self;
    struct text line = begin_line(metrics, "epoch");
    put_count(&line, "epoch", row->epoch);
    put_count(&line, "step", session->step);
    put(&line, "loss", row->loss);
    put(&line, "accuracy", row->accuracy);
    put(&line, "learning_rate", row->learning_rate);
    put(&line, "epoch_seconds", row->seconds);
    put(&line, "examples_per_second", row->examples_per_second);
    put_count(&line, "bad_records", pipeline_bad_records(session->pipeline));
    put_count(&line, "skipped_steps", session->skipped_steps);
    TRY(end_line(metrics, &line));
    if (isnan(row->val_loss)) {
        return STATUS_OK;
    }
    const struct evaluation *evaluation = &session->evaluation;
    line = begin_line(metrics, "eval");
    put_count(&line, "epoch", row->epoch);
    put_count(&line, "step", session->step);
    put(&line, "loss", evaluation->loss);
    put(&line, "accuracy", evaluation->accuracy);
    put(&line, "top_5_accuracy", evaluation->top_5_accuracy);
    put_count(&line, "examples", evaluation->count);
    put(&line, "eval_seconds", evaluation->seconds);
    return end_line(metrics, &line);
}

static enum status metrics_checkpoint(struct session *session, void *self, const char *prefix)
{
    struct text line = begin_line(self, "checkpoint");
    put_count(&line, "step", session->step);
    put_text(&line, "path", prefix);
    return end_line(self, &line);
}

static enum status metrics_end(struct session *session, void *self, const char *outcome)
{
    struct text line = begin_line(self, "end");
    put_text(&line, "outcome", outcome);
    put_count(&line, "step", session->step);
    put_count(&line, "epoch", session->epoch);
    return end_line(self, &line);
}

static void metrics_close(void *self)
{
    struct metrics *metrics = self;
    if (metrics) {
        if (metrics->fd >= 0) {
            close(metrics->fd);
        }
        mem_free(metrics->path);
        mem_free(metrics);
    }
}

const struct callback_def callback_metrics = {
    .name = "metrics.jsonl",
    .enabled = metrics_enabled,
    .open = metrics_open,
    .on_step = metrics_step,
    .on_epoch = metrics_epoch,
    .on_checkpoint = metrics_checkpoint,
    .on_end = metrics_end,
    .close = metrics_close,
};
