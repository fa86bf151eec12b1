// SPDX-License-Identifier: Apache-2.0
// graph.c: building, checking and looking at graphs. What an op means is in the op table only.
#include "trainer/graph.h"

#include <stdio.h>
#include <string.h>

void graph_init(struct graph *graph, struct variables *variables, enum dtype real)
{
    *graph = (struct graph){.variables = variables, .real = real, .layer = ""};
    arena_init(&graph->arena);
}

void graph_release(struct graph *graph)
{
    arena_release(&graph->arena);
    mem_free(graph->nodes);
    mem_free(graph->inputs);
    mem_free(graph->outputs);
    mem_free(graph->output_names);
    *graph = (struct graph){0};
}

enum status graph_check(struct graph *graph)
{
    if (graph->status != STATUS_OK) {
        error_restore(graph->error);
        return graph->status;
    }
    return STATUS_OK;
}

// Keeps the thread's error as the graph's, unless an earlier one is there.
static struct node *graph_record(struct graph *graph, enum status status)
{
    if (graph->status == STATUS_OK) {
        if (*graph->layer) {
            (void)error_prefix(status, "layer %s", graph->layer);
        }
        graph->status = status;
        graph->error = ARENA_NEW(&graph->arena, struct error_record);
        *graph->error = *error_get();
    }
    return NULL;
}

struct node *graph_fail(struct graph *graph, const char *format, ...)
{
    char message[ERROR_MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return graph_record(graph, FAIL(ERR_USAGE, "%s", message));
}

static struct node *node_new(struct graph *graph, enum op op)
{
    struct node *node = ARENA_NEW(&graph->arena, struct node);
    node->op = op;
    node->layer = graph->layer;
    return node;
}

static struct node *node_append(struct graph *graph, struct node *node)
{
    node->id = graph->count;
    GROW(graph->nodes, graph->count, graph->capacity);
    graph->nodes[graph->count++] = node;
    return node;
}

struct node *graph_node(struct graph *graph, enum op op, const struct op_attr *attr, int count,
                        struct node *const *inputs)
{
    const struct op_def *def = op_table[op];
    if (graph->status != STATUS_OK) {
        return NULL;
    }
    CHECK(count >= def->min_inputs && count <= def->max_inputs, "%s takes %d to %d inputs, got %d",
          def->name, def->min_inputs, def->max_inputs, count);
    struct node *node = node_new(graph, op);
    for (int i = 0; i < count; i++) {
        CHECK(inputs[i], "%s: input %d is missing though nothing failed before", def->name, i);
        node->inputs[i] = inputs[i];
    }
    node->input_count = count;
    if (attr) {
        node->attr = *attr;
    }
    if (def->writes) {
        CHECK(inputs[0]->op == OP_VARIABLE, "%s writes its input 0, which is no variable",
              def->name);
        node->variable = inputs[0]->variable;
    }
    enum status status = def->infer(node);
    return status == STATUS_OK ? node_append(graph, node) : graph_record(graph, status);
}

struct node *graph_input(struct graph *graph, const char *name, enum dtype dtype,
                         struct shape shape)
{
    struct node *node = node_new(graph, OP_INPUT);
    node->name = arena_strdup(&graph->arena, name);
    node->dtype = dtype;
    node->shape = shape;
    GROW(graph->inputs, graph->input_count, graph->input_capacity);
    graph->inputs[graph->input_count++] = node;
    return node_append(graph, node);
}

struct node *graph_input_find(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->input_count; i++) {
        if (strcmp(graph->inputs[i]->name, name) == 0) {
            return graph->inputs[i];
        }
    }
    return NULL;
}

struct node *graph_variable(struct graph *graph, struct variable *variable)
{
    for (int i = 0; i < graph->count; i++) {
        if (graph->nodes[i]->op == OP_VARIABLE && graph->nodes[i]->variable == variable) {
            return graph->nodes[i];
        }
    }
    struct node *node = node_new(graph, OP_VARIABLE);
    node->variable = variable;
    node->dtype = variable->dtype;
    node->shape = variable->shape;
    return node_append(graph, node);
}

