// SPDX-License-Identifier: Apache-2.0
// strategy_mirrored.c: N replicas with the same weights, each with its share of the global batch.
// The loss of a replica is already weighted by 1 / (examples of the global batch), so the sum of the
// replicas' gradients is the gradient of the global mean, whatever the shares are.
#include "trainer/strategy.h"

static enum status mirrored_replicas(const struct config *config, int *count)
{
    int64_t gpus = config_int(config, "runtime.num_gpus");
    int64_t replicas = config_int(config, "runtime.num_replicas");
    if (gpus > 0 && replicas > 1 && gpus != replicas) {
        return FAIL(ERR_USAGE,
                    "runtime.num_gpus is %lld and runtime.num_replicas is %lld; give one of them",
                    (long long)gpus, (long long)replicas);
    }
    *count = (int)MAX(MAX(gpus, replicas), 1);
    return STATUS_OK;
}

// In the order in which the backward pass makes them, so that the first can go while later ones are
// still being computed.
static void mirrored_reduce(struct graph *graph, struct node **gradients, int count, int replicas)
{
    for (int i = count - 1; i >= 0 && replicas > 1; i--) {
        if (gradients[i]) {
            gradients[i] = GRAPH_NODE(graph, OP_ALL_REDUCE, NULL, gradients[i]);
        }
    }
}

static struct node *mirrored_mean(struct graph *graph, struct node *value, int replicas)
{
    if (replicas == 1 || !value) {
        return value;
    }
    struct node *sum = GRAPH_NODE(graph, OP_ALL_REDUCE, NULL, value);
    struct node *share = graph_scalar(graph, value->dtype, 1.0 / replicas);
    return GRAPH_NODE(graph, OP_MUL, NULL, sum, share);
}

const struct strategy_def strategy_mirrored = {.name = "mirrored",
                                               .help = "replicas on the devices of this machine",
                                               .replicas = mirrored_replicas,
                                               .reduce = mirrored_reduce,
                                               .mean = mirrored_mean};
