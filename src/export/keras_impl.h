// SPDX-License-Identifier: Apache-2.0
// keras_impl.h: what saving and loading of Keras checkpoints share. Private to src/export.
#ifndef TRAINER_KERAS_IMPL_H
#define TRAINER_KERAS_IMPL_H

#include "trainer/export.h"
#include "trainer/io.h"

#define GRAPH_KEY "_CHECKPOINTABLE_OBJECT_GRAPH"
#define STATE_KEY "trainer_state"  // not in the object graph: TensorFlow ignores extra tensors

// The trained weights in the order of the layers: Keras' trainable_variables. Returns their number.
int keras_trained_weights(const struct net *net, const struct variable **out);
// How many of the optimizer's slots this run has (rmsprop has its momentum only when it is above 0).
int keras_slot_count(const struct checkpoint_info *info);
const struct variable *keras_find_slot(const struct variables *variables,
                                       const struct variable *weight, const char *name);  // or NULL

#endif
