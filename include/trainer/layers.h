// SPDX-License-Identifier: Apache-2.0
// layers.h: the layer library. A layer makes its variables (named as Keras names them) and its nodes,
// and leaves a record from which summaries, checkpoints and exports are written. No layer knows of
// devices, precision, freezing or replicas. Floor 5.
#ifndef TRAINER_LAYERS_H
#define TRAINER_LAYERS_H

#include "trainer/graph.h"

enum activation { ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_SIGMOID, ACTIVATION_TANH,
                  ACTIVATION_SOFTMAX };
const char *const *activation_names(void);  // NULL-terminated: "linear", "relu", ...
bool activation_find(const char *name, enum activation *out);

enum padding { PADDING_VALID, PADDING_SAME };
// TensorFlow's "same": the output is ceil(size / stride), the odd element goes after.
void padding_resolve(enum padding padding, int64_t size, int window, int stride, int dilation,
                     int *before, int *after);

struct layer_weight {
    const char *name;            // Keras' name: "kernel", "bias", "gamma", ...
    struct variable *variable;
};

enum { LAYER_WEIGHT_MAX = 4 };
struct layer_record {
    const char *name;        // "conv2d_1"
    const char *class_name;  // Keras': "Conv2D"
    const char *config;      // Keras' config as JSON, the same that get_config() would give
    struct shape input, output;  // with the batch in front
    struct layer_weight weights[LAYER_WEIGHT_MAX];
    int weight_count;
    int first_node, end_node;    // its nodes in the graph: [first, end)
};

// A value that a variable takes at the end of the step: moving statistics. Kept aside until the whole
// step is built, so that the strategy can average it over replicas.
struct net_update {
    struct variable *variable;
    struct node *value;
};

// A model under construction in a graph. Layers are recorded in order of creation.
struct net {
    struct graph *graph;      // borrowed
    bool training;            // dropout drops, batch norm uses and updates batch statistics
    uint64_t seed;            // of dropout
    struct node *step, *row;  // feeds of dropout: int64 scalars; NULL without training
    struct node *logits;      // set by a last layer with softmax: what the loss is computed from
    struct node *penalty;     // sum of the regularisation terms, NULL without any
    struct layer_record **layers;
    int layer_count, layer_capacity;
    struct net_update *updates;
    int update_count, update_capacity;
};
void net_init(struct net *net, struct graph *graph, bool training, uint64_t seed);
void net_release(struct net *net);  // the records' strings live in the graph's arena

// Every layer: `name` NULL = Keras' automatic name (class in snake case, then _1, _2 ...).
struct conv2d_options {
    const char *name;
    int filters, kernel[2], stride[2], dilation[2];  // 0 = 1 for stride and dilation
    int groups;                                      // 0 = 1
    enum padding padding;
    enum activation activation;
    bool no_bias;
    double l2;  // adds l2 * sum(kernel^2) to the penalty
};
struct node *layer_conv2d(struct net *net, struct node *x, const struct conv2d_options *options);

struct pool2d_options {
    const char *name;
    int window[2], stride[2];  // stride 0 = window
    enum padding padding;
};
struct node *layer_max_pool2d(struct net *net, struct node *x, const struct pool2d_options *options);
struct node *layer_avg_pool2d(struct net *net, struct node *x, const struct pool2d_options *options);
struct node *layer_global_avg_pool2d(struct net *net, struct node *x, const char *name);

struct dense_options {
    const char *name;
    int units;
    enum activation activation;
    bool no_bias;
    double l2;
};
struct node *layer_dense(struct net *net, struct node *x, const struct dense_options *options);

struct batch_norm_options {
    const char *name;
    double momentum, epsilon;  // 0 = Keras' defaults .99 and 1e-3
};
struct node *layer_batch_norm(struct net *net, struct node *x,
                              const struct batch_norm_options *options);

struct node *layer_flatten(struct net *net, struct node *x, const char *name);
struct node *layer_dropout(struct net *net, struct node *x, const char *name, double rate);
struct node *layer_activation(struct net *net, struct node *x, const char *name,
                              enum activation activation);

// ---- Losses and metrics in the graph --------------------------------------------------------------

// Per-example cross-entropy (N) of logits (N, K) and labels (N) int32.
struct node *loss_cross_entropy(struct graph *graph, struct node *logits, struct node *labels,
                                double label_smoothing);
// 1 where the first largest logit is the label, else 0: (N).
struct node *metric_correct(struct graph *graph, struct node *logits, struct node *labels);
// Sum over examples of weight * value: a scalar. With weights 1/count it is the mean.
struct node *weighted_sum(struct graph *graph, struct node *values, struct node *weights);

// ---- Metrics on the host (metrics.c): exact, in double ---------------------------------------------

// True when fewer than k classes have a larger score than the label's: ties count as hits.
bool metric_in_top_k(const float *scores, int classes, int32_t label, int k);
int metric_argmax(const float *scores, int classes);  // the first of equal maxima

struct confusion {
    int classes;
    int64_t *counts;  // [classes * classes], row = true class, column = predicted
};
void confusion_init(struct confusion *confusion, int classes);
void confusion_release(struct confusion *confusion);  // fine on a zeroed struct
void confusion_add(struct confusion *confusion, int32_t label, int predicted);
struct binary_metrics {
    double accuracy, precision, recall, f1, matthews;  // 0/0 is 0
};
struct binary_metrics confusion_binary(const struct confusion *confusion, int positive);

#endif
