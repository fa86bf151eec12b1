// SPDX-License-Identifier: Apache-2.0
// cpu_winograd_impl.h: 3 x 3 convolutions of stride 1 by Winograd's F(4 x 4, 3 x 3): tiles of 6 x 6
// pixels, 36 products where the definition needs 144. (Lavin and Gray, "Fast algorithms for
// convolutional neural networks", 2016.) With V = B'dB of a tile, U = GwG' and M = U.V over
// channels, y = A'MA. The way back is the exact transpose of that: W = A dy A', dU = V'W over
// tiles, dV = W U', dx = B dV B' added where tiles overlap, dw = G'dU G. So all three directions
// have the same 36 products a tile. Private; compiled once an instruction set.
#ifndef CPU_WINOGRAD_IMPL_H
#define CPU_WINOGRAD_IMPL_H

#include "cpu_conv_impl.h"

enum { WINO_SIZE = 6, WINO_OUT = 4, WINO_POINTS = 36 };

// ---- One-dimensional transforms, on vectors of channels. Step: distance of consecutive elements. 

// B'd
INLINE void wino_bt(const vec *d, int s, vec *o, int t)
{
    vec two = vec_set(2), four = vec_set(4), five = vec_set(5);
    vec a = vec_fma(-four, d[2 * s], d[4 * s]), b = vec_fma(-four, d[1 * s], d[3 * s]);
    vec c = d[4 * s] - d[2 * s], e = two * (d[3 * s] - d[1 * s]);
    o[0 * t] = vec_fma(four, d[0 * s], vec_fma(-five, d[2 * s], d[4 * s]));
    o[1 * t] = a + b;
    o[2 * t] = a - b;
    o[3 * t] = c + e;
    o[4 * t] = c - e;
    o[5 * t] = vec_fma(four, d[1 * s], vec_fma(-five, d[3 * s], d[5 * s]));
}

// B m
INLINE void wino_b(const vec *m, int s, vec *o, int t)
{
    vec two = vec_set(2), four = vec_set(4), five = vec_set(5);
    vec p = m[1 * s] + m[2 * s], q = m[2 * s] - m[1 * s];
    vec u = m[3 * s] + m[4 * s], v = m[4 * s] - m[3 * s];
    o[0 * t] = four * m[0 * s];
    o[1 * t] = vec_fma(four, q + m[5 * s], two * v);
    o[2 * t] = -vec_fma(five, m[0 * s], vec_fma(four, p, u));
    o[3 * t] = vec_fma(-five, m[5 * s], -vec_fma(two, v, q));
    o[4 * t] = m[0 * s] + (p + u);
    o[5 * t] = m[5 * s];
}

// A'm
INLINE void wino_at(const vec *m, int s, vec *o, int t)
{
    vec two = vec_set(2), four = vec_set(4), eight = vec_set(8);
    vec p = m[1 * s] + m[2 * s], q = m[1 * s] - m[2 * s];
    vec u = m[3 * s] + m[4 * s], v = m[3 * s] - m[4 * s];
    o[0 * t] = m[0 * s] + (p + u);
    o[1 * t] = vec_fma(two, v, q);
    o[2 * t] = vec_fma(four, u, p);
    o[3 * t] = vec_fma(eight, v, q) + m[5 * s];
}

// A y
INLINE void wino_a(const vec *y, int s, vec *o, int t)
{
    vec two = vec_set(2), four = vec_set(4);
    vec p = y[0 * s] + y[2 * s], q = y[1 * s] + y[3 * s];
    vec u = vec_fma(four, y[2 * s], y[0 * s]), v = two * vec_fma(four, y[3 * s], y[1 * s]);
    o[0 * t] = y[0 * s];
    o[1 * t] = p + q;
    o[2 * t] = p - q;
    o[3 * t] = u + v;
    o[4 * t] = u - v;
    o[5 * t] = y[3 * s];
}

