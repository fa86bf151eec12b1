// SPDX-License-Identifier: Apache-2.0
// op_shape.c: ops that move elements and change none; they work on every dtype.
#include <string.h>

#include "ops_impl.h"

// Copies `count` elements of `size` bytes; steps in elements.
static void copy_row(char *out, int64_t out_step, const char *in, int64_t in_step, int64_t count,
                     size_t size)
{
    if (out_step == 1 && in_step == 1) {
        memcpy(out, in, (size_t)count * size);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy(out, in, size);
        out += out_step * (int64_t)size;
        in += in_step * (int64_t)size;
    }
}

// Copies elements of `out` from the walk's operand 0, in the order of `out`.
static void gather(const struct op_call *call, struct op_walk walk, int64_t start)
{
    size_t size = dtype_size(call->node->dtype);
    int64_t n = walk.dim[walk.last], bytes = (int64_t)size;
    char *out = call->out;
    do {
        copy_row(out, 1, (const char *)call->in[0] + (start + walk.offset[0]) * bytes,
                 walk.stride[0][walk.last], n, size);
        out += n * bytes;
    } while (op_walk_next(&walk));
}

// Copies all of input `input` to its places in `out`: the walk's operand 0.
static void scatter(const struct op_call *call, int input, struct op_walk walk, int64_t start)
{
    size_t size = dtype_size(call->node->dtype);
    int64_t n = walk.dim[walk.last], bytes = (int64_t)size;
    const char *in = call->in[input];
    do {
        copy_row((char *)call->out + (start + walk.offset[0]) * bytes, walk.stride[0][walk.last],
                 in, 1, n, size);
        in += n * bytes;
    } while (op_walk_next(&walk));
}

// Row-major strides without broadcasting's zeros: the operand is cut out of a larger tensor.
static void dense_strides(struct shape shape, int64_t *stride)
{
    int64_t step = 1;
    for (int i = shape.rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= shape.dim[i];
    }
}

// ---- reshape ------------------------------------------------------------------------------------

static enum status reshape_infer(struct node *node)
{
    struct shape from = node->inputs[0]->shape, to = node->attr.shape;
    if (shape_count(from) != shape_count(to)) {
        return FAIL(ERR_MISMATCH, "reshape: %s has %lld elements, %s has %lld", shape_str(from),
                    (long long)shape_count(from), shape_str(to), (long long)shape_count(to));
    }
    return op_result(node, node->inputs[0]->dtype, to);
}

// dx = dy in the shape of x
static void reshape_gradient(struct graph *graph, struct node *node, struct node *dy,
                             struct node **dx)
{
    dx[0] = op_reshape(graph, dy, node->inputs[0]->shape);
}

static enum status ref_reshape(const struct op_call *call)
{
    memmove(call->out, call->in[0], node_bytes(call->node));  // may share storage
    return STATUS_OK;
}

const struct op_def op_def_RESHAPE = {.name = "reshape",
                                      .min_inputs = 1,
                                      .max_inputs = 1,
                                      .in_place = true,
                                      .infer = reshape_infer,
                                      .gradient = reshape_gradient,
                                      .reference = ref_reshape};

// ---- transpose ----------------------------------------------------------------------------------

static enum status transpose_infer(struct node *node)
{
    struct shape in = node->inputs[0]->shape, out = {.rank = in.rank};
    unsigned seen = 0;
    for (int i = 0; i < in.rank; i++) {
        int axis = node->attr.axis_count == in.rank ? node->attr.axes[i] : -1;
        if (axis < 0 || axis >= in.rank || (seen >> axis & 1)) {
            return FAIL(ERR_MISMATCH,
                        "transpose: entry %d of the permutation is %d, expected each of 0 to %d "
                        "once for %s",
                        i, axis, in.rank - 1, shape_str(in));
        }
        seen |= 1u << axis;
        out.dim[i] = in.dim[axis];
    }
    return op_result(node, node->inputs[0]->dtype, out);
}

// dx = dy under the inverse permutation
static void transpose_gradient(struct graph *graph, struct node *node, struct node *dy,
                               struct node **dx)
{
    struct op_attr attr = {.axis_count = node->attr.axis_count};
    for (int i = 0; i < attr.axis_count; i++) {
        attr.axes[node->attr.axes[i]] = i;
    }
    dx[0] = GRAPH_NODE(graph, OP_TRANSPOSE, &attr, dy);
}

