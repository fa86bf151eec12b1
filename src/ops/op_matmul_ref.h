// SPDX-License-Identifier: Apache-2.0
// op_matmul_ref.h: the matrix product for the element type T. See op_real.h.

// out (M, P) = op(a) (M, K) op(b) (K, P). b lies row by row: the inner loop is contiguous.
static void FN(product)(const struct product *s, const T *restrict a, const T *restrict b,
                        T *restrict out)
{
    int64_t step_m = s->transpose_a ? 1 : s->k, step_k = s->transpose_a ? s->m : 1;
    for (int64_t m = 0; m < s->m; m++) {
        T *restrict row = out + m * s->p;
        memset(row, 0, (size_t)s->p * sizeof(T));
        for (int64_t k = 0; k < s->k; k++) {
            const T x = a[m * step_m + k * step_k];
            const T *restrict y = b + k * s->p;
            for (int64_t p = 0; p < s->p; p++) {
                row[p] += x * y[p];
            }
        }
    }
}

static enum status FN(ref_matmul)(const struct op_call *call)
{
    struct product s = product_of(call->node);
    const T *a = call->in[0], *b = call->in[1];
    T *out = call->out;
    T *turned = s.transpose_b ? MEM_NEW_ARRAY(T, s.k * s.p) : NULL;  // (K, P)
    for (int64_t i = 0; i < s.batch; i++) {
        for (int64_t j = 0; turned && j < s.k * s.p; j++) {
            turned[j] = b[j % s.p * s.k + j / s.p];
        }
        FN(product)(&s, a, turned ? turned : b, out);
        a += s.m * s.k;
        b += s.k * s.p;
        out += s.m * s.p;
    }
    mem_free(turned);
    return STATUS_OK;
}
