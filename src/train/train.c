// SPDX-License-Identifier: Apache-2.0
// train.c: the loop.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "train_impl.h"
#include "trainer/file.h"

// ---- Signals ----------------------------------------------------------------------------------------

static volatile sig_atomic_t stop_requested;

static void on_stop_signal(int signal)
{
    if (stop_requested) {
        _exit(128 + signal);  // the second one: at once
    }
    stop_requested = signal;
}

void stop_signals_install(void)
{
    struct sigaction action = {.sa_handler = on_stop_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error with a sentence
}

int stop_signal(void)
{
    return stop_requested;
}

// ---- One step ---------------------------------------------------------------------------------------

struct step_result {
    double loss;     // mean over the batch's examples, with the penalty
    double correct;  // share of the batch's examples
};

// Runs `slot` on all replicas and adds what they give. The loss is summed over replicas already.
static enum status run_slot(struct session *session, enum graph_slot slot,
                            const struct run_inputs *inputs, struct step_result *sum)
{
    enum { REPLICA_MAX = 256 };  // the range of runtime.num_replicas
    float loss = 0, correct[REPLICA_MAX] = {0};
    void *fetches[REPLICA_MAX * FETCH_COUNT];
    memset(fetches, 0, sizeof *fetches * (size_t)(session->replica_count * FETCH_COUNT));
    fetches[FETCH_LOSS] = &loss;
    for (int r = 0; r < session->replica_count; r++) {
        fetches[r * FETCH_COUNT + FETCH_CORRECT] = &correct[r];
    }
    TRY(replicas_run(session->replicas, slot, inputs, fetches));
    sum->loss += (double)loss;
    for (int r = 0; r < session->replica_count; r++) {
        sum->correct += (double)correct[r];
    }
    return STATUS_OK;
}

static enum status run_step(struct session *session, const struct batch *batch, double rate,
                            struct step_result *result)
{
    *result = (struct step_result){0};
    struct run_inputs inputs = {.batch = batch,
                                .weight = 1.0f / (float)batch->count,
                                .learning_rate = rate,
                                .step = session->step};
    if (session->parts == 1) {
        return run_slot(session, SLOT_TRAIN, &inputs, result);
    }
    for (int part = 0; part < session->parts; part++) {
        inputs.first = part * session->part_rows * session->replica_count;
        TRY(run_slot(session, SLOT_ACCUMULATE, &inputs, result));
    }
    bool guarded = strcmp(config_string(session->config, "train.nan_guard"), "off") != 0;
    inputs = (struct run_inputs){.learning_rate = guarded && !isfinite(result->loss) ? NAN : rate,
                                 .step = session->step};
    struct step_result none = {0};
    return run_slot(session, SLOT_UPDATE, &inputs, &none);
}

// Finds where a step that went wrong went wrong first: runs it node by node on the reference kernels.
static enum status explain_nan(struct session *session, const struct batch *batch, double rate)
{
    struct text where = {0};
    find_first_bad(session, batch, rate, &where);
    enum status status = FAIL(
        ERR_NUMERIC,
        "step %lld (epoch %lld): the loss is not finite%s%s. Nothing was updated by this step and "
        "nothing saved after it; a smaller learning rate (now %g) is the usual cure, "
        "train.nan_guard=skip_step leaves such steps out",
        (long long)session->step + 1, (long long)session->epoch + 1,
        where.size ? "; first seen in " : "", text_get(&where), rate);
    text_release(&where);
    return status;
}

// True when the step counts; false when it was left out.
static enum status guard(struct session *session, const struct batch *batch,
                         const struct step_result *result, double rate, bool *counts)
{
    const char *policy = config_string(session->config, "train.nan_guard");
    *counts = true;
    if (isfinite(result->loss) || strcmp(policy, "off") == 0) {
        return STATUS_OK;
    }
    if (strcmp(policy, "stop") == 0) {
        return explain_nan(session, batch, rate);
    }
    *counts = false;
    session->skipped_steps++;
    LOG_WARN("step %lld: the loss is not finite; the step is left out (%lld so far)",
             (long long)session->step + 1, (long long)session->skipped_steps);
    return STATUS_OK;
}

// ---- Epochs -----------------------------------------------------------------------------------------

static enum status save(struct session *session, struct callbacks *callbacks)
{
    if (!session->options->model_dir ||
        !config_bool(session->config, "train.callbacks.enable_checkpoint_and_export")) {
        return STATUS_OK;
    }
    TRY(session_save(session));
    return callbacks_checkpoint(callbacks, session, session->checkpoint_prefix);
}

static enum status stopped(struct session *session, struct callbacks *callbacks)
{
    TRY(save(session, callbacks));
    if (!session->checkpoint_prefix) {
        return FAIL(ERR_INTERRUPTED, "stopped by a signal after step %lld; nothing was saved, for "
                    "there is no --model_dir", (long long)session->step);
    }
    return FAIL(ERR_INTERRUPTED,
                "stopped by a signal after step %lld of %lld; saved to %s. The same command goes "
                "on from there", (long long)session->step,
                (long long)session_total_steps(session), session->checkpoint_prefix);
}

// The steps that are left of the current epoch.
static enum status train_epoch(struct session *session, struct callbacks *callbacks)
{
    int64_t save_every = config_int(session->config, "train.callbacks.checkpoint_every_steps");
    while (session->epoch_step < session->steps_per_epoch) {
        const struct batch *batch;
        struct step_result result;
        bool counts;
        TRY(pipeline_next(session->pipeline, &batch));
        double rate = schedule_rate(&session->schedule, session->step);
        TRY(run_step(session, batch, rate, &result));
        TRY(guard(session, batch, &result, rate, &counts));
        session->step++;
        session->epoch_step++;
        if (counts) {
            session->loss_sum += result.loss * batch->count;
            session->correct_sum += result.correct * batch->count;
            session->example_count += batch->count;
        }
        TRY(callbacks_step(callbacks, session, result.loss, rate));
        bool last = session->epoch_step == session->steps_per_epoch;
        if (!last && stop_signal()) {
            return stopped(session, callbacks);
        }
        if (!last && save_every && session->step % save_every == 0) {
            TRY(save(session, callbacks));
        }
    }
    return STATUS_OK;
}

static bool evaluates_now(const struct session *session, int64_t epoch)
{
    int64_t every = config_int(session->config, "evaluation.epochs_between_evals");
    return session->evaluates && (epoch % every == 0 || epoch == session->epochs);
}

static void note_best(struct session *session, double val_loss)
{
    bool better = val_loss < session->best_val_loss;
    session->best_val_loss = better ? val_loss : session->best_val_loss;
    session->epochs_since_best = better ? 0 : session->epochs_since_best + 1;
}

static enum status finish_epoch(struct session *session, struct callbacks *callbacks, double start,
                                int64_t steps)
{
    double seconds = time_now() - start, n = (double)MAX(session->example_count, 1);
    struct epoch_row row = {
        .epoch = session->epoch + 1,
        .loss = session->loss_sum / n,
        .accuracy = session->correct_sum / n,
        .learning_rate = schedule_rate(&session->schedule, session->step - 1),
        .val_loss = NAN,
        .val_accuracy = NAN,
        .val_top_5 = NAN,
        .seconds = seconds,
        .examples_per_second = (double)(steps * session->global_batch) / seconds,
    };
    if (evaluates_now(session, row.epoch)) {
        TRY(evaluate(session, &session->evaluation));
        row.val_loss = session->evaluation.loss;
        row.val_accuracy = session->evaluation.accuracy;
        row.val_top_5 = session->evaluation.top_5_accuracy;
        note_best(session, row.val_loss);
    }
    row.seconds = time_now() - start;
    session->epoch++;
    session->epoch_step = 0;
    session->loss_sum = session->correct_sum = 0;
    session->example_count = 0;
    GROW(session->history, session->history_count, session->history_capacity);
    session->history[session->history_count++] = row;
    TRY(callbacks_epoch(callbacks, session, &row));
    return save(session, callbacks);
}

static bool stops_early(const struct session *session)
{
    int64_t patience = config_int(session->config, "train.callbacks.early_stopping_patience");
    return patience > 0 && session->epochs_since_best >= patience;
}

static enum status train_epochs(struct session *session, struct callbacks *callbacks)
{
    while (session->epoch < session->epochs && !stops_early(session)) {
        double start = time_now();
        int64_t first = session->epoch_step;
        TRY(train_epoch(session, callbacks));
        TRY(finish_epoch(session, callbacks, start, session->steps_per_epoch - first));
        if (stop_signal() && session->epoch < session->epochs) {
            return stopped(session, callbacks);
        }
    }
    if (session->epoch < session->epochs) {
        LOG_WARN("stopped early: the validation loss was best %lld epochs ago (%.4f)",
                 (long long)session->epochs_since_best, session->best_val_loss);
    }
    return STATUS_OK;
}

// ---- From the first weights to the last ---------------------------------------------------------------

static enum status start_weights(struct session *session)
{
    TRY(session_initialize(session));
    const char *from = config_string(session->config, "train.init_checkpoint");
    bool found = false;
    if (session->options->model_dir && config_bool(session->config, "train.resume_checkpoint")) {
        TRY(session_restore(session, NULL, &found));
    }
    if (!found && from) {
        TRY(session_load_weights(session, from));
    }
    // One global batch a step: the place in the data follows from the number of steps.
    int64_t batches = pipeline_batches_per_epoch(session->pipeline);
    return pipeline_seek(session->pipeline,
                         (struct pipeline_state){.epoch = session->step / batches,
                                                 .batch = session->step % batches});
}

enum status train_session(struct session *session)
{
    struct callbacks callbacks = {0};
    TRY(start_weights(session));
    if (session->evaluates) {
        TRY(evaluate_compile(session));
    }
    enum status status = callbacks_open(&callbacks, session);
    if (status == STATUS_OK) {
        status = train_epochs(session, &callbacks);
    }
    // A run that had nothing left to do still says how good its weights are.
    if (status == STATUS_OK && session->evaluates && session->evaluation.count == 0) {
        status = evaluate(session, &session->evaluation);
    }
    if (status == STATUS_OK) {
        status = callbacks_end(&callbacks, session, "done");
    } else {
        struct error_record first = *error_get();
        (void)callbacks_end(&callbacks, session,
                            status == ERR_INTERRUPTED ? "stopped" : first.message);
        error_restore(&first);
    }
    callbacks_close(&callbacks);
    return status;
}
