// SPDX-License-Identifier: Apache-2.0
// cpu_gemm_impl.h: the register tile on which matrix products and convolutions stand, and the
// matrix product. A tile is up to TILE_ROWS x TILE_COLS results held in registers (6 x 2 vectors:
// twelve sums hide the latency of two multiply-adds a cycle and leave room for their operands).
// Every result is the sum over k in ascending order whatever the tile's height is, so a row's value
// does not depend on how many rows there are. Private; compiled once an instruction set.
#ifndef CPU_GEMM_IMPL_H
#define CPU_GEMM_IMPL_H

#include "cpu_impl.h"
#include "cpu_vec_impl.h"

enum { TILE_COLS = 2 * LANES };

// acc[i] += sum over taps t, depth c of rows[t * TILE_ROWS + i][c] * b[(t * depth + c) * ldb ...].
#define TILE_BODY(ROWS, ELEMENT)                                       \
    do {                                                               \
        vec b0 = vec_load(b), b1 = vec_load(b + LANES);                \
        _Pragma("GCC unroll 6") for (int i = 0; i < (ROWS); i++)       \
        {                                                              \
            vec a_ = vec_set(ELEMENT);                                 \
            acc[i][0] = vec_fma(a_, b0, acc[i][0]);                    \
            acc[i][1] = vec_fma(a_, b1, acc[i][1]);                    \
        }                                                              \
        b += ldb;                                                      \
    } while (0)

INLINE void tile_zero(int count, vec acc[TILE_ROWS][2])
{
#pragma GCC unroll 6
    for (int i = 0; i < count; i++) {
        acc[i][0] = acc[i][1] = vec_set(0);
    }
}

// Rows of A lie along k.
INLINE void tile_rows(int count, int64_t taps, int64_t depth, const float *const *rows,
                      const float *b, int64_t ldb, vec acc[TILE_ROWS][2])
{
    for (int64_t t = 0; t < taps; t++, rows += TILE_ROWS) {
        const float *row[TILE_ROWS];
#pragma GCC unroll 6
        for (int i = 0; i < count; i++) {
            row[i] = rows[i];
        }
        for (int64_t c = 0; c < depth; c++) {
            TILE_BODY(count, row[i][c]);
        }
    }
}

// Columns of A lie along k: element (i, k) is columns[k][offset + i].
INLINE void tile_columns(int count, int64_t depth, const float *const *columns, int64_t offset,
                         const float *b, int64_t ldb, vec acc[TILE_ROWS][2])
{
    for (int64_t k = 0; k < depth; k++) {
        const float *column = columns[k] + offset;
        TILE_BODY(count, column[i]);
    }
}

// Loads or stores `cols` <= TILE_COLS results a row.
INLINE void tile_load(int count, float *const *out, int64_t cols, vec acc[TILE_ROWS][2])
{
    if (cols == TILE_COLS) {
#pragma GCC unroll 6
        for (int i = 0; i < count; i++) {
            acc[i][0] = vec_load(out[i]);
            acc[i][1] = vec_load(out[i] + LANES);
        }
        return;
    }
#pragma GCC unroll 6
    for (int i = 0; i < count; i++) {
        acc[i][0] = vec_load_part(out[i], MIN(cols, (int64_t)LANES));
        acc[i][1] = vec_load_part(out[i] + LANES, MAX(cols - LANES, (int64_t)0));
    }
}

INLINE void tile_store(int count, float *const *out, int64_t cols, vec acc[TILE_ROWS][2])
{
    if (cols == TILE_COLS) {
#pragma GCC unroll 6
        for (int i = 0; i < count; i++) {
            vec_store(out[i], acc[i][0]);
            vec_store(out[i] + LANES, acc[i][1]);
        }
        return;
    }
#pragma GCC unroll 6
    for (int i = 0; i < count; i++) {
        vec_store_part(out[i], acc[i][0], MIN(cols, (int64_t)LANES));
        vec_store_part(out[i] + LANES, acc[i][1], MAX(cols - LANES, (int64_t)0));
    }
}

INLINE vec bias_part(const float *bias, int64_t count)
{
    return count >= LANES ? vec_load(bias) : vec_load_part(bias, MAX(count, (int64_t)0));
}

