// SPDX-License-Identifier: Apache-2.0
// op_conv.c: convolution over images (N, H, W, C) with filters (R, S, C / groups, K), any stride,
// dilation, padding and number of groups, and its gradients by the images and by the filters.
#include <string.h>

#include "ops_impl.h"

struct conv {
    int64_t n, h, w, c;        // x (N, H, W, C)
    int64_t p, q, k;           // y (N, P, Q, K)
    int64_t r, s;              // w (R, S, C / groups, K)
    int64_t group_c, group_k;  // channels of a group
    const struct op_attr *attr;
};

// The shapes of x, w and y, wherever the op has them: one is the output.
static void conv_shapes(const struct node *node, struct shape *x, struct shape *w,
                        struct shape *y)
{
    *x = node->op == OP_CONV2D_DX ? node->attr.shape : node->inputs[0]->shape;
    *w = node->op == OP_CONV2D_DW ? node->attr.shape : node->inputs[1]->shape;
    *y = node->op == OP_CONV2D ? node->shape : node->inputs[node->op == OP_CONV2D_DW]->shape;
}

static struct conv conv_of(const struct node *node)
{
    struct shape x, w, y;
    conv_shapes(node, &x, &w, &y);
    int groups = node->attr.groups;
    return (struct conv){.n = x.dim[0],
                         .h = x.dim[1],
                         .w = x.dim[2],
                         .c = x.dim[3],
                         .p = y.dim[1],
                         .q = y.dim[2],
                         .k = y.dim[3],
                         .r = w.dim[0],
                         .s = w.dim[1],
                         .group_c = x.dim[3] / groups,
                         .group_k = y.dim[3] / groups,
                         .attr = &node->attr};
}

#define OP_TEMPLATE "op_conv_ref.h"
#include "op_real.h"
REAL_KERNEL(ref_conv2d)
REAL_KERNEL(ref_conv2d_dx)
REAL_KERNEL(ref_conv2d_dw)

static enum status check_attributes(const struct node *node)
{
    const struct op_attr *attr = &node->attr;
    for (int i = 0; i < 2; i++) {
        if (attr->stride[i] < 1 || attr->dilation[i] < 1 || attr->groups < 1 ||
            attr->pad_before[i] < 0 || attr->pad_after[i] < 0) {
            return FAIL(ERR_MISMATCH,
                        "%s: stride %d, dilation %d, groups %d, padding %d and %d; expected 1 or "
                        "more, padding 0 or more",
                        op_name(node), attr->stride[i], attr->dilation[i], attr->groups,
                        attr->pad_before[i], attr->pad_after[i]);
        }
    }
    return STATUS_OK;
}

// The shape of y for images x and filters w; also sets attr.window.
static enum status conv_output(struct node *node, struct shape x, struct shape w,
                               struct shape *y)
{
    struct op_attr *attr = &node->attr;
    TRY(check_attributes(node));
    if (x.rank != 4 || w.rank != 4) {
        return FAIL(ERR_MISMATCH,
                    "%s: input %s and filter %s, expected (N, H, W, C) and (R, S, C / groups, K)",
                    op_name(node), shape_str(x), shape_str(w));
    }
    if (x.dim[3] != w.dim[2] * attr->groups) {
        return FAIL(ERR_MISMATCH,
                    "%s: input has %lld channels, the filter expects %lld: %s and %s",
                    op_name(node), (long long)x.dim[3], (long long)(w.dim[2] * attr->groups),
                    shape_str(x), shape_str(w));
    }
    if (w.dim[3] % attr->groups != 0) {
        return FAIL(ERR_MISMATCH, "%s: %lld filters do not divide into %d groups: %s",
                    op_name(node), (long long)w.dim[3], attr->groups, shape_str(w));
    }
    *y = SHAPE(x.dim[0], 0, 0, w.dim[3]);
    for (int i = 0; i < 2; i++) {
        int64_t reach = (w.dim[i] - 1) * attr->dilation[i] + 1;
        int64_t size = x.dim[1 + i] + attr->pad_before[i] + attr->pad_after[i];
        if (reach > size) {
            return FAIL(ERR_MISMATCH,
                        "%s: the filter reaches over %lld elements, the input %s has %lld with "
                        "padding in dimension %d",
                        op_name(node), (long long)reach, shape_str(x), (long long)size, 1 + i);
        }
        attr->window[i] = (int)w.dim[i];
        y->dim[1 + i] = (size - reach) / attr->stride[i] + 1;
    }
    return STATUS_OK;
}

static enum status conv2d_infer(struct node *node)
{
    TRY(op_expect_real(node, 2));
    struct shape y;
    TRY(conv_output(node, node->inputs[0]->shape, node->inputs[1]->shape, &y));
    return op_result(node, node->inputs[0]->dtype, y);
}

static enum status conv2d_grad_infer(struct node *node)
{
    TRY(op_expect_real(node, 2));
    struct shape x, w, dy, y;
    conv_shapes(node, &x, &w, &dy);
    TRY(conv_output(node, x, w, &y));
    TRY(op_expect_shape(node, node->op == OP_CONV2D_DW, y, "dy"));
    return op_result(node, node->inputs[0]->dtype, node->attr.shape);
}

// dx[n,h,w,c] = sum of dy[n,p,q,k] * w[r,s,c,k], dw[r,s,c,k] = sum of x[n,h,w,c] * dy[n,p,q,k] over
// all with h = p * stride - pad + r * dilation, and w likewise
static void conv2d_gradient(struct graph *graph, struct node *node, struct node *dy,
                            struct node **dx)
{
    struct node *x = node->inputs[0], *w = node->inputs[1];
    struct op_attr attr = node->attr;
    attr.shape = x->shape;
    dx[0] = GRAPH_NODE(graph, OP_CONV2D_DX, &attr, dy, w);
    attr.shape = w->shape;
    dx[1] = GRAPH_NODE(graph, OP_CONV2D_DW, &attr, x, dy);
}

static double conv_flops(const struct node *node)
{
    struct conv s = conv_of(node);
    return 2.0 * (double)(s.n * s.p * s.q) * (double)(s.k * s.r * s.s * s.group_c);
}

const struct op_def op_def_CONV2D = {.name = "conv2d",
                                     .min_inputs = 2,
                                     .max_inputs = 2,
                                     .infer = conv2d_infer,
                                     .gradient = conv2d_gradient,
                                     .reference = ref_conv2d,
                                     .flops = conv_flops};
const struct op_def op_def_CONV2D_DX = {.name = "conv2d_dx",
                                        .min_inputs = 2,
                                        .max_inputs = 2,
                                        .infer = conv2d_grad_infer,
                                        .reference = ref_conv2d_dx,
                                        .flops = conv_flops};
const struct op_def op_def_CONV2D_DW = {.name = "conv2d_dw",
                                        .min_inputs = 2,
                                        .max_inputs = 2,
                                        .infer = conv2d_grad_infer,
                                        .reference = ref_conv2d_dw,
                                        .flops = conv_flops};
