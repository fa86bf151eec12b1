// SPDX-License-Identifier: Apache-2.0
// train_impl.h: what the files of a run share. Private to src/train. Read order: session, step_graph,
// replicas, train, evaluate, resume, callbacks.
#ifndef TRAINER_TRAIN_IMPL_H
#define TRAINER_TRAIN_IMPL_H

#include "trainer/backend.h"
#include "trainer/dataset.h"
#include "trainer/export.h"
#include "trainer/optimizer.h"
#include "trainer/strategy.h"
#include "trainer/train.h"

// ---- Graphs of a step (step_graph.c) --------------------------------------------------------------

// What a step's graph is made from.
struct step_spec {
    const struct model_def *model;
    const struct config *config;
    const struct strategy_def *strategy;
    const struct example_spec *example;
    struct variables *variables;
    enum dtype real;
    int rows;         // examples of one replica in one run of the graph
    int replicas;
    int parts;        // gradient accumulation: runs a step
    uint64_t seed;
};

// Feeds, in this order. A graph has only those that it uses; `feeds` maps them.
enum feed { FEED_IMAGE, FEED_LABEL, FEED_WEIGHT, FEED_LR, FEED_STEP, FEED_ROW, FEED_COUNT };
// Fetches. Training: loss (already summed over the replicas) and correct are sums of weight * value.
// Evaluation: losses (rows), probabilities (rows, classes).
enum fetch { FETCH_LOSS, FETCH_CORRECT, FETCH_NORM, FETCH_LOSSES, FETCH_PROBABILITIES, FETCH_COUNT };

struct step_graph {
    struct graph graph;
    struct net net;
    struct node *image, *scaled;   // the uint8 feed, and what the model sees
    struct node *output;           // the model's output
    struct node *probabilities;
    bool batch_stats;              // batch normalisation over the batch is in it
};
void step_graph_release(struct step_graph *step);  // fine on a zeroed struct

// Forward, backward, reduction, clipping, update.
enum status train_graph_build(struct step_graph *step, const struct step_spec *spec);
// The same in two: parts add to accumulators, the update takes them.
enum status accumulate_graph_build(struct step_graph *step, const struct step_spec *spec);
enum status update_graph_build(struct step_graph *step, const struct step_spec *spec);
// Forward without training, losses and probabilities per example.
enum status eval_graph_build(struct step_graph *step, const struct step_spec *spec);
// The model alone on a float feed, one example: for export.
enum status export_graph_build(struct step_graph *step, const struct step_spec *spec);
// Freezes what train.trainable does not name. ERR_USAGE when a pattern matches nothing.
enum status apply_trainable(const struct net *net, const struct config *config);

// ---- Replicas (replicas.c) ------------------------------------------------------------------------

struct replicas;
struct replicas_options {
    const struct backend_def *backend;
    int count, threads;       // threads of the whole process
    double timeout;
    bool profile;
};
// Rows of one replica's share: a view into the global batch, or padded staging.
struct share {
    const void *images;
    const int32_t *labels;
    const float *weights;
    int64_t row;              // global index of the first
    int count;                // real rows
};
enum status replicas_open(const struct replicas_options *options, struct replicas **out);
void replicas_close(struct replicas *replicas);  // NULL is fine
int replicas_count(const struct replicas *replicas);
const char *replicas_describe(const struct replicas *replicas);
enum status replicas_state(struct replicas *replicas, const struct variables *variables);
// Compiles one graph on all replicas; `slot` names it for run.
enum graph_slot { SLOT_TRAIN, SLOT_ACCUMULATE, SLOT_UPDATE, SLOT_EVAL, SLOT_COUNT };
enum status replicas_compile(struct replicas *replicas, enum graph_slot slot,
                             const struct step_graph *step, int rows);
// Runs it on all replicas at once: replica r gets rows [r * rows, (r + 1) * rows) of the batch from
// row `first` on. `weight` is that of every real row. fetches[r * FETCH_COUNT + f], NULL = not wanted.
struct run_inputs {
    const struct batch *batch;  // NULL: no examples (the update)
    int first;
    float weight;
    double learning_rate;
    int64_t step;
};
enum status replicas_run(struct replicas *replicas, enum graph_slot slot,
                         const struct run_inputs *inputs, void *const *fetches);
size_t replicas_bytes(const struct replicas *replicas);  // of all execs
void replicas_report(const struct replicas *replicas, struct text *out);
// Values of replica 0; put writes to all. verify: all replicas hold the same bits (ERR_MISMATCH).
struct variable_store replicas_store(struct replicas *replicas);
enum status replicas_verify(struct replicas *replicas, const struct variables *variables);

// ---- Session (session.c): everything a run holds ---------------------------------------------------

struct epoch_row {
    int64_t epoch;            // 1-based
    double loss, accuracy, learning_rate;
    double val_loss, val_accuracy, val_top_5;  // NaN when not evaluated
    double seconds, examples_per_second;       // 0 when an earlier process ran it
};

enum { MISTAKES_KEPT = 24 };
struct mistake {
    int64_t index;
    int32_t label;
    int predicted;
    float probability;  // of the predicted class
    double loss;
};

