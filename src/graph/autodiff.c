// SPDX-License-Identifier: Apache-2.0
// autodiff.c: reverse-mode differentiation by the rules of the op table. No op-specific code here.
#include "trainer/graph.h"

// needed[i]: node i lies on a way from one of `wrt` to the loss.
static bool *mark_needed(const struct graph *graph, const struct node *loss,
                         struct node *const *wrt, int count)
{
    bool *needed = MEM_NEW_ARRAY(bool, graph->count);
    for (int i = 0; i < count; i++) {
        needed[wrt[i]->id] = true;
    }
    for (int i = 0; i <= loss->id; i++) {
        const struct node *node = graph->nodes[i];
        for (int k = 0; k < node->input_count && !needed[i]; k++) {
            needed[i] = needed[node->inputs[k]->id];
        }
    }
    return needed;
}

static struct node *sum(struct graph *graph, struct node *a, struct node *b)
{
    return a && b ? GRAPH_NODE(graph, OP_ADD, NULL, a, b) : a ? a : b;
}

// Adds what `node` passes on to its inputs to `adjoint`.
static void propagate(struct graph *graph, struct node *node, struct node **adjoint,
                      const bool *needed)
{
    const struct op_def *def = op_table[node->op];
    struct node *dx[OP_INPUT_MAX] = {NULL};
    if (!def->gradient) {
        return;  // a constant for the loss: argmax, comparisons; sources
    }
    graph->layer = node->layer;  // a gradient belongs to the layer of its forward node
    def->gradient(graph, node, adjoint[node->id], dx);
    for (int k = 0; k < node->input_count; k++) {
        int input = node->inputs[k]->id;
        if (dx[k] && needed[input]) {
            CHECK(shape_equal(dx[k]->shape, node->inputs[k]->shape),
                  "the gradient of %s by input %d has shape %s, the input %s", def->name, k,
                  shape_str(dx[k]->shape), shape_str(node->inputs[k]->shape));
            adjoint[input] = sum(graph, adjoint[input], dx[k]);
        }
    }
}

void graph_gradients(struct graph *graph, struct node *loss, struct node *const *wrt, int count,
                     struct node **gradients)
{
    for (int i = 0; i < count; i++) {
        gradients[i] = NULL;
    }
    if (graph->status != STATUS_OK) {
        return;
    }
    CHECK(loss->shape.rank == 0, "a gradient needs a scalar loss, got %s", shape_str(loss->shape));
    const char *layer = graph->layer;
    bool *needed = mark_needed(graph, loss, wrt, count);
    struct node **adjoint = MEM_NEW_ARRAY(struct node *, graph->count);
    int last = loss->id;  // nodes added below come after the loss
    adjoint[last] = graph_scalar(graph, loss->dtype, 1);
    for (int i = last; i >= 0 && graph->status == STATUS_OK; i--) {
        if (needed[i] && adjoint[i]) {
            propagate(graph, graph->nodes[i], adjoint, needed);
        }
    }
    for (int i = 0; i < count; i++) {
        gradients[i] = adjoint[wrt[i]->id];
    }
    mem_free(adjoint);
    mem_free(needed);
    graph->layer = layer;
}
