// SPDX-License-Identifier: Apache-2.0
// op_pool_ref.h: pooling for the element type T. See op_real.h.
// Each kernel visits the windows of every image and channel; x (H, W, C) is read with step C.

// Element of the first maximum of a window.
static const T *FN(window_max)(const struct box *b, const T *x)
{
    const T *best = x + b->top * b->row + b->left * b->column;
    for (int64_t h = b->top; h < b->bottom; h++) {
        for (int64_t w = b->left; w < b->right; w++) {
            const T *e = x + h * b->row + w * b->column;
            best = *e > *best || isnan(*e) ? e : best;  // NaN is never masked
        }
    }
    return best;
}

static enum status FN(ref_max_pool)(const struct op_call *call)
{
    struct pool s = pool_of(call->node);
    T *y = call->out;
    for (int64_t i = 0; i < s.n * s.p * s.q; i++) {
        struct box b = pool_box(&s, i);
        for (int64_t c = 0; c < s.c; c++) {
            y[i * s.c + c] = *FN(window_max)(&b, (const T *)call->in[0] + b.image + c);
        }
    }
    return STATUS_OK;
}

static enum status FN(ref_max_pool_grad)(const struct op_call *call)
{
    struct pool s = pool_of(call->node);
    const T *x = call->in[0], *dy = call->in[1];
    T *dx = call->out;
    memset(dx, 0, node_bytes(call->node));
    for (int64_t i = 0; i < s.n * s.p * s.q; i++) {
        struct box b = pool_box(&s, i);
        for (int64_t c = 0; c < s.c; c++) {
            dx[FN(window_max)(&b, x + b.image + c) - x] += dy[i * s.c + c];
        }
    }
    return STATUS_OK;
}

static enum status FN(ref_avg_pool)(const struct op_call *call)
{
    struct pool s = pool_of(call->node);
    T *y = call->out;
    for (int64_t i = 0; i < s.n * s.p * s.q; i++) {
        struct box b = pool_box(&s, i);
        for (int64_t c = 0; c < s.c; c++) {
            const T *x = (const T *)call->in[0] + b.image + c;
            double sum = 0;
            for (int64_t h = b.top; h < b.bottom; h++) {
                for (int64_t w = b.left; w < b.right; w++) {
                    sum += (double)x[h * b.row + w * b.column];
                }
            }
            y[i * s.c + c] = (T)(sum / b.count);
        }
    }
    return STATUS_OK;
}

static enum status FN(ref_avg_pool_grad)(const struct op_call *call)
{
    struct pool s = pool_of(call->node);
    const T *dy = call->in[0];
    memset(call->out, 0, node_bytes(call->node));
    for (int64_t i = 0; i < s.n * s.p * s.q; i++) {
        struct box b = pool_box(&s, i);
        for (int64_t c = 0; c < s.c; c++) {
            T *dx = (T *)call->out + b.image + c;
            T share = dy[i * s.c + c] / (T)b.count;
            for (int64_t h = b.top; h < b.bottom; h++) {
                for (int64_t w = b.left; w < b.right; w++) {
                    dx[h * b.row + w * b.column] += share;
                }
            }
        }
    }
    return STATUS_OK;
}
