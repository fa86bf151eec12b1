// SPDX-License-Identifier: Apache-2.0
// test_ops.c: the table of ops is complete; values, updates and messages worked out by hand.
#include <math.h>

#include "graph_run.h"
#include "op_cases.h"
#include "trainer/cluster.h"

// ---- The table ----------------------------------------------------------------------------------

// Ops that no gradient passes through: sources, decisions, the gradients themselves, updates, sums
// over replicas.
static const enum op no_gradient[] = {
    OP_INPUT,         OP_VARIABLE,          OP_CONST,              OP_EQUAL,
    OP_GREATER,       OP_RELU_GRAD,         OP_ARGMAX,             OP_CONV2D_DX,
    OP_CONV2D_DW,     OP_MAX_POOL_GRAD,     OP_AVG_POOL_GRAD,      OP_BATCH_NORM_STATS,
    OP_BATCH_NORM_DX, OP_BATCH_NORM_DPARAM, OP_SOFTMAX_GRAD,       OP_CROSS_ENTROPY_GRAD,
    OP_ASSIGN,        OP_ASSIGN_ADD,        OP_SGD,                OP_MOMENTUM,
    OP_RMSPROP,       OP_ADAM,              OP_LARS,               OP_LAMB,
    OP_ALL_REDUCE};

static void test_table(void **state)
{
    (void)state;
    static const char *const names[] = {
#define OP(id, name) name,
#include "trainer/ops.def"
#undef OP
    };
    for (int op = 0; op < OP_COUNT; op++) {
        const struct op_def *def = op_table[op];
        assert_string_equal(def->name, names[op]);
        bool source = op == OP_INPUT || op == OP_VARIABLE || op == OP_CONST, none = false;
        bool has_case = source;
        for (int other = 0; other < op; other++) {
            assert_string_not_equal(def->name, names[other]);
        }
        for (size_t i = 0; i < ARRAY_COUNT(no_gradient); i++) {
            none |= no_gradient[i] == (enum op)op;
        }
        for (int i = 0; i < OP_CASE_COUNT; i++) {
            has_case |= op_cases[i].op == (enum op)op;
        }
        if ((def->infer == NULL) != source || (def->reference == NULL) != source ||
            (def->gradient == NULL) != none || !has_case) {
            fail_msg("%s: infer %d, reference %d, gradient %d, case %d", def->name, !!def->infer,
                     !!def->reference, !!def->gradient, has_case);
        }
        assert_true(def->max_inputs >= def->min_inputs && def->max_inputs <= OP_INPUT_MAX);
        assert_true(!def->writes || def->writes & 1);  // the output is a variable
    }
}

// ---- Values -------------------------------------------------------------------------------------

struct tensor {
    enum dtype dtype;
    struct shape shape;
    double value[12];
};

struct bench {
    struct variables variables;
    struct graph graph;
};

static void bench_init(struct bench *b)
{
    variables_init(&b->variables);
    graph_init(&b->graph, &b->variables, DTYPE_F64);
}

static void bench_release(struct bench *b)
{
    graph_release(&b->graph);
    variables_release(&b->variables);
}

// The op's node over constants.
static struct node *node_of(struct bench *b, enum op op, const struct op_attr *attr, int count,
                            const struct tensor *inputs)
{
    struct node *nodes[OP_INPUT_MAX];
    for (int i = 0; i < count; i++) {
        double data[12];
        for (int k = 0; k < 12; k++) {
            element_set(data, inputs[i].dtype, k, inputs[i].value[k]);
        }
        nodes[i] = graph_constant(&b->graph, inputs[i].dtype, inputs[i].shape, data);
    }
    return graph_node(&b->graph, op, attr, count, nodes);
}

#define REAL(dims, ...) \
    {DTYPE_F64, {(int)(sizeof((int64_t[])DIMS dims) / sizeof(int64_t)), DIMS dims}, {__VA_ARGS__}}
#define DIMS(...) {__VA_ARGS__}
#define INT(n, ...) {DTYPE_I32, {1, {n}}, {__VA_ARGS__}}
#define SCALAR(v) {DTYPE_F64, {0, {0}}, {v}}
#define LONG(v) {DTYPE_I64, {0, {0}}, {v}}

