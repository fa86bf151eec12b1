// SPDX-License-Identifier: Apache-2.0
// layer_conv.c: convolution and pooling over images (N, H, W, C).
#include "layer_impl.h"

static const char *padding_name(enum padding padding)
{
    return padding == PADDING_SAME ? "same" : "valid";
}

// False (and a recorded failure) when x is no image.
static bool is_image(struct net *net, const struct node *x)
{
    if (x && x->shape.rank != 4) {
        graph_fail(net->graph, "expected images (N, H, W, C), got %s; a flatten or dense layer "
                   "before it has taken the image apart", shape_str(x->shape));
    }
    return x && net->graph->status == STATUS_OK;
}

struct node *layer_conv2d(struct net *net, struct node *x, const struct conv2d_options *options)
{
    struct graph *graph = net->graph;
    struct layer_record *record = layer_begin(net, "Conv2D", "conv2d", options->name, x);
    if (!is_image(net, x)) {
        return layer_end(net, record, NULL);
    }
    struct conv2d_options o = *options;
    o.groups = MAX(o.groups, 1);
    struct op_attr attr = {.groups = o.groups};
    for (int i = 0; i < 2; i++) {
        attr.window[i] = o.kernel[i];
        attr.stride[i] = MAX(o.stride[i], 1);
        attr.dilation[i] = MAX(o.dilation[i], 1);
        padding_resolve(o.padding, x->shape.dim[1 + i], o.kernel[i], attr.stride[i],
                        attr.dilation[i], &attr.pad_before[i], &attr.pad_after[i]);
    }
    int64_t channels = x->shape.dim[3] / o.groups, field = (int64_t)o.kernel[0] * o.kernel[1];
    struct node *w = layer_variable(  // (R, S, C / groups, K)
        net, record, "kernel", SHAPE(o.kernel[0], o.kernel[1], channels, o.filters),
        VARIABLE_WEIGHT,
        (struct initializer){.kind = INIT_GLOROT_UNIFORM,
                             .fan_in = field * channels,
                             .fan_out = field * o.filters});
    struct node *y = GRAPH_NODE(graph, OP_CONV2D, &attr, x, w);  // (N, P, Q, K)
    if (!o.no_bias) {
        struct node *b = layer_variable(net, record, "bias", SHAPE(o.filters), VARIABLE_WEIGHT,
                                        (struct initializer){.kind = INIT_ZEROS});  // (K)
        y = GRAPH_NODE(graph, OP_ADD, NULL, y, b);
    }
    layer_penalty(net, w, o.l2);
    record->config = arena_printf(
        &graph->arena,
        "{\"name\": \"%s\", \"trainable\": true, \"dtype\": \"float32\", \"filters\": %d, "
        "\"kernel_size\": [%d, %d], \"strides\": [%d, %d], \"padding\": \"%s\", "
        "\"data_format\": \"channels_last\", \"dilation_rate\": [%d, %d], \"groups\": %d, "
        "\"activation\": \"%s\", \"use_bias\": %s}",
        record->name, o.filters, o.kernel[0], o.kernel[1], attr.stride[0], attr.stride[1],
        padding_name(o.padding), attr.dilation[0], attr.dilation[1], o.groups,
        activation_names()[o.activation], o.no_bias ? "false" : "true");
    return layer_end(net, record, apply_activation(net, y, o.activation));
}

static struct node *pool(struct net *net, struct node *x, const struct pool2d_options *options,
                         enum op op, const char *class_name, const char *snake)
{
    struct layer_record *record = layer_begin(net, class_name, snake, options->name, x);
    if (!is_image(net, x)) {
        return layer_end(net, record, NULL);
    }
    struct op_attr attr = {0};
    for (int i = 0; i < 2; i++) {
        attr.window[i] = options->window[i];
        attr.stride[i] = options->stride[i] ? options->stride[i] : options->window[i];
        padding_resolve(options->padding, x->shape.dim[1 + i], attr.window[i], attr.stride[i], 1,
                        &attr.pad_before[i], &attr.pad_after[i]);
    }
    record->config = arena_printf(
        &net->graph->arena,
        "{\"name\": \"%s\", \"trainable\": true, \"dtype\": \"float32\", \"pool_size\": [%d, %d], "
        "\"padding\": \"%s\", \"strides\": [%d, %d], \"data_format\": \"channels_last\"}",
        record->name, attr.window[0], attr.window[1], padding_name(options->padding),
        attr.stride[0], attr.stride[1]);
    return layer_end(net, record, GRAPH_NODE(net->graph, op, &attr, x));
}

struct node *layer_max_pool2d(struct net *net, struct node *x,
                              const struct pool2d_options *options)
{
    return pool(net, x, options, OP_MAX_POOL, "MaxPooling2D", "max_pooling2d");
}

struct node *layer_avg_pool2d(struct net *net, struct node *x,
                              const struct pool2d_options *options)
{
    return pool(net, x, options, OP_AVG_POOL, "AveragePooling2D", "average_pooling2d");
}

struct node *layer_global_avg_pool2d(struct net *net, struct node *x, const char *name)
{
    struct layer_record *record = layer_begin(net, "GlobalAveragePooling2D",
                                              "global_average_pooling2d", name, x);
    if (!is_image(net, x)) {
        return layer_end(net, record, NULL);
    }
    struct op_attr attr = {.axes = {1, 2}, .axis_count = 2};
    struct node *sum = GRAPH_NODE(net->graph, OP_REDUCE_SUM, &attr, x);  // (N, C)
    double pixels = (double)(x->shape.dim[1] * x->shape.dim[2]);
    record->config = arena_printf(
        &net->graph->arena,
        "{\"name\": \"%s\", \"trainable\": true, \"dtype\": \"float32\", "
        "\"data_format\": \"channels_last\", \"keepdims\": false}",
        record->name);
    return layer_end(net, record, graph_mul_scalar(net->graph, sum, 1 / pixels));
}