static enum status ref_transpose(const struct op_call *call)
{
    const struct node *node = call->node;
    int64_t stride[SHAPE_RANK_MAX];
    dense_strides(node->inputs[0]->shape, stride);
    struct op_walk walk = op_walk_of(node->shape);
    for (int i = 0; i < node->shape.rank; i++) {
        walk.stride[0][i] = stride[node->attr.axes[i]];
    }
    op_walk_merge(&walk);
    gather(call, walk, 0);
    return STATUS_OK;
}

const struct op_def op_def_TRANSPOSE = {.name = "transpose",
                                        .min_inputs = 1,
                                        .max_inputs = 1,
                                        .infer = transpose_infer,
                                        .gradient = transpose_gradient,
                                        .reference = ref_transpose};

// ---- broadcast ----------------------------------------------------------------------------------

static enum status broadcast_infer(struct node *node)
{
    struct shape from = node->inputs[0]->shape, to = node->attr.shape, both;
    if (!shape_broadcast(from, to, &both) || !shape_equal(both, to)) {
        return FAIL(ERR_MISMATCH, "broadcast: %s does not repeat to %s", shape_str(from),
                    shape_str(to));
    }
    return op_result(node, node->inputs[0]->dtype, to);
}

// dx = dy summed over the repetitions
static void broadcast_gradient(struct graph *graph, struct node *node, struct node *dy,
                               struct node **dx)
{
    dx[0] = op_sum_to(graph, dy, node->inputs[0]->shape);
}

static enum status ref_broadcast(const struct op_call *call)
{
    struct op_walk walk = op_walk_of(call->node->shape);
    op_strides(call->node->inputs[0]->shape, call->node->shape, walk.stride[0]);
    op_walk_merge(&walk);
    gather(call, walk, 0);
    return STATUS_OK;
}

const struct op_def op_def_BROADCAST = {.name = "broadcast",
                                        .min_inputs = 1,
                                        .max_inputs = 1,
                                        .infer = broadcast_infer,
                                        .gradient = broadcast_gradient,
                                        .reference = ref_broadcast};

// ---- slice and pad: each the other's gradient ---------------------------------------------------

// The offset of element `start` and the walk of the inner box of a tensor of shape `outer`.
static int64_t box_walk(struct shape outer, struct shape box, const int64_t *start,
                        struct op_walk *walk)
{
    int64_t offset = 0;
    *walk = op_walk_of(box);
    dense_strides(outer, walk->stride[0]);
    for (int i = 0; i < outer.rank; i++) {
        offset += start[i] * walk->stride[0][i];
    }
    op_walk_merge(walk);
    return offset;
}

static enum status slice_infer(struct node *node)
{
    struct shape in = node->inputs[0]->shape, out = node->attr.shape;
    if (out.rank != in.rank) {
        return FAIL(ERR_MISMATCH, "slice: size %s of input %s, expected the same rank",
                    shape_str(out), shape_str(in));
    }
    for (int i = 0; i < in.rank; i++) {
        if (node->attr.start[i] < 0 || node->attr.start[i] > in.dim[i] - out.dim[i]) {
            return FAIL(ERR_MISMATCH,
                        "slice: dimension %d: elements %lld to %lld of %lld in input %s", i,
                        (long long)node->attr.start[i],
                        (long long)(node->attr.start[i] + out.dim[i] - 1), (long long)in.dim[i],
                        shape_str(in));
        }
    }
    return op_result(node, node->inputs[0]->dtype, out);
}

// dx = dy with zeros around it
static void slice_gradient(struct graph *graph, struct node *node, struct node *dy,
                           struct node **dx)
{
    struct op_attr attr = {0};
    for (int i = 0; i < node->shape.rank; i++) {
        attr.start[i] = node->attr.start[i];
        attr.stop[i] = node->inputs[0]->shape.dim[i] - attr.start[i] - node->shape.dim[i];
    }
    dx[0] = GRAPH_NODE(graph, OP_PAD, &attr, dy);
}

static enum status ref_slice(const struct op_call *call)
{
    const struct node *node = call->node;
    struct op_walk walk;
    int64_t start = box_walk(node->inputs[0]->shape, node->shape, node->attr.start, &walk);
    gather(call, walk, start);
    return STATUS_OK;
}

