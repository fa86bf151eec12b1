// SPDX-License-Identifier: Apache-2.0
// cpu_rows_impl.h: softmax and cross-entropy of rows, windows of images, batch normalisation.
// Private; compiled once an instruction set.
#ifndef CPU_ROWS_IMPL_H
#define CPU_ROWS_IMPL_H

#include "cpu_basic_impl.h"

// Loads and stores that may be short at the end of a row.
INLINE vec row_load(const float *p, int64_t left)
{
    return left >= LANES ? vec_load(p) : vec_load_part(p, left);
}

INLINE void row_store(float *p, vec v, int64_t left)
{
    if (left >= LANES) {
        vec_store(p, v);
    } else {
        vec_store_part(p, v, left);
    }
}

// ---- Softmax ------------------------------------------------------------------------------------

// y = exp(x - largest) of one row; returns their sum, and the largest. y may be x.
static float exp_row(const float *x, int64_t count, float *largest, float *y)
{
    float top = x[0], sum = 0;
    for (int64_t i = 1; i < count; i++) {
        top = x[i] > top || x[i] != x[i] ? x[i] : top;
    }
    for (int64_t i = 0; i < count; i++) {
        y[i] = expf(x[i] - top);
        sum += y[i];
    }
    *largest = top;
    return sum;
}

static void softmax_run(const float *x, int64_t rows, int64_t count, float *y)
{
    for (int64_t r = 0; r < rows; r++, x += count, y += count) {
        float largest, sum = exp_row(x, count, &largest, y);
        for (int64_t i = 0; i < count; i++) {
            y[i] /= sum;
        }
    }
}

static void softmax_grad_run(const float *y, const float *dy, int64_t rows, int64_t count,
                             float *dx)
{
    for (int64_t r = 0; r < rows; r++, y += count, dy += count, dx += count) {
        float dot = 0;
        for (int64_t i = 0; i < count; i++) {
            dot += y[i] * dy[i];
        }
        for (int64_t i = 0; i < count; i++) {
            dx[i] = y[i] * (dy[i] - dot);
        }
    }
}

// ---- Windows ------------------------------------------------------------------------------------

struct window {
    int64_t top, bottom, left, right;  // inside the image, the last ones exclusive
};

INLINE struct window window_at(const struct cpu_windows *t, int64_t p, int64_t q)
{
    int64_t top = p * t->stride[0] - t->pad[0], left = q * t->stride[1] - t->pad[1];
    return (struct window){MAX(top, (int64_t)0), MIN(top + t->window[0], t->h),
                           MAX(left, (int64_t)0), MIN(left + t->window[1], t->w)};
}

// The maximum over a window and which came first; a NaN is above all.
INLINE vec window_max(const struct cpu_windows *t, const struct window *b, const float *x,
                      int64_t c, vec_int *which)
{
    int64_t left = t->c - c;
    vec best = row_load(x + (b->top * t->w + b->left) * t->c + c, left);
    vec_int first = vec_int_set(0);
    int32_t number = 0;
    for (int64_t h = b->top; h < b->bottom; h++) {
        for (int64_t w = b->left; w < b->right; w++, number++) {
            vec v = row_load(x + (h * t->w + w) * t->c + c, left);
            vec_int wins = (v > best) | ((v != v) & (best == best));
            best = vec_select(wins, v, best);
            first = (wins & vec_int_set(number)) | (~wins & first);
        }
    }
    *which = first;
    return best;
}

INLINE vec window_mean(const struct cpu_windows *t, const struct window *b, const float *x,
                       int64_t c)
{
    vec sum = vec_set(0);
    for (int64_t h = b->top; h < b->bottom; h++) {
        for (int64_t w = b->left; w < b->right; w++) {
            sum += row_load(x + (h * t->w + w) * t->c + c, t->c - c);
        }
    }
    return sum / vec_set((float)((b->bottom - b->top) * (b->right - b->left)));
}

