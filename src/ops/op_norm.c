// SPDX-License-Identifier: Apache-2.0
// op_norm.c: batch normalisation over all but the last dimension (Ioffe and Szegedy 2015), with the
// statistics as a tensor of their own, so that moving ones and those of the batch go the same way.
#include <math.h>

#include "ops_impl.h"

static int64_t channels(const struct node *x)
{
    return x->shape.dim[x->shape.rank - 1];
}

static int64_t row_count(const struct node *x)
{
    return shape_count(x->shape) / channels(x);
}

#define OP_TEMPLATE "op_norm_ref.h"
#include "op_real.h"
REAL_KERNEL(ref_batch_norm_stats)
REAL_KERNEL(ref_batch_norm)
REAL_KERNEL(ref_batch_norm_dparam)
REAL_KERNEL(ref_batch_norm_dx)

// x is real with channels, and all inputs have its dtype.
static enum status expect_channels(const struct node *node)
{
    TRY(op_expect_real(node, node->input_count));
    if (node->inputs[0]->shape.rank < 1) {
        return FAIL(ERR_MISMATCH, "%s: the input is a scalar, expected channels in its last "
                    "dimension", op_name(node));
    }
    return STATUS_OK;
}

static enum status stats_infer(struct node *node)
{
    TRY(expect_channels(node));
    return op_result(node, node->inputs[0]->dtype, SHAPE(2, channels(node->inputs[0])));
}

static enum status batch_norm_infer(struct node *node)
{
    TRY(expect_channels(node));
    int64_t c = channels(node->inputs[0]);
    TRY(op_expect_shape(node, 1, SHAPE(2, c), "the statistics (mean, variance)"));
    TRY(op_expect_shape(node, 2, SHAPE(c), "gamma"));
    TRY(op_expect_shape(node, 3, SHAPE(c), "beta"));
    return op_result(node, node->inputs[0]->dtype, node->inputs[0]->shape);
}

static enum status dparam_infer(struct node *node)
{
    TRY(expect_channels(node));
    struct shape stats = SHAPE(2, channels(node->inputs[0]));
    TRY(op_expect_shape(node, 1, stats, "the statistics (mean, variance)"));
    TRY(op_expect_shape(node, 2, node->inputs[0]->shape, "dy"));
    return op_result(node, node->inputs[0]->dtype, stats);
}

static enum status dx_infer(struct node *node)
{
    TRY(expect_channels(node));
    int64_t c = channels(node->inputs[0]);
    TRY(op_expect_shape(node, 1, SHAPE(2, c), "the statistics (mean, variance)"));
    TRY(op_expect_shape(node, 2, SHAPE(c), "gamma"));
    TRY(op_expect_shape(node, 3, node->inputs[0]->shape, "dy"));
    TRY(op_expect_shape(node, 4, SHAPE(2, c), "the gradient of gamma and beta"));
    return op_result(node, node->inputs[0]->dtype, node->inputs[0]->shape);
}

static struct node *stats_row(struct graph *graph, struct node *pair, int row, struct shape shape)
{
    struct op_attr attr = {.start = {row, 0}, .shape = SHAPE(1, shape.dim[0])};
    return op_reshape(graph, GRAPH_NODE(graph, OP_SLICE, &attr, pair), shape);
}

// e = rsqrt(variance + epsilon); dgamma = sum(dy * (x - mean) * e), dbeta = sum(dy) over the rows;
// dx = gamma * e * dy, and with the batch's own statistics (which then have no gradient themselves)
// dx = gamma * e * (dy - (dbeta + (x - mean) * e * dgamma) / rows)
static void batch_norm_gradient(struct graph *graph, struct node *node, struct node *dy,
                                struct node **dx)
{
    struct node *x = node->inputs[0], *stats = node->inputs[1], *gamma = node->inputs[2];
    struct node *dparam =
        GRAPH_NODE(graph, OP_BATCH_NORM_DPARAM, &node->attr, x, stats, dy);  // (2, C)
    dx[0] = GRAPH_NODE(graph, OP_BATCH_NORM_DX, &node->attr, x, stats, gamma, dy, dparam);
    dx[2] = stats_row(graph, dparam, 0, gamma->shape);
    dx[3] = stats_row(graph, dparam, 1, gamma->shape);
}

static double stats_flops(const struct node *node)  // sum; difference, square, sum
{
    return 4.0 * (double)shape_count(node->inputs[0]->shape);
}

const struct op_def op_def_BATCH_NORM_STATS = {.name = "batch_norm_stats",
                                               .min_inputs = 1,
                                               .max_inputs = 1,
                                               .infer = stats_infer,
                                               .reference = ref_batch_norm_stats,
                                               .flops = stats_flops};
const struct op_def op_def_BATCH_NORM = {.name = "batch_norm",
                                         .min_inputs = 4,
                                         .max_inputs = 4,
                                         .in_place = true,
                                         .infer = batch_norm_infer,
                                         .gradient = batch_norm_gradient,
                                         .reference = ref_batch_norm};
const struct op_def op_def_BATCH_NORM_DPARAM = {.name = "batch_norm_dparam",
                                                .min_inputs = 3,
                                                .max_inputs = 3,
                                                .infer = dparam_infer,
                                                .reference = ref_batch_norm_dparam,
                                                .flops = stats_flops};
const struct op_def op_def_BATCH_NORM_DX = {.name = "batch_norm_dx",
                                            .min_inputs = 5,
                                            .max_inputs = 5,
                                            .in_place = true,
                                            .infer = dx_infer,
                                            .reference = ref_batch_norm_dx};
