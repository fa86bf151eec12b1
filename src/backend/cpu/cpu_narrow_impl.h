// SPDX-License-Identifier: Apache-2.0
// cpu_narrow_impl.h: the first convolution of a small network: few input channels, then relu and a
// 2 x 2 maximum. Forward, the four results under a window stay in registers until the maximum is
// known. Backward, each channel's gradient goes to one of the four: instead of spreading it, the
// pixel that the winner saw is picked for each lane. Private; compiled once an instruction set.
#ifndef CPU_NARROW_IMPL_H
#define CPU_NARROW_IMPL_H

#include "cpu_conv_impl.h"

// y (q2, k .. k + vectors * LANES) of pooled row `row`; x is the padded image. Taps r < rows and
// d < depth = S * C are the weights w[(r * depth + d) * k_all + k].
struct narrow_row {
    const float *x;        // first pixel of the window row
    int64_t x_step;        // floats a row of x
    int64_t channels, rows, depth, k_all, count;
    const float *w, *bias; // at channel k
    float *y;              // at channel k
    uint8_t *codes;
};

INLINE void narrow_store(const struct narrow_row *t, int64_t q, int vectors, vec acc[4][2])
{
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) {
        vec four[4] = {acc[0][v], acc[1][v], acc[2][v], acc[3][v]}, best;
        vec_int code;
        pool_of_four(four, &best, &code);
        vec_store(t->y + q * t->k_all + v * LANES, vec_relu(best));
        vec_store_bytes(t->codes + q * t->k_all + v * LANES, code);
    }
}

// A 3 x 3 filter on one channel: its nine weights stay in registers.
static void narrow_row_3x3(const struct narrow_row *t)
{
    vec w[9], bias = t->bias ? vec_load(t->bias) : vec_set(0);
    for (int i = 0; i < 9; i++) {
        w[i] = vec_load(t->w + i * t->k_all);
    }
    for (int64_t q = 0; q < t->count; q++) {
        vec acc[4][2] = {{bias}, {bias}, {bias}, {bias}};
        const float *x = t->x + 2 * q;
#pragma GCC unroll 4
        for (int h = 0; h < 4; h++, x += t->x_step) {
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                vec pixel = vec_set(x[c]);
#pragma GCC unroll 4
                for (int e = 0; e < 4; e++) {
                    int r = h - e / 2, s = c - e % 2;
                    if (r >= 0 && r < 3 && s >= 0 && s < 3) {
                        acc[e][0] = vec_fma(pixel, w[r * 3 + s], acc[e][0]);
                    }
                }
            }
        }
        narrow_store(t, q, 1, acc);
    }
}

INLINE void narrow_row_any(const struct narrow_row *t, int vectors)
{
    for (int64_t q = 0; q < t->count; q++) {
        vec acc[4][2];
#pragma GCC unroll 4
        for (int e = 0; e < 4; e++) {
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                acc[e][v] = t->bias ? vec_load(t->bias + v * LANES) : vec_set(0);
            }
        }
        const float *w = t->w;
        for (int64_t r = 0; r < t->rows; r++) {
            const float *x = t->x + r * t->x_step + 2 * q * t->channels;
            for (int64_t d = 0; d < t->depth; d++, w += t->k_all) {
                const float *at[4] = {x + d, x + t->channels + d, x + t->x_step + d,
                                      x + t->x_step + t->channels + d};
#pragma GCC unroll 4
                for (int e = 0; e < 4; e++) {
                    vec pixel = vec_set(*at[e]);
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; v++) {
                        acc[e][v] = vec_fma(pixel, vec_load(w + v * LANES), acc[e][v]);
                    }
                }
            }
        }
        narrow_store(t, q, vectors, acc);
    }
}

static void narrow_forward_run(const struct cpu_conv_task *task, int thread, int threads)
{
    const struct cpu_conv *conv = task->conv;
    const struct cpu_pass *pass = task->passes;
    struct conv_scratch scratch;
    conv_scratch_at(task, thread, &scratch);
    int64_t p2 = conv->p / 2, q2 = conv->q / 2, units = conv->n * p2, held = -1;
    const float *x = NULL;
    for (int64_t u = part_start(units, thread, threads);
         u < part_start(units, thread + 1, threads); u++) {
        int64_t n = u / p2, row = u % p2;
        x = n == held ? x : forward_image(task, n, scratch.padded);
        held = n;
        struct narrow_row t = {.x = x + 2 * row * pass->in[1] * conv->c,
                               .x_step = pass->in[1] * conv->c, .channels = conv->c,
                               .rows = conv->r, .depth = pass->depth, .k_all = conv->k,
                               .count = q2};
        bool small = conv->r == 3 && pass->depth == 3 && conv->c == 1;
        for (int64_t k = 0; k < conv->k;) {
            t.w = task->w + k;
            t.bias = task->bias ? task->bias + k : NULL;
            t.y = task->y + u * q2 * conv->k + k;
            t.codes = task->codes + u * q2 * conv->k + k;
            int vectors = !small && k + TILE_COLS <= conv->k ? 2 : 1;
            if (small) {
                narrow_row_3x3(&t);
            } else if (vectors == 2) {
                narrow_row_any(&t, 2);
            } else {
                narrow_row_any(&t, 1);
            }
            k += vectors * LANES;
        }
    }
}

