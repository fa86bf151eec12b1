// SPDX-License-Identifier: Apache-2.0
// cpu_image.c: steps of pooling, batch normalisation, softmax, cross-entropy, dropout and argmax.
#include <math.h>

#include "cpu_impl.h"
#include "trainer/rng.h"

struct job {
    struct exec *exec;
    const struct step *step;
    const float *coefficients;  // batch normalisation
    bool failed;
};

static enum status run_parallel(struct exec *exec, const struct step *step, double work,
                                void (*body)(void *, int, int))
{
    struct job job = {.exec = exec, .step = step};
    cpu_parallel(exec, work, body, &job);
    return STATUS_OK;
}

static bool is_f32(const struct node *node)
{
    return node->inputs[0]->dtype == DTYPE_F32;
}

// ---- Pooling ------------------------------------------------------------------------------------

static void pool_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    struct cpu_windows t = *(const struct cpu_windows *)job->step->detail;
    const struct cpu_kernels *kernels = job->exec->device->kernels;
    bool back = job->step->node->op == OP_MAX_POOL_GRAD || job->step->node->op == OP_AVG_POOL_GRAD;
    t.x = cpu_in(job->exec, job->step, 0);
    if (back) {
        t.dy = cpu_in(job->exec, job->step, t.mean ? 0 : 1);
        t.dx = cpu_out(job->exec, job->step);
        kernels->pool_grad(&t, cpu_part(t.n, thread, threads), cpu_part(t.n, thread + 1, threads));
    } else {
        t.y = cpu_out(job->exec, job->step);
        kernels->pool(&t, cpu_part(t.n * t.p, thread, threads),
                      cpu_part(t.n * t.p, thread + 1, threads));
    }
}

static enum status run_pool(struct exec *exec, const struct step *step)
{
    const struct cpu_windows *t = step->detail;
    return run_parallel(exec, step, (double)(t->n * t->h * t->w * t->c), pool_body);
}

bool cpu_plan_pool(struct exec *exec, const struct node *node, struct step *step)
{
    const struct op_attr *attr = &node->attr;
    bool back = node->op == OP_MAX_POOL_GRAD || node->op == OP_AVG_POOL_GRAD;
    struct shape x = back ? node->shape : node->inputs[0]->shape;
    struct shape y = node->op == OP_MAX_POOL_GRAD ? node->inputs[1]->shape
                     : back                       ? node->inputs[0]->shape
                                                  : node->shape;
    struct cpu_windows *t = ARENA_NEW(&exec->arena, struct cpu_windows);
    *t = (struct cpu_windows){
        .n = x.dim[0], .h = x.dim[1], .w = x.dim[2], .c = x.dim[3], .p = y.dim[1], .q = y.dim[2],
        .window = {attr->window[0], attr->window[1]}, .stride = {attr->stride[0], attr->stride[1]},
        .pad = {attr->pad_before[0], attr->pad_before[1]},
        .mean = node->op == OP_AVG_POOL || node->op == OP_AVG_POOL_GRAD};
    step->detail = t;
    step->run = run_pool;
    step->kernel = "pool";
    return is_f32(node);
}

// ---- Batch normalisation ------------------------------------------------------------------------

enum { NORM_ROWS = 256 };  // a chunk, so that the order of sums does not depend on the threads

static int64_t channels_of(const struct node *x)
{
    return x->shape.dim[x->shape.rank - 1];
}

static int64_t rows_of(const struct node *x)
{
    return shape_count(x->shape) / channels_of(x);
}

static int64_t chunks_of(const struct node *x)
{
    return CEIL_DIV(rows_of(x), (int64_t)NORM_ROWS);
}

// Sums of one chunk into scratch: [0][chunk][c], and of dparam [1][chunk][c].
static void norm_sums_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct node *node = job->step->node, *x = node->inputs[0];
    const struct cpu_kernels *kernels = job->exec->device->kernels;
    int64_t c = channels_of(x), rows = rows_of(x), chunks = chunks_of(x);
    float *a = (float *)(void *)job->exec->scratch, *b = a + chunks * c;
    bool param = node->op == OP_BATCH_NORM_DPARAM;
    const float *from = cpu_in(job->exec, job->step, 0), *mean = job->coefficients;
    const float *dy = param ? cpu_in(job->exec, job->step, 2) : NULL;
    for (int64_t i = cpu_part(chunks, thread, threads); i < cpu_part(chunks, thread + 1, threads);
         i++) {
        int64_t first = i * NORM_ROWS, count = MIN((int64_t)NORM_ROWS, rows - first);
        if (!mean) {
            kernels->sum_rows(from + first * c, count, c, a + i * c);
        } else {
            kernels->norm_sums(from + first * c, mean, dy ? dy + first * c : NULL, count, c,
                               a + i * c, dy ? b + i * c : NULL);
        }
    }
}

