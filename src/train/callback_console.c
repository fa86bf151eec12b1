// SPDX-License-Identifier: Apache-2.0
// callback_console.c: what a person sees: Keras' epoch lines, a progress line on terminals, and the
// Model Garden's TimeHistory lines and run statistics, in the exact forms that scripts look for.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "train_impl.h"

// ---- Progress ---------------------------------------------------------------------------------------

struct progress {
    bool terminal;
    double epoch_start, last_drawn;
    int64_t first_step;      // of this epoch, in this process
    int64_t announced;       // epoch whose "Epoch k/N" was printed
    size_t drawn;            // characters of the progress line
};

static bool progress_enabled(const struct session *session)
{
    return !session->options->quiet;
}

static enum status progress_open(struct session *session, void **self)
{
    (void)session;
    struct progress *progress = MEM_NEW(struct progress);
    progress->terminal = isatty(STDOUT_FILENO);
    progress->announced = -1;
    *self = progress;
    return STATUS_OK;
}

static void announce(struct session *session, struct progress *progress, int64_t epoch,
                     int64_t first_step)
{
    if (progress->announced != epoch) {
        printf("Epoch %lld/%lld\n", (long long)epoch + 1, (long long)session->epochs);
        fflush(stdout);
        progress->announced = epoch;
        progress->epoch_start = time_now();
        progress->first_step = first_step;
    }
}

static void erase_line(struct progress *progress)
{
    if (progress->drawn) {
        printf("\r%*s\r", (int)progress->drawn, "");
        progress->drawn = 0;
    }
}

static enum status progress_step(struct session *session, void *self, double loss, double rate)
{
    (void)loss, (void)rate;
    struct progress *progress = self;
    announce(session, progress, session->epoch, session->epoch_step - 1);
    double now = time_now();
    if (!progress->terminal || now - progress->last_drawn < 0.1) {
        return STATUS_OK;
    }
    double n = (double)MAX(session->example_count, 1), elapsed = now - progress->epoch_start;
    double done = (double)(session->epoch_step - progress->first_step);
    double left = (double)(session->steps_per_epoch - session->epoch_step) * elapsed / done;
    char line[200];
    int size = snprintf(line, sizeof line,
                        "%lld/%lld - loss: %.4f - accuracy: %.4f - %.0f examples/s - %.0f s left",
                        (long long)session->epoch_step, (long long)session->steps_per_epoch,
                        session->loss_sum / n, session->correct_sum / n,
                        done * session->global_batch / elapsed, left);
    erase_line(progress);
    printf("\r%s", line);
    fflush(stdout);
    progress->drawn = (size_t)MAX(size, 0);
    progress->last_drawn = now;
    return STATUS_OK;
}

// Four decimals, or exponent form when that would show nothing, as Keras prints.
static void print_value(const char *name, double value)
{
    printf(fabs(value) > 1e-3 ? " - %s: %.4f" : " - %s: %.4e", name, value);
}

static enum status progress_epoch(struct session *session, void *self, const struct epoch_row *row)
{
    struct progress *progress = self;
    erase_line(progress);
    announce(session, progress, row->epoch - 1, 0);
    printf("%lld/%lld - %.0fs", (long long)session->steps_per_epoch,
           (long long)session->steps_per_epoch, row->seconds);
    print_value("loss", row->loss);
    print_value("accuracy", row->accuracy);
    if (!isnan(row->val_loss)) {
        print_value("val_loss", row->val_loss);
        print_value("val_accuracy", row->val_accuracy);
        if (session->wants_top_5) {
            print_value("val_top_5_accuracy", row->val_top_5);
        }
    }
    print_value("lr", (double)(float)row->learning_rate);  // a float32 there: 1e-3 is above 1e-3
    printf("\n");
    fflush(stdout);
    return STATUS_OK;
}

static enum status progress_checkpoint(struct session *session, void *self, const char *prefix)
{
    (void)session;
    erase_line(self);
    LOG_NOTE("saved %s", prefix);
    return STATUS_OK;
}

static enum status progress_end(struct session *session, void *self, const char *outcome)
{
    (void)session, (void)outcome;
    erase_line(self);
    return STATUS_OK;
}

