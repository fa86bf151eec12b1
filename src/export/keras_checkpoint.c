// SPDX-License-Identifier: Apache-2.0
// keras_checkpoint.c: checkpoints that TensorFlow and Keras take for their own, and reading theirs.
// One file serves load_weights, tf.train.Checkpoint(model).restore, Checkpoint(model=, optimizer=,
// step=).restore and our own resume:
//   root -> layer-N, layer_with_weights-N, optimizer, save_counter, step, model -> the same layers
// TensorFlow matches the names of children from the root, never names of variables.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/export.h"
#include "trainer/io.h"

#define GRAPH_KEY "_CHECKPOINTABLE_OBJECT_GRAPH"
#define STATE_KEY "trainer_state"  // not in the object graph: TensorFlow ignores extra tensors

// ---- Saving -----------------------------------------------------------------------------------------

// A tensor to be written: a variable, zeros of its shape, or a scalar.
struct tensor_row {
    const char *key;
    const struct variable *variable;
    bool zeros;
    enum dtype dtype;      // of a scalar
    union {
        int64_t integer;
        float number;
    };
};

struct saver {
    const struct checkpoint_info *info;
    struct object_graph graph;
    struct tensor_row *rows;
    int count, capacity;
    int *weight_nodes;     // [variables], node of each weight, 0 = none
    const char **weight_paths;
};

static void add_row(struct saver *saver, int node, const char *path, struct tensor_row row)
{
    object_set_variable(&saver->graph, node, path, row.variable ? row.variable->name : NULL);
    row.key = saver->graph.nodes[node]->key;
    GROW(saver->rows, saver->count, saver->capacity);
    saver->rows[saver->count++] = row;
}

static void add_scalar(struct saver *saver, int parent, const char *name, const char *path,
                       struct tensor_row row)
{
    add_row(saver, object_add(&saver->graph, parent, name), path, row);
}

static void add_layers(struct saver *saver, int model)
{
    struct object_graph *graph = &saver->graph;
    const struct net *net = saver->info->net;
    int with_weights = 0;
    for (int i = 0; i < net->layer_count; i++) {
        const struct layer_record *layer = net->layers[i];
        const char *name = arena_printf(&graph->arena, "layer-%d", i);
        int node = object_add(graph, 0, name);
        object_link(graph, model, name, node);
        if (layer->weight_count == 0) {
            continue;
        }
        name = arena_printf(&graph->arena, "layer_with_weights-%d", with_weights++);
        object_link(graph, 0, name, node);
        object_link(graph, model, name, node);
        for (int w = 0; w < layer->weight_count; w++) {
            const struct variable *variable = layer->weights[w].variable;
            int child = object_add(graph, node, layer->weights[w].name);
            const char *path =
                arena_printf(&graph->arena, "%s/%s", name, layer->weights[w].name);
            add_row(saver, child, path, (struct tensor_row){.variable = variable});
            saver->weight_nodes[variable->id] = child;
            saver->weight_paths[variable->id] = path;
        }
    }
}

static const struct variable *find_slot(const struct variables *variables,
                                        const struct variable *weight, const char *name)
{
    for (int i = 0; i < variables->count; i++) {
        const struct variable *variable = variables->items[i];
        if (variable->owner == weight && strcmp(variable->slot, name) == 0) {
            return variable;
        }
    }
    return NULL;
}

// The trained weights in the order of the layers: Keras' trainable_variables.
static int trained_weights(const struct net *net, const struct variable **out)
{
    int count = 0;
    for (int i = 0; i < net->layer_count; i++) {
        for (int w = 0; w < net->layers[i]->weight_count; w++) {
            const struct variable *variable = net->layers[i]->weights[w].variable;
            if (variable->role == VARIABLE_WEIGHT && variable->trainable) {
                out[count++] = variable;
            }
        }
    }
    return count;
}

// How many of the optimizer's slots this run has (rmsprop has its momentum only when it is above 0).
static int slot_count(const struct checkpoint_info *info, const struct variable *weight)
{
    int count = 0;
    while (info->optimizer->slots[count] &&
           find_slot(info->variables, weight, info->optimizer->slots[count])) {
        count++;
    }
    return count;
}

