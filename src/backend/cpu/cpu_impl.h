// SPDX-License-Identifier: Apache-2.0
// cpu_impl.h: what the files of the CPU backend share. A graph becomes a list of steps; a step
// computes one node or a fused group. All values lie in memory as the graph says (row-major, NHWC):
// no kernel needs another layout, so nothing is ever reordered. Kernels that use vectors are
// compiled once an instruction set (cpu_isa_*.c) and reached through a table chosen when the device
// opens. Private.
#ifndef CPU_IMPL_H
#define CPU_IMPL_H

#include "trainer/backend.h"
#include "trainer/thread.h"

// ---- Kernels (one table an instruction set) -----------------------------------------------------

enum { TILE_ROWS = 6 };
// A block of B of depth 256 and 256 columns is 256 KiB: half the second-level cache of the smallest
// machines we care for. The depth is part of the order of sums and never depends on the batch.
enum { CPU_GEMM_DEPTH = 256, CPU_GEMM_COLS = 256 };
enum { CPU_GEMM_SCRATCH = CPU_GEMM_DEPTH * CPU_GEMM_COLS };  // floats a thread

// c (m, n) = a (m, k) x b (k, n) [+ bias (n)] [then relu]; a, b stored transposed on request.
struct cpu_gemm {
    int64_t m, n, k;
    const float *a, *b;
    int64_t lda, ldb, ldc;
    bool transpose_a, transpose_b;
    float *c;
    const float *bias;
    bool relu;
};

// y = f(a, b) elementwise over `count`; a step of 0 repeats the first element.
struct cpu_binary {
    enum op op;
    int64_t count;
    const float *a, *b;
    int a_step, b_step;
    float *y;
};

// One update of `count` elements. Slots that an optimizer does not have stay NULL.
struct cpu_update {
    const struct node *node;
    int64_t count;
    float *w, *m, *v;
    const float *dw;
    float lr;
    int64_t step;  // 0-based
};

// A convolution (N, H, W, C) * (R, S, C, K) -> (N, P, Q, K).
struct cpu_conv {
    int64_t n, h, w, c, p, q, k, r, s;
    int64_t stride[2], dilation[2], pad[2];
};

// A pass over filter taps: for every point of a grid, the sum over taps of the pixel at point *
// stride + at[tap] times the tap's matrix. The forward pass is one of them; the gradient by x is
// one a phase of the stride.
enum { CPU_TAPS_MAX = 121, CPU_DEPTH_MAX = 4096 };  // 11 x 11
struct cpu_pass {
    int64_t taps, depth, cols;       // depth: length of a tap's pixel; cols: of a result
    int64_t at[CPU_TAPS_MAX][2];
    int64_t weight[CPU_TAPS_MAX];    // r * S + s of the tap
    int64_t in[2], in_step;          // image of the operand, elements a pixel
    int64_t stride[2];
    int64_t grid[2];                 // points
    int64_t out_start[2], out_stride[2], out_width;  // a point's place in the result
    bool transposed;                 // a pass of the gradient: w[r][s] is used transposed
    bool padded;                     // reads a copy of the image with its padding around it
    int64_t packed;                  // offset of its panels among the packed weights, in floats
};
enum { CPU_PASSES_MAX = 16 };        // strides up to 4 x 4

// Where the gradient of a convolution's result comes from.
enum cpu_gradient { GRADIENT_PLAIN, GRADIENT_RELU, GRADIENT_POOL };

// One of the two directions, as a whole thread's work. What is NULL is not wanted.
struct cpu_conv_task {
    const struct cpu_conv *conv;
    const struct cpu_pass *passes;   // the forward pass, then those of the gradient by x
    int pass_count;
    bool backward, winograd, narrow; // direction; which kernels
    const float *x, *w, *bias;
    float *packed;                   // weights of the passes in panels
    bool relu, pool;                 // forward: then a 2 x 2 maximum
    float *y;                        // forward: result; backward: relu's result, the mask
    uint8_t *codes;                  // pool: which of the four won, 4 = none is positive
    enum cpu_gradient gradient;
    const float *dy;
    float *dx, *dw, *db;             // dw, db: one part a thread, dw_step and db_step floats apart
    int64_t dw_step, db_step;
    char *scratch;                   // of all threads, scratch_step bytes each
    size_t scratch_step;
};

// Pooling of x (N, H, W, C) to y (N, P, Q, C) and back.
struct cpu_windows {
    int64_t n, h, w, c, p, q;
    int64_t window[2], stride[2], pad[2];
    bool mean;
    const float *x, *dy;
    float *y, *dx;
};

// dx = (dy - (a + (x - mean) * b)) * scale, the coefficients a channel each.
struct cpu_norm_grad {
    const float *x, *dy, *mean, *scale, *a, *b;
    float *dx;
    int64_t channels;
};

