// SPDX-License-Identifier: Apache-2.0
// export_net.h: a model with values in plain memory, for the tests of checkpoints and SavedModels: no
// backend needed.
#ifndef TRAINER_EXPORT_NET_H
#define TRAINER_EXPORT_NET_H

#include "test.h"

#include "trainer/export.h"
#include "trainer/file.h"
#include "trainer/io.h"

struct export_net {
    struct graph graph;
    struct variables variables;
    struct net net;
    struct config *config;
    struct node *input, *output;
    void **data;        // [variables]
    int puts;           // how many values came from outside
};

typedef struct node *build_layers(struct net *net, struct node *x);

// The model of the reference checkpoints.
static inline struct node *build_narrow(struct net *net, struct node *x)
{
    x = layer_conv2d(net, x, &(struct conv2d_options){
        .filters = 8, .kernel = {3, 3}, .activation = ACTIVATION_RELU});
    x = layer_max_pool2d(net, x, &(struct pool2d_options){.window = {2, 2}});
    x = layer_flatten(net, x, NULL);
    x = layer_dense(net, x, &(struct dense_options){.units = 16, .activation = ACTIVATION_RELU});
    return layer_dense(net, x, &(struct dense_options){.units = 10});
}

static inline size_t variable_bytes(const struct variable *variable)
{
    return (size_t)shape_count(variable->shape) * dtype_size(variable->dtype);
}

// Every element its own number, exact in float32; another `seed` gives others.
static inline void export_net_fill(struct export_net *n, int seed)
{
    for (int i = 0; i < n->variables.count; i++) {
        float *data = n->data[i];
        for (int64_t k = 0; k < shape_count(n->variables.items[i]->shape); k++) {
            data[k] = (float)(seed + i) + (float)(k % 4096) / 4096;
        }
    }
}

// With an optimizer the graph is that of a training step, so that the slots exist.
static inline void export_net_open(struct export_net *n, build_layers *build, struct shape image,
                                   const char *optimizer, const char *momentum)
{
    *n = (struct export_net){.config = config_new()};
    config_declare(n->config, optimizer_fields, optimizer_field_count);
    variables_init(&n->variables);
    graph_init(&n->graph, &n->variables, DTYPE_F32);
    net_init(&n->net, &n->graph, optimizer != NULL, 0);
    n->net.step = graph_input(&n->graph, "step", DTYPE_I64, shape_scalar());
    n->net.row = graph_input(&n->graph, "row", DTYPE_I64, shape_scalar());
    n->input = graph_input(&n->graph, "image", DTYPE_F32, image);
    n->output = build(&n->net, n->input);
    if (optimizer) {
        struct variable *weights[32];
        struct node *wrt[32], *gradients[32], *labels, *lr;
        int count = 0;
        config_default(n->config, "model.optimizer.name", optimizer);
        config_default(n->config, "model.optimizer.momentum", momentum);
        labels = graph_input(&n->graph, "label", DTYPE_I32, SHAPE(image.dim[0]));
        lr = graph_input(&n->graph, "lr", DTYPE_F32, shape_scalar());
        for (int i = 0; i < n->variables.count; i++) {
            if (n->variables.items[i]->role == VARIABLE_WEIGHT) {
                weights[count] = n->variables.items[i];
                wrt[count++] = graph_variable(&n->graph, n->variables.items[i]);
            }
        }
        struct node *loss =
            graph_sum_all(&n->graph, loss_cross_entropy(&n->graph, n->output, labels, 0));
        graph_gradients(&n->graph, loss, wrt, count, gradients);
        optimizer_apply(&n->graph, n->config, weights, gradients, count, lr, n->net.step);
    }
    assert_ok(graph_check(&n->graph));
    n->data = calloc((size_t)n->variables.count, sizeof *n->data);
    for (int i = 0; i < n->variables.count; i++) {
        n->data[i] = calloc(1, variable_bytes(n->variables.items[i]));
    }
}

static inline void export_net_close(struct export_net *n)
{
    for (int i = 0; i < n->variables.count; i++) {
        free(n->data[i]);
    }
    free(n->data);
    net_release(&n->net);
    graph_release(&n->graph);
    variables_release(&n->variables);
    config_free(n->config);
}

static inline enum status export_net_get(void *context, const struct variable *variable, void *data)
{
    const struct export_net *n = context;
    memcpy(data, n->data[variable->id], variable_bytes(variable));
    return STATUS_OK;
}

static inline enum status export_net_put(void *context, const struct variable *variable,
                                         const void *data)
{
    struct export_net *n = context;
    memcpy(n->data[variable->id], data, variable_bytes(variable));
    n->puts++;
    return STATUS_OK;
}

static inline struct variable_store export_net_store(struct export_net *n)
{
    return (struct variable_store){n, export_net_get, export_net_put};
}

// ---- Folders ----------------------------------------------------------------------------------------

static inline void remove_tree(const char *path)
{
    char **names, below[512];
    int count;
    assert_ok(file_list(path, &names, &count));
    for (int i = 0; i < count; i++) {
        snprintf(below, sizeof below, "%s/%s", path, names[i]);
        if (file_is_directory(below)) {
            remove_tree(below);
        } else {
            assert_ok(file_remove(below));
        }
    }
    file_list_free(names, count);
    assert_int_equal(rmdir(path), 0);
}

static inline int count_names(const char *directory)
{
    char **names;
    int count;
    assert_ok(file_list(directory, &names, &count));
    file_list_free(names, count);
    return count;
}

#endif
