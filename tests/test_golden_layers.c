// SPDX-License-Identifier: Apache-2.0
// test_golden_layers.c: outputs and gradients of Keras' layers, written by TensorFlow in float64,
// against the same layers put together from ops: float64 and float32, on the reference backend.
#include <math.h>

#include "graph_run.h"
#include "trainer/file.h"
#include "trainer/io.h"

// One tensor of a case: "x", "dw", ...
struct golden {
    char role[32];
    enum dtype dtype;
    struct shape shape;
    void *data;
    struct node *node;  // for what the layer reads
};

enum { ROLE_MAX = 32 };
struct layer_case {
    char layer[32], name[32], attributes[160];
    struct golden tensors[ROLE_MAX];
    int count;
    struct variables variables;
    struct graph graph;
    struct graph_run run;
};

// ---- Reading the cases --------------------------------------------------------------------------

static struct golden *find(struct layer_case *c, const char *role)
{
    for (int i = 0; i < c->count; i++) {
        if (strcmp(c->tensors[i].role, role) == 0) {
            return &c->tensors[i];
        }
    }
    return NULL;
}

static struct node *in(struct layer_case *c, const char *role)
{
    struct golden *golden = find(c, role);
    if (!golden) {
        fail_msg("%s %s: no tensor %s", c->layer, c->name, role);
    }
    return golden->node;
}

static bool has(const struct layer_case *c, const char *attribute)
{
    return strstr(c->attributes, attribute) != NULL;
}

// The numbers behind "name=".
static void numbers(const struct layer_case *c, const char *name, double *out, int count)
{
    char key[32];
    snprintf(key, sizeof key, "%s=", name);
    const char *at = strstr(c->attributes, key);
    if (!at) {
        fail_msg("%s %s: no attribute %s in '%s'", c->layer, c->name, name, c->attributes);
    }
    char *end = (char *)(uintptr_t)at + strlen(key);
    for (int i = 0; i < count; i++) {
        out[i] = strtod(end + (i > 0), &end);
    }
}

static void pair(const struct layer_case *c, const char *name, int *out)
{
    double value[2];
    numbers(c, name, value, 2);
    out[0] = (int)value[0];
    out[1] = (int)value[1];
}

// ---- The layers as ops --------------------------------------------------------------------------

#define N(id, ...) GRAPH_NODE(&c->graph, OP_##id, NULL, __VA_ARGS__)
#define A(id, attr, ...) GRAPH_NODE(&c->graph, OP_##id, attr, __VA_ARGS__)
#define ATTR(...) (&(struct op_attr){__VA_ARGS__})

static struct node *number(struct layer_case *c, double value)
{
    return graph_scalar(&c->graph, c->graph.real, value);
}

static struct node *reshape(struct layer_case *c, struct node *x, struct shape shape)
{
    return A(RESHAPE, ATTR(.shape = shape), x);
}

// TensorFlow's "same": ceil(size / stride) outputs, the odd element of padding goes after.
static void resolve_padding(const struct layer_case *c, const struct node *x, struct op_attr *attr)
{
    for (int i = 0; i < 2 && has(c, "pad=same"); i++) {
        int size = (int)x->shape.dim[1 + i], reach = (attr->window[i] - 1) * attr->dilation[i] + 1;
        int total = (CEIL_DIV(size, attr->stride[i]) - 1) * attr->stride[i] + reach - size;
        attr->pad_before[i] = MAX(total, 0) / 2;
        attr->pad_after[i] = MAX(total, 0) - attr->pad_before[i];
    }
}

static struct node *build_conv2d(struct layer_case *c)
{
    struct node *x = in(c, "x"), *w = in(c, "w");
    struct op_attr attr = {.groups = (int)(x->shape.dim[3] / w->shape.dim[2])};
    pair(c, "stride", attr.stride);
    pair(c, "dilation", attr.dilation);
    attr.window[0] = (int)w->shape.dim[0];
    attr.window[1] = (int)w->shape.dim[1];
    resolve_padding(c, x, &attr);
    struct node *y = GRAPH_NODE(&c->graph, OP_CONV2D, &attr, x, w);
    return find(c, "b") ? N(ADD, y, in(c, "b")) : y;
}

