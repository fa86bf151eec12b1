// SPDX-License-Identifier: Apache-2.0
// step_graph.c: builds the graphs of a run. The train step is one graph: scaling of the bytes, the
// model, the loss, its gradients, their sum over the replicas, clipping, the update.
#include <stdlib.h>
#include <string.h>

#include "train_impl.h"

void step_graph_release(struct step_graph *step)
{
    net_release(&step->net);
    graph_release(&step->graph);
    *step = (struct step_graph){0};
}

// The bytes 0..255 as 0..1: what the tutorials' models are trained on.
static struct node *scale_bytes(struct graph *graph, struct node *image)
{
    struct node *real = GRAPH_NODE(graph, OP_CAST, &(struct op_attr){.dtype = graph->real}, image);
    // Divided, not multiplied by 1/255: the same bits as TensorFlow's images / 255.
    return GRAPH_NODE(graph, OP_DIV, NULL, real, graph_scalar(graph, graph->real, 255));
}

static struct shape batch_shape(struct shape example, int rows)
{
    struct shape shape = {.rank = example.rank + 1, .dim = {rows}};
    memcpy(shape.dim + 1, example.dim, sizeof(int64_t) * (size_t)example.rank);
    return shape;
}

static void build_model(struct step_graph *step, const struct step_spec *spec, bool training)
{
    struct graph *graph = &step->graph;
    graph_init(graph, spec->variables, spec->real);
    net_init(&step->net, graph, training, spec->seed);
    step->image = graph_input(graph, "image", spec->example->dtype,
                              batch_shape(spec->example->shape, spec->rows));
    if (training) {
        step->net.step = graph_input(graph, "step", DTYPE_I64, shape_scalar());
        step->net.row = graph_input(graph, "row", DTYPE_I64, shape_scalar());
    }
    step->scaled = scale_bytes(graph, step->image);
    step->output = spec->model->build(&step->net, spec->config, step->scaled);
    if (!step->net.logits) {
        step->net.logits = step->output;
    }
    for (int i = 0; i < graph->count; i++) {
        step->batch_stats |= graph->nodes[i]->op == OP_BATCH_NORM_STATS;
    }
}

static double smoothing(const struct step_spec *spec)
{
    const char *path = "model.loss.label_smoothing";
    return config_is_null(spec->config, path) ? 0 : config_float(spec->config, path);
}

// Classes of the model and of the data must agree before any label is looked up.
static enum status check_classes(struct step_graph *step, const struct step_spec *spec)
{
    if (graph_check(&step->graph) != STATUS_OK) {
        return ERR_USAGE;  // the sentence stands: the model as configured cannot be
    }
    struct shape shape = step->net.logits->shape;
    if (shape.rank != 2 || shape.dim[1] < spec->example->num_classes) {
        return FAIL(ERR_USAGE,
                    "model %s gives %s, but the data has %d classes; the last layer needs one "
                    "output a class", spec->model->name, shape_str(shape),
                    spec->example->num_classes);
    }
    return STATUS_OK;
}

// Loss of this replica's share: sum of weight * loss, plus its share of the penalty.
static struct node *build_loss(struct step_graph *step, const struct step_spec *spec,
                               struct node *labels, struct node *weights)
{
    struct graph *graph = &step->graph;
    graph->layer = "loss";
    struct node *losses = loss_cross_entropy(graph, step->net.logits, labels, smoothing(spec));
    struct node *loss = weighted_sum(graph, losses, weights);
    if (step->net.penalty) {
        double share = 1.0 / (spec->replicas * spec->parts);
        loss = GRAPH_NODE(graph, OP_ADD, NULL, loss,
                          graph_mul_scalar(graph, step->net.penalty, share));
    }
    return loss;
}

// The weights that are trained: every trainable variable made so far.
static int trained_weights(const struct variables *variables, struct variable ***out)
{
    *out = MEM_NEW_ARRAY(struct variable *, variables->count);
    int count = 0;
    for (int i = 0; i < variables->count; i++) {
        if (variables->items[i]->role == VARIABLE_WEIGHT && variables->items[i]->trainable) {
            (*out)[count++] = variables->items[i];
        }
    }
    return count;
}

static void gradients_of(struct graph *graph, struct node *loss, struct variable *const *weights,
                         int count, struct node **gradients)
{
    struct node **wrt = MEM_NEW_ARRAY(struct node *, count);
    for (int i = 0; i < count && graph->status == STATUS_OK; i++) {
        wrt[i] = graph_variable(graph, weights[i]);
    }
    graph_gradients(graph, loss, wrt, count, gradients);
    mem_free(wrt);
}

