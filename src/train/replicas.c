// SPDX-License-Identifier: Apache-2.0
// replicas.c: the devices of a run and the compiled graphs on them. Replica r has its own device,
// state and executables; a step runs on all of them at once.
#include <stdio.h>
#include <string.h>

#include "trainer/thread.h"
#include "train_impl.h"

struct replica {
    struct device *device;
    struct state *state;
    struct exec *exec[SLOT_COUNT];
    // Feeds of a share that reaches beyond the batch's buffer, and the weights.
    void *staging;
    int32_t *labels;
    float *weights;
    size_t staging_bytes;
};

struct replicas {
    struct replicas_options options;
    struct replica_group *group;
    struct team *team;
    struct replica *items;  // [options.count]
    const struct step_graph *graphs[SLOT_COUNT];
    int rows[SLOT_COUNT];
    const struct variables *variables;
    char *description;
};

static enum status open_one(void *context, int r)
{
    struct replicas *replicas = context;
    int count = replicas->options.count;
    struct device_options options = {
        .threads = MAX(replicas->options.threads / count, 1),
        .collective = count > 1 ? replica_group_member(replicas->group, r) : NULL,
        .profile = replicas->options.profile,
    };
    return replicas->options.backend->open(&options, &replicas->items[r].device);
}

enum status replicas_open(const struct replicas_options *options, struct replicas **out)
{
    struct replicas *replicas = MEM_NEW(struct replicas);
    *out = NULL;
    replicas->options = *options;
    replicas->items = MEM_NEW_ARRAY(struct replica, options->count);
    replicas->group = replica_group_new(options->count, options->timeout);
    enum status status;
    TRY_GOTO(status, team_new(options->count, &replicas->team), failed);
    TRY_GOTO(status, team_run(replicas->team, open_one, replicas), failed);
    struct text text = {0};
    text_printf(&text, "%s%s", options->count > 1 ? "each " : "",
                options->backend->describe(replicas->items[0].device));
    replicas->description = text.data;
    *out = replicas;
    return STATUS_OK;
failed:
    replicas_close(replicas);
    return status;
}

void replicas_close(struct replicas *replicas)
{
    if (!replicas) {
        return;
    }
    const struct backend_def *backend = replicas->options.backend;
    for (int r = 0; r < replicas->options.count; r++) {
        struct replica *replica = &replicas->items[r];
        for (int slot = 0; slot < SLOT_COUNT; slot++) {
            backend->exec_free(replica->exec[slot]);
        }
        backend->state_free(replica->state);
        backend->close(replica->device);
        mem_free(replica->staging);
        mem_free(replica->labels);
        mem_free(replica->weights);
    }
    team_free(replicas->team);
    replica_group_free(replicas->group);
    mem_free(replicas->items);
    mem_free(replicas->description);
    mem_free(replicas);
}

int replicas_count(const struct replicas *replicas)
{
    return replicas->options.count;
}

const char *replicas_describe(const struct replicas *replicas)
{
    return replicas->description;
}

static enum status state_one(void *context, int r)
{
    struct replicas *replicas = context;
    struct replica *replica = &replicas->items[r];
    return replicas->options.backend->state_new(replica->device, replicas->variables,
                                                &replica->state);
}

enum status replicas_state(struct replicas *replicas, const struct variables *variables)
{
    replicas->variables = variables;
    return team_run(replicas->team, state_one, replicas);
}

struct compile_job {
    struct replicas *replicas;
    enum graph_slot slot;
};

static enum status compile_one(void *context, int r)
{
    struct compile_job *job = context;
    struct replicas *replicas = job->replicas;
    const struct step_graph *step = replicas->graphs[job->slot];
    struct replica *replica = &replicas->items[r];
    TRY(replicas->options.backend->compile(replica->device, &step->graph, replica->state,
                                           &replica->exec[job->slot]));
    size_t rows = (size_t)replicas->rows[job->slot];
    if (rows && step->image) {
        size_t bytes = node_bytes(step->image);
        if (bytes > replica->staging_bytes) {
            replica->staging = mem_resize(replica->staging, 0, bytes);
            replica->labels = mem_resize(replica->labels, 0, rows * sizeof *replica->labels);
            replica->weights = mem_resize(replica->weights, 0, rows * sizeof *replica->weights);
            replica->staging_bytes = bytes;
        }
    }
    return STATUS_OK;
}

enum status replicas_compile(struct replicas *replicas, enum graph_slot slot,
                             const struct step_graph *step, int rows)
{
    replicas->graphs[slot] = step;
    replicas->rows[slot] = rows;
    return team_run(replicas->team, compile_one, &(struct compile_job){replicas, slot});
}

struct run_job {
    struct replicas *replicas;
    enum graph_slot slot;
    const struct run_inputs *inputs;
    void *const *fetches;  // [count * FETCH_COUNT]
};

