// SPDX-License-Identifier: Apache-2.0
// keras_checkpoint.c: saving checkpoints that TensorFlow and Keras take for their own. One file
// serves load_weights, tf.train.Checkpoint(model).restore, Checkpoint(model=, optimizer=,
// step=).restore and our own resume:
//   root -> layer-N, layer_with_weights-N, optimizer, save_counter, step, model -> the same layers
// TensorFlow matches the names of children from the root, never names of variables.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keras_impl.h"

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

const struct variable *keras_find_slot(const struct variables *variables,
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

int keras_trained_weights(const struct net *net, const struct variable **out)
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

int keras_slot_count(const struct checkpoint_info *info)
{
    int count = 0;
    for (int i = 0; i < info->variables->count; i++) {
        const char *name = info->variables->items[i]->slot;
        for (int s = count; name && info->optimizer->slots[s]; s++) {
            count = strcmp(name, info->optimizer->slots[s]) == 0 ? s + 1 : count;
        }
    }
    return count;
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

// Keras 2.11 and later: a list of all variables, and a list for each slot, over the same nodes.
static void add_keras_optimizer(struct saver *saver, int optimizer,
                                const struct variable *const *weights, int count)
{
    const struct checkpoint_info *info = saver->info;
    struct object_graph *graph = &saver->graph;
    int iterations = object_find(graph, optimizer, "_iterations");
    int list = object_add(graph, optimizer, "_variables");
    object_link(graph, list, "0", iterations);
    const struct optimizer_def *def = info->optimizer;
    int lists[ARRAY_COUNT(def->keras_lists)];
    // Keras' SGD always has momentums, even without momentum: zeros.
    int slots = MAX(keras_slot_count(info), 1);
    for (int s = 0; s < slots; s++) {
        lists[s] = object_add(graph, optimizer, def->keras_lists[s]);
    }
    for (int i = 0; i < count * slots; i++) {
        int s = def->keras_by_slot ? i / count : i % slots;
        int w = def->keras_by_slot ? i % count : i / slots;
        const char *number = arena_printf(&graph->arena, "%d", i + 1);
        const struct variable *slot =
            def->slots[s] ? keras_find_slot(info->variables, weights[w], def->slots[s]) : NULL;
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
        for (const char *const *row = info->optimizer->slots; *row; row++) {
            const struct variable *slot = keras_find_slot(info->variables, weights[i], *row);
            if (!slot) {
                continue;  // rmsprop without momentum
            }
            const char *path = arena_printf(&graph->arena, "%s/.OPTIMIZER_SLOT/optimizer/%s",
                                            saver->weight_paths[weights[i]->id], *row);
            int node = object_add_orphan(graph);
            object_add_slot(graph, optimizer, saver->weight_nodes[weights[i]->id], *row, node);
            add_row(saver, node, path, (struct tensor_row){.variable = slot});
        }
    }
}

// Hyperparameters that TensorFlow's classes of these updates had as variables.
static const struct {
    enum op op;
    const char *name;
    size_t offset;  // of the double in struct op_attr
} hyperparameters[] = {
    {OP_SGD, "momentum", offsetof(struct op_attr, alpha)},
    {OP_MOMENTUM, "momentum", offsetof(struct op_attr, alpha)},
    {OP_RMSPROP, "momentum", offsetof(struct op_attr, alpha)},
    {OP_RMSPROP, "rho", offsetof(struct op_attr, beta_2)},
    {OP_ADAM, "beta_1", offsetof(struct op_attr, beta_1)},
    {OP_ADAM, "beta_2", offsetof(struct op_attr, beta_2)},
};

static void add_hyperparameters(struct saver *saver, int optimizer)
{
    const struct checkpoint_info *info = saver->info;
    struct op_attr attr = {0};
    int slots;
    info->optimizer->attributes(info->config, &attr, &slots);
    for (size_t i = 0; i < ARRAY_COUNT(hyperparameters); i++) {
        if (hyperparameters[i].op == info->optimizer->op) {
            double value;
            memcpy(&value, (const char *)&attr + hyperparameters[i].offset, sizeof value);
            add_scalar(saver, optimizer, hyperparameters[i].name,
                       arena_printf(&saver->graph.arena, "optimizer/%s", hyperparameters[i].name),
                       (struct tensor_row){.dtype = DTYPE_F32, .number = (float)value});
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
    int count = keras_trained_weights(info->net, weights);
    if (legacy) {
        add_scalar(saver, optimizer, "decay", "optimizer/decay",
                   (struct tensor_row){.dtype = DTYPE_F32});
        if (info->config) {
            add_hyperparameters(saver, optimizer);
        }
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