struct node *graph_constant(struct graph *graph, enum dtype dtype, struct shape shape,
                            const void *data)
{
    struct node *node = node_new(graph, OP_CONST);
    node->dtype = dtype;
    node->shape = shape;
    size_t size = (size_t)shape_count(shape) * dtype_size(dtype);
    node->value = memcpy(arena_alloc(&graph->arena, size), data, size);
    return node_append(graph, node);
}

struct node *graph_scalar(struct graph *graph, enum dtype dtype, double value)
{
    union {
        float f32;
        double f64;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
    } element;
    switch (dtype) {
    case DTYPE_F32: element.f32 = (float)value; break;
    case DTYPE_F64: element.f64 = value; break;
    case DTYPE_I32: element.i32 = (int32_t)value; break;
    case DTYPE_I64: element.i64 = (int64_t)value; break;
    default: element.u8 = (uint8_t)value; break;
    }
    return graph_constant(graph, dtype, shape_scalar(), &element);
}

struct node *graph_mul_scalar(struct graph *graph, struct node *x, double factor)
{
    return x ? GRAPH_NODE(graph, OP_MUL, NULL, x, graph_scalar(graph, x->dtype, factor)) : NULL;
}

struct node *graph_sum_all(struct graph *graph, struct node *x)
{
    return GRAPH_NODE(graph, OP_REDUCE_SUM, &(struct op_attr){0}, x);
}

void graph_output(struct graph *graph, const char *name, struct node *node)
{
    if (!node) {
        return;  // the failure that made it NULL is recorded
    }
    int names = graph->output_capacity;
    GROW(graph->output_names, graph->output_count, names);
    GROW(graph->outputs, graph->output_count, graph->output_capacity);
    graph->output_names[graph->output_count] = arena_strdup(&graph->arena, name);
    graph->outputs[graph->output_count++] = node;
}