// Rows [from, from + rows) of the batch for one replica; what lies beyond the real rows is padding
// with weight 0.
static struct share share_of(struct replica *replica, const struct run_inputs *inputs, int from,
                             int rows, size_t row_bytes)
{
    const struct batch *batch = inputs->batch;
    int real = MIN(MAX(batch->count - from, 0), rows);
    const char *images = batch->images;
    struct share share = {.row = from,
                          .count = real,
                          .images = images + (size_t)from * row_bytes,
                          .labels = batch->labels + from,
                          .weights = replica->weights};
    for (int i = 0; i < rows; i++) {
        replica->weights[i] = i < real ? inputs->weight : 0;
    }
    if (real < rows) {  // the batch's buffer may end before the share does
        memset(replica->staging, 0, (size_t)rows * row_bytes);
        memset(replica->labels, 0, sizeof(int32_t) * (size_t)rows);
        if (real) {
            memcpy(replica->staging, share.images, (size_t)real * row_bytes);
            memcpy(replica->labels, share.labels, sizeof(int32_t) * (size_t)real);
        }
        share.images = replica->staging;
        share.labels = replica->labels;
    }
    return share;
}

static enum status run_one(void *context, int r)
{
    struct run_job *job = context;
    struct replicas *replicas = job->replicas;
    struct replica *replica = &replicas->items[r];
    const struct run_inputs *inputs = job->inputs;
    const struct step_graph *step = replicas->graphs[job->slot];
    const struct graph *graph = &step->graph;
    int rows = replicas->rows[job->slot];
    struct share share = {0};
    if (inputs->batch) {
        share = share_of(replica, inputs, inputs->first + r * rows, rows,
                         node_bytes(step->image) / (size_t)rows);
    }
    float lr = (float)inputs->learning_rate;
    static const char *const names[FEED_COUNT] = {"image", "label", "weight", "lr", "step", "row"};
    const void *values[FEED_COUNT] = {share.images, share.labels, share.weights,
                                      &lr,          &inputs->step, &share.row};
    const void *feeds[FEED_COUNT];
    for (int i = 0; i < graph->input_count; i++) {
        for (int f = 0; f < FEED_COUNT; f++) {
            if (strcmp(names[f], graph->inputs[i]->name) == 0) {
                feeds[i] = values[f];
            }
        }
    }
    static const char *const outputs[FETCH_COUNT] = {"loss", "correct", "norm", "losses",
                                                     "probabilities"};
    void *fetches[FETCH_COUNT];
    for (int i = 0; i < graph->output_count; i++) {
        for (int f = 0; f < FETCH_COUNT; f++) {
            if (strcmp(outputs[f], graph->output_names[i]) == 0) {
                fetches[i] = job->fetches[r * FETCH_COUNT + f];
            }
        }
    }
    enum status status = replicas->options.backend->run(replica->exec[job->slot], feeds, fetches);
    if (status != STATUS_OK && replicas->options.count > 1) {
        replica_group_break(replicas->group, r);
        return error_prefix(status, "replica %d", r);
    }
    return status;
}

enum status replicas_run(struct replicas *replicas, enum graph_slot slot,
                         const struct run_inputs *inputs, void *const *fetches)
{
    return team_run(replicas->team, run_one, &(struct run_job){replicas, slot, inputs, fetches});
}

size_t replicas_bytes(const struct replicas *replicas)
{
    size_t bytes = 0;
    for (int r = 0; r < replicas->options.count; r++) {
        for (int slot = 0; slot < SLOT_COUNT; slot++) {
            const struct exec *exec = replicas->items[r].exec[slot];
            bytes += exec ? replicas->options.backend->exec_bytes(exec) : 0;
        }
    }
    return bytes;
}

void replicas_report(const struct replicas *replicas, struct text *out)
{
    static const char *const titles[SLOT_COUNT] = {"train step", "part of a step", "update",
                                                   "evaluation"};
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        const struct exec *exec = replicas->items[0].exec[slot];
        if (exec) {
            text_printf(out, "%s, replica 0:\n", titles[slot]);
            replicas->options.backend->exec_report(exec, out);
        }
    }
}

static enum status store_get(void *context, const struct variable *variable, void *data)
{
    struct replicas *replicas = context;
    return replicas->options.backend->state_get(replicas->items[0].state, variable, data);
}

static enum status store_put(void *context, const struct variable *variable, const void *data)
{
    struct replicas *replicas = context;
    for (int r = 0; r < replicas->options.count; r++) {
        TRY(replicas->options.backend->state_put(replicas->items[r].state, variable, data));
    }
    return STATUS_OK;
}

struct variable_store replicas_store(struct replicas *replicas)
{
    return (struct variable_store){.context = replicas, .get = store_get, .put = store_put};
}

static enum status verify_variable(struct replicas *replicas, const struct variable *variable,
                                   void *first, void *other, size_t size)
{
    const struct backend_def *backend = replicas->options.backend;
    TRY(backend->state_get(replicas->items[0].state, variable, first));
    for (int r = 1; r < replicas->options.count; r++) {
        TRY(backend->state_get(replicas->items[r].state, variable, other));
        if (memcmp(first, other, size) != 0) {
            return FAIL(ERR_MISMATCH,
                        "replicas 0 and %d hold different values of %s; the run cannot be trusted "
                        "and nothing was saved", r, variable->name);
        }
    }
    return STATUS_OK;
}

enum status replicas_verify(struct replicas *replicas, const struct variables *variables)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < variables->count && status == STATUS_OK && replicas->options.count > 1;
         i++) {
        const struct variable *variable = variables->items[i];
        if (variable->role != VARIABLE_SCRATCH) {
            size_t size = (size_t)shape_count(variable->shape) * dtype_size(variable->dtype);
            void *first = mem_alloc(size), *other = mem_alloc(size);
            status = verify_variable(replicas, variable, first, other, size);
            mem_free(first);
            mem_free(other);
        }
    }
    return status;
}
