// SPDX-License-Identifier: Apache-2.0
// optimizer.c: update rules as rows. The formulas are in src/ops/op_optim.c.
#include "trainer/optimizer.h"

#include <string.h>

static double number(const struct config *config, const char *path, double otherwise)
{
    return config_is_null(config, path) ? otherwise : config_float(config, path);
}

static void common_attributes(const struct config *config, struct op_attr *attr)
{
    attr->weight_decay = config_float(config, "model.optimizer.weight_decay");
    attr->nesterov = !config_is_null(config, "model.optimizer.nesterov") &&
                     config_bool(config, "model.optimizer.nesterov");
}

static void sgd_attributes(const struct config *config, struct op_attr *attr, int *slots)
{
    common_attributes(config, attr);
    *slots = 0;
}

static void momentum_attributes(const struct config *config, struct op_attr *attr, int *slots)
{
    common_attributes(config, attr);
    attr->alpha = config_float(config, "model.optimizer.momentum");
    *slots = 1;
}

static void rmsprop_attributes(const struct config *config, struct op_attr *attr, int *slots)
{
    common_attributes(config, attr);
    attr->beta_2 = config_float(config, "model.optimizer.decay");
    attr->epsilon = config_float(config, "model.optimizer.epsilon");
    attr->alpha = config_float(config, "model.optimizer.momentum");
    attr->epsilon_outside = config_bool(config, "model.optimizer.epsilon_outside");
    *slots = attr->alpha > 0 ? 2 : 1;
}

static void adam_attributes(const struct config *config, struct op_attr *attr, int *slots)
{
    common_attributes(config, attr);
    attr->beta_1 = number(config, "model.optimizer.beta_1", 0.9);
    attr->beta_2 = number(config, "model.optimizer.beta_2", 0.999);
    attr->epsilon = config_float(config, "model.optimizer.epsilon");
    *slots = 2;
}

static void lars_attributes(const struct config *config, struct op_attr *attr, int *slots)
{
    momentum_attributes(config, attr, slots);
    attr->rate = config_float(config, "model.optimizer.trust_coefficient");
    attr->epsilon = config_float(config, "model.optimizer.epsilon");
}

static const struct optimizer_def sgd = {.name = "sgd",
                                         .keras_name = "SGD",
                                         .help = "w -= lr * g",
                                         .op = OP_SGD,
                                         .slots = {NULL},
                                         .keras_lists = {"momentums", NULL},
                                         .attributes = sgd_attributes};
static const struct optimizer_def momentum = {.name = "momentum",
                                              .keras_name = "SGD",
                                              .help = "SGD with momentum, or Nesterov's",
                                              .op = OP_MOMENTUM,
                                              .slots = {"momentum", NULL},
                                              .keras_lists = {"momentums", NULL},
                                              .attributes = momentum_attributes};
static const struct optimizer_def rmsprop = {.name = "rmsprop",
                                             .keras_name = "RMSprop",
                                             .help = "gradient over its root mean square",
                                             .op = OP_RMSPROP,
                                             .slots = {"rms", "momentum", NULL},
                                             .keras_lists = {"_velocities", "_momentums", NULL},
                                             .keras_by_slot = true,
                                             .attributes = rmsprop_attributes};
static const struct optimizer_def adam = {.name = "adam",
                                          .keras_name = "Adam",
                                          .help = "Kingma and Ba 2015",
                                          .op = OP_ADAM,
                                          .slots = {"m", "v", NULL},
                                          .keras_lists = {"_momentums", "_velocities", NULL},
                                          .needs_step = true,
                                          .attributes = adam_attributes};
static const struct optimizer_def adamw = {.name = "adamw",
                                           .keras_name = "AdamW",
                                           .help = "Adam with decoupled weight decay",
                                           .op = OP_ADAM,
                                           .slots = {"m", "v", NULL},
                                          .keras_lists = {"_momentums", "_velocities", NULL},
                                           .needs_step = true,
                                           .attributes = adam_attributes};
static const struct optimizer_def lars = {.name = "lars",
                                          .keras_name = "LARS",
                                          .help = "momentum with a trust ratio a tensor",
                                          .op = OP_LARS,
                                          .slots = {"momentum", NULL},
                                          .keras_lists = {"momentums", NULL},
                                          .attributes = lars_attributes};
static const struct optimizer_def lamb = {.name = "lamb",
                                          .keras_name = "LAMB",
                                          .help = "Adam with a trust ratio a tensor",
                                          .op = OP_LAMB,
                                          .slots = {"m", "v", NULL},
                                          .keras_lists = {"_momentums", "_velocities", NULL},
                                          .needs_step = true,
                                          .attributes = adam_attributes};

const struct optimizer_def *const optimizer_table[] = {&sgd,   &momentum, &rmsprop, &adam,
                                                       &adamw, &lars,     &lamb,    NULL};

static const char *const optimizer_names[] = {"sgd",   "momentum", "rmsprop", "adam",
                                              "adamw", "lars",     "lamb",    NULL};

