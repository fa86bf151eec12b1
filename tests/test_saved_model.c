// SPDX-License-Identifier: Apache-2.0
// test_saved_model.c: the folder of a SavedModel: a graph whose every reference is there, the values,
// whole or not at all on disk, and what cannot be exported refused with a sentence. That TensorFlow
// computes the same from it is proved by scripts/interop_test.
#include "export_net.h"

static const struct shape digit = {.rank = 4, .dim = {1, 28, 28, 1}};

// Every op that has a row.
static struct node *build_all(struct net *net, struct node *x)
{
    struct op_attr pad = {.stop = {0, 6}};
    x = layer_conv2d(net, x, &(struct conv2d_options){
        .filters = 4, .kernel = {3, 3}, .stride = {2, 2}, .padding = PADDING_SAME,
        .activation = ACTIVATION_RELU});
    x = layer_batch_norm(net, x, &(struct batch_norm_options){0});
    x = layer_max_pool2d(net, x, &(struct pool2d_options){.window = {2, 2}});
    x = layer_conv2d(net, x, &(struct conv2d_options){
        .filters = 4, .kernel = {3, 3}, .no_bias = true, .activation = ACTIVATION_TANH});
    x = layer_avg_pool2d(net, x, &(struct pool2d_options){.window = {2, 2}, .padding = PADDING_SAME});
    struct node *pooled = layer_global_avg_pool2d(net, x, NULL);
    x = layer_flatten(net, x, NULL);
    x = layer_dense(net, x, &(struct dense_options){.units = 4, .activation = ACTIVATION_SIGMOID});
    net->graph->layer = "joined";  // no layer, but ops that other exporters of layers may need
    x = GRAPH_NODE(net->graph, OP_SUB, NULL, x, pooled);
    x = GRAPH_NODE(net->graph, OP_PAD, &pad, x);  // (1, 10)
    x = GRAPH_NODE(net->graph, OP_DIV, NULL, x, graph_scalar(net->graph, DTYPE_F32, 2));
    return GRAPH_NODE(net->graph, OP_SOFTMAX, NULL, x);
}

static enum status save(struct export_net *n, const char *directory)
{
    struct saved_model_info info = {.net = &n->net, .input = n->input, .output = n->output,
                                    .model_output = n->output, .model_name = "net",
                                    .variables = &n->variables};
    struct variable_store store = export_net_store(n);
    return saved_model_save(directory, &info, &store);
}

static void temporary(char parent[32], char directory[64])
{
    snprintf(parent, 32, "/tmp/trainer_test_XXXXXX");
    assert_non_null(mkdtemp(parent));
    snprintf(directory, 64, "%s/model", parent);
}

// ---- What the file says -----------------------------------------------------------------------------

// The first field of this number, a message or string; a reader over nothing when there is none.
static struct wire_reader field_of(struct wire_reader reader, int field)
{
    struct wire_reader found;
    wire_open(&found, "", 0);
    while (wire_next(&reader)) {
        if (reader.field == field && reader.type == 2) {
            wire_open(&found, reader.bytes, reader.size);
            break;
        }
    }
    return found;
}

static void string_of(struct wire_reader reader, int field, char *out, size_t size)
{
    struct wire_reader found = field_of(reader, field);
    snprintf(out, size, "%.*s", (int)(found.end - found.at), (const char *)found.at);
}

// The value of a map's entry { key 1, value 2 }.
static struct wire_reader entry_of(struct wire_reader reader, int field, const char *key)
{
    struct wire_reader entry;
    char name[128];
    wire_open(&entry, "", 0);
    while (wire_next(&reader)) {
        if (reader.field == field) {
            struct wire_reader candidate;
            wire_open(&candidate, reader.bytes, reader.size);
            string_of(candidate, 1, name, sizeof name);
            if (strcmp(name, key) == 0) {
                return field_of(candidate, 2);
            }
        }
    }
    return entry;
}

struct names {
    char items[128][96];
    int count;
};

static bool has_name(const struct names *names, const char *name)
{
    for (int i = 0; i < names->count; i++) {
        if (strcmp(names->items[i], name) == 0) {
            return true;
        }
    }
    return false;
}

