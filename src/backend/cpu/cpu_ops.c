// SPDX-License-Identifier: Apache-2.0
// cpu_ops.c: steps of the elementwise ops, reductions, matrix products, updates and collectives:
// how the work is cut for the threads. The arithmetic is in the kernel tables.
#include <math.h>
#include <string.h>

#include "cpu_impl.h"

// Cuts inside a vector would make the cut part of the arithmetic; 64 also keeps threads off each
// other's cache lines.
static int64_t cut(int64_t count, int thread, int threads)
{
    return thread == threads ? count : cpu_part(count, thread, threads) / 64 * 64;
}

static bool all_f32(const struct node *node)
{
    bool yes = node->dtype == DTYPE_F32;
    for (int k = 0; k < node->input_count; k++) {
        yes = yes && node->inputs[k]->dtype == DTYPE_F32;
    }
    return yes;
}

struct job {
    struct exec *exec;
    const struct step *step;
};

static enum status run_parallel(struct exec *exec, const struct step *step, double work,
                                void (*body)(void *, int, int))
{
    struct job job = {exec, step};
    cpu_parallel(exec, work, body, &job);
    return STATUS_OK;
}

// ---- Elementwise --------------------------------------------------------------------------------

static void unary_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct node *node = job->step->node;
    int64_t count = shape_count(node->shape), first = cut(count, thread, threads);
    const float *x = cpu_in(job->exec, job->step, 0);
    float *y = cpu_out(job->exec, job->step);
    job->exec->device->kernels->unary(node->op, x + first, y + first,
                                      cut(count, thread + 1, threads) - first);
}

static enum status run_unary(struct exec *exec, const struct step *step)
{
    return run_parallel(exec, step, (double)shape_count(step->node->shape), unary_body);
}

bool cpu_plan_unary(struct exec *exec, const struct node *node, struct step *step)
{
    (void)exec;
    step->run = run_unary;
    step->kernel = "elementwise";
    return all_f32(node);
}

// The last input becomes the output: a reshaped variable, an assignment.
static enum status run_copy(struct exec *exec, const struct step *step)
{
    const struct node *node = step->node;
    memmove(cpu_out(exec, step), cpu_in(exec, step, node->input_count - 1), node_bytes(node));
    return STATUS_OK;
}

bool cpu_plan_copy(struct exec *exec, const struct node *node, struct step *step)
{
    (void)exec;
    (void)node;
    step->run = run_copy;
    step->kernel = "copy";
    return true;
}

static void cast_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    int64_t count = shape_count(job->step->node->shape), first = cut(count, thread, threads);
    const uint8_t *x = cpu_in(job->exec, job->step, 0);
    float *y = cpu_out(job->exec, job->step);
    job->exec->device->kernels->from_bytes(x + first, y + first,
                                           cut(count, thread + 1, threads) - first);
}

static enum status run_cast(struct exec *exec, const struct step *step)
{
    return run_parallel(exec, step, (double)shape_count(step->node->shape), cast_body);
}

bool cpu_plan_cast(struct exec *exec, const struct node *node, struct step *step)
{
    (void)exec;
    step->run = run_cast;
    step->kernel = "cast";
    return node->dtype == DTYPE_F32 && node->inputs[0]->dtype == DTYPE_U8;
}

// numpy's broadcasting as loops: `rows` runs of `inner` elements, in which an operand moves by 0 or
// 1.
struct broadcast {
    int rank;                       // of the outer loops
    int64_t dim[SHAPE_RANK_MAX];    // outermost first
    int64_t stride[2][SHAPE_RANK_MAX];
    int64_t rows, inner;
    int step[2];
};

// Element strides of `shape` seen as the bigger `full`: 0 where it repeats.
static void strides_in(struct shape shape, struct shape full, int64_t stride[SHAPE_RANK_MAX])
{
    int64_t step = 1;
    for (int i = full.rank - 1, k = shape.rank - 1; i >= 0; i--, k--) {
        stride[i] = k < 0 || shape.dim[k] == 1 ? 0 : step;
        step *= k < 0 ? 1 : shape.dim[k];
    }
}

