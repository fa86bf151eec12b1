// SPDX-License-Identifier: Apache-2.0
// saved_model.c: a folder that tf.saved_model.load, the C API, TensorFlow Serving and Keras' load_model
// take: a flat graph with a saver for the older loaders, a function and an object graph for the newer,
// keras_metadata.pb for Keras.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tf_graph.h"
#include "trainer/export.h"
#include "trainer/file.h"
#include "trainer/io.h"

#define FUNCTION "__inference_serving_default_1"
#define VALUE_KEY "/.ATTRIBUTES/VARIABLE_VALUE"

struct writer {
    const struct saved_model_info *info;
    struct arena arena;
    struct object_graph objects;
    const struct variable **variables;   // the model's, in the order of its layers
    const char **keys;                   // their names in variables/
    int *variable_nodes;                 // their nodes in the object graph
    int count;
    int *layer_nodes;                    // [layers]
    int signatures, serving;             // nodes
};

// Takes `value`; a map entry is a message { key 1, value 2 }.
static void put_map(struct text *out, int field, const char *key, struct text *value)
{
    struct text entry = {0};
    wire_string(&entry, 1, key);
    wire_message(&entry, 2, value);
    wire_message(out, field, &entry);
    text_release(&entry);
    text_release(value);
}

static void put_message(struct text *out, int field, struct text *message)
{
    wire_message(out, field, message);
    text_release(message);
}

// ---- Objects ----------------------------------------------------------------------------------------

static void collect(struct writer *w)
{
    const struct net *net = w->info->net;
    int all = w->info->variables->count, with_weights = 0;
    w->variables = ARENA_NEW_ARRAY(&w->arena, const struct variable *, all);
    w->keys = ARENA_NEW_ARRAY(&w->arena, const char *, all);
    w->variable_nodes = ARENA_NEW_ARRAY(&w->arena, int, all);
    w->layer_nodes = ARENA_NEW_ARRAY(&w->arena, int, net->layer_count);
    object_graph_init(&w->objects);
    for (int i = 0; i < net->layer_count; i++) {
        const struct layer_record *layer = net->layers[i];
        int node = object_add(&w->objects, 0, arena_printf(&w->arena, "layer-%d", i));
        w->layer_nodes[i] = node;
        if (layer->weight_count == 0) {
            continue;
        }
        const char *name = arena_printf(&w->arena, "layer_with_weights-%d", with_weights++);
        object_link(&w->objects, 0, name, node);
        for (int k = 0; k < layer->weight_count; k++) {
            const char *path = arena_printf(&w->arena, "%s/%s", name, layer->weights[k].name);
            int child = object_add(&w->objects, node, layer->weights[k].name);
            object_set_variable(&w->objects, child, path, NULL);
            w->variables[w->count] = layer->weights[k].variable;
            w->keys[w->count] = arena_printf(&w->arena, "%s" VALUE_KEY, path);
            w->variable_nodes[w->count++] = child;
        }
    }
    w->signatures = object_add(&w->objects, 0, "signatures");
    w->serving = object_add(&w->objects, w->signatures, "serving_default");
}

static void put_version(struct text *out, int field, int producer)
{
    struct text version = {0};
    wire_varint(&version, 1, (uint64_t)producer);
    wire_varint(&version, 2, 1);
    put_message(out, field, &version);
}

static void put_user_object(struct text *out, const char *identifier)
{
    struct text object = {0};
    wire_string(&object, 1, identifier);
    put_version(&object, 2, 1);
    put_message(out, 4, &object);
}

static void put_variable_object(struct text *out, const struct variable *variable)
{
    struct text object = {0}, shape = {0};
    tf_shape(&shape, variable->shape, false);
    wire_varint(&object, 1, TF_FLOAT);
    put_message(&object, 2, &shape);
    wire_varint(&object, 3, variable->role == VARIABLE_WEIGHT);
    wire_string(&object, 6, variable->name);
    put_message(out, 7, &object);
}

// What a node of the object graph is, beside its children.
static void put_kind(const struct writer *w, int id, struct text *out)
{
    for (int i = 0; i < w->count; i++) {
        if (w->variable_nodes[i] == id) {
            put_variable_object(out, w->variables[i]);
            return;
        }
    }
    if (id == w->serving) {
        struct text function = {0};
        wire_string(&function, 1, FUNCTION);
        wire_string(&function, 2, "image");
        wire_varint(&function, 3, 1);
        put_message(out, 8, &function);
    } else {
        put_user_object(out, id == 0                ? "_tf_keras_sequential"
                             : id == w->signatures ? "signature_map"
                                                   : "_tf_keras_layer");
    }
}