static void add_update(struct graph *graph, const struct step_spec *spec,
                       struct variable *const *weights, struct node **gradients, int count,
                       struct node *lr, struct node *step)
{
    spec->strategy->reduce(graph, gradients, count, spec->replicas);
    graph->layer = "update";
    if (!config_is_null(spec->config, "train.clip_norm") && graph->status == STATUS_OK) {
        double limit = config_float(spec->config, "train.clip_norm");
        graph_output(graph, "norm", optimizer_clip(graph, gradients, count, limit));
    }
    optimizer_apply(graph, spec->config, weights, gradients, count, lr, step);
}

// Moving statistics, averaged over the replicas as TensorFlow does.
static void add_statistics(struct step_graph *step, const struct step_spec *spec)
{
    struct graph *graph = &step->graph;
    graph->layer = "statistics";
    for (int i = 0; i < step->net.update_count; i++) {
        struct net_update *update = &step->net.updates[i];
        struct node *value = spec->strategy->mean(graph, update->value, spec->replicas);
        if (value) {
            GRAPH_NODE(graph, OP_ASSIGN, NULL, graph_variable(graph, update->variable), value);
        }
    }
}

struct training_nodes {
    struct node *labels, *weights, *loss, *correct;
};

static enum status build_forward(struct step_graph *step, const struct step_spec *spec,
                                 struct training_nodes *nodes)
{
    struct graph *graph = &step->graph;
    *step = (struct step_graph){0};
    build_model(step, spec, true);
    TRY(check_classes(step, spec));
    TRY(apply_trainable(&step->net, spec->config));
    nodes->labels = graph_input(graph, "label", DTYPE_I32, SHAPE(spec->rows));
    nodes->weights = graph_input(graph, "weight", graph->real, SHAPE(spec->rows));
    nodes->loss = build_loss(step, spec, nodes->labels, nodes->weights);
    nodes->correct = weighted_sum(graph, metric_correct(graph, step->net.logits, nodes->labels),
                                  nodes->weights);
    return graph_check(graph);
}

enum status train_graph_build(struct step_graph *step, const struct step_spec *spec)
{
    struct training_nodes nodes;
    TRY(build_forward(step, spec, &nodes));
    struct graph *graph = &step->graph;
    struct node *lr = graph_input(graph, "lr", graph->real, shape_scalar());
    struct variable **weights;
    int count = trained_weights(spec->variables, &weights);
    struct node **gradients = MEM_NEW_ARRAY(struct node *, count);
    gradients_of(graph, nodes.loss, weights, count, gradients);
    graph->layer = "loss";
    // The loss of the global batch decides on every replica alike: when it is not finite the rate
    // becomes NaN, and an update with such a rate leaves everything as it was.
    spec->strategy->reduce(graph, &nodes.loss, 1, spec->replicas);
    struct node *guard = graph_mul_scalar(graph, nodes.loss, 0);
    struct node *rate = lr;
    if (strcmp(config_string(spec->config, "train.nan_guard"), "off") != 0 && guard) {
        rate = GRAPH_NODE(graph, OP_ADD, NULL, lr, guard);
    }
    graph_output(graph, "loss", nodes.loss);
    graph_output(graph, "correct", nodes.correct);
    add_update(graph, spec, weights, gradients, count, rate, step->net.step);
    add_statistics(step, spec);
    mem_free(gradients);
    mem_free(weights);
    TRY(graph_check(graph));
    return graph_fold_constants(graph);
}

static struct variable *accumulator(const struct step_spec *spec, struct arena *arena,
                                    const struct variable *weight)
{
    return variables_get(spec->variables, arena_printf(arena, "%s/accumulator", weight->name),
                         weight->dtype, weight->shape, VARIABLE_SCRATCH, false,
                         (struct initializer){.kind = INIT_ZEROS});
}

enum status accumulate_graph_build(struct step_graph *step, const struct step_spec *spec)
{
    struct training_nodes nodes;
    TRY(build_forward(step, spec, &nodes));
    struct graph *graph = &step->graph;
    struct variable **weights;
    int count = trained_weights(spec->variables, &weights);
    struct node **gradients = MEM_NEW_ARRAY(struct node *, count);
    gradients_of(graph, nodes.loss, weights, count, gradients);
    graph->layer = "loss";
    spec->strategy->reduce(graph, &nodes.loss, 1, spec->replicas);
    graph_output(graph, "loss", nodes.loss);
    graph_output(graph, "correct", nodes.correct);
    graph->layer = "accumulate";
    for (int i = 0; i < count && graph->status == STATUS_OK; i++) {
        if (gradients[i]) {
            struct variable *sum = accumulator(spec, &graph->arena, weights[i]);
            GRAPH_NODE(graph, OP_ASSIGN_ADD, NULL, graph_variable(graph, sum), gradients[i]);
        }
    }
    add_statistics(step, spec);
    mem_free(gradients);
    mem_free(weights);
    TRY(graph_check(graph));
    return graph_fold_constants(graph);
}