static const struct {
    enum op op;
    struct op_attr attr;
    struct tensor in[3], out;
} values[] = {
    {OP_NEG, {.rate = 0}, {REAL((2), 1, -2)}, REAL((2), -1, 2)},
    {OP_ABS, {.rate = 0}, {REAL((2), 1, -2)}, REAL((2), 1, 2)},
    {OP_SQUARE, {.rate = 0}, {REAL((2), 3, -2)}, REAL((2), 9, 4)},
    {OP_SQRT, {.rate = 0}, {REAL((2), 9, 2)}, REAL((2), 3, 1.4142135623730951)},
    {OP_RSQRT, {.rate = 0}, {REAL((2), 4, 0.25)}, REAL((2), 0.5, 2)},
    {OP_EXP, {.rate = 0}, {REAL((2), 0, 1)}, REAL((2), 1, 2.718281828459045)},
    {OP_LOG, {.rate = 0}, {REAL((2), 1, 10)}, REAL((2), 0, 2.302585092994046)},
    {OP_TANH, {.rate = 0}, {REAL((2), 0, 1)}, REAL((2), 0, 0.7615941559557649)},
    {OP_SIGMOID, {.rate = 0}, {REAL((3), 0, 1, -800)}, REAL((3), 0.5, 0.7310585786300049, 0)},
    {OP_ERF, {.rate = 0}, {REAL((2), 0, 1)}, REAL((2), 0, 0.8427007929497149)},
    {OP_RELU, {.rate = 0}, {REAL((3), -1, 0, 2)}, REAL((3), 0, 0, 2)},
    {OP_CAST, {.dtype = DTYPE_F64}, {INT(2, 7, -8)}, REAL((2), 7, -8)},
    {OP_ADD, {.rate = 0}, {REAL((2, 1), 1, 2), REAL((3), 10, 20, 30)},
     REAL((2, 3), 11, 21, 31, 12, 22, 32)},
    {OP_SUB, {.rate = 0}, {REAL((3), 1, 2, 3), SCALAR(1)}, REAL((3), 0, 1, 2)},
    {OP_MUL, {.rate = 0}, {REAL((2, 2), 1, 2, 3, 4), REAL((2, 1), 10, 100)},
     REAL((2, 2), 10, 20, 300, 400)},
    {OP_DIV, {.rate = 0}, {SCALAR(6), REAL((2), 2, 4)}, REAL((2), 3, 1.5)},
    {OP_MAXIMUM, {.rate = 0}, {REAL((3), 1, 5, 2), REAL((3), 3, 4, 2)}, REAL((3), 3, 5, 2)},
    {OP_MINIMUM, {.rate = 0}, {REAL((3), 1, 5, 2), REAL((3), 3, 4, 2)}, REAL((3), 1, 4, 2)},
    {OP_EQUAL, {.dtype = DTYPE_F64}, {INT(3, 1, 2, 3), INT(3, 1, 0, 3)}, REAL((3), 1, 0, 1)},
    {OP_GREATER, {.dtype = DTYPE_F64}, {INT(3, 1, 2, 3), INT(3, 1, 0, 4)}, REAL((3), 0, 1, 0)},
    {OP_RELU_GRAD, {.rate = 0}, {REAL((3), 0, 1, 2), REAL((3), 5, 6, 7)}, REAL((3), 0, 6, 7)},
    {OP_REDUCE_SUM, {.rate = 0}, {REAL((2, 3), 1, 2, 3, 4, 5, 6)}, SCALAR(21)},
    {OP_REDUCE_SUM, {.axes = {0}, .axis_count = 1}, {REAL((2, 3), 1, 2, 3, 4, 5, 6)},
     REAL((3), 5, 7, 9)},
    {OP_REDUCE_SUM, {.axes = {1}, .axis_count = 1, .keep_dims = true},
     {REAL((2, 3), 1, 2, 3, 4, 5, 6)}, REAL((2, 1), 6, 15)},
    {OP_REDUCE_MAX, {.axes = {1}, .axis_count = 1}, {REAL((2, 3), -1, -2, -3, 4, 6, 5)},
     REAL((2), -1, 6)},
    {OP_ARGMAX, {.rate = 0}, {REAL((2, 3), 1, 7, 7, 9, 9, 2)}, INT(2, 1, 0)},
    {OP_RESHAPE, {.shape = {1, {4}}}, {REAL((2, 2), 1, 2, 3, 4)}, REAL((4), 1, 2, 3, 4)},
    {OP_TRANSPOSE, {.axes = {1, 0}, .axis_count = 2}, {REAL((2, 3), 1, 2, 3, 4, 5, 6)},
     REAL((3, 2), 1, 4, 2, 5, 3, 6)},
    {OP_TRANSPOSE, {.axes = {2, 0, 1}, .axis_count = 3},  // out(i, j, k) = in(j, k, i)
     {REAL((1, 2, 3), 1, 2, 3, 4, 5, 6)}, REAL((3, 1, 2), 1, 4, 2, 5, 3, 6)},
    {OP_BROADCAST, {.shape = {2, {2, 3}}}, {REAL((2, 1), 1, 2)}, REAL((2, 3), 1, 1, 1, 2, 2, 2)},
    {OP_SLICE, {.start = {1, 1}, .shape = {2, {1, 2}}}, {REAL((2, 3), 1, 2, 3, 4, 5, 6)},
     REAL((1, 2), 5, 6)},
    {OP_PAD, {.start = {0, 1}, .stop = {1, 0}}, {REAL((1, 2), 1, 2)},
     REAL((2, 3), 0, 1, 2, 0, 0, 0)},
    {OP_CONCAT, {.axes = {1}}, {REAL((2, 1), 1, 2), REAL((2, 2), 3, 4, 5, 6)},
     REAL((2, 3), 1, 3, 4, 2, 5, 6)},
    {OP_MATMUL, {.rate = 0}, {REAL((2, 2), 1, 2, 3, 4), REAL((2, 1), 10, 1)},
     REAL((2, 1), 12, 34)},
    {OP_MATMUL, {.transpose_a = true, .transpose_b = true},
     {REAL((2, 1), 1, 2), REAL((3, 2), 1, 10, 2, 20, 3, 30)}, REAL((1, 3), 21, 42, 63)},
    {OP_CONV2D, {.stride = {1, 2}, .dilation = {1, 1}, .groups = 1, .pad_before = {0, 1}},
     {REAL((1, 1, 4, 1), 1, 2, 3, 4), REAL((1, 2, 1, 1), 10, 1)}, REAL((1, 1, 2, 1), 1, 23)},
    // Equal values: the first of the window gets the gradient.
    {OP_MAX_POOL_GRAD, {.window = {2, 2}, .stride = {2, 2}},
     {REAL((1, 2, 2, 1), 3, 7, 7, 7), REAL((1, 1, 1, 1), 5)}, REAL((1, 2, 2, 1), 0, 5, 0, 0)},
    // The mean is over what lies inside the image: 1, (2 + 3) / 2.
    {OP_AVG_POOL, {.window = {1, 2}, .stride = {1, 2}, .pad_before = {0, 1}},
     {REAL((1, 1, 3, 1), 1, 2, 3)}, REAL((1, 1, 2, 1), 1, 2.5)},
    {OP_BATCH_NORM_STATS, {.rate = 0}, {REAL((2, 2), 1, 10, 3, 10)}, REAL((2, 2), 2, 10, 1, 0)},
    {OP_SOFTMAX, {.rate = 0}, {REAL((2, 2), 1000, 1000, 0, -1000)}, REAL((2, 2), 0.5, 0.5, 1, 0)},
    {OP_CROSS_ENTROPY, {.rate = 0}, {REAL((2, 2), 1000, 0, 5, 5), INT(2, 1, 0)},
     REAL((2), 1000, 0.6931471805599453)},
    // Target (.9, .1), log-softmax -l and -l - 1 with l = log(1 + e) - 1: l + .1
    {OP_CROSS_ENTROPY, {.label_smoothing = 0.2}, {REAL((1, 2), 1, 0), INT(1, 0)},
     REAL((1), 0.4132616875182228)},
    {OP_CROSS_ENTROPY_GRAD, {.rate = 0}, {REAL((1, 2), 3, 3), INT(1, 1), REAL((1), 10)},
     REAL((1, 2), 5, -5)},
};