// bias may be NULL; it has `cols` elements.
INLINE void tile_finish(int count, const float *bias, bool relu, int64_t cols,
                        vec acc[TILE_ROWS][2])
{
    if (bias) {
        vec b0 = bias_part(bias, cols), b1 = bias_part(bias + LANES, cols - LANES);
#pragma GCC unroll 6
        for (int i = 0; i < count; i++) {
            acc[i][0] += b0;
            acc[i][1] += b1;
        }
    }
    if (relu) {
#pragma GCC unroll 6
        for (int i = 0; i < count; i++) {
            acc[i][0] = vec_relu(acc[i][0]);
            acc[i][1] = vec_relu(acc[i][1]);
        }
    }
}

struct tile_job {
    const float *const *a;  // rows [taps][TILE_ROWS], or columns [depth] when by_columns
    bool by_columns;
    int64_t offset;         // of the columns
    int64_t taps, depth;
    const float *b;
    int64_t ldb;
    float *const *out;      // [count]
    int64_t cols;
    bool accumulate;        // start from what is in out
    bool finish;            // bias and relu apply
    const float *bias;
    bool relu;
};

INLINE void tile_of(int count, const struct tile_job *job)
{
    vec acc[TILE_ROWS][2];
    if (job->accumulate) {
        tile_load(count, job->out, job->cols, acc);
    } else {
        tile_zero(count, acc);
    }
    if (job->by_columns) {
        tile_columns(count, job->depth, job->a, job->offset, job->b, job->ldb, acc);
    } else {
        tile_rows(count, job->taps, job->depth, job->a, job->b, job->ldb, acc);
    }
    if (job->finish) {
        tile_finish(count, job->bias, job->relu, job->cols, acc);
    }
    tile_store(count, job->out, job->cols, acc);
}

// A tile of `count` rows, 1..TILE_ROWS: the constants make each case its own unrolled loop.
static void tile_run(int64_t count, const struct tile_job *job)
{
    switch (count) {
    case 1: tile_of(1, job); break;
    case 2: tile_of(2, job); break;
    case 3: tile_of(3, job); break;
    case 4: tile_of(4, job); break;
    case 5: tile_of(5, job); break;
    default: tile_of(6, job); break;
    }
}

// The same for operands at even steps, as in plain products: rows of A a_step apart (or columns,
// when by_columns), rows of the result out_step apart.
struct strided {
    int64_t depth;
    const float *a, *b;
    int64_t a_step, ldb;
    float *out;
    int64_t out_step, cols;
    bool accumulate, finish, relu;
    const float *bias;
};

INLINE void strided_tile(int count, bool by_columns, const struct strided *s)
{
    vec acc[TILE_ROWS][2];
    float *out[TILE_ROWS];
    const float *a = s->a, *b = s->b;
    const int64_t ldb = s->ldb, a_step = s->a_step, depth = s->depth;
#pragma GCC unroll 6
    for (int i = 0; i < count; i++) {
        out[i] = s->out + i * s->out_step;
    }
    if (s->accumulate) {
        tile_load(count, out, s->cols, acc);
    } else {
        tile_zero(count, acc);
    }
    if (by_columns) {
        for (int64_t k = 0; k < depth; k++, a += a_step) {
            TILE_BODY(count, a[i]);
        }
    } else {
        const float *row[TILE_ROWS];
#pragma GCC unroll 6
        for (int i = 0; i < count; i++) {
            row[i] = a + i * a_step;
        }
        for (int64_t c = 0; c < depth; c++) {
            TILE_BODY(count, row[i][c]);
        }
    }
    if (s->finish) {
        tile_finish(count, s->bias, s->relu, s->cols, acc);
    }
    tile_store(count, out, s->cols, acc);
}

static void strided_rows(int64_t count, const struct strided *s)
{
    switch (count) {
    case 1: strided_tile(1, false, s); break;
    case 2: strided_tile(2, false, s); break;
    case 3: strided_tile(3, false, s); break;
    case 4: strided_tile(4, false, s); break;
    case 5: strided_tile(5, false, s); break;
    default: strided_tile(6, false, s); break;
    }
}

