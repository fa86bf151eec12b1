// SPDX-License-Identifier: Apache-2.0
// keras_restore.c: loading checkpoints of TensorFlow, of Keras and our own. Everything is matched,
// checked and read before the first value is put.
#include <stdio.h>
#include <string.h>

#include "keras_impl.h"

// A variable and where its value lies in the file.
struct match {
    const struct variable *variable;
    const char *key;
    void *data;
};

struct reader {
    const char *prefix;
    const struct checkpoint_info *info;
    struct bundle *bundle;
    struct object_graph graph;   // empty (count 0) for files without one
    int layers;                  // the node whose children are the layers; -1 = none
    int optimizer;               // its node; -1 = none
    int *weight_nodes;           // [variables], -1 = none
    struct match *matches;
    int count, capacity;
    struct text *report;
};

static bool is_layer(const char *name)
{
    return strncmp(name, "layer-", 6) == 0 || strncmp(name, "layer_with_weights-", 19) == 0;
}

static bool has_layers(const struct object_node *node)
{
    for (int i = 0; i < node->child_count; i++) {
        if (is_layer(node->children[i].name)) {
            return true;
        }
    }
    return false;
}

// The layers hang on the root, on a child of it ("model"), or on the operations of Keras 3 below.
static void find_parts(struct reader *reader)
{
    const struct object_graph *graph = &reader->graph;
    const struct object_node *root = graph->nodes[0];
    for (int i = -1; i < root->child_count; i++) {
        int node = i < 0 ? 0 : root->children[i].node;
        int operations =
            object_find(graph, object_find(graph, node, "_functional"), "_operations");
        if (reader->layers < 0) {
            reader->layers = has_layers(graph->nodes[node]) ? node : operations;
        }
        if (reader->optimizer < 0) {
            reader->optimizer = object_find(graph, node, "optimizer");
        }
    }
}

static enum status read_graph(struct reader *reader)
{
    if (!bundle_find(reader->bundle, GRAPH_KEY)) {
        return STATUS_OK;  // TensorFlow 1 and Estimators: names of variables
    }
    uint8_t *bytes;
    size_t size;
    TRY(bundle_read_string(reader->bundle, GRAPH_KEY, &bytes, &size));
    enum status status = object_graph_decode(reader->prefix, bytes, size, &reader->graph);
    mem_free(bytes);
    TRY(status);
    find_parts(reader);
    return STATUS_OK;
}

// Node of layer `index`, the `with_weights`-th with weights.
static int find_layer(const struct reader *reader, int index, int with_weights)
{
    char names[3][40];
    snprintf(names[0], sizeof names[0], "layer_with_weights-%d", with_weights);
    snprintf(names[1], sizeof names[1], "layer-%d", index);
    snprintf(names[2], sizeof names[2], "%d", index + 1);  // Keras 3: operation 0 is the input
    int node = -1;
    for (size_t i = 0; i < ARRAY_COUNT(names) && node < 0; i++) {
        node = object_find(&reader->graph, reader->layers, names[i]);
    }
    return node;
}

static int find_weight(const struct reader *reader, int layer, const char *name)
{
    char hidden[64];
    int node = object_find(&reader->graph, layer, name);
    snprintf(hidden, sizeof hidden, "_%s", name);  // Keras 3: _kernel
    return node >= 0 ? node : object_find(&reader->graph, layer, hidden);
}

static const char *key_of(const struct reader *reader, int node)
{
    return node >= 0 ? reader->graph.nodes[node]->key : NULL;
}

static void add_match(struct reader *reader, const struct variable *variable, const char *key)
{
    GROW(reader->matches, reader->count, reader->capacity);
    reader->matches[reader->count++] = (struct match){variable, key, NULL};
    text_printf(reader->report, "  %-32s %-20s from %s\n", variable->name,
                shape_str(variable->shape), key);
}

static bool is_matched(const struct reader *reader, const char *key)
{
    for (int i = 0; i < reader->count; i++) {
        if (strcmp(reader->matches[i].key, key) == 0) {
            return true;
        }
    }
    return false;
}

static const struct bundle_entry *find_entry(const struct reader *reader, const char *key)
{
    return key ? bundle_find(reader->bundle, key) : NULL;
}

static bool entry_fits(const struct bundle_entry *entry, const struct variable *variable)
{
    return entry && entry->tf_dtype == tf_dtype(variable->dtype) &&
           shape_equal(entry->shape, variable->shape);
}

