// SPDX-License-Identifier: Apache-2.0
// test_cpu_backend.c: the CPU backend against the reference kernels: every row of op_cases.def,
// fused groups of real networks at odd sizes, with each instruction set this machine has and with
// one and two threads; ties, NaN, and that results depend neither on the run nor on the batch.
#include <math.h>

#include "backend/cpu/cpu_impl.h"
#include "graph_run.h"
#include "op_cases.h"
#include "trainer/layers.h"

// The instruction sets to test: those the machine has.
static int kernel_sets(const struct cpu_kernels *out[3])
{
    int count = 0;
    out[count++] = &cpu_kernels_plain;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        out[count++] = &cpu_kernels_avx2;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        out[count++] = &cpu_kernels_avx512;
    }
    return count;
}

// As run_init, with threads and, on the CPU backend, an instruction set.
static void open_run(struct graph_run *run, const char *backend, struct graph *graph, int threads,
                     const struct cpu_kernels *kernels)
{
    *run = (struct graph_run){.backend = backend_find(backend), .graph = graph};
    assert_non_null(run->backend);
    assert_ok(graph_check(graph));
    assert_ok(run->backend->open(&(struct device_options){.threads = threads}, &run->device));
    if (kernels) {
        run->device->kernels = kernels;
    }
    assert_ok(run->backend->state_new(run->device, graph->variables, &run->state));
    assert_ok(run->backend->compile(run->device, graph, run->state, &run->exec));
    run->feeds = MEM_NEW_ARRAY(void *, graph->input_count + 1);
    run->fetches = MEM_NEW_ARRAY(void *, graph->output_count + 1);
    for (int i = 0; i < graph->input_count; i++) {
        run->feeds[i] = mem_alloc(node_bytes(graph->inputs[i]));
    }
    for (int i = 0; i < graph->output_count; i++) {
        run->fetches[i] = mem_alloc(node_bytes(graph->outputs[i]));
    }
}

// ---- Every op -----------------------------------------------------------------------------------

struct op_result {
    double *value;
    int64_t count;
    double terms;  // products and sums an element
};

// The outputs of a case, and every variable it writes.
static struct op_result run_case(const struct op_case *row, const char *backend, enum dtype real,
                                 int threads, const struct cpu_kernels *kernels)
{
    struct variables variables;
    struct graph graph;
    struct graph_run run;
    struct op_case_input inputs[OP_INPUT_MAX];
    struct node *nodes[OP_INPUT_MAX];
    variables_init(&variables);
    graph_init(&graph, &variables, real);
    int count = op_case_inputs(row, inputs);
    struct node *y = op_case_build(row, &graph, nodes);
    assert_ok(graph_check(&graph));
    graph_output(&graph, "y", y);
    open_run(&run, backend, &graph, threads, kernels);
    for (int i = 0; i < count; i++) {
        if (nodes[i]->op == OP_INPUT) {
            op_case_fill(&inputs[i], i, real, run_feed(&run, nodes[i]->name));
        } else if (nodes[i]->op == OP_VARIABLE) {
            void *data = mem_alloc(node_bytes(nodes[i]));
            op_case_fill(&inputs[i], i, real, data);
            assert_ok(run.backend->state_put(run.state, nodes[i]->variable, data));
            mem_free(data);
        }
    }
    assert_ok(run_step(&run));
    struct op_result result = {.count = shape_count(y->shape)};
    result.terms = node_flops(y) / (double)MAX(result.count, 1);
    int64_t total = result.count;
    for (int i = 0; i < variables.count; i++) {
        total += shape_count(variables.items[i]->shape);
    }
    result.value = MEM_NEW_ARRAY(double, total);
    for (int64_t i = 0; i < result.count; i++) {
        result.value[i] = run_get(&run, "y", i);
    }
    for (int v = 0; v < variables.count; v++) {
        const struct variable *variable = variables.items[v];
        int64_t size = shape_count(variable->shape);
        void *data = mem_alloc((size_t)size * dtype_size(variable->dtype));
        assert_ok(run.backend->state_get(run.state, variable, data));
        for (int64_t i = 0; i < size; i++) {
            result.value[result.count++] = element_get(data, variable->dtype, i);
        }
        mem_free(data);
    }
    run_release(&run);
    graph_release(&graph);
    variables_release(&variables);
    return result;
}

