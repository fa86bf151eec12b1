// SPDX-License-Identifier: Apache-2.0
// cpu_fuse.c: finds groups of nodes that one kernel computes together, so that what lies between
// them never goes through memory. A group's step stands where its last node stands.
#include "cpu_impl.h"

struct finder {
    struct exec *exec;
    const int *uses;  // live readers of each node; a fetched one has two more
};

// True when only its one reader needs the value of `node`, so that it need not exist.
static bool only_inside(const struct finder *finder, const struct node *node)
{
    return finder->uses[node->id] == 1 && !finder->exec->covered[node->id];
}

static bool is_row(const struct node *bias, const struct node *of)
{
    return bias->shape.rank == 1 && bias->shape.dim[0] == of->shape.dim[of->shape.rank - 1];
}

// The live nodes that read `node`, at most `room`; -1 when there are more.
static int readers(const struct finder *finder, const struct node *node, const struct node **out,
                   int room)
{
    const struct graph *graph = finder->exec->graph;
    int count = 0;
    for (int i = node->id + 1; i < graph->count; i++) {
        for (int k = 0; k < graph->nodes[i]->input_count && finder->exec->live[i]; k++) {
            if (graph->nodes[i]->inputs[k] == node) {
                if (count == room) {
                    return -1;
                }
                out[count++] = graph->nodes[i];
                break;
            }
        }
    }
    return count;
}

static struct cpu_group *new_group(struct finder *finder, cpu_rule *rule)
{
    struct cpu_group *group = ARENA_NEW(&finder->exec->arena, struct cpu_group);
    group->rule = rule;
    return group;
}

// add(product, bias) with an optional relu, product being matmul or conv2d; NULL when `node` is not
// the last of such a chain.
static const struct node *biased_product(const struct finder *finder, const struct node *node)
{
    const struct node *add = node->op == OP_RELU ? node->inputs[0] : node;
    if (finder->exec->covered[node->id] || add->op != OP_ADD || add->dtype != DTYPE_F32 ||
        (add != node && !only_inside(finder, add))) {
        return NULL;
    }
    const struct node *product = add->inputs[0];
    bool fits = product->op == OP_MATMUL ||
                (product->op == OP_CONV2D && cpu_conv_fits(product));
    return fits && only_inside(finder, product) && is_row(add->inputs[1], product) &&
                   shape_equal(add->shape, product->shape)
               ? product : NULL;
}

static void cover_chain(struct finder *finder, const struct node *last, const struct node *product)
{
    bool *covered = finder->exec->covered;
    covered[product->id] = true;
    if (last->op == OP_RELU) {
        covered[last->inputs[0]->id] = true;
    }
}

static void find_biased(struct finder *finder, const struct node *node)
{
    const struct node *product = biased_product(finder, node);
    if (product) {
        finder->exec->groups[node->id] = new_group(
            finder, product->op == OP_MATMUL ? cpu_plan_dense : cpu_plan_conv_bias);
        cover_chain(finder, node, product);
    }
}

// ---- The way back of a convolution --------------------------------------------------------------

static bool is_bias_sum(const struct node *node)
{
    return node->op == OP_REDUCE_SUM && node->attr.axis_count == 3 && node->attr.axes[0] == 0 &&
           node->attr.axes[1] == 1 && node->attr.axes[2] == 2 &&
           node->inputs[0]->shape.rank == 4;
}

static bool is_one_of(const struct node *node, const struct node *const *nodes, int count)
{
    for (int i = 0; i < count; i++) {
        if (nodes[i] == node) {
            return true;
        }
    }
    return false;
}

// Nothing may read a member before the last member's place, or write a variable in between. A
// reshape of a member only gives it another name.
static bool can_wait(const struct finder *finder, const struct node *const *nodes, int count)
{
    enum { NAMES_MAX = 8 };
    const struct graph *graph = finder->exec->graph;
    const struct node *names[NAMES_MAX];
    int name_count = count, last = nodes[count - 1]->id;  // readers() gives them in order
    for (int i = 0; i < count; i++) {
        names[i] = nodes[i];
    }
    for (int i = nodes[0]->id; i <= last; i++) {
        const struct node *node = graph->nodes[i];
        if (!finder->exec->live[i]) {
            continue;
        }
        bool reads = false;
        for (int k = 0; k < node->input_count; k++) {
            reads = reads || is_one_of(node->inputs[k], names, name_count);
        }
        if (op_table[node->op]->writes || (reads && node->op != OP_RESHAPE) ||
            (reads && name_count == NAMES_MAX)) {
            return false;
        }
        if (reads) {
            names[name_count++] = node;
        }
    }
    return true;
}

// The readers of relu_grad g, when they are the gradients of one convolution and its bias.
static struct cpu_group *gradient_group(struct finder *finder, const struct node *g)
{
    struct cpu_group *group = new_group(finder, cpu_plan_conv_back);
    group->relu_grad = g;
    group->count = readers(finder, g, group->nodes, 3);
    int seen[3] = {0};
    for (int i = 0; i < group->count; i++) {
        const struct node *node = group->nodes[i];
        int kind = is_bias_sum(node) ? 0 : node->op == OP_CONV2D_DX ? 1
                   : node->op == OP_CONV2D_DW ? 2 : -1;
        if (kind < 0 || seen[kind]++ || (kind && !cpu_conv_fits(node)) ||
            (kind == 1 && node->inputs[0] != g) || (kind == 2 && node->inputs[1] != g)) {
            return NULL;
        }
        group->conv_node = kind ? node : group->conv_node;
    }
    // The gradient of one image is made in the second-level cache; a bigger one is better a step.
    enum { IMAGE_FLOATS = 128 * 1024 };
    if (group->count < 1 || !group->conv_node || finder->uses[g->id] != group->count ||
        g->shape.rank != 4 || g->shape.dim[3] % finder->exec->device->kernels->lanes ||
        shape_count(g->shape) / g->shape.dim[0] > IMAGE_FLOATS ||
        !can_wait(finder, group->nodes, group->count)) {
        return NULL;
    }
    return group;
}

