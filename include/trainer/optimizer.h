// SPDX-License-Identifier: Apache-2.0
// optimizer.h: update rules as graph nodes, and learning-rate schedules as functions of the step.
// Floor 5.
#ifndef TRAINER_OPTIMIZER_H
#define TRAINER_OPTIMIZER_H

#include "trainer/config.h"
#include "trainer/graph.h"

// ---- Optimizers: one row each ---------------------------------------------------------------------

struct optimizer_def {
    const char *name;        // "adam", as model.optimizer.name
    const char *keras_name;  // "Adam": the class that a checkpoint's optimizer belongs to
    const char *help;
    enum op op;
    // Slots, NULL-terminated, by the names of TensorFlow 2.0 to 2.10.
    const char *slots[3];
    // How Keras 2.11 and later keeps them: the list of each slot, and whether its list of all variables
    // goes slot by slot (else weight by weight).
    const char *keras_lists[3];
    bool keras_by_slot;
    bool needs_step;
    // Fills the op's hyperparameters; the slot list may be shortened (*slot_count).
    void (*attributes)(const struct config *config, struct op_attr *attr, int *slot_count);
};
extern const struct optimizer_def *const optimizer_table[];  // NULL-terminated
extern const struct config_field optimizer_fields[];         // model.optimizer.*
extern const int optimizer_field_count;

const struct optimizer_def *optimizer_get(const struct config *config);  // by model.optimizer.name

// Adds the update of every weight with a gradient. `lr` real scalar, `step` int64 scalar feed.
// gradients[i] belongs to weights[i]; NULL = not trained.
void optimizer_apply(struct graph *graph, const struct config *config,
                     struct variable *const *weights, struct node *const *gradients, int count,
                     struct node *lr, struct node *step);
// Scales the gradients so that their global norm is at most `limit`. Returns the norm before.
struct node *optimizer_clip(struct graph *graph, struct node **gradients, int count, double limit);
struct node *optimizer_norm(struct graph *graph, struct node *const *gradients, int count);

// ---- Schedules: one row each ----------------------------------------------------------------------

struct schedule {
    const struct schedule_def *def;
    double initial, final, rate, power, warmup;   // rates; warm-up in steps
    double decay_steps;
    bool staircase;
    double boundaries[16], values[17];            // steps (last step with the value before), rates
    int boundary_count;
};
struct schedule_def {
    const char *name;
    const char *help;
    // Learning rate of step t (optimizer iterations before the update, from 0), without warm-up.
    double (*rate)(const struct schedule *schedule, double step);
};
extern const struct schedule_def *const schedule_table[];  // NULL-terminated
extern const struct config_field schedule_fields[];        // model.learning_rate.*
extern const int schedule_field_count;

// Resolves model.learning_rate.* for a run of `epochs` of `steps_per_epoch` with this global batch.
enum status schedule_init(struct schedule *schedule, const struct config *config,
                          int64_t steps_per_epoch, int64_t epochs, int64_t global_batch);
// The rate of the update after `step` updates.
double schedule_rate(const struct schedule *schedule, int64_t step);

#endif
