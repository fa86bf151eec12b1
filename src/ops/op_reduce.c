// SPDX-License-Identifier: Apache-2.0
// op_reduce.c: sums and maxima over dimensions, argmax.
#include <math.h>

#include "ops_impl.h"

// The shape of the result with every reduced dimension kept as 1.
static struct shape kept_shape(const struct node *node)
{
    struct shape shape = node->inputs[0]->shape;
    for (int i = 0; i < node->attr.axis_count; i++) {
        shape.dim[node->attr.axes[i]] = 1;
    }
    for (int i = 0; i < shape.rank && !node->attr.axis_count; i++) {
        shape.dim[i] = 1;
    }
    return shape;
}

static struct op_walk reduce_walk(const struct node *node)
{
    struct shape in = node->inputs[0]->shape;
    struct op_walk walk = op_walk_of(in);
    op_strides(kept_shape(node), in, walk.stride[0]);
    op_walk_merge(&walk);
    return walk;
}

#define OP_TEMPLATE "op_reduce_ref.h"
#include "op_real.h"
REAL_KERNEL(ref_reduce_sum)
REAL_KERNEL(ref_reduce_max)
REAL_KERNEL(ref_argmax)

static enum status reduce_infer(struct node *node)
{
    TRY(op_expect_real(node, 1));
    struct shape in = node->inputs[0]->shape, out = {0};
    bool reduced[SHAPE_RANK_MAX] = {false};
    for (int i = 0; i < node->attr.axis_count; i++) {
        int axis = node->attr.axes[i];
        if (axis < 0 || axis >= in.rank || reduced[axis]) {
            return FAIL(ERR_MISMATCH, "%s: axis %d of %s is %s", op_name(node), axis,
                        shape_str(in), axis < 0 || axis >= in.rank ? "not there" : "named twice");
        }
        reduced[axis] = true;
    }
    for (int i = 0; i < in.rank; i++) {
        bool gone = reduced[i] || node->attr.axis_count == 0;
        if (!gone || node->attr.keep_dims) {
            out.dim[out.rank++] = gone ? 1 : in.dim[i];
        }
    }
    return op_result(node, node->inputs[0]->dtype, out);
}

// dx = dy, repeated along the reduced dimensions
static void reduce_sum_gradient(struct graph *graph, struct node *node, struct node *dy,
                                struct node **dx)
{
    struct op_attr attr = {.shape = node->inputs[0]->shape};
    dx[0] = GRAPH_NODE(graph, OP_BROADCAST, &attr, op_reshape(graph, dy, kept_shape(node)));
}

// dx = (x == y) * dy / number of equals, as in TensorFlow
static void reduce_max_gradient(struct graph *graph, struct node *node, struct node *dy,
                                struct node **dx)
{
    struct shape kept = kept_shape(node);
    struct op_attr attr = node->attr;
    attr.keep_dims = true;
    struct node *hit = NODE(EQUAL, node->inputs[0], op_reshape(graph, node, kept));
    struct node *hits = GRAPH_NODE(graph, OP_REDUCE_SUM, &attr, hit);
    dx[0] = NODE(MUL, hit, NODE(DIV, op_reshape(graph, dy, kept), hits));
}

static enum status argmax_infer(struct node *node)
{
    TRY(op_expect_real(node, 1));
    struct shape shape = node->inputs[0]->shape;
    if (shape.rank < 1) {
        return FAIL(ERR_MISMATCH, "argmax: the input is a scalar, expected rank 1 or more");
    }
    shape.dim[--shape.rank] = 0;
    return op_result(node, DTYPE_I32, shape);
}

static double reduce_flops(const struct node *node)
{
    return (double)shape_count(node->inputs[0]->shape);
}

const struct op_def op_def_REDUCE_SUM = {.name = "reduce_sum",
                                         .min_inputs = 1,
                                         .max_inputs = 1,
                                         .infer = reduce_infer,
                                         .gradient = reduce_sum_gradient,
                                         .reference = ref_reduce_sum,
                                         .flops = reduce_flops};
const struct op_def op_def_REDUCE_MAX = {.name = "reduce_max",
                                         .min_inputs = 1,
                                         .max_inputs = 1,
                                         .infer = reduce_infer,
                                         .gradient = reduce_max_gradient,
                                         .reference = ref_reduce_max,
                                         .flops = reduce_flops};
const struct op_def op_def_ARGMAX = {.name = "argmax",
                                     .min_inputs = 1,
                                     .max_inputs = 1,
                                     .infer = argmax_infer,
                                     .reference = ref_argmax,
                                     .flops = reduce_flops};