static struct node *pool(struct layer_case *c, enum op op)
{
    struct node *x = in(c, "x");
    struct op_attr attr = {.dilation = {1, 1}};
    pair(c, "window", attr.window);
    pair(c, "stride", attr.stride);
    resolve_padding(c, x, &attr);
    return GRAPH_NODE(&c->graph, op, &attr, x);
}

static struct node *build_max_pool(struct layer_case *c)
{
    return pool(c, OP_MAX_POOL);
}

static struct node *build_avg_pool(struct layer_case *c)
{
    return pool(c, OP_AVG_POOL);
}

static struct node *build_global_avg_pool(struct layer_case *c)
{
    struct node *x = in(c, "x");
    struct node *sum = A(REDUCE_SUM, ATTR(.axes = {1, 2}, .axis_count = 2), x);
    return N(DIV, sum, number(c, (double)(x->shape.dim[1] * x->shape.dim[2])));
}

static struct node *row(struct layer_case *c, struct node *stats, int i)
{
    int64_t channels = stats->shape.dim[1];
    struct node *one = A(SLICE, ATTR(.start = {i, 0}, .shape = SHAPE(1, channels)), stats);
    return reshape(c, one, SHAPE(channels));
}

// old + (new - old) * share
static void moving(struct layer_case *c, const char *name, const char *old, struct node *value,
                   double share)
{
    struct node *change = N(SUB, value, in(c, old));
    graph_output(&c->graph, name, N(ADD, in(c, old), N(MUL, change, number(c, share))));
}

static struct node *build_batch_norm(struct layer_case *c)
{
    struct node *x = in(c, "x"), *stats;
    int64_t channels = x->shape.dim[x->shape.rank - 1];
    double momentum, epsilon;
    numbers(c, "momentum", &momentum, 1);
    numbers(c, "epsilon", &epsilon, 1);
    bool training = has(c, "training=1");
    if (training) {
        stats = N(BATCH_NORM_STATS, x);
        struct node *mean = row(c, stats, 0), *variance = row(c, stats, 1);
        double share = (float)(1 - momentum);  // Keras holds it as float32, also in float64
        moving(c, "new_moving_mean", "moving_mean", mean, share);
        moving(c, "new_moving_var", "moving_var", variance, share);
        if (find(c, "new_moving_var_fused")) {  // keeps the unbiased variance; momentum is exact
            double n = (double)(shape_count(x->shape) / channels);
            struct node *unbiased = N(MUL, variance, number(c, n / (n - 1)));
            moving(c, "new_moving_var_fused", "moving_var", unbiased, 1 - momentum);
        }
    } else {
        stats = A(CONCAT, ATTR(.axes = {0}), reshape(c, in(c, "moving_mean"), SHAPE(1, channels)),
                  reshape(c, in(c, "moving_var"), SHAPE(1, channels)));
    }
    return A(BATCH_NORM, ATTR(.epsilon = epsilon, .batch_stats = training), x, stats,
             in(c, "gamma"), in(c, "beta"));
}

static struct node *mean_last(struct layer_case *c, struct node *x)
{
    int last = x->shape.rank - 1;
    struct node *sum =
        A(REDUCE_SUM, ATTR(.axes = {last}, .axis_count = 1, .keep_dims = true), x);
    return N(DIV, sum, number(c, (double)x->shape.dim[last]));
}

static struct node *build_layer_norm(struct layer_case *c)
{
    struct node *x = in(c, "x");
    double epsilon;
    numbers(c, "epsilon", &epsilon, 1);
    struct node *off = N(SUB, x, mean_last(c, x));
    struct node *variance = mean_last(c, N(SQUARE, off));
    struct node *scale = N(RSQRT, N(ADD, variance, number(c, epsilon)));
    return N(ADD, N(MUL, N(MUL, off, scale), in(c, "gamma")), in(c, "beta"));
}

