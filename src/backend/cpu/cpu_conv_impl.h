// SPDX-License-Identifier: Apache-2.0
// cpu_conv_impl.h: convolutions in NHWC without unfolding: register tiles read pixels through a
// table of pointers, one a tap and point, so stride, dilation and padding cost nothing in the inner
// loop. Private; compiled once an instruction set.
#ifndef CPU_CONV_IMPL_H
#define CPU_CONV_IMPL_H

#include "cpu_basic_impl.h"
#include "cpu_gemm_impl.h"

// A pixel outside the image.
static const float zero_pixel[CPU_DEPTH_MAX];

// Points a block: its pixels (32 K floats) stay in the second-level cache; at least 8 tiles a
// panel.
INLINE int64_t block_rows(const struct cpu_conv_task *task, int64_t rows, int64_t width,
                          int64_t depth)
{
    int64_t points = MAX((int64_t)48, MIN((int64_t)256, 32768 / MAX(depth, (int64_t)1)));
    int64_t count = MAX((int64_t)1, points / width);
    count = task->pool ? (count + 1) / 2 * 2 : count;
    return MIN(count, rows);
}

INLINE int64_t block_tiles(int64_t points)
{
    return CEIL_DIV(points, (int64_t)TILE_ROWS);
}

static int64_t conv_packed_size(const struct cpu_pass *pass)
{
    return CEIL_DIV(pass->cols, (int64_t)TILE_COLS) * TILE_COLS * pass->taps * pass->depth;
}

// Panels [panel][tap][depth][TILE_COLS] of every pass that will run; the threads share the panels.
static void conv_pack_run(const struct cpu_conv_task *task, int thread, int threads)
{
    const struct cpu_conv *conv = task->conv;
    for (int i = 0; i < task->pass_count; i++) {
        const struct cpu_pass *pass = &task->passes[i];
        if (pass->transposed != task->backward) {
            continue;
        }
        int64_t panels = CEIL_DIV(pass->cols, (int64_t)TILE_COLS);
        for (int64_t panel = part_start(panels, thread, threads);
             panel < part_start(panels, thread + 1, threads); panel++) {
            int64_t j = panel * TILE_COLS;
            for (int64_t t = 0; t < pass->taps; t++) {
                const float *w = task->w + pass->weight[t] * conv->c * conv->k;
                pack_panel(w + (pass->transposed ? j * conv->k : j), conv->k, pass->transposed,
                           pass->depth, MIN((int64_t)TILE_COLS, pass->cols - j),
                           task->packed + pass->packed +
                               (panel * pass->taps + t) * pass->depth * TILE_COLS);
            }
        }
    }
}

// Points [row, row_end) x all columns of the grid; `image` is the operand's, `out` the result's.
struct conv_block {
    const struct cpu_pass *pass;
    const float *image, *packed;
    float *out;
    int64_t row, row_end;
    const float *bias;
    bool relu;
};

// rows[tile][tap][TILE_ROWS] and out[tile][TILE_ROWS]
static void conv_pointers(const struct conv_block *block, int64_t tiles, const float **rows,
                          float **out)
{
    const struct cpu_pass *pass = block->pass;
    int64_t points = (block->row_end - block->row) * pass->grid[1];
    for (int64_t t = 0; t < tiles; t++, out += TILE_ROWS) {
        int64_t first = part_start(points, t, tiles), last = part_start(points, t + 1, tiles);
        for (int64_t point = first; point < last; point++) {
            int64_t p = block->row + point / pass->grid[1], q = point % pass->grid[1];
            const float **to = rows + t * pass->taps * TILE_ROWS + (point - first);
            for (int64_t k = 0; k < pass->taps; k++, to += TILE_ROWS) {
                int64_t h = p * pass->stride[0] + pass->at[k][0];
                int64_t w = q * pass->stride[1] + pass->at[k][1];
                bool inside = h >= 0 && h < pass->in[0] && w >= 0 && w < pass->in[1];
                *to = inside ? block->image + (h * pass->in[1] + w) * pass->in_step : zero_pixel;
            }
            out[point - first] =
                block->out + ((pass->out_start[0] + p * pass->out_stride[0]) * pass->out_width +
                              pass->out_start[1] + q * pass->out_stride[1]) * pass->cols;
        }
    }
}