// G w
INLINE void wino_g(const vec *w, int s, vec *o, int t)
{
    vec sum = w[0 * s] + w[2 * s], far = vec_fma(vec_set(4), w[2 * s], w[0 * s]);
    vec sixth = vec_set(-1.0f / 6), part = vec_set(1.0f / 24), two = vec_set(2);
    o[0 * t] = vec_set(0.25f) * w[0 * s];
    o[1 * t] = sixth * (sum + w[1 * s]);
    o[2 * t] = sixth * (sum - w[1 * s]);
    o[3 * t] = part * vec_fma(two, w[1 * s], far);
    o[4 * t] = part * vec_fma(-two, w[1 * s], far);
    o[5 * t] = w[2 * s];
}

// G'u
INLINE void wino_gt(const vec *u, int s, vec *o, int t)
{
    vec sixth = vec_set(-1.0f / 6), part = vec_set(1.0f / 24);
    vec p = sixth * (u[1 * s] + u[2 * s]), q = sixth * (u[1 * s] - u[2 * s]);
    vec a = part * (u[3 * s] + u[4 * s]), b = part * (u[3 * s] - u[4 * s]);
    o[0 * t] = vec_fma(vec_set(0.25f), u[0 * s], p + a);
    o[1 * t] = vec_fma(vec_set(2), b, q);
    o[2 * t] = vec_fma(vec_set(4), a, p) + u[5 * s];
}

// A transform of `in` x `in` elements to `out` x `out`: along columns, then along rows.
#define WINO_2D(transform, in, out, from, to)                                  \
    do {                                                                       \
        vec half_[WINO_POINTS];                                                \
        _Pragma("GCC unroll 6") for (int i_ = 0; i_ < (in); i_++)              \
        {                                                                      \
            transform((from) + i_, (in), half_ + i_, (in));                    \
        }                                                                      \
        _Pragma("GCC unroll 6") for (int i_ = 0; i_ < (out); i_++)             \
        {                                                                      \
            transform(half_ + i_ * (in), 1, (to) + i_ * (out), 1);             \
        }                                                                      \
    } while (0)

// ---- Tiles --------------------------------------------------------------------------------------

// A chunk of tiles computed together: whole images, or rows of tiles of one image.
struct wino_chunk {
    int64_t n, images, row, row_end;
    int64_t tiles;
};

// Tiles a chunk: enough to use a matrix of U several times, few enough for the second-level cache.
enum { WINO_TILES = 36 };

struct wino_shape {
    int64_t high, wide;          // tiles of an image
    int64_t images, rows;        // of a full chunk
    int64_t v_step, m_step;      // floats between points (of 36) of V and of M or W
};

INLINE struct wino_shape wino_shape_of(const struct cpu_conv *conv)
{
    struct wino_shape s = {.high = CEIL_DIV(conv->p, (int64_t)WINO_OUT),
                           .wide = CEIL_DIV(conv->q, (int64_t)WINO_OUT)};
    s.images = MAX((int64_t)1, WINO_TILES / (s.high * s.wide));
    s.rows = s.high * s.wide <= WINO_TILES ? s.high : MAX((int64_t)1, WINO_TILES / s.wide);
    int64_t tiles = s.images * s.rows * s.wide;
    // A line more, so that the 36 points of a tile do not fall on the same few sets of the cache.
    s.v_step = tiles * conv->c + 16;
    s.m_step = tiles * conv->k + 16;
    return s;
}

struct wino_tile {
    int64_t n, row, col;
};

INLINE struct wino_tile wino_tile_at(const struct wino_chunk *chunk, int64_t wide, int64_t t)
{
    int64_t an_image = (chunk->row_end - chunk->row) * wide, in_image = t % an_image;
    return (struct wino_tile){chunk->n + t / an_image, chunk->row + in_image / wide,
                              in_image % wide};
}