int graph_output_find(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->output_count; i++) {
        if (strcmp(graph->output_names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

double node_flops(const struct node *node)
{
    const struct op_def *def = op_table[node->op];
    if (!def->infer) {
        return 0;  // a source
    }
    return def->flops ? def->flops(node) : (double)shape_count(node->shape);
}

size_t node_bytes(const struct node *node)
{
    return (size_t)shape_count(node->shape) * dtype_size(node->dtype);
}

const char *node_text(const struct node *node, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s%s%s %s", node->layer, *node->layer ? ": " : "",
             op_table[node->op]->name, shape_str(node->shape));
    return buffer;
}

// The mask covers the longest form of an op: rmsprop without momentum has its rate in the place of m.
static bool writes(const struct node *node, int input)
{
    return ((op_table[node->op]->writes >> input) & 1) &&
           (input == 0 || node->inputs[input]->op == OP_VARIABLE);
}

static enum status verify_node(const struct graph *graph, const struct node *node, int *writer)
{
    char text[256], other[256];
    for (int i = 0; i < node->input_count; i++) {
        const struct node *input = node->inputs[i];
        if (input->id >= node->id || graph->nodes[input->id] != input) {
            return FAIL(ERR_MISMATCH, "%s: input %d does not come before it",
                        node_text(node, text, sizeof text), i);
        }
        if (writes(node, i) && input->op != OP_VARIABLE) {
            return FAIL(ERR_MISMATCH, "%s: writes input %d, which is no variable",
                        node_text(node, text, sizeof text), i);
        }
        // A variable's reader must come before its writer: after it the old value is gone.
        if (input->op == OP_VARIABLE && writer[input->variable->id] >= 0) {
            return FAIL(ERR_MISMATCH, "%s: reads variable %s after it was written by %s",
                        node_text(node, text, sizeof text), input->variable->name,
                        node_text(graph->nodes[writer[input->variable->id]], other, sizeof other));
        }
    }
    for (int i = 0; i < node->input_count; i++) {
        if (writes(node, i)) {
            writer[node->inputs[i]->variable->id] = node->id;
        }
    }
    return STATUS_OK;
}

enum status graph_verify(const struct graph *graph)
{
    int *writer = MEM_NEW_ARRAY(int, graph->variables->count + 1);
    for (int i = 0; i < graph->variables->count; i++) {
        writer[i] = -1;
    }
    enum status status = STATUS_OK;
    for (int i = 0; i < graph->count && status == STATUS_OK; i++) {
        status = verify_node(graph, graph->nodes[i], writer);
    }
    mem_free(writer);
    TRY(status);
    for (int i = 0; i < graph->input_count; i++) {
        if (graph_input_find(graph, graph->inputs[i]->name) != graph->inputs[i]) {
            return FAIL(ERR_MISMATCH, "two feeds are called '%s'", graph->inputs[i]->name);
        }
    }
    for (int i = 0; i < graph->output_count; i++) {
        if (graph_output_find(graph, graph->output_names[i]) != i) {
            return FAIL(ERR_MISMATCH, "two fetches are called '%s'", graph->output_names[i]);
        }
    }
    return STATUS_OK;
}

bool *graph_live(const struct graph *graph)
{
    bool *live = MEM_NEW_ARRAY(bool, graph->count);
    for (int i = 0; i < graph->output_count; i++) {
        live[graph->outputs[i]->id] = true;
    }
    for (int i = graph->count - 1; i >= 0; i--) {
        const struct node *node = graph->nodes[i];
        live[i] |= op_table[node->op]->writes != 0;
        for (int k = 0; live[i] && k < node->input_count; k++) {
            live[node->inputs[k]->id] = true;
        }
    }
    return live;
}

int *graph_use_counts(const struct graph *graph, const bool *live)
{
    int *uses = MEM_NEW_ARRAY(int, graph->count);
    for (int i = 0; i < graph->count; i++) {
        for (int k = 0; live[i] && k < graph->nodes[i]->input_count; k++) {
            uses[graph->nodes[i]->inputs[k]->id]++;
        }
    }
    return uses;
}

enum status graph_fold_constants(struct graph *graph)
{
    enum { FOLD_LIMIT = 1 << 20 };  // bytes: a big constant costs more memory than computing it
    for (int i = 0; i < graph->count; i++) {
        struct node *node = graph->nodes[i];
        const struct op_def *def = op_table[node->op];
        bool constant = def->reference && !def->writes && node->op != OP_ALL_REDUCE &&
                        node->input_count > 0 && node_bytes(node) <= FOLD_LIMIT;
        const void *in[OP_INPUT_MAX];
        for (int k = 0; k < node->input_count && constant; k++) {
            constant = node->inputs[k]->op == OP_CONST;
            in[k] = node->inputs[k]->value;
        }
        if (constant) {
            void *value = arena_alloc(&graph->arena, node_bytes(node));
            TRY(def->reference(&(struct op_call){.node = node, .in = in, .out = value}));
            node->op = OP_CONST;
            node->input_count = 0;
            node->value = value;
        }
    }
    return STATUS_OK;
}

static const char *node_label(const struct node *node)
{
    return node->op == OP_VARIABLE ? node->variable->name : node->name ? node->name : "";
}

void graph_dump_text(const struct graph *graph, struct text *out)
{
    for (int i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        text_printf(out, "%%%d = %s(", i, op_table[node->op]->name);
        for (int k = 0; k < node->input_count; k++) {
            text_printf(out, "%s%%%d", k ? ", " : "", node->inputs[k]->id);
        }
        text_printf(out, ") %s %s %s%s%s\n", dtype_name(node->dtype), shape_str(node->shape),
                    node_label(node), *node->layer ? " # " : "", node->layer);
    }
    for (int i = 0; i < graph->output_count; i++) {
        text_printf(out, "fetch %s = %%%d\n", graph->output_names[i], graph->outputs[i]->id);
    }
}

void graph_dump_dot(const struct graph *graph, struct text *out)
{
    text_append(out, "digraph step {\n  node [shape=box, fontname=\"sans-serif\"];\n");
    for (int i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        text_printf(out, "  n%d [label=\"%s\\n%s%s\\n%s\"];\n", i, op_table[node->op]->name,
                    node->layer, node_label(node), shape_str(node->shape));
        for (int k = 0; k < node->input_count; k++) {
            text_printf(out, "  n%d -> n%d;\n", node->inputs[k]->id, i);
        }
    }
    text_append(out, "}\n");
}