// x (..., I) times w (I, ...) read as (I, O): (rows, O)
static struct node *product(struct layer_case *c, struct node *x, struct node *w, int64_t inputs)
{
    int64_t rows = shape_count(x->shape) / inputs, outputs = shape_count(w->shape) / inputs;
    return N(MATMUL, reshape(c, x, SHAPE(rows, inputs)), reshape(c, w, SHAPE(inputs, outputs)));
}

static struct node *build_dense(struct layer_case *c)
{
    struct node *x = in(c, "x"), *w = in(c, "w");
    struct node *y = N(ADD, product(c, x, w, w->shape.dim[0]), in(c, "b"));
    struct shape shape = x->shape;
    shape.dim[shape.rank - 1] = w->shape.dim[1];
    y = reshape(c, y, shape);
    return has(c, "activation=relu")      ? N(RELU, y)
           : has(c, "activation=softmax") ? N(SOFTMAX, y)
           : has(c, "activation=tanh")    ? N(TANH, y)
           : has(c, "activation=sigmoid") ? N(SIGMOID, y)
                                          : y;
}

static struct node *build_dropout(struct layer_case *c)  // inference: nothing is dropped
{
    struct node *zero = graph_scalar(&c->graph, DTYPE_I64, 0);
    return A(DROPOUT, ATTR(.rate = 0), in(c, "x"), zero, zero);
}

static struct node *build_zero_pad(struct layer_case *c)
{
    double side[4] = {3, 3, 3, 3};
    static const char *const names[] = {"top", "bottom", "left", "right"};
    for (int i = 0; i < 4 && has(c, "top="); i++) {
        numbers(c, names[i], &side[i], 1);
    }
    struct op_attr attr = {.start = {0, (int64_t)side[0], (int64_t)side[2], 0},
                           .stop = {0, (int64_t)side[1], (int64_t)side[3], 0}};
    return GRAPH_NODE(&c->graph, OP_PAD, &attr, in(c, "x"));
}

static struct node *build_residual_add(struct layer_case *c)
{
    return N(RELU, N(ADD, in(c, "a"), in(c, "b")));
}

// TensorFlow rounds the two constants below to float32, also in float64.
static struct node *build_gelu(struct layer_case *c)
{
    struct node *x = in(c, "x"), *s;
    if (has(c, "approximate=1")) {  // tanh(sqrt(2 / pi) * (x + 0.044715 x^3))
        struct node *cube = N(MUL, N(MUL, N(SQUARE, x), x), number(c, (double)0.044715f));
        s = N(TANH, N(MUL, N(ADD, x, cube), number(c, sqrt(2 / 3.14159265358979324))));
    } else {
        s = N(ERF, N(MUL, x, number(c, (double)0.707106781186547524f)));
    }
    return N(MUL, N(MUL, x, number(c, 0.5)), N(ADD, s, number(c, 1)));
}

// labels (N) as (N, K): 1 where the class is the label
static struct node *one_hot(struct layer_case *c, struct node *labels, int64_t classes)
{
    int32_t *index = MEM_NEW_ARRAY(int32_t, classes);
    for (int64_t k = 0; k < classes; k++) {
        index[k] = (int32_t)k;
    }
    struct node *all = graph_constant(&c->graph, DTYPE_I32, SHAPE(1, classes), index);
    mem_free(index);
    struct node *column = reshape(c, labels, SHAPE(shape_count(labels->shape), 1));
    return A(EQUAL, ATTR(.dtype = c->graph.real), column, all);
}

static struct node *build_softmax_xent(struct layer_case *c)
{
    struct node *x = in(c, "x"), *labels = in(c, "labels");
    struct op_attr attr = {0};
    if (has(c, "one-hot")) {
        labels = one_hot(c, labels, x->shape.dim[1]);
        numbers(c, "label_smoothing", &attr.label_smoothing, 1);
    }
    struct node *losses = GRAPH_NODE(&c->graph, OP_CROSS_ENTROPY, &attr, x, labels);
    if (has(c, "none")) {
        return losses;
    }
    return N(DIV, graph_sum_all(&c->graph, losses), number(c, (double)x->shape.dim[0]));
}