// Keras 2.11 and later: a list of all variables, and a list for each slot, over the same nodes.
static void add_keras_optimizer(struct saver *saver, int optimizer,
                                const struct variable *const *weights, int count)
{
    const struct checkpoint_info *info = saver->info;
    struct object_graph *graph = &saver->graph;
    int iterations = object_find(graph, optimizer, "_iterations");
    int list = object_add(graph, optimizer, "_variables");
    object_link(graph, list, "0", iterations);
    int slots = count ? slot_count(info, weights[0]) : 0;
    // Keras' SGD always has momentums, even without momentum: zeros.
    bool placeholder = slots == 0 && info->optimizer->keras_lists[0];
    int kept = placeholder ? 1 : slots;
    int lists[3];
    for (int s = 0; s < kept; s++) {
        lists[s] = object_add(graph, optimizer, info->optimizer->keras_lists[s]);
    }
    for (int i = 0; i < count * kept; i++) {
        int s = info->optimizer->keras_by_slot ? i / count : i % kept;
        int w = info->optimizer->keras_by_slot ? i % count : i / kept;
        const char *number = arena_printf(&graph->arena, "%d", i + 1);
        const struct variable *slot =
            placeholder ? NULL : find_slot(info->variables, weights[w], info->optimizer->slots[s]);
        int node = object_add(graph, list, number);
        object_link(graph, lists[s], arena_printf(&graph->arena, "%d", w), node);
        add_row(saver, node, arena_printf(&graph->arena, "optimizer/_variables/%s", number),
                (struct tensor_row){.variable = slot ? slot : weights[w], .zeros = !slot});
    }
}

// TensorFlow 2.0 to 2.10: slots are named only in the optimizer's slot_variables.
static void add_legacy_slots(struct saver *saver, int optimizer,
                             const struct variable *const *weights, int count)
{
    const struct checkpoint_info *info = saver->info;
    struct object_graph *graph = &saver->graph;
    for (int i = 0; i < count; i++) {
        for (int s = 0; s < slot_count(info, weights[i]); s++) {
            const char *name = info->optimizer->slots[s];
            const char *path = arena_printf(&graph->arena, "%s/.OPTIMIZER_SLOT/optimizer/%s",
                                            saver->weight_paths[weights[i]->id], name);
            int node = object_add_orphan(graph);
            object_add_slot(graph, optimizer, saver->weight_nodes[weights[i]->id], name, node);
            add_row(saver, node, path, (struct tensor_row){
                .variable = find_slot(info->variables, weights[i], name)});
        }
    }
}

static void add_optimizer(struct saver *saver, int model)
{
    const struct checkpoint_info *info = saver->info;
    struct object_graph *graph = &saver->graph;
    bool legacy = info->layout == LAYOUT_KERAS_LEGACY;
    int optimizer = object_add(graph, 0, "optimizer");
    object_link(graph, model, "optimizer", optimizer);
    struct tensor_row iterations = {.dtype = DTYPE_I64, .integer = info->iterations};
    struct tensor_row rate = {.dtype = DTYPE_F32, .number = (float)info->learning_rate};
    add_scalar(saver, optimizer, legacy ? "iter" : "_iterations",
               legacy ? "optimizer/iter" : "optimizer/_iterations", iterations);
    add_scalar(saver, optimizer, legacy ? "learning_rate" : "_learning_rate",
               legacy ? "optimizer/learning_rate" : "optimizer/_learning_rate", rate);
    const struct variable **weights =
        MEM_NEW_ARRAY(const struct variable *, info->variables->count);
    int count = trained_weights(info->net, weights);
    if (legacy) {
        add_scalar(saver, optimizer, "decay", "optimizer/decay",
                   (struct tensor_row){.dtype = DTYPE_F32});
        add_legacy_slots(saver, optimizer, weights, count);
    } else {
        add_keras_optimizer(saver, optimizer, weights, count);
    }
    mem_free(weights);
}

static enum status put_row(struct bundle_writer *writer, const struct tensor_row *row,
                           const struct variable_store *store)
{
    if (!row->variable) {
        return bundle_put(writer, row->key, row->dtype, shape_scalar(),
                          row->dtype == DTYPE_I64 ? (const void *)&row->integer : &row->number);
    }
    const struct variable *variable = row->variable;
    void *data = mem_alloc((size_t)shape_count(variable->shape) * dtype_size(variable->dtype));
    enum status status = row->zeros ? STATUS_OK : store->get(store->context, variable, data);
    if (status == STATUS_OK) {
        status = bundle_put(writer, row->key, variable->dtype, variable->shape, data);
    }
    mem_free(data);
    return status;
}

