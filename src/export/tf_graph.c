// SPDX-License-Identifier: Apache-2.0
// tf_graph.c: nodes of our graph as nodes of TensorFlow: one row an op.
//   NodeDef { name 1, op 2, input 3, attr 5 map }, AttrValue { list 1, s 2, i 3, b 5, type 6, shape 7,
//   tensor 8 }, TensorProto { dtype 1, tensor_shape 2, tensor_content 4, string_val 8 }
#include "tf_graph.h"

#include <stdio.h>
#include <string.h>

#include "trainer/io.h"
#include "trainer/layers.h"

// ---- NodeDef ----------------------------------------------------------------------------------------

void tf_node_begin(struct tf_node *node, const char *name, const char *op)
{
    *node = (struct tf_node){0};
    wire_string(&node->bytes, 1, name);
    wire_string(&node->bytes, 2, op);
}

void tf_node_input(struct tf_node *node, const char *input)
{
    wire_string(&node->bytes, 3, input);
}

void tf_node_end(struct tf_node *node, struct text *out, int field)
{
    wire_message(out, field, &node->bytes);
    text_release(&node->bytes);
}

// Takes the value.
static void put_attr(struct tf_node *node, const char *key, struct text *value)
{
    struct text entry = {0};
    wire_string(&entry, 1, key);
    wire_message(&entry, 2, value);
    wire_message(&node->bytes, 5, &entry);
    text_release(&entry);
    text_release(value);
}

void tf_attr_type(struct tf_node *node, const char *key, int tf_dtype)
{
    struct text value = {0};
    wire_varint(&value, 6, (uint64_t)tf_dtype);
    put_attr(node, key, &value);
}

void tf_attr_types(struct tf_node *node, const char *key, int tf_dtype, int count)
{
    struct text list = {0}, value = {0};
    for (int i = 0; i < count; i++) {
        wire_varint(&list, 6, (uint64_t)tf_dtype);
    }
    wire_message(&value, 1, &list);
    text_release(&list);
    put_attr(node, key, &value);
}

void tf_attr_ints(struct tf_node *node, const char *key, const int64_t *values, int count)
{
    struct text list = {0}, value = {0};
    for (int i = 0; i < count; i++) {
        wire_varint(&list, 3, (uint64_t)values[i]);
    }
    wire_message(&value, 1, &list);
    text_release(&list);
    put_attr(node, key, &value);
}

void tf_attr_string(struct tf_node *node, const char *key, const char *text)
{
    struct text value = {0};
    wire_string(&value, 2, text);
    put_attr(node, key, &value);
}

void tf_attr_bool(struct tf_node *node, const char *key, bool flag)
{
    struct text value = {0};
    wire_varint(&value, 5, flag);
    put_attr(node, key, &value);
}

void tf_shape(struct text *out, struct shape shape, bool batch)
{
    for (int i = 0; i < shape.rank; i++) {
        struct text dim = {0};
        wire_varint(&dim, 1, batch && i == 0 ? UINT64_MAX : (uint64_t)shape.dim[i]);  // -1: unknown
        wire_message(out, 2, &dim);
        text_release(&dim);
    }
}

void tf_attr_shape(struct tf_node *node, const char *key, struct shape shape)
{
    struct text dims = {0}, value = {0};
    tf_shape(&dims, shape, false);
    wire_message(&value, 7, &dims);
    text_release(&dims);
    put_attr(node, key, &value);
}

static void put_tensor(struct tf_node *node, const char *key, struct text *tensor)
{
    struct text value = {0};
    wire_message(&value, 8, tensor);
    text_release(tensor);
    put_attr(node, key, &value);
}

void tf_attr_tensor(struct tf_node *node, const char *key, int tf_dtype, struct shape shape,
                    const void *data, size_t size)
{
    struct text dims = {0}, tensor = {0};
    tf_shape(&dims, shape, false);
    wire_varint(&tensor, 1, (uint64_t)tf_dtype);
    wire_message(&tensor, 2, &dims);
    wire_bytes(&tensor, 4, data, size);
    text_release(&dims);
    put_tensor(node, key, &tensor);
}

