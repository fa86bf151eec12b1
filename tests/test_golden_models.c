// SPDX-License-Identifier: Apache-2.0
// test_golden_models.c: the three networks against TensorFlow: initial weights in, ten losses, the
// gradients of the first step and the final weights out. In double (reference kernels) the numbers
// must agree to rounding; in float32, on every backend, within the bounds that the golden files
// state (README there: step 1 and gradients 1e-6, later losses 1e-5, weights 2e-4).
#include "test.h"

#include <math.h>

#include "train/train_impl.h"
#include "trainer/io.h"

enum { BATCH = 64, STEPS = 10, PIXELS = 28 * 28 };

struct golden_case {
    const char *model;     // of the table of models
    const char *folder;    // below golden/keras/models
    const char *optimizer; // column of losses.tsv
    const char *overrides;
};

#define LAYERS_L2                                                                                  \
    "{model: {model_params: {layers: [{conv2d: {filters: 32, kernel: 3, activation: relu, "        \
    "l2: 1e-4}}, {max_pool2d: {window: 2}}, flatten, {dense: {units: 64, activation: relu, "       \
    "l2: 1e-4}}, {dense: {units: 10, l2: 1e-4}}]}, optimizer: {name: sgd}, "                       \
    "learning_rate: {initial_lr: 0.05}}}"
#define OPT(name, rest) "model.optimizer.name=" name ",model.learning_rate.name=constant," rest
#define SGD OPT("sgd", "model.learning_rate.initial_lr=0.05")

static const struct golden_case cases[] = {
    {"mnist_cnn", "mnist_cnn", "sgd", SGD},
    {"mnist_cnn", "mnist_cnn", "sgd_momentum",
     OPT("momentum", "model.learning_rate.initial_lr=0.05")},
    {"mnist_cnn", "mnist_cnn", "sgd_nesterov",
     OPT("momentum", "model.learning_rate.initial_lr=0.05,model.optimizer.nesterov=true")},
    {"mnist_cnn", "mnist_cnn", "sgd_clip1", SGD ",train.clip_norm=1.0"},
    {"custom_cnn", "mnist_cnn", "sgd_l2", LAYERS_L2},
    {"mnist_cnn", "mnist_cnn", "adam", OPT("adam", "model.learning_rate.initial_lr=1e-3")},
    {"mnist_cnn", "mnist_cnn", "adamw",
     OPT("adamw", "model.learning_rate.initial_lr=1e-3,model.optimizer.weight_decay=0.004")},
    {"mnist_cnn", "mnist_cnn", "rmsprop",
     OPT("rmsprop", "model.learning_rate.initial_lr=1e-3,model.optimizer.momentum=0.0")},
    {"mnist_cnn", "mnist_cnn", "rmsprop_legacy",
     OPT("rmsprop", "model.learning_rate.initial_lr=1e-3,model.optimizer.momentum=0.0,"
                    "model.optimizer.epsilon_outside=true")},
    {"mnist_cnn", "mnist_cnn", "rmsprop_legacy_momentum",
     OPT("rmsprop", "model.learning_rate.initial_lr=1e-3,model.optimizer.epsilon=1e-3")},
    {"fashion_cnn", "fashion_cnn", "sgd", SGD},
    {"fashion_cnn", "fashion_cnn", "adam", OPT("adam", "model.learning_rate.initial_lr=1e-3")},
    {"mnist_main", "mnist_main", "sgd", SGD ",model.model_params.dropout_rate=0.0"},
};

// ---- What a run is made of ----------------------------------------------------------------------

struct fixture {
    struct arena arena;
    struct config *config;
    struct variables variables;
    struct step_graph step, accumulate;
    struct schedule schedule;
    const struct strategy_def *strategy;
    const struct backend_def *backend;
    struct device *device;
    struct state *state;
    struct exec *exec, *exec_accumulate;
    uint8_t *images; // (STEPS * BATCH, 28, 28)
    uint8_t *labels; // (STEPS * BATCH)
    enum dtype real;
};

static const struct example_spec example = {
    .dtype = DTYPE_U8, .shape = {.rank = 3, .dim = {28, 28, 1}}, .num_classes = 10};

// The formula of the golden files' README.
static float formula_weight(uint64_t stream, uint64_t index, double limit)
{
    uint64_t z = 1 * 0x9E3779B97F4A7C15u + stream * 0xBF58476D1CE4E5B9u;
    z += (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)((2.0 * ((double)(z >> 40) * 0x1p-24) - 1.0) * limit);
}

static void put_real(const struct fixture *f, void *data, int64_t i, double value)
{
    if (f->real == DTYPE_F64) {
        ((double *)data)[i] = value;
    } else {
        ((float *)data)[i] = (float)value;
    }
}

