// SPDX-License-Identifier: Apache-2.0
// cpu_backend.c: the CPU backend's row of the table: devices, storage of variables, running and the
// profile. How a graph becomes steps is in cpu_plan.c.
#include <cpuid.h>
#include <immintrin.h>
#include <stdio.h>
#include <string.h>

#include "cpu_impl.h"

// Below this many elements waking a second thread costs more than it saves: a fork and join is 2 us
// and up, and a thread passes over this many in some 10 us.
static const double parallel_work = 65536;

struct parallel_job {
    void (*body)(void *argument, int thread, int threads);
    void *argument;
    int threads;
};

static enum status run_part(void *context, int member)
{
    const struct parallel_job *job = context;
    job->body(job->argument, member, job->threads);
    return STATUS_OK;
}

// The number of parts is part of the result (sums of parts): it is that of the device, always.
void cpu_parallel(const struct exec *exec, double work,
                  void (*body)(void *argument, int thread, int threads), void *argument)
{
    const struct device *device = exec->device;
    if (work < parallel_work || device->threads == 1) {
        body(argument, 0, 1);
        return;
    }
    struct parallel_job job = {body, argument, device->threads};
    (void)team_run(device->team, run_part, &job);  // a part cannot fail
}

static int cpu_device_count(const char **reason)
{
    *reason = NULL;
    return 1;
}

static const struct cpu_kernels *best_kernels(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        return &cpu_kernels_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &cpu_kernels_avx2;
    }
    return &cpu_kernels_plain;
}

// The processor's own name, without the blanks some pad it with.
static void cpu_model(char name[49])
{
    unsigned words[12] = {0};
    for (unsigned i = 0; i < 3; i++) {
        __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                    &words[4 * i + 3]);
    }
    memcpy(name, words, 48);
    name[48] = 0;
    size_t blanks = strspn(name, " "), size = strlen(name + blanks);
    memmove(name, name + blanks, size + 1);
    while (size && name[size - 1] == ' ') {
        name[--size] = 0;
    }
}

struct peak_job {
    const struct device *device;
    double *flops;  // [threads]
};

static enum status run_peak(void *context, int member)
{
    const struct peak_job *job = context;
    job->flops[member] = job->device->kernels->peak(200000);  // some 10 ms
    return STATUS_OK;
}

// The best of several short runs of independent multiply-adds on all threads.
static double measure_peak(const struct device *device)
{
    struct peak_job job = {device, MEM_NEW_ARRAY(double, device->threads)};
    double best = 0;
    for (int round = 0; round < 5; round++) {
        double flops = 0, start = time_now();
        (void)team_run(device->team, run_peak, &job);
        double seconds = time_now() - start;
        for (int i = 0; i < device->threads; i++) {
            flops += job.flops[i];
        }
        best = MAX(best, flops / seconds);
    }
    mem_free(job.flops);
    return best;
}

// Denormals cost a hundred times a normal number and carry nothing in float32 training.
enum { FLUSH_DENORMALS = 0x8040 };  // FTZ and DAZ

static enum status flush_denormals(void *context, int member)
{
    (void)context, (void)member;
    _mm_setcsr(_mm_getcsr() | FLUSH_DENORMALS);
    return STATUS_OK;
}

static enum status cpu_open(const struct device_options *options, struct device **out)
{
    struct device *device = MEM_NEW(struct device);
    device->threads = MAX(options->threads, 1);
    device->collective = options->collective;
    device->profile = options->profile;
    device->kernels = best_kernels();
    char model[49];
    cpu_model(model);
    snprintf(device->text, sizeof device->text, "%s, %d thread%s, %s", model, device->threads,
             device->threads == 1 ? "" : "s", device->kernels->name);
    enum status status = team_new(device->threads, &device->team);
    if (status != STATUS_OK) {
        mem_free(device);
        *out = NULL;
        return status;
    }
    // The members compute only for this device; the caller switches back and forth in cpu_run.
    unsigned control = _mm_getcsr();
    (void)team_run(device->team, flush_denormals, NULL);
    _mm_setcsr(control);
    if (device->profile) {
        device->peak = measure_peak(device);
    }
    *out = device;
    return STATUS_OK;
}

