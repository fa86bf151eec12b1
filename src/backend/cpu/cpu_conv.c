// SPDX-License-Identifier: Apache-2.0
// cpu_conv.c: steps of convolutions: their geometry as passes over filter taps, and the groups
// conv + bias + relu + 2 x 2 maximum with its way back.
#include <string.h>

#include "cpu_impl.h"

struct conv_step {
    struct cpu_conv_task task;          // pointers are set when it runs
    struct cpu_conv conv;
    struct cpu_pass passes[1 + CPU_PASSES_MAX];
    const struct node *x, *w, *bias, *y, *codes, *dy, *dx, *dw, *db;  // NULL: has none
    int64_t packed_floats, dw_floats, db_floats;
};

// Nodes of one convolution: x, w and the shape of its result.
static struct cpu_conv conv_of(const struct op_attr *attr, struct shape x, struct shape w,
                               struct shape y)
{
    return (struct cpu_conv){
        .n = x.dim[0], .h = x.dim[1], .w = x.dim[2], .c = x.dim[3], .p = y.dim[1], .q = y.dim[2],
        .k = y.dim[3], .r = w.dim[0], .s = w.dim[1],
        .stride = {attr->stride[0], attr->stride[1]},
        .dilation = {attr->dilation[0], attr->dilation[1]},
        .pad = {attr->pad_before[0], attr->pad_before[1]}};
}

static struct cpu_conv conv_of_node(const struct node *node)
{
    const struct node *a = node->inputs[0], *b = node->inputs[1];
    return node->op == OP_CONV2D      ? conv_of(&node->attr, a->shape, b->shape, node->shape)
           : node->op == OP_CONV2D_DX ? conv_of(&node->attr, node->shape, b->shape, a->shape)
                                      : conv_of(&node->attr, a->shape, node->shape, b->shape);
}

bool cpu_conv_fits(const struct node *node)
{
    struct cpu_conv conv = conv_of_node(node);
    bool dx = node->op == OP_CONV2D_DX;
    return node->dtype == DTYPE_F32 && node->attr.groups <= 1 && conv.r * conv.s <= CPU_TAPS_MAX &&
           MAX(conv.s * conv.c, conv.k) <= CPU_DEPTH_MAX &&
           (!dx || conv.stride[0] * conv.stride[1] <= CPU_PASSES_MAX);
}

// Few channels: a filter row's pixels lie one after the other, so a row is one tap of depth S * C.
static bool is_narrow(const struct cpu_conv *conv)
{
    return conv->c < 8 && conv->dilation[1] == 1;
}

static void forward_pass(const struct cpu_conv *conv, struct cpu_pass *pass)
{
    bool narrow = is_narrow(conv);
    // Rows and columns up to the last pixel that a point reads.
    int64_t rows = (conv->p - 1) * conv->stride[0] + (conv->r - 1) * conv->dilation[0] + 1;
    int64_t cols = (conv->q - 1) * conv->stride[1] + conv->s;
    bool padded = narrow && (conv->pad[0] || conv->pad[1] || rows > conv->h || cols > conv->w);
    *pass = (struct cpu_pass){
        .taps = narrow ? conv->r : conv->r * conv->s,
        .depth = narrow ? conv->s * conv->c : conv->c,
        .cols = conv->k, .in = {conv->h, conv->w}, .in_step = conv->c,
        .stride = {conv->stride[0], conv->stride[1]}, .grid = {conv->p, conv->q},
        .out_stride = {1, 1}, .out_width = conv->q, .padded = padded};
    for (int64_t t = 0; t < pass->taps; t++) {
        int64_t r = narrow ? t : t / conv->s, s = narrow ? 0 : t % conv->s;
        pass->weight[t] = r * conv->s + s;
        pass->at[t][0] = r * conv->dilation[0] - (padded ? 0 : conv->pad[0]);
        pass->at[t][1] = s * conv->dilation[1] - (padded ? 0 : conv->pad[1]);
    }
    if (padded) {  // every pixel that a point reads lies in the copy
        pass->in[0] = MAX(rows, conv->h + conv->pad[0]);
        pass->in[1] = MAX(cols, conv->w + conv->pad[1]);
    }
}