struct cpu_kernels {
    const char *name;
    int lanes;
    double (*peak)(int64_t rounds);  // returns the flops it did
    void (*gemm)(const struct cpu_gemm *gemm, float *scratch, int thread, int threads);
    void (*unary)(enum op op, const float *x, float *y, int64_t count);
    void (*binary)(const struct cpu_binary *binary);
    void (*from_bytes)(const uint8_t *x, float *y, int64_t count);
    void (*sum_rows)(const float *x, int64_t rows, int64_t cols, float *out);  // out (cols)
    float (*sum)(const float *x, int64_t count);
    void (*update)(const struct cpu_update *update);
    void (*pool)(const struct cpu_windows *task, int64_t row, int64_t row_end);
    void (*pool_grad)(const struct cpu_windows *task, int64_t image, int64_t image_end);
    void (*norm_sums)(const float *x, const float *mean, const float *dy, int64_t rows,
                      int64_t channels, float *a, float *b);
    void (*norm_apply)(const float *x, const float *mean, const float *scale, const float *shift,
                       int64_t rows, int64_t channels, float *y);
    void (*norm_grad)(const struct cpu_norm_grad *task, int64_t row, int64_t row_end);
    void (*softmax)(const float *x, int64_t rows, int64_t count, float *y);
    void (*softmax_grad)(const float *y, const float *dy, int64_t rows, int64_t count, float *dx);
    void (*conv_pack)(const struct cpu_conv_task *task, int thread, int threads);
    void (*conv_forward)(const struct cpu_conv_task *task, int thread, int threads);
    void (*conv_backward)(const struct cpu_conv_task *task, int thread, int threads);
    size_t (*conv_scratch)(const struct cpu_conv_task *task);   // bytes a thread
    int64_t (*conv_packed)(const struct cpu_conv_task *task, struct cpu_pass *passes);  // floats
    void (*wino_gather)(const struct cpu_conv_task *task, float *dw, int parts, int thread,
                        int threads);
};
extern const struct cpu_kernels cpu_kernels_plain, cpu_kernels_avx2, cpu_kernels_avx512;

// ---- Steps --------------------------------------------------------------------------------------

struct device {
    int threads;
    struct team *team;  // [threads]; member 0 is the caller
    const struct collective *collective;
    bool profile;
    const struct cpu_kernels *kernels;
    double peak;     // flop/s of all threads; measured only when profiling, else 0
    char text[160];
};

enum { STEP_NODE_MAX = 16 };
struct step {
    const struct node *node;   // the one that names the step in messages and the profile
    const char *kernel;        // who computes; "reference" for a fallback
    enum status (*run)(struct exec *exec, const struct step *step);
    const void *detail;        // of the kernel, in the exec's arena
    int *reads, read_count;    // nodes, for lifetimes; room for STEP_NODE_MAX
    int *writes, write_count;
    size_t scratch;            // bytes of exec->scratch it uses
    double flops;
    double seconds;            // when profiling
    int64_t calls;
};

// Plans a step for `node` (already filled for the plain case: reads, writes, flops). False when
// there is no kernel for this case: the reference kernel takes it.
typedef bool cpu_rule(struct exec *exec, const struct node *node, struct step *step);

// Nodes that one step computes. What a rule can find by following inputs is not listed.
struct cpu_group {
    cpu_rule *rule;
    const struct node *nodes[3];  // way back of a convolution: dx, dw, bias sum, those there are
    int count;
    const struct node *relu_grad, *conv_node;
};

struct exec {
    struct device *device;
    const struct graph *graph;
    struct state *state;
    struct arena arena;
    bool *live;                // [graph->count]
    bool *covered;             // computed inside another node's step
    const struct cpu_group **groups;  // at the node where the group's step stands
    size_t *bytes;             // storage of a node's own; 0 = none
    int *home;                 // the node in whose storage it lies; itself, mostly
    void **data;               // where each node's value lies
    int *rebind;               // nodes that lie in a feed: their places change with every run
    int rebind_count;
    struct step *steps;
    int step_count, step_capacity;
    void *slab;
    size_t slab_size;
    char *scratch;
};

struct state {
    void **data;  // [variables->count]
    void *slab;
    size_t slab_size;
};

cpu_rule cpu_plan_copy, cpu_plan_unary, cpu_plan_binary, cpu_plan_cast, cpu_plan_reduce;
cpu_rule cpu_plan_conv, cpu_plan_conv_bias, cpu_plan_conv_grad, cpu_plan_conv_back;
cpu_rule cpu_plan_broadcast, cpu_plan_matmul, cpu_plan_dense, cpu_plan_update, cpu_plan_all_reduce;
cpu_rule cpu_plan_matmul_update;
cpu_rule cpu_plan_pool, cpu_plan_norm, cpu_plan_rows, cpu_plan_entropy, cpu_plan_dropout;
enum status cpu_run_reference(struct exec *exec, const struct step *step);
bool cpu_conv_fits(const struct node *node);     // conv2d*: there is a kernel
void cpu_fuse(struct exec *exec);                // finds groups: fills covered and groups
enum status cpu_exec_plan(struct exec *exec);    // fills steps, places, slab

// Runs body(argument, thread, threads) on the device's threads; on this one alone when `work`
// (elements passed over) is too small to pay for waking the others. Multiply-adds in registers
// count an eighth.
enum { CPU_WORK_PRODUCTS = 8 };
void cpu_parallel(const struct exec *exec, double work,
                  void (*body)(void *argument, int thread, int threads), void *argument);
static inline int64_t cpu_part(int64_t count, int thread, int threads)
{
    return count * thread / threads;
}
static inline void *cpu_in(const struct exec *exec, const struct step *step, int input)
{
    return exec->data[step->node->inputs[input]->id];
}
static inline void *cpu_out(const struct exec *exec, const struct step *step)
{
    return exec->data[step->node->id];
}

#endif
