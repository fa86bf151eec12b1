// SPDX-License-Identifier: Apache-2.0
// model_custom_cnn.c: a sequence of layers listed in the configuration, so that an architecture can
// be tried without writing C:
//   layers: [{conv2d: {filters: 32, kernel: 3, activation: relu}}, {max_pool2d: {window: 2}}, flatten,
//            {dense: {units: 10}}]
#include <stdio.h>
#include <string.h>

#include "trainer/model.h"

#define LAYERS "model.model_params.layers"

static const struct config_field fields[] = {
    {LAYERS, CONFIG_ANY, CONFIG_NULLABLE, "null", 0, 0, NULL,
     "List of layers: conv2d, max_pool2d, avg_pool2d, global_avg_pool2d, batch_norm, flatten, "
     "dense, dropout, activation, each with its options."},
};

// One layer of the list: its options, which of them were read, and where to complain.
struct reader {
    struct net *net;
    const char *kind;
    struct value_place place;
    const struct value *options;  // a map, or NULL when the layer was given by name only
};

// Records a failure that names the place in the configuration.
static void complain(const struct reader *r, struct value_place place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void complain(const struct reader *r, struct value_place place, const char *format, ...)
{
    struct text message = {0};
    char buffer[512];
    va_list args;
    va_start(args, format);
    vsnprintf(buffer, sizeof buffer, format, args);
    va_end(args);
    text_printf(&message, "%s:%d:%d: %s", place.source ? place.source : "default", place.line,
                place.column, buffer);
    graph_fail(r->net->graph, "%s", text_get(&message));
    text_release(&message);
}

static int read_int(const struct reader *r, const char *key, int otherwise, int least)
{
    const struct value *value = r->options ? value_find(r->options, key) : NULL;
    if (!value && otherwise >= least) {
        return otherwise;
    }
    if (!value) {
        complain(r, r->place, "layer %s needs '%s'", r->kind, key);
    } else if (value->kind != VALUE_INT || value->integer < least || value->integer > 65536) {
        complain(r, value->place, "%s.%s is %s, expected an integer from %d to 65536", r->kind, key,
                 value_kind_name(value->kind), least);
    } else {
        return (int)value->integer;
    }
    return MAX(otherwise, 1);
}

static double read_float(const struct reader *r, const char *key, double otherwise)
{
    const struct value *value = r->options ? value_find(r->options, key) : NULL;
    if (value && value->kind != VALUE_FLOAT && value->kind != VALUE_INT) {
        complain(r, value->place, "%s.%s is %s, expected a number", r->kind, key,
                 value_kind_name(value->kind));
        return otherwise;
    }
    return !value ? otherwise : value->kind == VALUE_INT ? (double)value->integer : value->number;
}

static const char *read_string(const struct reader *r, const char *key, const char *otherwise)
{
    const struct value *value = r->options ? value_find(r->options, key) : NULL;
    if (value && value->kind != VALUE_STRING) {
        complain(r, value->place, "%s.%s is %s, expected a string", r->kind, key,
                 value_kind_name(value->kind));
        return otherwise;
    }
    return value ? value->string : otherwise;
}

static bool read_bool(const struct reader *r, const char *key, bool otherwise)
{
    const struct value *value = r->options ? value_find(r->options, key) : NULL;
    if (value && value->kind != VALUE_BOOL) {
        complain(r, value->place, "%s.%s is %s, expected true or false", r->kind, key,
                 value_kind_name(value->kind));
        return otherwise;
    }
    return value ? value->boolean : otherwise;
}

static enum activation read_activation(const struct reader *r)
{
    enum activation activation = ACTIVATION_NONE;
    const char *name = read_string(r, "activation", "linear");
    if (!activation_find(name, &activation)) {
        struct text known = {0};
        text_append_list(&known, activation_names());
        complain(r, r->place, "%s: unknown activation '%s'; known: %s", r->kind, name,
                 text_get(&known));
        text_release(&known);
    }
    return activation;
}

static enum padding read_padding(const struct reader *r)
{
    const char *name = read_string(r, "padding", "valid");
    if (strcmp(name, "valid") && strcmp(name, "same")) {
        complain(r, r->place, "%s: unknown padding '%s'; known: valid, same", r->kind, name);
    }
    return strcmp(name, "same") ? PADDING_VALID : PADDING_SAME;
}

static struct node *make_conv2d(const struct reader *r, struct node *x)
{
    int kernel = read_int(r, "kernel", 0, 1), stride = read_int(r, "stride", 1, 1);
    int dilation = read_int(r, "dilation", 1, 1);
    return layer_conv2d(r->net, x, &(struct conv2d_options){
        .name = read_string(r, "name", NULL), .filters = read_int(r, "filters", 0, 1),
        .kernel = {kernel, kernel}, .stride = {stride, stride}, .dilation = {dilation, dilation},
        .groups = read_int(r, "groups", 1, 1), .padding = read_padding(r),
        .activation = read_activation(r), .no_bias = !read_bool(r, "use_bias", true),
        .l2 = read_float(r, "l2", 0)});
}

static struct pool2d_options read_pool(const struct reader *r)
{
    int window = read_int(r, "window", 2, 1), stride = read_int(r, "stride", window, 1);
    return (struct pool2d_options){.name = read_string(r, "name", NULL),
                                   .window = {window, window},
                                   .stride = {stride, stride},
                                   .padding = read_padding(r)};
}

static struct node *make_max_pool2d(const struct reader *r, struct node *x)
{
    struct pool2d_options pool = read_pool(r);
    return layer_max_pool2d(r->net, x, &pool);
}

static struct node *make_avg_pool2d(const struct reader *r, struct node *x)
{
    struct pool2d_options pool = read_pool(r);
    return layer_avg_pool2d(r->net, x, &pool);
}

static struct node *make_global_avg_pool2d(const struct reader *r, struct node *x)
{
    return layer_global_avg_pool2d(r->net, x, read_string(r, "name", NULL));
}

static struct node *make_batch_norm(const struct reader *r, struct node *x)
{
    return layer_batch_norm(r->net, x, &(struct batch_norm_options){
        .name = read_string(r, "name", NULL), .momentum = read_float(r, "momentum", 0.99),
        .epsilon = read_float(r, "epsilon", 1e-3)});
}

static struct node *make_flatten(const struct reader *r, struct node *x)
{
    return layer_flatten(r->net, x, read_string(r, "name", NULL));
}

static struct node *make_dense(const struct reader *r, struct node *x)
{
    return layer_dense(r->net, x, &(struct dense_options){
        .name = read_string(r, "name", NULL), .units = read_int(r, "units", 0, 1),
        .activation = read_activation(r), .no_bias = !read_bool(r, "use_bias", true),
        .l2 = read_float(r, "l2", 0)});
}

static struct node *make_dropout(const struct reader *r, struct node *x)
{
    return layer_dropout(r->net, x, read_string(r, "name", NULL), read_float(r, "rate", 0.5));
}

static struct node *make_activation(const struct reader *r, struct node *x)
{
    return layer_activation(r->net, x, read_string(r, "name", NULL), read_activation(r));
}

static const struct {
    const char *kind;
    struct node *(*make)(const struct reader *r, struct node *x);
    const char *const options[12];  // NULL-terminated
} kinds[] = {
    {"conv2d", make_conv2d, {"name", "filters", "kernel", "stride", "dilation", "groups",
                             "padding", "activation", "use_bias", "l2", NULL}},
    {"max_pool2d", make_max_pool2d, {"name", "window", "stride", "padding", NULL}},
    {"avg_pool2d", make_avg_pool2d, {"name", "window", "stride", "padding", NULL}},
    {"global_avg_pool2d", make_global_avg_pool2d, {"name", NULL}},
    {"batch_norm", make_batch_norm, {"name", "momentum", "epsilon", NULL}},
    {"flatten", make_flatten, {"name", NULL}},
    {"dense", make_dense, {"name", "units", "activation", "use_bias", "l2", NULL}},
    {"dropout", make_dropout, {"name", "rate", NULL}},
    {"activation", make_activation, {"name", "activation", NULL}},
};

static void check_options(const struct reader *r, const char *const *known)
{
    for (int i = 0; r->options && i < r->options->map.count; i++) {
        const char *key = r->options->map.keys[i];
        bool found = false;
        for (const char *const *name = known; *name; name++) {
            found |= strcmp(*name, key) == 0;
        }
        if (!found) {
            struct text list = {0};
            text_append_list(&list, known);
            const char *near = text_nearest(key, known);
            complain(r, r->options->map.key_places[i],
                     "layer %s has no option '%s'%s%s%s; it has: %s", r->kind, key,
                     near ? "; did you mean '" : "", near ? near : "", near ? "'" : "",
                     text_get(&list));
            text_release(&list);
        }
    }
}

static struct node *make_layer(struct net *net, const struct value *item, struct node *x)
{
    struct reader r = {.net = net, .place = item->place};
    if (item->kind == VALUE_STRING) {
        r.kind = item->string;
    } else if (item->kind == VALUE_MAP && item->map.count == 1) {
        r.kind = item->map.keys[0];
        r.options = item->map.items[0]->kind == VALUE_MAP ? item->map.items[0] : NULL;
    } else {
        complain(&r, item->place, "a layer is a name or one 'name: {options}', got %s",
                 value_kind_name(item->kind));
        return NULL;
    }
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
        if (strcmp(kinds[i].kind, r.kind) == 0) {
            check_options(&r, kinds[i].options);
            return kinds[i].make(&r, x);
        }
    }
    struct text known = {0};
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
        text_printf(&known, "%s%s", i ? ", " : "", kinds[i].kind);
    }
    complain(&r, item->place, "unknown layer '%s'; known: %s", r.kind, text_get(&known));
    text_release(&known);
    return NULL;
}