// table: pointers for the block's tiles.
static void conv_block_run(const struct conv_block *block, void *table)
{
    const struct cpu_pass *pass = block->pass;
    int64_t points = (block->row_end - block->row) * pass->grid[1], tiles = block_tiles(points);
    const float **rows = table;
    float **out = (float **)(void *)(rows + tiles * pass->taps * TILE_ROWS);
    conv_pointers(block, tiles, rows, out);
    struct tile_job job = {.taps = pass->taps, .depth = pass->depth, .ldb = TILE_COLS,
                           .finish = true, .relu = block->relu};
    float *place[TILE_ROWS];
    for (int64_t j = 0; j < pass->cols; j += TILE_COLS) {
        job.b = block->packed + j * pass->taps * pass->depth;
        job.cols = MIN((int64_t)TILE_COLS, pass->cols - j);
        job.bias = block->bias ? block->bias + j : NULL;
        job.out = place;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t count = part_start(points, t + 1, tiles) - part_start(points, t, tiles);
            for (int64_t i = 0; i < count; i++) {
                place[i] = out[t * TILE_ROWS + i] + j;
            }
            job.a = rows + t * pass->taps * TILE_ROWS;
            tile_run(count, &job);
        }
    }
}

// ---- Pooling by 2 x 2 ---------------------------------------------------------------------------

// The maximum of four, NaN if one is, and which came first: 0 to 3, with 4 added when the maximum
// is not positive: then relu lets no gradient through.
INLINE void pool_of_four(const vec v[4], vec *best, vec_int *code)
{
    vec m = vec_max(vec_max(v[0], v[1]), vec_max(v[2], v[3]));
    vec_int other = v[0] != m, others = other;
    other &= v[1] != m;
    others += other;
    other &= v[2] != m;
    others += other;  // minus the number of elements before the first maximum
    vec_int nan = ((v[0] != v[0]) | (v[1] != v[1])) | ((v[2] != v[2]) | (v[3] != v[3]));
    *best = (vec)((vec_int)m | nan);
    *code = -others | (~(*best > vec_set(0)) & 4);
}

// in: 2 * rows of (width, k); y, codes: rows of (width / 2, k). The values went through relu.
static void pool_rows(const float *in, int64_t rows, int64_t width, int64_t k, float *y,
                      uint8_t *codes)
{
    int64_t half = width / 2;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t q = 0; q < half; q++) {
            const float *at[4];
            for (int64_t e = 0; e < 4; e++) {
                at[e] = in + ((2 * r + e / 2) * width + 2 * q + e % 2) * k;
            }
            float *to = y + (r * half + q) * k;
            uint8_t *code = codes + (r * half + q) * k;
            for (int64_t c = 0; c < k; c += LANES) {
                vec four[4] = {vec_load(at[0] + c), vec_load(at[1] + c), vec_load(at[2] + c),
                               vec_load(at[3] + c)}, best;
                vec_int which;
                pool_of_four(four, &best, &which);
                vec_store(to + c, best);
                vec_store_bytes(code + c, which);
            }
        }
    }
}

// ---- Scratch ------------------------------------------------------------------------------------

// A thread's scratch: the pointers of a block; a panel of the gradient (when its last columns do
// not fill a tile); an image of results or of their gradient; an image of x with its padding.
struct conv_scratch {
    void *table;
    float *panel, *image, *padded;
};

INLINE size_t scratch_take(size_t *total, size_t size)
{
    size_t at = *total;
    *total += CEIL_DIV(size, (size_t)MEM_ALIGN) * MEM_ALIGN;
    return at;
}

static size_t conv_scratch_at(const struct cpu_conv_task *task, int thread,
                              struct conv_scratch *out)
{
    const struct cpu_conv *conv = task->conv;
    const struct cpu_pass *forward = task->passes;
    size_t table = 0, total = 0;
    for (int i = 0; i < task->pass_count; i++) {
        const struct cpu_pass *pass = &task->passes[i];
        int64_t rows = block_rows(task, pass->grid[0], pass->grid[1], pass->taps * pass->depth);
        int64_t tiles = block_tiles(rows * pass->grid[1]);
        table = MAX(table, sizeof(void *) * (size_t)(tiles * TILE_ROWS * (pass->taps + 1)));
    }
    int64_t points = conv->q * block_rows(task, conv->p, conv->q, conv->c);
    table = MAX(table, sizeof(void *) * (size_t)points);
    bool whole = task->pool || task->gradient != GRADIENT_PLAIN;
    int64_t image = whole ? conv->p * conv->q * conv->k : 0;
    int64_t panel = conv->k % TILE_COLS ? points * TILE_COLS : 0;
    if (task->narrow) {  // forward keeps no image; backward has the quads of x
        image = task->backward ? 4 * forward->in[0] * forward->in[1] * conv->c : 0;
    }
    size_t at[4] = {
        scratch_take(&total, table),
        scratch_take(&total, sizeof(float) * (size_t)panel),
        scratch_take(&total, sizeof(float) * (size_t)image),
        scratch_take(&total, forward->padded ? sizeof(float) * (size_t)(forward->in[0] *
                                                   forward->in[1] * conv->c) : 0)};
    char *base = task->scratch ? task->scratch + (size_t)thread * task->scratch_step : NULL;
    if (base) {
        *out = (struct conv_scratch){base + at[0], (float *)(void *)(base + at[1]),
                                     (float *)(void *)(base + at[2]),
                                     (float *)(void *)(base + at[3])};
    }
    return total;
}