// StructuredValue { tensor_spec_value 33 { name 1, shape 2, dtype 3 } }
static struct text spec_value(const char *name, struct shape shape)
{
    struct text dims = {0}, spec = {0}, value = {0};
    tf_shape(&dims, shape, true);
    wire_string(&spec, 1, name);
    put_message(&spec, 2, &dims);
    wire_varint(&spec, 3, TF_FLOAT);
    put_message(&value, 33, &spec);
    return value;
}

// StructuredValue { dict_value 53 { fields 1 } } with one entry.
static struct text dict_value(const char *name, struct shape shape)
{
    struct text fields = {0}, value = {0}, spec = spec_value(name, shape);
    put_map(&fields, 1, name, &spec);
    put_message(&value, 53, &fields);
    return value;
}

// The signature as Python sees it: tuple(tuple(), dict(image=spec)).
static void put_concrete_function(const struct writer *w, struct text *out)
{
    struct text function = {0}, empty = {0}, tuple = {0}, value = {0};
    for (int i = 0; i < w->count; i++) {
        wire_varint(&function, 2, (uint64_t)w->variable_nodes[i]);
    }
    struct text nothing = {0};
    wire_message(&empty, 52, &nothing);
    struct text image = dict_value("image", w->info->input->shape);
    put_message(&tuple, 1, &empty);
    put_message(&tuple, 1, &image);
    put_message(&value, 52, &tuple);
    put_message(&function, 3, &value);
    struct text result = dict_value("probabilities", w->info->output->shape);
    put_message(&function, 4, &result);
    put_map(out, 2, FUNCTION, &function);
}

static void put_object_graph(const struct writer *w, struct text *out)
{
    struct text graph = {0};
    for (int i = 0; i < w->objects.count; i++) {
        const struct object_node *node = w->objects.nodes[i];
        struct text object = {0};
        for (int k = 0; k < node->child_count; k++) {
            struct text child = {0};
            wire_varint(&child, 1, (uint64_t)node->children[k].node);
            wire_string(&child, 2, node->children[k].name);
            put_message(&object, 1, &child);
        }
        put_kind(w, i, &object);
        put_message(&graph, 1, &object);
    }
    put_concrete_function(w, &graph);
    put_message(out, 7, &graph);
}

// ---- Graph ------------------------------------------------------------------------------------------

static void put_argument(struct text *signature, int field, const char *name, int type)
{
    struct text argument = {0};
    wire_string(&argument, 1, name);
    wire_varint(&argument, 3, (uint64_t)type);
    put_message(signature, field, &argument);
}

static enum status put_function(const struct writer *w, struct text *library)
{
    struct text signature = {0}, function = {0}, ret = {0};
    struct tf_writer writer;
    const char *output;
    wire_string(&signature, 1, FUNCTION);
    put_argument(&signature, 2, "image", TF_FLOAT);
    for (int i = 0; i < w->count; i++) {
        char name[24];
        snprintf(name, sizeof name, "w%d", w->variables[i]->id);
        put_argument(&signature, 2, name, TF_RESOURCE);
    }
    put_argument(&signature, 3, "probabilities", TF_FLOAT);
    wire_varint(&signature, 17, 1);  // stateful
    put_message(&function, 1, &signature);
    tf_writer_init(&writer, w->info->net->graph, &function, 3, true, "image");
    enum status status = tf_write(&writer, w->info->output, &output);
    if (status == STATUS_OK) {
        wire_string(&ret, 1, "probabilities");
        wire_string(&ret, 2, output);
        wire_message(&function, 4, &ret);
        wire_message(library, 1, &function);
    }
    tf_writer_release(&writer);
    text_release(&ret);
    text_release(&function);
    return status;
}

static void put_handles(const struct writer *w, struct text *graph)
{
    struct tf_node tf;
    tf_node_begin(&tf, "serving_default_image", "Placeholder");
    tf_attr_type(&tf, "dtype", TF_FLOAT);
    struct shape shape = w->info->input->shape;
    shape.dim[0] = -1;
    tf_attr_shape(&tf, "shape", shape);
    tf_node_end(&tf, graph, 1);
    for (int i = 0; i < w->count; i++) {
        tf_node_begin(&tf, w->variables[i]->name, "VarHandleOp");
        tf_attr_type(&tf, "dtype", TF_FLOAT);
        tf_attr_shape(&tf, "shape", w->variables[i]->shape);
        tf_attr_string(&tf, "shared_name", w->variables[i]->name);
        tf_node_end(&tf, graph, 1);
    }
}