static enum status pad_infer(struct node *node)
{
    struct shape shape = node->inputs[0]->shape;
    for (int i = 0; i < shape.rank; i++) {
        int64_t before = node->attr.start[i], after = node->attr.stop[i];
        if (before < 0 || after < 0) {
            return FAIL(ERR_MISMATCH, "pad: dimension %d of %s gets %lld before and %lld after, "
                        "expected 0 or more", i, shape_str(shape), (long long)before,
                        (long long)after);
        }
        shape.dim[i] += before + after;
    }
    return op_result(node, node->inputs[0]->dtype, shape);
}

// dx = the part of dy where x lies
static void pad_gradient(struct graph *graph, struct node *node, struct node *dy,
                         struct node **dx)
{
    struct op_attr attr = {.shape = node->inputs[0]->shape};
    memcpy(attr.start, node->attr.start, sizeof attr.start);
    dx[0] = GRAPH_NODE(graph, OP_SLICE, &attr, dy);
}

static enum status ref_pad(const struct op_call *call)
{
    const struct node *node = call->node;
    struct op_walk walk;
    int64_t start = box_walk(node->shape, node->inputs[0]->shape, node->attr.start, &walk);
    memset(call->out, 0, node_bytes(node));
    scatter(call, 0, walk, start);
    return STATUS_OK;
}

const struct op_def op_def_SLICE = {.name = "slice",
                                    .min_inputs = 1,
                                    .max_inputs = 1,
                                    .infer = slice_infer,
                                    .gradient = slice_gradient,
                                    .reference = ref_slice};
const struct op_def op_def_PAD = {.name = "pad",
                                  .min_inputs = 1,
                                  .max_inputs = 1,
                                  .infer = pad_infer,
                                  .gradient = pad_gradient,
                                  .reference = ref_pad};

// ---- concat -------------------------------------------------------------------------------------

static enum status concat_infer(struct node *node)
{
    struct shape shape = node->inputs[0]->shape;
    int axis = node->attr.axes[0];
    if (axis < 0 || axis >= shape.rank) {
        return FAIL(ERR_MISMATCH, "concat: axis %d of %s is not there", axis, shape_str(shape));
    }
    for (int i = 1; i < node->input_count; i++) {
        const struct node *input = node->inputs[i];
        struct shape same = input->shape;
        if (same.rank == shape.rank) {
            same.dim[axis] = shape.dim[axis];
        }
        if (!shape_equal(same, shape) || input->dtype != node->inputs[0]->dtype) {
            return FAIL(ERR_MISMATCH,
                        "concat: input %d is %s %s, input 0 %s %s; expected one dtype and equal "
                        "dimensions but for axis %d",
                        i, dtype_name(input->dtype), shape_str(input->shape),
                        dtype_name(node->inputs[0]->dtype), shape_str(node->inputs[0]->shape),
                        axis);
        }
        shape.dim[axis] += input->shape.dim[axis];
    }
    return op_result(node, node->inputs[0]->dtype, shape);
}

// dx_i = the part of dy that came from input i
static void concat_gradient(struct graph *graph, struct node *node, struct node *dy,
                            struct node **dx)
{
    int axis = node->attr.axes[0];
    struct op_attr attr = {0};
    for (int i = 0; i < node->input_count; i++) {
        attr.shape = node->inputs[i]->shape;
        dx[i] = GRAPH_NODE(graph, OP_SLICE, &attr, dy);
        attr.start[axis] += attr.shape.dim[axis];
    }
}

static enum status ref_concat(const struct op_call *call)
{
    const struct node *node = call->node;
    int64_t start[SHAPE_RANK_MAX] = {0};
    for (int i = 0; i < node->input_count; i++) {
        struct shape box = node->inputs[i]->shape;
        struct op_walk walk;
        int64_t offset = box_walk(node->shape, box, start, &walk);
        scatter(call, i, walk, offset);
        start[node->attr.axes[0]] += box.dim[node->attr.axes[0]];
    }
    return STATUS_OK;
}

const struct op_def op_def_CONCAT = {.name = "concat",
                                     .min_inputs = 1,
                                     .max_inputs = OP_INPUT_MAX,
                                     .infer = concat_infer,
                                     .gradient = concat_gradient,
                                     .reference = ref_concat};