// Where pixel (row + i, col + j) of a size x size tile lies in an image; `outside` beyond its
// border.
INLINE void wino_places(const float *image, int64_t rows, int64_t cols, int64_t channels,
                        int64_t row, int64_t col, int size, const float *outside,
                        const float **out)
{
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < size; j++) {
            int64_t h = row + i, w = col + j;
            bool inside = h >= 0 && h < rows && w >= 0 && w < cols;
            out[i * size + j] = inside ? image + (h * cols + w) * channels : outside;
        }
    }
}

// V of all tiles: v[point][tile][c].
static void wino_input(const struct cpu_conv_task *task, const struct wino_shape *s,
                       const struct wino_chunk *chunk, float *v)
{
    const struct cpu_conv *conv = task->conv;
    for (int64_t t = 0; t < chunk->tiles; t++) {
        struct wino_tile tile = wino_tile_at(chunk, s->wide, t);
        const float *place[WINO_POINTS];
        wino_places(task->x + tile.n * conv->h * conv->w * conv->c, conv->h, conv->w, conv->c,
                    tile.row * WINO_OUT - conv->pad[0], tile.col * WINO_OUT - conv->pad[1],
                    WINO_SIZE, zero_pixel, place);
        for (int64_t c = 0; c < conv->c; c += LANES) {
            vec d[WINO_POINTS], o[WINO_POINTS];
#pragma GCC unroll 36
            for (int i = 0; i < WINO_POINTS; i++) {
                d[i] = vec_load(place[i] + c);
            }
            WINO_2D(wino_bt, 6, 6, d, o);
#pragma GCC unroll 36
            for (int i = 0; i < WINO_POINTS; i++) {
                vec_store(v + i * s->v_step + t * conv->c + c, o[i]);
            }
        }
    }
}

// y of all tiles from m[point][tile][k]; into `out`, the image of the chunk's first image when not
// NULL.
static void wino_output(const struct cpu_conv_task *task, const struct wino_shape *s,
                        const struct wino_chunk *chunk, const float *m, float *out, float *waste)
{
    const struct cpu_conv *conv = task->conv;
    int64_t image = conv->p * conv->q * conv->k;
    for (int64_t t = 0; t < chunk->tiles; t++) {
        struct wino_tile tile = wino_tile_at(chunk, s->wide, t);
        const float *place[WINO_OUT * WINO_OUT];
        wino_places(out + (tile.n - chunk->n) * image, conv->p, conv->q, conv->k,
                    tile.row * WINO_OUT, tile.col * WINO_OUT, WINO_OUT, waste, place);
        for (int64_t k = 0; k < conv->k; k += LANES) {
            vec d[WINO_POINTS], o[WINO_OUT * WINO_OUT];
            vec bias = task->bias ? vec_load(task->bias + k) : vec_set(0);
#pragma GCC unroll 36
            for (int i = 0; i < WINO_POINTS; i++) {
                d[i] = vec_load(m + i * s->m_step + t * conv->k + k);
            }
            WINO_2D(wino_at, 6, 4, d, o);
#pragma GCC unroll 16
            for (int i = 0; i < WINO_OUT * WINO_OUT; i++) {
                vec y = task->bias ? o[i] + bias : o[i];
                vec_store((float *)(uintptr_t)place[i] + k, task->relu ? vec_relu(y) : y);
            }
        }
    }
}

// The 4 x 4 gradients of a tile's results, channels k to k + LANES.
struct wino_gradient {
    const float *place[16], *mask[16];  // plain, relu
    const uint8_t *code[4];             // pool: of the 2 x 2 windows, whose dy are place[0..3]
};

static const uint8_t no_codes[CPU_DEPTH_MAX];