static void take_gradient_group(struct finder *finder, const struct cpu_group *group)
{
    for (int i = 0; i < group->count - 1; i++) {
        finder->exec->covered[group->nodes[i]->id] = true;
    }
    finder->exec->covered[group->relu_grad->id] = true;
    finder->exec->groups[group->nodes[group->count - 1]->id] = group;
}

static void find_relu_back(struct finder *finder, const struct node *node)
{
    struct cpu_group *group =
        finder->exec->covered[node->id] ? NULL : gradient_group(finder, node);
    if (group) {
        take_gradient_group(finder, group);
    }
}

// ---- Convolution, relu and a 2 x 2 maximum ------------------------------------------------------

static bool is_two_by_two(const struct op_attr *attr)
{
    bool yes = true;
    for (int i = 0; i < 2; i++) {
        yes = yes && attr->window[i] == 2 && attr->stride[i] == 2 && attr->pad_before[i] == 0 &&
              attr->pad_after[i] == 0;
    }
    return yes;
}

// The relu's values are needed by the maximum, and on the way back by the gradients of the maximum
// and of the relu itself; which element won, a byte each, serves all of these.
static void find_pooled(struct finder *finder, const struct node *pool)
{
    struct exec *exec = finder->exec;
    const struct node *relu = pool->inputs[0], *user[3];
    const struct node *conv = relu->op == OP_RELU ? biased_product(finder, relu) : NULL;
    int count = readers(finder, relu, user, 3);
    if (!conv || conv->op != OP_CONV2D || !is_two_by_two(&pool->attr) || count < 1 ||
        finder->uses[relu->id] != count || relu->shape.dim[3] % exec->device->kernels->lanes) {
        return;
    }
    const struct node *pool_grad = NULL;
    struct cpu_group *back = NULL;
    if (count == 3) {
        pool_grad = user[1];
        bool chain = user[0] == pool && pool_grad->op == OP_MAX_POOL_GRAD &&
                     pool_grad->inputs[0] == relu && pool_grad->inputs[1] != relu &&
                     is_two_by_two(&pool_grad->attr) && only_inside(finder, pool_grad) &&
                     user[2]->op == OP_RELU_GRAD && user[2]->inputs[0] == relu &&
                     user[2]->inputs[1] == pool_grad;
        back = chain ? gradient_group(finder, user[2]) : NULL;
    }
    if (count != 1 && !back) {
        return;
    }
    exec->groups[pool->id] = new_group(finder, cpu_plan_conv_bias);
    cover_chain(finder, relu, conv);
    exec->covered[relu->id] = true;
    if (back) {
        exec->covered[pool_grad->id] = true;
        take_gradient_group(finder, back);
    }
}

// ---- A gradient and its update ------------------------------------------------------------------

// The gradient of a big matrix is a pass over memory to write and one to read; made piece by piece
// where it is used, it is neither. The product moves to the update's place, so what it reads must
// not be a variable: that could be written in between.
static void find_update(struct finder *finder, const struct node *update)
{
    enum { FLOATS_MIN = 64 * 1024 };  // less stays in the second-level cache by itself
    const struct node *matmul = update->inputs[1];
    if (matmul->op != OP_MATMUL || !only_inside(finder, matmul) || matmul->shape.rank != 2 ||
        update->dtype != DTYPE_F32 || shape_count(matmul->shape) < FLOATS_MIN ||
        !shape_equal(matmul->shape, update->shape)) {
        return;
    }
    for (int k = 0; k < 2; k++) {
        const struct node *input = matmul->inputs[k];
        int64_t depth = input->shape.dim[0] * input->shape.dim[1];
        if (input->op == OP_VARIABLE || op_table[input->op]->writes || depth == 0) {
            return;
        }
    }
    finder->exec->groups[update->id] = new_group(finder, cpu_plan_matmul_update);
    finder->exec->covered[matmul->id] = true;
}

void cpu_fuse(struct exec *exec)
{
    const struct graph *graph = exec->graph;
    int *uses = graph_use_counts(graph, exec->live);
    for (int i = 0; i < graph->output_count; i++) {
        uses[graph->outputs[i]->id] += 2;  // must exist, and not only for a reader
    }
    struct finder finder = {exec, uses};
    static void (*const find[OP_COUNT])(struct finder *, const struct node *) = {
        [OP_MAX_POOL] = find_pooled, [OP_RELU_GRAD] = find_relu_back,
        [OP_RELU] = find_biased, [OP_ADD] = find_biased, [OP_SGD] = find_update,
        [OP_MOMENTUM] = find_update, [OP_RMSPROP] = find_update, [OP_ADAM] = find_update};
    static const enum op order[] = {OP_MAX_POOL, OP_RELU_GRAD, OP_RELU, OP_ADD,  // longest first
                                    OP_SGD, OP_MOMENTUM, OP_RMSPROP, OP_ADAM};
    for (size_t o = 0; o < ARRAY_COUNT(order); o++) {
        for (int i = 0; i < graph->count; i++) {
            if (exec->live[i] && graph->nodes[i]->op == order[o]) {
                find[order[o]](&finder, graph->nodes[i]);
            }
        }
    }
    mem_free(uses);
}