static void cpu_close(struct device *device)
{
    if (device) {
        team_free(device->team);
        mem_free(device);
    }
}

static const char *cpu_describe(const struct device *device)
{
    return device->text;
}

// ---- Variables ----------------------------------------------------------------------------------

static size_t variable_bytes(const struct variable *variable)
{
    return (size_t)shape_count(variable->shape) * dtype_size(variable->dtype);
}

static enum status cpu_state_new(struct device *device, const struct variables *variables,
                                 struct state **out)
{
    (void)device;
    struct state *state = MEM_NEW(struct state);
    struct plan_item *items = MEM_NEW_ARRAY(struct plan_item, variables->count);
    for (int i = 0; i < variables->count; i++) {
        items[i].size = variable_bytes(variables->items[i]);  // all live at once
    }
    state->slab_size = plan_place(items, variables->count);
    state->data = MEM_NEW_ARRAY(void *, variables->count);
    enum status status = mem_slab_new(state->slab_size, "the variables", &state->slab);
    for (int i = 0; i < variables->count && status == STATUS_OK; i++) {
        state->data[i] = (char *)state->slab + items[i].offset;
    }
    mem_free(items);
    if (status != STATUS_OK) {
        mem_free(state->data);
        mem_free(state);
        state = NULL;
    }
    *out = state;
    return status;
}

static void cpu_state_free(struct state *state)
{
    if (state) {
        mem_slab_free(state->slab, state->slab_size);
        mem_free(state->data);
        mem_free(state);
    }
}

static enum status cpu_state_put(struct state *state, const struct variable *variable,
                                 const void *data)
{
    memcpy(state->data[variable->id], data, variable_bytes(variable));
    return STATUS_OK;
}

static enum status cpu_state_get(const struct state *state, const struct variable *variable,
                                 void *data)
{
    memcpy(data, state->data[variable->id], variable_bytes(variable));
    return STATUS_OK;
}

// ---- Graphs -------------------------------------------------------------------------------------

static const char *cpu_refuses(const struct node *node)
{
    (void)node;
    return NULL;  // what has no kernel of its own runs on the reference kernel
}

static void cpu_exec_free(struct exec *exec)
{
    if (exec) {
        mem_slab_free(exec->slab, exec->slab_size);
        arena_release(&exec->arena);
        mem_free(exec->live);
        mem_free(exec->steps);
        mem_free(exec);
    }
}

static enum status cpu_compile(struct device *device, const struct graph *graph,
                               struct state *state, struct exec **out)
{
    *out = NULL;
    TRY(graph_verify(graph));
    struct exec *exec = MEM_NEW(struct exec);
    arena_init(&exec->arena);
    exec->device = device;
    exec->graph = graph;
    exec->state = state;
    enum status status = cpu_exec_plan(exec);
    if (status != STATUS_OK) {
        cpu_exec_free(exec);
        return status;
    }
    *out = exec;
    return STATUS_OK;
}

static enum status run_steps(struct exec *exec)
{
    bool profile = exec->device->profile;
    for (int i = 0; i < exec->step_count; i++) {
        struct step *step = &exec->steps[i];
        double start = profile ? time_now() : 0;
        enum status status = step->run(exec, step);
        if (status != STATUS_OK) {
            return error_prefix(status, "layer %s", step->node->layer);
        }
        if (profile) {
            step->seconds += time_now() - start;
            step->calls++;
        }
    }
    return STATUS_OK;
}