void tf_attr_strings_tensor(struct tf_node *node, const char *key, const char *const *values,
                            int count)
{
    struct text dims = {0}, tensor = {0};
    tf_shape(&dims, SHAPE(count), false);
    wire_varint(&tensor, 1, TF_STRING);
    wire_message(&tensor, 2, &dims);
    for (int i = 0; i < count; i++) {
        wire_string(&tensor, 8, values[i]);
    }
    text_release(&dims);
    put_tensor(node, key, &tensor);
}

// ---- The graph --------------------------------------------------------------------------------------

void tf_writer_init(struct tf_writer *writer, const struct graph *graph, struct text *out, int field,
                    bool in_function, const char *input_name)
{
    *writer = (struct tf_writer){.out = out,
                                 .field = field,
                                 .in_function = in_function,
                                 .names = MEM_NEW_ARRAY(const char *, graph->count),
                                 .graph = graph,
                                 .input_name = input_name};
    arena_init(&writer->arena);
}

void tf_writer_release(struct tf_writer *writer)
{
    arena_release(&writer->arena);
    mem_free(writer->names);
}

// How to refer to output 0 of a node; `output` is the op's name for it, which functions need.
static const char *reference(struct tf_writer *writer, const char *name, const char *output)
{
    return writer->in_function ? arena_printf(&writer->arena, "%s:%s:0", name, output) : name;
}

static const char *node_name(struct tf_writer *writer, const struct node *node, const char *part)
{
    return arena_printf(&writer->arena, "%s/%s_%d", *node->layer ? node->layer : "model", part,
                        node->id);
}

static const char *finish(struct tf_writer *writer, struct tf_node *tf, const char *name,
                          const char *output)
{
    tf_node_end(tf, writer->out, writer->field);
    return reference(writer, name, output);
}

// A constant beside a node: shapes, axes.
static const char *write_ints(struct tf_writer *writer, const struct node *node, const char *part,
                              const int32_t *values, struct shape shape)
{
    struct tf_node tf;
    const char *name = node_name(writer, node, part);
    tf_node_begin(&tf, name, "Const");
    tf_attr_type(&tf, "dtype", TF_INT32);
    tf_attr_tensor(&tf, "value", TF_INT32, shape, values,
                   sizeof *values * (size_t)shape_count(shape));
    return finish(writer, &tf, name, "output");
}

// An op of float inputs with nothing but its type.
static const char *write_plain(struct tf_writer *writer, const struct node *node, const char *part,
                               const char *op, const char *output, const char *a, const char *b)
{
    struct tf_node tf;
    const char *name = node_name(writer, node, part);
    tf_node_begin(&tf, name, op);
    tf_node_input(&tf, a);
    if (b) {
        tf_node_input(&tf, b);
    }
    tf_attr_type(&tf, "T", TF_FLOAT);
    return finish(writer, &tf, name, output);
}

struct row {
    enum op op;
    const char *tf_op, *output;
    enum status (*write)(struct tf_writer *writer, const struct node *node, const struct row *row,
                         const char **name);
};

static enum status write_eltwise(struct tf_writer *writer, const struct node *node,
                                 const struct row *row, const char **name)
{
    const char *a, *b = NULL;
    TRY(tf_write(writer, node->inputs[0], &a));
    if (node->input_count > 1) {
        TRY(tf_write(writer, node->inputs[1], &b));
    }
    *name = write_plain(writer, node, row->tf_op, row->tf_op, row->output, a, b);
    return STATUS_OK;
}

static enum status write_add(struct tf_writer *writer, const struct node *node,
                             const struct row *row, const char **name)
{
    static const struct row bias = {OP_ADD, "BiasAdd", "output", NULL};
    const struct node *b = node->inputs[1];
    bool is_bias = b->op == OP_VARIABLE && b->shape.rank == 1 && node->shape.rank >= 2;
    return write_eltwise(writer, node, is_bias ? &bias : row, name);
}