static struct node *build_embedding(struct layer_case *c)
{
    struct node *w = in(c, "w"), *ids = in(c, "ids");
    struct node *y = N(MATMUL, one_hot(c, ids, w->shape.dim[0]), w);
    struct shape shape = ids->shape;
    shape.dim[shape.rank++] = w->shape.dim[1];
    return reshape(c, y, shape);
}

// x (B, T, D) through w (D, H, K), b (H, K): (B, H, T, K)
static struct node *heads(struct layer_case *c, const char *w_role, const char *b_role)
{
    struct node *x = in(c, "x"), *w = in(c, w_role);
    int64_t h = w->shape.dim[1], k = w->shape.dim[2];
    struct node *y = product(c, x, w, w->shape.dim[0]);
    y = N(ADD, reshape(c, y, SHAPE(x->shape.dim[0], x->shape.dim[1], h, k)), in(c, b_role));
    return A(TRANSPOSE, ATTR(.axes = {0, 2, 1, 3}, .axis_count = 4), y);
}

static struct node *build_attention(struct layer_case *c)
{
    struct node *x = in(c, "x"), *wo = in(c, "wo"), *mask = in(c, "mask");
    int64_t b = x->shape.dim[0], t = x->shape.dim[1];
    int64_t inner = wo->shape.dim[0] * wo->shape.dim[1];
    struct node *q = heads(c, "wq", "bq"), *k = heads(c, "wk", "bk"), *v = heads(c, "wv", "bv");
    q = N(MUL, q, number(c, 1 / sqrt((double)wo->shape.dim[1])));
    struct node *scores = A(MATMUL, ATTR(.transpose_b = true), q, k);  // (B, H, T, T)
    const char *far = strstr(c->attributes, "get ");
    struct node *hidden = N(SUB, number(c, 1), A(CAST, ATTR(.dtype = c->graph.real), mask));
    struct node *add = N(MUL, hidden, number(c, strtod(far + 4, NULL)));
    struct node *weights = N(SOFTMAX, N(ADD, scores, reshape(c, add, SHAPE(b, 1, 1, t))));
    struct node *y = A(TRANSPOSE, ATTR(.axes = {0, 2, 1, 3}, .axis_count = 4),
                       N(MATMUL, weights, v));  // (B, T, H, K)
    y = N(ADD, product(c, y, wo, inner), in(c, "bo"));
    return reshape(c, y, x->shape);
}

// Largest error allowed, relative to the tensor's largest value. float64: the cases sum at most 200
// products of comparable size: 200 * 2^-53 = 2e-14; quotients by small deviations (norms) cost two
// digits more. float32 rounds at 2^-24: 1e-5, norms and attention 1e-4.
#define BOUND_F64 1e-12
static const struct {
    const char *layer;
    struct node *(*build)(struct layer_case *c);
    double bound_f32;
} builders[] = {
    {"conv2d", build_conv2d, 1e-5},
    {"maxpool2d", build_max_pool, 1e-5},
    {"avgpool2d", build_avg_pool, 1e-5},
    {"global_avg_pool", build_global_avg_pool, 1e-5},
    {"batch_norm", build_batch_norm, 1e-4},
    {"layer_norm", build_layer_norm, 1e-4},
    {"dense", build_dense, 1e-5},
    {"dropout", build_dropout, 1e-5},
    {"zero_pad", build_zero_pad, 1e-5},
    {"residual_add", build_residual_add, 1e-5},
    {"gelu", build_gelu, 1e-5},
    {"softmax_xent", build_softmax_xent, 1e-5},
    {"embedding", build_embedding, 1e-5},
    {"attention", build_attention, 1e-4},
};

// ---- Running a case -----------------------------------------------------------------------------