const struct callback_def callback_progress = {
    .name = "progress",
    .enabled = progress_enabled,
    .open = progress_open,
    .on_step = progress_step,
    .on_epoch = progress_epoch,
    .on_checkpoint = progress_checkpoint,
    .on_end = progress_end,
    .close = mem_free,
};

// ---- TimeHistory and the run statistics -------------------------------------------------------------

struct stamp {
    int64_t step;
    double time;
};

struct time_history {
    int64_t log_steps, last_step, first_step;
    double last_time;
    double epoch_seconds;     // sum over the epochs of this process
    struct stamp *stamps;
    int stamp_count, stamp_capacity;
};

static bool time_history_enabled(const struct session *session)
{
    return config_bool(session->config, "train.callbacks.enable_time_history");
}

static enum status time_history_open(struct session *session, void **self)
{
    struct time_history *history = MEM_NEW(struct time_history);
    history->log_steps = config_int(session->config, "train.time_history.log_steps");
    history->last_step = history->first_step = session->step;
    history->last_time = time_now();
    *self = history;
    return STATUS_OK;
}

static void time_history_stamp(struct time_history *history, int64_t step)
{
    GROW(history->stamps, history->stamp_count, history->stamp_capacity);
    history->stamps[history->stamp_count++] = (struct stamp){step, time_wall()};
}

static enum status time_history_step(struct session *session, void *self, double loss, double rate)
{
    (void)loss, (void)rate;
    struct time_history *history = self;
    if (history->stamp_count == 0) {
        time_history_stamp(history, session->step);
    }
    int64_t steps = session->step - history->last_step;
    if (steps >= history->log_steps) {
        double now = time_now(), elapsed = now - history->last_time;
        if (!session->options->quiet && !isatty(STDOUT_FILENO)) {
            printf("TimeHistory: %.2f seconds, %.2f examples/second between steps %lld and %lld\n",
                   elapsed, (double)(steps * session->global_batch) / elapsed,
                   (long long)history->last_step, (long long)session->step);
            fflush(stdout);
        }
        time_history_stamp(history, session->step);
        history->last_step = session->step;
        history->last_time = now;
    }
    return STATUS_OK;
}

static enum status time_history_epoch(struct session *session, void *self,
                                      const struct epoch_row *row)
{
    (void)session;
    ((struct time_history *)self)->epoch_seconds += row->seconds;
    return STATUS_OK;
}

static void stat_number(struct text *out, const char *key, double value)
{
    text_printf(out, "%s\"%s\": ", out->size > 1 ? ", " : "", key);
    text_append_number(out, value);
}

static enum status time_history_end(struct session *session, void *self, const char *outcome)
{
    const struct time_history *history = self;
    struct text out = {0};
    if (strcmp(outcome, "done") != 0) {
        return STATUS_OK;
    }
    text_append(&out, "{");
    if (session->evaluation.count) {
        stat_number(&out, "accuracy_top_1", session->evaluation.accuracy);
        stat_number(&out, "eval_loss", session->evaluation.loss);
    }
    int64_t steps = session->step - history->first_step;
    if (steps > 0 && session->history_count) {
        const struct epoch_row *last = &session->history[session->history_count - 1];
        stat_number(&out, "loss", last->loss);
        stat_number(&out, "training_accuracy_top_1", last->accuracy);
        stat_number(&out, "avg_exp_per_second",
                    (double)(steps * session->global_batch) / MAX(history->epoch_seconds, 1e-9));
    }
    stat_number(&out, "train_finish_time", time_wall());
    text_append(&out, ", \"step_timestamp_log\": [");
    for (int i = 0; i < history->stamp_count; i++) {
        text_printf(&out, "%s\"BatchTimestamp<batch_index: %lld, timestamp: %.6f>\"", i ? ", " : "",
                    (long long)history->stamps[i].step, history->stamps[i].time);
    }
    text_append(&out, "]}");
    printf("Run stats:\n%s\n", text_get(&out));
    fflush(stdout);
    text_release(&out);
    return STATUS_OK;
}

static void time_history_close(void *self)
{
    struct time_history *history = self;
    if (history) {
        mem_free(history->stamps);
        mem_free(history);
    }
}

const struct callback_def callback_time_history = {
    .name = "time_history",
    .enabled = time_history_enabled,
    .open = time_history_open,
    .on_step = time_history_step,
    .on_epoch = time_history_epoch,
    .on_end = time_history_end,
    .close = time_history_close,
};
