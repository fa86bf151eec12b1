// SPDX-License-Identifier: Apache-2.0
// test_schedules.c: learning rates by step and metrics, against values that TensorFlow wrote in
// double. A rate is a handful of double operations and one pow or cos (each within an
// ulp, 1.1e-16), so 1e-12 relative leaves room for the order of the operations alone.
#include <math.h>

#include "graph_run.h"
#include "trainer/config.h"
#include "trainer/io.h"
#include "trainer/layers.h"
#include "trainer/optimizer.h"

static const double DOUBLE_BOUND = 1e-12;

static FILE *open_golden(const char *below)
{
    char path[512], name[256];
    snprintf(name, sizeof name, "golden/keras/%s", below);
    FILE *file = test_shared(path, sizeof path, name) ? fopen(path, "r") : NULL;
    if (!file) {
        SKIP("%s is not beside the checkout", name);
    }
    return file;
}

// The next line that is neither a note nor empty, without its newline; false at the end.
static bool next_row(FILE *file, char *line, int size)
{
    while (fgets(line, size, file)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (line[0] != '#' && line[0] != '\0') {
            return true;
        }
    }
    return false;
}

static void assert_close(double got, double expected, const char *what, const char *where)
{
    if (!(fabs(got - expected) <= DOUBLE_BOUND * fabs(expected))) {
        fail_msg("%s %s: %.17g, TensorFlow %.17g", what, where, got, expected);
    }
}

// ---- Schedules ----------------------------------------------------------------------------------

struct schedule_case {
    const char *file;
    int64_t steps_per_epoch, epochs, batch;
    const char *options;  // of model.learning_rate
};

// Multipliers are those of the ResNet-50 recipe, 0.1 / 256 and powers of ten below.
#define STEPWISE                                                                                   \
    "{name: stepwise, warmup_epochs: 5, examples_per_epoch: 1281167, boundaries: "                 \
    "[30, 60, 80], multipliers: [0.000390625, 0.0000390625, 0.00000390625, 0.000000390625]}"
#define COSINE(peak) "{name: cosine_with_warmup, warmup_epochs: 5, initial_lr: " peak "}"
#define EXPONENTIAL(steps, rest)                                                                   \
    "{name: exponential, initial_lr: 0.05, decay_rate: 0.96, decay_steps: " steps rest "}"

static const struct schedule_case schedule_cases[] = {
    {"bert_linear_342", 1, 342, 32, "{name: polynomial, initial_lr: 2e-5, warmup_epochs: 34}"},
    {"bert_linear_1000", 1, 1000, 32, "{name: polynomial, initial_lr: 3e-5, warmup_epochs: 100}"},
    {"cosine_decay", 100, 1, 1,
     "{name: cosine_with_warmup, initial_lr: 0.1, final_lr: 0.005, decay_steps: 100}"},
    {"exponential", 1000, 3, 1, EXPONENTIAL("1000", "")},
    {"exponential_staircase", 1000, 3, 1, EXPONENTIAL("1000", ", staircase: true")},
    {"mnist_main", 58, 10, 1024, EXPONENTIAL("100000", "")},
    {"garden_cosine_b256", 5004, 90, 256, COSINE("0.1")},
    {"garden_cosine_b1024", 1251, 90, 1024, COSINE("0.4")},
    {"garden_cosine_b2048", 625, 90, 2048, COSINE("0.8")},
    {"garden_exponential_b2048", 625, 90, 2048,
     "{name: exponential, initial_lr: 0.128, decay_rate: 0.97, decay_epochs: 2.4, "
     "staircase: true, warmup_epochs: 5}"},
    {"garden_stepwise_b256", 5004, 90, 256, STEPWISE},
    {"garden_stepwise_b1024", 1251, 90, 1024, STEPWISE},
    {"garden_stepwise_b2048", 625, 90, 2048, STEPWISE},
    {"polynomial_power2_cycle0", 100, 1, 1,
     "{name: polynomial, initial_lr: 0.1, final_lr: 0.01, power: 2, decay_steps: 100}"},
    {"tutorial_piecewise", 938, 12, 64,
     "{name: epoch_steps, boundaries: [3, 7], values: [1e-3, 1e-4, 1e-5]}"},
};

