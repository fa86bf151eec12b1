// SPDX-License-Identifier: Apache-2.0
// graph.h: the intermediate representation. A node computes one tensor from its inputs; the order of
// creation is the order of execution. State lives in variables, which several graphs share. Floor 2.
#ifndef TRAINER_GRAPH_H
#define TRAINER_GRAPH_H

#include "trainer/mem.h"
#include "trainer/tensor.h"
#include "trainer/text.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Ops: what is true of a kind of node. One row of ops.def each, defined in src/ops/ --------------

enum op {
#define OP(id, name) OP_##id,
#include "trainer/ops.def"
#undef OP
    OP_COUNT
};

// Parameters of an op. Each op says in ops.def which it uses; the rest stay zero.
struct op_attr {
    struct shape shape;      // target or source shape; see the op
    int64_t start[SHAPE_RANK_MAX];   // slice: first element; pad: elements before, per dimension
    int64_t stop[SHAPE_RANK_MAX];    // pad: elements after
    int axes[SHAPE_RANK_MAX], axis_count;  // reduce: axes; transpose: the permutation; concat: axis
    bool keep_dims;
    bool transpose_a, transpose_b;   // matmul
    int window[2], stride[2], dilation[2];  // (height, width)
    int pad_before[2], pad_after[2];        // explicit, in elements; TensorFlow's "same" is resolved
    int groups;
    bool batch_stats;        // batch_norm: the statistics are those of x itself
    bool nesterov;
    bool epsilon_outside;    // rmsprop: divides by sqrt(v) + epsilon, not sqrt(v + epsilon)
    double epsilon, alpha, beta_1, beta_2, rate, weight_decay, label_smoothing;
    uint64_t seed;           // dropout
    uint32_t salt;           // dropout: tells layers apart
    enum dtype dtype;        // cast
};

struct node;
struct graph;
struct collective;

// One execution of a node by a reference kernel.
struct op_call {
    const struct node *node;
    const void *const *in;    // [node->input_count]
    void *out;                // for ops that write a variable: the variable's own storage
    const struct collective *collective;  // NULL = one replica
};

enum { OP_INPUT_MAX = 8 };

struct op_def {
    const char *name;
    int min_inputs, max_inputs;
    bool in_place;      // out may share storage with input 0 (same shape and dtype)
    unsigned writes;    // bit i: input i is a variable that is written. Bit 0 is always the output.
    // Sets node->dtype and node->shape, or fails with what was expected and what came.
    enum status (*infer)(struct node *node);
    // Sets dx[i] for every input that has a gradient; the others stay NULL. NULL rule: no gradient.
    // Builds nodes only; the formula stands above each rule.
    void (*gradient)(struct graph *graph, struct node *node, struct node *dy, struct node **dx);
    // Computes. The specification of the op: plain loops, float32 and float64 alike.
    enum status (*reference)(const struct op_call *call);
    double (*flops)(const struct node *node);  // NULL: one a produced element
};
extern const struct op_def *const op_table[OP_COUNT];

// ---- Variables ------------------------------------------------------------------------------------

enum variable_role {
    VARIABLE_WEIGHT,    // trained, or frozen
    VARIABLE_STATISTIC, // moving mean and variance
    VARIABLE_SLOT,      // of the optimizer
    VARIABLE_SCRATCH    // gradient accumulators: not in checkpoints
};

enum init_kind { INIT_ZEROS, INIT_ONES, INIT_GLOROT_UNIFORM, INIT_HE_NORMAL, INIT_NORMAL, INIT_UNIFORM };
struct initializer {
    enum init_kind kind;
    double scale;             // standard deviation (normal), limit (uniform)
    int64_t fan_in, fan_out;  // glorot, he
};

struct variable {
    int id;                 // index in its set
    const char *name;       // "conv2d/kernel": layer, then Keras' name of the weight
    enum dtype dtype;
    struct shape shape;
    enum variable_role role;
    bool trainable;
    struct initializer init;
    const struct variable *owner;  // a slot's weight, else NULL
    const char *slot;       // "m", "v", "momentum", else NULL
};

struct variables {
    struct arena arena;
    struct variable **items;
    int count, capacity;
};
void variables_init(struct variables *variables);
void variables_release(struct variables *variables);  // fine on a zeroed struct
struct variable *variables_find(const struct variables *variables, const char *name);  // or NULL
// The variable of this name: made at the first call, found later. Another shape, dtype or role than
// at first is a bug.
struct variable *variables_get(struct variables *variables, const char *name, enum dtype dtype,
                               struct shape shape, enum variable_role role, bool trainable,
                               struct initializer init);