static int compare_rows(const void *a, const void *b)
{
    return strcmp(((const struct tensor_row *)a)->key, ((const struct tensor_row *)b)->key);
}

static enum status write_rows(struct saver *saver, const char *prefix,
                              const struct variable_store *store)
{
    struct bundle_writer *writer;
    struct text graph = {0};
    TRY(bundle_create(prefix, &writer));
    object_graph_encode(&saver->graph, &graph);
    qsort(saver->rows, (size_t)saver->count, sizeof *saver->rows, compare_rows);
    enum status status = bundle_put_string(writer, GRAPH_KEY, graph.data, graph.size);
    for (int i = 0; i < saver->count && status == STATUS_OK; i++) {
        status = put_row(writer, &saver->rows[i], store);
    }
    const char *json = saver->info->state_json;
    if (status == STATUS_OK && json) {
        status = bundle_put_string(writer, STATE_KEY, json, strlen(json));
    }
    text_release(&graph);
    if (status != STATUS_OK) {
        bundle_abort(writer);
        return status;
    }
    return bundle_commit(writer);
}

enum status checkpoint_save(const char *prefix, const struct checkpoint_info *info,
                            const struct variable_store *store)
{
    struct saver saver = {.info = info};
    object_graph_init(&saver.graph);
    saver.weight_nodes = MEM_NEW_ARRAY(int, info->variables->count);
    saver.weight_paths = MEM_NEW_ARRAY(const char *, info->variables->count);
    int model = object_add(&saver.graph, 0, "model");
    add_layers(&saver, model);
    if (info->optimizer) {
        add_optimizer(&saver, model);
    }
    struct tensor_row step = {.dtype = DTYPE_I64, .integer = info->iterations};
    add_scalar(&saver, 0, "step", "step", step);
    add_scalar(&saver, 0, "save_counter", "save_counter",
               (struct tensor_row){.dtype = DTYPE_I64, .integer = 1});
    enum status status = write_rows(&saver, prefix, store);
    object_graph_release(&saver.graph);
    mem_free(saver.rows);
    mem_free(saver.weight_nodes);
    mem_free(saver.weight_paths);
    return status;
}

// ---- Loading ----------------------------------------------------------------------------------------

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
    int optimizer;               // its node; -1 = none
    int *weight_nodes;           // [variables], -1 = none
    struct match *matches;
    int count, capacity;
    struct text *report;
};

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
    return status;
}

// Node of layer `index` (its `with_weights`-th with weights), in any of the layouts.
static int find_layer(const struct reader *reader, int index, int with_weights)
{
    const struct object_graph *graph = &reader->graph;
    char name[48];
    snprintf(name, sizeof name, "layer_with_weights-%d", with_weights);
    int roots[] = {0, object_find(graph, 0, "model")};
    for (size_t i = 0; i < ARRAY_COUNT(roots); i++) {
        int node = object_find(graph, roots[i], name);
        if (node < 0) {
            char all[32];
            snprintf(all, sizeof all, "layer-%d", index);
            node = object_find(graph, roots[i], all);
        }
        if (node >= 0) {
            return node;
        }
        // Keras 3 counts its input layer as the first operation.
        int operations = object_find(graph, object_find(graph, roots[i], "_functional"),
                                     "_operations");
        snprintf(name, sizeof name, "%d", index + 1);
        node = object_find(graph, operations, name);
        if (node >= 0) {
            return node;
        }
        snprintf(name, sizeof name, "layer_with_weights-%d", with_weights);
    }
    return -1;
}

static int find_weight(const struct reader *reader, int layer, const char *name)
{
    char hidden[64];
    int node = object_find(&reader->graph, layer, name);
    snprintf(hidden, sizeof hidden, "_%s", name);  // Keras 3: _kernel
    return node >= 0 ? node : object_find(&reader->graph, layer, hidden);
}

static void add_match(struct reader *reader, const struct variable *variable, const char *key)
{
    GROW(reader->matches, reader->count, reader->capacity);
    reader->matches[reader->count++] = (struct match){variable, key, NULL};
}