const struct config_field optimizer_fields[] = {
    {"model.optimizer.name", CONFIG_STRING, 0, "momentum", 0, 0, optimizer_names, "Update rule."},
    {"model.optimizer.momentum", CONFIG_FLOAT, 0, "0.9", 0, 1, NULL,
     "Momentum of momentum, rmsprop and lars."},
    {"model.optimizer.decay", CONFIG_FLOAT, 0, "0.9", 0, 1, NULL,
     "Decay of rmsprop's mean square (rho)."},
    {"model.optimizer.epsilon", CONFIG_FLOAT, 0, "0.001", 0, 1, NULL,
     "Added to denominators by rmsprop, adam, adamw, lars and lamb."},
    {"model.optimizer.epsilon_outside", CONFIG_BOOL, 0, "false", 0, 0, NULL,
     "rmsprop: divide by sqrt(v) + epsilon as TensorFlow 2.0 to 2.10 without momentum."},
    {"model.optimizer.nesterov", CONFIG_BOOL, CONFIG_NULLABLE, "null", 0, 0, NULL,
     "Nesterov's momentum."},
    {"model.optimizer.beta_1", CONFIG_FLOAT, CONFIG_NULLABLE, "null", 0, 1, NULL,
     "Decay of adam's first moment; null = 0.9."},
    {"model.optimizer.beta_2", CONFIG_FLOAT, CONFIG_NULLABLE, "null", 0, 1, NULL,
     "Decay of adam's second moment; null = 0.999."},
    {"model.optimizer.weight_decay", CONFIG_FLOAT, 0, "0.0", 0, 1, NULL,
     "Decoupled decay of every weight; lars puts it into the gradient."},
    {"model.optimizer.trust_coefficient", CONFIG_FLOAT, 0, "0.001", 0, 1, NULL,
     "Trust coefficient of lars."},
    {"model.optimizer.lookahead", CONFIG_BOOL, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0, 0, NULL,
     "Not available."},
    {"model.optimizer.moving_average_decay", CONFIG_FLOAT, CONFIG_NULLABLE | CONFIG_IGNORED, "null",
     0, 0, NULL, "Not available."},
};
const int optimizer_field_count = ARRAY_COUNT(optimizer_fields);

const struct optimizer_def *optimizer_get(const struct config *config)
{
    const char *name = config_string(config, "model.optimizer.name");
    for (const struct optimizer_def *const *row = optimizer_table; *row; row++) {
        if (strcmp((*row)->name, name) == 0) {
            return *row;
        }
    }
    CHECK(false, "optimizer '%s' passed the choices but has no row", name);
}

void optimizer_apply(struct graph *graph, const struct config *config,
                     struct variable *const *weights, struct node *const *gradients, int count,
                     struct node *lr, struct node *step)
{
    const struct optimizer_def *def = optimizer_get(config);
    struct op_attr attr = {0};
    int slot_count;
    def->attributes(config, &attr, &slot_count);
    for (int i = 0; i < count && graph->status == STATUS_OK; i++) {
        if (!gradients[i]) {
            continue;
        }
        struct node *inputs[OP_INPUT_MAX] = {graph_variable(graph, weights[i]), gradients[i]};
        int n = 2;
        for (int k = 0; k < slot_count; k++) {
            const char *name =
                arena_printf(&graph->arena, "%s/%s", weights[i]->name, def->slots[k]);
            struct variable *slot =
                variables_get(graph->variables, name, weights[i]->dtype, weights[i]->shape,
                              VARIABLE_SLOT, false, (struct initializer){.kind = INIT_ZEROS});
            slot->owner = weights[i];
            slot->slot = def->slots[k];
            inputs[n++] = graph_variable(graph, slot);
        }
        inputs[n++] = lr;
        if (def->needs_step) {
            inputs[n++] = step;
        }
        graph_node(graph, def->op, &attr, n, inputs);
    }
}

struct node *optimizer_norm(struct graph *graph, struct node *const *gradients, int count)
{
    struct node *total = NULL;
    for (int i = 0; i < count; i++) {
        if (gradients[i]) {
            struct node *square = GRAPH_NODE(graph, OP_SQUARE, NULL, gradients[i]);
            struct node *sum = graph_sum_all(graph, square);
            total = total ? GRAPH_NODE(graph, OP_ADD, NULL, total, sum) : sum;
        }
    }
    return GRAPH_NODE(graph, OP_SQRT, NULL, total);
}

// g * limit / max(norm, limit), as tf.clip_by_global_norm.
struct node *optimizer_clip(struct graph *graph, struct node **gradients, int count, double limit)
{
    struct node *norm = optimizer_norm(graph, gradients, count);
    struct node *bound = graph_scalar(graph, graph->real, limit);
    struct node *divisor = GRAPH_NODE(graph, OP_MAXIMUM, NULL, norm, bound);
    struct node *scale = GRAPH_NODE(graph, OP_DIV, NULL, bound, divisor);
    for (int i = 0; i < count; i++) {
        if (gradients[i]) {
            gradients[i] = GRAPH_NODE(graph, OP_MUL, NULL, gradients[i], scale);
        }
    }
    return norm;
}
