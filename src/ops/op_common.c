// SPDX-License-Identifier: Apache-2.0
// op_common.c: what the families of ops share: checks of shape rules, bricks of gradient rules,
// walks over strided operands.
#include "ops_impl.h"

const char *op_name(const struct node *node)
{
    return op_table[node->op]->name;
}

enum status op_expect_real(const struct node *node, int count)
{
    enum dtype dtype = node->inputs[0]->dtype;
    if (!dtype_is_float(dtype)) {
        return FAIL(ERR_MISMATCH, "%s: input 0 is %s, expected float32 or float64", op_name(node),
                    dtype_name(dtype));
    }
    for (int i = 1; i < count; i++) {
        if (node->inputs[i]->dtype != dtype) {
            return FAIL(ERR_MISMATCH, "%s: input %d is %s, expected %s as input 0", op_name(node),
                        i, dtype_name(node->inputs[i]->dtype), dtype_name(dtype));
        }
    }
    return STATUS_OK;
}

enum status op_expect_rank(const struct node *node, int input, int rank, const char *what,
                           const char *dims)
{
    struct shape shape = node->inputs[input]->shape;
    if (shape.rank != rank) {
        return FAIL(ERR_MISMATCH, "%s: %s has shape %s, expected %s", op_name(node), what,
                    shape_str(shape), dims);
    }
    return STATUS_OK;
}

enum status op_expect_shape(const struct node *node, int input, struct shape shape,
                            const char *what)
{
    if (!shape_equal(node->inputs[input]->shape, shape)) {
        return FAIL(ERR_MISMATCH, "%s: %s has shape %s, expected %s", op_name(node), what,
                    shape_str(node->inputs[input]->shape), shape_str(shape));
    }
    return STATUS_OK;
}

enum status op_expect_scalar(const struct node *node, int input, enum dtype dtype,
                             const char *what)
{
    const struct node *x = node->inputs[input];
    if (x->shape.rank != 0 || x->dtype != dtype) {
        return FAIL(ERR_MISMATCH, "%s: %s is %s %s, expected a scalar of %s", op_name(node), what,
                    dtype_name(x->dtype), shape_str(x->shape), dtype_name(dtype));
    }
    return STATUS_OK;
}

enum status op_result(struct node *node, enum dtype dtype, struct shape shape)
{
    for (int i = 0; i < shape.rank; i++) {
        if (shape.dim[i] < 1) {
            return FAIL(ERR_MISMATCH,
                        "%s: the output would have shape %s: nothing is left in dimension %d",
                        op_name(node), shape_str(shape), i);
        }
    }
    node->dtype = dtype;
    node->shape = shape;
    return STATUS_OK;
}

enum status op_infer_like(struct node *node)
{
    TRY(op_expect_real(node, 1));
    return op_result(node, node->inputs[0]->dtype, node->inputs[0]->shape);
}

struct node *op_number(struct graph *graph, const struct node *like, double value)
{
    return graph_scalar(graph, like->dtype, value);
}

struct node *op_reshape(struct graph *graph, struct node *x, struct shape shape)
{
    if (x && shape_equal(x->shape, shape)) {
        return x;
    }
    return GRAPH_NODE(graph, OP_RESHAPE, &(struct op_attr){.shape = shape}, x);
}

struct node *op_sum_to(struct graph *graph, struct node *dy, struct shape shape)
{
    if (!dy) {
        return NULL;
    }
    struct op_attr attr = {.keep_dims = true};
    int missing = dy->shape.rank - shape.rank;  // dimensions that broadcasting put in front
    for (int i = 0; i < dy->shape.rank; i++) {
        int64_t had = i < missing ? 1 : shape.dim[i - missing];
        if (had != dy->shape.dim[i]) {
            attr.axes[attr.axis_count++] = i;
        }
    }
    if (attr.axis_count) {
        dy = GRAPH_NODE(graph, OP_REDUCE_SUM, &attr, dy);
    }
    return op_reshape(graph, dy, shape);
}

struct op_walk op_walk_of(struct shape shape)
{
    struct op_walk walk = {.last = MAX(shape.rank, 1) - 1, .dim = {1}};
    for (int i = 0; i < shape.rank; i++) {
        walk.dim[i] = shape.dim[i];
    }
    return walk;
}

void op_strides(struct shape operand, struct shape shape, int64_t *stride)
{
    int missing = shape.rank - operand.rank;
    int64_t step = 1;
    for (int i = operand.rank - 1; i >= 0; i--) {
        stride[i + missing] = operand.dim[i] == 1 ? 0 : step;
        step *= operand.dim[i];
    }
    for (int i = 0; i < missing; i++) {
        stride[i] = 0;
    }
}

void op_walk_merge(struct op_walk *walk)
{
    int last = 0;
    for (int i = 1; i <= walk->last; i++) {
        int64_t n = walk->dim[i];
        bool even = walk->dim[last] == 1 || n == 1;
        even = even || (walk->stride[0][last] == n * walk->stride[0][i] &&
                        walk->stride[1][last] == n * walk->stride[1][i]);
        last += !even;
        bool keep = even && n == 1;  // a dimension of 1 has no stride of its own
        for (int k = 0; k < 2 && !keep; k++) {
            walk->stride[k][last] = walk->stride[k][i];
        }
        walk->dim[last] = even ? walk->dim[last] * n : n;
    }
    walk->last = last;
}

bool op_walk_next(struct op_walk *walk)
{
    for (int i = walk->last - 1; i >= 0; i--) {
        walk->offset[0] += walk->stride[0][i];
        walk->offset[1] += walk->stride[1][i];
        if (++walk->index[i] < walk->dim[i]) {
            return true;
        }
        walk->offset[0] -= walk->dim[i] * walk->stride[0][i];
        walk->offset[1] -= walk->dim[i] * walk->stride[1][i];
        walk->index[i] = 0;
    }
    return false;
}