// Fills `data` (variable's dtype and shape): a pure function of (seed, name, element).
void variable_initialize(const struct variable *variable, uint64_t seed, void *data);

// ---- Nodes and graphs -----------------------------------------------------------------------------

struct node {
    int id;                     // index in graph->nodes; inputs have smaller ids
    enum op op;
    enum dtype dtype;
    struct shape shape;
    struct node *inputs[OP_INPUT_MAX];
    int input_count;
    struct op_attr attr;
    const char *layer;          // the layer it came from: for messages, profiles
    const char *name;           // inputs: the feed's name; else NULL
    struct variable *variable;  // OP_VARIABLE
    void *value;                // OP_CONST: the elements
};

struct graph {
    struct arena arena;
    struct variables *variables;  // borrowed
    enum dtype real;              // dtype of weights and activations: DTYPE_F32 (F64 in tests)
    struct node **nodes;
    int count, capacity;
    struct node **inputs;         // feeds, in order of creation
    int input_count, input_capacity;
    struct node **outputs;        // fetches, in order of graph_output
    const char **output_names;
    int output_count, output_capacity;
    const char *layer;            // current layer, given to new nodes
    enum status status;           // of the first builder call that failed
    struct error_record *error;
};

void graph_init(struct graph *graph, struct variables *variables, enum dtype real);
void graph_release(struct graph *graph);  // fine on a zeroed struct

// Builders never fail one by one: after a failure (and for NULL inputs) they return NULL, and
// graph_check gives the first failure, with the layer's name, once the whole graph was built.
enum status graph_check(struct graph *graph);
// A failure of a layer's own check: recorded as the graph's, returns NULL.
struct node *graph_fail(struct graph *graph, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct node *graph_node(struct graph *graph, enum op op, const struct op_attr *attr, int count,
                        struct node *const *inputs);
struct node *graph_input(struct graph *graph, const char *name, enum dtype dtype,
                         struct shape shape);
struct node *graph_input_find(const struct graph *graph, const char *name);  // or NULL
struct node *graph_variable(struct graph *graph, struct variable *variable);  // one node a variable
struct node *graph_scalar(struct graph *graph, enum dtype dtype, double value);
struct node *graph_constant(struct graph *graph, enum dtype dtype, struct shape shape,
                            const void *data);  // copies
struct node *graph_mul_scalar(struct graph *graph, struct node *x, double factor);
struct node *graph_sum_all(struct graph *graph, struct node *x);  // a scalar
void graph_output(struct graph *graph, const char *name, struct node *node);
int graph_output_find(const struct graph *graph, const char *name);  // index, or -1

#define GRAPH_NODE(graph, op, attr, ...)                                                     \
    graph_node((graph), (op), (attr),                                                        \
               (int)(sizeof((struct node *[]){__VA_ARGS__}) / sizeof(struct node *)),        \
               (struct node *[]){__VA_ARGS__})

// The gradients of `loss` (a scalar) by `wrt[i]` into `gradients[i]`; NULL where the loss does not
// depend on it. Adds nodes; no op-specific code.
void graph_gradients(struct graph *graph, struct node *loss, struct node *const *wrt, int count,
                     struct node **gradients);

// Checks what must hold before compiling: order, no reader of a variable after its writer, names
// of feeds and fetches unique. A failure is a bug of ours, given as a status with the node named.
enum status graph_verify(const struct graph *graph);
// live[i]: node i is needed by a fetch or writes a variable. Caller frees with mem_free.
bool *graph_live(const struct graph *graph);
// Number of live nodes that read node i. Caller frees with mem_free.
int *graph_use_counts(const struct graph *graph, const bool *live);
// Replaces nodes whose inputs are all constants by constants (at most 1 MiB each).
enum status graph_fold_constants(struct graph *graph);

double node_flops(const struct node *node);
size_t node_bytes(const struct node *node);
// "conv2d: max_pool (64, 13, 13, 32)": for messages.
const char *node_text(const struct node *node, char *buffer, size_t size);
void graph_dump_text(const struct graph *graph, struct text *out);
void graph_dump_dot(const struct graph *graph, struct text *out);

// ---- Memory plan (plan.c) -------------------------------------------------------------------------

// Places blocks that live during [first, last] (positions in an execution order, inclusive) in one
// slab so that blocks that live at the same time do not overlap. A size of 0 gets no place.
struct plan_item {
    int first, last;
    size_t size;
    size_t offset;  // out: a multiple of MEM_ALIGN
};
size_t plan_place(struct plan_item *items, int count);  // returns the slab's size

#ifdef __cplusplus
}
#endif
#endif