static void wino_gradient_places(const struct cpu_conv_task *task, struct wino_tile tile,
                                 struct wino_gradient *g)
{
    const struct cpu_conv *conv = task->conv;
    int64_t row = tile.row * WINO_OUT, col = tile.col * WINO_OUT;
    if (task->gradient == GRADIENT_POOL) {
        int64_t p2 = conv->p / 2, q2 = conv->q / 2, image = p2 * q2 * conv->k;
        wino_places(task->dy + tile.n * image, p2, q2, conv->k, row / 2, col / 2, 2, zero_pixel,
                    g->place);
        for (int i = 0; i < 4; i++) {
            g->code[i] = g->place[i] == zero_pixel ? no_codes
                                                   : task->codes + (g->place[i] - task->dy);
        }
        return;
    }
    int64_t image = conv->p * conv->q * conv->k;
    wino_places(task->dy + tile.n * image, conv->p, conv->q, conv->k, row, col, WINO_OUT,
                zero_pixel, g->place);
    if (task->gradient == GRADIENT_RELU) {
        wino_places(task->y + tile.n * image, conv->p, conv->q, conv->k, row, col, WINO_OUT,
                    zero_pixel, g->mask);
    }
}

INLINE void wino_gradient_load(enum cpu_gradient kind, const struct wino_gradient *g, int64_t k,
                               vec out[16])
{
    if (kind == GRADIENT_POOL) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            vec_int code = vec_load_bytes(g->code[i] + k), dy = (vec_int)vec_load(g->place[i] + k);
#pragma GCC unroll 4
            for (int e = 0; e < 4; e++) {
                out[(i / 2 * 2 + e / 2) * 4 + i % 2 * 2 + e % 2] = (vec)((code == e) & dy);
            }
        }
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        vec dy = vec_load(g->place[i] + k);
        out[i] = kind == GRADIENT_PLAIN
                     ? dy : (vec)((vec_load(g->mask[i] + k) > vec_set(0)) & (vec_int)dy);
    }
}

INLINE void wino_gradient_tile(enum cpu_gradient kind, const struct wino_gradient *g, int64_t k,
                               float *w, int64_t step, float *db)
{
    vec d[16], o[WINO_POINTS];
    wino_gradient_load(kind, g, k, d);
    WINO_2D(wino_a, 4, 6, d, o);
#pragma GCC unroll 36
    for (int i = 0; i < WINO_POINTS; i++) {
        vec_store(w + i * step + k, o[i]);
    }
    if (db) {  // point (1, 1) is the sum of the tile
        vec_store(db + k, vec_load(db + k) + o[WINO_SIZE + 1]);
    }
}

// W of all tiles: w[point][tile][k]; their sums are added to db (k).
static void wino_gradient(const struct cpu_conv_task *task, const struct wino_shape *s,
                          const struct wino_chunk *chunk, float *w, float *db)
{
    int64_t channels = task->conv->k;
    for (int64_t t = 0; t < chunk->tiles; t++) {
        struct wino_gradient g;
        wino_gradient_places(task, wino_tile_at(chunk, s->wide, t), &g);
        float *to = w + t * channels;
        for (int64_t k = 0; k < channels; k += LANES) {
            if (task->gradient == GRADIENT_PLAIN) {
                wino_gradient_tile(GRADIENT_PLAIN, &g, k, to, s->m_step, db);
            } else if (task->gradient == GRADIENT_RELU) {
                wino_gradient_tile(GRADIENT_RELU, &g, k, to, s->m_step, db);
            } else {
                wino_gradient_tile(GRADIENT_POOL, &g, k, to, s->m_step, db);
            }
        }
    }
}