enum status update_graph_build(struct step_graph *step, const struct step_spec *spec)
{
    *step = (struct step_graph){0};
    struct graph *graph = &step->graph;
    graph_init(graph, spec->variables, spec->real);
    struct node *count_done = graph_input(graph, "step", DTYPE_I64, shape_scalar());
    struct node *lr = graph_input(graph, "lr", graph->real, shape_scalar());
    struct variable **weights;
    int count = trained_weights(spec->variables, &weights);
    struct node **sums = MEM_NEW_ARRAY(struct node *, count);
    struct node **gradients = MEM_NEW_ARRAY(struct node *, count);
    for (int i = 0; i < count; i++) {
        sums[i] = graph_variable(graph, accumulator(spec, &graph->arena, weights[i]));
        gradients[i] = sums[i];
    }
    add_update(graph, spec, weights, gradients, count, lr, count_done);
    for (int i = 0; i < count && graph->status == STATUS_OK; i++) {
        struct op_attr attr = {.shape = sums[i]->shape};
        struct node *zeros =
            GRAPH_NODE(graph, OP_BROADCAST, &attr, graph_scalar(graph, sums[i]->dtype, 0));
        GRAPH_NODE(graph, OP_ASSIGN, NULL, sums[i], zeros);
    }
    mem_free(gradients);
    mem_free(sums);
    mem_free(weights);
    return graph_check(graph);
}

enum status eval_graph_build(struct step_graph *step, const struct step_spec *spec)
{
    *step = (struct step_graph){0};
    struct graph *graph = &step->graph;
    build_model(step, spec, false);
    TRY(check_classes(step, spec));
    struct node *labels = graph_input(graph, "label", DTYPE_I32, SHAPE(spec->rows));
    graph->layer = "loss";
    graph_output(graph, "losses", loss_cross_entropy(graph, step->net.logits, labels, 0));
    step->probabilities = GRAPH_NODE(graph, OP_SOFTMAX, NULL, step->net.logits);
    graph_output(graph, "probabilities", step->probabilities);
    TRY(graph_check(graph));
    return graph_fold_constants(graph);
}

enum status export_graph_build(struct step_graph *step, const struct step_spec *spec)
{
    *step = (struct step_graph){0};
    struct graph *graph = &step->graph;
    graph_init(graph, spec->variables, spec->real);
    net_init(&step->net, graph, false, spec->seed);
    step->image = graph_input(graph, "image", graph->real, batch_shape(spec->example->shape, 1));
    step->scaled = step->image;
    step->output = spec->model->build(&step->net, spec->config, step->image);
    step->probabilities = step->net.logits ? step->output
                          : step->output ? GRAPH_NODE(graph, OP_SOFTMAX, NULL, step->output)
                                         : NULL;
    if (!step->net.logits) {
        step->net.logits = step->output;
    }
    graph_output(graph, "probabilities", step->probabilities);
    return graph_check(graph);
}

// "-4:" means the last four layers, as layers[-4:] in Keras.
static bool pattern_matches(const char *pattern, const char *name, int from_end)
{
    char *end;
    long last = strtol(pattern, &end, 10);
    if (*pattern == '-' && end > pattern + 1 && strcmp(end, ":") == 0) {
        return from_end <= -last;
    }
    return text_glob(pattern, name);
}

enum status apply_trainable(const struct net *net, const struct config *config)
{
    const char *path = "train.trainable";
    int patterns = config_count(config, path);
    for (int p = 0; p < patterns; p++) {
        const char *pattern = config_string_at(config, path, p);
        bool used = false;
        for (int i = 0; i < net->layer_count; i++) {
            used |= pattern_matches(pattern, net->layers[i]->name, net->layer_count - i);
        }
        if (!used) {
            char place[256];
            struct text names = {0};
            for (int i = 0; i < net->layer_count; i++) {
                text_printf(&names, "%s%s", i ? ", " : "", net->layers[i]->name);
            }
            enum status status =
                FAIL(ERR_USAGE, "%s: train.trainable: no layer matches '%s'; the layers are %s",
                     config_place(config, path, place, sizeof place), pattern, text_get(&names));
            text_release(&names);
            return status;
        }
    }
    for (int i = 0; i < net->layer_count; i++) {
        bool trained = false;
        for (int p = 0; p < patterns; p++) {
            trained |= pattern_matches(config_string_at(config, path, p), net->layers[i]->name,
                                       net->layer_count - i);
        }
        for (int w = 0; w < net->layers[i]->weight_count; w++) {
            struct variable *variable = net->layers[i]->weights[w].variable;
            variable->trainable = trained && variable->role == VARIABLE_WEIGHT;
        }
    }
    return STATUS_OK;
}
