// SPDX-License-Identifier: Apache-2.0
// bench_step.c: the train steps whose speed we promise, on synthetic data: a step's time, and where
// it goes. bench_step MODEL BATCH THREADS STEPS [profile]; MODEL a (mnist_cnn), b (fashion_cnn), c
// (mnist_main). `check` for STEPS compares two steps with the reference backend instead.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/backend.h"
#include "trainer/layers.h"
#include "trainer/rng.h"

struct problem {
    struct variables variables;
    struct graph graph;
    struct net net;
    struct variable *weights[32];
    int weight_count;
};

static struct node *conv(struct net *net, struct node *x, int filters, int size,
                         enum padding padding)
{
    return layer_conv2d(net, x, &(struct conv2d_options){
        .filters = filters, .kernel = {size, size}, .padding = padding,
        .activation = ACTIVATION_RELU});
}

static struct node *pool(struct net *net, struct node *x)
{
    return layer_max_pool2d(net, x, &(struct pool2d_options){.window = {2, 2}});
}

static struct node *dense(struct net *net, struct node *x, int units, enum activation activation)
{
    return layer_dense(net, x, &(struct dense_options){.units = units, .activation = activation});
}

static struct node *build_model(struct net *net, char model, struct node *x)
{
    if (model == 'a') {
        x = pool(net, conv(net, x, 32, 3, PADDING_VALID));
        x = dense(net, layer_flatten(net, x, NULL), 64, ACTIVATION_RELU);
    } else if (model == 'b') {
        x = pool(net, conv(net, x, 32, 3, PADDING_VALID));
        x = pool(net, conv(net, x, 64, 3, PADDING_VALID));
        x = conv(net, x, 64, 3, PADDING_VALID);
        x = dense(net, layer_flatten(net, x, NULL), 64, ACTIVATION_RELU);
    } else {
        x = pool(net, conv(net, x, 32, 5, PADDING_SAME));
        x = pool(net, conv(net, x, 32, 5, PADDING_SAME));
        x = dense(net, layer_flatten(net, x, NULL), 1024, ACTIVATION_RELU);
        x = layer_dropout(net, x, NULL, 0.4);
    }
    return dense(net, x, 10, ACTIVATION_NONE);
}

static struct node *slot(struct graph *graph, struct variable *w, const char *name)
{
    char text[100];
    snprintf(text, sizeof text, "%s/%s", w->name, name);
    struct initializer zeros = {.kind = INIT_ZEROS};
    return graph_variable(graph, variables_get(graph->variables, text, w->dtype, w->shape,
                                               VARIABLE_SLOT, false, zeros));
}

static void build(struct problem *p, char model, int batch)
{
    struct graph *graph = &p->graph;
    variables_init(&p->variables);
    graph_init(graph, &p->variables, DTYPE_F32);
    net_init(&p->net, graph, true, 1);
    struct node *image = graph_input(graph, "image", DTYPE_U8, SHAPE(batch, 28, 28, 1));
    p->net.step = graph_input(graph, "step", DTYPE_I64, shape_scalar());
    p->net.row = graph_input(graph, "row", DTYPE_I64, shape_scalar());
    struct node *x = GRAPH_NODE(graph, OP_CAST, &(struct op_attr){.dtype = DTYPE_F32}, image);
    struct node *logits = build_model(&p->net, model, graph_mul_scalar(graph, x, 1.0 / 255));
    struct node *labels = graph_input(graph, "label", DTYPE_I32, SHAPE(batch));
    struct node *example = graph_input(graph, "weight", DTYPE_F32, SHAPE(batch));
    struct node *lr = graph_input(graph, "lr", DTYPE_F32, shape_scalar());
    struct node *loss = weighted_sum(graph, loss_cross_entropy(graph, logits, labels, 0), example);
    struct node *wrt[32], *gradients[32];
    for (int i = 0; i < p->variables.count; i++) {
        p->weights[p->weight_count++] = p->variables.items[i];
        wrt[i] = graph_variable(graph, p->variables.items[i]);
    }
    graph_gradients(graph, loss, wrt, p->weight_count, gradients);
    graph_output(graph, "loss", loss);
    struct node *correct = metric_correct(graph, logits, labels);
    graph_output(graph, "correct", weighted_sum(graph, correct, example));
    struct op_attr adam = {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7};
    for (int i = 0; i < p->weight_count; i++) {
        GRAPH_NODE(graph, OP_ADAM, &adam, wrt[i], gradients[i], slot(graph, p->weights[i], "m"),
                   slot(graph, p->weights[i], "v"), lr, p->net.step);
    }
}

struct run {
    const struct backend_def *backend;
    struct device *device;
    struct state *state;
    struct exec *exec;
};

static void must(enum status status)
{
    if (status != STATUS_OK) {
        fprintf(stderr, "%s [%s]\n", error_get()->message, error_get()->trail);
        exit(1);
    }
}

