// SPDX-License-Identifier: Apache-2.0
// op_loss.c: softmax, cross-entropy of logits, dropout.
#include <math.h>

#include "ops_impl.h"
#include "trainer/rng.h"

static int64_t classes(const struct node *x)
{
    return x->shape.dim[x->shape.rank - 1];
}

static enum status check_labels(const struct op_call *call)
{
    const struct node *logits = call->node->inputs[0], *labels = call->node->inputs[1];
    const int32_t *label = call->in[1];
    for (int64_t n = 0; labels->dtype == DTYPE_I32 && n < labels->shape.dim[0]; n++) {
        if (label[n] < 0 || label[n] >= classes(logits)) {
            return FAIL(ERR_CORRUPT,
                        "%s: the label of row %lld of the batch is %d, expected 0 to %lld",
                        op_name(call->node), (long long)n, (int)label[n],
                        (long long)classes(logits) - 1);
        }
    }
    return STATUS_OK;
}

#define OP_TEMPLATE "op_loss_ref.h"
#include "op_real.h"
REAL_KERNEL(ref_softmax)
REAL_KERNEL(ref_softmax_grad)
REAL_KERNEL(ref_cross_entropy)
REAL_KERNEL(ref_cross_entropy_grad)
REAL_KERNEL(ref_dropout)

// ---- softmax ------------------------------------------------------------------------------------

static enum status softmax_infer(struct node *node)
{
    TRY(op_expect_real(node, node->input_count));
    if (node->inputs[0]->shape.rank < 1) {
        return FAIL(ERR_MISMATCH, "%s: the input is a scalar, expected classes in its last "
                    "dimension", op_name(node));
    }
    if (node->input_count == 2) {
        TRY(op_expect_shape(node, 1, node->inputs[0]->shape, "dy"));
    }
    return op_result(node, node->inputs[0]->dtype, node->inputs[0]->shape);
}

// dx = y * (dy - sum(y * dy)), the sum over the last dimension
static void softmax_gradient(struct graph *graph, struct node *node, struct node *dy,
                             struct node **dx)
{
    dx[0] = NODE(SOFTMAX_GRAD, node, dy);
}

const struct op_def op_def_SOFTMAX = {.name = "softmax",
                                      .min_inputs = 1,
                                      .max_inputs = 1,
                                      .in_place = true,
                                      .infer = softmax_infer,
                                      .gradient = softmax_gradient,
                                      .reference = ref_softmax};
const struct op_def op_def_SOFTMAX_GRAD = {.name = "softmax_grad",
                                           .min_inputs = 2,
                                           .max_inputs = 2,
                                           .in_place = true,
                                           .infer = softmax_infer,
                                           .reference = ref_softmax_grad};

// ---- cross-entropy ------------------------------------------------------------------------------

static enum status expect_labels(const struct node *node)
{
    TRY(op_expect_real(node, 1));
    TRY(op_expect_rank(node, 0, 2, "the logits", "(N, K)"));
    const struct node *logits = node->inputs[0], *labels = node->inputs[1];
    double s = node->attr.label_smoothing;
    if (!(s >= 0 && s < 1)) {
        return FAIL(ERR_MISMATCH, "%s: label smoothing %g, expected 0 or more and less than 1",
                    op_name(node), s);
    }
    if (labels->dtype == DTYPE_I32) {
        return op_expect_shape(node, 1, SHAPE(logits->shape.dim[0]), "the labels");
    }
    TRY(op_expect_real(node, 2));
    return op_expect_shape(node, 1, logits->shape, "the labels, a probability a class,");
}

static enum status cross_entropy_infer(struct node *node)
{
    TRY(expect_labels(node));
    return op_result(node, node->inputs[0]->dtype, SHAPE(node->inputs[0]->shape.dim[0]));
}

static enum status cross_entropy_grad_infer(struct node *node)
{
    TRY(expect_labels(node));
    if (node->inputs[2]->dtype != node->inputs[0]->dtype) {
        return FAIL(ERR_MISMATCH, "%s: dloss is %s, expected %s as the logits", op_name(node),
                    dtype_name(node->inputs[2]->dtype), dtype_name(node->inputs[0]->dtype));
    }
    TRY(op_expect_shape(node, 2, SHAPE(node->inputs[0]->shape.dim[0]), "dloss"));
    return op_result(node, node->inputs[0]->dtype, node->inputs[0]->shape);
}

// dlogits = dloss * (softmax(logits) * sum(target) - target); labels have no gradient
static void cross_entropy_gradient(struct graph *graph, struct node *node, struct node *dy,
                                   struct node **dx)
{
    dx[0] = GRAPH_NODE(graph, OP_CROSS_ENTROPY_GRAD, &node->attr, node->inputs[0],
                       node->inputs[1], dy);
}

static double cross_entropy_flops(const struct node *node)  // maximum, difference, exp, sum
{
    return 4.0 * (double)shape_count(node->inputs[0]->shape);
}

const struct op_def op_def_CROSS_ENTROPY = {.name = "cross_entropy",
                                            .min_inputs = 2,
                                            .max_inputs = 2,
                                            .infer = cross_entropy_infer,
                                            .gradient = cross_entropy_gradient,
                                            .reference = ref_cross_entropy,
                                            .flops = cross_entropy_flops};
const struct op_def op_def_CROSS_ENTROPY_GRAD = {.name = "cross_entropy_grad",
                                                 .min_inputs = 3,
                                                 .max_inputs = 3,
                                                 .infer = cross_entropy_grad_infer,
                                                 .reference = ref_cross_entropy_grad,
                                                 .flops = cross_entropy_flops};

// ---- dropout ------------------------------------------------------------------------------------

static enum status dropout_infer(struct node *node)
{
    TRY(op_expect_real(node, 1));
    TRY(op_expect_scalar(node, 1, DTYPE_I64, "the step"));
    TRY(op_expect_scalar(node, 2, DTYPE_I64, "the number of the first row"));
    double rate = node->attr.rate;
    if (!(rate >= 0 && rate < 1)) {
        return FAIL(ERR_MISMATCH, "dropout: rate %g, expected 0 or more and less than 1", rate);
    }
    if (node->inputs[0]->shape.rank < 1) {
        return FAIL(ERR_MISMATCH, "dropout: the input is a scalar, expected rows");
    }
    return op_result(node, node->inputs[0]->dtype, node->inputs[0]->shape);
}

// dx = dy / (1 - rate) where the element was kept, else 0: dropout of dy with the same numbers
static void dropout_gradient(struct graph *graph, struct node *node, struct node *dy,
                             struct node **dx)
{
    dx[0] = GRAPH_NODE(graph, OP_DROPOUT, &node->attr, dy, node->inputs[1], node->inputs[2]);
}

const struct op_def op_def_DROPOUT = {.name = "dropout",
                                      .min_inputs = 3,
                                      .max_inputs = 3,
                                      .in_place = true,
                                      .infer = dropout_infer,
                                      .gradient = dropout_gradient,
                                      .reference = ref_dropout};