static void put_strings(struct text *graph, const char *name, const char *const *values, int count)
{
    struct tf_node tf;
    tf_node_begin(&tf, name, "Const");
    tf_attr_type(&tf, "dtype", TF_STRING);
    tf_attr_strings_tensor(&tf, "value", values, count);
    tf_node_end(&tf, graph, 1);
}

// Saving and restoring by file name: what the loaders before objects call.
static void put_saver(struct writer *w, struct text *graph)
{
    struct tf_node tf;
    const char **slices = ARENA_NEW_ARRAY(&w->arena, const char *, w->count);
    tf_node_begin(&tf, "saver_filename", "Placeholder");
    tf_attr_type(&tf, "dtype", TF_STRING);
    tf_attr_shape(&tf, "shape", shape_scalar());
    tf_node_end(&tf, graph, 1);
    for (int i = 0; i < w->count; i++) {
        slices[i] = "";
    }
    put_strings(graph, "save/names", w->keys, w->count);
    put_strings(graph, "save/slices", slices, w->count);
    tf_node_begin(&tf, "save/RestoreV2", "RestoreV2");
    tf_node_input(&tf, "saver_filename");
    tf_node_input(&tf, "save/names");
    tf_node_input(&tf, "save/slices");
    tf_attr_types(&tf, "dtypes", TF_FLOAT, w->count);
    tf_node_end(&tf, graph, 1);
    for (int i = 0; i < w->count; i++) {
        tf_node_begin(&tf, arena_printf(&w->arena, "save/assign%d", i), "AssignVariableOp");
        tf_node_input(&tf, w->variables[i]->name);
        tf_node_input(&tf, arena_printf(&w->arena, "save/RestoreV2:%d", i));
        tf_attr_type(&tf, "dtype", TF_FLOAT);
        tf_node_end(&tf, graph, 1);
    }
    tf_node_begin(&tf, "save/restore_all", "NoOp");
    for (int i = 0; i < w->count; i++) {
        tf_node_input(&tf, arena_printf(&w->arena, "^save/assign%d", i));
    }
    tf_node_end(&tf, graph, 1);
    tf_node_begin(&tf, "save/SaveV2", "SaveV2");
    tf_node_input(&tf, "saver_filename");
    tf_node_input(&tf, "save/names");
    tf_node_input(&tf, "save/slices");
    for (int i = 0; i < w->count; i++) {
        tf_node_input(&tf, arena_printf(&w->arena, "%s/Read", w->variables[i]->name));
    }
    tf_attr_types(&tf, "dtypes", TF_FLOAT, w->count);
    tf_node_end(&tf, graph, 1);
    tf_node_begin(&tf, "save/done", "Identity");
    tf_node_input(&tf, "saver_filename");
    tf_node_input(&tf, "^save/SaveV2");
    tf_attr_type(&tf, "T", TF_STRING);
    tf_node_end(&tf, graph, 1);
}

static enum status put_graph(struct writer *w, struct text *meta)
{
    struct text graph = {0}, library = {0};
    struct tf_writer writer;
    const char *output;
    put_handles(w, &graph);
    tf_writer_init(&writer, w->info->net->graph, &graph, 1, false, "serving_default_image");
    enum status status = tf_write(&writer, w->info->output, &output);
    if (status == STATUS_OK) {
        struct tf_node tf;
        tf_node_begin(&tf, "probabilities", "Identity");
        tf_node_input(&tf, output);
        tf_attr_type(&tf, "T", TF_FLOAT);
        tf_node_end(&tf, &graph, 1);
        put_saver(w, &graph);
        status = put_function(w, &library);
    }
    if (status == STATUS_OK) {
        wire_message(&graph, 2, &library);
        put_version(&graph, 4, 440);  // the GraphDef version of TensorFlow 2.3: any 2.x reads it
        wire_message(meta, 2, &graph);
    }
    tf_writer_release(&writer);
    text_release(&library);
    text_release(&graph);
    return status;
}

static struct text tensor_info(const char *name, struct shape shape)
{
    struct text info = {0}, dims = {0};
    tf_shape(&dims, shape, true);
    wire_string(&info, 1, name);
    wire_varint(&info, 2, TF_FLOAT);
    put_message(&info, 3, &dims);
    return info;
}

