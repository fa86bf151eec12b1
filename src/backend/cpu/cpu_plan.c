// SPDX-License-Identifier: Apache-2.0
// cpu_plan.c: makes the list of steps of a graph and places every value. One rule an op says
// whether there is a kernel for a node; without one the reference kernel computes it, openly.
#include "cpu_impl.h"

static cpu_rule *const rules[OP_COUNT] = {
    [OP_RESHAPE] = cpu_plan_copy,
    [OP_CAST] = cpu_plan_cast,
    [OP_NEG] = cpu_plan_unary,
    [OP_ABS] = cpu_plan_unary,
    [OP_SQUARE] = cpu_plan_unary,
    [OP_SQRT] = cpu_plan_unary,
    [OP_RSQRT] = cpu_plan_unary,
    [OP_EXP] = cpu_plan_unary,
    [OP_LOG] = cpu_plan_unary,
    [OP_TANH] = cpu_plan_unary,
    [OP_SIGMOID] = cpu_plan_unary,
    [OP_ERF] = cpu_plan_unary,
    [OP_RELU] = cpu_plan_unary,
    [OP_ADD] = cpu_plan_binary,
    [OP_SUB] = cpu_plan_binary,
    [OP_MUL] = cpu_plan_binary,
    [OP_DIV] = cpu_plan_binary,
    [OP_MAXIMUM] = cpu_plan_binary,
    [OP_MINIMUM] = cpu_plan_binary,
    [OP_EQUAL] = cpu_plan_binary,
    [OP_GREATER] = cpu_plan_binary,
    [OP_RELU_GRAD] = cpu_plan_binary,
    [OP_BROADCAST] = cpu_plan_broadcast,
    [OP_REDUCE_SUM] = cpu_plan_reduce,
    [OP_MATMUL] = cpu_plan_matmul,
    [OP_CONV2D] = cpu_plan_conv,
    [OP_CONV2D_DX] = cpu_plan_conv_grad,
    [OP_CONV2D_DW] = cpu_plan_conv_grad,
    [OP_MAX_POOL] = cpu_plan_pool,
    [OP_MAX_POOL_GRAD] = cpu_plan_pool,
    [OP_AVG_POOL] = cpu_plan_pool,
    [OP_AVG_POOL_GRAD] = cpu_plan_pool,
    [OP_BATCH_NORM_STATS] = cpu_plan_norm,
    [OP_BATCH_NORM] = cpu_plan_norm,
    [OP_BATCH_NORM_DPARAM] = cpu_plan_norm,
    [OP_BATCH_NORM_DX] = cpu_plan_norm,
    [OP_SOFTMAX] = cpu_plan_rows,
    [OP_SOFTMAX_GRAD] = cpu_plan_rows,
    [OP_ARGMAX] = cpu_plan_rows,
    [OP_CROSS_ENTROPY] = cpu_plan_entropy,
    [OP_CROSS_ENTROPY_GRAD] = cpu_plan_entropy,
    [OP_DROPOUT] = cpu_plan_dropout,
    [OP_ASSIGN] = cpu_plan_copy,
    [OP_SGD] = cpu_plan_update,
    [OP_MOMENTUM] = cpu_plan_update,
    [OP_RMSPROP] = cpu_plan_update,
    [OP_ADAM] = cpu_plan_update,
    [OP_ALL_REDUCE] = cpu_plan_all_reduce,
};

enum status cpu_run_reference(struct exec *exec, const struct step *step)
{
    const struct node *node = step->node;
    const void *in[OP_INPUT_MAX];
    for (int k = 0; k < node->input_count; k++) {
        in[k] = cpu_in(exec, step, k);
    }
    return op_table[node->op]->reference(
        &(struct op_call){.node = node, .in = in, .out = cpu_out(exec, step),
                          .collective = exec->device->collective});
}

static bool is_variable_home(const struct exec *exec, int id)
{
    return exec->graph->nodes[exec->home[id]]->op == OP_VARIABLE;
}

// A reshape shares its input's storage, but for a variable's: that may be written before the last
// reader of the reshaped value.
static bool is_alias(const struct exec *exec, const struct node *node)
{
    return node->op == OP_RESHAPE && !is_variable_home(exec, node->inputs[0]->id);
}

static void add_step(struct exec *exec, const struct node *node)
{
    const struct op_def *def = op_table[node->op];
    struct step step = {.node = node, .kernel = "reference", .run = cpu_run_reference,
                        .flops = node_flops(node)};
    step.reads = ARENA_NEW_ARRAY(&exec->arena, int, STEP_NODE_MAX);
    step.writes = ARENA_NEW_ARRAY(&exec->arena, int, STEP_NODE_MAX);
    for (int k = 0; k < node->input_count; k++) {
        step.reads[step.read_count++] = node->inputs[k]->id;
    }
    step.writes[step.write_count++] = node->id;
    if (def->writes) {
        exec->home[node->id] = exec->home[node->inputs[0]->id];
    } else {
        exec->bytes[node->id] = node_bytes(node);
    }
    if (exec->graph->real == DTYPE_F32) {
        const struct cpu_group *fused = exec->groups[node->id];
        cpu_rule *rule = fused ? fused->rule : rules[node->op];
        struct step plan = step;
        bool planned = rule && rule(exec, node, &plan);
        CHECK(planned || !fused, "a fused group was formed that has no kernel");
        step = planned ? plan : step;
    }
    GROW(exec->steps, exec->step_count, exec->step_capacity);
    exec->steps[exec->step_count++] = step;
}