static void broadcast_plan(const struct node *node, const struct node *a, const struct node *b,
                           struct broadcast *plan)
{
    int64_t stride[2][SHAPE_RANK_MAX];
    struct shape full = node->shape;
    strides_in(a->shape, full, stride[0]);
    strides_in(b->shape, full, stride[1]);
    int end = full.rank;
    plan->inner = 1;
    for (; end > 0; end--) {  // dimensions join the inner run as long as both operands go on evenly
        int64_t size = full.dim[end - 1];
        bool joins = true;
        for (int o = 0; o < 2; o++) {
            int64_t next = stride[o][end - 1];
            joins = joins && (size == 1 || (plan->inner == 1 ? next <= 1
                                            : next == plan->step[o] * plan->inner));
        }
        if (!joins) {
            break;
        }
        for (int o = 0; o < 2 && size > 1; o++) {
            plan->step[o] = plan->inner == 1 ? (int)stride[o][end - 1] : plan->step[o];
        }
        plan->inner *= size;
    }
    plan->rank = end;
    plan->rows = 1;
    for (int i = 0; i < end; i++) {
        plan->dim[i] = full.dim[i];
        plan->stride[0][i] = stride[0][i];
        plan->stride[1][i] = stride[1][i];
        plan->rows *= full.dim[i];
    }
}

static int64_t broadcast_offset(const struct broadcast *plan, int operand, int64_t row)
{
    int64_t offset = 0;
    for (int i = plan->rank - 1; i >= 0; i--) {
        offset += row % plan->dim[i] * plan->stride[operand][i];
        row /= plan->dim[i];
    }
    return offset;
}

static void binary_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct broadcast *plan = job->step->detail;
    const float *a = cpu_in(job->exec, job->step, 0), *b = cpu_in(job->exec, job->step, 1);
    float *y = cpu_out(job->exec, job->step);
    int64_t row = 0, row_end = plan->rows, first = 0, last = plan->inner;
    if (plan->rows >= threads) {
        row = cpu_part(plan->rows, thread, threads);
        row_end = cpu_part(plan->rows, thread + 1, threads);
    } else {
        first = cut(plan->inner, thread, threads);
        last = cut(plan->inner, thread + 1, threads);
    }
    for (; row < row_end; row++) {
        job->exec->device->kernels->binary(&(struct cpu_binary){
            .op = job->step->node->op, .count = last - first,
            .a = a + broadcast_offset(plan, 0, row) + first * plan->step[0],
            .b = b + broadcast_offset(plan, 1, row) + first * plan->step[1],
            .a_step = plan->step[0], .b_step = plan->step[1], .y = y + row * plan->inner + first});
    }
}

static enum status run_binary(struct exec *exec, const struct step *step)
{
    return run_parallel(exec, step, (double)shape_count(step->node->shape), binary_body);
}

static enum status run_compare_labels(struct exec *exec, const struct step *step)
{
    const int32_t *a = cpu_in(exec, step, 0), *b = cpu_in(exec, step, 1);
    float *y = cpu_out(exec, step);
    for (int64_t i = 0; i < shape_count(step->node->shape); i++) {
        y[i] = a[i] == b[i];
    }
    return STATUS_OK;
}

bool cpu_plan_binary(struct exec *exec, const struct node *node, struct step *step)
{
    struct broadcast *plan = ARENA_NEW(&exec->arena, struct broadcast);
    broadcast_plan(node, node->inputs[0], node->inputs[1], plan);
    step->detail = plan;
    step->run = run_binary;
    step->kernel = "elementwise";
    const struct node *a = node->inputs[0], *b = node->inputs[1];
    if (node->op == OP_EQUAL && a->dtype == DTYPE_I32 && shape_equal(a->shape, b->shape)) {
        step->run = run_compare_labels;  // of predictions
        return node->dtype == DTYPE_F32;
    }
    return all_f32(node);
}

