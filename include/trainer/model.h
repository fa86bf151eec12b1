// SPDX-License-Identifier: Apache-2.0
// model.h: architectures. A model is one file and one row of models.def. Floor 6.
#ifndef TRAINER_MODEL_H
#define TRAINER_MODEL_H

#include "trainer/config.h"
#include "trainer/layers.h"

struct model_default {
    const char *path, *yaml;
};

struct model_def {
    const char *name;     // --model_type
    const char *program;  // the program that trains it: "classifier_trainer", "mnist_main"
    const char *help;     // one line
    const char *dataset;  // the default of --dataset
    const struct config_field *fields;  // model.model_params.*
    int field_count;
    const struct model_default *defaults;  // {NULL} terminated: the recipe
    // Builds the model on x (N, H, W, C) real, already scaled. Returns the output: logits, or
    // probabilities with net->logits set. Only layers; no loss.
    struct node *(*build)(struct net *net, const struct config *config, struct node *x);
};
extern const struct model_def *const model_table[];  // NULL-terminated
const struct model_def *model_find(const char *name);  // NULL when unknown

int64_t model_parameter_count(const struct net *net, bool trainable_only);
// The layer table: name, class, output shape, parameters, FLOPs an example.
void model_summary(const struct net *net, struct text *out);

#endif
