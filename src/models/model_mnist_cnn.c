// SPDX-License-Identifier: Apache-2.0
// model_mnist_cnn.c: the network of TensorFlow's "Distributed training with Keras" tutorial.
#include "trainer/model.h"

static struct node *build(struct net *net, const struct config *config, struct node *x)
{
    (void)config;
    // x (N, 28, 28, 1)
    x = layer_conv2d(net, x, &(struct conv2d_options){
        .filters = 32, .kernel = {3, 3}, .activation = ACTIVATION_RELU});  // (N, 26, 26, 32)
    x = layer_max_pool2d(net, x, &(struct pool2d_options){.window = {2, 2}});  // (N, 13, 13, 32)
    x = layer_flatten(net, x, NULL);                                           // (N, 5408)
    x = layer_dense(net, x, &(struct dense_options){.units = 64, .activation = ACTIVATION_RELU});
    return layer_dense(net, x, &(struct dense_options){.units = 10});  // (N, 10), logits
}

static const struct model_default defaults[] = {
    {"train_dataset.batch_size", "64"},
    {"validation_dataset.batch_size", "64"},
    {"train.epochs", "12"},
    {"model.optimizer.name", "adam"},
    {"model.optimizer.epsilon", "1.0e-7"},
    {"model.learning_rate.name", "epoch_steps"},
    {"model.learning_rate.boundaries", "[3, 7]"},
    {"model.learning_rate.values", "[1.0e-3, 1.0e-4, 1.0e-5]"},
    {NULL, NULL},
};

const struct model_def model_mnist_cnn = {
    .name = "mnist_cnn",
    .program = "classifier_trainer",
    .help = "the MNIST tutorial: one convolution, two dense layers, 347,146 parameters",
    .dataset = "mnist",
    .defaults = defaults,
    .build = build,
};