static void test_values(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_COUNT(values); k++) {
        struct bench b;
        bench_init(&b);
        int count = 0;  // inputs that the row leaves out are zero
        while (count < 3 && (values[k].in[count].shape.rank || values[k].in[count].value[0] != 0)) {
            count++;
        }
        struct node *y = node_of(&b, values[k].op, &values[k].attr, count, values[k].in);
        assert_ok(graph_check(&b.graph));
        graph_output(&b.graph, "y", y);
        struct graph_run run;
        run_init(&run, "ref", &b.graph);
        assert_ok(run_step(&run));
        const struct tensor *out = &values[k].out;
        assert_int_equal(y->dtype, out->dtype);
        assert_true(shape_equal(y->shape, out->shape));
        for (int64_t i = 0; i < shape_count(y->shape); i++) {
            double got = run_get(&run, "y", i);
            // One or two roundings: 1e-15 relative to values up to 10, 4 ulp at most.
            if (!(fabs(got - out->value[i]) <= 1e-15 * fmax(1, fabs(out->value[i])))) {
                fail_msg("row %zu, %s: element %lld is %.17g, expected %.17g", k,
                         op_table[y->op]->name, (long long)i, got, out->value[i]);
            }
        }
        run_release(&run);
        bench_release(&b);
    }
}