static void broadcast_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct broadcast *plan = job->step->detail;
    const float *x = cpu_in(job->exec, job->step, 0);
    float *y = cpu_out(job->exec, job->step);
    for (int64_t row = cpu_part(plan->rows, thread, threads);
         row < cpu_part(plan->rows, thread + 1, threads); row++) {
        const float *from = x + broadcast_offset(plan, 0, row);
        float *to = y + row * plan->inner;
        for (int64_t i = 0; i < plan->inner; i++) {
            to[i] = from[i * plan->step[0]];
        }
    }
}

static enum status run_broadcast(struct exec *exec, const struct step *step)
{
    return run_parallel(exec, step, (double)shape_count(step->node->shape), broadcast_body);
}

bool cpu_plan_broadcast(struct exec *exec, const struct node *node, struct step *step)
{
    struct broadcast *plan = ARENA_NEW(&exec->arena, struct broadcast);
    broadcast_plan(node, node->inputs[0], node->inputs[0], plan);
    step->detail = plan;
    step->run = run_broadcast;
    step->kernel = "broadcast";
    return all_f32(node);
}

// ---- Reductions ---------------------------------------------------------------------------------

// Sum over the middle of (outer, mid, inner), in chunks whose size is fixed: the order of sums does
// not depend on the number of threads.
struct reduce {
    int64_t outer, mid, inner, chunk, chunks;
};

enum { REDUCE_ROWS = 256, REDUCE_ELEMENTS = 8192 };

static bool reduce_plan(const struct node *node, struct reduce *plan)
{
    struct shape shape = node->inputs[0]->shape;
    bool reduced[SHAPE_RANK_MAX] = {false};
    for (int i = 0; i < node->attr.axis_count; i++) {
        reduced[node->attr.axes[i]] = true;
    }
    *plan = (struct reduce){1, 1, 1, 0, 0};
    for (int i = 0; i < shape.rank; i++) {
        bool now = reduced[i] || node->attr.axis_count == 0;
        if (shape.dim[i] == 1) {
            continue;
        }
        if (now && plan->inner > 1) {
            return false;  // reduced dimensions on both sides of a kept one
        }
        *(now ? &plan->mid : plan->mid > 1 ? &plan->inner : &plan->outer) *= shape.dim[i];
    }
    plan->chunk = plan->inner == 1 ? REDUCE_ELEMENTS : REDUCE_ROWS;
    plan->chunks = CEIL_DIV(plan->mid, plan->chunk);
    return plan->mid > 0;
}

static void reduce_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    const struct reduce *r = job->step->detail;
    const struct cpu_kernels *kernels = job->exec->device->kernels;
    const float *x = cpu_in(job->exec, job->step, 0);
    float *out = r->chunks == 1 ? cpu_out(job->exec, job->step) : (void *)job->exec->scratch;
    int64_t units = r->outer * r->chunks;
    for (int64_t u = cpu_part(units, thread, threads); u < cpu_part(units, thread + 1, threads);
         u++) {
        int64_t first = u % r->chunks * r->chunk, rows = MIN(r->chunk, r->mid - first);
        const float *from = x + (u / r->chunks * r->mid + first) * r->inner;
        if (r->inner == 1) {
            out[u] = kernels->sum(from, rows);
        } else {
            kernels->sum_rows(from, rows, r->inner, out + u * r->inner);
        }
    }
}