// Inputs are at most 1.5 and so are the terms of sums but for a small factor; a result of n terms
// is off by at most n + 8 roundings (8 for the functions and divisions around the sum) of the
// largest term or result.
static void compare_case(const struct op_case *row, int threads, const struct cpu_kernels *kernels)
{
    char what[160];
    struct op_result exact = run_case(row, "ref", DTYPE_F64, 1, NULL);
    struct op_result ours = run_case(row, "cpu", DTYPE_F32, threads, kernels);
    assert_int_equal(exact.count, ours.count);
    double largest = 2.25;
    for (int64_t i = 0; i < exact.count; i++) {
        largest = fmax(largest, fabs(exact.value[i]));
    }
    for (int64_t i = 0; i < exact.count; i++) {
        double bound = (exact.terms + 8) * 0x1p-24 * largest;
        if (!(fabs(exact.value[i] - ours.value[i]) <= bound)) {
            fail_msg("%s, %s: element %lld is %.9g, expected %.9g +- %.1g",
                     op_case_text(row, what, sizeof what), kernels->name, (long long)i,
                     ours.value[i], exact.value[i], bound);
        }
    }
    mem_free(exact.value);
    mem_free(ours.value);
}

static void test_ops(void **state)
{
    (void)state;
    const struct cpu_kernels *sets[3];
    int set_count = kernel_sets(sets);
    for (int i = 0; i < OP_CASE_COUNT; i++) {
        for (int s = 0; s < set_count; s++) {
            compare_case(&op_cases[i], 1 + s % 2, sets[s]);
        }
    }
}

// ---- Networks -----------------------------------------------------------------------------------

struct network {
    const char *what;
    int rows, size, channels;     // images
    int filters[3], window;       // of the convolutions; 0 ends
    enum padding padding;
    int stride;                   // of the last convolution
    bool pool;
    int threads;
};

static const struct network networks[] = {
    {"first convolution, pooled", 3, 28, 1, {32}, 3, PADDING_VALID, 1, true, 1},
    {"5 x 5 same, pooled", 2, 13, 1, {16, 24}, 5, PADDING_SAME, 1, true, 2},
    {"three channels", 2, 11, 3, {8, 16}, 3, PADDING_SAME, 1, true, 2},
    {"winograd, odd image", 5, 17, 1, {16, 32, 48}, 3, PADDING_VALID, 1, false, 2},
    {"winograd, pooled", 3, 29, 2, {32, 64, 32}, 3, PADDING_SAME, 1, true, 1},
    {"winograd, rows of tiles", 1, 45, 3, {16, 32}, 3, PADDING_SAME, 1, false, 2},
    {"odd channels", 4, 12, 5, {7, 13}, 3, PADDING_SAME, 1, true, 2},
    {"stride", 3, 15, 3, {16, 20}, 3, PADDING_SAME, 2, false, 2},
    {"1 x 1, stride", 2, 9, 8, {24, 40}, 1, PADDING_VALID, 2, false, 1},
    {"7 x 7, stride", 2, 33, 3, {24}, 7, PADDING_SAME, 2, true, 2},
    {"one image", 1, 28, 1, {32, 64}, 3, PADDING_VALID, 1, true, 2},
    {"64 images", 64, 12, 1, {8, 16}, 3, PADDING_VALID, 1, true, 2},
};

struct network_graph {
    struct variables variables;
    struct graph graph;
    struct net net;
};