// A NaN is seen in what follows: a run must not go on as if nothing had happened.
static void test_nan(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b);
    const struct tensor x[] = {REAL((2), NAN, 1), REAL((2), 1, NAN)};
    graph_output(&b.graph, "max", node_of(&b, OP_MAXIMUM, NULL, 2, x));
    graph_output(&b.graph, "min", node_of(&b, OP_MINIMUM, NULL, 2, x));
    graph_output(&b.graph, "relu", node_of(&b, OP_RELU, NULL, 1, x));
    graph_output(&b.graph, "all", node_of(&b, OP_REDUCE_MAX, &(struct op_attr){0}, 1, x));
    struct graph_run run;
    run_init(&run, "ref", &b.graph);
    assert_ok(run_step(&run));
    assert_true(isnan(run_get(&run, "max", 0)) && isnan(run_get(&run, "max", 1)));
    assert_true(isnan(run_get(&run, "min", 0)) && isnan(run_get(&run, "min", 1)));
    assert_true(isnan(run_get(&run, "relu", 0)) && run_get(&run, "relu", 1) == 1);
    assert_true(isnan(run_get(&run, "all", 0)));
    run_release(&run);
    bench_release(&b);
}

// ---- Dropout ------------------------------------------------------------------------------------

// Rows [row, row + rows) of ones (rows, 50) after dropout of 0.25.
static void drop(int rows, int64_t step, int64_t row, double *out)
{
    struct bench b;
    bench_init(&b);
    struct op_attr attr = {.rate = 0.25, .seed = 11, .salt = 5}, ones = {.shape = SHAPE(rows, 50)};
    struct node *x = GRAPH_NODE(&b.graph, OP_BROADCAST, &ones,
                                graph_scalar(&b.graph, DTYPE_F64, 1));
    struct node *s = graph_input(&b.graph, "step", DTYPE_I64, shape_scalar());
    struct node *r = graph_input(&b.graph, "row", DTYPE_I64, shape_scalar());
    graph_output(&b.graph, "y", GRAPH_NODE(&b.graph, OP_DROPOUT, &attr, x, s, r));
    struct graph_run run;
    run_init(&run, "ref", &b.graph);
    *(int64_t *)run_feed(&run, "step") = step;
    *(int64_t *)run_feed(&run, "row") = row;
    assert_ok(run_step(&run));
    for (int i = 0; i < rows * 50; i++) {
        out[i] = run_get(&run, "y", i);
    }
    run_release(&run);
    bench_release(&b);
}

static void test_dropout(void **state)
{
    (void)state;
    static double whole[40 * 50], part[15 * 50], later[40 * 50];
    int kept = 0, same = 0;
    drop(40, 3, 100, whole);
    for (int i = 0; i < 40 * 50; i++) {
        uint32_t bits = rng_u32(11, RNG_DROPOUT, 5, 3, (uint64_t)(100 * 50 + i));
        assert_true(whole[i] == ((double)rng_unit(bits) >= 0.25 ? 1 / 0.75 : 0));
        kept += whole[i] != 0;
    }
    // 2000 draws of .75: mean 1500, deviation 19.4; five deviations.
    assert_in_range(kept, 1500 - 97, 1500 + 97);
    // A replica that has rows 110 to 124 drops what the whole batch drops there.
    drop(15, 3, 110, part);
    assert_memory_equal(part, whole + 10 * 50, sizeof part);
    drop(40, 4, 100, later);
    for (int i = 0; i < 40 * 50; i++) {
        same += (later[i] != 0) == (whole[i] != 0);
    }
    // Two independent masks agree with probability .625: 1250, deviation 21.7.
    assert_in_range(same, 1250 - 109, 1250 + 109);
}

