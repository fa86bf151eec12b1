// SPDX-License-Identifier: Apache-2.0
// op_pool.c: maxima and means over windows of images (N, H, W, C). Padding only moves the windows:
// it is never the maximum, and the mean is over the elements inside the image, as in TensorFlow.
#include <math.h>
#include <string.h>

#include "ops_impl.h"

struct pool {
    int64_t n, h, w, c;  // x (N, H, W, C)
    int64_t p, q;        // y (N, P, Q, C)
    const struct op_attr *attr;
};

// The part of window number i (of N * P * Q) inside its image.
struct box {
    int64_t top, bottom, left, right;  // the last ones exclusive
    int64_t image;                     // offset of the image
    int64_t row, column;               // elements to the next row and column
    double count;
};

static struct pool pool_of(const struct node *node)
{
    struct shape x = node->op == OP_AVG_POOL_GRAD ? node->attr.shape : node->inputs[0]->shape;
    struct shape y = node->op == OP_MAX_POOL_GRAD   ? node->inputs[1]->shape
                     : node->op == OP_AVG_POOL_GRAD ? node->inputs[0]->shape
                                                    : node->shape;
    return (struct pool){x.dim[0], x.dim[1], x.dim[2], x.dim[3], y.dim[1], y.dim[2], &node->attr};
}

static struct box pool_box(const struct pool *s, int64_t i)
{
    const struct op_attr *attr = s->attr;
    int64_t top = i / s->q % s->p * attr->stride[0] - attr->pad_before[0];
    int64_t left = i % s->q * attr->stride[1] - attr->pad_before[1];
    struct box box = {.top = MAX(top, 0),
                      .bottom = MIN(top + attr->window[0], s->h),
                      .left = MAX(left, 0),
                      .right = MIN(left + attr->window[1], s->w),
                      .image = i / (s->p * s->q) * s->h * s->w * s->c,
                      .row = s->w * s->c,
                      .column = s->c};
    box.count = (double)((box.bottom - box.top) * (box.right - box.left));
    return box;
}

#define OP_TEMPLATE "op_pool_ref.h"
#include "op_real.h"
REAL_KERNEL(ref_max_pool)
REAL_KERNEL(ref_max_pool_grad)
REAL_KERNEL(ref_avg_pool)
REAL_KERNEL(ref_avg_pool_grad)

// The shape of y for images x.
static enum status pool_output(const struct node *node, struct shape x, struct shape *y)
{
    const struct op_attr *attr = &node->attr;
    if (x.rank != 4) {
        return FAIL(ERR_MISMATCH, "%s: input %s, expected (N, H, W, C)", op_name(node),
                    shape_str(x));
    }
    *y = x;
    for (int i = 0; i < 2; i++) {
        int window = attr->window[i], before = attr->pad_before[i], after = attr->pad_after[i];
        // Padding of a whole window would make windows without any element.
        if (window < 1 || attr->stride[i] < 1 || before < 0 || after < 0 || before >= window ||
            after >= window) {
            return FAIL(ERR_MISMATCH,
                        "%s: window %d, stride %d, padding %d and %d; expected 1 or more, padding "
                        "smaller than the window",
                        op_name(node), window, attr->stride[i], before, after);
        }
        int64_t size = x.dim[1 + i] + before + after;
        if (window > size) {
            return FAIL(ERR_MISMATCH,
                        "%s: the window has %d elements, the input %s has %lld with padding in "
                        "dimension %d",
                        op_name(node), window, shape_str(x), (long long)size, 1 + i);
        }
        y->dim[1 + i] = (size - window) / attr->stride[i] + 1;
    }
    return STATUS_OK;
}

static enum status pool_infer(struct node *node)
{
    TRY(op_expect_real(node, 1));
    struct shape y;
    TRY(pool_output(node, node->inputs[0]->shape, &y));
    return op_result(node, node->inputs[0]->dtype, y);
}

static enum status pool_grad_infer(struct node *node)
{
    int last = node->input_count - 1;  // dy
    TRY(op_expect_real(node, node->input_count));
    struct shape x = last ? node->inputs[0]->shape : node->attr.shape, y;
    TRY(pool_output(node, x, &y));
    TRY(op_expect_shape(node, last, y, "dy"));
    return op_result(node, node->inputs[0]->dtype, x);
}

// dx = for every window, dy at its first maximum
static void max_pool_gradient(struct graph *graph, struct node *node, struct node *dy,
                              struct node **dx)
{
    dx[0] = GRAPH_NODE(graph, OP_MAX_POOL_GRAD, &node->attr, node->inputs[0], dy);
}

// dx = for every window, dy / elements inside the image at each of them
static void avg_pool_gradient(struct graph *graph, struct node *node, struct node *dy,
                              struct node **dx)
{
    struct op_attr attr = node->attr;
    attr.shape = node->inputs[0]->shape;
    dx[0] = GRAPH_NODE(graph, OP_AVG_POOL_GRAD, &attr, dy);
}

static double pool_flops(const struct node *node)
{
    struct pool s = pool_of(node);
    return (double)(s.n * s.p * s.q * s.c) * node->attr.window[0] * node->attr.window[1];
}

const struct op_def op_def_MAX_POOL = {.name = "max_pool",
                                       .min_inputs = 1,
                                       .max_inputs = 1,
                                       .infer = pool_infer,
                                       .gradient = max_pool_gradient,
                                       .reference = ref_max_pool,
                                       .flops = pool_flops};
const struct op_def op_def_MAX_POOL_GRAD = {.name = "max_pool_grad",
                                            .min_inputs = 2,
                                            .max_inputs = 2,
                                            .infer = pool_grad_infer,
                                            .reference = ref_max_pool_grad,
                                            .flops = pool_flops};
const struct op_def op_def_AVG_POOL = {.name = "avg_pool",
                                       .min_inputs = 1,
                                       .max_inputs = 1,
                                       .infer = pool_infer,
                                       .gradient = avg_pool_gradient,
                                       .reference = ref_avg_pool,
                                       .flops = pool_flops};
const struct op_def op_def_AVG_POOL_GRAD = {.name = "avg_pool_grad",
                                            .min_inputs = 1,
                                            .max_inputs = 1,
                                            .infer = pool_grad_infer,
                                            .reference = ref_avg_pool_grad,
                                            .flops = pool_flops};