// dx at h = phase + stride * i takes dy at p with p * stride + r * dilation - pad = h: those taps r
// for which phase + pad - r * dilation is a multiple of the stride, at p = i + that / stride.
static int gradient_passes(const struct cpu_conv *conv, struct cpu_pass *passes)
{
    int count = 0;
    for (int64_t a = 0; a < conv->stride[0]; a++) {
        for (int64_t b = 0; b < conv->stride[1]; b++) {
            struct cpu_pass pass = {
                .depth = conv->k, .cols = conv->c, .in = {conv->p, conv->q}, .in_step = conv->k,
                .stride = {1, 1}, .out_start = {a, b},
                .grid = {(conv->h - a + conv->stride[0] - 1) / conv->stride[0],
                         (conv->w - b + conv->stride[1] - 1) / conv->stride[1]},
                .out_stride = {conv->stride[0], conv->stride[1]}, .out_width = conv->w,
                .transposed = true};
            for (int64_t t = 0; t < conv->r * conv->s; t++) {
                int64_t h = a + conv->pad[0] - t / conv->s * conv->dilation[0];
                int64_t w = b + conv->pad[1] - t % conv->s * conv->dilation[1];
                if (h % conv->stride[0] == 0 && w % conv->stride[1] == 0) {
                    pass.at[pass.taps][0] = h / conv->stride[0];
                    pass.at[pass.taps][1] = w / conv->stride[1];
                    pass.weight[pass.taps++] = t;
                }
            }
            if (pass.grid[0] > 0 && pass.grid[1] > 0) {
                passes[count++] = pass;
            }
        }
    }
    return count;
}

// F(4 x 4, 3 x 3) does 36 products a tile of 16 results instead of 144. Its transforms cost some
// dozen operations a channel and point: they must be shared by enough channels, and tiles must not
// stand out too far over the image.
static bool winograd_pays(const struct exec *exec, const struct cpu_conv *conv, bool dx)
{
    int64_t lanes = exec->device->kernels->lanes;
    int64_t tiles = CEIL_DIV(conv->p, INT64_C(4)) * CEIL_DIV(conv->q, INT64_C(4));
    bool fits = conv->r == 3 && conv->s == 3 && conv->c % (dx ? 2 * lanes : lanes) == 0 &&
                conv->k % (2 * lanes) == 0 && MIN(conv->c, conv->k) >= 16;
    for (int i = 0; i < 2; i++) {
        fits = fits && conv->stride[i] == 1 && conv->dilation[i] == 1;
    }
    return fits && 36 * tiles * 3 <= 9 * conv->p * conv->q * 2;  // two thirds of the products
}

// The kernels of first convolutions read weights in place and take the gradient through the
// maximum.
static bool narrow_fits(const struct conv_step *plan)
{
    const struct cpu_conv *c = &plan->conv;
    bool pooled = plan->task.backward ? plan->task.gradient == GRADIENT_POOL : plan->task.pool;
    return pooled && is_narrow(c) && !plan->dx && (plan->dw || !plan->task.backward) &&
           c->stride[0] == 1 && c->stride[1] == 1 && c->dilation[0] == 1;
}

static void *value_of(const struct exec *exec, const struct node *node)
{
    return node ? exec->data[node->id] : NULL;
}

struct conv_job {
    struct exec *exec;
    struct cpu_conv_task task;
    const struct conv_step *plan;
};

static void pack_body(void *argument, int thread, int threads)
{
    struct conv_job *job = argument;
    job->exec->device->kernels->conv_pack(&job->task, thread, threads);
}

static void forward_body(void *argument, int thread, int threads)
{
    struct conv_job *job = argument;
    job->exec->device->kernels->conv_forward(&job->task, thread, threads);
}

static void backward_body(void *argument, int thread, int threads)
{
    struct conv_job *job = argument;
    job->exec->device->kernels->conv_backward(&job->task, thread, threads);
}

// Adds the threads' parts of dw and db, in their order.
static void gather_body(void *argument, int thread, int threads)
{
    struct conv_job *job = argument;
    const struct conv_step *plan = job->plan;
    int64_t parts = job->exec->device->threads;
    const float *from[2] = {job->task.dw, job->task.db};
    float *to[2] = {value_of(job->exec, plan->dw), value_of(job->exec, plan->db)};
    int64_t sizes[2] = {plan->task.winograd ? 0 : plan->dw_floats, plan->db_floats};
    if (plan->task.winograd && plan->dw) {
        job->exec->device->kernels->wino_gather(&job->task, to[0], (int)parts, thread, threads);
    }
    for (int k = 0; k < 2; k++) {
        int64_t first = sizes[k] * thread / threads, last = sizes[k] * (thread + 1) / threads;
        for (int64_t part = 0; part < parts && to[k]; part++) {
            const float *add = from[k] + part * (k ? job->task.db_step : job->task.dw_step);
            for (int64_t i = first; i < last; i++) {
                to[k][i] = part ? to[k][i] + add[i] : add[i];
            }
        }
    }
}