static enum status run_norm_stats(struct exec *exec, const struct step *step)
{
    const struct node *x = step->node->inputs[0];
    int64_t c = channels_of(x), chunks = chunks_of(x);
    float *stats = cpu_out(exec, step), *parts = (float *)(void *)exec->scratch;
    struct job job = {.exec = exec, .step = step};
    for (int moment = 0; moment < 2; moment++) {
        job.coefficients = moment ? stats : NULL;
        cpu_parallel(exec, (double)shape_count(x->shape), norm_sums_body, &job);
        exec->device->kernels->sum_rows(parts, chunks, c, stats + moment * c);
        for (int64_t i = 0; i < c; i++) {
            stats[moment * c + i] /= (float)rows_of(x);
        }
    }
    return STATUS_OK;
}

static enum status run_norm_dparam(struct exec *exec, const struct step *step)
{
    const struct node *x = step->node->inputs[0];
    int64_t c = channels_of(x), chunks = chunks_of(x);
    float *out = cpu_out(exec, step), *parts = (float *)(void *)exec->scratch;
    const float *stats = cpu_in(exec, step, 1);
    struct job job = {.exec = exec, .step = step, .coefficients = stats};
    cpu_parallel(exec, (double)shape_count(x->shape), norm_sums_body, &job);
    exec->device->kernels->sum_rows(parts, chunks, c, out);
    exec->device->kernels->sum_rows(parts + chunks * c, chunks, c, out + c);
    for (int64_t i = 0; i < c; i++) {
        out[i] = (float)((double)out[i] / sqrt((double)stats[c + i] + step->node->attr.epsilon));
    }
    return STATUS_OK;
}

static void norm_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct step *step = job->step;
    const struct node *x = step->node->inputs[0];
    int64_t c = channels_of(x), rows = rows_of(x);
    int64_t first = cpu_part(rows, thread, threads), last = cpu_part(rows, thread + 1, threads);
    const float *from = cpu_in(job->exec, step, 0), *mean = cpu_in(job->exec, step, 1);
    float *out = cpu_out(job->exec, step);
    if (step->node->op == OP_BATCH_NORM) {
        job->exec->device->kernels->norm_apply(from + first * c, mean, job->coefficients,
                                               cpu_in(job->exec, step, 3), last - first, c,
                                               out + first * c);
        return;
    }
    struct cpu_norm_grad t = {.x = from, .dy = cpu_in(job->exec, step, 3), .mean = mean,
                              .scale = job->coefficients, .a = job->coefficients + c,
                              .b = job->coefficients + 2 * c, .dx = out, .channels = c};
    job->exec->device->kernels->norm_grad(&t, first, last);
}

// Coefficients of each channel into scratch: scale; and on the way back the common terms a and b.
static enum status run_norm(struct exec *exec, const struct step *step)
{
    const struct node *node = step->node, *x = node->inputs[0];
    int64_t c = channels_of(x);
    float *scale = (float *)(void *)exec->scratch;
    const float *stats = cpu_in(exec, step, 1), *gamma = cpu_in(exec, step, 2);
    bool back = node->op == OP_BATCH_NORM_DX;
    const float *dparam = back ? cpu_in(exec, step, 4) : NULL;
    double share = node->attr.batch_stats ? 1 / (double)rows_of(x) : 0;
    for (int64_t i = 0; i < c; i++) {
        double e = 1 / sqrt((double)stats[c + i] + node->attr.epsilon);
        scale[i] = (float)((double)gamma[i] * e);
        if (back) {
            scale[c + i] = (float)((double)dparam[c + i] * share);
            scale[2 * c + i] = (float)((double)dparam[i] * share * e);
        }
    }
    struct job job = {.exec = exec, .step = step, .coefficients = scale};
    cpu_parallel(exec, (double)shape_count(x->shape), norm_body, &job);
    return STATUS_OK;
}

bool cpu_plan_norm(struct exec *exec, const struct node *node, struct step *step)
{
    (void)exec;
    int64_t c = channels_of(node->inputs[0]);
    bool sums = node->op == OP_BATCH_NORM_STATS || node->op == OP_BATCH_NORM_DPARAM;
    step->run = node->op == OP_BATCH_NORM_STATS    ? run_norm_stats
                : node->op == OP_BATCH_NORM_DPARAM ? run_norm_dparam
                                                   : run_norm;
    step->scratch = sizeof(float) * (size_t)(c * (sums ? 2 * chunks_of(node->inputs[0]) : 3));
    step->kernel = "batch norm";
    return is_f32(node);
}

// ---- Rows ---------------------------------------------------------------------------------------

static void rows_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct node *node = job->step->node;
    const struct cpu_kernels *kernels = job->exec->device->kernels;
    int64_t n = channels_of(node->inputs[0]), rows = rows_of(node->inputs[0]);
    int64_t first = cpu_part(rows, thread, threads);
    int64_t count = cpu_part(rows, thread + 1, threads) - first;
    const float *x = (const float *)cpu_in(job->exec, job->step, 0) + first * n;
    if (node->op == OP_SOFTMAX) {
        kernels->softmax(x, count, n, (float *)cpu_out(job->exec, job->step) + first * n);
    } else if (node->op == OP_SOFTMAX_GRAD) {
        kernels->softmax_grad(x, (const float *)cpu_in(job->exec, job->step, 1) + first * n, count,
                              n, (float *)cpu_out(job->exec, job->step) + first * n);
    } else {
        int32_t *out = (int32_t *)cpu_out(job->exec, job->step) + first;
        for (int64_t r = 0; r < count; r++, x += n) {
            int64_t best = 0;
            for (int64_t i = 1; i < n; i++) {
                best = x[i] > x[best] ? i : best;
            }
            out[r] = (int32_t)best;
        }
    }
}

