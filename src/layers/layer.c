// SPDX-License-Identifier: Apache-2.0
// layer.c: what all layers share: the net, records, names, variables, activations, padding.
#include <string.h>

#include "layer_impl.h"

static const char *const activations[] = {"linear", "relu", "sigmoid", "tanh", "softmax", NULL};

const char *const *activation_names(void)
{
    return activations;
}

bool activation_find(const char *name, enum activation *out)
{
    for (int i = 0; activations[i]; i++) {
        if (strcmp(activations[i], name) == 0) {
            *out = (enum activation)i;
            return true;
        }
    }
    return false;
}

void padding_resolve(enum padding padding, int64_t size, int window, int stride, int dilation,
                     int *before, int *after)
{
    *before = *after = 0;
    if (padding == PADDING_SAME) {
        int64_t extent = (int64_t)(window - 1) * dilation + 1;
        int64_t total = (CEIL_DIV(size, (int64_t)stride) - 1) * stride + extent - size;
        total = MAX(total, 0);
        *before = (int)(total / 2);
        *after = (int)(total - total / 2);
    }
}

void net_init(struct net *net, struct graph *graph, bool training, uint64_t seed)
{
    *net = (struct net){.graph = graph, .training = training, .seed = seed};
}

void net_release(struct net *net)
{
    mem_free(net->layers);
    mem_free(net->updates);
    *net = (struct net){0};
}

struct layer_record *layer_begin(struct net *net, const char *class_name, const char *snake,
                                 const char *name, struct node *x)
{
    struct arena *arena = &net->graph->arena;
    struct layer_record *record = ARENA_NEW(arena, struct layer_record);
    int same = 0;
    for (int i = 0; i < net->layer_count; i++) {
        same += strcmp(net->layers[i]->class_name, class_name) == 0;
    }
    record->name = name   ? arena_strdup(arena, name)
                   : same ? arena_printf(arena, "%s_%d", snake, same)
                          : arena_strdup(arena, snake);
    record->class_name = class_name;
    record->config = "{}";
    record->first_node = net->graph->count;
    net->graph->layer = record->name;
    for (int i = 0; i < net->layer_count; i++) {
        if (strcmp(net->layers[i]->name, record->name) == 0) {
            graph_fail(net->graph, "two layers have the name '%s'; give one another name",
                       record->name);
        }
    }
    if (x) {
        record->input = x->shape;
    }
    GROW(net->layers, net->layer_count, net->layer_capacity);
    net->layers[net->layer_count++] = record;
    return record;
}

struct node *layer_end(struct net *net, struct layer_record *record, struct node *y)
{
    record->end_node = net->graph->count;
    if (y) {
        record->output = y->shape;
    }
    net->graph->layer = "";
    return y;
}

struct node *layer_variable(struct net *net, struct layer_record *record, const char *name,
                            struct shape shape, enum variable_role role,
                            struct initializer init)
{
    struct graph *graph = net->graph;
    if (graph->status != STATUS_OK) {
        return NULL;
    }
    const char *full = arena_printf(&graph->arena, "%s/%s", record->name, name);
    struct variable *variable = variables_get(graph->variables, full, graph->real, shape, role,
                                              role == VARIABLE_WEIGHT, init);
    CHECK(record->weight_count < LAYER_WEIGHT_MAX, "layer %s has too many weights", record->name);
    record->weights[record->weight_count++] = (struct layer_weight){name, variable};
    return graph_variable(graph, variable);
}

struct node *apply_activation(struct net *net, struct node *x, enum activation activation)
{
    static const enum op ops[] = {[ACTIVATION_RELU] = OP_RELU,
                                  [ACTIVATION_SIGMOID] = OP_SIGMOID,
                                  [ACTIVATION_TANH] = OP_TANH,
                                  [ACTIVATION_SOFTMAX] = OP_SOFTMAX};
    if (activation == ACTIVATION_NONE || !x) {
        return x;
    }
    if (activation == ACTIVATION_SOFTMAX) {
        net->logits = x;
    }
    return GRAPH_NODE(net->graph, ops[activation], NULL, x);
}

void layer_penalty(struct net *net, struct node *weight, double l2)
{
    struct graph *graph = net->graph;
    if (l2 == 0 || !weight) {
        return;
    }
    struct node *square = GRAPH_NODE(graph, OP_SQUARE, NULL, weight);
    struct node *term = graph_mul_scalar(graph, graph_sum_all(graph, square), l2);
    net->penalty = net->penalty ? GRAPH_NODE(graph, OP_ADD, NULL, net->penalty, term) : term;
}