static struct node *build(struct net *net, const struct config *config, struct node *x)
{
    const struct value *layers = config_value(config, LAYERS);
    char place[256];
    if (!layers || layers->kind != VALUE_LIST || layers->list.count == 0) {
        return graph_fail(net->graph, "%s: " LAYERS " must list at least one layer, for example "
                          "[flatten, {dense: {units: 10}}]",
                          config_place(config, LAYERS, place, sizeof place));
    }
    for (int i = 0; i < layers->list.count && net->graph->status == STATUS_OK; i++) {
        x = make_layer(net, layers->list.items[i], x);
    }
    if (x && x->shape.rank != 2) {
        return graph_fail(net->graph, "the last layer gives %s, expected (N, classes); add flatten "
                          "and dense layers", shape_str(x->shape));
    }
    return x;
}

static const struct model_default defaults[] = {
    {"train_dataset.batch_size", "64"},
    {"validation_dataset.batch_size", "64"},
    {"train.epochs", "5"},
    {"model.optimizer.name", "adam"},
    {"model.optimizer.epsilon", "1.0e-7"},
    {"model.learning_rate.name", "constant"},
    {"model.learning_rate.initial_lr", "1.0e-3"},
    {NULL, NULL},
};

const struct model_def model_custom_cnn = {
    .name = "custom_cnn",
    .program = "classifier_trainer",
    .help = "layers listed in the configuration",
    .dataset = "mnist",
    .fields = fields,
    .field_count = ARRAY_COUNT(fields),
    .defaults = defaults,
    .build = build,
};