// ---- Backward -----------------------------------------------------------------------------------

// Lane i: table[code[i]] of four floats.
INLINE vec vec_pick(const float *table, vec_int code)
{
#if LANES == 16
    return (vec)_mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(table)), (__m512i)code);
#elif LANES == 8
    return (vec)_mm256_permutevar_ps(_mm256_broadcast_ps((const __m128 *)(const void *)table),
                                     (__m256i)code);
#else
    return (vec){table[code[0] & 3], table[code[1] & 3], table[code[2] & 3], table[code[3] & 3]};
#endif
}

// quads[h][i] = the pixels (h, i), (h, i + c), (h + 1, i), (h + 1, i + c) of rows of floats: what
// the four results of a window see through one tap.
static void narrow_quads(const float *x, int64_t rows, int64_t width, int64_t c, float *quads)
{
    for (int64_t h = 0; h + 1 < rows; h++) {
        const float *top = x + h * width, *below = top + width;
        float *to = quads + h * width * 4;
        int64_t i = 0;
        for (; i + c + 4 <= width; i += 4) {
            const float *row[4] = {top + i, top + i + c, below + i, below + i + c};
            transpose_4x4(row, to + i * 4, 4);
        }
        for (; i + c < width; i++) {
            to[i * 4] = top[i];
            to[i * 4 + 1] = top[i + c];
            to[i * 4 + 2] = below[i];
            to[i * 4 + 3] = below[i + c];
        }
    }
}

struct narrow_back {
    const float *quads;
    int64_t width, channels;      // floats a row of quads / 4; channels of x
    int64_t p2, q2, k_all;
    const float *dy;              // of the image, at channel k
    const uint8_t *codes;
    float *dw;                    // at channel k
    int64_t depth;
};

// dw of `count` taps from (r, d) on, in the order of their weights.
INLINE void narrow_taps(const struct narrow_back *t, int count, const int64_t *offset, float *dw,
                        float *db)
{
    vec acc[9], sum = db ? vec_load(db) : vec_set(0);
#pragma GCC unroll 9
    for (int i = 0; i < count; i++) {
        acc[i] = vec_load(dw + i * t->k_all);
    }
    for (int64_t p = 0; p < t->p2; p++) {
        for (int64_t q = 0; q < t->q2; q++) {
            int64_t at = (p * t->q2 + q) * t->k_all;
            vec_int code = vec_load_bytes(t->codes + at);
            vec g = (vec)((code < 4) & (vec_int)vec_load(t->dy + at));
            const float *quad = t->quads + (2 * p * t->width + 2 * q * t->channels) * 4;
            sum += g;
#pragma GCC unroll 9
            for (int i = 0; i < count; i++) {
                acc[i] = vec_fma(vec_pick(quad + offset[i], code), g, acc[i]);
            }
        }
    }
#pragma GCC unroll 9
    for (int i = 0; i < count; i++) {
        vec_store(dw + i * t->k_all, acc[i]);
    }
    if (db) {
        vec_store(db, sum);
    }
}

static void narrow_image(const struct narrow_back *t, int64_t taps, float *db)
{
    for (int64_t tap = 0; tap < taps;) {
        int64_t offset[9], left = taps - tap;
        for (int64_t i = 0; i < 9; i++) {
            offset[i] = ((tap + i) / t->depth * t->width + (tap + i) % t->depth) * 4;
        }
        float *dw = t->dw + tap * t->k_all, *sum = tap == 0 ? db : NULL;
        if (left >= 9) {
            narrow_taps(t, 9, offset, dw, sum);
            tap += 9;
        } else if (left >= 4) {
            narrow_taps(t, 4, offset, dw, sum);
            tap += 4;
        } else {
            narrow_taps(t, 1, offset, dw, sum);
            tap += 1;
        }
    }
}

static void narrow_backward_run(const struct cpu_conv_task *task, int thread, int threads)
{
    const struct cpu_conv *conv = task->conv;
    const struct cpu_pass *pass = task->passes;
    struct conv_scratch scratch;
    conv_scratch_at(task, thread, &scratch);
    float *dw = task->dw + thread * task->dw_step;
    float *db = task->db ? task->db + thread * task->db_step : NULL;
    memset(dw, 0, sizeof(float) * (size_t)(conv->r * conv->s * conv->c * conv->k));
    if (db) {
        memset(db, 0, sizeof(float) * (size_t)conv->k);
    }
    int64_t image = conv->p / 2 * (conv->q / 2) * conv->k;
    struct narrow_back t = {.quads = scratch.image, .width = pass->in[1] * conv->c,
                            .channels = conv->c, .p2 = conv->p / 2, .q2 = conv->q / 2,
                            .k_all = conv->k, .depth = pass->depth};
    for (int64_t n = part_start(conv->n, thread, threads);
         n < part_start(conv->n, thread + 1, threads); n++) {
        narrow_quads(forward_image(task, n, scratch.padded), pass->in[0], t.width, conv->c,
                     scratch.image);
        for (int64_t k = 0; k < conv->k; k += LANES) {
            t.dy = task->dy + n * image + k;
            t.codes = task->codes + n * image + k;
            t.dw = dw + k;
            narrow_image(&t, conv->r * pass->depth, db ? db + k : NULL);
        }
    }
}

#endif