static enum status run_reduce(struct exec *exec, const struct step *step)
{
    const struct reduce *r = step->detail;
    run_parallel(exec, step, (double)(r->outer * r->mid * r->inner), reduce_body);
    for (int64_t o = 0; o < r->outer && r->chunks > 1; o++) {
        exec->device->kernels->sum_rows((float *)(void *)exec->scratch + o * r->chunks * r->inner,
                                        r->chunks, r->inner,
                                        (float *)cpu_out(exec, step) + o * r->inner);
    }
    return STATUS_OK;
}

bool cpu_plan_reduce(struct exec *exec, const struct node *node, struct step *step)
{
    struct reduce *plan = ARENA_NEW(&exec->arena, struct reduce);
    if (!all_f32(node) || !reduce_plan(node, plan)) {
        return false;
    }
    step->detail = plan;
    step->run = run_reduce;
    step->kernel = "sum";
    size_t parts = (size_t)(plan->outer * plan->chunks * plan->inner);
    step->scratch = plan->chunks > 1 ? sizeof(float) * parts : 0;
    return true;
}

// ---- Matrix products ----------------------------------------------------------------------------

struct matmul {
    struct cpu_gemm gemm;  // pointers are set when it runs
    int64_t batch, a_step, b_step, c_step;
    const struct node *a, *b, *bias;
};

static void matmul_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    struct exec *exec = job->exec;
    const struct matmul *plan = job->step->detail;
    struct cpu_gemm gemm = plan->gemm;
    gemm.bias = plan->bias ? exec->data[plan->bias->id] : NULL;
    float *scratch = (float *)(void *)exec->scratch + (int64_t)thread * CPU_GEMM_SCRATCH;
    // Several products: each thread takes whole ones.
    bool many = plan->batch >= threads;
    int64_t first = many ? cpu_part(plan->batch, thread, threads) : 0;
    int64_t last = many ? cpu_part(plan->batch, thread + 1, threads) : plan->batch;
    for (int64_t i = first; i < last; i++) {
        gemm.a = (const float *)exec->data[plan->a->id] + i * plan->a_step;
        gemm.b = (const float *)exec->data[plan->b->id] + i * plan->b_step;
        gemm.c = (float *)cpu_out(exec, job->step) + i * plan->c_step;
        exec->device->kernels->gemm(&gemm, scratch, many ? 0 : thread, many ? 1 : threads);
    }
}

static enum status run_matmul(struct exec *exec, const struct step *step)
{
    const struct matmul *plan = step->detail;
    double work = (double)(plan->batch * plan->gemm.m * plan->gemm.n) * (double)plan->gemm.k;
    return run_parallel(exec, step, work / CPU_WORK_PRODUCTS, matmul_body);
}

static bool matmul_plan(struct exec *exec, const struct node *node, struct step *step,
                        const struct node *bias, bool relu)
{
    const struct node *a = node->inputs[0], *b = node->inputs[1];
    int r = a->shape.rank;
    int64_t m = node->shape.dim[r - 2], n = node->shape.dim[r - 1];
    int64_t k = a->shape.dim[node->attr.transpose_a ? r - 2 : r - 1];
    if (!all_f32(node) || k == 0) {
        return false;
    }
    struct matmul *plan = ARENA_NEW(&exec->arena, struct matmul);
    *plan = (struct matmul){
        .gemm = {.m = m, .n = n, .k = k, .transpose_a = node->attr.transpose_a,
                 .transpose_b = node->attr.transpose_b, .relu = relu,
                 .lda = a->shape.dim[r - 1], .ldb = b->shape.dim[r - 1], .ldc = n},
        .batch = shape_count(node->shape) / MAX(m * n, 1), .a_step = m * k, .b_step = k * n,
        .c_step = m * n, .a = a, .b = b, .bias = bias};
    step->detail = plan;
    step->run = run_matmul;
    step->kernel = bias ? relu ? "gemm+bias+relu" : "gemm+bias" : "gemm";
    step->scratch = sizeof(float) * (size_t)(CPU_GEMM_SCRATCH * exec->device->threads);
    return true;
}

