// SPDX-License-Identifier: Apache-2.0
// cpu_basic_impl.h: elementwise ops, sums and optimizer updates, one pass over memory each.
// Private; compiled once an instruction set.
#ifndef CPU_BASIC_IMPL_H
#define CPU_BASIC_IMPL_H

#include <math.h>

#include "cpu_impl.h"
#include "cpu_vec_impl.h"

// Independent multiply-adds, enough of them to fill the units: what the machine can do at best.
static double peak_run(int64_t rounds)
{
    enum { CHAINS = 10 };
    vec sum[CHAINS], x = vec_set(0.999f), y = vec_set(1e-3f);
    for (int i = 0; i < CHAINS; i++) {
        sum[i] = vec_set((float)i);
    }
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = vec_fma(sum[i], x, y);
        }
    }
    float all = 0;
    for (int i = 0; i < CHAINS; i++) {
        all += vec_sum(sum[i]);
    }
    // The result is used so that the loop is not removed.
    return 2.0 * LANES * CHAINS * (double)rounds + (all == 0.25f ? 1 : 0);
}

// The loops are written once; a constant op makes each case its own loop.
INLINE vec unary_of(enum op op, vec a)
{
    switch (op) {
    case OP_NEG: return -a;
    case OP_ABS: return (vec)((vec_int)a & ~(vec_int)vec_set(-0.0f));
    case OP_SQUARE: return a * a;
    case OP_SQRT: return vec_sqrt(a);
    case OP_RSQRT: return vec_set(1) / vec_sqrt(a);
    default: return vec_relu(a);
    }
}

INLINE void unary_loop(enum op op, const float *x, float *y, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vec_store(y + i, unary_of(op, vec_load(x + i)));
    }
    if (i < count) {
        vec_store_part(y + i, unary_of(op, vec_load_part(x + i, count - i)), count - i);
    }
}

// Functions of the C library, element by element.
INLINE void library_loop(enum op op, const float *x, float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        y[i] = op == OP_EXP       ? expf(x[i])
               : op == OP_LOG     ? logf(x[i])
               : op == OP_TANH    ? tanhf(x[i])
               : op == OP_SIGMOID ? 1 / (1 + expf(-x[i]))
                                  : erff(x[i]);
    }
}

static void unary_run(enum op op, const float *x, float *y, int64_t count)
{
    switch (op) {
    case OP_NEG: unary_loop(OP_NEG, x, y, count); break;
    case OP_ABS: unary_loop(OP_ABS, x, y, count); break;
    case OP_SQUARE: unary_loop(OP_SQUARE, x, y, count); break;
    case OP_SQRT: unary_loop(OP_SQRT, x, y, count); break;
    case OP_RSQRT: unary_loop(OP_RSQRT, x, y, count); break;
    case OP_RELU: unary_loop(OP_RELU, x, y, count); break;
    default: library_loop(op, x, y, count); break;
    }
}

INLINE vec binary_of(enum op op, vec a, vec b)
{
    vec one = vec_set(1), zero = vec_set(0);
    switch (op) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_MAXIMUM: return vec_select((a > b) | (a != a), a, b);  // NaN wins on either side
    case OP_MINIMUM: return vec_select((a < b) | (a != a), a, b);
    case OP_EQUAL: return vec_select(a == b, one, zero);
    case OP_GREATER: return vec_select(a > b, one, zero);
    default: return vec_select(a > zero, b, zero);  // OP_RELU_GRAD
    }
}

INLINE void binary_loop(enum op op, const struct cpu_binary *t, int a_step, int b_step)
{
    int64_t i = 0, count = t->count;
    vec a = vec_set(t->a[0]), b = vec_set(t->b[0]);
    for (; i + LANES <= count; i += LANES) {
        a = a_step ? vec_load(t->a + i) : a;
        b = b_step ? vec_load(t->b + i) : b;
        vec_store(t->y + i, binary_of(op, a, b));
    }
    if (i < count) {
        a = a_step ? vec_load_part(t->a + i, count - i) : a;
        b = b_step ? vec_load_part(t->b + i, count - i) : b;
        vec_store_part(t->y + i, binary_of(op, a, b), count - i);
    }
}