// Adds the nodes in field `field` to the names; each input has to be among those before. `ops` gets
// the kinds in order, without what only reads or holds values.
static void walk_nodes(struct wire_reader graph, int field, struct names *names, struct text *ops)
{
    while (wire_next(&graph)) {
        if (graph.field != field) {
            continue;
        }
        struct wire_reader node, inputs;
        char name[96], op[64];
        wire_open(&node, graph.bytes, graph.size);
        string_of(node, 1, name, sizeof name);
        string_of(node, 2, op, sizeof op);
        for (inputs = node; wire_next(&inputs);) {
            char input[96];
            if (inputs.field != 3) {
                continue;
            }
            snprintf(input, sizeof input, "%.*s", (int)inputs.size, (const char *)inputs.bytes);
            char *colon = strchr(input, ':'), *from = input + (*input == '^');
            if (colon) {
                *colon = '\0';
            }
            if (!has_name(names, from)) {
                fail_msg("%s (%s) reads %s, which does not come before it", name, op, from);
            }
        }
        assert_false(has_name(names, name));
        assert_true(names->count < (int)ARRAY_COUNT(names->items));
        snprintf(names->items[names->count++], sizeof names->items[0], "%s", name);
        if (strcmp(op, "Const") && strcmp(op, "ReadVariableOp") && strcmp(op, "VarHandleOp")) {
            text_printf(ops, " %s", op);
        }
    }
    assert_false(graph.damaged);
}

#define LAYER_OPS                                                                             \
    " Conv2D BiasAdd Relu AddV2 Rsqrt Mul Sub Mul AddV2 MaxPool Conv2D Tanh AvgPool Reshape " \
    "MatMul BiasAdd Sigmoid Sum Mul Sub Pad RealDiv Softmax"

static void test_graph(void **state)
{
    (void)state;
    static struct names flat, inner;
    char parent[32], directory[64], path[128], text[64];
    struct export_net n;
    uint8_t *bytes;
    size_t size;
    struct text ops = {0};
    flat.count = inner.count = 0;
    export_net_open(&n, build_all, digit, NULL, NULL);
    temporary(parent, directory);
    assert_ok(save(&n, directory));
    snprintf(path, sizeof path, "%s/saved_model.pb", directory);
    assert_ok(file_read(path, 1 << 20, &bytes, &size));
    struct wire_reader model;
    wire_open(&model, bytes, size);
    struct wire_reader meta = field_of(model, 2), graph = field_of(meta, 2);
    walk_nodes(graph, 1, &flat, &ops);
    assert_string_equal(text_get(&ops), " Placeholder" LAYER_OPS " Identity Placeholder RestoreV2 "
                        "AssignVariableOp AssignVariableOp AssignVariableOp AssignVariableOp "
                        "AssignVariableOp AssignVariableOp AssignVariableOp AssignVariableOp "
                        "AssignVariableOp NoOp SaveV2 Identity");
    // The function has arguments in the place of placeholder and variables.
    struct wire_reader function = field_of(field_of(graph, 2), 1), signature = field_of(function, 1);
    for (struct wire_reader arguments = signature; wire_next(&arguments);) {
        if (arguments.field == 2) {
            struct wire_reader argument;
            wire_open(&argument, arguments.bytes, arguments.size);
            string_of(argument, 1, inner.items[inner.count++], sizeof inner.items[0]);
        }
    }
    assert_int_equal(inner.count, 1 + n.variables.count);
    text_clear(&ops);
    walk_nodes(function, 3, &inner, &ops);
    assert_string_equal(text_get(&ops), LAYER_OPS);
    // What a server reads: the names, and a batch of any size.
    struct wire_reader serving = entry_of(meta, 5, "serving_default");
    struct wire_reader image = entry_of(serving, 1, "image");
    struct wire_reader result = entry_of(serving, 2, "probabilities");
    string_of(image, 1, text, sizeof text);
    assert_string_equal(text, "serving_default_image:0");
    string_of(result, 1, text, sizeof text);
    assert_string_equal(text, "probabilities:0");
    static const int64_t expected[] = {-1, 28, 28, 1};
    struct wire_reader shape = field_of(image, 3);
    for (int i = 0; i < 4; i++) {
        struct wire_reader dim;
        assert_true(wire_next(&shape));
        wire_open(&dim, shape.bytes, shape.size);
        assert_true(wire_next(&dim));
        assert_int_equal((int64_t)dim.value, expected[i]);
    }
    text_release(&ops);
    mem_free(bytes);
    remove_tree(parent);
    export_net_close(&n);
}

// The values lie in variables/ as in a checkpoint.
static void test_values(void **state)
{
    (void)state;
    char parent[32], directory[64], prefix[128];
    struct export_net a, b;
    export_net_open(&a, build_all, digit, NULL, NULL);
    export_net_open(&b, build_all, digit, NULL, NULL);
    export_net_fill(&a, 100);
    temporary(parent, directory);
    assert_ok(save(&a, directory));
    snprintf(prefix, sizeof prefix, "%s/variables/variables", directory);
    struct checkpoint_info info = {.net = &b.net, .variables = &b.variables};
    struct variable_store store = export_net_store(&b);
    struct checkpoint_loaded loaded;
    assert_ok(checkpoint_load(prefix, &info, &store, &loaded, NULL));
    for (int i = 0; i < a.variables.count; i++) {
        assert_memory_equal(a.data[i], b.data[i], variable_bytes(a.variables.items[i]));
    }
    remove_tree(parent);
    export_net_close(&a);
    export_net_close(&b);
}