static void network_build(struct network_graph *g, const struct network *row, bool training)
{
    struct graph *graph = &g->graph;
    variables_init(&g->variables);
    graph_init(graph, &g->variables, DTYPE_F32);
    net_init(&g->net, graph, false, 1);
    struct node *x = graph_input(graph, "x", DTYPE_F32,
                                 SHAPE(row->rows, row->size, row->size, row->channels));
    for (int i = 0; i < 3 && row->filters[i]; i++) {
        bool last = i == 2 || !row->filters[i + 1];
        x = layer_conv2d(&g->net, x, &(struct conv2d_options){
            .filters = row->filters[i], .kernel = {row->window, row->window},
            .stride = {last ? row->stride : 1, last ? row->stride : 1}, .padding = row->padding,
            .activation = ACTIVATION_RELU});
        if (row->pool) {
            x = layer_max_pool2d(&g->net, x, &(struct pool2d_options){.window = {2, 2}});
        }
    }
    x = layer_dense(&g->net, layer_flatten(&g->net, x, NULL),
                    &(struct dense_options){.units = 21, .activation = ACTIVATION_RELU});
    x = layer_dense(&g->net, x, &(struct dense_options){.units = 10});
    graph_output(graph, "logits", x);
    if (!training) {
        return;
    }
    struct node *labels = graph_input(graph, "label", DTYPE_I32, SHAPE(row->rows));
    struct node *loss = graph_sum_all(graph, loss_cross_entropy(graph, x, labels, 0));
    graph_output(graph, "loss", loss);
    struct node *wrt[16], *gradients[16];
    int count = g->variables.count;
    for (int i = 0; i < count; i++) {
        wrt[i] = graph_variable(graph, g->variables.items[i]);
    }
    graph_gradients(graph, loss, wrt, count, gradients);
    for (int i = 0; i < count; i++) {
        graph_output(graph, arena_printf(&graph->arena, "d %s", g->variables.items[i]->name),
                     gradients[i]);
    }
}

static void network_release(struct network_graph *g, struct graph_run *run)
{
    run_release(run);
    net_release(&g->net);
    graph_release(&g->graph);
    variables_release(&g->variables);
}

static void network_fill(struct graph_run *run, const struct variables *variables)
{
    for (int i = 0; i < variables->count; i++) {
        const struct variable *v = variables->items[i];
        int64_t count = shape_count(v->shape);
        float *data = MEM_NEW_ARRAY(float, count);
        variable_initialize(v, 5, data);
        for (int64_t k = 0; k < count && v->shape.rank == 1; k++) {
            data[k] = (float)(k % 5 - 2) / 16;  // biases that are not zero
        }
        assert_ok(run->backend->state_put(run->state, v, data));
        mem_free(data);
    }
    for (int i = 0; i < run->graph->input_count; i++) {
        const struct node *input = run->graph->inputs[i];
        for (int64_t k = 0; k < shape_count(input->shape); k++) {
            uint32_t bits = rng_u32(9, RNG_SYNTHETIC, 0, (uint64_t)i, (uint64_t)k);
            element_set(run->feeds[i], input->dtype, k,
                        input->dtype == DTYPE_I32 ? bits % 10 : (double)rng_unit(bits));
        }
    }
}

// Relative difference in the mean-square norm.
static double difference(const float *a, const float *b, int64_t count)
{
    double d = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        d += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    return sqrt(d / fmax(size, 1e-30));
}

// Roundings of 2^-24 add up like a random walk: over the terms of a sum (at most 10^4 here, factor
// 100 / sqrt(3)) on every layer of the way there and back (4 layers, factor 2); Winograd's
// transforms multiply the error of a sum by some 5 (measured by Lavin and Gray, and here). 5e-5
// holds them all and no wrong tap, channel or border does: one of 10^3 terms wrong is 3e-2.
#define NETWORK_BOUND 5e-5

static void compare_network(const struct network *row, const struct cpu_kernels *kernels)
{
    struct network_graph g[2];
    struct graph_run run[2];
    for (int i = 0; i < 2; i++) {
        network_build(&g[i], row, true);
        open_run(&run[i], i ? "cpu" : "ref", &g[i].graph, i ? row->threads : 1, i ? kernels : NULL);
        network_fill(&run[i], &g[i].variables);
        assert_ok(run_step(&run[i]));
    }
    for (int i = 0; i < g[0].graph.output_count; i++) {
        int64_t count = shape_count(g[0].graph.outputs[i]->shape);
        double d = difference(run[1].fetches[i], run[0].fetches[i], count);
        if (!(d < NETWORK_BOUND)) {
            fail_msg("%s, %s: %s differs by %.2g", row->what, kernels->name,
                     g[0].graph.output_names[i], d);
        }
    }
    for (int i = 0; i < 2; i++) {
        network_release(&g[i], &run[i]);
    }
}