// dx += B dV B' of all tiles, in their order.
static void wino_scatter(const struct cpu_conv_task *task, const struct wino_shape *s,
                         const struct wino_chunk *chunk, const float *v, float *waste)
{
    const struct cpu_conv *conv = task->conv;
    for (int64_t t = 0; t < chunk->tiles; t++) {
        struct wino_tile tile = wino_tile_at(chunk, s->wide, t);
        const float *place[WINO_POINTS];
        wino_places(task->dx + tile.n * conv->h * conv->w * conv->c, conv->h, conv->w, conv->c,
                    tile.row * WINO_OUT - conv->pad[0], tile.col * WINO_OUT - conv->pad[1],
                    WINO_SIZE, waste, place);
        for (int64_t c = 0; c < conv->c; c += LANES) {
            vec d[WINO_POINTS], o[WINO_POINTS];
#pragma GCC unroll 36
            for (int i = 0; i < WINO_POINTS; i++) {
                d[i] = vec_load(v + i * s->v_step + t * conv->c + c);
            }
            WINO_2D(wino_b, 6, 6, d, o);
#pragma GCC unroll 36
            for (int i = 0; i < WINO_POINTS; i++) {
                float *to = (float *)(uintptr_t)place[i] + c;
                vec_store(to, vec_load(to) + o[i]);
            }
        }
    }
}

// ---- Products -----------------------------------------------------------------------------------

// out (tiles, cols) = a (tiles, depth) x panels of b.
static void wino_rows(int64_t tiles, int64_t depth, int64_t cols, const float *a, const float *b,
                      float *out)
{
    int64_t steps = CEIL_DIV(tiles, (int64_t)TILE_ROWS);
    struct strided s = {.depth = depth, .a_step = depth, .b = b, .ldb = TILE_COLS,
                        .out_step = cols, .cols = TILE_COLS};
    for (int64_t j = 0; j < cols; j += TILE_COLS, s.b += depth * TILE_COLS) {
        for (int64_t t = 0; t < steps; t++) {
            int64_t i = part_start(tiles, t, steps);
            s.a = a + i * depth;
            s.out = out + i * cols + j;
            strided_rows(part_start(tiles, t + 1, steps) - i, &s);
        }
    }
}

// out (rows, cols) += a' x b with a (tiles, rows), b (tiles, cols).
static void wino_columns(int64_t tiles, int64_t rows, int64_t cols, const float *a, const float *b,
                         float *out)
{
    int64_t steps = CEIL_DIV(rows, (int64_t)TILE_ROWS);
    struct strided s = {.depth = tiles, .a_step = rows, .ldb = cols, .out_step = cols,
                        .cols = TILE_COLS, .accumulate = true};
    for (int64_t j = 0; j < cols; j += TILE_COLS) {
        s.b = b + j;
        for (int64_t t = 0; t < steps; t++) {
            int64_t i = part_start(rows, t, steps);
            s.a = a + i;
            s.out = out + i * cols + j;
            strided_columns(part_start(rows, t + 1, steps) - i, &s);
        }
    }
}

// ---- Weights ------------------------------------------------------------------------------------

static int64_t wino_packed_size(const struct cpu_conv *conv)
{
    return WINO_POINTS * conv->c * conv->k;
}

// LANES columns of w[tap] at `depth`: of k at one c, or on the way back of c at one k.
INLINE vec wino_weight(const struct cpu_conv_task *task, int tap, int64_t depth, int64_t column)
{
    const struct cpu_conv *conv = task->conv;
    const float *w = task->w + tap * conv->c * conv->k;
    if (!task->backward) {
        return vec_load(w + depth * conv->k + column);
    }
    w += column * conv->k + depth;
    float lane[LANES];
    for (int i = 0; i < LANES; i++) {
        lane[i] = w[i * conv->k];
    }
    return vec_load(lane);
}