// Dtype and shape of what the file holds under this key against the variable.
static enum status check_entry(const struct reader *reader, const struct variable *variable,
                               const char *key)
{
    const struct bundle_entry *entry = key ? bundle_find(reader->bundle, key) : NULL;
    if (!entry) {
        return FAIL(ERR_MISMATCH,
                    "%s: holds no weight %s of shape %s: it is a checkpoint of another model",
                    reader->prefix, variable->name, shape_str(variable->shape));
    }
    if (entry->tf_dtype != tf_dtype(variable->dtype) ||
        !shape_equal(entry->shape, variable->shape)) {
        return FAIL(ERR_MISMATCH,
                    "%s: the weight %s has the shape %s there, this model expects %s%s: it is a "
                    "checkpoint of another model", reader->prefix, variable->name,
                    shape_str(entry->shape), shape_str(variable->shape),
                    entry->tf_dtype != tf_dtype(variable->dtype) ? " of another type" : "");
    }
    return STATUS_OK;
}

static enum status match_weights(struct reader *reader)
{
    const struct net *net = reader->info->net;
    int with_weights = 0;
    for (int i = 0; i < net->layer_count; i++) {
        const struct layer_record *layer = net->layers[i];
        int node = reader->graph.count && layer->weight_count
                       ? find_layer(reader, i, with_weights)
                       : -1;
        with_weights += layer->weight_count > 0;
        for (int w = 0; w < layer->weight_count; w++) {
            const struct variable *variable = layer->weights[w].variable;
            int child = node >= 0 ? find_weight(reader, node, layer->weights[w].name) : -1;
            const char *key = child >= 0               ? reader->graph.nodes[child]->key
                              : reader->graph.count == 0 ? variable->name
                                                         : NULL;
            TRY(check_entry(reader, variable, key));
            reader->weight_nodes[variable->id] = child;
            add_match(reader, variable, key);
            text_printf(reader->report, "  %-32s %-20s from %s\n", variable->name,
                        shape_str(variable->shape), key);
        }
    }
    return STATUS_OK;
}

static const char *key_of(const struct reader *reader, int node)
{
    return node >= 0 ? reader->graph.nodes[node]->key : NULL;
}

// The key of slot `s` of the `w`-th of `count` trained weights, in any layout; NULL when it has none.
static const char *find_slot_key(const struct reader *reader, const struct variable *weight, int w,
                                 int count, int s, int slots)
{
    const struct object_graph *graph = &reader->graph;
    const struct optimizer_def *def = reader->info->optimizer;
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
    int count = trained_weights(info->net, weights), before = reader->count;
    bool all = true;
    for (int w = 0; w < count && all; w++) {
        int slots = slot_count(info, weights[w]);
        for (int s = 0; s < slots && all; s++) {
            const struct variable *slot =
                find_slot(info->variables, weights[w], info->optimizer->slots[s]);
            const char *key = reader->optimizer >= 0
                                  ? find_slot_key(reader, weights[w], w, count, s, slots)
                                  : NULL;
            all = check_entry(reader, slot, key) == STATUS_OK;
            add_match(reader, slot, key);
        }
    }
    mem_free(weights);
    if (!all) {
        error_clear();
        reader->count = before;
        text_append(reader->report, "  the optimizer's slots are not there: it starts afresh\n");
    }
    return all;
}

static int64_t read_iterations(struct reader *reader)
{
    static const char *const names[] = {"_iterations", "iter"};
    int64_t value = -1;
    for (size_t i = 0; i < ARRAY_COUNT(names) && reader->optimizer >= 0; i++) {
        const char *key =
            key_of(reader, object_find(&reader->graph, reader->optimizer, names[i]));
        if (key && bundle_read(reader->bundle, key, DTYPE_I64, shape_scalar(), &value) ==
                       STATUS_OK) {
            return value;
        }
    }
    error_clear();
    return -1;
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
    if (reader->graph.count) {
        reader->optimizer = object_find(&reader->graph, 0, "optimizer");
        if (reader->optimizer < 0) {
            reader->optimizer =
                object_find(&reader->graph, object_find(&reader->graph, 0, "model"), "optimizer");
        }
    }
    text_printf(reader->report, "%s:\n", reader->prefix);
    TRY(match_weights(reader));
    out->has_slots = reader->info->optimizer && match_slots(reader);
    out->iterations = read_iterations(reader);
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