// The layer reads it: it is neither an output nor a gradient ("d" and the name of another).
static bool is_input(struct layer_case *c, const struct golden *golden)
{
    const char *role = golden->role;
    return strcmp(role, "y") != 0 && strncmp(role, "new_", 4) != 0 &&
           !(role[0] == 'd' && (find(c, role + 1) || strcmp(role, "dy") == 0));
}

static enum dtype dtype_in(const struct layer_case *c, const struct golden *golden)
{
    return dtype_is_float(golden->dtype) ? c->graph.real : golden->dtype;
}

static void build_graph(struct layer_case *c, struct node *(*build)(struct layer_case *))
{
    struct node *wrt[ROLE_MAX], *gradients[ROLE_MAX];
    const char *names[ROLE_MAX];
    int wanted = 0;
    for (int i = 0; i < c->count; i++) {
        struct golden *g = &c->tensors[i];
        if (is_input(c, g) || strcmp(g->role, "dy") == 0) {
            g->node = graph_input(&c->graph, g->role, dtype_in(c, g), g->shape);
        }
    }
    struct node *y = build(c);
    assert_ok(graph_check(&c->graph));
    graph_output(&c->graph, "y", y);
    struct node *loss = graph_sum_all(&c->graph, N(MUL, y, in(c, "dy")));
    for (int i = 0; i < c->count; i++) {
        struct golden *g = &c->tensors[i];
        if (g->role[0] == 'd' && strcmp(g->role, "dy") != 0 && !g->node) {
            names[wanted] = g->role;
            wrt[wanted++] = in(c, g->role + 1);
        }
    }
    graph_gradients(&c->graph, loss, wrt, wanted, gradients);
    for (int i = 0; i < wanted; i++) {
        graph_output(&c->graph, names[i], gradients[i]);
    }
}

static double largest_of(const struct golden *g)
{
    double largest = 0;
    for (int64_t i = 0; i < shape_count(g->shape); i++) {
        largest = fmax(largest, fabs(element_get(g->data, g->dtype, i)));
    }
    return largest;
}

// The error of one output, relative to its largest value; `all` is that of the whole case.
static double error_of(struct layer_case *c, const struct golden *g, double all)
{
    int output = graph_output_find(&c->graph, g->role);
    assert_true(output >= 0);
    assert_true(shape_equal(c->graph.outputs[output]->shape, g->shape));
    double largest = largest_of(g), error = 0;
    for (int64_t i = 0; i < shape_count(g->shape); i++) {
        double difference = fabs(run_get(&c->run, g->role, i) - element_get(g->data, g->dtype, i));
        error = difference <= error ? error : difference;  // a NaN stays
    }
    // The bias of attention's keys has no effect: its gradient is rounding and nothing else.
    return error / (largest < 1e-12 * all ? all : largest);
}

// The largest error of the outputs; none may be over the bound.
static double compare(struct layer_case *c, double bound)
{
    double worst = 0, all = 0;
    for (int k = 0; k < c->count; k++) {
        all = fmax(all, largest_of(&c->tensors[k]));
    }
    for (int k = 0; k < c->count; k++) {
        struct golden *g = &c->tensors[k];
        double error = g->node ? 0 : error_of(c, g, all);
        worst = fmax(worst, error);
        if (!(error <= bound)) {
            fail_msg("%s %s (%s), %s: %s is off by %g of its largest value, allowed %g", c->layer,
                     c->name, c->attributes, dtype_name(c->graph.real), g->role, error, bound);
        }
    }
    return worst;
}

static double run_case(struct layer_case *c, int builder, enum dtype real)
{
    variables_init(&c->variables);
    graph_init(&c->graph, &c->variables, real);
    for (int i = 0; i < c->count; i++) {
        c->tensors[i].node = NULL;
    }
    build_graph(c, builders[builder].build);
    run_init(&c->run, "ref", &c->graph);
    for (int k = 0; k < c->count; k++) {
        struct golden *g = &c->tensors[k];
        for (int64_t i = 0; g->node && i < shape_count(g->shape); i++) {
            element_set(run_feed(&c->run, g->role), g->node->dtype, i,
                        element_get(g->data, g->dtype, i));
        }
    }
    assert_ok(run_step(&c->run));
    double bound = real == DTYPE_F64 ? BOUND_F64 : builders[builder].bound_f32;
    double worst = compare(c, bound);
    run_release(&c->run);
    graph_release(&c->graph);
    variables_release(&c->variables);
    return worst;
}