// ---- Updates ------------------------------------------------------------------------------------

struct update {
    enum op op;
    struct op_attr attr;
    int slots, step;         // step -1: the op reads none
    double w, g, slot[2], lr;
    double w1, slot1[2];     // after the update, by hand
};

// One element, so that norms are absolute values. The comments are the arithmetic. Hyperparameters that
// Keras casts (momentum, weight decay, betas) are exact in float32.
static const struct update updates[] = {
    // 2 - .1 * .5
    {OP_SGD, {.rate = 0}, 0, -1, 2, 0.5, {0, 0}, 0.1, 1.95, {0, 0}},
    // 2 - .1 * .0078125 * 2 = 1.9984375; - .05
    {OP_SGD, {.weight_decay = 0.0078125}, 0, -1, 2, 0.5, {0, 0}, 0.1, 1.9484375, {0, 0}},
    // m = .75 * .2 - .1 * .5 = .1; 2 + .1
    {OP_MOMENTUM, {.alpha = 0.75}, 1, -1, 2, 0.5, {0.2, 0}, 0.1, 2.1, {0.1, 0}},
    // 2 + .75 * .1 - .05
    {OP_MOMENTUM, {.alpha = 0.75, .nesterov = true}, 1, -1, 2, 0.5, {0.2, 0}, 0.1, 2.025,
     {0.1, 0}},
    // v = .75 * .2 + .25 * 4 = 1.15; sqrt(1.15 + .06) = 1.1; 2 - .11 * 2 / 1.1
    {OP_RMSPROP, {.beta_2 = 0.75, .epsilon = 0.06}, 1, -1, 2, 2, {0.2, 0}, 0.11, 1.8, {1.15, 0}},
    // v = .75 * .28 + 1 = 1.21; 1.1 + .9 = 2; 2 - .11 * 2 / 2
    {OP_RMSPROP, {.beta_2 = 0.75, .epsilon = 0.9, .epsilon_outside = true}, 1, -1, 2, 2,
     {0.28, 0}, 0.11, 1.89, {1.21, 0}},
    // as the first, then m = .5 * .1 + .2 = .25
    {OP_RMSPROP, {.beta_2 = 0.75, .epsilon = 0.06, .alpha = 0.5}, 2, -1, 2, 2, {0.2, 0.1}, 0.11,
     1.75, {1.15, 0.25}},
    // t = 2: m = .2 + (1 - .2) * .5 = .6, v = .36 + (1 - .36) * .25 = .52
    // alpha = .1 * sqrt(1 - .5625) / (1 - .25), w = 2 - .6 * alpha / (sqrt(.52) + .01)
    {OP_ADAM, {.beta_1 = 0.5, .beta_2 = 0.75, .epsilon = 0.01}, 2, 1, 2, 1, {0.2, 0.36}, 0.1,
     1.9276237395759475, {0.6, 0.52}},
    // the same after 2 - .1 * .25 * 2
    {OP_ADAM, {.beta_1 = 0.5, .beta_2 = 0.75, .epsilon = 0.01, .weight_decay = 0.25}, 2, 1, 2, 1,
     {0.2, 0.36}, 0.1, 1.8776237395759475, {0.6, 0.52}},
    // trust = .5 * 2 / (1 + .25 * 2 + .5) = .5; s = .1 * .5 * (1 + .25 * 2) = .075
    // m = .9 * .2 + .075 = .255
    {OP_LARS, {.alpha = 0.9, .rate = 0.5, .weight_decay = 0.25, .epsilon = 0.5}, 1, -1, 2, 1,
     {0.2, 0}, 0.1, 1.745, {0.255, 0}},
    // 2 - (.9 * .255 + .075)
    {OP_LARS, {.alpha = 0.9, .rate = 0.5, .weight_decay = 0.25, .epsilon = 0.5, .nesterov = true},
     1, -1, 2, 1, {0.2, 0}, 0.1, 1.6955, {0.255, 0}},
    // a weight of 0 has no trust ratio: s = .1 * 1
    {OP_LARS, {.alpha = 0.9, .rate = 0.5}, 1, -1, 0, 1, {0.2, 0}, 0.1, -0.28, {0.28, 0}},
    // one element: |w| / |u| * u = 2 in u's direction
    {OP_LAMB, {.beta_1 = 0.5, .beta_2 = 0.75, .epsilon = 0.01, .weight_decay = 0.25}, 2, 1, 2, 1,
     {0.2, 0.36}, 0.1, 1.8, {0.6, 0.52}},
    // w = 0: u = (.6 / .75) / (sqrt(.52 / .4375) + .01), ratio 1
    {OP_LAMB, {.beta_1 = 0.5, .beta_2 = 0.75, .epsilon = 0.01}, 2, 1, 0, 1, {0.2, 0.36}, 0.1,
     -0.07271297932600643, {0.6, 0.52}},
    {OP_ASSIGN, {.rate = 0}, 0, -1, 2, 0.5, {0, 0}, 0, 0.5, {0, 0}},
    {OP_ASSIGN_ADD, {.rate = 0}, 0, -1, 2, 0.5, {0, 0}, 0, 2.5, {0, 0}},
};

