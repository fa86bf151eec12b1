// SPDX-License-Identifier: Apache-2.0
// backend.h: compiling and running whole graphs on one kind of device. Compile may take long and
// allocates everything; run allocates nothing. Layouts are the backend's own business: feeds,
// fetches and saved variables are always logical (row-major, as the graph says). Floor 4.
#ifndef TRAINER_BACKEND_H
#define TRAINER_BACKEND_H

#include "trainer/cluster.h"
#include "trainer/graph.h"

struct device;  // opened; used by one thread at a time
struct state;   // the variables' values on a device; shared by the execs over it
struct exec;    // a compiled graph

struct device_options {
    int threads;  // compute threads, >= 1
    const struct collective *collective;  // NULL = one replica. Borrowed.
    bool profile;                         // time every op
};

struct backend_def {
    const char *name;  // "cpu", "ref"
    const char *help;  // one line
    // Devices of this kind on this machine; 0 and a sentence in *reason (static) when there are none.
    int (*device_count)(const char **reason);
    enum status (*open)(const struct device_options *options, struct device **out);
    void (*close)(struct device *device);  // NULL is fine
    // One line: what computes ("AMD EPYC, 2 threads, AVX2, oneDNN 2.6.3"). Owned by the device.
    const char *(*describe)(const struct device *device);

    // Storage for the variables. Values are zero until state_put.
    enum status (*state_new)(struct device *device, const struct variables *variables,
                             struct state **out);
    void (*state_free)(struct state *state);  // NULL is fine; execs over it must be freed first
    enum status (*state_put)(struct state *state, const struct variable *variable,
                             const void *data);
    enum status (*state_get)(const struct state *state, const struct variable *variable,
                             void *data);

    // A sentence why this node cannot run here, or NULL.
    const char *(*refuses)(const struct node *node);
    // The graph is borrowed until exec_free. The first graph compiled over a state decides the stored
    // layout of its variables: compile the training graph first.
    enum status (*compile)(struct device *device, const struct graph *graph, struct state *state,
                           struct exec **out);
    void (*exec_free)(struct exec *exec);  // NULL is fine
    // feeds[i] belongs to graph->inputs[i], fetches[i] to graph->outputs[i] (NULL: not wanted). Blocks.
    enum status (*run)(struct exec *exec, const void *const *feeds, void *const *fetches);
    size_t (*exec_bytes)(const struct exec *exec);  // memory the exec holds, without the state
    // The --profile table: time, calls, GFLOP/s, GB/s a node. Also lists what fell back to ref.
    void (*exec_report)(const struct exec *exec, struct text *out);
};

extern const struct backend_def *const backend_table[];  // NULL-terminated, best first
const struct backend_def *backend_find(const char *name);  // NULL when unknown

#endif
