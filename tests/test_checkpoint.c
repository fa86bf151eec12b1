// SPDX-License-Identifier: Apache-2.0
// test_checkpoint.c: Keras checkpoints: saved and loaded to the bit in either layout, those of
// TensorFlow loaded, other models and damage refused before anything changed. That TensorFlow takes ours
// is proved by scripts/interop_test.
#include "export_net.h"

static const struct shape digit = {.rank = 4, .dim = {2, 28, 28, 1}};
static const struct shape speck = {.rank = 4, .dim = {2, 2, 2, 1}};

// Small: damage is tried at every byte of its file.
static struct node *build_speck(struct net *net, struct node *x)
{
    x = layer_flatten(net, x, NULL);
    return layer_dense(net, x, &(struct dense_options){.units = 2});
}

static struct node *build_normed(struct net *net, struct node *x)
{
    x = layer_conv2d(net, x, &(struct conv2d_options){
        .filters = 3, .kernel = {3, 3}, .no_bias = true});
    x = layer_batch_norm(net, x, &(struct batch_norm_options){0});
    x = layer_dropout(net, x, NULL, 0.5);
    x = layer_flatten(net, x, NULL);
    return layer_dense(net, x, &(struct dense_options){.units = 10});
}

static struct checkpoint_info info_of(const struct export_net *n, bool trained)
{
    return (struct checkpoint_info){.net = &n->net,
                                    .variables = &n->variables,
                                    .optimizer = trained ? optimizer_get(n->config) : NULL,
                                    .config = trained ? n->config : NULL,
                                    .iterations = 41,
                                    .learning_rate = 0.125};
}

static enum status save(struct export_net *n, enum optimizer_layout layout, const char *prefix)
{
    struct checkpoint_info info = info_of(n, true);
    struct variable_store store = export_net_store(n);
    info.layout = layout;
    info.state_json = "{\"step\": 41}";
    return checkpoint_save(prefix, &info, &store);
}

static enum status load(struct export_net *n, bool trained, const char *prefix,
                        struct checkpoint_loaded *loaded, struct text *report)
{
    struct checkpoint_info info = info_of(n, trained);
    struct variable_store store = export_net_store(n);
    n->puts = 0;
    return checkpoint_load(prefix, &info, &store, loaded, report);
}

