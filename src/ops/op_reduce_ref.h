// SPDX-License-Identifier: Apache-2.0
// op_reduce_ref.h: reductions for the element type T. See op_real.h.

// Sums in double, in row-major order of the input.
static enum status FN(ref_reduce_sum)(const struct op_call *call)
{
    struct op_walk walk = reduce_walk(call->node);
    int64_t n = walk.dim[walk.last], step = walk.stride[0][walk.last];
    int64_t count = shape_count(call->node->shape);
    double *sum = MEM_NEW_ARRAY(double, count);
    const T *in = call->in[0];
    T *out = call->out;
    do {
        double *s = sum + walk.offset[0];
        for (int64_t i = 0; i < n; i++) {
            s[i * step] += (double)in[i];
        }
        in += n;
    } while (op_walk_next(&walk));
    for (int64_t i = 0; i < count; i++) {
        out[i] = (T)sum[i];
    }
    mem_free(sum);
    return STATUS_OK;
}

static enum status FN(ref_reduce_max)(const struct op_call *call)
{
    struct op_walk walk = reduce_walk(call->node);
    int64_t n = walk.dim[walk.last], step = walk.stride[0][walk.last];
    int64_t count = shape_count(call->node->shape);
    const T *in = call->in[0];
    T *out = call->out;
    for (int64_t i = 0; i < count; i++) {
        out[i] = (T)-INFINITY;
    }
    do {
        T *m = out + walk.offset[0];
        for (int64_t i = 0; i < n; i++) {
            T old = m[i * step];
            m[i * step] = old > in[i] || old != old ? old : in[i];  // NaN wins
        }
        in += n;
    } while (op_walk_next(&walk));
    return STATUS_OK;
}

static enum status FN(ref_argmax)(const struct op_call *call)
{
    const struct shape in = call->node->inputs[0]->shape;
    int64_t n = in.dim[in.rank - 1], rows = shape_count(in) / n;
    int32_t *out = call->out;
    for (int64_t row = 0; row < rows; row++) {
        const T *x = (const T *)call->in[0] + row * n;
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++) {
            best = x[i] > x[best] ? i : best;
        }
        out[row] = (int32_t)best;
    }
    return STATUS_OK;
}
