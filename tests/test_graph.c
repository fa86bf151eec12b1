// SPDX-License-Identifier: Apache-2.0
// test_graph.c: building, failing, differentiating, verifying, planning; initial values; replicas.
#include "test.h"

#include <math.h>

#include "trainer/backend.h"
#include "trainer/cluster.h"
#include "trainer/graph.h"
#include "trainer/thread.h"

struct fixture {
    struct variables variables;
    struct graph graph;
};

static void setup(struct fixture *f)
{
    variables_init(&f->variables);
    graph_init(&f->graph, &f->variables, DTYPE_F64);
}

static void teardown(struct fixture *f)
{
    graph_release(&f->graph);
    variables_release(&f->variables);
}

static struct variable *weight(struct fixture *f, const char *name, struct shape shape)
{
    return variables_get(&f->variables, name, DTYPE_F64, shape, VARIABLE_WEIGHT, true,
                         (struct initializer){.kind = INIT_ZEROS});
}

// The first failure is kept, with the layer's name; later builder calls do nothing.
static void test_sticky_error(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    f.graph.layer = "dense_1";
    struct node *a = graph_input(&f.graph, "a", DTYPE_F64, SHAPE(4, 3));
    struct node *b = graph_input(&f.graph, "b", DTYPE_F64, SHAPE(5, 2));
    struct node *c = GRAPH_NODE(&f.graph, OP_MATMUL, NULL, a, b);
    assert_null(c);
    assert_null(GRAPH_NODE(&f.graph, OP_RELU, NULL, c));
    assert_fails(graph_check(&f.graph), ERR_MISMATCH, "layer dense_1: matmul");
    assert_non_null(strstr(error_get()->message, "(4, 3)"));
    assert_non_null(strstr(error_get()->message, "(5, 2)"));
    teardown(&f);
}

// d/dw of sum((x w)^2) by the graph against the formula 2 x' x w.
static void test_gradient(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct variable *w = weight(&f, "w", SHAPE(2, 1));
    struct node *x = graph_input(&f.graph, "x", DTYPE_F64, SHAPE(3, 2));
    struct node *wn = graph_variable(&f.graph, w);
    struct node *y = GRAPH_NODE(&f.graph, OP_MATMUL, NULL, x, wn);
    struct node *loss = graph_sum_all(&f.graph, GRAPH_NODE(&f.graph, OP_SQUARE, NULL, y));
    struct node *dw;
    graph_gradients(&f.graph, loss, &wn, 1, &dw);
    graph_output(&f.graph, "dw", dw);
    assert_ok(graph_check(&f.graph));
    const struct backend_def *ref = backend_find("ref");
    struct device *device;
    struct state *values;
    struct exec *exec;
    assert_ok(ref->open(&(struct device_options){.threads = 1}, &device));
    assert_ok(ref->state_new(device, &f.variables, &values));
    assert_ok(ref->state_put(values, w, (double[]){0.5, -2}));
    assert_ok(ref->compile(device, &f.graph, values, &exec));
    double in[6] = {1, 2, 3, 4, 5, 6}, out[2];
    assert_ok(ref->run(exec, (const void *[]){in}, (void *[]){out}));
    // x w = (-3.5, -6.5, -9.5); 2 x' (x w)
    assert_true(fabs(out[0] - 2 * (1 * -3.5 + 3 * -6.5 + 5 * -9.5)) < 1e-12);
    assert_true(fabs(out[1] - 2 * (2 * -3.5 + 4 * -6.5 + 6 * -9.5)) < 1e-12);
    ref->exec_free(exec);
    ref->state_free(values);
    ref->close(device);
    teardown(&f);
}

static void test_verify_and_dead_code(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct node *w = graph_variable(&f.graph, weight(&f, "w", SHAPE(2)));
    struct node *lr = graph_scalar(&f.graph, DTYPE_F64, 0.1);
    struct node *unused = GRAPH_NODE(&f.graph, OP_EXP, NULL, w);
    struct node *dw = GRAPH_NODE(&f.graph, OP_NEG, NULL, w);
    GRAPH_NODE(&f.graph, OP_SGD, NULL, w, dw, lr);
    assert_ok(graph_verify(&f.graph));
    bool *live = graph_live(&f.graph);
    assert_true(live[dw->id] && live[lr->id]);
    assert_false(live[unused->id]);
    mem_free(live);
    graph_output(&f.graph, "late", GRAPH_NODE(&f.graph, OP_NEG, NULL, w));
    assert_fails(graph_verify(&f.graph), ERR_MISMATCH, "reads variable w after it was written");
    teardown(&f);
}