// "SAME", "VALID", or "EXPLICIT" where TensorFlow's rule gives other numbers.
static const char *padding_word(const struct node *node)
{
    const struct op_attr *attr = &node->attr;
    bool valid = true, same = true;
    for (int i = 0; i < 2; i++) {
        int before, after;
        padding_resolve(PADDING_SAME, node->inputs[0]->shape.dim[1 + i], attr->window[i],
                        attr->stride[i], MAX(attr->dilation[i], 1), &before, &after);
        same &= before == attr->pad_before[i] && after == attr->pad_after[i];
        valid &= !attr->pad_before[i] && !attr->pad_after[i];
    }
    return valid ? "VALID" : same ? "SAME" : "EXPLICIT";
}

static enum status write_conv(struct tf_writer *writer, const struct node *node,
                              const struct row *row, const char **name)
{
    const char *x, *w, *padding = padding_word(node);
    const struct op_attr *attr = &node->attr;
    TRY(tf_write(writer, node->inputs[0], &x));
    TRY(tf_write(writer, node->inputs[1], &w));
    struct tf_node tf;
    const char *own = node_name(writer, node, row->tf_op);
    tf_node_begin(&tf, own, row->tf_op);
    tf_node_input(&tf, x);
    tf_node_input(&tf, w);
    tf_attr_type(&tf, "T", TF_FLOAT);
    tf_attr_ints(&tf, "strides", (int64_t[]){1, attr->stride[0], attr->stride[1], 1}, 4);
    tf_attr_ints(&tf, "dilations", (int64_t[]){1, attr->dilation[0], attr->dilation[1], 1}, 4);
    tf_attr_string(&tf, "padding", padding);
    if (strcmp(padding, "EXPLICIT") == 0) {
        tf_attr_ints(&tf, "explicit_paddings",
                     (int64_t[]){0, 0, attr->pad_before[0], attr->pad_after[0], attr->pad_before[1],
                                 attr->pad_after[1], 0, 0}, 8);
    }
    *name = finish(writer, &tf, own, row->output);
    return STATUS_OK;
}

static enum status write_pool(struct tf_writer *writer, const struct node *node,
                              const struct row *row, const char **name)
{
    const char *x, *padding = padding_word(node);
    const struct op_attr *attr = &node->attr;
    if (strcmp(padding, "EXPLICIT") == 0) {
        return FAIL(ERR_UNSUPPORTED, "layer %s: TensorFlow has no pooling with padding other than "
                    "same or valid", node->layer);
    }
    TRY(tf_write(writer, node->inputs[0], &x));
    struct tf_node tf;
    const char *own = node_name(writer, node, row->tf_op);
    tf_node_begin(&tf, own, row->tf_op);
    tf_node_input(&tf, x);
    tf_attr_type(&tf, "T", TF_FLOAT);
    tf_attr_ints(&tf, "ksize", (int64_t[]){1, attr->window[0], attr->window[1], 1}, 4);
    tf_attr_ints(&tf, "strides", (int64_t[]){1, attr->stride[0], attr->stride[1], 1}, 4);
    tf_attr_string(&tf, "padding", padding);
    *name = finish(writer, &tf, own, row->output);
    return STATUS_OK;
}

static enum status write_reshape(struct tf_writer *writer, const struct node *node,
                                 const struct row *row, const char **name)
{
    const char *x;
    int32_t dims[SHAPE_RANK_MAX] = {-1};  // dimension 0 is the batch
    TRY(tf_write(writer, node->inputs[0], &x));
    for (int i = 1; i < node->shape.rank; i++) {
        dims[i] = (int32_t)node->shape.dim[i];
    }
    const char *shape = write_ints(writer, node, "shape", dims, SHAPE(node->shape.rank));
    struct tf_node tf;
    const char *own = node_name(writer, node, row->tf_op);
    tf_node_begin(&tf, own, row->tf_op);
    tf_node_input(&tf, x);
    tf_node_input(&tf, shape);
    tf_attr_type(&tf, "T", TF_FLOAT);
    tf_attr_type(&tf, "Tshape", TF_INT32);
    *name = finish(writer, &tf, own, row->output);
    return STATUS_OK;
}