INLINE void binary_steps(enum op op, const struct cpu_binary *t)
{
    if (t->a_step && t->b_step) {
        binary_loop(op, t, 1, 1);
    } else if (t->a_step) {
        binary_loop(op, t, 1, 0);
    } else {
        binary_loop(op, t, 0, t->b_step);
    }
}

static void binary_run(const struct cpu_binary *t)
{
    if (t->count == 0) {
        return;
    }
    switch (t->op) {
    case OP_ADD: binary_steps(OP_ADD, t); break;
    case OP_SUB: binary_steps(OP_SUB, t); break;
    case OP_MUL: binary_steps(OP_MUL, t); break;
    case OP_DIV: binary_steps(OP_DIV, t); break;
    case OP_MAXIMUM: binary_steps(OP_MAXIMUM, t); break;
    case OP_MINIMUM: binary_steps(OP_MINIMUM, t); break;
    case OP_EQUAL: binary_steps(OP_EQUAL, t); break;
    case OP_GREATER: binary_steps(OP_GREATER, t); break;
    default: binary_steps(OP_RELU_GRAD, t); break;
    }
}

static void from_bytes_run(const uint8_t *x, float *y, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vec_store(y + i, __builtin_convertvector(vec_load_bytes(x + i), vec));
    }
    for (; i < count; i++) {
        y[i] = x[i];
    }
}

// ---- Sums ---------------------------------------------------------------------------------------

// Eight chains: more than the latency of an addition hides; they are added up in a fixed order.
static float sum_run(const float *x, int64_t count)
{
    enum { CHAINS = 8 };
    vec sum[CHAINS];
    for (int c = 0; c < CHAINS; c++) {
        sum[c] = vec_set(0);
    }
    int64_t i = 0;
    for (; i + CHAINS * LANES <= count; i += CHAINS * LANES) {
#pragma GCC unroll 8
        for (int c = 0; c < CHAINS; c++) {
            sum[c] += vec_load(x + i + c * LANES);
        }
    }
    for (; i < count; i += LANES) {
        sum[0] += i + LANES <= count ? vec_load(x + i) : vec_load_part(x + i, count - i);
    }
    return vec_sum(((sum[0] + sum[1]) + (sum[2] + sum[3])) +
                   ((sum[4] + sum[5]) + (sum[6] + sum[7])));
}

// (rows, cols) -> (cols), or added to what is there; four vectors of columns at a time.
static void sum_rows(const float *x, int64_t rows, int64_t cols, float *out, bool add)
{
    int64_t j = 0;
    for (; j + 4 * LANES <= cols; j += 4 * LANES) {
        vec sum[4];
        for (int c = 0; c < 4; c++) {
            sum[c] = add ? vec_load(out + j + c * LANES) : vec_set(0);
        }
        for (int64_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                sum[c] += vec_load(x + r * cols + j + c * LANES);
            }
        }
        for (int c = 0; c < 4; c++) {
            vec_store(out + j + c * LANES, sum[c]);
        }
    }
    for (; j < cols; j += LANES) {
        int64_t width = MIN((int64_t)LANES, cols - j);
        vec sum = add ? vec_load_part(out + j, width) : vec_set(0);
        for (int64_t r = 0; r < rows; r++) {
            const float *from = x + r * cols + j;
            sum += width == LANES ? vec_load(from) : vec_load_part(from, width);
        }
        vec_store_part(out + j, sum, width);
    }
}

static void sum_rows_run(const float *x, int64_t rows, int64_t cols, float *out)
{
    sum_rows(x, rows, cols, out, false);
}

// ---- Updates ------------------------------------------------------------------------------------

// What an update needs besides its vectors, computed once.
struct update_rule {
    bool nesterov, has_m;
    vec lr, decay, alpha, rest_1, rho, rest_2, inside, outside;  // rest = 1 - beta
};

struct update_lanes {
    vec w, g, m, v;
};