static void strided_columns(int64_t count, const struct strided *s)
{
    switch (count) {
    case 1: strided_tile(1, true, s); break;
    case 2: strided_tile(2, true, s); break;
    case 3: strided_tile(3, true, s); break;
    case 4: strided_tile(4, true, s); break;
    case 5: strided_tile(5, true, s); break;
    default: strided_tile(6, true, s); break;
    }
}

INLINE void transpose_4x4(const float *const *in, float *out, int64_t out_step)
{
    typedef float vec4 __attribute__((vector_size(16)));
    typedef int32_t pick __attribute__((vector_size(16)));
    vec4 row[4], half[4];
    for (int i = 0; i < 4; i++) {
        memcpy(&row[i], in[i], sizeof row[i]);
    }
    half[0] = __builtin_shuffle(row[0], row[1], (pick){0, 4, 1, 5});
    half[1] = __builtin_shuffle(row[0], row[1], (pick){2, 6, 3, 7});
    half[2] = __builtin_shuffle(row[2], row[3], (pick){0, 4, 1, 5});
    half[3] = __builtin_shuffle(row[2], row[3], (pick){2, 6, 3, 7});
    row[0] = __builtin_shuffle(half[0], half[2], (pick){0, 1, 4, 5});
    row[1] = __builtin_shuffle(half[0], half[2], (pick){2, 3, 6, 7});
    row[2] = __builtin_shuffle(half[1], half[3], (pick){0, 1, 4, 5});
    row[3] = __builtin_shuffle(half[1], half[3], (pick){2, 3, 6, 7});
    for (int i = 0; i < 4; i++) {
        memcpy(out + i * out_step, &row[i], sizeof row[i]);
    }
}

// Panel of B: `depth` rows of TILE_COLS, zero beyond `cols`. B is (k, n) or, transposed, (n, k).
static void pack_panel(const float *b, int64_t ldb, bool transposed, int64_t depth, int64_t cols,
                       float *out)
{
    if (!transposed) {
        for (int64_t k = 0; k < depth; k++, b += ldb, out += TILE_COLS) {
            if (cols == TILE_COLS) {
                vec_store(out, vec_load(b));
                vec_store(out + LANES, vec_load(b + LANES));
            } else {
                for (int64_t j = 0; j < TILE_COLS; j++) {
                    out[j] = j < cols ? b[j] : 0;
                }
            }
        }
        return;
    }
    int64_t k = 0;
    for (; cols == TILE_COLS && k + 4 <= depth; k += 4) {  // blocks of 4 x 4 in registers
        for (int64_t j = 0; j < TILE_COLS; j += 4) {
            const float *at = b + j * ldb + k;
            const float *row[4] = {at, at + ldb, at + 2 * ldb, at + 3 * ldb};
            transpose_4x4(row, out + k * TILE_COLS + j, TILE_COLS);
        }
    }
    for (int64_t j = 0; j < TILE_COLS; j++) {
        for (int64_t rest = k; rest < depth; rest++) {
            out[rest * TILE_COLS + j] = j < cols ? b[j * ldb + rest] : 0;
        }
    }
}

// Part `thread` of `threads` of a range of `count`.
INLINE int64_t part_start(int64_t count, int64_t thread, int64_t threads)
{
    return count * thread / threads;
}

// Columns a block: its panels (256 x 256 floats) stay in the second-level cache.
enum { GEMM_DEPTH = CPU_GEMM_DEPTH, GEMM_COLS = CPU_GEMM_COLS, GEMM_TILES = 8 };

struct gemm_block {
    const struct cpu_gemm *gemm;
    int64_t k0, depth, i0, i1, j0, j1;
    const float *b;    // packed panels, or B itself
    int64_t ldb, panel_step;
};

// Columns of A lie far apart: no prefetcher of the machine follows that many streams.
static void prefetch_columns(const struct gemm_block *block, int64_t i, int64_t rows)
{
    const float *a = block->gemm->a + block->k0 * block->gemm->lda + i;
    for (int64_t k = 0; k < block->depth; k++, a += block->gemm->lda) {
        for (int64_t line = 0; line < rows; line += 16) {
            __builtin_prefetch(a + line, 0, 2);
        }
    }
}

