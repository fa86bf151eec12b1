// SPDX-License-Identifier: Apache-2.0
// callback_report.c: gathers what report.html shows, at each epoch's end.
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "report_impl.h"

enum { STEP_POINTS = 600 };  // of the chart of single steps: as many as it has pixels

struct report {
    float losses[STEP_POINTS];
    int count;
    int64_t stride, first, seen;
    char started[40];
};

static bool report_enabled(const struct session *session)
{
    return session->options->model_dir != NULL;
}

static void date_text(char *out, size_t size)
{
    time_t now = time(NULL);
    struct tm local;
    strftime(out, size, "%Y-%m-%d %H:%M:%S %Z", localtime_r(&now, &local));
}

static enum status report_open(struct session *session, void **self)
{
    struct report *report = MEM_NEW(struct report);
    report->stride = 1;
    report->first = session->step + 1;
    date_text(report->started, sizeof report->started);
    *self = report;
    return STATUS_OK;
}

// Keeps every stride-th loss; when full, every second one is dropped and the stride doubles.
static enum status report_step(struct session *session, void *self, double loss, double rate)
{
    (void)session, (void)rate;
    struct report *report = self;
    if (report->seen++ % report->stride) {
        return STATUS_OK;
    }
    if (report->count == STEP_POINTS) {
        report->count /= 2;
        for (int i = 0; i < report->count; i++) {
            report->losses[i] = report->losses[2 * i];
        }
        report->stride *= 2;
        if ((report->seen - 1) % report->stride) {
            return STATUS_OK;
        }
    }
    report->losses[report->count++] = (float)loss;
    return STATUS_OK;
}

// The pictures of the mistakes, read again from the validation data.
static int read_mistakes(struct session *session, uint8_t *pixels, struct report_mistake *out)
{
    const struct evaluation *evaluation = &session->evaluation;
    size_t size = (size_t)shape_count(session->example->shape);
    int count = 0;
    for (int i = 0; i < evaluation->mistake_count; i++) {
        int32_t label;
        uint8_t *at = pixels + size * (size_t)count;
        if (session->val_def->read(session->val_source, evaluation->mistakes[i].index, at, &label) ==
            STATUS_OK) {
            out[count++] = (struct report_mistake){evaluation->mistakes[i], at};
        }
    }
    return count;
}

static enum status write_report(struct session *session, struct report *report, const char *outcome)
{
    char title[128], batch[96], steps[96], seed[32], updated[40], host[160] = "";
    struct utsname system;
    if (uname(&system) == 0) {
        snprintf(host, sizeof host, "%s, %s %s", system.nodename, system.sysname, system.release);
    }
    snprintf(title, sizeof title, "%s on %s", session->model->name,
             config_string(session->config, "train_dataset.name"));
    snprintf(batch, sizeof batch, "%d examples a step, %d replica%s, %s", session->global_batch,
             session->replica_count, session->replica_count == 1 ? "" : "s",
             session->strategy->name);
    snprintf(steps, sizeof steps, "%lld of %lld", (long long)session->step,
             (long long)session_total_steps(session));
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)session->seed);
    date_text(updated, sizeof updated);
    const struct report_fact facts[] = {
        {"command", session->options->command_line},
        {"training data", session->train_def->describe(session->train_source)},
        {"validation data",
         session->evaluates ? session->val_def->describe(session->val_source) : "none"},
        {"devices", session->devices},
        {"batch", batch},
        {"steps", steps},
        {"seed", seed},
        {"checkpoint", session->checkpoint_prefix ? session->checkpoint_prefix : "none yet"},
        {"host", host},
        {"started", report->started},
        {"written", updated},
    };
    struct text yaml = {0};
    config_dump(session->config, &yaml);
    struct report_mistake mistakes[MISTAKES_KEPT];
    uint8_t *pixels =
        mem_alloc((size_t)shape_count(session->example->shape) * MISTAKES_KEPT);
    struct report_data data = {
        .title = title,
        .outcome = outcome,
        .command_line = session->options->command_line,
        .config_yaml = text_get(&yaml),
        .facts = facts,
        .fact_count = ARRAY_COUNT(facts),
        .epochs = session->history,
        .epoch_count = session->history_count,
        .epochs_planned = session->epochs,
        .step_losses = report->losses,
        .step_count = report->count,
        .step_first = report->first,
        .step_stride = report->stride,
        .evaluation = &session->evaluation,
        .class_names = session->example->class_names,
        .mistakes = mistakes,
        .mistake_count = session->evaluates ? read_mistakes(session, pixels, mistakes) : 0,
        .image = session->example->shape,
        .net = &session->train_graph.net,
    };
    char *path = session_path(session, "report.html");
    enum status status = report_write(path, &data);
    mem_free(path);
    mem_free(pixels);
    text_release(&yaml);
    return status;
}

static enum status report_epoch(struct session *session, void *self, const struct epoch_row *row)
{
    (void)row;
    return write_report(session, self, "running");
}

static enum status report_end(struct session *session, void *self, const char *outcome)
{
    return write_report(session, self, outcome);
}

const struct callback_def callback_report = {
    .name = "report.html",
    .enabled = report_enabled,
    .open = report_open,
    .on_step = report_step,
    .on_epoch = report_epoch,
    .on_end = report_end,
    .close = mem_free,
};