static void make_steps(struct exec *exec)
{
    const struct graph *graph = exec->graph;
    for (int i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        exec->home[i] = i;
        if (!exec->live[i] || exec->covered[i] || !op_table[node->op]->reference) {
            continue;
        }
        if (is_alias(exec, node)) {
            exec->home[i] = exec->home[node->inputs[0]->id];
        } else {
            add_step(exec, node);
        }
    }
}

// ---- Places -------------------------------------------------------------------------------------

// last[i]: the last step that touches the storage of node i.
static void find_lifetimes(const struct exec *exec, struct plan_item *items)
{
    for (int s = 0; s < exec->step_count; s++) {
        const struct step *step = &exec->steps[s];
        for (int k = 0; k < step->read_count; k++) {
            items[exec->home[step->reads[k]]].last = s;
        }
        for (int k = 0; k < step->write_count; k++) {
            struct plan_item *item = &items[exec->home[step->writes[k]]];
            item->first = item->last = s;
        }
    }
    for (int i = 0; i < exec->graph->output_count; i++) {
        items[exec->home[exec->graph->outputs[i]->id]].last = exec->step_count;
    }
}

// True when output k of a step may lie where its input k lies: the kernels of the op allow it and
// nothing reads that input later.
static bool can_overwrite(const struct exec *exec, const struct plan_item *items, int s, int k)
{
    const struct step *step = &exec->steps[s];
    const struct node *node = step->node;
    int home = exec->home[step->reads[k]], out = step->writes[k];
    if (!op_table[node->op]->in_place || !exec->bytes[home] ||
        exec->bytes[home] != exec->bytes[out] || items[home].last != s || exec->covered[home]) {
        return false;
    }
    for (int i = 0; i < step->read_count; i++) {
        if (i != k && exec->home[step->reads[i]] == home) {
            return false;
        }
    }
    return true;
}

static void share_places(struct exec *exec, struct plan_item *items)
{
    for (int s = 0; s < exec->step_count; s++) {
        const struct step *step = &exec->steps[s];
        bool plain = step->read_count == step->node->input_count && step->write_count == 1;
        int pairs = step->node->op == OP_ALL_REDUCE ? step->write_count : plain;
        for (int k = 0; k < pairs; k++) {
            if (can_overwrite(exec, items, s, k)) {
                int out = step->writes[k], home = exec->home[step->reads[k]];
                items[home].last = items[out].last;
                exec->bytes[out] = 0;
                for (int i = out; i < exec->graph->count; i++) {
                    exec->home[i] = exec->home[i] == out ? home : exec->home[i];
                }
            }
        }
    }
}

static void bind(struct exec *exec, const struct plan_item *items)
{
    const struct graph *graph = exec->graph;
    for (int i = 0; i < graph->count; i++) {
        const struct node *home = graph->nodes[exec->home[i]];
        if (home->op == OP_INPUT) {
            if (exec->home[i] != i) {
                exec->rebind[exec->rebind_count++] = i;
            }
        } else if (home->op == OP_CONST) {
            exec->data[i] = home->value;
        } else if (home->op == OP_VARIABLE) {
            exec->data[i] = exec->state->data[home->variable->id];
        } else if (exec->bytes[home->id]) {
            exec->data[i] = (char *)exec->slab + items[home->id].offset;
        }
    }
    exec->scratch = (char *)exec->slab + items[graph->count].offset;
}

enum status cpu_exec_plan(struct exec *exec)
{
    const struct graph *graph = exec->graph;
    int count = graph->count;
    exec->live = graph_live(graph);
    exec->covered = ARENA_NEW_ARRAY(&exec->arena, bool, count);
    exec->groups = ARENA_NEW_ARRAY(&exec->arena, const struct cpu_group *, count);
    exec->bytes = ARENA_NEW_ARRAY(&exec->arena, size_t, count);
    exec->home = ARENA_NEW_ARRAY(&exec->arena, int, count);
    exec->data = ARENA_NEW_ARRAY(&exec->arena, void *, count);
    exec->rebind = ARENA_NEW_ARRAY(&exec->arena, int, count);
    if (graph->real == DTYPE_F32) {
        cpu_fuse(exec);
    }
    make_steps(exec);
    struct plan_item *items = MEM_NEW_ARRAY(struct plan_item, count + 1);
    find_lifetimes(exec, items);
    share_places(exec, items);
    for (int i = 0; i < count; i++) {
        items[i].size = exec->bytes[i];
    }
    struct plan_item *scratch = &items[count];  // of the running step: one for all
    scratch->last = exec->step_count;
    for (int s = 0; s < exec->step_count; s++) {
        scratch->size = MAX(scratch->size, exec->steps[s].scratch);
    }
    exec->slab_size = plan_place(items, count + 1);
    enum status status = mem_slab_new(exec->slab_size, "the activations", &exec->slab);
    if (status == STATUS_OK) {
        bind(exec, items);
    }
    mem_free(items);
    return status;
}
