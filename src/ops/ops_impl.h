// SPDX-License-Identifier: Apache-2.0
// ops_impl.h: what the families of ops share. Private to src/ops.
// Three parts: what shape rules expect of inputs, bricks of gradient rules, and walks over strided
// operands for reference kernels.
#ifndef TRAINER_OPS_IMPL_H
#define TRAINER_OPS_IMPL_H

#include "trainer/graph.h"

#define OP(id, name) extern const struct op_def op_def_##id;
#include "trainer/ops.def"
#undef OP

// ---- Shape rules: each failure names the op, what was expected and what came --------------------

const char *op_name(const struct node *node);
// Inputs 0 to count - 1 all have one real dtype.
enum status op_expect_real(const struct node *node, int count);
// `dims` names the dimensions: "images (N, H, W, C)"; `what` the input: "the input".
enum status op_expect_rank(const struct node *node, int input, int rank, const char *what,
                           const char *dims);
enum status op_expect_shape(const struct node *node, int input, struct shape shape,
                            const char *what);
enum status op_expect_scalar(const struct node *node, int input, enum dtype dtype,
                             const char *what);
// Sets the node's dtype and shape; fails when a dimension is below 1.
enum status op_result(struct node *node, enum dtype dtype, struct shape shape);
// Input 0 is real; the result is like it.
enum status op_infer_like(struct node *node);

// ---- Gradient rules -----------------------------------------------------------------------------

// A node of op `id` without attributes in `graph`.
#define NODE(id, ...) GRAPH_NODE(graph, OP_##id, NULL, __VA_ARGS__)
// A constant of the dtype of `like`.
struct node *op_number(struct graph *graph, const struct node *like, double value);
struct node *op_reshape(struct graph *graph, struct node *x, struct shape shape);
// The transpose of broadcasting from `shape`: sums dy over the dimensions that were repeated.
struct node *op_sum_to(struct graph *graph, struct node *dy, struct shape shape);

// ---- Reference kernels --------------------------------------------------------------------------

// Kernels are written once for the element type T in a file op_<family>_ref.h, named FN(name);
// op_real.h includes it for float and for double. This makes `name`, which picks by input 0.
#define REAL_KERNEL(name)                                                             \
    static enum status name(const struct op_call *call)                               \
    {                                                                                 \
        return call->node->inputs[0]->dtype == DTYPE_F64 ? name##_f64(call)           \
                                                         : name##_f32(call);          \
    }

// Visits the elements of `shape` in row-major order, row by row, with the offsets of two operands.
//     struct op_walk walk = op_walk_of(shape);
//     op_strides(a, shape, walk.stride[0]);
//     op_walk_merge(&walk);
//     do { ...walk.dim[walk.last] elements from walk.offset[]... } while (op_walk_next(&walk));
struct op_walk {
    int last;                           // the dimension of a row: rank - 1
    int64_t dim[SHAPE_RANK_MAX];
    int64_t stride[2][SHAPE_RANK_MAX];  // in elements; 0 repeats
    int64_t index[SHAPE_RANK_MAX];
    int64_t offset[2];                  // of the row's first element
};
struct op_walk op_walk_of(struct shape shape);
// Strides of a dense operand as broadcast to `shape`.
void op_strides(struct shape operand, struct shape shape, int64_t *stride);
void op_walk_merge(struct op_walk *walk);  // makes rows as long as the strides allow
bool op_walk_next(struct op_walk *walk);

// The storage of a variable that an update writes.
static inline void *op_written(const struct op_call *call, int input)
{
    return (void *)(uintptr_t)call->in[input];
}

#endif