static enum status write_sum(struct tf_writer *writer, const struct node *node,
                             const struct row *row, const char **name)
{
    const char *x;
    int32_t axes[SHAPE_RANK_MAX];
    int given = node->attr.axis_count, count = given ? given : node->inputs[0]->shape.rank;
    TRY(tf_write(writer, node->inputs[0], &x));
    for (int i = 0; i < count; i++) {
        axes[i] = given ? node->attr.axes[i] : i;  // none given: all
    }
    const char *indices = write_ints(writer, node, "axes", axes, SHAPE(count));
    struct tf_node tf;
    const char *own = node_name(writer, node, row->tf_op);
    tf_node_begin(&tf, own, row->tf_op);
    tf_node_input(&tf, x);
    tf_node_input(&tf, indices);
    tf_attr_type(&tf, "T", TF_FLOAT);
    tf_attr_type(&tf, "Tidx", TF_INT32);
    tf_attr_bool(&tf, "keep_dims", node->attr.keep_dims);
    *name = finish(writer, &tf, own, row->output);
    return STATUS_OK;
}

// The amounts of padding are a constant (rank, 2): before and after each dimension.
static enum status write_pad(struct tf_writer *writer, const struct node *node,
                             const struct row *row, const char **name)
{
    const char *x;
    int32_t amounts[2 * SHAPE_RANK_MAX];
    TRY(tf_write(writer, node->inputs[0], &x));
    for (int i = 0; i < node->shape.rank; i++) {
        amounts[2 * i] = (int32_t)node->attr.start[i];
        amounts[2 * i + 1] = (int32_t)node->attr.stop[i];
    }
    const char *paddings =
        write_ints(writer, node, "paddings", amounts, SHAPE(node->shape.rank, 2));
    struct tf_node tf;
    const char *own = node_name(writer, node, row->tf_op);
    tf_node_begin(&tf, own, row->tf_op);
    tf_node_input(&tf, x);
    tf_node_input(&tf, paddings);
    tf_attr_type(&tf, "T", TF_FLOAT);
    tf_attr_type(&tf, "Tpaddings", TF_INT32);
    *name = finish(writer, &tf, own, row->output);
    return STATUS_OK;
}

static enum status write_matmul(struct tf_writer *writer, const struct node *node,
                                const struct row *row, const char **name)
{
    const char *a, *b;
    TRY(tf_write(writer, node->inputs[0], &a));
    TRY(tf_write(writer, node->inputs[1], &b));
    struct tf_node tf;
    const char *own = node_name(writer, node, row->tf_op);
    tf_node_begin(&tf, own, row->tf_op);
    tf_node_input(&tf, a);
    tf_node_input(&tf, b);
    tf_attr_type(&tf, "T", TF_FLOAT);
    tf_attr_bool(&tf, "transpose_a", node->attr.transpose_a);
    tf_attr_bool(&tf, "transpose_b", node->attr.transpose_b);
    *name = finish(writer, &tf, own, row->output);
    return STATUS_OK;
}

static const char *write_scalar(struct tf_writer *writer, const struct node *node, const char *part,
                                float value)
{
    struct tf_node tf;
    const char *name = node_name(writer, node, part);
    tf_node_begin(&tf, name, "Const");
    tf_attr_type(&tf, "dtype", TF_FLOAT);
    tf_attr_tensor(&tf, "value", TF_FLOAT, shape_scalar(), &value, sizeof value);
    return finish(writer, &tf, name, "output");
}