INLINE struct update_lanes update_of(enum op op, const struct update_rule *rule,
                                     struct update_lanes x)
{
    x.w -= rule->decay * x.w;
    if (op == OP_ADAM) {
        x.m = vec_fma(x.g - x.m, rule->rest_1, x.m);
        x.v = vec_fma(x.g * x.g - x.v, rule->rest_2, x.v);
        x.w -= x.m * rule->lr / (vec_sqrt(x.v) + rule->outside);
    } else if (op == OP_MOMENTUM) {
        vec change = rule->lr * x.g;
        x.m = rule->alpha * x.m - change;
        x.w += rule->nesterov ? rule->alpha * x.m - change : x.m;
    } else if (op == OP_RMSPROP) {
        x.v = vec_fma(rule->rest_2 * x.g, x.g, rule->rho * x.v);
        vec change = rule->lr * x.g / (vec_sqrt(x.v + rule->inside) + rule->outside);
        x.m = rule->has_m ? vec_fma(rule->alpha, x.m, change) : change;
        x.w -= x.m;
    } else {
        x.w -= rule->lr * x.g;
    }
    return x;
}

INLINE void update_loop(enum op op, const struct update_rule *rule, const struct cpu_update *u)
{
    bool has_m = op == OP_ADAM || op == OP_MOMENTUM || (op == OP_RMSPROP && rule->has_m);
    bool has_v = op == OP_ADAM || op == OP_RMSPROP;
    for (int64_t i = 0; i < u->count; i += LANES) {
        int64_t rest = u->count - i;
        vec zero = vec_set(0);
        if (rest >= LANES) {
            struct update_lanes x = {vec_load(u->w + i), vec_load(u->dw + i),
                                     has_m ? vec_load(u->m + i) : zero,
                                     has_v ? vec_load(u->v + i) : zero};
            x = update_of(op, rule, x);
            vec_store(u->w + i, x.w);
            if (has_m) {
                vec_store(u->m + i, x.m);
            }
            if (has_v) {
                vec_store(u->v + i, x.v);
            }
        } else {
            struct update_lanes x = {vec_load_part(u->w + i, rest), vec_load_part(u->dw + i, rest),
                                     has_m ? vec_load_part(u->m + i, rest) : zero,
                                     has_v ? vec_load_part(u->v + i, rest) : zero};
            x = update_of(op, rule, x);
            vec_store_part(u->w + i, x.w, rest);
            if (has_m) {
                vec_store_part(u->m + i, x.m, rest);
            }
            if (has_v) {
                vec_store_part(u->v + i, x.v, rest);
            }
        }
    }
}

static void update_run(const struct cpu_update *u)
{
    const struct op_attr *attr = &u->node->attr;
    bool adam = u->node->op == OP_ADAM, outside = adam || attr->epsilon_outside;
    double lr = u->lr, t = (double)u->step + 1;
    if (isnan(lr)) {
        return;  // the step is left out: its loss was not a number
    }
    if (adam) {  // the bias corrections of m and v as one factor; float32 betas, as the specification
        lr *= sqrt(1 - pow((double)(float)attr->beta_2, t));
        lr /= 1 - pow((double)(float)attr->beta_1, t);
    }
    struct update_rule rule = {
        .nesterov = attr->nesterov, .has_m = u->m != NULL, .lr = vec_set((float)lr),
        .decay = vec_set((float)((double)u->lr * attr->weight_decay)),
        .alpha = vec_set((float)attr->alpha), .rest_1 = vec_set((float)(1 - attr->beta_1)),
        .rho = vec_set((float)attr->beta_2), .rest_2 = vec_set((float)(1 - attr->beta_2)),
        .inside = vec_set(outside ? 0 : (float)attr->epsilon),
        .outside = vec_set(outside ? (float)attr->epsilon : 0)};
    switch (u->node->op) {
    case OP_ADAM: update_loop(OP_ADAM, &rule, u); break;
    case OP_MOMENTUM: update_loop(OP_MOMENTUM, &rule, u); break;
    case OP_RMSPROP: update_loop(OP_RMSPROP, &rule, u); break;
    default: update_loop(OP_SGD, &rule, u); break;
    }
}

#endif