// Image n of x as the forward pass reads it: itself, or a copy with its padding around it.
static const float *forward_image(const struct cpu_conv_task *task, int64_t n, float *padded)
{
    const struct cpu_conv *conv = task->conv;
    const struct cpu_pass *pass = task->passes;
    if (!task->x) {
        return NULL;
    }
    const float *x = task->x + n * conv->h * conv->w * conv->c;
    if (!pass->padded) {
        return x;
    }
    memset(padded, 0, sizeof(float) * (size_t)(pass->in[0] * pass->in[1] * conv->c));
    for (int64_t h = 0; h < conv->h; h++) {
        memcpy(padded + ((h + conv->pad[0]) * pass->in[1] + conv->pad[1]) * conv->c,
               x + h * conv->w * conv->c, sizeof(float) * (size_t)(conv->w * conv->c));
    }
    return padded;
}

// ---- Forward ------------------------------------------------------------------------------------

static void conv_forward_run(const struct cpu_conv_task *task, int thread, int threads)
{
    const struct cpu_conv *conv = task->conv;
    const struct cpu_pass *pass = task->passes;
    struct conv_scratch scratch;
    conv_scratch_at(task, thread, &scratch);
    int64_t rows = block_rows(task, conv->p, conv->q, pass->taps * pass->depth);
    int64_t blocks = CEIL_DIV(conv->p, rows), units = conv->n * blocks, held = -1;
    int64_t p2 = conv->p / 2, q2 = conv->q / 2;
    const float *x = NULL;
    for (int64_t u = part_start(units, thread, threads);
         u < part_start(units, thread + 1, threads); u++) {
        int64_t n = u / blocks, row = u % blocks * rows;
        x = n == held ? x : forward_image(task, n, scratch.padded);
        held = n;
        struct conv_block block = {
            .pass = pass, .packed = task->packed + pass->packed, .image = x,
            .out = task->pool ? scratch.image : task->y + n * conv->p * conv->q * conv->k,
            .row = row, .row_end = MIN(row + rows, conv->p), .bias = task->bias,
            .relu = task->relu};
        conv_block_run(&block, scratch.table);
        if (task->pool) {
            int64_t out = (n * p2 + row / 2) * q2 * conv->k;
            pool_rows(scratch.image + row * conv->q * conv->k, (block.row_end - row) / 2, conv->q,
                      conv->k, task->y + out, task->codes + out);
        }
    }
}

// ---- Backward -----------------------------------------------------------------------------------

// The gradient of the convolution's result, an image of it: through relu, or through pool and relu.
static const float *gradient_image(const struct cpu_conv_task *task, int64_t n, float *out)
{
    const struct cpu_conv *conv = task->conv;
    int64_t k = conv->k, size = conv->p * conv->q * k;
    if (task->gradient == GRADIENT_PLAIN) {
        return task->dy + n * size;
    }
    if (task->gradient == GRADIENT_RELU) {
        const float *y = task->y + n * size, *dy = task->dy + n * size;
        for (int64_t i = 0; i < size; i += LANES) {  // k is a multiple of LANES
            vec mask = vec_load(y + i);
            vec_store(out + i, (vec)((mask > vec_set(0)) & (vec_int)vec_load(dy + i)));
        }
        return out;
    }
    int64_t p2 = conv->p / 2, q2 = conv->q / 2;
    for (int64_t p = 0; p < conv->p; p++) {
        if (p / 2 == p2) {  // an odd last row is in no window
            memset(out + p * conv->q * k, 0, sizeof(float) * (size_t)(conv->q * k));
            continue;
        }
        const float *dy = task->dy + ((n * p2 + p / 2) * q2) * k;
        const uint8_t *codes = task->codes + ((n * p2 + p / 2) * q2) * k;
        float *to = out + p * conv->q * k;
        vec_int left = vec_int_set((int32_t)(p % 2 * 2)), right = left + 1;
        for (int64_t q = 0; q < q2; q++, dy += k, codes += k, to += 2 * k) {
            for (int64_t c = 0; c < k; c += LANES) {
                vec_int code = vec_load_bytes(codes + c), g = (vec_int)vec_load(dy + c);
                vec_store(to + c, (vec)((code == left) & g));
                vec_store(to + k + c, (vec)((code == right) & g));
            }
        }
        if (conv->q % 2) {
            memset(to, 0, sizeof(float) * (size_t)k);
        }
    }
    return out;
}

