// SPDX-License-Identifier: Apache-2.0
// op_optim.c: updates of variables, as Keras' optimizers of TensorFlow 2.11 and later compute them;
// g is the gradient, w -= lr * weight_decay * w comes first where decay is decoupled.
//   sgd       w -= lr * g
//   momentum  m = alpha * m - lr * g; w += m, nesterov: w += alpha * m - lr * g
//   rmsprop   v = rho * v + (1 - rho) * g^2; s = lr * g / sqrt(v + epsilon), with epsilon_outside
//             lr * g / (sqrt(v) + epsilon); w -= s, with m: m = alpha * m + s, w -= m
//   adam      Kingma and Ba 2015; t = step + 1, a = lr * sqrt(1 - beta_2^t) / (1 - beta_1^t),
//             w -= a * m / (sqrt(v) + epsilon)
//   lars      You, Gitman, Ginsburg 2017, algorithm 1: a = lr * rate * |w| / (|g| + decay * |w| +
//             epsilon), just lr when |w| or |g| is 0; s = a * (g + decay * w), m = alpha * m + s,
//             w -= m, nesterov: w -= alpha * m + s
//   lamb      You et al. 2020, algorithm 2, as TensorFlow Addons has it: u = m^ / (sqrt(v^) +
//             epsilon) + decay * w with bias-corrected moments, w -= lr * |w| / |u| * u; the ratio
//             is 1 when |w| or |u| is 0
#include <math.h>
#include <string.h>

#include "ops_impl.h"

// The last real input: only an integer step may follow it.
static double learning_rate(const struct op_call *call)
{
    int input = call->node->input_count - 1;
    input -= call->node->inputs[input]->dtype == DTYPE_I64;
    return call->node->inputs[input]->dtype == DTYPE_F64 ? *(const double *)call->in[input]
                                                         : (double)*(const float *)call->in[input];
}

// What tf.cast makes of a Python number: a float32, whatever it is cast to.
static double as_cast(double value)
{
    return (double)(float)value;
}

#define OP_TEMPLATE "op_optim_ref.h"
#include "op_real.h"
REAL_KERNEL(ref_assign_add)
REAL_KERNEL(update_sgd)
REAL_KERNEL(update_momentum)
REAL_KERNEL(update_rmsprop)
REAL_KERNEL(update_adam)
REAL_KERNEL(update_lars)
REAL_KERNEL(update_lamb)

// A NaN rate is how a step says that its loss was not a number: then nothing is written.
#define UPDATE_KERNEL(name)                                                     \
    static enum status ref_##name(const struct op_call *call)                   \
    {                                                                           \
        return isnan(learning_rate(call)) ? STATUS_OK : update_##name(call);    \
    }
UPDATE_KERNEL(sgd)
UPDATE_KERNEL(momentum)
UPDATE_KERNEL(rmsprop)
UPDATE_KERNEL(adam)
UPDATE_KERNEL(lars)
UPDATE_KERNEL(lamb)

static enum status ref_assign(const struct op_call *call)
{
    memmove(call->out, call->in[1], node_bytes(call->node));
    return STATUS_OK;
}

// Inputs 1 to 1 + slots are like the variable; the slots are variables themselves.
static enum status expect_like_variable(struct node *node, int slots)
{
    const struct node *w = node->inputs[0];
    for (int i = 1; i <= 1 + slots; i++) {
        const struct node *x = node->inputs[i];
        if (!shape_equal(x->shape, w->shape) || x->dtype != w->dtype) {
            return FAIL(ERR_MISMATCH, "%s: input %d is %s %s, expected %s %s as variable %s",
                        op_name(node), i, dtype_name(x->dtype), shape_str(x->shape),
                        dtype_name(w->dtype), shape_str(w->shape), w->variable->name);
        }
        CHECK(i == 1 || x->op == OP_VARIABLE, "%s: slot %d is no variable", op_name(node), i);
    }
    return op_result(node, w->dtype, w->shape);
}

static enum status assign_infer(struct node *node)
{
    return expect_like_variable(node, 0);
}

static enum status assign_add_infer(struct node *node)
{
    TRY(op_expect_real(node, 1));
    return expect_like_variable(node, 0);
}

// (w, dw, slots..., lr)
static enum status update_infer(struct node *node)
{
    int last = node->input_count - 1;
    TRY(op_expect_real(node, 1));
    TRY(op_expect_scalar(node, last, node->inputs[0]->dtype, "the learning rate"));
    return expect_like_variable(node, last - 2);
}

// (w, dw, m, v, lr, step)
static enum status adam_infer(struct node *node)
{
    TRY(op_expect_real(node, 1));
    TRY(op_expect_scalar(node, 4, node->inputs[0]->dtype, "the learning rate"));
    TRY(op_expect_scalar(node, 5, DTYPE_I64, "the step"));
    return expect_like_variable(node, 2);
}

static double momentum_flops(const struct node *node)
{
    return 4.0 * (double)shape_count(node->shape);
}

static double adam_flops(const struct node *node)  // the two moments, root, quotient, update
{
    return 12.0 * (double)shape_count(node->shape);
}

const struct op_def op_def_ASSIGN = {.name = "assign",
                                     .min_inputs = 2,
                                     .max_inputs = 2,
                                     .writes = 1,
                                     .infer = assign_infer,
                                     .reference = ref_assign};
const struct op_def op_def_ASSIGN_ADD = {.name = "assign_add",
                                         .min_inputs = 2,
                                         .max_inputs = 2,
                                         .writes = 1,
                                         .infer = assign_add_infer,
                                         .reference = ref_assign_add};
const struct op_def op_def_SGD = {.name = "sgd",
                                  .min_inputs = 3,
                                  .max_inputs = 3,
                                  .writes = 1,
                                  .infer = update_infer,
                                  .reference = ref_sgd};
const struct op_def op_def_MOMENTUM = {.name = "momentum",
                                       .min_inputs = 4,
                                       .max_inputs = 4,
                                       .writes = 1 | 1 << 2,
                                       .infer = update_infer,
                                       .reference = ref_momentum,
                                       .flops = momentum_flops};
const struct op_def op_def_RMSPROP = {.name = "rmsprop",
                                      .min_inputs = 4,
                                      .max_inputs = 5,
                                      .writes = 1 | 1 << 2 | 1 << 3,  // 3: m, or the rate
                                      .infer = update_infer,
                                      .reference = ref_rmsprop,
                                      .flops = adam_flops};
const struct op_def op_def_ADAM = {.name = "adam",
                                   .min_inputs = 6,
                                   .max_inputs = 6,
                                   .writes = 1 | 1 << 2 | 1 << 3,
                                   .infer = adam_infer,
                                   .reference = ref_adam,
                                   .flops = adam_flops};
const struct op_def op_def_LARS = {.name = "lars",
                                   .min_inputs = 4,
                                   .max_inputs = 4,
                                   .writes = 1 | 1 << 2,
                                   .infer = update_infer,
                                   .reference = ref_lars,
                                   .flops = adam_flops};
const struct op_def op_def_LAMB = {.name = "lamb",
                                   .min_inputs = 6,
                                   .max_inputs = 6,
                                   .writes = 1 | 1 << 2 | 1 << 3,
                                   .infer = adam_infer,
                                   .reference = ref_lamb,
                                   .flops = adam_flops};