// ---- On disk ----------------------------------------------------------------------------------------

static void touch(const char *directory, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    assert_ok(file_write(path, "x", 1));
}

static void test_replaces(void **state)
{
    (void)state;
    char parent[32], directory[64], slashed[72], message[256];
    struct export_net n;
    export_net_open(&n, build_narrow, digit, NULL, NULL);
    temporary(parent, directory);
    assert_ok(save(&n, directory));
    assert_int_equal(count_names(directory), 3);
    touch(directory, "fingerprint.pb");  // of an older TensorFlow's export: goes with it
    snprintf(slashed, sizeof slashed, "%s//", directory);
    assert_ok(save(&n, slashed));
    assert_int_equal(count_names(directory), 3);
    assert_int_equal(count_names(parent), 1);

    // Something else of that name stays.
    remove_tree(directory);
    assert_ok(file_mkdirs(directory));
    touch(directory, "thesis.tex");
    assert_int_equal(save(&n, directory), ERR_IO);
    snprintf(message, sizeof message, "%s: holds 1 files but no SavedModel; nothing was replaced. Give "
             "export.destination another name", directory);
    assert_string_equal(error_get()->message, message);
    assert_int_equal(count_names(directory), 1);
    assert_int_equal(count_names(parent), 1);

    // An empty folder may be filled; files nobody knows are never deleted.
    remove_tree(directory);
    assert_ok(file_mkdirs(directory));
    assert_ok(save(&n, directory));
    touch(directory, "notes.txt");
    enum log_level level = log_get_level();
    log_set_level(LOG_ERROR);
    assert_ok(save(&n, directory));
    log_set_level(level);
    assert_int_equal(count_names(directory), 3);
    assert_int_equal(count_names(parent), 2);
    remove_tree(parent);
    export_net_close(&n);
}

static float first_value(struct export_net *n, const char *directory)
{
    char prefix[128], path[128];
    struct checkpoint_info info = {.net = &n->net, .variables = &n->variables};
    struct variable_store store = export_net_store(n);
    struct checkpoint_loaded loaded;
    snprintf(prefix, sizeof prefix, "%s/variables/variables", directory);
    snprintf(path, sizeof path, "%s/saved_model.pb", directory);
    assert_true(file_exists(path));
    assert_int_equal(count_names(directory), 3);
    assert_ok(checkpoint_load(prefix, &info, &store, &loaded, NULL));
    return *(float *)n->data[0];
}

// A write that fails at any point leaves the old model, whole, and nothing beside it.
static void test_faults(void **state)
{
    (void)state;
    char parent[32], directory[64];
    struct export_net n;
    export_net_open(&n, build_narrow, digit, NULL, NULL);
    temporary(parent, directory);
    export_net_fill(&n, 100);
    assert_ok(save(&n, directory));
    for (int k = 1;; k++) {
        export_net_fill(&n, 200);
        file_fail_after(k);
        enum status status = save(&n, directory);
        file_fail_after(0);
        assert_int_equal(count_names(parent), 1);
        assert_true(first_value(&n, directory) == (status == STATUS_OK ? 200 : 100));
        if (status == STATUS_OK) {
            assert_true(k > 8);  // four files created, written, synced, renamed
            break;
        }
    }
    remove_tree(parent);
    export_net_close(&n);
}

// ---- What cannot be exported ------------------------------------------------------------------------

static struct node *build_erf(struct net *net, struct node *x)
{
    x = build_narrow(net, x);
    net->graph->layer = "gelu";
    return GRAPH_NODE(net->graph, OP_ERF, NULL, x);
}

static struct node *build_spaced(struct net *net, struct node *x)
{
    x = layer_flatten(net, x, "flat");
    return layer_dense(net, x, &(struct dense_options){.name = "my layer", .units = 2});
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        build_layers *build;
        const char *message;
    } cases[] = {
        {build_erf, "layer gelu: the op erf has no counterpart for a SavedModel yet"},
        {build_spaced, "layer 'my layer': TensorFlow takes only names of letters, digits, . _ - and /, "
         "with a letter, digit or dot first; give the layer such a name"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        char parent[32], directory[64];
        struct export_net n;
        export_net_open(&n, cases[i].build, digit, NULL, NULL);
        temporary(parent, directory);
        assert_int_equal(save(&n, directory), ERR_UNSUPPORTED);
        assert_string_equal(error_get()->message, cases[i].message);
        assert_int_equal(count_names(parent), 0);
        remove_tree(parent);
        export_net_close(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph),  cmocka_unit_test(test_values),  cmocka_unit_test(test_replaces),
        cmocka_unit_test(test_faults), cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