static void schedule_open(struct schedule *schedule, const struct schedule_case *c)
{
    struct arena arena;
    struct value *map;
    char text[512];
    arena_init(&arena);
    struct config *config = config_new();
    config_declare(config, schedule_fields, schedule_field_count);
    snprintf(text, sizeof text, "{model: {learning_rate: %s}}", c->options);
    assert_ok(value_load_option(&arena, "--params_override", text, &map));
    assert_ok(config_apply(config, map));
    assert_ok(schedule_init(schedule, config, c->steps_per_epoch, c->epochs, c->batch));
    config_free(config);
    arena_release(&arena);
}

// The tutorial's file counts epochs: its rate holds from the first to the last step of each.
static void check_schedule(const struct schedule_case *c)
{
    struct schedule schedule;
    char below[128], line[256];
    int rows = 0;
    snprintf(below, sizeof below, "schedules/%s.tsv", c->file);
    FILE *file = open_golden(below);
    assert_true(next_row(file, line, sizeof line));
    bool by_epoch = strncmp(line, "epoch\t", 6) == 0;
    schedule_open(&schedule, c);
    while (next_row(file, line, sizeof line)) {
        char *end;
        int64_t at = strtoll(line, &end, 10);
        double rate = strtod(end, NULL);
        int64_t first = by_epoch ? at * c->steps_per_epoch : at;
        int64_t last = by_epoch ? first + c->steps_per_epoch - 1 : at;
        assert_close(schedule_rate(&schedule, first), rate, c->file, line);
        assert_close(schedule_rate(&schedule, last), rate, c->file, line);
        rows++;
    }
    fclose(file);
    assert_true(rows >= 12);
}

static void test_schedules(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_COUNT(schedule_cases); i++) {
        check_schedule(&schedule_cases[i]);
    }
}

// ---- Metrics of a classification ----------------------------------------------------------------

enum { EXAMPLES = 64, CLASSES = 12 };

static void *load(const char *name, enum dtype dtype, int64_t count)
{
    char path[512], below[256];
    enum dtype stored;
    struct shape shape;
    void *data;
    snprintf(below, sizeof below, "golden/keras/metrics/%s", name);
    assert_non_null(test_shared(path, sizeof path, below));
    assert_ok(npy_read(path, &stored, &shape, &data));
    assert_int_equal(stored, dtype);
    assert_int_equal(shape_count(shape), count);
    return data;
}

// Mean cross-entropy of logits (N, K) in double, as the train step computes it.
static double cross_entropy(const double *logits, const int32_t *labels, double smoothing)
{
    struct variables variables;
    struct graph graph;
    struct graph_run run;
    double sum = 0;
    variables_init(&variables);
    graph_init(&graph, &variables, DTYPE_F64);
    struct node *x = graph_input(&graph, "x", DTYPE_F64, SHAPE(EXAMPLES, CLASSES));
    struct node *y = graph_input(&graph, "y", DTYPE_I32, SHAPE(EXAMPLES));
    graph_output(&graph, "loss", loss_cross_entropy(&graph, x, y, smoothing));
    run_init(&run, "ref", &graph);
    memcpy(run_feed(&run, "x"), logits, EXAMPLES * CLASSES * sizeof *logits);
    memcpy(run_feed(&run, "y"), labels, EXAMPLES * sizeof *labels);
    assert_ok(run_step(&run));
    for (int i = 0; i < EXAMPLES; i++) {
        sum += run_get(&run, "loss", i);
    }
    run_release(&run);
    graph_release(&graph);
    variables_release(&variables);
    return sum / EXAMPLES;
}

static double accuracy(const float *scores, const int32_t *labels, int k)
{
    int hits = 0;
    for (int i = 0; i < EXAMPLES; i++) {
        const float *row = scores + i * CLASSES;
        hits += k > 0 ? metric_in_top_k(row, CLASSES, labels[i], k)
                      : metric_argmax(row, CLASSES) == labels[i];
    }
    return (double)hits / EXAMPLES;
}

