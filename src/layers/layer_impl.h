// SPDX-License-Identifier: Apache-2.0
// layer_impl.h: what the layer files share. Private to src/layers.
#ifndef TRAINER_LAYER_IMPL_H
#define TRAINER_LAYER_IMPL_H

#include "trainer/layers.h"

// Opens a record; nodes made until layer_end belong to it. `snake` is the class in Keras' snake case.
struct layer_record *layer_begin(struct net *net, const char *class_name, const char *snake,
                                 const char *name, struct node *x);
struct node *layer_end(struct net *net, struct layer_record *record, struct node *y);  // gives y
// The layer's variable LAYER/name as a node; recorded in creation order, as Keras lists weights.
struct node *layer_variable(struct net *net, struct layer_record *record, const char *name,
                            struct shape shape, enum variable_role role,
                            struct initializer init);
struct node *apply_activation(struct net *net, struct node *x, enum activation activation);
void layer_penalty(struct net *net, struct node *weight, double l2);  // adds l2 * sum(w^2)

#endif
