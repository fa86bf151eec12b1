// SPDX-License-Identifier: Apache-2.0
// layer_core.c: dense, flatten, dropout, activation, batch normalisation.
#include <string.h>

#include "layer_impl.h"

struct node *layer_dense(struct net *net, struct node *x, const struct dense_options *options)
{
    struct graph *graph = net->graph;
    struct layer_record *record = layer_begin(net, "Dense", "dense", options->name, x);
    if (!x) {
        return layer_end(net, record, NULL);
    }
    if (x->shape.rank != 2) {
        graph_fail(graph, "expected (N, features), got %s; put a flatten layer before it",
                   shape_str(x->shape));
        return layer_end(net, record, NULL);
    }
    int64_t inputs = x->shape.dim[1];
    struct node *w = layer_variable(net, record, "kernel", SHAPE(inputs, options->units),
                                    VARIABLE_WEIGHT,
                                    (struct initializer){.kind = INIT_GLOROT_UNIFORM,
                                                         .fan_in = inputs,
                                                         .fan_out = options->units});
    struct node *y = GRAPH_NODE(graph, OP_MATMUL, &(struct op_attr){0}, x, w);  // (N, units)
    if (!options->no_bias) {
        struct node *b = layer_variable(net, record, "bias", SHAPE(options->units),
                                        VARIABLE_WEIGHT,
                                        (struct initializer){.kind = INIT_ZEROS});
        y = GRAPH_NODE(graph, OP_ADD, NULL, y, b);
    }
    layer_penalty(net, w, options->l2);
    record->config = arena_printf(
        &graph->arena,
        "{\"name\": \"%s\", \"trainable\": true, \"dtype\": \"float32\", \"units\": %d, "
        "\"activation\": \"%s\", \"use_bias\": %s}",
        record->name, options->units, activation_names()[options->activation],
        options->no_bias ? "false" : "true");
    return layer_end(net, record, apply_activation(net, y, options->activation));
}

struct node *layer_flatten(struct net *net, struct node *x, const char *name)
{
    struct layer_record *record = layer_begin(net, "Flatten", "flatten", name, x);
    if (!x) {
        return layer_end(net, record, NULL);
    }
    int64_t rows = x->shape.dim[0];
    struct op_attr attr = {.shape = SHAPE(rows, shape_count(x->shape) / rows)};
    record->config = arena_printf(&net->graph->arena,
                                  "{\"name\": \"%s\", \"trainable\": true, \"dtype\": "
                                  "\"float32\", \"data_format\": \"channels_last\"}",
                                  record->name);
    return layer_end(net, record, GRAPH_NODE(net->graph, OP_RESHAPE, &attr, x));
}

struct node *layer_dropout(struct net *net, struct node *x, const char *name, double rate)
{
    struct layer_record *record = layer_begin(net, "Dropout", "dropout", name, x);
    record->config = arena_printf(&net->graph->arena,
                                  "{\"name\": \"%s\", \"trainable\": true, \"dtype\": "
                                  "\"float32\", \"rate\": %.17g}",
                                  record->name, rate);
    if (!(rate >= 0 && rate < 1)) {
        graph_fail(net->graph, "the dropout rate is %g, expected 0 or more and less than 1", rate);
    }
    struct node *y = x;
    if (net->training && rate > 0 && x && net->graph->status == STATUS_OK) {
        // Salted by the layer's name: two dropout layers never share their numbers.
        struct op_attr attr = {
            .rate = rate,
            .seed = net->seed,
            .salt = (uint32_t)hash_bytes(HASH_START, record->name, strlen(record->name))};
        y = GRAPH_NODE(net->graph, OP_DROPOUT, &attr, x, net->step, net->row);
    }
    return layer_end(net, record, y);
}

struct node *layer_activation(struct net *net, struct node *x, const char *name,
                              enum activation activation)
{
    struct layer_record *record = layer_begin(net, "Activation", "activation", name, x);
    record->config = arena_printf(&net->graph->arena,
                                  "{\"name\": \"%s\", \"trainable\": true, \"dtype\": "
                                  "\"float32\", \"activation\": \"%s\"}",
                                  record->name, activation_names()[activation]);
    return layer_end(net, record, apply_activation(net, x, activation));
}