static void run_open(struct run *run, const char *backend, struct problem *p, int threads,
                     bool profile)
{
    run->backend = backend_find(backend);
    must(graph_check(&p->graph));
    must(run->backend->open(&(struct device_options){.threads = threads, .profile = profile},
                            &run->device));
    must(run->backend->state_new(run->device, &p->variables, &run->state));
    for (int i = 0; i < p->variables.count; i++) {
        const struct variable *v = p->variables.items[i];
        void *data = mem_alloc((size_t)shape_count(v->shape) * dtype_size(v->dtype));
        variable_initialize(v, 1, data);
        must(run->backend->state_put(run->state, v, data));
        mem_free(data);
    }
    must(run->backend->compile(run->device, &p->graph, run->state, &run->exec));
}

static void run_close(struct run *run)
{
    run->backend->exec_free(run->exec);
    run->backend->state_free(run->state);
    run->backend->close(run->device);
}

struct batch {
    uint8_t *image;
    int64_t step, row;
    int32_t *label;
    float *weight, lr, loss, correct;
};

static void batch_fill(struct batch *b, int count)
{
    *b = (struct batch){.lr = 1e-3f};
    b->image = mem_alloc((size_t)count * 784);
    b->label = MEM_NEW_ARRAY(int32_t, count);
    b->weight = MEM_NEW_ARRAY(float, count);
    for (int i = 0; i < count * 784; i++) {
        uint32_t bits = rng_u32(1, RNG_SYNTHETIC, 0, 0, (uint64_t)i);
        b->image[i] = bits & 1 ? (uint8_t)(bits >> 8) : 0;
    }
    for (int i = 0; i < count; i++) {
        b->label[i] = i % 10;
        b->weight[i] = 1.0f / (float)count;
    }
}

static void step(struct run *run, struct batch *b)
{
    const void *feeds[] = {b->image, &b->step, &b->row, b->label, b->weight, &b->lr};
    void *fetches[] = {&b->loss, &b->correct};
    must(run->backend->run(run->exec, feeds, fetches));
    b->step++;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(struct problem *p, int batch, int threads, int steps, bool profile)
{
    struct run run;
    double start = time_now();
    run_open(&run, "cpu", p, threads, profile);
    struct batch b;
    batch_fill(&b, batch);
    step(&run, &b);
    printf("start to first step %.1f ms, loss %.6f\n", 1e3 * (time_now() - start), (double)b.loss);
    double *seconds = MEM_NEW_ARRAY(double, steps);
    for (int i = 0; i < steps; i++) {
        double t = time_now();
        step(&run, &b);
        seconds[i] = time_now() - t;
    }
    qsort(seconds, (size_t)steps, sizeof *seconds, by_size);
    double median = seconds[steps / 2];
    printf("%d steps: median %.3f ms (%.0f examples/s), best %.3f ms (%.0f), loss %.6f\n", steps,
           1e3 * median, batch / median, 1e3 * seconds[0], batch / seconds[0], (double)b.loss);
    struct text text = {0};
    run.backend->exec_report(run.exec, &text);
    fputs(text_get(&text), stdout);
    text_release(&text);
    run_close(&run);
}

static void check(struct problem *p, int batch, int threads)
{
    struct run run[2];
    struct batch b[2];
    for (int i = 0; i < 2; i++) {
        run_open(&run[i], i ? "cpu" : "ref", p, threads, false);
        batch_fill(&b[i], batch);
        step(&run[i], &b[i]);
    }
    printf("loss %.7f %.7f\n", (double)b[0].loss, (double)b[1].loss);
    for (int i = 0; i < p->variables.count; i++) {
        const struct variable *v = p->variables.items[i];
        int64_t count = shape_count(v->shape);
        float *x[2];
        double difference = 0, size = 0;
        for (int k = 0; k < 2; k++) {
            x[k] = MEM_NEW_ARRAY(float, count);
            must(run[k].backend->state_get(run[k].state, v, x[k]));
        }
        for (int64_t e = 0; e < count; e++) {
            double d = (double)(x[0][e] - x[1][e]);
            difference += d * d;
            size += (double)x[0][e] * (double)x[0][e];
        }
        printf("%-28s relative difference %.2e\n", v->name, sqrt(difference / size));
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "bench_step a|b|c BATCH THREADS STEPS|check [profile]\n");
        return 2;
    }
    static struct problem p;
    int batch = (int)strtol(argv[2], NULL, 10), threads = (int)strtol(argv[3], NULL, 10);
    build(&p, argv[1][0], batch);
    if (strcmp(argv[4], "check") == 0) {
        check(&p, batch, threads);
    } else {
        measure(&p, batch, threads, (int)strtol(argv[4], NULL, 10), argc > 5);
    }
    return 0;
}