// Runs the case that was read, in both dtypes, and empties it. Returns its builder, -1 if none.
static int finish_case(struct layer_case *c, double worst[][2])
{
    int builder = (int)ARRAY_COUNT(builders) - 1;
    while (builder >= 0 && strcmp(builders[builder].layer, c->layer) != 0) {
        builder--;
    }
    if (builder < 0) {
        printf("left open: %s %s\n", c->layer, c->name);
    } else {
        worst[builder][0] = fmax(worst[builder][0], run_case(c, builder, DTYPE_F64));
        worst[builder][1] = fmax(worst[builder][1], run_case(c, builder, DTYPE_F32));
    }
    for (int i = 0; i < c->count; i++) {
        mem_free(c->tensors[i].data);
    }
    c->count = 0;
    return builder;
}

// One line: layer, case, attributes, role, shape, dtype, file.
static bool read_line(const char *line, char fields[7][160])
{
    return sscanf(line, "%159[^\t]\t%159[^\t]\t%159[^\t]\t%159[^\t]\t%159[^\t]\t%159[^\t]\t%159s",
                  fields[0], fields[1], fields[2], fields[3], fields[4], fields[5],
                  fields[6]) == 7 &&
           line[0] != '#' && strcmp(fields[0], "layer") != 0;
}

static void add_tensor(struct layer_case *c, const char *folder, char fields[7][160])
{
    char path[800];
    assert_true(c->count < ROLE_MAX);
    struct golden *g = &c->tensors[c->count++];
    *g = (struct golden){.node = NULL};
    snprintf(c->layer, sizeof c->layer, "%s", fields[0]);
    snprintf(c->name, sizeof c->name, "%s", fields[1]);
    snprintf(c->attributes, sizeof c->attributes, "%s", fields[2]);
    snprintf(g->role, sizeof g->role, "%s", fields[3]);
    snprintf(path, sizeof path, "%s/%s", folder, fields[6]);
    assert_ok(npy_read(path, &g->dtype, &g->shape, &g->data));
    if (strcmp(fields[4], "scalar") == 0) {
        g->shape = shape_scalar();  // its file says (1,)
    }
}

static void test_layers(void **state)
{
    (void)state;
    char path[512];
    if (!test_shared(path, sizeof path, "golden/keras/layers/index.tsv")) {
        SKIP("the golden values of Keras' layers are not there");
    }
    uint8_t *index;
    size_t size;
    assert_ok(file_read(path, 1 << 20, &index, &size));
    *strrchr(path, '/') = 0;
    struct layer_case *c = MEM_NEW(struct layer_case);
    double worst[ARRAY_COUNT(builders)][2] = {{0}};
    int done = 0, open = 0;
    char *rest = (char *)index, *line, fields[7][160];
    while ((line = strsep(&rest, "\n"))) {
        bool more = read_line(line, fields);
        bool same = more && strcmp(c->layer, fields[0]) == 0 && strcmp(c->name, fields[1]) == 0;
        if (c->count && !same) {
            bool known = finish_case(c, worst) >= 0;
            done += known;
            open += !known;
        }
        if (more) {
            add_tensor(c, path, fields);
        }
    }
    for (size_t i = 0; i < ARRAY_COUNT(builders); i++) {
        printf("%-16s largest error %.1e (float64) %.1e (float32)\n", builders[i].layer,
               worst[i][0], worst[i][1]);
    }
    printf("%d cases, %d left open\n", done, open);
    assert_true(done > 0);
    mem_free(c);
    mem_free(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