static double get_real(const struct fixture *f, const void *data, int64_t i)
{
    return f->real == DTYPE_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static void set_weights(struct fixture *f)
{
    uint64_t stream = 0;
    for (int i = 0; i < f->variables.count; i++) {
        const struct variable *v = f->variables.items[i];
        int64_t count = shape_count(v->shape);
        double *data = calloc((size_t)count, sizeof *data);
        if (v->role == VARIABLE_WEIGHT) {
            double fans = (double)(v->init.fan_in + v->init.fan_out);
            double limit = v->init.kind == INIT_GLOROT_UNIFORM ? sqrt(6 / fans) : 0.05;
            for (int64_t k = 0; k < count; k++) {
                put_real(f, data, k, (double)formula_weight(stream, (uint64_t)k, limit));
            }
            stream++;
        }
        assert_ok(f->backend->state_put(f->state, v, data));
        free(data);
    }
}

static void fixture_config(struct fixture *f, const struct golden_case *c)
{
    const struct model_def *model = model_find(c->model);
    struct value *map;
    arena_init(&f->arena);
    f->config = config_new();
    config_declare(f->config, train_fields, train_field_count);
    config_declare(f->config, strategy_fields, strategy_field_count);
    config_declare(f->config, dataset_fields, dataset_field_count);
    config_declare(f->config, optimizer_fields, optimizer_field_count);
    config_declare(f->config, schedule_fields, schedule_field_count);
    config_declare(f->config, model->fields, model->field_count);
    for (const struct model_default *row = model->defaults; row->path; row++) {
        config_default(f->config, row->path, row->yaml);
    }
    config_default(f->config, "model.optimizer.epsilon", "1.0e-7");
    assert_ok(value_load_option(&f->arena, "--params_override", c->overrides, &map));
    assert_ok(config_apply(f->config, map));
    assert_ok(strategy_get(f->config, &f->strategy));
    assert_ok(schedule_init(&f->schedule, f->config, STEPS, 1, BATCH));
}

static void load_bytes(const char *folder, const char *name, size_t size, uint8_t **out)
{
    char path[512], below[256];
    enum dtype dtype;
    struct shape shape;
    void *data;
    // mnist_main was run on the images of mnist_cnn.
    const char *from = strcmp(folder, "mnist_main") ? folder : "mnist_cnn";
    snprintf(below, sizeof below, "golden/keras/models/%s/%s", from, name);
    assert_non_null(test_shared(path, sizeof path, below));
    assert_ok(npy_read(path, &dtype, &shape, &data));
    assert_int_equal(dtype, DTYPE_U8);
    assert_true((size_t)shape_count(shape) >= size);
    *out = data;
}

static void fixture_open(struct fixture *f, const struct golden_case *c, enum dtype real,
                         const struct backend_def *backend)
{
    *f = (struct fixture){.real = real, .backend = backend};
    fixture_config(f, c);
    variables_init(&f->variables);
    struct step_spec spec = {.model = model_find(c->model),
                             .config = f->config,
                             .strategy = f->strategy,
                             .example = &example,
                             .variables = &f->variables,
                             .real = real,
                             .rows = BATCH,
                             .replicas = 1,
                             .parts = 1};
    assert_ok(train_graph_build(&f->step, &spec));
    assert_ok(accumulate_graph_build(&f->accumulate, &spec));
    assert_ok(backend->open(&(struct device_options){.threads = 2}, &f->device));
    assert_ok(backend->state_new(f->device, &f->variables, &f->state));
    assert_ok(backend->compile(f->device, &f->step.graph, f->state, &f->exec));
    assert_ok(backend->compile(f->device, &f->accumulate.graph, f->state, &f->exec_accumulate));
    set_weights(f);
    load_bytes(c->folder, "images.npy", STEPS * BATCH * PIXELS, &f->images);
    load_bytes(c->folder, "labels.npy", STEPS * BATCH, &f->labels);
}

static void fixture_close(struct fixture *f)
{
    f->backend->exec_free(f->exec);
    f->backend->exec_free(f->exec_accumulate);
    f->backend->state_free(f->state);
    f->backend->close(f->device);
    step_graph_release(&f->step);
    step_graph_release(&f->accumulate);
    variables_release(&f->variables);
    config_free(f->config);
    arena_release(&f->arena);
    mem_free(f->images);
    mem_free(f->labels);
}

// Runs one graph on batch `step`; returns the loss.
static double run(struct fixture *f, struct exec *exec, const struct graph *graph, int64_t step)
{
    int32_t labels[BATCH];
    double weights[BATCH], lr, loss;
    int64_t row = 0;
    for (int i = 0; i < BATCH; i++) {
        labels[i] = f->labels[step * BATCH + i];
        put_real(f, weights, i, 1.0 / BATCH);
    }
    put_real(f, &lr, 0, schedule_rate(&f->schedule, step));
    const void *feeds[8];
    void *fetches[8] = {NULL};
    for (int i = 0; i < graph->input_count; i++) {
        const char *name = graph->inputs[i]->name;
        feeds[i] = strcmp(name, "image") == 0    ? (void *)(f->images + step * BATCH * PIXELS)
                   : strcmp(name, "label") == 0  ? (void *)labels
                   : strcmp(name, "weight") == 0 ? (void *)weights
                   : strcmp(name, "lr") == 0     ? (void *)&lr
                   : strcmp(name, "step") == 0   ? (void *)&step
                                                 : (void *)&row;
    }
    fetches[graph_output_find(graph, "loss")] = &loss;
    assert_ok(f->backend->run(exec, feeds, fetches));
    return get_real(f, &loss, 0);
}

// ---- Comparison ---------------------------------------------------------------------------------

// Column `name` of losses.tsv.
static void golden_losses(const char *folder, const char *name, double *losses)
{
    char path[512], below[256], line[8192];
    snprintf(below, sizeof below, "golden/keras/models/%s/losses.tsv", folder);
    assert_non_null(test_shared(path, sizeof path, below));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int column = -1, row = 0;
    while (fgets(line, sizeof line, file) && row < STEPS) {
        char *save = NULL;
        int at = 0;
        for (char *cell = line[0] == '#' ? NULL : strtok_r(line, "\t\n", &save); cell;
             cell = strtok_r(NULL, "\t\n", &save), at++) {
            if (column < 0 && strcmp(cell, name) == 0) {
                column = at;
                row = -1;
            } else if (at == column && row >= 0) {
                losses[row] = strtod(cell, NULL);
            }
        }
        row += column >= 0;
    }
    fclose(file);
    assert_int_equal(row, STEPS);
}

// Largest relative difference that TensorFlow's own float32 losses have to its double ones.
static double tensorflow_loss_error(const struct golden_case *c, const double *exact)
{
    char column[64];
    double single[STEPS], worst = 0;
    snprintf(column, sizeof column, "%s_f32", c->optimizer);
    golden_losses(c->folder, column, single);
    for (int i = 0; i < STEPS; i++) {
        worst = MAX(worst, fabs(single[i] - exact[i]) / exact[i]);
    }
    return worst;
}

// Largest difference of TensorFlow's own float32 tensor to its double one (summary.tsv).
static double tensorflow_tensor_error(const struct golden_case *c, const char *what,
                                      const char *variable_name)
{
    char path[512], below[256], line[512], tensor[128];
    double error = NAN;
    snprintf(tensor, sizeof tensor, "%s", variable_name);
    *strchr(tensor, '/') = '.';
    snprintf(below, sizeof below, "golden/keras/models/%s/summary.tsv", c->folder);
    FILE *file = test_shared(path, sizeof path, below) ? fopen(path, "r") : NULL;
    while (file && isnan(error) && fgets(line, sizeof line, file)) {
        char row[4][128];
        if (sscanf(line, "%127s %127s %127s %*s %*s %*s %*s %127s", row[0], row[1], row[2],
                   row[3]) == 4 &&
            strcmp(row[0], c->optimizer) == 0 && strcmp(row[1], what) == 0 &&
            strcmp(row[2], tensor) == 0) {
            error = strtod(row[3], NULL);
        }
    }
    if (file) {
        fclose(file);
    }
    return error;
}

// Compares a variable with a golden tensor: the whole, or every n-th element. Returns the largest
// difference, or NaN when there is no such file.
static double compare_tensor(const struct fixture *f, const struct golden_case *c, const char *what,
                             const struct variable *read, const char *variable_name)
{
    char path[512], below[512], tensor[128];
    snprintf(tensor, sizeof tensor, "%s", variable_name);
    *strchr(tensor, '/') = '.';
    enum dtype dtype;
    struct shape shape;
    void *golden, *data = calloc((size_t)shape_count(read->shape), sizeof(double));
    snprintf(below, sizeof below, "golden/keras/models/%s/%s.%s.npy", c->folder, what, tensor);
    if (!test_shared(path, sizeof path, below)) {
        const char *dot = strcmp(what, "grad1") ? "" : ".sgd";
        snprintf(below, sizeof below, "golden/keras/models/%s/samples/%s%s.%s.npy", c->folder, what,
                 dot, tensor);
        if (!test_shared(path, sizeof path, below)) {
            free(data);
            return NAN;
        }
    }
    assert_ok(npy_read(path, &dtype, &shape, &golden));
    assert_ok(f->backend->state_get(f->state, read, data));
    int64_t count = shape_count(shape), all = shape_count(read->shape);
    int64_t stride = count == all ? 1 : strcmp(c->folder, "mnist_main") ? 97 : 997;
    assert_true(count == all || count == CEIL_DIV(all, stride));
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double g = dtype == DTYPE_F64 ? ((double *)golden)[i] : (double)((float *)golden)[i];
        double difference = fabs(get_real(f, data, i * stride) - g);
        worst = difference > worst || isnan(difference) ? difference : worst;
    }
    mem_free(golden);
    free(data);
    return worst;
}