// dw[r][s][c][k] += sum over points of [row, row_end) of x * g.
static void conv_dw_block(const struct cpu_conv_task *task, const float *x, const float *g,
                          int64_t row, int64_t row_end, float *dw, struct conv_scratch *scratch)
{
    const struct cpu_conv *conv = task->conv;
    const struct cpu_pass *pass = task->passes;
    int64_t points = (row_end - row) * conv->q, tiles = block_tiles(pass->depth);
    int64_t full = conv->k / TILE_COLS * TILE_COLS;
    const float **table = scratch->table;
    g += row * conv->q * conv->k;
    if (full < conv->k) {
        pack_panel(g + full, conv->k, false, points, conv->k - full, scratch->panel);
    }
    for (int64_t tap = 0; tap < pass->taps; tap++) {
        for (int64_t i = 0; i < points; i++) {
            int64_t h = (row + i / conv->q) * pass->stride[0] + pass->at[tap][0];
            int64_t w = i % conv->q * pass->stride[1] + pass->at[tap][1];
            bool inside = h >= 0 && h < pass->in[0] && w >= 0 && w < pass->in[1];
            table[i] = inside ? x + (h * pass->in[1] + w) * pass->in_step : zero_pixel;
        }
        struct tile_job job = {.a = table, .by_columns = true, .depth = points,
                               .accumulate = true};
        for (int64_t j = 0; j < conv->k; j += TILE_COLS) {
            job.cols = MIN((int64_t)TILE_COLS, conv->k - j);
            job.b = j < full ? g + j : scratch->panel;
            job.ldb = j < full ? conv->k : TILE_COLS;
            for (int64_t t = 0; t < tiles; t++) {
                int64_t c = part_start(pass->depth, t, tiles);
                int64_t count = part_start(pass->depth, t + 1, tiles) - c;
                float *out[TILE_ROWS];
                for (int64_t i = 0; i < count; i++) {
                    out[i] = dw + (pass->weight[tap] * conv->c + c + i) * conv->k + j;
                }
                job.offset = c;
                job.out = out;
                tile_run(count, &job);
            }
        }
    }
}

static void conv_dx_image(const struct cpu_conv_task *task, const float *g, float *dx, void *table)
{
    for (int i = 1; i < task->pass_count; i++) {
        const struct cpu_pass *pass = &task->passes[i];
        int64_t rows = block_rows(task, pass->grid[0], pass->grid[1], pass->taps * pass->depth);
        for (int64_t row = 0; row < pass->grid[0]; row += rows) {
            struct conv_block block = {.pass = pass, .packed = task->packed + pass->packed,
                                       .image = g, .out = dx, .row = row,
                                       .row_end = MIN(row + rows, pass->grid[0])};
            conv_block_run(&block, table);
        }
    }
}

static void conv_backward_run(const struct cpu_conv_task *task, int thread, int threads)
{
    const struct cpu_conv *conv = task->conv;
    struct conv_scratch scratch;
    conv_scratch_at(task, thread, &scratch);
    float *dw = task->dw ? task->dw + thread * task->dw_step : NULL;
    float *db = task->db ? task->db + thread * task->db_step : NULL;
    if (dw) {
        memset(dw, 0, sizeof(float) * (size_t)(conv->r * conv->s * conv->c * conv->k));
    }
    if (db) {
        memset(db, 0, sizeof(float) * (size_t)conv->k);
    }
    int64_t rows = block_rows(task, conv->p, conv->q, conv->c);
    for (int64_t n = part_start(conv->n, thread, threads);
         n < part_start(conv->n, thread + 1, threads); n++) {
        const float *g = gradient_image(task, n, scratch.image);
        if (db) {
            sum_rows(g, conv->p * conv->q, conv->k, db, true);
        }
        const float *x = dw ? forward_image(task, n, scratch.padded) : NULL;
        for (int64_t row = 0; row < conv->p && dw; row += rows) {
            conv_dw_block(task, x, g, row, MIN(row + rows, conv->p), dw, &scratch);
        }
        if (task->dx) {
            conv_dx_image(task, g, task->dx + n * conv->h * conv->w * conv->c, scratch.table);
        }
    }
}

#endif