// U as panels [point][panel][depth][TILE_COLS]: of k over depth c, or of c over depth k on the way
// back.
static void wino_pack_run(const struct cpu_conv_task *task, int thread, int threads)
{
    const struct cpu_conv *conv = task->conv;
    int64_t depth = task->backward ? conv->k : conv->c, cols = task->backward ? conv->c : conv->k;
    for (int64_t d = part_start(depth, thread, threads); d < part_start(depth, thread + 1, threads);
         d++) {
        for (int64_t j = 0; j < cols; j += LANES) {
            vec w[9], half[18], u[WINO_POINTS];
            for (int tap = 0; tap < 9; tap++) {
                w[tap] = wino_weight(task, tap, d, j);
            }
            for (int i = 0; i < 3; i++) {
                wino_g(w + i, 3, half + i, 3);
            }
            for (int i = 0; i < WINO_SIZE; i++) {
                wino_g(half + i * 3, 1, u + i * WINO_SIZE, 1);
            }
            int64_t at = (j / TILE_COLS * depth + d) * TILE_COLS + j % TILE_COLS;
            for (int i = 0; i < WINO_POINTS; i++) {
                vec_store(task->packed + i * depth * cols + at, u[i]);
            }
        }
    }
}

// dw = G'(sum of the threads' dU)G
static void wino_gather_run(const struct cpu_conv_task *task, float *dw, int parts, int thread,
                            int threads)
{
    const struct cpu_conv *conv = task->conv;
    int64_t matrix = conv->c * conv->k;
    for (int64_t c = part_start(conv->c, thread, threads);
         c < part_start(conv->c, thread + 1, threads); c++) {
        for (int64_t k = 0; k < conv->k; k += LANES) {
            vec u[WINO_POINTS], half[18], w[9];
            for (int i = 0; i < WINO_POINTS; i++) {
                const float *from = task->dw + i * matrix + c * conv->k + k;
                u[i] = vec_load(from);
                for (int p = 1; p < parts; p++) {
                    u[i] += vec_load(from + p * task->dw_step);
                }
            }
            for (int i = 0; i < WINO_SIZE; i++) {
                wino_gt(u + i, WINO_SIZE, half + i, WINO_SIZE);
            }
            for (int i = 0; i < 3; i++) {
                wino_gt(half + i * WINO_SIZE, 1, w + i * 3, 1);
            }
            for (int tap = 0; tap < 9; tap++) {
                vec_store(dw + tap * matrix + c * conv->k + k, w[tap]);
            }
        }
    }
}

// ---- A thread's work ----------------------------------------------------------------------------

struct wino_scratch {
    float *v, *m, *image, *waste;
};

static size_t wino_scratch_at(const struct cpu_conv_task *task, int thread,
                              struct wino_scratch *out)
{
    const struct cpu_conv *conv = task->conv;
    struct wino_shape s = wino_shape_of(conv);
    size_t total = 0;
    int64_t images = task->pool ? s.images * conv->p * conv->q * conv->k : 0;
    size_t at[4] = {scratch_take(&total, sizeof(float) * (size_t)(WINO_POINTS * s.v_step)),
                    scratch_take(&total, sizeof(float) * (size_t)(WINO_POINTS * s.m_step)),
                    scratch_take(&total, sizeof(float) * (size_t)images),
                    scratch_take(&total, sizeof(float) * (size_t)MAX(conv->c, conv->k))};
    if (task->scratch) {
        char *base = task->scratch + (size_t)thread * task->scratch_step;
        *out = (struct wino_scratch){(float *)(void *)(base + at[0]),
                                     (float *)(void *)(base + at[1]),
                                     (float *)(void *)(base + at[2]),
                                     (float *)(void *)(base + at[3])};
    }
    return total;
}

static void wino_pool(const struct cpu_conv_task *task, const struct wino_chunk *chunk,
                      const float *image)
{
    const struct cpu_conv *conv = task->conv;
    int64_t p2 = conv->p / 2, q2 = conv->q / 2;
    int64_t row = chunk->row * 2, row_end = MIN(chunk->row_end * 2, p2);
    for (int64_t i = 0; i < chunk->images; i++) {
        int64_t out = ((chunk->n + i) * p2 + row) * q2 * conv->k;
        pool_rows(image + (i * conv->p + 2 * row) * conv->q * conv->k, row_end - row, conv->q,
                  conv->k, task->y + out, task->codes + out);
    }
}

