// SPDX-License-Identifier: Apache-2.0
// op_matmul.c: the product of matrices, or of stacks of them.
#include <string.h>

#include "ops_impl.h"

struct product {
    int64_t batch, m, k, p;  // (batch, M, K) x (batch, K, P)
    bool transpose_a, transpose_b;
};

static struct product product_of(const struct node *node)
{
    struct shape a = node->inputs[0]->shape, out = node->shape;
    struct product s = {.m = out.dim[out.rank - 2],
                        .p = out.dim[out.rank - 1],
                        .k = a.dim[a.rank - (node->attr.transpose_a ? 2 : 1)],
                        .transpose_a = node->attr.transpose_a,
                        .transpose_b = node->attr.transpose_b};
    s.batch = shape_count(out) / (s.m * s.p);
    return s;
}

#define OP_TEMPLATE "op_matmul_ref.h"
#include "op_real.h"
REAL_KERNEL(ref_matmul)

static enum status matmul_infer(struct node *node)
{
    TRY(op_expect_real(node, 2));
    struct shape a = node->inputs[0]->shape, b = node->inputs[1]->shape, out = a;
    bool ta = node->attr.transpose_a, tb = node->attr.transpose_b;
    bool fits = a.rank >= 2 && a.rank == b.rank &&
                a.dim[a.rank - (ta ? 2 : 1)] == b.dim[b.rank - (tb ? 1 : 2)];
    for (int i = 0; i < a.rank - 2 && fits; i++) {
        fits = a.dim[i] == b.dim[i];
    }
    if (!fits) {
        return FAIL(ERR_MISMATCH,
                    "matmul: %s%s times %s%s: expected two matrices (or stacks of equally many) "
                    "whose inner dimensions agree",
                    shape_str(a), ta ? " transposed" : "", shape_str(b), tb ? " transposed" : "");
    }
    out.dim[out.rank - 2] = a.dim[a.rank - (ta ? 1 : 2)];
    out.dim[out.rank - 1] = b.dim[b.rank - (tb ? 2 : 1)];
    return op_result(node, node->inputs[0]->dtype, out);
}

static struct node *product(struct graph *graph, struct node *a, bool transpose_a, struct node *b,
                            bool transpose_b)
{
    struct op_attr attr = {.transpose_a = transpose_a, .transpose_b = transpose_b};
    return GRAPH_NODE(graph, OP_MATMUL, &attr, a, b);
}

// y = A B: dA = dy B', dB = A' dy. With a = A': da = (dA)' = B dy'; with b = B': db = dy' A
static void matmul_gradient(struct graph *graph, struct node *node, struct node *dy,
                            struct node **dx)
{
    struct node *a = node->inputs[0], *b = node->inputs[1];
    bool ta = node->attr.transpose_a, tb = node->attr.transpose_b;
    dx[0] = ta ? product(graph, b, tb, dy, true) : product(graph, dy, false, b, !tb);
    dx[1] = tb ? product(graph, dy, true, a, ta) : product(graph, a, !ta, dy, false);
}

static double matmul_flops(const struct node *node)
{
    struct product s = product_of(node);
    return 2.0 * (double)s.batch * (double)s.m * (double)s.k * (double)s.p;
}

const struct op_def op_def_MATMUL = {.name = "matmul",
                                     .min_inputs = 2,
                                     .max_inputs = 2,
                                     .infer = matmul_infer,
                                     .gradient = matmul_gradient,
                                     .reference = ref_matmul,
                                     .flops = matmul_flops};