// Tiles [tile, tile_end) of the rows [i0, i1) against all panels of the block.
static void gemm_tiles(const struct gemm_block *block, int64_t tile, int64_t tile_end,
                       int64_t tile_count)
{
    const struct cpu_gemm *g = block->gemm;
    int64_t rows = block->i1 - block->i0;
    struct strided s = {.depth = block->depth, .a_step = g->lda, .ldb = block->ldb,
                        .out_step = g->ldc, .accumulate = block->k0 > 0,
                        .finish = block->k0 + block->depth == g->k, .relu = g->relu};
    if (g->transpose_a && tile_end < tile_count) {
        prefetch_columns(block, block->i0 + part_start(rows, tile_end, tile_count),
                         GEMM_TILES * TILE_ROWS);
    }
    for (int64_t j = block->j0, panel = 0; j < block->j1; j += TILE_COLS, panel++) {
        s.b = block->b + panel * block->panel_step;
        s.cols = MIN((int64_t)TILE_COLS, block->j1 - j);
        s.bias = g->bias ? g->bias + j : NULL;
        for (int64_t t = tile; t < tile_end; t++) {
            int64_t i = block->i0 + part_start(rows, t, tile_count);
            int64_t count = block->i0 + part_start(rows, t + 1, tile_count) - i;
            s.out = g->c + i * g->ldc + j;
            if (g->transpose_a) {
                s.a = g->a + block->k0 * g->lda + i;
                strided_columns(count, &s);
            } else {
                s.a = g->a + i * g->lda + block->k0;
                strided_rows(count, &s);
            }
        }
    }
}

static void gemm_block_run(struct gemm_block *block, float *scratch)
{
    const struct cpu_gemm *g = block->gemm;
    // B is read in place when its rows are short: then a block of it is one run of cache lines.
    bool in_place = !g->transpose_b && g->ldb <= 128 && (block->j1 - block->j0) % TILE_COLS == 0;
    const float *b = g->transpose_b ? g->b + block->j0 * g->ldb + block->k0
                                    : g->b + block->k0 * g->ldb + block->j0;
    block->b = in_place ? b : scratch;
    block->ldb = in_place ? g->ldb : TILE_COLS;
    block->panel_step = in_place ? TILE_COLS : block->depth * TILE_COLS;
    for (int64_t j = block->j0, p = 0; j < block->j1 && !in_place; j += TILE_COLS, p++) {
        pack_panel(b + (j - block->j0) * (g->transpose_b ? g->ldb : 1), g->ldb, g->transpose_b,
                   block->depth, MIN((int64_t)TILE_COLS, block->j1 - j),
                   scratch + p * block->panel_step);
    }
    int64_t tiles = CEIL_DIV(block->i1 - block->i0, (int64_t)TILE_ROWS);
    for (int64_t t = 0; t < tiles; t += GEMM_TILES) {
        gemm_tiles(block, t, MIN(t + GEMM_TILES, tiles), tiles);
    }
}

// scratch: CPU_GEMM_DEPTH * CPU_GEMM_COLS floats of this thread.
static void gemm_run(const struct cpu_gemm *g, float *scratch, int thread, int threads)
{
    int64_t row_tiles = CEIL_DIV(g->m, (int64_t)TILE_ROWS);
    int64_t panels = CEIL_DIV(g->n, (int64_t)TILE_COLS);
    struct gemm_block block = {.gemm = g, .i1 = g->m};
    int64_t j_begin = 0, j_end = g->n;
    if (row_tiles > panels) {  // the longer side is divided
        block.i0 = part_start(g->m, thread, threads);
        block.i1 = part_start(g->m, thread + 1, threads);
    } else {
        j_begin = part_start(panels, thread, threads) * TILE_COLS;
        j_end = MIN(part_start(panels, thread + 1, threads) * TILE_COLS, g->n);
    }
    for (block.j0 = j_begin; block.j0 < j_end; block.j0 = block.j1) {
        block.j1 = MIN(block.j0 + GEMM_COLS, j_end);
        for (block.k0 = 0; block.k0 < g->k; block.k0 += block.depth) {
            block.depth = MIN((int64_t)GEMM_DEPTH, g->k - block.k0);
            gemm_block_run(&block, scratch);
        }
    }
}

#endif
