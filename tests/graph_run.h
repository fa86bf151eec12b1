// SPDX-License-Identifier: Apache-2.0
// graph_run.h: a graph on a backend, for tests: feeds and fetches by name, values as double.
#ifndef GRAPH_RUN_H
#define GRAPH_RUN_H

#include "test.h"
#include "trainer/backend.h"

struct graph_run {
    const struct backend_def *backend;
    const struct graph *graph;  // borrowed
    struct device *device;
    struct state *state;
    struct exec *exec;
    void **feeds, **fetches;    // [input_count], [output_count]
};

static inline double element_get(const void *data, enum dtype dtype, int64_t i)
{
    switch (dtype) {
    case DTYPE_F32: return (double)((const float *)data)[i];
    case DTYPE_F64: return ((const double *)data)[i];
    case DTYPE_I32: return ((const int32_t *)data)[i];
    case DTYPE_I64: return (double)((const int64_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

static inline void element_set(void *data, enum dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case DTYPE_F32: ((float *)data)[i] = (float)value; break;
    case DTYPE_F64: ((double *)data)[i] = value; break;
    case DTYPE_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case DTYPE_I64: ((int64_t *)data)[i] = (int64_t)value; break;
    default: ((uint8_t *)data)[i] = (uint8_t)value; break;
    }
}

// Compiles `graph`; all feeds, variables are zero.
static inline void run_init(struct graph_run *run, const char *backend, struct graph *graph)
{
    *run = (struct graph_run){.backend = backend_find(backend), .graph = graph};
    assert_non_null(run->backend);
    assert_ok(graph_check(graph));
    assert_ok(run->backend->open(&(struct device_options){.threads = 1}, &run->device));
    assert_ok(run->backend->state_new(run->device, graph->variables, &run->state));
    assert_ok(run->backend->compile(run->device, graph, run->state, &run->exec));
    run->feeds = MEM_NEW_ARRAY(void *, graph->input_count + 1);
    run->fetches = MEM_NEW_ARRAY(void *, graph->output_count + 1);
    for (int i = 0; i < graph->input_count; i++) {
        run->feeds[i] = mem_alloc(node_bytes(graph->inputs[i]));
    }
    for (int i = 0; i < graph->output_count; i++) {
        run->fetches[i] = mem_alloc(node_bytes(graph->outputs[i]));
    }
}

static inline void run_release(struct graph_run *run)
{
    for (int i = 0; i < run->graph->input_count; i++) {
        mem_free(run->feeds[i]);
    }
    for (int i = 0; i < run->graph->output_count; i++) {
        mem_free(run->fetches[i]);
    }
    mem_free(run->feeds);
    mem_free(run->fetches);
    run->backend->exec_free(run->exec);
    run->backend->state_free(run->state);
    run->backend->close(run->device);
}

static inline enum status run_step(struct graph_run *run)
{
    return run->backend->run(run->exec, (const void *const *)run->feeds, run->fetches);
}

// The storage of a feed or fetch; the name must exist.
static inline void *run_feed(struct graph_run *run, const char *name)
{
    for (int i = 0; i < run->graph->input_count; i++) {
        if (strcmp(run->graph->inputs[i]->name, name) == 0) {
            return run->feeds[i];
        }
    }
    fail_msg("no feed %s", name);
    return NULL;
}

static inline double run_get(struct graph_run *run, const char *name, int64_t i)
{
    int output = graph_output_find(run->graph, name);
    assert_true(output >= 0);
    return element_get(run->fetches[output], run->graph->outputs[output]->dtype, i);
}

#endif