bool cpu_plan_matmul(struct exec *exec, const struct node *node, struct step *step)
{
    return matmul_plan(exec, node, step, NULL, false);
}

// `node`: add(matmul, bias), or the relu of it.
bool cpu_plan_dense(struct exec *exec, const struct node *node, struct step *step)
{
    bool relu = node->op == OP_RELU;
    const struct node *add = relu ? node->inputs[0] : node, *matmul = add->inputs[0];
    step->read_count = 0;
    step->reads[step->read_count++] = matmul->inputs[0]->id;
    step->reads[step->read_count++] = matmul->inputs[1]->id;
    step->reads[step->read_count++] = add->inputs[1]->id;
    step->flops = node_flops(matmul);
    return matmul_plan(exec, matmul, step, add->inputs[1], relu);
}

// ---- Updates ------------------------------------------------------------------------------------

// The update of elements [first, first + count), whose gradient starts at dw.
static void update_range(const struct exec *exec, const struct step *step, int64_t first,
                         int64_t count, const float *dw)
{
    const struct node *node = step->node;
    float *slot[OP_INPUT_MAX] = {NULL};
    for (int k = 0; k < node->input_count; k++) {
        bool whole = shape_equal(node->inputs[k]->shape, node->shape);
        slot[k] = k == 1 ? NULL : (float *)cpu_in(exec, step, k) + (whole ? first : 0);
    }
    struct cpu_update update = {.node = node, .count = count, .w = slot[0], .dw = dw};
    int lr = node->input_count - 1;
    if (node->inputs[lr]->dtype == DTYPE_I64) {
        update.step = *(int64_t *)cpu_in(exec, step, lr--);
    }
    float **first_slot = node->op == OP_RMSPROP ? &update.v : &update.m;
    float **second_slot = node->op == OP_RMSPROP ? &update.m : &update.v;
    *first_slot = lr > 2 ? slot[2] : NULL;
    *second_slot = lr > 3 ? slot[3] : NULL;
    update.lr = *slot[lr];
    exec->device->kernels->update(&update);
}

static void update_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    int64_t count = shape_count(job->step->node->shape), first = cut(count, thread, threads);
    update_range(job->exec, job->step, first, cut(count, thread + 1, threads) - first,
                 (const float *)cpu_in(job->exec, job->step, 1) + first);
}

static enum status run_update(struct exec *exec, const struct step *step)
{
    return run_parallel(exec, step, (double)shape_count(step->node->shape), update_body);
}

bool cpu_plan_update(struct exec *exec, const struct node *node, struct step *step)
{
    (void)exec;
    step->run = run_update;
    step->kernel = "update";
    return node->dtype == DTYPE_F32 && node->inputs[1]->dtype == DTYPE_F32 &&
           shape_count(node->shape) > 1;
}

// ---- A product that is a gradient, and its update -----------------------------------------------

// Rows of the gradient at a time: so many that the columns of its operand are fetched ahead, so few
// that they are still in the second-level cache when the update reads them.
static int64_t update_rows(int64_t cols)
{
    enum { ROWS_MIN = 8 * TILE_ROWS, FLOATS = 24 * 1024 };
    return MAX(FLOATS / cols / TILE_ROWS * TILE_ROWS, (int64_t)ROWS_MIN);
}

static void matmul_update_body(void *argument, int thread, int threads)
{
    struct job *job = argument;
    struct exec *exec = job->exec;
    const struct matmul *plan = job->step->detail;
    struct cpu_gemm gemm = plan->gemm;
    const float *a = exec->data[plan->a->id];
    int64_t rows = update_rows(gemm.n), a_row = gemm.transpose_a ? 1 : gemm.lda;
    float *scratch =
        (float *)(void *)exec->scratch + (int64_t)thread * (CPU_GEMM_SCRATCH + rows * gemm.n);
    gemm.b = exec->data[plan->b->id];
    gemm.c = scratch + CPU_GEMM_SCRATCH;
    int64_t end = cpu_part(plan->gemm.m, thread + 1, threads);
    for (int64_t first = cpu_part(plan->gemm.m, thread, threads); first < end; first += rows) {
        gemm.m = MIN(rows, end - first);
        gemm.a = a + first * a_row;
        exec->device->kernels->gemm(&gemm, scratch, 0, 1);
        update_range(exec, job->step, first * gemm.n, gemm.m * gemm.n, gemm.c);
    }
}

