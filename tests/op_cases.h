// SPDX-License-Identifier: Apache-2.0
// op_cases.h: the rows of op_cases.def as graphs with values, for every test that runs ops:
// gradients against differences, float32 against float64, backends against reference kernels.
// Feeds are "in0", "in1", ...; inputs that the op writes are variables of these names.
// Values are multiples of 1/1024, so the same in float32 and float64 (but probabilities).
#ifndef OP_CASES_H
#define OP_CASES_H

#include "test.h"
#include "trainer/graph.h"
#include "trainer/rng.h"

struct op_case {
    enum op op;
    const char *inputs;
    struct op_attr attr;
};

static const struct op_case op_cases[] = {
#define CASE(id, inputs) {OP_##id, inputs, {.shape = {0}}},
#define CASE_ATTR(id, inputs, ...) {OP_##id, inputs, {__VA_ARGS__}},
#include "op_cases.def"
#undef CASE
#undef CASE_ATTR
};
enum { OP_CASE_COUNT = (int)ARRAY_COUNT(op_cases) };

struct op_case_input {
    struct shape shape;
    enum dtype dtype;    // DTYPE_F32 stands for graph->real
    char kind;           // the letter behind the dimensions; 0, 's' step, '@' statistics
    int32_t limit;       // of int32 values
};

static inline bool op_case_is_real(const struct op_case_input *input)
{
    return input->dtype == DTYPE_F32;
}

static inline bool op_case_has_gradient(const struct op_case_input *input)
{
    return op_case_is_real(input) && !strchr("pc@", input->kind ? input->kind : '.');
}

// Reads one word.
static inline struct op_case_input op_case_word(const char *word)
{
    struct op_case_input input = {.dtype = DTYPE_F32};
    if (strncmp(word, "step", 4) == 0) {
        input.dtype = DTYPE_I64;
        input.kind = 's';
    } else if (strncmp(word, "stats", 5) == 0) {
        input.kind = '@';
    } else if (*word == '(') {
        input.kind = word[1] == '+' ? '+' : 0;
    } else {
        char *end = (char *)(uintptr_t)word;
        do {
            input.shape.dim[input.shape.rank++] = strtol(end + (*end == 'x'), &end, 10);
        } while (*end == 'x');
        input.kind = *end == ' ' ? 0 : *end;
        if (input.kind == 'i') {
            input.dtype = DTYPE_I32;
            input.limit = (int32_t)strtol(end + 1, NULL, 10);
        }
    }
    return input;
}

// Reads all words; returns how many.
static inline int op_case_inputs(const struct op_case *row, struct op_case_input *inputs)
{
    int count = 0;
    for (const char *word = row->inputs; word; count++) {
        inputs[count] = op_case_word(word);
        word = strchr(word, ' ');
        word = word ? word + 1 : NULL;
    }
    return count;
}

static inline const char *op_case_text(const struct op_case *row, char *buffer, size_t size)
{
    snprintf(buffer, size, "case %d: %s %s", (int)(row - op_cases), op_table[row->op]->name,
             row->inputs);
    return buffer;
}

static inline double op_case_value(const struct op_case_input *input, int number, int64_t i)
{
    int64_t count = shape_count(input->shape);
    uint32_t bits = rng_u32(1, RNG_SYNTHETIC, 0, (uint64_t)number, (uint64_t)i);
    double unit = (double)(bits >> 22) / 1024;  // [0, 1)
    switch (input->kind) {
    case 's': return 3 + number;
    case 'i': return (double)((i * 7 + 3) % input->limit);
    case 'd': {  // 1/64 apart; inputs are 1/128 apart from each other. 37: no case has 37 rows.
        return (double)((i * 37 + 7) % count - count / 2) / 64 + (double)number / 128 + 1.0 / 256;
    }
    case '+':
    case 'c':
    case 'p': return 0.5 + unit;
    default: return (bits & 1 ? 1 : -1) * (103 + (double)(int)(unit * 921)) / 1024;
    }
}

// Fills `data` of the input's shape; `real` is the dtype of real inputs.
static inline void op_case_fill(const struct op_case_input *input, int number, enum dtype real,
                                void *data)
{
    int64_t count = shape_count(input->shape);
    int64_t row = input->shape.rank ? input->shape.dim[input->shape.rank - 1] : 1;
    for (int64_t i = 0; i < count; i++) {
        double value = op_case_value(input, number, i), sum = 0;
        for (int64_t k = 0; k < row && input->kind == 'p'; k++) {
            sum += op_case_value(input, number, i / row * row + k);
        }
        value = input->kind == 'p' ? value / sum : value;
        switch (op_case_is_real(input) ? real : input->dtype) {
        case DTYPE_F32: ((float *)data)[i] = (float)value; break;
        case DTYPE_F64: ((double *)data)[i] = value; break;
        case DTYPE_I32: ((int32_t *)data)[i] = (int32_t)value; break;
        default: ((int64_t *)data)[i] = (int64_t)value; break;
        }
    }
}

// The case as nodes: fills nodes[] with its inputs, returns the op's node.
static inline struct node *op_case_build(const struct op_case *row, struct graph *graph,
                                         struct node **nodes)
{
    struct op_case_input inputs[OP_INPUT_MAX];
    int count = op_case_inputs(row, inputs);
    bool updates = op_table[row->op]->writes != 0;
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "in%d", i);
        enum dtype dtype = op_case_is_real(&inputs[i]) ? graph->real : inputs[i].dtype;
        // Rates and steps are scalars: an update writes only what has dimensions.
        bool written = updates && i != 1 && inputs[i].shape.rank > 0;
        if (written) {
            nodes[i] = graph_variable(graph, variables_get(graph->variables, name, dtype,
                                                           inputs[i].shape, VARIABLE_WEIGHT, true,
                                                           (struct initializer){.scale = 0}));
        } else if (inputs[i].kind == '@') {
            nodes[i] = GRAPH_NODE(graph, OP_BATCH_NORM_STATS, NULL, nodes[0]);
        } else {
            nodes[i] = graph_input(graph, name, dtype, inputs[i].shape);
        }
    }
    return graph_node(graph, row->op, &row->attr, count, nodes);
}

#endif