static struct variable *variable(struct bench *b, const char *name)
{
    return variables_get(&b->variables, name, DTYPE_F64, SHAPE(1), VARIABLE_WEIGHT, true,
                         (struct initializer){.kind = INIT_ZEROS});
}

// Runs one update with this learning rate; after[] = w, slots.
static void run_update(const struct update *u, double lr, double *after)
{
    static const char *const names[] = {"w", "slot0", "slot1"};
    struct bench b;
    bench_init(&b);
    struct node *in[OP_INPUT_MAX];
    int count = 0;
    in[count++] = graph_variable(&b.graph, variable(&b, "w"));
    in[count++] = graph_constant(&b.graph, DTYPE_F64, SHAPE(1), &u->g);
    for (int i = 0; i < u->slots; i++) {
        in[count++] = graph_variable(&b.graph, variable(&b, names[1 + i]));
    }
    if (u->op != OP_ASSIGN && u->op != OP_ASSIGN_ADD) {
        in[count++] = graph_scalar(&b.graph, DTYPE_F64, lr);
    }
    if (u->step >= 0) {
        in[count++] = graph_scalar(&b.graph, DTYPE_I64, u->step);
    }
    graph_node(&b.graph, u->op, &u->attr, count, in);
    struct graph_run run;
    run_init(&run, "ref", &b.graph);
    double before[] = {u->w, u->slot[0], u->slot[1]};
    for (int i = 0; i <= u->slots; i++) {
        assert_ok(run.backend->state_put(run.state, variable(&b, names[i]), &before[i]));
    }
    assert_ok(run_step(&run));
    for (int i = 0; i <= u->slots; i++) {
        assert_ok(run.backend->state_get(run.state, variable(&b, names[i]), &after[i]));
    }
    run_release(&run);
    bench_release(&b);
}

static void test_updates(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_COUNT(updates); k++) {
        const struct update *u = &updates[k];
        double after[3] = {0}, expected[] = {u->w1, u->slot1[0], u->slot1[1]};
        run_update(u, u->lr, after);
        for (int i = 0; i <= u->slots; i++) {
            // Values around 1 after at most ten roundings, and decimals by hand.
            if (!(fabs(after[i] - expected[i]) <= 3e-15)) {
                fail_msg("row %zu, %s: %s %d is %.17g, expected %.17g", k, op_table[u->op]->name,
                         i ? "slot" : "w", i, after[i], expected[i]);
            }
        }
    }
}

static void test_nan_rate_writes_nothing(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_COUNT(updates); k++) {
        const struct update *u = &updates[k];
        double after[3] = {0}, before[] = {u->w, u->slot[0], u->slot[1]};
        if (u->op != OP_ASSIGN && u->op != OP_ASSIGN_ADD) {
            run_update(u, NAN, after);
            assert_memory_equal(after, before, sizeof(double) * (size_t)(1 + u->slots));
        }
    }
}

// ---- Messages -----------------------------------------------------------------------------------

