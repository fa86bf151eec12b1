// SPDX-License-Identifier: Apache-2.0
// model.c: the table of models, and the summary of one.
#include "trainer/model.h"

#include <string.h>

#define MODEL(id) extern const struct model_def model_##id;
#include "models.def"
#undef MODEL

const struct model_def *const model_table[] = {
#define MODEL(id) &model_##id,
#include "models.def"
#undef MODEL
    NULL,
};

const struct model_def *model_find(const char *name)
{
    for (const struct model_def *const *row = model_table; *row; row++) {
        if (strcmp((*row)->name, name) == 0) {
            return *row;
        }
    }
    return NULL;
}

static int64_t layer_parameters(const struct layer_record *layer, bool trainable_only)
{
    int64_t count = 0;
    for (int i = 0; i < layer->weight_count; i++) {
        const struct variable *variable = layer->weights[i].variable;
        if (!trainable_only || variable->trainable) {
            count += shape_count(variable->shape);
        }
    }
    return count;
}

int64_t model_parameter_count(const struct net *net, bool trainable_only)
{
    int64_t count = 0;
    for (int i = 0; i < net->layer_count; i++) {
        count += layer_parameters(net->layers[i], trainable_only);
    }
    return count;
}

// Floating-point operations of the layer's own nodes, an example.
static double layer_flops(const struct net *net, const struct layer_record *layer)
{
    double flops = 0;
    for (int i = layer->first_node; i < layer->end_node; i++) {
        flops += node_flops(net->graph->nodes[i]);
    }
    return layer->input.rank && layer->input.dim[0] ? flops / (double)layer->input.dim[0] : flops;
}

void model_summary(const struct net *net, struct text *out)
{
    text_printf(out, "%-28s %-24s %-22s %12s %14s\n", "layer", "class", "output", "parameters",
                "FLOP/example");
    double flops = 0;
    for (int i = 0; i < net->layer_count; i++) {
        const struct layer_record *layer = net->layers[i];
        struct shape one = layer->output;
        one.dim[0] = 1;
        text_printf(out, "%-28s %-24s %-22s %12lld %14.0f\n", layer->name, layer->class_name,
                    shape_str(one), (long long)layer_parameters(layer, false),
                    layer_flops(net, layer));
        flops += layer_flops(net, layer);
    }
    text_printf(out, "%-28s %-24s %-22s %12lld %14.0f\n", "total", "", "",
                (long long)model_parameter_count(net, false), flops);
    int64_t frozen = model_parameter_count(net, false) - model_parameter_count(net, true);
    if (frozen) {
        text_printf(out, "not trained: %lld parameters\n", (long long)frozen);
    }
}