struct evaluation {
    int64_t count, correct, top_5;
    double loss;               // mean
    double accuracy, top_5_accuracy;
    double seconds;
    struct confusion confusion;
    struct mistake mistakes[MISTAKES_KEPT];  // worst first
    int mistake_count;
};

struct session {
    const struct run_options *options;
    struct config *config;
    const struct model_def *model;
    const struct strategy_def *strategy;
    const struct backend_def *backend;

    const struct source_def *train_def, *val_def;
    struct source *train_source, *val_source;
    const struct example_spec *example;
    struct pipeline *pipeline, *val_pipeline;

    struct replicas *replicas;
    struct variables variables;
    struct step_graph train_graph, update_graph, eval_graph;
    struct schedule schedule;

    uint64_t seed;
    int replica_count;
    int parts;              // gradient accumulation
    int global_batch;       // examples a step
    int part_rows;          // rows of one replica in one run
    int eval_batch, eval_rows;
    int64_t epochs, steps_per_epoch, train_examples, val_examples;
    bool evaluates, wants_top_5;

    // Progress: all of it is in the checkpoint.
    int64_t step;                 // updates done
    int64_t epoch, epoch_step;    // 0-based epoch, steps done in it
    double loss_sum, correct_sum; // over the examples of this epoch so far
    int64_t example_count;
    int64_t skipped_steps;
    double best_val_loss;
    int64_t epochs_since_best;
    struct epoch_row *history;
    int history_count, history_capacity;

    bool eval_compiled;
    struct evaluation evaluation;  // of the last evaluation
    int lock_fd;
    char *checkpoint_prefix;       // the newest, NULL = none yet
    char **kept;                   // names of checkpoints in model_dir, oldest first
    int kept_count, kept_capacity;
    char *devices;                 // one line on what computes
};

// What a mode needs: `want` is a set of these.
enum {
    WANT_TRAIN_DATA = 1,   // the training graph and pipeline
    WANT_VAL_DATA = 2,
    WANT_DEVICES = 4,
    WANT_DIRECTORY = 8,    // model_dir is made and locked
    WANT_SOURCES_ONLY = 16 // both sources, no model
};
enum status session_open(const struct run_options *options, struct config *config, unsigned want,
                         struct session *session);
void session_close(struct session *session);
struct step_spec session_spec(const struct session *session, int rows);
int64_t session_total_steps(const struct session *session);

// ---- Evaluation (evaluate.c) ----------------------------------------------------------------------

// Every example once, in order; sums in double in the order of the examples. Compiles at first use.
enum status evaluate(struct session *session, struct evaluation *out);
void evaluation_release(struct evaluation *evaluation);
enum status evaluate_compile(struct session *session);

// ---- Checkpoints and resume (resume.c) -------------------------------------------------------------

enum status session_lock(struct session *session);  // of model_dir; ERR_USAGE names the other's pid
void session_unlock(struct session *session);
enum status session_save(struct session *session);  // at the current place
// Goes on from `prefix`, or from the newest whole checkpoint (NULL). *found: there was one.
enum status session_restore(struct session *session, const char *prefix, bool *found);
enum status session_load_weights(struct session *session, const char *prefix);
enum status session_initialize(struct session *session);  // first values from the seed

// ---- The loop (train.c) and the NaN guard (nan_guard.c) ---------------------------------------------

// Trains from the first weights, or where a checkpoint left off, to the last epoch.
enum status train_session(struct session *session);
// Appends where the values of this step are not finite for the first time; nothing when unknown.
void find_first_bad(struct session *session, const struct batch *batch, double rate,
                    struct text *where);

// ---- Callbacks (callbacks.c): rows of a table -----------------------------------------------------

struct callback_def {
    const char *name;
    bool (*enabled)(const struct session *session);
    enum status (*open)(struct session *session, void **self);
    enum status (*on_step)(struct session *session, void *self, double loss, double rate);
    enum status (*on_epoch)(struct session *session, void *self, const struct epoch_row *row);
    enum status (*on_checkpoint)(struct session *session, void *self, const char *prefix);
    enum status (*on_end)(struct session *session, void *self, const char *outcome);
    void (*close)(void *self);  // NULL is fine
};
extern const struct callback_def *const callback_table[];  // NULL-terminated

struct callbacks {
    void *selves[16];  // by row; NULL = off or stateless
    bool on[16];
};
enum status callbacks_open(struct callbacks *callbacks, struct session *session);
enum status callbacks_step(struct callbacks *callbacks, struct session *session, double loss,
                           double rate);
enum status callbacks_epoch(struct callbacks *callbacks, struct session *session,
                            const struct epoch_row *row);
enum status callbacks_checkpoint(struct callbacks *callbacks, struct session *session,
                                 const char *prefix);
// Runs all even when one fails; the first error counts.
enum status callbacks_end(struct callbacks *callbacks, struct session *session,
                          const char *outcome);
void callbacks_close(struct callbacks *callbacks);

char *session_path(const struct session *session, const char *name);  // caller frees with mem_free

#endif
