// SPDX-License-Identifier: Apache-2.0
// strategy.h: on how many devices a step runs, and what that changes in its graph. Floor 6.
#ifndef TRAINER_STRATEGY_H
#define TRAINER_STRATEGY_H

#include "trainer/config.h"
#include "trainer/graph.h"

struct strategy_def {
    const char *name;  // runtime.distribution_strategy
    const char *help;
    // How many replicas the configuration asks for; ERR_USAGE with a sentence when it cannot be.
    enum status (*replicas)(const struct config *config, int *count);
    // Rewrites the gradients of one replica's graph into those of the global batch.
    void (*reduce)(struct graph *graph, struct node **gradients, int count, int replicas);
    // The same for a value that every replica computed on its share: the mean over replicas.
    struct node *(*mean)(struct graph *graph, struct node *value, int replicas);
};
extern const struct strategy_def *const strategy_table[];  // NULL-terminated
extern const struct config_field strategy_fields[];        // runtime.*
extern const int strategy_field_count;

// By runtime.distribution_strategy. Names that are known but not built into this version are
// refused with a sentence.
enum status strategy_get(const struct config *config, const struct strategy_def **out);

#endif