static enum status cpu_run(struct exec *exec, const void *const *feeds, void *const *fetches)
{
    const struct graph *graph = exec->graph;
    for (int i = 0; i < graph->input_count; i++) {
        exec->data[graph->inputs[i]->id] = (void *)(uintptr_t)feeds[i];  // read only
    }
    for (int i = 0; i < exec->rebind_count; i++) {
        exec->data[exec->rebind[i]] = exec->data[exec->home[exec->rebind[i]]];
    }
    unsigned control = _mm_getcsr();
    if (graph->real == DTYPE_F32) {
        _mm_setcsr(control | FLUSH_DENORMALS);
    }
    enum status status = run_steps(exec);
    _mm_setcsr(control);
    for (int i = 0; i < graph->output_count && status == STATUS_OK; i++) {
        if (fetches[i]) {
            const struct node *node = graph->outputs[i];
            memcpy(fetches[i], exec->data[node->id], node_bytes(node));
        }
    }
    return status;
}

static size_t cpu_exec_bytes(const struct exec *exec)
{
    return exec->slab_size;
}

// ---- Profile ------------------------------------------------------------------------------------

static double step_bytes(const struct exec *exec, const struct step *step)
{
    size_t bytes = 0;
    for (int i = 0; i < step->read_count; i++) {
        bytes += node_bytes(exec->graph->nodes[step->reads[i]]);
    }
    for (int i = 0; i < step->write_count; i++) {
        bytes += exec->bytes[step->writes[i]];
    }
    return (double)bytes;
}

static void report_profile(const struct exec *exec, struct text *out)
{
    double seconds = 0, flops = 0;
    for (int i = 0; i < exec->step_count; i++) {
        seconds += exec->steps[i].seconds;
        flops += exec->steps[i].flops * (double)exec->steps[i].calls;
    }
    text_printf(out, "%10s %7s %6s %9s %7s  %-22s %s\n", "ms/call", "calls", "%", "GFLOP/s", "GB/s",
                "kernel", "node");
    for (int i = 0; i < exec->step_count; i++) {
        const struct step *step = &exec->steps[i];
        char text[200];
        double each = step->calls ? step->seconds / (double)step->calls : 0;
        double rate = each > 0 ? 1e-9 / each : 0;
        text_printf(out, "%10.4f %7lld %6.2f %9.2f %7.2f  %-22s %s\n", 1e3 * each,
                    (long long)step->calls, seconds > 0 ? 100 * step->seconds / seconds : 0,
                    step->flops * rate, step_bytes(exec, step) * rate, step->kernel,
                    node_text(step->node, text, sizeof text));
    }
    int64_t calls = exec->step_count ? exec->steps[0].calls : 0;
    if (calls && seconds > 0 && exec->device->peak > 0) {
        text_printf(out, "%10.4f ms a call in all, %.1f GFLOP/s: %.0f %% of this machine's %.1f\n",
                    1e3 * seconds / (double)calls, 1e-9 * flops / seconds,
                    100 * flops / seconds / exec->device->peak, 1e-9 * exec->device->peak);
    }
}

static void cpu_exec_report(const struct exec *exec, struct text *out)
{
    int fallbacks = 0;
    for (int i = 0; i < exec->step_count; i++) {
        fallbacks += strcmp(exec->steps[i].kernel, "reference") == 0;
    }
    text_printf(out, "%s: %d steps for %d nodes, %d on reference kernels, %.1f MB\n",
                exec->device->text, exec->step_count, exec->graph->count, fallbacks,
                1e-6 * (double)exec->slab_size);
    if (exec->device->profile) {
        report_profile(exec, out);
        return;
    }
    for (int i = 0; i < exec->step_count; i++) {
        char text[200];
        if (strcmp(exec->steps[i].kernel, "reference") == 0) {
            text_printf(out, "reference kernel: %s\n",
                        node_text(exec->steps[i].node, text, sizeof text));
        }
    }
}

const struct backend_def cpu_backend = {
    .name = "cpu",
    .help = "vector kernels on all cores",
    .device_count = cpu_device_count,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .state_new = cpu_state_new,
    .state_free = cpu_state_free,
    .state_put = cpu_state_put,
    .state_get = cpu_state_get,
    .refuses = cpu_refuses,
    .compile = cpu_compile,
    .exec_free = cpu_exec_free,
    .run = cpu_run,
    .exec_bytes = cpu_exec_bytes,
    .exec_report = cpu_exec_report,
};
