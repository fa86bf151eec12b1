// SPDX-License-Identifier: Apache-2.0
// ref_backend.c: runs a graph node by node with the reference kernels. Complete by construction: an
// op works here on the day it is defined. Slow, and the measure for every other backend.
#include <string.h>

#include "trainer/backend.h"

struct device {
    const struct collective *collective;
};

struct state {
    void **data;   // [variables->count]
    void *slab;
    size_t slab_size;
};

struct exec {
    struct device *device;
    const struct graph *graph;
    bool *live;
    void **data;   // [graph->count], where each node's value lies
    void *slab;
    size_t slab_size;
};

static int ref_device_count(const char **reason)
{
    *reason = NULL;
    return 1;
}

static enum status ref_open(const struct device_options *options, struct device **out)
{
    *out = MEM_NEW(struct device);
    (*out)->collective = options->collective;
    return STATUS_OK;
}

static void ref_close(struct device *device)
{
    mem_free(device);
}

static const char *ref_describe(const struct device *device)
{
    (void)device;
    return "reference kernels, 1 thread";
}

static size_t variable_bytes(const struct variable *variable)
{
    return (size_t)shape_count(variable->shape) * dtype_size(variable->dtype);
}

static enum status ref_state_new(struct device *device, const struct variables *variables,
                                 struct state **out)
{
    (void)device;
    struct state *state = MEM_NEW(struct state);
    struct plan_item *items = MEM_NEW_ARRAY(struct plan_item, variables->count);
    for (int i = 0; i < variables->count; i++) {
        items[i].size = variable_bytes(variables->items[i]);  // all live at once
    }
    state->slab_size = plan_place(items, variables->count);
    state->data = MEM_NEW_ARRAY(void *, variables->count);
    enum status status = mem_slab_new(state->slab_size, "the variables", &state->slab);
    for (int i = 0; i < variables->count && status == STATUS_OK; i++) {
        state->data[i] = (char *)state->slab + items[i].offset;
    }
    mem_free(items);
    if (status != STATUS_OK) {
        mem_free(state->data);
        mem_free(state);
        state = NULL;
    }
    *out = state;
    return status;
}

static void ref_state_free(struct state *state)
{
    if (state) {
        mem_slab_free(state->slab, state->slab_size);
        mem_free(state->data);
        mem_free(state);
    }
}

static enum status ref_state_put(struct state *state, const struct variable *variable,
                                 const void *data)
{
    memcpy(state->data[variable->id], data, variable_bytes(variable));
    return STATUS_OK;
}

static enum status ref_state_get(const struct state *state, const struct variable *variable,
                                 void *data)
{
    memcpy(data, state->data[variable->id], variable_bytes(variable));
    return STATUS_OK;
}

static const char *ref_refuses(const struct node *node)
{
    (void)node;
    return NULL;
}

// Lifetimes for the plan: from the node to its last reader; fetches to the end.
static void plan_nodes(struct exec *exec, struct plan_item *items)
{
    const struct graph *graph = exec->graph;
    for (int i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        items[i].first = items[i].last = i;
        bool own = op_table[node->op]->reference && !op_table[node->op]->writes;
        items[i].size = own && exec->live[i] ? node_bytes(node) : 0;
        for (int k = 0; k < node->input_count; k++) {
            items[node->inputs[k]->id].last = i;
        }
    }
    for (int i = 0; i < graph->output_count; i++) {
        items[graph->outputs[i]->id].last = graph->count;
    }
}

static void ref_exec_free(struct exec *exec)
{
    if (exec) {
        mem_slab_free(exec->slab, exec->slab_size);
        mem_free(exec->live);
        mem_free(exec->data);
        mem_free(exec);
    }
}

static enum status ref_compile(struct device *device, const struct graph *graph,
                               struct state *state, struct exec **out)
{
    *out = NULL;
    TRY(graph_verify(graph));
    struct exec *exec = MEM_NEW(struct exec);
    exec->device = device;
    exec->graph = graph;
    exec->live = graph_live(graph);
    exec->data = MEM_NEW_ARRAY(void *, graph->count);
    struct plan_item *items = MEM_NEW_ARRAY(struct plan_item, graph->count);
    plan_nodes(exec, items);
    exec->slab_size = plan_place(items, graph->count);
    enum status status = mem_slab_new(exec->slab_size, "the activations", &exec->slab);
    for (int i = 0; i < graph->count && status == STATUS_OK; i++) {
        const struct node *node = graph->nodes[i];
        exec->data[i] = node->op == OP_CONST ? node->value
                        : node->variable     ? state->data[node->variable->id]
                                             : (char *)exec->slab + items[i].offset;
    }
    mem_free(items);
    if (status != STATUS_OK) {
        ref_exec_free(exec);
        return status;
    }
    *out = exec;
    return STATUS_OK;
}

static enum status ref_run(struct exec *exec, const void *const *feeds, void *const *fetches)
{
    const struct graph *graph = exec->graph;
    for (int i = 0; i < graph->input_count; i++) {
        exec->data[graph->inputs[i]->id] = (void *)(uintptr_t)feeds[i];  // read only
    }
    for (int i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        if (!exec->live[i] || !op_table[node->op]->reference) {
            continue;
        }
        const void *in[OP_INPUT_MAX];
        for (int k = 0; k < node->input_count; k++) {
            in[k] = exec->data[node->inputs[k]->id];
        }
        enum status status = op_table[node->op]->reference(&(struct op_call){
            .node = node, .in = in, .out = exec->data[i], .collective = exec->device->collective});
        if (status != STATUS_OK) {
            return error_prefix(status, "layer %s", node->layer);
        }
    }
    for (int i = 0; i < graph->output_count; i++) {
        if (fetches[i]) {
            const struct node *node = graph->outputs[i];
            memcpy(fetches[i], exec->data[node->id], node_bytes(node));
        }
    }
    return STATUS_OK;
}

static size_t ref_exec_bytes(const struct exec *exec)
{
    return exec->slab_size;
}

static void ref_exec_report(const struct exec *exec, struct text *out)
{
    (void)exec;
    text_append(out, "Every op runs on its reference kernel.\n");
}

const struct backend_def ref_backend = {
    .name = "ref",
    .help = "plain C loops, one thread: the specification",
    .device_count = ref_device_count,
    .open = ref_open,
    .close = ref_close,
    .describe = ref_describe,
    .state_new = ref_state_new,
    .state_free = ref_state_free,
    .state_put = ref_state_put,
    .state_get = ref_state_get,
    .refuses = ref_refuses,
    .compile = ref_compile,
    .exec_free = ref_exec_free,
    .run = ref_run,
    .exec_bytes = ref_exec_bytes,
    .exec_report = ref_exec_report,
};