static void test_networks(void **state)
{
    (void)state;
    const struct cpu_kernels *sets[3];
    int set_count = kernel_sets(sets);
    for (size_t i = 0; i < ARRAY_COUNT(networks); i++) {
        for (int s = 0; s < set_count; s++) {
            compare_network(&networks[i], sets[s]);
        }
    }
}

// Two runs give the same bits.
static void test_same_again(void **state)
{
    (void)state;
    for (size_t n = 0; n < ARRAY_COUNT(networks); n++) {
        struct network_graph g;
        struct graph_run run;
        network_build(&g, &networks[n], true);
        open_run(&run, "cpu", &g.graph, 2, NULL);
        network_fill(&run, &g.variables);
        assert_ok(run_step(&run));
        void *first[32];
        for (int i = 0; i < g.graph.output_count; i++) {
            size_t size = node_bytes(g.graph.outputs[i]);
            first[i] = mem_alloc(size);
            memcpy(first[i], run.fetches[i], size);
        }
        for (int again = 0; again < 5; again++) {
            assert_ok(run_step(&run));
            for (int i = 0; i < g.graph.output_count; i++) {
                assert_memory_equal(first[i], run.fetches[i], node_bytes(g.graph.outputs[i]));
            }
        }
        for (int i = 0; i < g.graph.output_count; i++) {
            mem_free(first[i]);
        }
        network_release(&g, &run);
    }
}

// An image's result has the same bits alone and in a batch.
static void test_batch_does_not_matter(void **state)
{
    (void)state;
    for (size_t n = 0; n < ARRAY_COUNT(networks); n++) {
        struct network row[2] = {networks[n], networks[n]};
        row[0].rows = 7;
        row[1].rows = 1;
        struct network_graph g[2];
        struct graph_run run[2];
        for (int i = 0; i < 2; i++) {
            network_build(&g[i], &row[i], false);
            open_run(&run[i], "cpu", &g[i].graph, 2, NULL);
            network_fill(&run[i], &g[i].variables);
        }
        assert_ok(run_step(&run[0]));
        size_t image = node_bytes(g[1].graph.inputs[0]), result = node_bytes(g[1].graph.outputs[0]);
        for (size_t k = 0; k < 7; k++) {
            memcpy(run[1].feeds[0], (char *)run[0].feeds[0] + k * image, image);
            assert_ok(run_step(&run[1]));
            assert_memory_equal(run[1].fetches[0], (char *)run[0].fetches[0] + k * result, result);
        }
        network_release(&g[0], &run[0]);
        network_release(&g[1], &run[1]);
    }
}

// Two pooled convolutions of small integers: every sum is exact, many windows tie, and the
// gradients tell which element won. All bits must agree with the reference kernels.
static void ties_build(struct network_graph *g)
{
    struct graph *graph = &g->graph;
    variables_init(&g->variables);
    graph_init(graph, &g->variables, DTYPE_F32);
    net_init(&g->net, graph, false, 1);
    struct node *x = graph_input(graph, "x", DTYPE_F32, SHAPE(3, 15, 14, 1));
    for (int i = 0; i < 2; i++) {
        x = layer_conv2d(&g->net, x, &(struct conv2d_options){
            .filters = 8 << i, .kernel = {3, 3}, .padding = PADDING_SAME,
            .activation = ACTIVATION_RELU});
        x = layer_max_pool2d(&g->net, x, &(struct pool2d_options){.window = {2, 2}});
    }
    struct node *weight = graph_input(graph, "weight", DTYPE_F32, x->shape);
    struct node *loss = graph_sum_all(graph, GRAPH_NODE(graph, OP_MUL, NULL, x, weight));
    graph_output(graph, "loss", loss);
    struct node *wrt[4], *gradients[4];
    for (int i = 0; i < 4; i++) {
        wrt[i] = graph_variable(graph, g->variables.items[i]);
    }
    graph_gradients(graph, loss, wrt, 4, gradients);
    for (int i = 0; i < 4; i++) {
        graph_output(graph, arena_printf(&graph->arena, "d%d", i), gradients[i]);
    }
}

