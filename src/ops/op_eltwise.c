// SPDX-License-Identifier: Apache-2.0
// op_eltwise.c: elementwise ops of one and two inputs.
#include <math.h>

#include "ops_impl.h"

static struct op_walk binary_walk(const struct node *node)
{
    struct op_walk walk = op_walk_of(node->shape);
    for (int i = 0; i < 2; i++) {
        op_strides(node->inputs[i]->shape, node->shape, walk.stride[i]);
    }
    op_walk_merge(&walk);
    return walk;
}

#define OP_TEMPLATE "op_eltwise_ref.h"
#include "op_real.h"

// ---- One input ----------------------------------------------------------------------------------

// dx = -dy
static void neg_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    (void)node;
    dx[0] = NODE(NEG, dy);
}

// dx = dy * sign(x), 0 at 0
static void abs_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    struct node *x = node->inputs[0], *zero = op_number(graph, x, 0);
    dx[0] = NODE(MUL, dy, NODE(SUB, NODE(GREATER, x, zero), NODE(GREATER, zero, x)));
}

// dx = dy * 2 * x
static void square_gradient(struct graph *graph, struct node *node, struct node *dy,
                            struct node **dx)
{
    dx[0] = NODE(MUL, dy, NODE(MUL, node->inputs[0], op_number(graph, dy, 2)));
}

// dx = dy / (2 * y)
static void sqrt_gradient(struct graph *graph, struct node *node, struct node *dy,
                          struct node **dx)
{
    dx[0] = NODE(DIV, dy, NODE(MUL, node, op_number(graph, dy, 2)));
}

// dx = dy * -1/2 * y^3
static void rsqrt_gradient(struct graph *graph, struct node *node, struct node *dy,
                           struct node **dx)
{
    struct node *cube = NODE(MUL, NODE(SQUARE, node), node);
    dx[0] = NODE(MUL, dy, NODE(MUL, cube, op_number(graph, dy, -0.5)));
}

// dx = dy * y
static void exp_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    dx[0] = NODE(MUL, dy, node);
}

// dx = dy / x
static void log_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    dx[0] = NODE(DIV, dy, node->inputs[0]);
}

// dx = dy * (1 - y^2)
static void tanh_gradient(struct graph *graph, struct node *node, struct node *dy,
                          struct node **dx)
{
    dx[0] = NODE(MUL, dy, NODE(SUB, op_number(graph, dy, 1), NODE(SQUARE, node)));
}

// dx = dy * y * (1 - y)
static void sigmoid_gradient(struct graph *graph, struct node *node, struct node *dy,
                             struct node **dx)
{
    struct node *rest = NODE(SUB, op_number(graph, dy, 1), node);
    dx[0] = NODE(MUL, dy, NODE(MUL, node, rest));
}

// dx = dy * 2 / sqrt(pi) * exp(-x^2)
static void erf_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    struct node *bell = NODE(EXP, NODE(NEG, NODE(SQUARE, node->inputs[0])));
    dx[0] = NODE(MUL, dy, NODE(MUL, bell, op_number(graph, dy, 1.1283791670955126)));
}

// dx = dy where y > 0, else 0
static void relu_gradient(struct graph *graph, struct node *node, struct node *dy,
                          struct node **dx)
{
    dx[0] = NODE(RELU_GRAD, node, dy);
}

#define UNARY_OP(id, text)                                           \
    REAL_KERNEL(ref_##text)                                          \
    const struct op_def op_def_##id = {.name = #text,                \
                                       .min_inputs = 1,              \
                                       .max_inputs = 1,              \
                                       .in_place = true,             \
                                       .infer = op_infer_like,       \
                                       .gradient = text##_gradient,  \
                                       .reference = ref_##text};
UNARY_OP(NEG, neg)
UNARY_OP(ABS, abs)
UNARY_OP(SQUARE, square)
UNARY_OP(SQRT, sqrt)
UNARY_OP(RSQRT, rsqrt)
UNARY_OP(EXP, exp)
UNARY_OP(LOG, log)
UNARY_OP(TANH, tanh)
UNARY_OP(SIGMOID, sigmoid)
UNARY_OP(ERF, erf)
UNARY_OP(RELU, relu)

static enum status cast_infer(struct node *node)
{
    if (!dtype_is_float(node->attr.dtype)) {
        return FAIL(ERR_UNSUPPORTED, "cast: to %s, expected float32 or float64",
                    dtype_name(node->attr.dtype));
    }
    return op_result(node, node->attr.dtype, node->inputs[0]->shape);
}

// dx = dy in the dtype of x; integers have no gradient
static void cast_gradient(struct graph *graph, struct node *node, struct node *dy,
                          struct node **dx)
{
    struct op_attr back = {.dtype = node->inputs[0]->dtype};
    if (dtype_is_float(back.dtype)) {
        dx[0] = GRAPH_NODE(graph, OP_CAST, &back, dy);
    }
}

static enum status ref_cast(const struct op_call *call)
{
    return call->node->dtype == DTYPE_F64 ? cast_to_f64(call) : cast_to_f32(call);
}

const struct op_def op_def_CAST = {.name = "cast",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .infer = cast_infer,
                                   .gradient = cast_gradient,
                                   .reference = ref_cast};

// ---- Two inputs ---------------------------------------------------------------------------------

static enum status infer_broadcast(struct node *node, enum dtype dtype)
{
    struct shape a = node->inputs[0]->shape, b = node->inputs[1]->shape, shape;
    if (!shape_broadcast(a, b, &shape)) {
        return FAIL(ERR_MISMATCH,
                    "%s: shapes %s and %s do not fit: dimensions must be equal or 1, counted from "
                    "the last",
                    op_name(node), shape_str(a), shape_str(b));
    }
    return op_result(node, dtype, shape);
}

static enum status binary_infer(struct node *node)
{
    TRY(op_expect_real(node, 2));
    return infer_broadcast(node, node->inputs[0]->dtype);
}

static enum status compare_infer(struct node *node)
{
    if (node->inputs[0]->dtype != DTYPE_I32) {
        return binary_infer(node);
    }
    if (node->inputs[1]->dtype != DTYPE_I32) {
        return FAIL(ERR_MISMATCH, "%s: input 1 is %s, expected int32 as input 0", op_name(node),
                    dtype_name(node->inputs[1]->dtype));
    }
    if (!dtype_is_float(node->attr.dtype)) {
        return FAIL(ERR_UNSUPPORTED, "%s: result of %s, expected float32 or float64",
                    op_name(node), dtype_name(node->attr.dtype));
    }
    return infer_broadcast(node, node->attr.dtype);
}

// Gives da and db, which have the shape of y, to the inputs.
static void hand_down(struct graph *graph, struct node *node, struct node *da, struct node *db,
                      struct node **dx)
{
    dx[0] = op_sum_to(graph, da, node->inputs[0]->shape);
    dx[1] = op_sum_to(graph, db, node->inputs[1]->shape);
}

// da = dy, db = dy
static void add_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    hand_down(graph, node, dy, dy, dx);
}