static double classification(const char *metric, const double *logits, const float *scores,
                             const int32_t *labels)
{
    const char *k = strstr(metric, " k="), *smoothing = strstr(metric, "label_smoothing=");
    if (k) {
        return accuracy(scores, labels, atoi(k + 3));
    }
    // "over batches of 25" too: exact evaluation counts examples, so it knows no batches.
    return strstr(metric, "accuracy")
               ? accuracy(scores, labels, 0)
               : cross_entropy(logits, labels, smoothing ? atof(strchr(smoothing, '=') + 1) : 0);
}

static void test_classification(void **state)
{
    (void)state;
    char line[256];
    int rows = 0;
    FILE *file = open_golden("metrics/classification.tsv");
    int32_t *labels = load("labels.npy", DTYPE_I32, EXAMPLES);
    assert_true(next_row(file, line, sizeof line));
    while (next_row(file, line, sizeof line)) {
        char name[64], *metric = strchr(line, '\t') + 1, *value = strchr(metric, '\t') + 1;
        float scores[EXAMPLES * CLASSES];
        value[-1] = '\0';
        snprintf(name, sizeof name, "%.*s.npy", (int)(metric - 1 - line), line);
        double *logits = load(name, DTYPE_F64, EXAMPLES * CLASSES);
        for (int i = 0; i < EXAMPLES * CLASSES; i++) {
            scores[i] = (float)logits[i];
        }
        // Theirs on probabilities goes through log(softmax + 0): two roundings more, still within.
        assert_close(classification(metric, logits, scores, labels), strtod(value, NULL), name,
                     metric);
        mem_free(logits);
        rows++;
    }
    mem_free(labels);
    fclose(file);
    assert_int_equal(rows, 20);
}

// ---- Metrics of two classes ---------------------------------------------------------------------

enum { PAIRS = 80 };

static int prediction(const char *name, int32_t label, int32_t mixed)
{
    return strcmp(name, "mixed") == 0      ? mixed
           : strcmp(name, "all_one") == 0  ? 1
           : strcmp(name, "all_zero") == 0 ? 0
           : strcmp(name, "perfect") == 0  ? label
                                           : 1 - label;
}

static void check_binary(const char *line, const int32_t *labels, const int32_t *mixed)
{
    char name[32];
    double counts[4], expected[5];  // tp fp fn tn; accuracy precision recall f1 mcc
    struct confusion confusion;
    assert_int_equal(sscanf(line, "%31s %lf %lf %lf %lf %lf %lf %lf %lf %lf", name, &counts[0],
                            &counts[1], &counts[2], &counts[3], &expected[0], &expected[1],
                            &expected[2], &expected[3], &expected[4]),
                     10);
    confusion_init(&confusion, 2);
    for (int i = 0; i < PAIRS; i++) {
        confusion_add(&confusion, labels[i], prediction(name, labels[i], mixed[i]));
    }
    const struct binary_metrics got = confusion_binary(&confusion, 1);
    // Row = true class, column = predicted.
    assert_int_equal(confusion.counts[3], counts[0]);
    assert_int_equal(confusion.counts[1], counts[1]);
    assert_int_equal(confusion.counts[2], counts[2]);
    assert_int_equal(confusion.counts[0], counts[3]);
    assert_close(got.accuracy, expected[0], name, "accuracy");
    assert_close(got.precision, expected[1], name, "precision");
    assert_close(got.recall, expected[2], name, "recall");
    assert_close(got.f1, expected[3], name, "f1");
    assert_close(got.matthews, expected[4], name, "matthews");
    confusion_release(&confusion);
}

static void test_binary(void **state)
{
    (void)state;
    char line[256];
    int rows = 0;
    FILE *file = open_golden("metrics/binary.tsv");
    int32_t *labels = load("binary_labels.npy", DTYPE_I32, PAIRS);
    int32_t *mixed = load("binary_mixed.npy", DTYPE_I32, PAIRS);
    assert_true(next_row(file, line, sizeof line));
    while (next_row(file, line, sizeof line)) {
        check_binary(line, labels, mixed);
        rows++;
    }
    mem_free(labels);
    mem_free(mixed);
    fclose(file);
    assert_int_equal(rows, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_classification),
        cmocka_unit_test(test_binary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
