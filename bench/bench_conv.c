// SPDX-License-Identifier: Apache-2.0
// bench_conv.c: forward, gradient by x and gradient by w of the convolutions of ResNet-50 and
// VGG16, one line each: GFLOP/s by the definition's count. bench_conv BATCH THREADS ROUNDS.
#include <stdio.h>
#include <stdlib.h>

#include "trainer/backend.h"
#include "trainer/rng.h"

static const struct shape_row {
    int size, in, out, window, stride;
} shapes[] = {
    {224, 3, 64, 7, 2},  {56, 64, 64, 1, 1},    {56, 64, 64, 3, 1},    {56, 64, 256, 1, 1},
    {56, 128, 128, 3, 2}, {28, 128, 128, 3, 1}, {28, 512, 128, 1, 1}, {14, 256, 256, 3, 1},
    {14, 1024, 256, 1, 1}, {7, 512, 512, 3, 1}, {7, 512, 2048, 1, 1}, {224, 64, 64, 3, 1},
    {112, 128, 128, 3, 1},
};

static void must(enum status status)
{
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", error_get()->message);
        exit(1);
    }
}

static void measure(const struct shape_row *row, enum op op, int batch, int threads, int rounds)
{
    struct variables variables;
    struct graph graph;
    variables_init(&variables);
    graph_init(&graph, &variables, DTYPE_F32);
    int pad = (row->window - row->stride + (row->window > 1 ? 0 : row->stride - 1)) / 2;
    int64_t out = (row->size + row->stride - 1) / row->stride;
    struct op_attr attr = {.window = {row->window, row->window},
                           .stride = {row->stride, row->stride}, .dilation = {1, 1}, .groups = 1,
                           .pad_before = {pad, pad}};
    for (int i = 0; i < 2; i++) {
        attr.pad_after[i] = (int)((out - 1) * row->stride + row->window - row->size - pad);
    }
    struct shape x = SHAPE(batch, row->size, row->size, row->in);
    struct shape y = SHAPE(batch, out, out, row->out);
    struct shape w = SHAPE(row->window, row->window, row->in, row->out);
    struct node *a = graph_input(&graph, "a", DTYPE_F32, op == OP_CONV2D_DX ? y : x);
    struct node *b = graph_input(&graph, "b", DTYPE_F32, op == OP_CONV2D_DW ? y : w);
    attr.shape = op == OP_CONV2D_DX ? x : w;
    struct node *result = GRAPH_NODE(&graph, op, &attr, a, b);
    graph_output(&graph, "y", result);
    must(graph_check(&graph));
    const struct backend_def *cpu = backend_find("cpu");
    struct device *device;
    struct state *state;
    struct exec *exec;
    must(cpu->open(&(struct device_options){.threads = threads}, &device));
    must(cpu->state_new(device, &variables, &state));
    must(cpu->compile(device, &graph, state, &exec));
    const void *feeds[2];
    for (int i = 0; i < 2; i++) {
        int64_t count = shape_count(graph.inputs[i]->shape);
        float *data = MEM_NEW_ARRAY(float, count);
        for (int64_t k = 0; k < count; k++) {
            data[k] = rng_unit(rng_u32(1, RNG_SYNTHETIC, (uint32_t)i, 0, (uint64_t)k)) - 0.5f;
        }
        feeds[i] = data;
    }
    void *fetches[1] = {NULL};
    double best = 1e9;
    for (int i = 0; i < rounds; i++) {
        double start = time_now();
        must(cpu->run(exec, feeds, fetches));
        best = time_now() - start < best ? time_now() - start : best;
    }
    printf(" %8.1f", 1e-9 * node_flops(result) / best);
    for (int i = 0; i < 2; i++) {
        mem_free((void *)(uintptr_t)feeds[i]);
    }
    cpu->exec_free(exec);
    cpu->state_free(state);
    cpu->close(device);
    graph_release(&graph);
    variables_release(&variables);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "bench_conv BATCH THREADS ROUNDS\n");
        return 2;
    }
    printf("size    C    K  R stride   forward       dx       dw   GFLOP/s\n");
    for (size_t i = 0; i < ARRAY_COUNT(shapes); i++) {
        const struct shape_row *row = &shapes[i];
        printf("%4d %4d %4d %2d %6d ", row->size, row->in, row->out, row->window, row->stride);
        static const enum op ops[] = {OP_CONV2D, OP_CONV2D_DX, OP_CONV2D_DW};
        for (int o = 0; o < 3; o++) {
            measure(row, ops[o], (int)strtol(argv[1], NULL, 10), (int)strtol(argv[2], NULL, 10),
                    (int)strtol(argv[3], NULL, 10));
            fflush(stdout);
        }
        printf("\n");
    }
    return 0;
}