static void wino_forward_run(const struct cpu_conv_task *task, int thread, int threads)
{
    const struct cpu_conv *conv = task->conv;
    struct wino_shape s = wino_shape_of(conv);
    struct wino_scratch scratch;
    wino_scratch_at(task, thread, &scratch);
    int64_t groups = CEIL_DIV(conv->n, s.images), bands = CEIL_DIV(s.high, s.rows);
    int64_t units = groups * bands;
    for (int64_t u = part_start(units, thread, threads);
         u < part_start(units, thread + 1, threads); u++) {
        struct wino_chunk chunk = {.n = u / bands * s.images, .row = u % bands * s.rows};
        chunk.images = MIN(s.images, conv->n - chunk.n);
        chunk.row_end = MIN(chunk.row + s.rows, s.high);
        chunk.tiles = chunk.images * (chunk.row_end - chunk.row) * s.wide;
        wino_input(task, &s, &chunk, scratch.v);
        for (int i = 0; i < WINO_POINTS; i++) {
            wino_rows(chunk.tiles, conv->c, conv->k, scratch.v + i * s.v_step,
                      task->packed + i * conv->c * conv->k, scratch.m + i * s.m_step);
        }
        float *out = task->pool ? scratch.image
                                : task->y + chunk.n * conv->p * conv->q * conv->k;
        wino_output(task, &s, &chunk, scratch.m, out, scratch.waste);
        if (task->pool) {
            wino_pool(task, &chunk, out);
        }
    }
}

static void wino_backward_chunk(const struct cpu_conv_task *task, const struct wino_shape *s,
                                const struct wino_chunk *chunk, const struct wino_scratch *scratch,
                                float *du, float *db)
{
    const struct cpu_conv *conv = task->conv;
    int64_t matrix = conv->c * conv->k;
    wino_gradient(task, s, chunk, scratch->m, db);
    if (du) {
        wino_input(task, s, chunk, scratch->v);
    }
    for (int i = 0; i < WINO_POINTS; i++) {
        const float *w = scratch->m + i * s->m_step;
        float *v = scratch->v + i * s->v_step;
        if (du) {
            wino_columns(chunk->tiles, conv->c, conv->k, v, w, du + i * matrix);
        }
        if (task->dx) {  // dV takes V's place
            wino_rows(chunk->tiles, conv->k, conv->c, w, task->packed + i * matrix, v);
        }
    }
    if (task->dx) {
        wino_scatter(task, s, chunk, scratch->v, scratch->waste);
    }
}

static void wino_backward_run(const struct cpu_conv_task *task, int thread, int threads)
{
    const struct cpu_conv *conv = task->conv;
    struct wino_shape s = wino_shape_of(conv);
    struct wino_scratch scratch;
    wino_scratch_at(task, thread, &scratch);
    float *du = task->dw ? task->dw + thread * task->dw_step : NULL;
    float *db = task->db ? task->db + thread * task->db_step : NULL;
    if (du) {
        memset(du, 0, sizeof(float) * (size_t)wino_packed_size(conv));
    }
    if (db) {
        memset(db, 0, sizeof(float) * (size_t)conv->k);
    }
    int64_t last = part_start(conv->n, thread + 1, threads), image = conv->h * conv->w * conv->c;
    for (int64_t n = part_start(conv->n, thread, threads); n < last; n += s.images) {
        struct wino_chunk chunk = {.n = n, .images = MIN(s.images, last - n)};
        if (task->dx) {
            memset(task->dx + n * image, 0, sizeof(float) * (size_t)(chunk.images * image));
        }
        for (; chunk.row < s.high; chunk.row = chunk.row_end) {
            chunk.row_end = MIN(chunk.row + s.rows, s.high);
            chunk.tiles = chunk.images * (chunk.row_end - chunk.row) * s.wide;
            wino_backward_chunk(task, &s, &chunk, &scratch, du, db);
        }
    }
}

#endif
