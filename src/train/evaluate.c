// SPDX-License-Identifier: Apache-2.0
// evaluate.c: exact evaluation. Every example counts once, the last partial batch too; sums are taken
// in double in the order of the examples, so the batch size and the replicas change nothing.
#include <math.h>
#include <string.h>

#include "train_impl.h"

void evaluation_release(struct evaluation *evaluation)
{
    confusion_release(&evaluation->confusion);
    *evaluation = (struct evaluation){0};
}

enum status evaluate_compile(struct session *session)
{
    if (session->eval_compiled) {
        return STATUS_OK;
    }
    session->eval_compiled = true;
    if (session->eval_graph.probabilities == NULL) {
        struct step_spec spec = session_spec(session, session->eval_rows);
        TRY(eval_graph_build(&session->eval_graph, &spec));
    }
    return replicas_compile(session->replicas, SLOT_EVAL, &session->eval_graph,
                            session->eval_rows);
}

// Keeps the worst mistakes, by loss, in order.
static void keep_mistake(struct evaluation *evaluation, struct mistake mistake)
{
    int i = evaluation->mistake_count;
    if (i == MISTAKES_KEPT && mistake.loss <= evaluation->mistakes[i - 1].loss) {
        return;
    }
    i = MIN(i, MISTAKES_KEPT - 1);
    evaluation->mistake_count = i + 1;
    for (; i > 0 && evaluation->mistakes[i - 1].loss < mistake.loss; i--) {
        evaluation->mistakes[i] = evaluation->mistakes[i - 1];
    }
    evaluation->mistakes[i] = mistake;
}

static void count_example(struct evaluation *evaluation, int64_t index, int32_t label, float loss,
                          const float *probabilities, int classes)
{
    int predicted = metric_argmax(probabilities, classes);
    evaluation->loss += (double)loss;
    evaluation->count++;
    evaluation->correct += predicted == label;
    evaluation->top_5 += metric_in_top_k(probabilities, classes, label, 5);
    if (predicted < evaluation->confusion.classes) {
        confusion_add(&evaluation->confusion, label, predicted);
    }
    if (predicted != label) {
        keep_mistake(evaluation, (struct mistake){.index = index,
                                                  .label = label,
                                                  .predicted = predicted,
                                                  .probability = probabilities[predicted],
                                                  .loss = (double)loss});
    }
}

// Runs one batch and counts its real rows.
static enum status evaluate_batch(struct session *session, const struct batch *batch,
                                  float *losses, float *probabilities, struct evaluation *out)
{
    int rows = session->eval_rows;
    int classes = (int)session->eval_graph.probabilities->shape.dim[1];
    void **fetches = MEM_NEW_ARRAY(void *, session->replica_count * FETCH_COUNT);
    for (int r = 0; r < session->replica_count; r++) {
        fetches[r * FETCH_COUNT + FETCH_LOSSES] = losses + r * rows;
        fetches[r * FETCH_COUNT + FETCH_PROBABILITIES] = probabilities + r * rows * classes;
    }
    struct run_inputs inputs = {.batch = batch, .weight = 1};
    enum status status = replicas_run(session->replicas, SLOT_EVAL, &inputs, fetches);
    mem_free(fetches);
    TRY(status);
    for (int i = 0; i < batch->count; i++) {
        count_example(out, batch->indices[i], batch->labels[i], losses[i],
                      probabilities + i * classes, classes);
    }
    return STATUS_OK;
}

enum status evaluate(struct session *session, struct evaluation *out)
{
    evaluation_release(out);
    double start = time_now();
    TRY(evaluate_compile(session));
    int64_t batches = pipeline_batches_per_epoch(session->val_pipeline);
    if (!config_is_null(session->config, "evaluation.steps") &&
        config_int(session->config, "evaluation.steps") > 0) {
        batches = MIN(batches, config_int(session->config, "evaluation.steps"));
    }
    int64_t rows = (int64_t)session->eval_rows * session->replica_count;
    int64_t classes = session->eval_graph.probabilities->shape.dim[1];
    float *losses = MEM_NEW_ARRAY(float, rows);                   // (rows)
    float *probabilities = MEM_NEW_ARRAY(float, rows * classes);  // (rows, classes)
    confusion_init(&out->confusion, session->example->num_classes);
    enum status status = pipeline_seek(session->val_pipeline, (struct pipeline_state){0});
    for (int64_t i = 0; i < batches && status == STATUS_OK; i++) {
        const struct batch *batch;
        status = pipeline_next(session->val_pipeline, &batch);
        if (status == STATUS_OK) {
            status = evaluate_batch(session, batch, losses, probabilities, out);
        }
    }
    mem_free(losses);
    mem_free(probabilities);
    TRY(status);
    double count = (double)MAX(out->count, 1);
    out->loss /= count;
    out->accuracy = (double)out->correct / count;
    out->top_5_accuracy = (double)out->top_5 / count;
    out->seconds = time_now() - start;
    return STATUS_OK;
}