// Adds "variable becomes variable * momentum + value * (1 - momentum)" to the step's end.
static void moving_average(struct net *net, struct node *variable, struct node *value,
                           double momentum)
{
    struct graph *graph = net->graph;
    struct node *old = graph_mul_scalar(graph, variable, momentum);
    struct node *new = graph_mul_scalar(graph, value, 1 - momentum);
    struct node *next = GRAPH_NODE(graph, OP_ADD, NULL, old, new);
    if (next) {
        GROW(net->updates, net->update_count, net->update_capacity);
        net->updates[net->update_count++] = (struct net_update){variable->variable, next};
    }
}

// Row `row` of statistics (2, C) as (C).
static struct node *stats_row(struct graph *graph, struct node *stats, int row)
{
    int64_t channels = stats->shape.dim[1];
    struct op_attr slice = {.start = {row, 0}, .shape = SHAPE(1, channels)};
    struct op_attr flat = {.shape = SHAPE(channels)};
    return GRAPH_NODE(graph, OP_RESHAPE, &flat, GRAPH_NODE(graph, OP_SLICE, &slice, stats));
}

struct node *layer_batch_norm(struct net *net, struct node *x,
                              const struct batch_norm_options *options)
{
    struct graph *graph = net->graph;
    struct layer_record *record = layer_begin(net, "BatchNormalization", "batch_normalization",
                                              options->name, x);
    if (!x || graph->status != STATUS_OK) {
        return layer_end(net, record, NULL);
    }
    double momentum = options->momentum ? options->momentum : 0.99;
    struct op_attr attr = {.epsilon = options->epsilon ? options->epsilon : 1e-3,
                           .batch_stats = net->training};
    int64_t channels = x->shape.dim[x->shape.rank - 1];
    struct shape shape = SHAPE(channels);
    struct initializer zeros = {.kind = INIT_ZEROS}, ones = {.kind = INIT_ONES};
    struct node *gamma = layer_variable(net, record, "gamma", shape, VARIABLE_WEIGHT, ones);
    struct node *beta = layer_variable(net, record, "beta", shape, VARIABLE_WEIGHT, zeros);
    struct node *mean = layer_variable(net, record, "moving_mean", shape, VARIABLE_STATISTIC,
                                       zeros);
    struct node *variance = layer_variable(net, record, "moving_variance", shape,
                                           VARIABLE_STATISTIC, ones);
    struct node *stats;  // (2, C): mean, biased variance
    if (net->training) {
        stats = GRAPH_NODE(graph, OP_BATCH_NORM_STATS, &attr, x);
        // TensorFlow's fused kernel keeps the unbiased variance: n / (n - 1), 1 for a single value.
        double n = (double)(shape_count(x->shape) / channels);
        double unbiased = x->shape.rank == 4 && n > 1 ? n / (n - 1) : 1;
        moving_average(net, mean, stats_row(graph, stats, 0), momentum);
        moving_average(net, variance,
                       graph_mul_scalar(graph, stats_row(graph, stats, 1), unbiased), momentum);
    } else {
        struct op_attr row = {.shape = SHAPE(1, channels)}, rows = {.axes = {0}, .axis_count = 1};
        stats = GRAPH_NODE(graph, OP_CONCAT, &rows,
                           GRAPH_NODE(graph, OP_RESHAPE, &row, mean),
                           GRAPH_NODE(graph, OP_RESHAPE, &row, variance));
    }
    record->config = arena_printf(&graph->arena,
                                  "{\"name\": \"%s\", \"trainable\": true, \"dtype\": "
                                  "\"float32\", \"axis\": [%d], \"momentum\": %.17g, "
                                  "\"epsilon\": %.17g, \"center\": true, \"scale\": true}",
                                  record->name, x->shape.rank - 1, momentum, attr.epsilon);
    return layer_end(net, record,
                     GRAPH_NODE(graph, OP_BATCH_NORM, &attr, x, stats, gamma, beta));
}