// TensorFlow's own float32 error stands beside ours to compare with; it is no bound.
static void show_error(const char *what, const char *name, double ours, double tensorflow)
{
    printf("  %-6s %-18s %.2e  TensorFlow float32 %.2e\n", what, name, ours, tensorflow);
}

static void check_gradients(struct fixture *f, const struct golden_case *c, double bound)
{
    if (strcmp(c->optimizer, "sgd") != 0) {
        return;
    }
    (void)run(f, f->exec_accumulate, &f->accumulate.graph, 0);
    for (int i = 0; i < f->variables.count; i++) {
        const struct variable *v = f->variables.items[i];
        char name[128];
        snprintf(name, sizeof name, "%s/accumulator", v->name);
        const struct variable *sum = variables_find(&f->variables, name);
        double worst = sum ? compare_tensor(f, c, "grad1", sum, v->name) : NAN;
        if (!isnan(worst)) {
            show_error("grad1", v->name, worst, tensorflow_tensor_error(c, "grad1", v->name));
            assert_true(worst <= bound);
        }
    }
}

static void check_case(const struct golden_case *c, enum dtype real,
                       const struct backend_def *backend)
{
    struct fixture f;
    char column[64], final[64];
    bool exact = real == DTYPE_F64, legacy = strstr(c->optimizer, "legacy") != NULL;
    double golden[STEPS], worst = 0;
    fixture_open(&f, c, real, backend);
    snprintf(column, sizeof column, "%s_f64", c->optimizer);
    golden_losses(c->folder, column, golden);
    printf("%s %s %s %s\n", c->folder, c->optimizer, backend->name, dtype_name(real));
    // Whole gradients are stored as float32: half a unit in the last place of values up to 1.
    check_gradients(&f, c, exact ? 6e-8 : 1e-6);
    for (int64_t step = 0; step < STEPS; step++) {
        double loss = run(&f, f.exec, &f.step.graph, step);
        double difference = fabs(loss - golden[step]) / golden[step];
        // The legacy classes keep hyperparameters as float32 even in double (README there).
        double bound = !exact ? (step == 0 ? 1e-6 : 1e-5) : legacy ? 1e-5 : 1e-10;
        if (!(difference <= bound)) {
            fail_msg("step %lld: loss %.12f, TensorFlow in double %.12f", (long long)step + 1, loss,
                     golden[step]);
        }
        worst = MAX(worst, difference);
    }
    show_error("losses", "(relative)", worst, tensorflow_loss_error(c, golden));
    snprintf(final, sizeof final, "final.%s", c->optimizer);
    for (int i = 0; i < f.variables.count; i++) {
        const struct variable *v = f.variables.items[i];
        double difference =
            v->role == VARIABLE_WEIGHT ? compare_tensor(&f, c, final, v, v->name) : NAN;
        if (!isnan(difference)) {
            show_error("final", v->name, difference, tensorflow_tensor_error(c, "final", v->name));
            assert_true(difference <= (exact && !legacy ? 1e-6 : 2e-4));
        }
    }
    fixture_close(&f);
}

static void need_goldens(void)
{
    char path[512];
    if (!test_shared(path, sizeof path, "golden/keras/models/mnist_cnn/losses.tsv")) {
        SKIP("the reference values (golden/keras) are not beside the checkout");
    }
}

static void test_double(void **state)
{
    (void)state;
    need_goldens();
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        check_case(&cases[i], DTYPE_F64, backend_find("ref"));
    }
}

// The reference kernels are one source for both types, so in float32 one optimizer shows them.
static void test_float(void **state)
{
    (void)state;
    need_goldens();
    for (const struct backend_def *const *backend = backend_table; *backend; backend++) {
        bool reference = strcmp((*backend)->name, "ref") == 0;
        for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
            if (!reference || strcmp(cases[i].optimizer, "sgd") == 0) {
                check_case(&cases[i], DTYPE_F32, *backend);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_double),
        cmocka_unit_test(test_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