static enum status run_matmul_update(struct exec *exec, const struct step *step)
{
    const struct matmul *plan = step->detail;
    double work = (double)(plan->gemm.m * plan->gemm.n) * (double)plan->gemm.k;
    return run_parallel(exec, step, work / CPU_WORK_PRODUCTS, matmul_update_body);
}

// `node`: an update whose gradient is a matmul that nobody else reads.
bool cpu_plan_matmul_update(struct exec *exec, const struct node *node, struct step *step)
{
    const struct node *matmul = node->inputs[1];
    step->reads[1] = matmul->inputs[0]->id;
    step->reads[step->read_count++] = matmul->inputs[1]->id;
    step->flops += node_flops(matmul);
    if (!matmul_plan(exec, matmul, step, NULL, false)) {
        return false;
    }
    const struct cpu_gemm *gemm = &((const struct matmul *)step->detail)->gemm;
    step->run = run_matmul_update;
    step->kernel = "gemm+update";
    step->scratch +=
        sizeof(float) * (size_t)(update_rows(gemm->n) * gemm->n * exec->device->threads);
    return true;
}

// ---- Collectives --------------------------------------------------------------------------------

struct sums {
    void **data;     // [write_count]
    int64_t *sizes;
};

static enum status run_all_reduce(struct exec *exec, const struct step *step)
{
    const struct sums *sums = step->detail;
    for (int i = 0; i < step->write_count; i++) {
        sums->data[i] = exec->data[step->writes[i]];
        if (sums->data[i] != exec->data[step->reads[i]]) {
            memcpy(sums->data[i], exec->data[step->reads[i]],
                   node_bytes(exec->graph->nodes[step->writes[i]]));
        }
    }
    const struct collective *collective = exec->device->collective;
    return collective ? collective->all_reduce(collective, step->write_count, sums->data,
                                               sums->sizes, step->node->dtype)
                      : STATUS_OK;
}

// Takes the sums that follow along, so that the replicas meet once.
bool cpu_plan_all_reduce(struct exec *exec, const struct node *node, struct step *step)
{
    const struct graph *graph = exec->graph;
    int room = graph->count - node->id;
    step->reads = ARENA_NEW_ARRAY(&exec->arena, int, room);
    step->writes = ARENA_NEW_ARRAY(&exec->arena, int, room);
    struct sums *sums = ARENA_NEW(&exec->arena, struct sums);
    sums->data = ARENA_NEW_ARRAY(&exec->arena, void *, room);
    sums->sizes = ARENA_NEW_ARRAY(&exec->arena, int64_t, room);
    step->read_count = step->write_count = 0;
    for (int i = node->id; i < graph->count; i++) {
        const struct node *next = graph->nodes[i];
        if (!exec->live[i] || !op_table[next->op]->reference) {
            continue;  // constants and feeds do not part them
        }
        if (next->op != OP_ALL_REDUCE || next->dtype != node->dtype ||
            (i != node->id && next->inputs[0]->id >= node->id)) {
            break;
        }
        exec->covered[i] = true;
        exec->bytes[i] = node_bytes(next);
        sums->sizes[step->write_count] = shape_count(next->shape);
        step->reads[step->read_count++] = next->inputs[0]->id;
        step->writes[step->write_count++] = i;
    }
    step->detail = sums;
    step->run = run_all_reduce;
    step->kernel = "all_reduce";
    return true;
}