// (x - mean) * rsqrt(variance + epsilon) * gamma + beta. The statistics are two variables, joined.
static enum status write_batch_norm(struct tf_writer *writer, const struct node *node,
                                    const struct row *row, const char **name)
{
    (void)row;
    const struct node *stats = node->inputs[1];
    const char *x, *mean, *variance, *gamma, *beta;
    if (stats->op != OP_CONCAT || stats->input_count != 2) {
        return FAIL(ERR_UNSUPPORTED, "layer %s: batch normalisation over the batch cannot be exported",
                    node->layer);
    }
    TRY(tf_write(writer, node->inputs[0], &x));
    TRY(tf_write(writer, stats->inputs[0]->inputs[0], &mean));
    TRY(tf_write(writer, stats->inputs[1]->inputs[0], &variance));
    TRY(tf_write(writer, node->inputs[2], &gamma));
    TRY(tf_write(writer, node->inputs[3], &beta));
    const char *epsilon = write_scalar(writer, node, "epsilon", (float)node->attr.epsilon);
    const char *sum = write_plain(writer, node, "shifted", "AddV2", "z", variance, epsilon);
    const char *root = write_plain(writer, node, "rsqrt", "Rsqrt", "y", sum, NULL);
    const char *scale = write_plain(writer, node, "scale", "Mul", "z", root, gamma);
    const char *centred = write_plain(writer, node, "centred", "Sub", "z", x, mean);
    const char *scaled = write_plain(writer, node, "scaled", "Mul", "z", centred, scale);
    *name = write_plain(writer, node, "batch_norm", "AddV2", "z", scaled, beta);
    return STATUS_OK;
}

static enum status write_const(struct tf_writer *writer, const struct node *node,
                               const struct row *row, const char **name)
{
    struct tf_node tf;
    const char *own = node_name(writer, node, row->tf_op);
    tf_node_begin(&tf, own, row->tf_op);
    tf_attr_type(&tf, "dtype", tf_dtype(node->dtype));
    tf_attr_tensor(&tf, "value", tf_dtype(node->dtype), node->shape, node->value,
                   node_bytes(node));
    *name = finish(writer, &tf, own, row->output);
    return STATUS_OK;
}

static enum status write_variable(struct tf_writer *writer, const struct node *node,
                                  const struct row *row, const char **name)
{
    struct tf_node tf;
    const char *handle = writer->in_function
                             ? arena_printf(&writer->arena, "w%d", node->variable->id)
                             : node->variable->name;
    const char *own = arena_printf(&writer->arena, "%s/Read", node->variable->name);
    tf_node_begin(&tf, own, row->tf_op);
    tf_node_input(&tf, handle);
    tf_attr_type(&tf, "dtype", TF_FLOAT);
    *name = finish(writer, &tf, own, row->output);
    return STATUS_OK;
}

static enum status write_input(struct tf_writer *writer, const struct node *node,
                               const struct row *row, const char **name)
{
    (void)node, (void)row;
    *name = writer->input_name;
    return STATUS_OK;
}

static const struct row rows[] = {
    {OP_INPUT, "Placeholder", "output", write_input},
    {OP_VARIABLE, "ReadVariableOp", "value", write_variable},
    {OP_CONST, "Const", "output", write_const},
    {OP_CONV2D, "Conv2D", "output", write_conv},
    {OP_MAX_POOL, "MaxPool", "output", write_pool},
    {OP_AVG_POOL, "AvgPool", "output", write_pool},
    {OP_RESHAPE, "Reshape", "output", write_reshape},
    {OP_PAD, "Pad", "output", write_pad},
    {OP_REDUCE_SUM, "Sum", "output", write_sum},
    {OP_MATMUL, "MatMul", "product", write_matmul},
    {OP_BATCH_NORM, "", "", write_batch_norm},
    {OP_ADD, "AddV2", "z", write_add},
    {OP_SUB, "Sub", "z", write_eltwise},
    {OP_MUL, "Mul", "z", write_eltwise},
    {OP_DIV, "RealDiv", "z", write_eltwise},
    {OP_RELU, "Relu", "activations", write_eltwise},
    {OP_SIGMOID, "Sigmoid", "y", write_eltwise},
    {OP_TANH, "Tanh", "y", write_eltwise},
    {OP_SOFTMAX, "Softmax", "softmax", write_eltwise},
};

enum status tf_write(struct tf_writer *writer, const struct node *node, const char **name)
{
    if (writer->names[node->id]) {
        *name = writer->names[node->id];
        return STATUS_OK;
    }
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        if (rows[i].op == node->op) {
            TRY(rows[i].write(writer, node, &rows[i], name));
            writer->names[node->id] = *name;
            return STATUS_OK;
        }
    }
    return FAIL(ERR_UNSUPPORTED, "layer %s: the op %s has no counterpart for a SavedModel yet",
                node->layer, op_table[node->op]->name);
}
