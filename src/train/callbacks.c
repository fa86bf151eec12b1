// SPDX-License-Identifier: Apache-2.0
// callbacks.c: the table of what watches a run. The loop knows the points, not the watchers.
#include "train_impl.h"

extern const struct callback_def callback_progress, callback_time_history, callback_tensorboard,
    callback_metrics, callback_report;

const struct callback_def *const callback_table[] = {
    &callback_progress, &callback_time_history, &callback_tensorboard,
    &callback_metrics,  &callback_report,       NULL,
};

enum status callbacks_open(struct callbacks *callbacks, struct session *session)
{
    for (int i = 0; callback_table[i]; i++) {
        const struct callback_def *row = callback_table[i];
        callbacks->on[i] = row->enabled(session);
        if (callbacks->on[i] && row->open) {
            TRY(row->open(session, &callbacks->selves[i]));
        }
    }
    return STATUS_OK;
}

// Calls one point of every row that is on and has it; stops at the first failure.
#define CALL_ALL(point, ...)                                               \
    for (int i = 0; callback_table[i]; i++) {                              \
        const struct callback_def *row_ = callback_table[i];               \
        if (callbacks->on[i] && row_->point) {                             \
            TRY(row_->point(session, callbacks->selves[i], __VA_ARGS__));  \
        }                                                                  \
    }                                                                      \
    return STATUS_OK

enum status callbacks_step(struct callbacks *callbacks, struct session *session, double loss,
                           double rate)
{
    CALL_ALL(on_step, loss, rate);
}

enum status callbacks_epoch(struct callbacks *callbacks, struct session *session,
                            const struct epoch_row *row)
{
    CALL_ALL(on_epoch, row);
}

enum status callbacks_checkpoint(struct callbacks *callbacks, struct session *session,
                                 const char *prefix)
{
    CALL_ALL(on_checkpoint, prefix);
}

enum status callbacks_end(struct callbacks *callbacks, struct session *session,
                          const char *outcome)
{
    enum status first = STATUS_OK;
    struct error_record record;
    for (int i = 0; callback_table[i]; i++) {
        const struct callback_def *row = callback_table[i];
        if (callbacks->on[i] && row->on_end) {
            enum status status = row->on_end(session, callbacks->selves[i], outcome);
            if (status != STATUS_OK && first == STATUS_OK) {
                first = status;
                record = *error_get();
            }
        }
    }
    if (first != STATUS_OK) {
        error_restore(&record);
    }
    return first;
}

void callbacks_close(struct callbacks *callbacks)
{
    for (int i = 0; callback_table[i]; i++) {
        if (callbacks->on[i] && callback_table[i]->close) {
            callback_table[i]->close(callbacks->selves[i]);
        }
    }
}
