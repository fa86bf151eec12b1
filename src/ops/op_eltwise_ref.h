// SPDX-License-Identifier: Apache-2.0
// op_eltwise_ref.h: elementwise kernels for the element type T. See op_real.h.
// Functions of the C library are taken in double and rounded once, for float32 too.

#define UNARY(name, expression)                                  \
    static enum status FN(name)(const struct op_call *call)      \
    {                                                            \
        const T *in = call->in[0];                               \
        T *out = call->out;                                      \
        int64_t count = shape_count(call->node->shape);          \
        for (int64_t i = 0; i < count; i++) {                    \
            const T x = in[i];                                   \
            out[i] = (T)(expression);                            \
        }                                                        \
        return STATUS_OK;                                        \
    }

UNARY(ref_neg, -x)
UNARY(ref_abs, fabs((double)x))
UNARY(ref_square, x * x)
UNARY(ref_sqrt, sqrt((double)x))
UNARY(ref_rsqrt, 1 / sqrt((double)x))
UNARY(ref_exp, exp((double)x))
UNARY(ref_log, log((double)x))
UNARY(ref_tanh, tanh((double)x))
UNARY(ref_sigmoid, 1 / (1 + exp(-(double)x)))
UNARY(ref_erf, erf((double)x))
UNARY(ref_relu, x <= 0 ? 0 : x)  // NaN stays NaN

// S: type of the inputs.
#define BINARY(name, S, expression)                                                         \
    static enum status FN(name)(const struct op_call *call)                                 \
    {                                                                                       \
        struct op_walk walk = binary_walk(call->node);                                      \
        int64_t n = walk.dim[walk.last];                                                    \
        int64_t step_a = walk.stride[0][walk.last], step_b = walk.stride[1][walk.last];     \
        T *out = call->out;                                                                 \
        do {                                                                                \
            const S *a = (const S *)call->in[0] + walk.offset[0];                           \
            const S *b = (const S *)call->in[1] + walk.offset[1];                           \
            for (int64_t i = 0; i < n; i++) {                                               \
                const S x = a[i * step_a], y = b[i * step_b];                               \
                out[i] = (T)(expression);                                                   \
            }                                                                               \
            out += n;                                                                       \
        } while (op_walk_next(&walk));                                                      \
        return STATUS_OK;                                                                   \
    }

BINARY(ref_add, T, x + y)
BINARY(ref_sub, T, x - y)
BINARY(ref_mul, T, x * y)
BINARY(ref_div, T, x / y)
BINARY(ref_maximum, T, x > y || x != x ? x : y)  // NaN wins, on either side
BINARY(ref_minimum, T, x < y || x != x ? x : y)
BINARY(ref_equal_real, T, x == y)
BINARY(ref_greater_real, T, x > y)
BINARY(ref_equal_int, int32_t, x == y)
BINARY(ref_greater_int, int32_t, x > y)
BINARY(ref_relu_grad, T, x > 0 ? y : 0)

#define CAST_FROM(S)                              \
    for (int64_t i = 0; i < count; i++) {         \
        out[i] = (T)((const S *)call->in[0])[i];  \
    }                                             \
    break

static enum status FN(cast_to)(const struct op_call *call)
{
    T *out = call->out;
    int64_t count = shape_count(call->node->shape);
    switch (call->node->inputs[0]->dtype) {
    case DTYPE_F32: CAST_FROM(float);
    case DTYPE_F64: CAST_FROM(double);
    case DTYPE_I32: CAST_FROM(int32_t);
    case DTYPE_I64: CAST_FROM(int64_t);
    default: CAST_FROM(uint8_t);
    }
    return STATUS_OK;
}

#undef UNARY
#undef BINARY
#undef CAST_FROM
