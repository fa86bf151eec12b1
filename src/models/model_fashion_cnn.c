// SPDX-License-Identifier: Apache-2.0
// model_fashion_cnn.c: the network of the blog post "Multi-GPU training with Estimators, tf.keras and
// tf.data": three convolutions on Fashion-MNIST.
#include "trainer/model.h"

static struct node *build(struct net *net, const struct config *config, struct node *x)
{
    (void)config;
    struct pool2d_options pool = {.window = {2, 2}};
    // x (N, 28, 28, 1)
    x = layer_conv2d(net, x, &(struct conv2d_options){
        .filters = 32, .kernel = {3, 3}, .activation = ACTIVATION_RELU});  // (N, 26, 26, 32)
    x = layer_max_pool2d(net, x, &pool);                                   // (N, 13, 13, 32)
    x = layer_conv2d(net, x, &(struct conv2d_options){
        .filters = 64, .kernel = {3, 3}, .activation = ACTIVATION_RELU});  // (N, 11, 11, 64)
    x = layer_max_pool2d(net, x, &pool);                                   // (N, 5, 5, 64)
    x = layer_conv2d(net, x, &(struct conv2d_options){
        .filters = 64, .kernel = {3, 3}, .activation = ACTIVATION_RELU});  // (N, 3, 3, 64)
    x = layer_flatten(net, x, NULL);                                       // (N, 576)
    x = layer_dense(net, x, &(struct dense_options){.units = 64, .activation = ACTIVATION_RELU});
    return layer_dense(net, x, &(struct dense_options){.units = 10,
                                                       .activation = ACTIVATION_SOFTMAX});
}

static const struct model_default defaults[] = {
    {"train_dataset.batch_size", "512"},
    {"validation_dataset.batch_size", "512"},
    {"train.epochs", "5"},
    {"model.optimizer.name", "adam"},
    {"model.optimizer.epsilon", "1.0e-7"},
    {"model.learning_rate.name", "constant"},
    {"model.learning_rate.initial_lr", "1.0e-3"},
    {NULL, NULL},
};

const struct model_def model_fashion_cnn = {
    .name = "fashion_cnn",
    .program = "classifier_trainer",
    .help = "the Estimator post: three convolutions, two dense layers, 93,322 parameters",
    .dataset = "fashion_mnist",
    .defaults = defaults,
    .build = build,
};
