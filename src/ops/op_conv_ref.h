// SPDX-License-Identifier: Apache-2.0
// op_conv_ref.h: convolution and its two gradients for the element type T. See op_real.h.
// The three visit the same pairs of an input element and an output pixel; a tap says what happens
// there to the input element x, the filter row w (K / groups) and the output row y (K / groups).

typedef void FN(tap)(T *restrict x, T *restrict w, T *restrict y, int64_t k);

static void FN(tap_y)(T *restrict x, T *restrict w, T *restrict y, int64_t k)
{
    for (int64_t i = 0; i < k; i++) {
        y[i] += *x * w[i];
    }
}

static void FN(tap_dx)(T *restrict x, T *restrict w, T *restrict y, int64_t k)
{
    T sum = 0;
    for (int64_t i = 0; i < k; i++) {
        sum += y[i] * w[i];
    }
    *x += sum;
}

static void FN(tap_dw)(T *restrict x, T *restrict w, T *restrict y, int64_t k)
{
    for (int64_t i = 0; i < k; i++) {
        w[i] += *x * y[i];
    }
}

// One output pixel: image x (H, W, C), filters w (R, S, C / groups, K), pixel y (K) at (p, q).
static inline void FN(conv_pixel)(const struct conv *s, T *x, T *w, T *y, int64_t p, int64_t q,
                                  FN(tap) *tap)
{
    for (int64_t r = 0; r < s->r; r++) {
        int64_t h = p * s->attr->stride[0] - s->attr->pad_before[0] + r * s->attr->dilation[0];
        for (int64_t i = 0; i < s->s && h >= 0 && h < s->h; i++) {
            int64_t v = q * s->attr->stride[1] - s->attr->pad_before[1] + i * s->attr->dilation[1];
            for (int64_t c = 0; c < s->c && v >= 0 && v < s->w; c++) {
                int64_t first = c / s->group_c * s->group_k;  // of the group's output channels
                int64_t row = (r * s->s + i) * s->group_c + c % s->group_c;
                tap(x + (h * s->w + v) * s->c + c, w + row * s->k + first, y + first, s->group_k);
            }
        }
    }
}

static inline enum status FN(conv)(const struct op_call *call, const struct conv *s,
                                   const void *x, const void *w, const void *y, FN(tap) *tap)
{
    memset(call->out, 0, node_bytes(call->node));
    T *image = (T *)(uintptr_t)x, *pixel = (T *)(uintptr_t)y;  // only `out` is written
    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t p = 0; p < s->p; p++) {
            for (int64_t q = 0; q < s->q; q++) {
                FN(conv_pixel)(s, image, (T *)(uintptr_t)w, pixel, p, q, tap);
                pixel += s->k;
            }
        }
        image += s->h * s->w * s->c;
    }
    return STATUS_OK;
}

static enum status FN(ref_conv2d)(const struct op_call *call)
{
    struct conv s = conv_of(call->node);
    return FN(conv)(call, &s, call->in[0], call->in[1], call->out, FN(tap_y));
}

static enum status FN(ref_conv2d_dx)(const struct op_call *call)
{
    struct conv s = conv_of(call->node);
    return FN(conv)(call, &s, call->out, call->in[1], call->in[0], FN(tap_dx));
}

static enum status FN(ref_conv2d_dw)(const struct op_call *call)
{
    struct conv s = conv_of(call->node);
    return FN(conv)(call, &s, call->in[0], call->out, call->in[1], FN(tap_dw));
}
