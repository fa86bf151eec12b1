// SPDX-License-Identifier: Apache-2.0
// test_gradients.c: the gradient rule of every op against differences of its reference kernel, on
// the rows of op_cases.def, in double; and that float32 computes what float64 does.
#include <math.h>

#include "graph_run.h"
#include "op_cases.h"

// Differences of fourth order: error h^4 / 30 * f''''' and 2 eps |f| / h. With h = 2^-10 (exact)
// the first is 3e-14 * f''''', the second 5e-12 for |f| up to 20. The fifth derivatives of the
// cases reach 2e3 (1/sqrt at 0.5), so 1e-9 holds both.
#define STEP 0x1p-10
#define BOUND 1e-9

struct problem {
    struct variables variables;
    struct graph graph;
    struct graph_run run;
    struct op_case_input inputs[OP_INPUT_MAX];
    struct node *nodes[OP_INPUT_MAX];
    int count;
};

static void fill_inputs(struct problem *p, enum dtype real)
{
    for (int i = 0; i < p->count; i++) {
        struct node *node = p->nodes[i];
        if (node->op == OP_INPUT) {
            op_case_fill(&p->inputs[i], i, real, run_feed(&p->run, node->name));
        } else if (node->op == OP_VARIABLE) {
            void *data = mem_alloc(node_bytes(node));
            op_case_fill(&p->inputs[i], i, real, data);
            assert_ok(p->run.backend->state_put(p->run.state, node->variable, data));
            mem_free(data);
        }
    }
}

static struct node *problem_build(struct problem *p, const struct op_case *row, enum dtype real)
{
    *p = (struct problem){.count = 0};
    variables_init(&p->variables);
    graph_init(&p->graph, &p->variables, real);
    p->count = op_case_inputs(row, p->inputs);
    struct node *y = op_case_build(row, &p->graph, p->nodes);
    assert_ok(graph_check(&p->graph));
    return y;
}

static void problem_release(struct problem *p)
{
    run_release(&p->run);
    graph_release(&p->graph);
    variables_release(&p->variables);
}

// loss = sum(y * weight), every weight another number.
static struct node *weighted(struct graph *graph, struct node *y)
{
    int64_t count = shape_count(y->shape);
    double *weight = MEM_NEW_ARRAY(double, count);
    for (int64_t i = 0; i < count; i++) {
        weight[i] = (double)(rng_u32(2, RNG_SYNTHETIC, 0, 0, (uint64_t)i) >> 22) / 512 - 1;
    }
    struct node *w = graph_constant(graph, DTYPE_F64, y->shape, weight);
    mem_free(weight);
    return graph_sum_all(graph, GRAPH_NODE(graph, OP_MUL, NULL, y, w));
}

static double loss_at(struct problem *p, double *x, int64_t i, double value)
{
    double old = x[i];
    x[i] = value;
    assert_ok(run_step(&p->run));
    x[i] = old;
    return run_get(&p->run, "loss", 0);
}

static double difference(struct problem *p, double *x, int64_t i)
{
    const double h = STEP, at = x[i];
    double near = loss_at(p, x, i, at + h) - loss_at(p, x, i, at - h);
    double far = loss_at(p, x, i, at + 2 * h) - loss_at(p, x, i, at - 2 * h);
    return (8 * near - far) / (12 * h);
}

