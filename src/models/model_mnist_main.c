// SPDX-License-Identifier: Apache-2.0
// model_mnist_main.c: the network of the Model Garden's mnist_main.py.
#include "trainer/model.h"

static const struct config_field fields[] = {
    {"model.model_params.dropout_rate", CONFIG_FLOAT, 0, "0.4", 0, 0.999, NULL,
     "Share of the dense layer's outputs that is dropped in training."},
};

static struct node *build(struct net *net, const struct config *config, struct node *x)
{
    struct conv2d_options conv = {.filters = 32,
                                  .kernel = {5, 5},
                                  .padding = PADDING_SAME,
                                  .activation = ACTIVATION_RELU};
    struct pool2d_options pool = {.window = {2, 2}, .padding = PADDING_SAME};
    // x (N, 28, 28, 1)
    x = layer_conv2d(net, x, &conv);      // (N, 28, 28, 32)
    x = layer_max_pool2d(net, x, &pool);  // (N, 14, 14, 32)
    x = layer_conv2d(net, x, &conv);      // (N, 14, 14, 32)
    x = layer_max_pool2d(net, x, &pool);  // (N, 7, 7, 32)
    x = layer_flatten(net, x, NULL);      // (N, 1568)
    x = layer_dense(net, x, &(struct dense_options){.units = 1024, .activation = ACTIVATION_RELU});
    x = layer_dropout(net, x, NULL, config_float(config, fields[0].path));
    return layer_dense(net, x, &(struct dense_options){.units = 10,
                                                       .activation = ACTIVATION_SOFTMAX});
}

static const struct model_default defaults[] = {
    {"train_dataset.batch_size", "1024"},
    {"train_dataset.use_per_replica_batch_size", "false"},
    {"train_dataset.drop_remainder", "true"},
    {"validation_dataset.batch_size", "1024"},
    {"validation_dataset.use_per_replica_batch_size", "false"},
    {"train.epochs", "1"},
    {"model.optimizer.name", "sgd"},
    {"model.learning_rate.name", "exponential"},
    {"model.learning_rate.initial_lr", "0.05"},
    {"model.learning_rate.decay_steps", "100000"},
    {"model.learning_rate.decay_rate", "0.96"},
    {NULL, NULL},
};

const struct model_def model_mnist_main = {
    .name = "mnist_main",
    .program = "mnist_main",
    .help = "the Model Garden's mnist_main: two convolutions, dense 1024 with dropout",
    .dataset = "mnist",
    .fields = fields,
    .field_count = ARRAY_COUNT(fields),
    .defaults = defaults,
    .build = build,
};