static int64_t line_floats(int64_t count)
{
    return CEIL_DIV(count, (int64_t)16) * 16;
}

// Scratch of the step: packed weights, parts of dw and db, then the threads' own.
static struct conv_job start(struct exec *exec, const struct step *step)
{
    const struct conv_step *plan = step->detail;
    struct conv_job job = {.exec = exec, .task = plan->task, .plan = plan};
    struct cpu_conv_task *task = &job.task;
    int64_t threads = exec->device->threads;
    float *scratch = (float *)(void *)exec->scratch;
    task->x = value_of(exec, plan->x);
    task->w = value_of(exec, plan->w);
    task->bias = value_of(exec, plan->bias);
    task->y = value_of(exec, plan->y);
    task->codes = value_of(exec, plan->codes);
    task->dy = value_of(exec, plan->dy);
    task->dx = value_of(exec, plan->dx);
    task->packed = scratch;
    scratch += plan->packed_floats;
    task->dw = plan->dw ? scratch : NULL;
    scratch += threads * task->dw_step;
    task->db = plan->db ? scratch : NULL;
    scratch += threads * task->db_step;
    task->scratch = (char *)scratch;
    return job;
}

static double conv_work(const struct conv_step *plan)
{
    const struct cpu_conv *c = &plan->conv;
    return (double)(c->n * c->p * c->q) * (double)(c->k * c->c * c->r * c->s);
}

static enum status run_forward(struct exec *exec, const struct step *step)
{
    const struct conv_step *plan = step->detail;
    struct conv_job job = start(exec, step);
    if (plan->packed_floats) {
        cpu_parallel(exec, (double)plan->packed_floats, pack_body, &job);
    }
    cpu_parallel(exec, conv_work(plan) / CPU_WORK_PRODUCTS, forward_body, &job);
    return STATUS_OK;
}

static enum status run_backward(struct exec *exec, const struct step *step)
{
    const struct conv_step *plan = step->detail;
    struct conv_job job = start(exec, step);
    if (plan->dx) {
        cpu_parallel(exec, (double)plan->packed_floats, pack_body, &job);
    }
    // The number of threads decides the number of parts: never fewer here.
    cpu_parallel(exec, 1e9, backward_body, &job);
    if (plan->dw || plan->db) {
        cpu_parallel(exec, (double)plan->dw_floats, gather_body, &job);
    }
    return STATUS_OK;
}

// Fills in what follows from the nodes in `plan`.
static void finish(struct exec *exec, struct step *step, struct conv_step *plan)
{
    const struct cpu_kernels *kernels = exec->device->kernels;
    struct cpu_conv_task *task = &plan->task;
    task->conv = &plan->conv;
    task->passes = plan->passes;
    forward_pass(&plan->conv, &plan->passes[0]);
    task->pass_count = 1 + (plan->dx ? gradient_passes(&plan->conv, &plan->passes[1]) : 0);
    task->winograd = winograd_pays(exec, &plan->conv, plan->dx != NULL);
    task->narrow = narrow_fits(plan);
    plan->packed_floats = task->narrow ? 0 : line_floats(kernels->conv_packed(task, plan->passes));
    if (plan->dw) {
        int64_t matrix = plan->conv.c * plan->conv.k;
        plan->dw_floats = plan->conv.r * plan->conv.s * matrix;
        task->dw_step = task->winograd ? 36 * matrix : line_floats(plan->dw_floats);
    }
    if (plan->db) {
        plan->db_floats = plan->conv.k;
        task->db_step = line_floats(plan->db_floats);
    }
    task->scratch_step = kernels->conv_scratch(task);
    size_t threads = (size_t)exec->device->threads;
    step->scratch = threads * task->scratch_step +
                    sizeof(float) * ((size_t)plan->packed_floats +
                                     threads * (size_t)(task->dw_step + task->db_step));
    step->detail = plan;
    step->run = task->backward ? run_backward : run_forward;
    const struct node *const reads[] = {plan->x,     plan->w,
                                        plan->bias,  task->backward ? plan->y : NULL,
                                        plan->dy,    task->backward ? plan->codes : NULL};
    const struct node *const writes[] = {plan->dx, plan->dw, plan->db,
                                         task->backward ? NULL : plan->y,
                                         task->backward ? NULL : plan->codes};
    step->read_count = step->write_count = 0;
    for (size_t i = 0; i < ARRAY_COUNT(reads); i++) {
        if (reads[i]) {
            step->reads[step->read_count++] = reads[i]->id;
        }
    }
    for (size_t i = 0; i < ARRAY_COUNT(writes); i++) {
        if (writes[i]) {
            step->writes[step->write_count++] = writes[i]->id;
            exec->bytes[writes[i]->id] = node_bytes(writes[i]);
        }
    }
}