// Rows [first, last) of the N * P rows of results.
static void pool_run(const struct cpu_windows *t, int64_t first, int64_t last)
{
    for (int64_t row = first; row < last; row++) {
        const float *x = t->x + row / t->p * t->h * t->w * t->c;
        for (int64_t q = 0; q < t->q; q++) {
            struct window b = window_at(t, row % t->p, q);
            float *y = t->y + (row * t->q + q) * t->c;
            for (int64_t c = 0; c < t->c; c += LANES) {
                vec_int which;
                vec v = t->mean ? window_mean(t, &b, x, c) : window_max(t, &b, x, c, &which);
                row_store(y + c, v, t->c - c);
            }
        }
    }
}

INLINE void window_back(const struct cpu_windows *t, const struct window *b, const float *x,
                        int64_t c, vec dy, float *dx)
{
    vec_int which = vec_int_set(0);
    int32_t number = 0;
    if (t->mean) {
        dy /= vec_set((float)((b->bottom - b->top) * (b->right - b->left)));
    } else {
        window_max(t, b, x, c, &which);
    }
    for (int64_t h = b->top; h < b->bottom; h++) {
        for (int64_t w = b->left; w < b->right; w++, number++) {
            float *to = dx + (h * t->w + w) * t->c + c;
            vec share = t->mean ? dy : (vec)((which == vec_int_set(number)) & (vec_int)dy);
            row_store(to, row_load(to, t->c - c) + share, t->c - c);
        }
    }
}

// Images [first, last): dx from dy.
static void pool_grad_run(const struct cpu_windows *t, int64_t first, int64_t last)
{
    int64_t image = t->h * t->w * t->c;
    for (int64_t n = first; n < last; n++) {
        const float *x = t->mean ? NULL : t->x + n * image;
        float *dx = t->dx + n * image;
        memset(dx, 0, sizeof(float) * (size_t)image);
        for (int64_t i = 0; i < t->p * t->q; i++) {
            struct window b = window_at(t, i / t->q, i % t->q);
            const float *dy = t->dy + (n * t->p * t->q + i) * t->c;
            for (int64_t c = 0; c < t->c; c += LANES) {
                window_back(t, &b, x, c, row_load(dy + c, t->c - c), dx);
            }
        }
    }
}

// ---- Batch normalisation ------------------------------------------------------------------------

// Sums over rows of x (rows, c): of (x - mean)^2 into a, or with dy of dy * (x - mean) and dy into
// a, b.
static void norm_sums_run(const float *x, const float *mean, const float *dy, int64_t rows,
                          int64_t channels, float *a, float *b)
{
    for (int64_t c = 0; c < channels; c += LANES) {
        int64_t left = channels - c;
        vec m = row_load(mean + c, left), sum = vec_set(0), plain = vec_set(0);
        for (int64_t r = 0; r < rows; r++) {
            vec d = row_load(x + r * channels + c, left) - m;
            vec g = dy ? row_load(dy + r * channels + c, left) : d;
            sum = vec_fma(g, d, sum);
            plain += g;
        }
        row_store(a + c, sum, left);
        if (b) {
            row_store(b + c, plain, left);
        }
    }
}

// y = (x - mean) * scale + shift
static void norm_apply_run(const float *x, const float *mean, const float *scale,
                           const float *shift, int64_t rows, int64_t channels, float *y)
{
    for (int64_t r = 0; r < rows; r++, x += channels, y += channels) {
        for (int64_t c = 0; c < channels; c += LANES) {
            int64_t left = channels - c;
            vec d = row_load(x + c, left) - row_load(mean + c, left);
            vec v = vec_fma(d, row_load(scale + c, left), row_load(shift + c, left));
            row_store(y + c, v, left);
        }
    }
}

// dx = (dy - (a + (x - mean) * b)) * scale
static void norm_grad_run(const struct cpu_norm_grad *t, int64_t first, int64_t last)
{
    for (int64_t r = first; r < last; r++) {
        const float *x = t->x + r * t->channels, *dy = t->dy + r * t->channels;
        float *dx = t->dx + r * t->channels;
        for (int64_t c = 0; c < t->channels; c += LANES) {
            int64_t left = t->channels - c;
            vec d = row_load(x + c, left) - row_load(t->mean + c, left);
            vec common = vec_fma(d, row_load(t->b + c, left), row_load(t->a + c, left));
            row_store(dx + c, (row_load(dy + c, left) - common) * row_load(t->scale + c, left),
                      left);
        }
    }
}

#endif