static void fill_integers(float *data, int64_t count, uint32_t salt, int range)
{
    for (int64_t i = 0; i < count; i++) {
        data[i] = (float)((int)(rng_u32(3, RNG_SYNTHETIC, salt, 0, (uint64_t)i) % (uint32_t)range) -
                          range / 2);
    }
}

static void test_ties(void **state)
{
    (void)state;
    const struct cpu_kernels *sets[3];
    int set_count = kernel_sets(sets);
    for (int s = 0; s < set_count; s++) {
        struct network_graph g[2];
        struct graph_run run[2];
        for (int i = 0; i < 2; i++) {
            ties_build(&g[i]);
            open_run(&run[i], i ? "cpu" : "ref", &g[i].graph, 1, i ? sets[s] : NULL);
            for (int v = 0; v < 4; v++) {
                const struct variable *w = g[i].variables.items[v];
                float *data = MEM_NEW_ARRAY(float, shape_count(w->shape));
                fill_integers(data, shape_count(w->shape), (uint32_t)v, 3);
                assert_ok(run[i].backend->state_put(run[i].state, w, data));
                mem_free(data);
            }
            for (int f = 0; f < 2; f++) {
                fill_integers(run[i].feeds[f], shape_count(g[i].graph.inputs[f]->shape),
                              (uint32_t)(10 + f), 3);
            }
            assert_ok(run_step(&run[i]));
        }
        for (int o = 0; o < g[0].graph.output_count; o++) {
            for (int64_t k = 0; k < shape_count(g[0].graph.outputs[o]->shape); k++) {
                assert_true(((float *)run[0].fetches[o])[k] == ((float *)run[1].fetches[o])[k]);
            }
        }
        network_release(&g[0], &run[0]);
        network_release(&g[1], &run[1]);
    }
}

// A NaN anywhere in an image reaches its result, and only its.
static void test_nan_spreads(void **state)
{
    (void)state;
    for (size_t n = 0; n < ARRAY_COUNT(networks); n++) {
        struct network row = networks[n];
        row.rows = 2;
        struct network_graph g;
        struct graph_run run;
        network_build(&g, &row, false);
        open_run(&run, "cpu", &g.graph, 2, NULL);
        network_fill(&run, &g.variables);
        float *x = run.feeds[0];
        int64_t middle = (row.size / 2 * row.size + row.size / 2) * row.channels;
        x[row.stride == 1 ? middle : 0] = NAN;  // a stride may pass over the middle
        assert_ok(run_step(&run));
        for (int64_t k = 0; k < 10; k++) {
            assert_true(run_get(&run, "logits", k) != run_get(&run, "logits", k));
            assert_true(run_get(&run, "logits", 10 + k) == run_get(&run, "logits", 10 + k));
        }
        network_release(&g, &run);
    }
}

// The networks we promise to be fast use no reference kernel.
static void test_no_fallback(void **state)
{
    (void)state;
    for (size_t n = 0; n < ARRAY_COUNT(networks); n++) {
        struct network_graph g;
        struct graph_run run;
        struct text text = {0};
        network_build(&g, &networks[n], true);
        open_run(&run, "cpu", &g.graph, 1, NULL);
        network_fill(&run, &g.variables);
        run.backend->exec_report(run.exec, &text);
        assert_non_null(strstr(text_get(&text), ", 0 on reference kernels"));
        text_release(&text);
        network_release(&g, &run);
    }
}

// A big gradient made inside its update gives the bits of one that exists as a whole. Sizes are no
// multiple of any tile.
enum { GRAD_ROWS = 1030, GRAD_COLS = 70, GRAD_DEPTH = 9 };