// Says why `entry` is no value of the variable.
static enum status difference(const struct reader *reader, const struct variable *variable,
                              const struct bundle_entry *entry)
{
    enum dtype stored;
    if (!entry) {
        return FAIL(ERR_MISMATCH,
                    "%s: has no weight %s, expected one of shape %s: it is a checkpoint of another "
                    "model", reader->prefix, variable->name, shape_str(variable->shape));
    }
    if (!shape_equal(entry->shape, variable->shape)) {
        return FAIL(ERR_MISMATCH,
                    "%s: the weight %s has the shape %s there, expected %s: it is a checkpoint of "
                    "another model", reader->prefix, variable->name, shape_str(entry->shape),
                    shape_str(variable->shape));
    }
    return FAIL(ERR_MISMATCH, "%s: the weight %s is %s there, expected %s; save it again as %s",
                reader->prefix, variable->name,
                tf_dtype_find(entry->tf_dtype, &stored) ? dtype_name(stored) : "of another type",
                dtype_name(variable->dtype), dtype_name(variable->dtype));
}

// The report gets every difference, the error the first.
static enum status match_weights(struct reader *reader)
{
    const struct net *net = reader->info->net;
    enum status status = STATUS_OK;
    int with_weights = 0;
    for (int i = 0; i < net->layer_count; i++) {
        const struct layer_record *layer = net->layers[i];
        int node = layer->weight_count ? find_layer(reader, i, with_weights++) : -1;
        for (int w = 0; w < layer->weight_count; w++) {
            const struct variable *variable = layer->weights[w].variable;
            int child = find_weight(reader, node, layer->weights[w].name);
            const char *key = reader->graph.count ? key_of(reader, child) : variable->name;
            const struct bundle_entry *entry = find_entry(reader, key);
            reader->weight_nodes[variable->id] = child;
            if (entry_fits(entry, variable)) {
                add_match(reader, variable, key);
                continue;
            }
            text_printf(reader->report, "  %-32s %-20s %s\n", variable->name,
                        shape_str(variable->shape), entry ? "differs there" : "is not there");
            if (status == STATUS_OK) {
                status = difference(reader, variable, entry);
            }
        }
    }
    return status;
}

// A layer more, or a weight more in a layer, is another model too.
static enum status check_rest(const struct reader *reader)
{
    const struct object_graph *graph = &reader->graph;
    const struct object_node *parent = reader->layers < 0 ? NULL : graph->nodes[reader->layers];
    for (int i = 0; parent && i < parent->child_count; i++) {
        const char *name = parent->children[i].name;
        bool counts = is_layer(name) || (*name >= '0' && *name <= '9');  // Keras 3: an operation
        const struct object_node *layer = graph->nodes[parent->children[i].node];
        for (int w = 0; counts && w < layer->child_count; w++) {
            const char *key = key_of(reader, layer->children[w].node);
            if (key && !is_matched(reader, key)) {
                return FAIL(ERR_MISMATCH,
                            "%s: has the weight %s, which this model has not: it is a checkpoint "
                            "of another model", reader->prefix, key);
            }
        }
    }
    return STATUS_OK;
}

// The key of slot `s` of the `w`-th of `count` trained weights, in any layout; NULL: it has none.
static const char *find_slot_key(const struct reader *reader, const struct variable *weight, int w,
                                 int count, int s, int slots)
{
    const struct object_graph *graph = &reader->graph;
    const struct optimizer_def *def = reader->info->optimizer;
    if (reader->optimizer < 0) {
        return NULL;
    }
    char number[16];
    int list = object_find(graph, reader->optimizer, def->keras_lists[s]);
    snprintf(number, sizeof number, "%d", w);
    const char *key = key_of(reader, object_find(graph, list, number));
    if (!key) {
        list = object_find(graph, reader->optimizer, "_variables");
        snprintf(number, sizeof number, "%d",
                 1 + (def->keras_by_slot ? s * count + w : w * slots + s));
        key = key_of(reader, object_find(graph, list, number));
    }
    const struct object_node *node = graph->nodes[reader->optimizer];
    for (int i = 0; !key && i < node->slot_count; i++) {
        if (node->slots[i].variable == reader->weight_nodes[weight->id] &&
            strcmp(node->slots[i].name, def->slots[s]) == 0) {
            key = key_of(reader, node->slots[i].slot_node);
        }
    }
    return key;
}