static const struct {
    enum op op;
    struct op_attr attr;
    struct tensor in[4];
    const char *message;
} mistakes[] = {
    {OP_CONV2D, {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1},
     {REAL((64, 28, 28, 3), 0), REAL((3, 3, 1, 32), 0)},
     "conv2d: input has 3 channels, the filter expects 1: (64, 28, 28, 3) and (3, 3, 1, 32)"},
    {OP_CONV2D, {.stride = {1, 1}, .dilation = {2, 2}, .groups = 1},
     {REAL((1, 4, 9, 1), 0), REAL((3, 3, 1, 2), 0)},
     "the filter reaches over 5 elements, the input (1, 4, 9, 1) has 4 with padding"},
    {OP_CONV2D, {.stride = {0, 1}, .dilation = {1, 1}, .groups = 1},
     {REAL((1, 4, 9, 1), 0), REAL((3, 3, 1, 2), 0)}, "stride 0"},
    {OP_CONV2D, {.stride = {1, 1}, .dilation = {1, 1}, .groups = 2},
     {REAL((1, 4, 9, 2), 0), REAL((3, 3, 1, 3), 0)}, "3 filters do not divide into 2 groups"},
    {OP_CONV2D_DW, {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .shape = {4, {2, 2, 1, 1}}},
     {REAL((1, 4, 4, 1), 0), REAL((1, 4, 4, 1), 0)}, "dy has shape (1, 4, 4, 1), expected (1, 3, "},
    {OP_MAX_POOL, {.window = {3, 3}, .stride = {2, 2}}, {REAL((1, 2, 9, 1), 0)},
     "max_pool: the window has 3 elements, the input (1, 2, 9, 1) has 2"},
    {OP_MAX_POOL, {.window = {2, 2}, .stride = {2, 2}, .pad_before = {2, 0}},
     {REAL((1, 4, 4, 1), 0)}, "padding smaller than the window"},
    {OP_ADD, {.rate = 0}, {REAL((2, 3), 0), REAL((2), 0)}, "shapes (2, 3) and (2) do not fit"},
    {OP_ADD, {.rate = 0}, {INT(2, 0), INT(2, 0)}, "input 0 is int32, expected float32 or float64"},
    {OP_EQUAL, {.rate = 0}, {INT(2, 0), REAL((2), 0)}, "input 1 is float64, expected int32"},
    {OP_MATMUL, {.transpose_b = true}, {REAL((2, 3), 0), REAL((3, 4), 0)},
     "matmul: (2, 3) times (3, 4) transposed: expected"},
    {OP_REDUCE_SUM, {.axes = {2}, .axis_count = 1}, {REAL((2, 3), 0)}, "axis 2 of (2, 3)"},
    {OP_REDUCE_SUM, {.axes = {1, 1}, .axis_count = 2}, {REAL((2, 3), 0)}, "named twice"},
    {OP_RESHAPE, {.shape = {1, {7}}}, {REAL((2, 3), 0)}, "(2, 3) has 6 elements, (7) has 7"},
    {OP_TRANSPOSE, {.axes = {0, 0}, .axis_count = 2}, {REAL((2, 3), 0)}, "entry 1 of the perm"},
    {OP_BROADCAST, {.shape = {2, {3, 3}}}, {REAL((2, 3), 0)}, "(2, 3) does not repeat to (3, 3)"},
    {OP_SLICE, {.start = {1, 0}, .shape = {2, {2, 3}}}, {REAL((2, 3), 0)},
     "dimension 0: elements 1 to 2 of 2"},
    {OP_SLICE, {.shape = {2, {0, 3}}}, {REAL((2, 3), 0)}, "nothing is left in dimension 0"},
    {OP_PAD, {.start = {-1, 0}}, {REAL((2, 3), 0)}, "gets -1 before and 0 after"},
    {OP_CONCAT, {.axes = {0}}, {REAL((2, 3), 0), REAL((2, 4), 0)}, "concat: input 1 is float64"},
    {OP_BATCH_NORM, {.epsilon = 1}, {REAL((4, 3), 0), REAL((2, 4), 0), REAL((3), 0), REAL((3), 0)},
     "the statistics (mean, variance) has shape (2, 4), expected (2, 3)"},
    {OP_CROSS_ENTROPY, {.rate = 0}, {REAL((4, 3), 0), INT(3, 0)},
     "the labels has shape (3), expected (4)"},
    {OP_CROSS_ENTROPY, {.label_smoothing = 1}, {REAL((4, 3), 0), INT(4, 0)}, "label smoothing 1"},
    {OP_DROPOUT, {.rate = 1}, {REAL((4, 3), 0), LONG(1), LONG(1)}, "dropout: rate 1, expected 0"},
    {OP_DROPOUT, {.rate = 0}, {REAL((4, 3), 0), SCALAR(1), LONG(1)}, "the step is float64 ()"},
    {OP_CAST, {.dtype = DTYPE_I32}, {REAL((4, 3), 0)}, "cast: to int32, expected float32"},
};