static void update_weights(bool whole, int threads, float *w)
{
    static const char *const names[] = {"w", "m", "v"};
    struct variables variables;
    struct graph graph;
    struct graph_run run;
    struct node *in[6] = {NULL};
    const int order[] = {0, 2, 3};  // inputs of adam: w, dw, m, v, lr, step
    struct shape shape = SHAPE(GRAD_ROWS, GRAD_COLS);
    variables_init(&variables);
    graph_init(&graph, &variables, DTYPE_F32);
    struct node *x = graph_input(&graph, "x", DTYPE_F32, SHAPE(GRAD_DEPTH, GRAD_ROWS));
    struct node *dy = graph_input(&graph, "dy", DTYPE_F32, SHAPE(GRAD_DEPTH, GRAD_COLS));
    struct op_attr product = {.transpose_a = true};
    struct op_attr adam = {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7};
    in[1] = GRAPH_NODE(&graph, OP_MATMUL, &product, x, dy);
    for (int i = 0; i < 3; i++) {
        in[order[i]] = graph_variable(
            &graph, variables_get(&variables, names[i], DTYPE_F32, shape, VARIABLE_WEIGHT, true,
                                  (struct initializer){.kind = INIT_ZEROS}));
    }
    in[4] = graph_scalar(&graph, DTYPE_F32, 1e-3);
    in[5] = graph_scalar(&graph, DTYPE_I64, 3);
    graph_node(&graph, OP_ADAM, &adam, 6, in);
    if (whole) {
        graph_output(&graph, "gradient", in[1]);
    }
    open_run(&run, "cpu", &graph, threads, NULL);
    for (int i = 0; i < GRAD_DEPTH * GRAD_ROWS; i++) {
        ((float *)run_feed(&run, "x"))[i] = (float)(i * 7 % 31 - 15) / 16;
    }
    for (int i = 0; i < GRAD_DEPTH * GRAD_COLS; i++) {
        ((float *)run_feed(&run, "dy"))[i] = (float)(i * 5 % 29 - 14) / 32;
    }
    for (int step = 0; step < 2; step++) {
        assert_ok(run_step(&run));
    }
    const char *last = run.exec->steps[run.exec->step_count - 1].kernel;
    assert_string_equal(last, whole ? "update" : "gemm+update");
    for (int i = 0; i < 3; i++) {
        assert_ok(run.backend->state_get(run.state, variables_find(&variables, names[i]),
                                         w + i * GRAD_ROWS * GRAD_COLS));
    }
    run_release(&run);
    graph_release(&graph);
    variables_release(&variables);
}

static void test_update_with_its_gradient(void **state)
{
    (void)state;
    size_t count = (size_t)3 * GRAD_ROWS * GRAD_COLS;
    float *expected = MEM_NEW_ARRAY(float, count), *got = MEM_NEW_ARRAY(float, count);
    update_weights(true, 1, expected);
    assert_true(expected[0] != 0);
    for (int threads = 1; threads <= 3; threads++) {
        update_weights(false, threads, got);
        assert_memory_equal(got, expected, count * sizeof *got);
    }
    mem_free(expected);
    mem_free(got);
}

// What has no kernel runs on the reference kernel, and the report says so.
static void test_fallback_is_open(void **state)
{
    (void)state;
    struct variables variables;
    struct graph graph;
    struct graph_run run;
    struct text text = {0};
    variables_init(&variables);
    graph_init(&graph, &variables, DTYPE_F32);
    struct node *x = graph_input(&graph, "x", DTYPE_F32, SHAPE(2, 3));
    struct op_attr attr = {.axes = {1, 0}, .axis_count = 2};
    graph_output(&graph, "y", GRAPH_NODE(&graph, OP_TRANSPOSE, &attr, x));
    open_run(&run, "cpu", &graph, 1, NULL);
    for (int i = 0; i < 6; i++) {
        ((float *)run_feed(&run, "x"))[i] = (float)i;
    }
    assert_ok(run_step(&run));
    assert_true(run_get(&run, "y", 1) == 3);
    run.backend->exec_report(run.exec, &text);
    assert_non_null(strstr(text_get(&text), "1 on reference kernels"));
    assert_non_null(strstr(text_get(&text), "transpose"));
    text_release(&text);
    run_release(&run);
    graph_release(&graph);
    variables_release(&variables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops),          cmocka_unit_test(test_networks),
        cmocka_unit_test(test_same_again),   cmocka_unit_test(test_batch_does_not_matter),
        cmocka_unit_test(test_ties),         cmocka_unit_test(test_nan_spreads),
        cmocka_unit_test(test_no_fallback),  cmocka_unit_test(test_fallback_is_open),
        cmocka_unit_test(test_update_with_its_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