static void check_input(struct problem *p, int input, const char *what)
{
    char name[16];
    snprintf(name, sizeof name, "d%d", input);
    int output = graph_output_find(&p->graph, name);
    if (output < 0) {
        fail_msg("%s: input %d has no gradient", what, input);
    }
    int64_t count = shape_count(p->nodes[input]->shape);
    double *x = run_feed(&p->run, p->nodes[input]->name);
    double *rule = MEM_NEW_ARRAY(double, count), largest = 1;
    assert_ok(run_step(&p->run));
    for (int64_t i = 0; i < count; i++) {
        rule[i] = run_get(&p->run, name, i);
        largest = fmax(largest, fabs(rule[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        double measured = difference(p, x, i);
        if (!(fabs(measured - rule[i]) <= BOUND * largest)) {
            fail_msg("%s: input %d element %lld: the rule gives %.12g, differences %.12g", what,
                     input, (long long)i, rule[i], measured);
        }
    }
    mem_free(rule);
}

static bool has_gradient(const struct op_case *row)
{
    struct op_case_input inputs[OP_INPUT_MAX];
    int count = op_case_inputs(row, inputs);
    bool any = false;
    for (int i = 0; i < count; i++) {
        any |= op_case_has_gradient(&inputs[i]);
    }
    return any && op_table[row->op]->gradient;
}

// Checks all inputs of one case. False when the op or the case has no gradient.
static bool check_case(const struct op_case *row)
{
    char what[128];
    op_case_text(row, what, sizeof what);
    if (!has_gradient(row)) {
        return false;
    }
    struct problem p;
    struct node *y = problem_build(&p, row, DTYPE_F64);
    if (y->dtype == DTYPE_F32) {  // a cast of the case itself
        y = GRAPH_NODE(&p.graph, OP_CAST, &(struct op_attr){.dtype = DTYPE_F64}, y);
    }
    struct node *loss = weighted(&p.graph, y), *gradients[OP_INPUT_MAX];
    graph_gradients(&p.graph, loss, p.nodes, p.count, gradients);
    graph_output(&p.graph, "loss", loss);
    for (int i = 0; i < p.count; i++) {
        char name[16];
        snprintf(name, sizeof name, "d%d", i);
        if (op_case_has_gradient(&p.inputs[i])) {
            graph_output(&p.graph, name, gradients[i]);
        }
    }
    run_init(&p.run, "ref", &p.graph);
    fill_inputs(&p, DTYPE_F64);
    for (int i = 0; i < p.count; i++) {
        if (op_case_has_gradient(&p.inputs[i])) {
            check_input(&p, i, what);
        }
    }
    problem_release(&p);
    return true;
}

static void test_rules(void **state)
{
    (void)state;
    bool checked[OP_COUNT] = {false};
    int count = 0;
    for (int i = 0; i < OP_CASE_COUNT; i++) {
        bool done = check_case(&op_cases[i]);
        checked[op_cases[i].op] |= done;
        count += done;
    }
    for (int op = 0; op < OP_COUNT; op++) {
        if (op_table[op]->gradient && !checked[op]) {
            fail_msg("%s has a gradient rule and no case that checks it", op_table[op]->name);
        }
    }
    printf("%d cases with gradients\n", count);
}

// The output of a case, and what an update left in its variables, one after the other.
static double *outputs(const struct op_case *row, enum dtype real, int64_t *count)
{
    struct problem p;
    struct node *y = problem_build(&p, row, real);
    graph_output(&p.graph, "y", y);
    run_init(&p.run, "ref", &p.graph);
    fill_inputs(&p, real);
    assert_ok(run_step(&p.run));
    *count = shape_count(y->shape);
    double *values = MEM_NEW_ARRAY(double, *count * (1 + p.variables.count));
    for (int64_t i = 0; i < *count; i++) {
        values[i] = run_get(&p.run, "y", i);
    }
    int64_t at = *count;
    for (int k = 0; k < p.variables.count; k++) {
        void *data = mem_alloc(node_bytes(y));
        assert_ok(p.run.backend->state_get(p.run.state, p.variables.items[k], data));
        for (int64_t i = 0; i < *count; i++) {
            values[at++] = element_get(data, real, i);
        }
        mem_free(data);
    }
    *count = at;
    problem_release(&p);
    return values;
}

// No case sums more than 128 products, each rounded to 2^-24 of a partial sum: 128 * 2^-24 < 1e-5.
static void test_float32(void **state)
{
    (void)state;
    for (int k = 0; k < OP_CASE_COUNT; k++) {
        char what[128];
        op_case_text(&op_cases[k], what, sizeof what);
        int64_t count, same;
        double *exact = outputs(&op_cases[k], DTYPE_F64, &count), largest = 0;
        double *single = outputs(&op_cases[k], DTYPE_F32, &same);
        assert_int_equal(count, same);
        for (int64_t i = 0; i < count; i++) {
            largest = fmax(largest, fabs(exact[i]));
        }
        for (int64_t i = 0; i < count; i++) {
            if (!(fabs(single[i] - exact[i]) <= 1e-5 * largest)) {
                fail_msg("%s: element %lld: float32 gives %.9g, float64 %.9g", what, (long long)i,
                         single[i], exact[i]);
            }
        }
        mem_free(exact);
        mem_free(single);
    }
}

// A value that is used twice gets both gradients: d/dx sum((x * x) * relu(x)) = 3 x^2 for x > 0.
static void test_adjoints_add_up(void **state)
{
    (void)state;
    struct variables variables;
    struct graph graph;
    struct graph_run run;
    variables_init(&variables);
    graph_init(&graph, &variables, DTYPE_F64);
    struct node *x = graph_input(&graph, "x", DTYPE_F64, SHAPE(2)), *dx;
    struct node *square = GRAPH_NODE(&graph, OP_MUL, NULL, x, x);
    struct node *relu = GRAPH_NODE(&graph, OP_RELU, NULL, x);
    struct node *loss = graph_sum_all(&graph, GRAPH_NODE(&graph, OP_MUL, NULL, square, relu));
    graph_gradients(&graph, loss, &x, 1, &dx);
    graph_output(&graph, "dx", dx);
    run_init(&run, "ref", &graph);
    memcpy(run_feed(&run, "x"), (double[]){2, -3}, 2 * sizeof(double));
    assert_ok(run_step(&run));
    assert_true(run_get(&run, "dx", 0) == 12 && run_get(&run, "dx", 1) == 0);
    run_release(&run);
    graph_release(&graph);
    variables_release(&variables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_float32),
        cmocka_unit_test(test_adjoints_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