// All slots or none.
static bool match_slots(struct reader *reader)
{
    const struct checkpoint_info *info = reader->info;
    const struct variable **weights =
        MEM_NEW_ARRAY(const struct variable *, info->variables->count);
    int count = keras_trained_weights(info->net, weights), before = reader->count;
    int slots = keras_slot_count(info);
    size_t reported = reader->report->size;
    bool all = true;
    for (int i = 0; i < count * slots && all; i++) {
        int w = i / slots, s = i % slots;
        const struct variable *slot =
            keras_find_slot(info->variables, weights[w], info->optimizer->slots[s]);
        const char *key = find_slot_key(reader, weights[w], w, count, s, slots);
        all = !slot || entry_fits(find_entry(reader, key), slot);
        if (all && slot) {
            add_match(reader, slot, key);
        }
    }
    mem_free(weights);
    if (!all) {
        reader->count = before;
        reader->report->size = reported;
        text_printf(reader->report, "  the slots of %s are not there: it starts afresh\n",
                    info->optimizer->name);
    }
    return all;
}

static void report_unused(struct reader *reader)
{
    for (int i = 0; i < bundle_count(reader->bundle); i++) {
        const char *key = bundle_at(reader->bundle, i)->name;
        if (strcmp(key, GRAPH_KEY) && strcmp(key, STATE_KEY) && !is_matched(reader, key)) {
            text_printf(reader->report, "  not a weight or slot here: %s\n", key);
        }
    }
}

static enum status read_iterations(struct reader *reader, int64_t *iterations)
{
    static const char *const names[] = {"_iterations", "iter"};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        const char *key =
            key_of(reader, object_find(&reader->graph, reader->optimizer, names[i]));
        if (key) {
            int64_t value;
            TRY(bundle_read(reader->bundle, key, DTYPE_I64, shape_scalar(), &value));
            if (value < 0) {
                return FAIL(ERR_CORRUPT, "%s: %s is %lld, expected a number of steps",
                            reader->prefix, key, (long long)value);
            }
            *iterations = value;
        }
    }
    return STATUS_OK;
}

// Reads everything before the first value is put: a damaged file changes nothing.
static enum status read_all(struct reader *reader)
{
    for (int i = 0; i < reader->count; i++) {
        struct match *match = &reader->matches[i];
        const struct variable *variable = match->variable;
        match->data =
            mem_alloc((size_t)shape_count(variable->shape) * dtype_size(variable->dtype));
        TRY(bundle_read(reader->bundle, match->key, variable->dtype, variable->shape, match->data));
    }
    return STATUS_OK;
}

static enum status load(struct reader *reader, const struct variable_store *store,
                        struct checkpoint_loaded *out)
{
    TRY(read_graph(reader));
    text_printf(reader->report, "%s:\n", reader->prefix);
    TRY(match_weights(reader));
    TRY(check_rest(reader));
    out->has_slots = reader->info->optimizer && match_slots(reader);
    report_unused(reader);
    TRY(read_iterations(reader, &out->iterations));
    TRY(read_all(reader));
    if (bundle_find(reader->bundle, STATE_KEY)) {
        uint8_t *bytes;
        size_t size;
        TRY(bundle_read_string(reader->bundle, STATE_KEY, &bytes, &size));
        out->state_json = (char *)bytes;  // bundle_read_string ends it with a NUL
    }
    for (int i = 0; i < reader->count; i++) {
        TRY(store->put(store->context, reader->matches[i].variable, reader->matches[i].data));
    }
    return STATUS_OK;
}

enum status checkpoint_load(const char *prefix, const struct checkpoint_info *info,
                            const struct variable_store *store, struct checkpoint_loaded *out,
                            struct text *report)
{
    struct text unused = {0};
    struct reader reader = {.prefix = prefix,
                            .info = info,
                            .layers = -1,
                            .optimizer = -1,
                            .weight_nodes = MEM_NEW_ARRAY(int, info->variables->count),
                            .report = report ? report : &unused};
    *out = (struct checkpoint_loaded){.iterations = -1};
    enum status status = bundle_open(prefix, &reader.bundle);
    if (status == STATUS_OK) {
        status = load(&reader, store, out);
    }
    if (status != STATUS_OK) {
        mem_free(out->state_json);
        out->state_json = NULL;
    }
    for (int i = 0; i < reader.count; i++) {
        mem_free(reader.matches[i].data);
    }
    mem_free(reader.matches);
    mem_free(reader.weight_nodes);
    object_graph_release(&reader.graph);
    bundle_close(reader.bundle);
    text_release(&unused);
    return status;
}