static void test_fold_constants(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct node *two = graph_scalar(&f.graph, DTYPE_F64, 2);
    struct node *four = GRAPH_NODE(&f.graph, OP_MUL, NULL, two, two);
    struct node *x = graph_input(&f.graph, "x", DTYPE_F64, SHAPE(3));
    struct node *y = GRAPH_NODE(&f.graph, OP_MUL, NULL, x, four);
    graph_output(&f.graph, "y", y);
    assert_ok(graph_fold_constants(&f.graph));
    assert_int_equal(four->op, OP_CONST);
    assert_true(*(double *)four->value == 4);
    assert_int_equal(y->op, OP_MUL);
    teardown(&f);
}

// No two blocks that live at once overlap, and the slab is not wasteful: against the peak of live bytes.
static void test_plan(void **state)
{
    (void)state;
    enum { COUNT = 200 };
    struct plan_item items[COUNT];
    uint32_t seed = 1;
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        items[i] = (struct plan_item){.first = i, .last = i + (int)(seed >> 28),
                                      .size = (seed >> 8) % 5000};
    }
    size_t slab = plan_place(items, COUNT), peak = 0;
    for (int t = 0; t < COUNT; t++) {
        size_t alive = 0;
        for (int i = 0; i < COUNT; i++) {
            alive += items[i].first <= t && t <= items[i].last ? items[i].size : 0;
        }
        peak = MAX(peak, alive);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(items[i].size ? items[i].offset % MEM_ALIGN : 0, 0);
        assert_true(!items[i].size || items[i].offset + items[i].size <= slab);
        for (int k = 0; k < i; k++) {
            bool together = items[k].first <= items[i].last && items[i].first <= items[k].last;
            bool apart = items[k].offset + items[k].size <= items[i].offset ||
                         items[i].offset + items[i].size <= items[k].offset;
            assert_true(!together || apart || !items[i].size || !items[k].size);
        }
    }
    assert_true(slab >= peak && slab < peak * 3 / 2);
}

static void test_initial_values(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    enum { COUNT = 20000 };
    struct variable *v = variables_get(
        &f.variables, "conv2d/kernel", DTYPE_F64, SHAPE(COUNT), VARIABLE_WEIGHT, true,
        (struct initializer){.kind = INIT_GLOROT_UNIFORM, .fan_in = 100, .fan_out = 50});
    static double a[COUNT], b[COUNT];
    double limit = sqrt(6.0 / 150), sum = 0, squares = 0;
    variable_initialize(v, 7, a);
    variable_initialize(v, 7, b);
    assert_memory_equal(a, b, sizeof a);
    variable_initialize(v, 8, b);
    assert_memory_not_equal(a, b, sizeof a);
    for (int i = 0; i < COUNT; i++) {
        assert_true(fabs(a[i]) <= limit);
        sum += a[i];
        squares += a[i] * a[i];
    }
    // Five standard errors of the mean and of the variance of a uniform distribution.
    assert_true(fabs(sum / COUNT) < 5 * limit / sqrt(3.0 * COUNT));
    assert_true(fabs(squares / COUNT / (limit * limit / 3) - 1) < 5 * sqrt(0.8 / COUNT));
    teardown(&f);
}

struct member {
    const struct collective *collective;
    float data[1000];
    float scalar;
};

static enum status reduce_member(void *argument)
{
    struct member *member = argument;
    void *data[] = {member->data, &member->scalar};
    int64_t sizes[] = {1000, 1};
    return member->collective->all_reduce(member->collective, 2, data, sizes, DTYPE_F32);
}

// Integers: the sum is exact in any order; all ranks get the same bits.
static void test_all_reduce(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    struct replica_group *group = replica_group_new(RANKS, 10);
    static struct member members[RANKS];
    struct thread *threads[RANKS];
    for (int r = 0; r < RANKS; r++) {
        members[r].collective = replica_group_member(group, r);
        members[r].scalar = (float)(r + 1);
        for (int i = 0; i < 1000; i++) {
            members[r].data[i] = (float)(i * (r + 1));
        }
    }
    for (int r = 0; r < RANKS; r++) {
        assert_ok(thread_start(reduce_member, &members[r], "rank", &threads[r]));
    }
    for (int r = 0; r < RANKS; r++) {
        assert_ok(thread_join(threads[r]));
    }
    for (int r = 0; r < RANKS; r++) {
        assert_true(members[r].scalar == 6);
        for (int i = 0; i < 1000; i++) {
            assert_true(members[r].data[i] == (float)(6 * i));
        }
    }
    replica_group_free(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sticky_error),         cmocka_unit_test(test_gradient),
        cmocka_unit_test(test_verify_and_dead_code), cmocka_unit_test(test_fold_constants),
        cmocka_unit_test(test_plan),                 cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_all_reduce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