static char *temporary(char directory[32], char prefix[64])
{
    snprintf(directory, 32, "/tmp/trainer_test_XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(prefix, 64, "%s/ckpt-1", directory);
    return prefix;
}

// ---- Our own ----------------------------------------------------------------------------------------

static void round_trip(const char *optimizer, const char *momentum, enum optimizer_layout layout)
{
    char directory[32], prefix[64];
    struct export_net a, b;
    struct checkpoint_loaded loaded;
    export_net_open(&a, build_normed, digit, optimizer, momentum);
    export_net_open(&b, build_normed, digit, optimizer, momentum);
    export_net_fill(&a, 100);
    export_net_fill(&b, 200);
    assert_ok(save(&a, layout, temporary(directory, prefix)));
    assert_ok(load(&b, true, prefix, &loaded, NULL));
    assert_int_equal(loaded.iterations, 41);
    assert_true(loaded.has_slots);
    assert_string_equal(loaded.state_json, "{\"step\": 41}");
    mem_free(loaded.state_json);
    assert_int_equal(b.puts, b.variables.count);
    for (int i = 0; i < a.variables.count; i++) {
        assert_memory_equal(a.data[i], b.data[i], variable_bytes(a.variables.items[i]));
    }
    assert_int_equal(count_names(directory), 2);
    remove_tree(directory);
    export_net_close(&a);
    export_net_close(&b);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (const struct optimizer_def *const *row = optimizer_table; *row; row++) {
        static const char *const momentums[] = {"0.0", "0.9"};
        for (size_t i = 0; i < ARRAY_COUNT(momentums); i++) {
            round_trip((*row)->name, momentums[i], LAYOUT_KERAS);
            round_trip((*row)->name, momentums[i], LAYOUT_KERAS_LEGACY);
        }
    }
}

// Another optimizer's file: the weights come, the slots do not, and the caller is told.
static void test_other_optimizer(void **state)
{
    (void)state;
    char directory[32], prefix[64];
    struct export_net a, b;
    struct checkpoint_loaded loaded;
    struct text report = {0};
    export_net_open(&a, build_narrow, digit, "momentum", "0.9");
    export_net_open(&b, build_narrow, digit, "adam", "0.9");
    export_net_fill(&a, 100);
    for (int layout = LAYOUT_KERAS; layout <= LAYOUT_KERAS_LEGACY; layout++) {
        export_net_fill(&b, 200);
        assert_ok(save(&a, (enum optimizer_layout)layout, temporary(directory, prefix)));
        assert_ok(load(&b, true, prefix, &loaded, &report));
        assert_false(loaded.has_slots);
        assert_non_null(strstr(report.data, "the slots of adam are not there"));
        mem_free(loaded.state_json);
        for (int i = 0; i < b.variables.count; i++) {
            const struct variable *v = b.variables.items[i];
            float first = *(float *)b.data[i];
            assert_true(first == (v->role == VARIABLE_SLOT ? (float)(200 + i) : (float)(100 + i)));
        }
        remove_tree(directory);
    }
    text_release(&report);
    export_net_close(&a);
    export_net_close(&b);
}

// A write that fails at any point: an error, no temporary files, the older checkpoint as it was.
static void test_faults(void **state)
{
    (void)state;
    char directory[32], prefix[64], newer[64];
    struct export_net n;
    struct checkpoint_loaded loaded;
    export_net_open(&n, build_speck, speck, "adam", "0.9");
    export_net_fill(&n, 100);
    assert_ok(save(&n, LAYOUT_KERAS, temporary(directory, prefix)));
    snprintf(newer, sizeof newer, "%s/ckpt-2", directory);
    for (int k = 1;; k++) {
        export_net_fill(&n, 200);
        file_fail_after(k);
        enum status status = save(&n, LAYOUT_KERAS, newer);
        file_fail_after(0);
        if (status == STATUS_OK) {
            assert_true(k > 4);  // at least two files created, written, synced, renamed
            break;
        }
        assert_ok(load(&n, true, prefix, &loaded, NULL));
        mem_free(loaded.state_json);
        assert_true(*(float *)n.data[0] == 100);
        char **names;
        int count;
        assert_ok(file_list(directory, &names, &count));
        for (int i = 0; i < count; i++) {
            assert_null(strstr(names[i], "tmp"));
        }
        file_list_free(names, count);
    }
    remove_tree(directory);
    export_net_close(&n);
}

static void write_bytes(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

// Either what was saved, or an error and nothing put.
static void load_damaged(struct export_net *n, const char *prefix)
{
    struct checkpoint_loaded loaded;
    export_net_fill(n, 200);
    enum status status = load(n, true, prefix, &loaded, NULL);
    mem_free(loaded.state_json);
    float expected = status == STATUS_OK ? 100 : 200;
    assert_int_equal(n->puts, status == STATUS_OK ? n->variables.count : 0);
    for (int i = 0; i < n->variables.count; i++) {
        assert_true(*(float *)n->data[i] == expected + (float)i);
    }
}

static void test_damage(void **state)
{
    (void)state;
    static const char *const endings[] = {".index", ".data-00000-of-00001"};
    char directory[32], prefix[64], path[128];
    struct export_net n;
    export_net_open(&n, build_speck, speck, "momentum", "0.9");
    export_net_fill(&n, 100);
    assert_ok(save(&n, LAYOUT_KERAS_LEGACY, temporary(directory, prefix)));
    for (int e = 0; e < 2; e++) {
        uint8_t *bytes;
        size_t size;
        struct checkpoint_loaded loaded;
        snprintf(path, sizeof path, "%s%s", prefix, endings[e]);
        assert_ok(file_read(path, 1 << 20, &bytes, &size));
        for (size_t length = 0; length < size; length++) {
            write_bytes(path, bytes, length);
            assert_int_not_equal(load(&n, true, prefix, &loaded, NULL), STATUS_OK);
            assert_int_equal(n.puts, 0);
        }
        for (size_t i = 0; i < size; i++) {
            uint8_t bit = (uint8_t)(1u << i % 8);
            bytes[i] ^= bit;
            write_bytes(path, bytes, size);
            load_damaged(&n, prefix);
            bytes[i] ^= bit;
        }
        write_bytes(path, bytes, size);
        mem_free(bytes);
    }
    remove_tree(directory);
    export_net_close(&n);
}

// ---- Another model ----------------------------------------------------------------------------------

static struct node *build_wider(struct net *net, struct node *x)
{
    x = layer_flatten(net, x, NULL);
    return layer_dense(net, x, &(struct dense_options){.units = 3});
}

static struct node *build_deeper(struct net *net, struct node *x)
{
    x = build_speck(net, x);
    return layer_dense(net, x, &(struct dense_options){.units = 2});
}

static struct node *build_unbiased(struct net *net, struct node *x)
{
    x = layer_flatten(net, x, NULL);
    return layer_dense(net, x, &(struct dense_options){.units = 2, .no_bias = true});
}

static void test_other_model(void **state)
{
    (void)state;
    static const struct {
        build_layers *saved, *loaded;
        const char *sentence;
    } cases[] = {
        {build_speck, build_wider, ": the weight dense/kernel has the shape (4, 2) there, expected "
         "(4, 3): it is a checkpoint of another model"},
        {build_speck, build_deeper, ": has no weight dense_1/kernel, expected one of shape (2, 2): it "
         "is a checkpoint of another model"},
        {build_unbiased, build_speck, ": has no weight dense/bias, expected one of shape (2): it is a "
         "checkpoint of another model"},
        {build_deeper, build_speck, ": has the weight layer_with_weights-1/kernel/.ATTRIBUTES/"
         "VARIABLE_VALUE, which this model has not: it is a checkpoint of another model"},
        {build_speck, build_unbiased, ": has the weight layer_with_weights-0/bias/.ATTRIBUTES/"
         "VARIABLE_VALUE, which this model has not: it is a checkpoint of another model"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        char directory[32], prefix[64], sentence[400];
        struct export_net a, b;
        struct checkpoint_loaded loaded;
        export_net_open(&a, cases[i].saved, speck, "adam", "0.9");
        export_net_open(&b, cases[i].loaded, speck, "adam", "0.9");
        assert_ok(save(&a, LAYOUT_KERAS, temporary(directory, prefix)));
        assert_int_equal(load(&b, true, prefix, &loaded, NULL), ERR_MISMATCH);
        snprintf(sentence, sizeof sentence, "%s%s", prefix, cases[i].sentence);
        assert_string_equal(error_get()->message, sentence);
        assert_null(loaded.state_json);
        assert_int_equal(b.puts, 0);
        remove_tree(directory);
        export_net_close(&a);
        export_net_close(&b);
    }
}

// ---- Files of others --------------------------------------------------------------------------------

enum { FOREIGN_COUNT = 2 };

// The weights of build_speck under the given keys; with a graph where there are names for its children.
static void write_foreign(const char *prefix, const char *const keys[FOREIGN_COUNT],
                          const char *const path[], const char *const names[FOREIGN_COUNT],
                          enum dtype dtype)
{
    static const double wide[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct shape shapes[FOREIGN_COUNT] = {SHAPE(4, 2), SHAPE(2)};
    struct bundle_writer *writer;
    assert_ok(bundle_create(prefix, &writer));
    struct object_graph graph;
    object_graph_init(&graph);
    int parent = 0;
    for (int i = 0; path && path[i]; i++) {
        parent = object_add(&graph, parent, path[i]);
    }
    for (int i = 0; i < FOREIGN_COUNT; i++) {
        const void *data = dtype == DTYPE_F64 ? (const void *)wide : values;
        char key[128];
        snprintf(key, sizeof key, "%s%s", keys[i], path ? "/.ATTRIBUTES/VARIABLE_VALUE" : "");
        assert_ok(bundle_put(writer, key, dtype, shapes[i], data));
        object_set_variable(&graph, object_add(&graph, parent, names[i]), keys[i], NULL);
    }
    if (path) {
        struct text bytes = {0};
        object_graph_encode(&graph, &bytes);
        assert_ok(bundle_put_string(writer, "_CHECKPOINTABLE_OBJECT_GRAPH", bytes.data, bytes.size));
        text_release(&bytes);
    }
    object_graph_release(&graph);
    assert_ok(bundle_commit(writer));
}

static void test_foreign_names(void **state)
{
    (void)state;
    static const char *const weights[] = {"kernel", "bias"};
    static const char *const hidden[] = {"_kernel", "bias"};
    static const char *const variables[] = {"dense/kernel", "dense/bias"};
    static const char *const any[] = {"a/b", "c"};
    static const struct {
        const char *const *keys, *path[5], *const *names;
    } cases[] = {
        {any, {"layer_with_weights-0"}, weights},
        {any, {"layer-1"}, weights},
        {any, {"net", "layer_with_weights-0"}, weights},
        {any, {"_functional", "_operations", "2"}, hidden},          // Keras 3, the model itself
        {any, {"model", "_functional", "_operations", "2"}, hidden}, // Keras 3, Checkpoint(model=)
        {variables, {NULL}, weights},                                // TensorFlow 1: no graph
    };
    struct export_net n;
    export_net_open(&n, build_speck, speck, NULL, NULL);
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        char directory[32], prefix[64];
        struct checkpoint_loaded loaded;
        struct text report = {0};
        const char *const *path = cases[i].path[0] ? cases[i].path : NULL;
        write_foreign(temporary(directory, prefix), cases[i].keys, path, cases[i].names, DTYPE_F32);
        export_net_fill(&n, 100);
        assert_ok(load(&n, false, prefix, &loaded, &report));
        assert_int_equal(loaded.iterations, -1);
        assert_null(loaded.state_json);
        assert_int_equal(n.puts, 2);
        assert_true(((float *)n.data[0])[7] == 8 && ((float *)n.data[1])[1] == 2);
        assert_non_null(strstr(report.data, "dense/kernel                     (4, 2)"));
        text_release(&report);

        char sentence[256];
        write_foreign(prefix, cases[i].keys, path, cases[i].names, DTYPE_F64);
        assert_int_equal(load(&n, false, prefix, &loaded, NULL), ERR_MISMATCH);
        snprintf(sentence, sizeof sentence, "%s: the weight dense/kernel is float64 there, expected "
                 "float32; save it again as float32", prefix);
        assert_string_equal(error_get()->message, sentence);
        remove_tree(directory);
    }
    export_net_close(&n);
}

#define INTEROP "golden/keras/interop/"

static void compare_npy(const struct export_net *n, const char *folder, const char *name)
{
    char path[512], below[256];
    enum dtype dtype;
    struct shape shape;
    void *data;
    const struct variable *variable = variables_find(&n->variables, name);
    snprintf(below, sizeof below, INTEROP "%s/weights/%s.npy", folder, name);
    *strrchr(below, '/') = '.';  // conv2d.kernel.npy
    assert_non_null(test_shared(path, sizeof path, below));
    assert_ok(npy_read(path, &dtype, &shape, &data));
    assert_int_equal(dtype, DTYPE_F32);
    assert_true(shape_equal(shape, variable->shape));
    assert_memory_equal(data, n->data[variable->id], variable_bytes(variable));
    mem_free(data);
}

// A slot against the tensor that TensorFlow stored under this key.
static void compare_slot(const struct export_net *n, const char *prefix, const char *name,
                         const char *path)
{
    char key[256];
    struct bundle *bundle;
    const struct variable *slot = variables_find(&n->variables, name);
    void *data = calloc(1, variable_bytes(slot));
    snprintf(key, sizeof key, "%s/.ATTRIBUTES/VARIABLE_VALUE", path);
    assert_ok(bundle_open(prefix, &bundle));
    assert_ok(bundle_read(bundle, key, slot->dtype, slot->shape, data));
    assert_memory_equal(data, n->data[slot->id], variable_bytes(slot));
    bundle_close(bundle);
    free(data);
}

static void test_loads_tensorflow(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *prefix, *optimizer;
        int64_t iterations;  // as tf.train.load_checkpoint reads them
        const char *slots[2][2];
    } cases[] = {
        {"legacy_adam", "training_checkpoints/ckpt_2", "adam", 20,
         {{"dense/kernel/m", "layer_with_weights-1/kernel/.OPTIMIZER_SLOT/optimizer/m"},
          {"dense_1/bias/v", "layer_with_weights-2/bias/.OPTIMIZER_SLOT/optimizer/v"}}},
        {"new_adam", "training_checkpoints/ckpt_2", "adam", 20,
         {{"dense/kernel/m", "optimizer/_variables/5"},
          {"dense_1/bias/v", "optimizer/_variables/12"}}},
        {"legacy_adam", "saved_model/variables/variables", "adam", 20,
         {{"dense/kernel/m", "layer_with_weights-1/kernel/.OPTIMIZER_SLOT/optimizer/m"},
          {"dense_1/bias/v", "layer_with_weights-2/bias/.OPTIMIZER_SLOT/optimizer/v"}}},
        {"train_checkpoint", "tf_ckpts/ckpt-3", "momentum", 30,
         {{"dense/kernel/momentum",
           "model/layer_with_weights-1/kernel/.OPTIMIZER_SLOT/optimizer/momentum"},
          {"conv2d/bias/momentum",
           "model/layer_with_weights-0/bias/.OPTIMIZER_SLOT/optimizer/momentum"}}},
    };
    static const char *const weights[] = {"conv2d/kernel", "conv2d/bias",    "dense/kernel",
                                          "dense/bias",    "dense_1/kernel", "dense_1/bias"};
    char path[512], prefix[512], below[256];
    if (!test_shared(path, sizeof path, INTEROP "interop.md")) {
        SKIP("TensorFlow's checkpoints are not beside the checkout");
    }
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct export_net n;
        struct checkpoint_loaded loaded;
        export_net_open(&n, build_narrow, digit, cases[i].optimizer, "0.9");
        snprintf(below, sizeof below, INTEROP "%s/%s", cases[i].folder, cases[i].prefix);
        (void)test_shared(prefix, sizeof prefix, below);  // a prefix is no file
        assert_ok(load(&n, true, prefix, &loaded, NULL));
        assert_int_equal(loaded.iterations, cases[i].iterations);
        assert_true(loaded.has_slots);
        assert_null(loaded.state_json);
        for (size_t w = 0; w < ARRAY_COUNT(weights); w++) {
            compare_npy(&n, cases[i].folder, weights[w]);
        }
        for (int s = 0; s < 2; s++) {
            compare_slot(&n, prefix, cases[i].slots[s][0], cases[i].slots[s][1]);
        }
        export_net_close(&n);
    }
    struct export_net n;
    struct checkpoint_loaded loaded;
    export_net_open(&n, build_narrow, digit, "adam", "0.9");
    (void)test_shared(prefix, sizeof prefix, INTEROP "full_width/training_checkpoints/ckpt_1");
    assert_fails(load(&n, true, prefix, &loaded, NULL), ERR_MISMATCH,
                 "/ckpt_1: the weight conv2d/kernel has the shape (3, 3, 1, 32) there, expected (3, 3, "
                 "1, 8): it is a checkpoint of another model");
    assert_int_equal(n.puts, 0);
    export_net_close(&n);
}

// Every tensor of TensorFlow's own file is in ours, of the same type and shape and under the same key.
static void test_same_keys(void **state)
{
    (void)state;
    static const struct {
        const char *theirs, *optimizer;
        enum optimizer_layout layout;
    } cases[] = {
        {"legacy_adam/training_checkpoints/ckpt_2", "adam", LAYOUT_KERAS_LEGACY},
        {"new_adam/training_checkpoints/ckpt_2", "adam", LAYOUT_KERAS},
    };
    char path[512], theirs[512], below[256];
    if (!test_shared(path, sizeof path, INTEROP "interop.md")) {
        SKIP("TensorFlow's checkpoints are not beside the checkout");
    }
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        char directory[32], prefix[64];
        struct export_net n;
        struct bundle *a, *b;
        export_net_open(&n, build_narrow, digit, cases[i].optimizer, "0.9");
        assert_ok(save(&n, cases[i].layout, temporary(directory, prefix)));
        snprintf(below, sizeof below, INTEROP "%s", cases[i].theirs);
        (void)test_shared(theirs, sizeof theirs, below);
        assert_ok(bundle_open(theirs, &a));
        assert_ok(bundle_open(prefix, &b));
        for (int k = 0; k < bundle_count(a); k++) {
            const struct bundle_entry *their = bundle_at(a, k);
            const struct bundle_entry *our = bundle_find(b, their->name);
            if (!our) {
                fail_msg("%s: ours has no %s", cases[i].theirs, their->name);
            }
            assert_int_equal(our->tf_dtype, their->tf_dtype);
            assert_true(shape_equal(our->shape, their->shape));
        }
        float beta = 0;
        if (cases[i].layout == LAYOUT_KERAS_LEGACY) {
            assert_ok(bundle_read(b, "optimizer/beta_2/.ATTRIBUTES/VARIABLE_VALUE", DTYPE_F32,
                                  shape_scalar(), &beta));
            assert_true(beta == 0.999f);
        }
        bundle_close(a);
        bundle_close(b);
        remove_tree(directory);
        export_net_close(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),      cmocka_unit_test(test_other_optimizer),
        cmocka_unit_test(test_faults),          cmocka_unit_test(test_damage),
        cmocka_unit_test(test_other_model),     cmocka_unit_test(test_foreign_names),
        cmocka_unit_test(test_loads_tensorflow), cmocka_unit_test(test_same_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