static enum status run_rows(struct exec *exec, const struct step *step)
{
    // Exponentials cost some ten times an addition.
    double work = (double)shape_count(step->node->inputs[0]->shape) * 10;
    return run_parallel(exec, step, work, rows_body);
}

bool cpu_plan_rows(struct exec *exec, const struct node *node, struct step *step)
{
    (void)exec;
    step->run = run_rows;
    step->kernel = "rows";
    return is_f32(node);
}

// ---- Cross-entropy with labels ------------------------------------------------------------------

// One row: its loss into *loss, or its gradient times dloss into dz.
static void entropy_row(const float *z, int64_t n, int32_t label, double smoothing, float *loss,
                        float dloss, float *dz)
{
    float top = z[0], sum = 0, rest = 0;
    for (int64_t i = 1; i < n; i++) {
        top = z[i] > top || z[i] != z[i] ? z[i] : top;
    }
    for (int64_t i = 0; i < n; i++) {
        float e = expf(z[i] - top);
        sum += e;
        rest += z[i] - top;
        if (dz) {
            dz[i] = e;
        }
    }
    float each = (float)(smoothing / (double)n), hard = (float)(1 - smoothing);
    if (loss) {
        *loss = logf(sum) - hard * (z[label] - top) - (each > 0 ? each * rest : 0);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        dz[i] = (dz[i] / sum - each - (i == label ? hard : 0)) * dloss;
    }
}

static void entropy_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct node *node = job->step->node;
    bool back = node->op == OP_CROSS_ENTROPY_GRAD;
    int64_t n = channels_of(node->inputs[0]), rows = rows_of(node->inputs[0]);
    const float *z = cpu_in(job->exec, job->step, 0);
    const float *dloss = back ? cpu_in(job->exec, job->step, 2) : NULL;
    const int32_t *label = cpu_in(job->exec, job->step, 1);
    float *out = cpu_out(job->exec, job->step);
    for (int64_t r = cpu_part(rows, thread, threads); r < cpu_part(rows, thread + 1, threads);
         r++) {
        entropy_row(z + r * n, n, label[r], node->attr.label_smoothing, back ? NULL : out + r,
                    back ? dloss[r] : 0, back ? out + r * n : NULL);
    }
}

static enum status run_entropy(struct exec *exec, const struct step *step)
{
    const struct node *node = step->node;
    int64_t n = channels_of(node->inputs[0]), rows = rows_of(node->inputs[0]);
    const int32_t *label = cpu_in(exec, step, 1);
    for (int64_t r = 0; r < rows; r++) {
        if (label[r] < 0 || label[r] >= n) {
            return cpu_run_reference(exec, step);  // it has the sentence for this failure
        }
    }
    return run_parallel(exec, step, 10.0 * (double)(rows * n), entropy_body);
}

bool cpu_plan_entropy(struct exec *exec, const struct node *node, struct step *step)
{
    (void)exec;
    step->run = run_entropy;
    step->kernel = "cross entropy";
    return is_f32(node) && node->inputs[1]->dtype == DTYPE_I32;
}

// ---- Dropout ------------------------------------------------------------------------------------

static void dropout_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct node *node = job->step->node;
    const struct op_attr *attr = &node->attr;
    const float *x = cpu_in(job->exec, job->step, 0);
    uint64_t step = (uint64_t)*(const int64_t *)cpu_in(job->exec, job->step, 1);
    uint64_t row = (uint64_t)*(const int64_t *)cpu_in(job->exec, job->step, 2);
    int64_t count = shape_count(node->shape);
    uint64_t number = row * (uint64_t)(count / node->shape.dim[0]);  // of element 0
    float *y = cpu_out(job->exec, job->step), kept = (float)(1 - attr->rate);
    struct rng_block block = {{0}};
    int64_t first = cpu_part(count, thread, threads), last = cpu_part(count, thread + 1, threads);
    for (int64_t i = first; i < last; i++) {
        uint64_t at = number + (uint64_t)i;
        if (i == first || at % 4 == 0) {
            block = rng_block_at(attr->seed, RNG_DROPOUT, attr->salt, step, at / 4);
        }
        y[i] = (double)rng_unit(block.word[at % 4]) >= attr->rate ? x[i] / kept : 0;
    }
}

static enum status run_dropout(struct exec *exec, const struct step *step)
{
    return run_parallel(exec, step, 10.0 * (double)shape_count(step->node->shape), dropout_body);
}

bool cpu_plan_dropout(struct exec *exec, const struct node *node, struct step *step)
{
    (void)exec;
    step->run = run_dropout;
    step->kernel = "dropout";
    return is_f32(node);
}