static void test_messages(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_COUNT(mistakes); k++) {
        struct bench b;
        bench_init(&b);
        b.graph.layer = "conv1";
        struct node *nodes[4];
        int count = 0;
        while (count < op_table[mistakes[k].op]->min_inputs ||
               (count < 2 && mistakes[k].op == OP_CONCAT)) {
            const struct tensor *in = &mistakes[k].in[count];
            nodes[count++] = graph_input(&b.graph, "x", in->dtype, in->shape);
        }
        assert_null(graph_node(&b.graph, mistakes[k].op, &mistakes[k].attr, count, nodes));
        enum status status = graph_check(&b.graph);
        const char *message = error_get()->message;
        if (status == STATUS_OK || !strstr(message, mistakes[k].message) ||
            strncmp(message, "layer conv1: ", 13) != 0) {
            fail_msg("row %zu: expected '%s' in '%s'", k, mistakes[k].message, message);
        }
        bench_release(&b);
    }
}

static void test_label_outside(void **state)
{
    (void)state;
    for (int bad = -1; bad <= 3; bad += 4) {
        struct bench b;
        bench_init(&b);
        const struct tensor in[] = {REAL((2, 3), 0), INT(2, 2, bad)};
        graph_output(&b.graph, "y", node_of(&b, OP_CROSS_ENTROPY, &(struct op_attr){0}, 2, in));
        struct graph_run run;
        char expected[80];
        snprintf(expected, sizeof expected,
                 "the label of row 1 of the batch is %d, expected 0 to 2", bad);
        run_init(&run, "ref", &b.graph);
        assert_fails(run_step(&run), ERR_CORRUPT, expected);
        run_release(&run);
        bench_release(&b);
    }
}

// ---- Collectives and counts --------------------------------------------------------------------

static enum status double_all(const struct collective *self, int count, void *const *data,
                              const int64_t *sizes, enum dtype dtype)
{
    (void)self;
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < sizes[i]; k++) {
            element_set(data[i], dtype, k, 2 * element_get(data[i], dtype, k));
        }
    }
    return STATUS_OK;
}

static void test_all_reduce(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b);
    const struct tensor x = REAL((2), 3, 4);
    struct node *y = node_of(&b, OP_ALL_REDUCE, NULL, 1, &x);
    const struct collective two = {.rank = 0, .size = 2, .all_reduce = double_all};
    const void *in[] = {y->inputs[0]->value};
    double out[2];
    struct op_call call = {.node = y, .in = in, .out = out, .collective = &two};
    assert_ok(op_table[OP_ALL_REDUCE]->reference(&call));
    assert_true(out[0] == 6 && out[1] == 8);
    call.collective = NULL;
    assert_ok(op_table[OP_ALL_REDUCE]->reference(&call));
    assert_true(out[0] == 3 && out[1] == 4);
    bench_release(&b);
}

static void test_flops(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b);
    struct node *x = graph_input(&b.graph, "x", DTYPE_F32, SHAPE(2, 5, 6, 4));
    struct node *w = graph_input(&b.graph, "w", DTYPE_F32, SHAPE(3, 3, 2, 8));
    struct op_attr attr = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 2};
    struct node *y = GRAPH_NODE(&b.graph, OP_CONV2D, &attr, x, w);  // (2, 3, 4, 8)
    assert_true(node_flops(y) == 2.0 * 2 * 3 * 4 * 8 * 3 * 3 * 4 / 2);
    struct node *m = graph_input(&b.graph, "m", DTYPE_F32, SHAPE(5, 7));
    attr = (struct op_attr){.transpose_a = true};
    assert_true(node_flops(GRAPH_NODE(&b.graph, OP_MATMUL, &attr, m, m)) == 2.0 * 7 * 5 * 7);
    assert_true(node_flops(GRAPH_NODE(&b.graph, OP_RELU, NULL, m)) == 35);
    assert_true(node_flops(m) == 0);
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),         cmocka_unit_test(test_values),
        cmocka_unit_test(test_nan),           cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_updates),       cmocka_unit_test(test_nan_rate_writes_nothing),
        cmocka_unit_test(test_messages),      cmocka_unit_test(test_label_outside),
        cmocka_unit_test(test_all_reduce),    cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