// da = dy, db = -dy
static void sub_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    hand_down(graph, node, dy, NODE(NEG, dy), dx);
}

// da = dy * b, db = dy * a
static void mul_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    struct node *a = node->inputs[0], *b = node->inputs[1];
    hand_down(graph, node, NODE(MUL, dy, b), NODE(MUL, dy, a), dx);
}

// da = dy / b, db = -dy / b * y
static void div_gradient(struct graph *graph, struct node *node, struct node *dy, struct node **dx)
{
    struct node *da = NODE(DIV, dy, node->inputs[1]);
    hand_down(graph, node, da, NODE(NEG, NODE(MUL, da, node)), dx);
}

// db = dy where b wins strictly, da = dy elsewhere: a takes ties, as in TensorFlow
static void split_gradient(struct graph *graph, struct node *node, struct node *dy,
                           struct node *b_wins, struct node **dx)
{
    struct node *db = NODE(MUL, dy, b_wins);
    hand_down(graph, node, NODE(SUB, dy, db), db, dx);
}

// Ties go to a. da = dy * (a >= b), db = dy * (a < b)
static void maximum_gradient(struct graph *graph, struct node *node, struct node *dy,
                             struct node **dx)
{
    split_gradient(graph, node, dy, NODE(GREATER, node->inputs[1], node->inputs[0]), dx);
}

// Ties go to a. da = dy * (a <= b), db = dy * (a > b)
static void minimum_gradient(struct graph *graph, struct node *node, struct node *dy,
                             struct node **dx)
{
    split_gradient(graph, node, dy, NODE(GREATER, node->inputs[0], node->inputs[1]), dx);
}

#define BINARY_OP(id, text)                                          \
    REAL_KERNEL(ref_##text)                                          \
    const struct op_def op_def_##id = {.name = #text,                \
                                       .min_inputs = 2,              \
                                       .max_inputs = 2,              \
                                       .in_place = true,             \
                                       .infer = binary_infer,        \
                                       .gradient = text##_gradient,  \
                                       .reference = ref_##text};
BINARY_OP(ADD, add)
BINARY_OP(SUB, sub)
BINARY_OP(MUL, mul)
BINARY_OP(DIV, div)
BINARY_OP(MAXIMUM, maximum)
BINARY_OP(MINIMUM, minimum)

REAL_KERNEL(ref_equal_real)
REAL_KERNEL(ref_greater_real)

static enum status ref_equal(const struct op_call *call)
{
    return call->node->inputs[0]->dtype != DTYPE_I32 ? ref_equal_real(call)
           : call->node->dtype == DTYPE_F64          ? ref_equal_int_f64(call)
                                                     : ref_equal_int_f32(call);
}

static enum status ref_greater(const struct op_call *call)
{
    return call->node->inputs[0]->dtype != DTYPE_I32 ? ref_greater_real(call)
           : call->node->dtype == DTYPE_F64          ? ref_greater_int_f64(call)
                                                     : ref_greater_int_f32(call);
}

const struct op_def op_def_EQUAL = {.name = "equal",
                                    .min_inputs = 2,
                                    .max_inputs = 2,
                                    .infer = compare_infer,
                                    .reference = ref_equal};
const struct op_def op_def_GREATER = {.name = "greater",
                                      .min_inputs = 2,
                                      .max_inputs = 2,
                                      .infer = compare_infer,
                                      .reference = ref_greater};

static enum status relu_grad_infer(struct node *node)
{
    TRY(op_expect_real(node, 2));
    TRY(op_expect_shape(node, 1, node->inputs[0]->shape, "dy"));
    return op_result(node, node->inputs[0]->dtype, node->inputs[0]->shape);
}

REAL_KERNEL(ref_relu_grad)
const struct op_def op_def_RELU_GRAD = {.name = "relu_grad",
                                        .min_inputs = 2,
                                        .max_inputs = 2,
                                        .in_place = true,
                                        .infer = relu_grad_infer,
                                        .reference = ref_relu_grad};
