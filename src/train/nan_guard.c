// SPDX-License-Identifier: Apache-2.0
// nan_guard.c: when a loss is not finite, finds the first layer whose values are not: the step is run
// once more, node by node, on the reference kernels, with the weights as they were.
#include <math.h>
#include <string.h>

#include "train_impl.h"

static bool all_finite(const struct node *node, const void *data)
{
    int64_t count = shape_count(node->shape);
    for (int64_t i = 0; i < count; i++) {
        double value = node->dtype == DTYPE_F32 ? (double)((const float *)data)[i]
                                                : ((const double *)data)[i];
        if (!isfinite(value)) {
            return false;
        }
    }
    return true;
}

// The value of a source: a feed or a variable (constants have theirs).
static void *source_value(struct session *session, const struct node *node,
                          const struct batch *batch, double rate, void *storage)
{
    struct variable_store store = replicas_store(session->replicas);
    size_t size = node_bytes(node);
    if (node->op == OP_CONST) {
        return node->value;
    }
    if (node->op == OP_VARIABLE) {
        return store.get(store.context, node->variable, storage) == STATUS_OK ? storage : NULL;
    }
    if (strcmp(node->name, "image") == 0) {
        return memcpy(storage, batch->images, size);
    }
    if (strcmp(node->name, "label") == 0) {
        return memcpy(storage, batch->labels, size);
    }
    if (strcmp(node->name, "weight") == 0) {
        for (int64_t i = 0; i < node->shape.dim[0]; i++) {
            ((float *)storage)[i] = i < batch->count ? 1.0f / (float)batch->count : 0;
        }
    } else if (strcmp(node->name, "lr") == 0) {
        *(float *)storage = (float)rate;
    } else if (strcmp(node->name, "step") == 0) {
        *(int64_t *)storage = session->step;
    }
    return storage;  // row: 0
}

static bool check_node(const struct node *node, const void *value, struct text *where)
{
    if (!dtype_is_float(node->dtype) || all_finite(node, value)) {
        return true;
    }
    if (node->op == OP_VARIABLE) {
        text_printf(where, "the variable %s itself", node->variable->name);
    } else {
        text_printf(where, "layer %s (%s, shape %s)", node->layer, op_table[node->op]->name,
                    shape_str(node->shape));
    }
    return false;
}

void find_first_bad(struct session *session, const struct batch *batch, double rate,
                    struct text *where)
{
    const struct graph *graph = &session->train_graph.graph;
    void **values = MEM_NEW_ARRAY(void *, graph->count);
    struct arena arena;
    arena_init(&arena);
    for (int i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        const struct op_def *def = op_table[node->op];
        if (def->writes || node->op == OP_ALL_REDUCE) {
            break;  // the forward and backward pass are through
        }
        values[i] = node->op == OP_CONST ? node->value : arena_alloc(&arena, node_bytes(node));
        const void *in[OP_INPUT_MAX];
        for (int k = 0; k < node->input_count; k++) {
            in[k] = values[node->inputs[k]->id];
        }
        bool known = true;
        if (def->reference) {
            known = def->reference(&(struct op_call){.node = node, .in = in, .out = values[i]}) ==
                    STATUS_OK;
        } else {
            known = source_value(session, node, batch, rate, values[i]) != NULL;
        }
        bool is_rate = node->op == OP_INPUT && strcmp(node->name, "lr") == 0;
        if (!known || (!is_rate && !check_node(node, values[i], where))) {
            break;
        }
    }
    arena_release(&arena);
    mem_free(values);
}