static struct conv_step *new_plan(struct exec *exec, const struct node *conv)
{
    struct conv_step *plan = ARENA_NEW(&exec->arena, struct conv_step);
    plan->conv = conv_of_node(conv);
    return plan;
}

bool cpu_plan_conv(struct exec *exec, const struct node *node, struct step *step)
{
    if (!cpu_conv_fits(node)) {
        return false;
    }
    struct conv_step *plan = new_plan(exec, node);
    plan->x = node->inputs[0];
    plan->w = node->inputs[1];
    plan->y = node;
    step->kernel = "conv";
    finish(exec, step, plan);
    return true;
}

// `node`: add(conv, bias), or the relu of it, or the maximum of that.
static bool plan_forward(struct exec *exec, const struct node *node, struct step *step)
{
    const struct node *relu = node->op == OP_MAX_POOL ? node->inputs[0] : node;
    const struct node *add = relu->op == OP_RELU ? relu->inputs[0] : relu;
    const struct node *conv = add->inputs[0];
    struct conv_step *plan = new_plan(exec, conv);
    plan->x = conv->inputs[0];
    plan->w = conv->inputs[1];
    plan->bias = add->inputs[1];
    plan->task.relu = add != relu;
    plan->y = node;
    plan->task.pool = relu != node;
    plan->codes = plan->task.pool ? relu : NULL;  // take the place of relu's values
    step->kernel = plan->task.pool   ? "conv+bias+relu+pool"
                   : plan->task.relu ? "conv+bias+relu"
                                     : "conv+bias";
    step->flops = node_flops(conv);
    finish(exec, step, plan);
    if (plan->codes) {
        exec->bytes[relu->id] = (size_t)shape_count(node->shape);
    }
    return true;
}

bool cpu_plan_conv_bias(struct exec *exec, const struct node *node, struct step *step)
{
    return plan_forward(exec, node, step);
}

static void take_gradient(struct conv_step *plan, const struct node *node)
{
    if (node->op == OP_CONV2D_DX) {
        plan->dx = node;
        plan->w = node->inputs[1];
    } else if (node->op == OP_CONV2D_DW) {
        plan->dw = node;
        plan->x = node->inputs[0];
    } else {
        plan->db = node;
    }
}

bool cpu_plan_conv_grad(struct exec *exec, const struct node *node, struct step *step)
{
    if (!cpu_conv_fits(node)) {
        return false;
    }
    struct conv_step *plan = new_plan(exec, node);
    take_gradient(plan, node);
    plan->dy = node->inputs[node->op == OP_CONV2D_DX ? 0 : 1];
    plan->task.backward = true;
    step->kernel = plan->dx ? "conv dx" : "conv dw";
    finish(exec, step, plan);
    return true;
}

// `node`: the last of the readers of the gradient g = relu_grad(y, dy), or of
// relu_grad(y, max_pool_grad(y, dy)).
bool cpu_plan_conv_back(struct exec *exec, const struct node *node, struct step *step)
{
    const struct cpu_group *group = exec->groups[node->id];
    struct conv_step *plan = new_plan(exec, group->conv_node);
    step->flops = 0;
    for (int i = 0; i < group->count; i++) {
        take_gradient(plan, group->nodes[i]);
        step->flops += node_flops(group->nodes[i]);
    }
    const struct node *y = group->relu_grad->inputs[0], *dy = group->relu_grad->inputs[1];
    bool pool = dy->op == OP_MAX_POOL_GRAD && exec->covered[dy->id];
    plan->dy = pool ? dy->inputs[1] : dy;
    plan->y = pool ? NULL : y;
    plan->codes = pool ? y : NULL;
    plan->task.gradient = pool ? GRADIENT_POOL : GRADIENT_RELU;
    plan->task.backward = true;
    step->kernel = pool ? "conv back through pool" : "conv back through relu";
    finish(exec, step, plan);
    return true;
}