static enum status encode_model(struct writer *w, struct text *out)
{
    struct text meta = {0}, info = {0}, saver = {0}, signature = {0};
    wire_string(&info, 4, "serve");
    wire_string(&info, 5, "2.3.0");
    put_message(&meta, 1, &info);
    enum status status = put_graph(w, &meta);
    wire_string(&saver, 1, "saver_filename:0");
    wire_string(&saver, 2, "save/done:0");
    wire_string(&saver, 3, "save/restore_all");
    wire_varint(&saver, 7, 2);  // V2
    put_message(&meta, 3, &saver);
    struct text input = tensor_info("serving_default_image:0", w->info->input->shape);
    struct text result = tensor_info("probabilities:0", w->info->output->shape);
    put_map(&signature, 1, "image", &input);
    put_map(&signature, 2, "probabilities", &result);
    wire_string(&signature, 3, "tensorflow/serving/predict");
    put_map(&meta, 5, "serving_default", &signature);
    put_object_graph(w, &meta);
    wire_varint(out, 1, 1);  // schema version
    put_message(out, 2, &meta);
    return status;
}

// ---- Keras' metadata --------------------------------------------------------------------------------

static void put_shape_json(struct text *out, struct shape shape)
{
    text_append(out, "[null");
    for (int i = 1; i < shape.rank; i++) {
        text_printf(out, ", %lld", (long long)shape.dim[i]);
    }
    text_append(out, "]");
}

static void put_metadata(struct text *out, int id, const char *path, const char *identifier,
                         struct text *json)
{
    struct text node = {0};
    wire_varint(&node, 2, (uint64_t)id);
    wire_string(&node, 3, path);
    wire_string(&node, 4, identifier);
    wire_string(&node, 5, text_get(json));
    put_version(&node, 6, 2);
    put_message(out, 1, &node);
    text_release(json);
}

static void encode_metadata(struct writer *w, struct text *out)
{
    const struct net *net = w->info->net;
    struct text json = {0};
    text_printf(&json, "{\"class_name\": \"Sequential\", \"name\": \"%s\", \"trainable\": true, "
                "\"dtype\": \"float32\", \"config\": {\"name\": \"%s\", \"layers\": [{\"class_name\": "
                "\"InputLayer\", \"config\": {\"batch_input_shape\": ", w->info->model_name,
                w->info->model_name);
    put_shape_json(&json, w->info->input->shape);
    text_printf(&json, ", \"dtype\": \"float32\", \"name\": \"%s_input\"}}", net->layers[0]->name);
    for (int i = 0; i < net->layer_count; i++) {
        text_printf(&json, ", {\"class_name\": \"%s\", \"config\": %s}", net->layers[i]->class_name,
                    net->layers[i]->config);
    }
    text_append(&json, "]}}");
    put_metadata(out, 0, "root", "_tf_keras_sequential", &json);
    for (int i = 0; i < net->layer_count; i++) {
        const struct layer_record *layer = net->layers[i];
        text_printf(&json, "{\"class_name\": \"%s\", \"name\": \"%s\", \"trainable\": true, "
                    "\"dtype\": \"float32\", \"build_input_shape\": {\"class_name\": "
                    "\"TensorShape\", \"items\": ", layer->class_name, layer->name);
        put_shape_json(&json, layer->input);
        text_printf(&json, "}, \"config\": %s}", layer->config);
        put_metadata(out, w->layer_nodes[i], arena_printf(&w->arena, "root.layer-%d", i),
                     "_tf_keras_layer", &json);
    }
}

// ---- Files ------------------------------------------------------------------------------------------

static enum status write_variables(struct writer *w, const char *prefix,
                                   const struct variable_store *store)
{
    struct bundle_writer *bundle;
    struct text graph = {0};
    TRY(bundle_create(prefix, &bundle));
    object_graph_encode(&w->objects, &graph);
    enum status status =
        bundle_put_string(bundle, "_CHECKPOINTABLE_OBJECT_GRAPH", graph.data, graph.size);
    for (int i = 0; i < w->count && status == STATUS_OK; i++) {
        const struct variable *variable = w->variables[i];
        void *data =
            mem_alloc((size_t)shape_count(variable->shape) * dtype_size(variable->dtype));
        status = store->get(store->context, variable, data);
        if (status == STATUS_OK) {
            status = bundle_put(bundle, w->keys[i], variable->dtype, variable->shape, data);
        }
        mem_free(data);
    }
    text_release(&graph);
    if (status != STATUS_OK) {
        bundle_abort(bundle);
        return status;
    }
    return bundle_commit(bundle);
}

static const char *below(struct writer *w, const char *directory, const char *name)
{
    return arena_printf(&w->arena, "%s/%s", directory, name);
}

