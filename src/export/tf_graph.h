// SPDX-License-Identifier: Apache-2.0
// tf_graph.h: an inference graph as TensorFlow nodes. Private to src/export.
#ifndef TRAINER_TF_GRAPH_H
#define TRAINER_TF_GRAPH_H

#include "trainer/graph.h"
#include "trainer/text.h"

// NodeDef under construction: name, op and inputs first, then attributes.
struct tf_node {
    struct text bytes;
};
void tf_node_begin(struct tf_node *node, const char *name, const char *op);
void tf_node_input(struct tf_node *node, const char *input);
void tf_attr_type(struct tf_node *node, const char *key, int tf_dtype);
void tf_attr_types(struct tf_node *node, const char *key, int tf_dtype, int count);
void tf_attr_ints(struct tf_node *node, const char *key, const int64_t *values, int count);
void tf_attr_string(struct tf_node *node, const char *key, const char *value);
void tf_attr_bool(struct tf_node *node, const char *key, bool value);
void tf_attr_shape(struct tf_node *node, const char *key, struct shape shape);
void tf_attr_tensor(struct tf_node *node, const char *key, int tf_dtype, struct shape shape,
                    const void *data, size_t size);
void tf_attr_strings_tensor(struct tf_node *node, const char *key, const char *const *values,
                            int count);
void tf_node_end(struct tf_node *node, struct text *out, int field);  // appends and releases

// TensorShapeProto. `batch`: dimension 0 is the unknown batch.
void tf_shape(struct text *out, struct shape shape, bool batch);

// Writes the nodes that `node` needs, and `node` itself, as field `field` of `out`. In a function
// tensors are named node:output:index, variables are read from the arguments w<id>.
struct tf_writer {
    struct text *out;
    int field;
    bool in_function;
    struct arena arena;
    const char **names;    // [graph->count], how others refer to the node; NULL = not written yet
    const struct graph *graph;
    const char *input_name;
};
void tf_writer_init(struct tf_writer *writer, const struct graph *graph, struct text *out, int field,
                    bool in_function, const char *input_name);
void tf_writer_release(struct tf_writer *writer);
// *name: how to refer to the node's value. ERR_UNSUPPORTED names layer and op without a row.
enum status tf_write(struct tf_writer *writer, const struct node *node, const char **name);

#endif