static enum status write_folder(struct writer *w, const char *directory,
                                const struct variable_store *store)
{
    struct text model = {0}, metadata = {0};
    enum status status = encode_model(w, &model);
    encode_metadata(w, &metadata);
    if (status == STATUS_OK) {
        status = file_mkdirs(below(w, directory, "variables"));
    }
    if (status == STATUS_OK) {
        status = write_variables(w, below(w, directory, "variables/variables"), store);
    }
    if (status == STATUS_OK) {
        status = file_write(below(w, directory, "keras_metadata.pb"), metadata.data, metadata.size);
    }
    if (status == STATUS_OK) {
        status = file_write(below(w, directory, "saved_model.pb"), model.data, model.size);
    }
    text_release(&model);
    text_release(&metadata);
    return status;
}

// Removes a SavedModel folder: what one holds, and the folders if nothing else is in them.
static void remove_folder(struct writer *w, const char *directory)
{
    static const char *const files[] = {"saved_model.pb", "keras_metadata.pb", "fingerprint.pb",
                                        "variables/variables.index",
                                        "variables/variables.data-00000-of-00001"};
    for (size_t i = 0; i < ARRAY_COUNT(files); i++) {
        (void)unlink(below(w, directory, files[i]));
    }
    (void)rmdir(below(w, directory, "variables"));
    (void)rmdir(below(w, directory, "assets"));
    if (rmdir(directory) != 0 && errno != ENOENT) {
        LOG_WARN("%s: holds more than a SavedModel does and was left there", directory);
    }
}

// TensorFlow's rule for names of nodes, which begin with the names of layers.
static enum status check_names(const struct net *net)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.";
    for (int i = 0; i < net->layer_count; i++) {
        const char *name = net->layers[i]->name;
        size_t good = strspn(name, letters);
        while (good && (name[good] == '_' || name[good] == '-' || name[good] == '/')) {
            good += 1 + strspn(name + good + 1, letters);
        }
        if (good == 0 || name[good]) {
            return FAIL(ERR_UNSUPPORTED,
                        "layer '%s': TensorFlow takes only names of letters, digits, . _ - and /, "
                        "with a letter, digit or dot first; give the layer such a name", name);
        }
    }
    return STATUS_OK;
}

// A folder that holds something else is not ours to replace.
static enum status check_target(struct writer *w, const char *directory)
{
    if (!file_exists(directory) || file_exists(below(w, directory, "saved_model.pb"))) {
        return STATUS_OK;
    }
    char **names;
    int count;
    TRY(file_list(directory, &names, &count));
    file_list_free(names, count);
    return count == 0 ? STATUS_OK
                      : FAIL(ERR_IO, "%s: holds %d files but no SavedModel; nothing was replaced. "
                             "Give export.destination another name", directory, count);
}

static enum status swap_in(struct writer *w, const char *fresh, const char *directory)
{
    const char *old = arena_printf(&w->arena, "%s.old-%ld", directory, (long)getpid());
    if (renameat2(AT_FDCWD, fresh, AT_FDCWD, directory, RENAME_EXCHANGE) == 0) {
        remove_folder(w, fresh);
        return STATUS_OK;
    }
    // Nothing there, or a file system that cannot exchange: two renames, and only between them none.
    bool replaces = rename(directory, old) == 0;
    if (rename(fresh, directory) != 0) {
        int error = errno;
        if (replaces) {
            (void)rename(old, directory);
        }
        return FAIL(ERR_IO, "%s: cannot be put in place: %s", directory, strerror(error));
    }
    if (replaces) {
        remove_folder(w, old);
    }
    return STATUS_OK;
}

enum status saved_model_save(const char *directory, const struct saved_model_info *info,
                             const struct variable_store *store)
{
    struct writer w = {.info = info};
    arena_init(&w.arena);
    char *target = mem_strdup(directory);
    for (size_t size = strlen(target); size > 1 && target[size - 1] == '/'; size--) {
        target[size - 1] = '\0';
    }
    collect(&w);
    const char *fresh = arena_printf(&w.arena, "%s.tmp-%ld", target, (long)getpid());
    enum status status = check_names(info->net);
    if (status == STATUS_OK) {
        status = check_target(&w, target);
    }
    if (status == STATUS_OK) {
        status = write_folder(&w, fresh, store);
        if (status == STATUS_OK) {
            status = swap_in(&w, fresh, target);
        }
        if (status != STATUS_OK) {
            remove_folder(&w, fresh);
        }
    }
    object_graph_release(&w.objects);
    arena_release(&w.arena);
    mem_free(target);
    return status;
}
