// SPDX-License-Identifier: Apache-2.0
// strategy_one_device.c: one replica; the graph stays as it is. `off` is the same by another name.
#include "trainer/strategy.h"

static enum status one_replica(const struct config *config, int *count)
{
    int64_t gpus = config_int(config, "runtime.num_gpus");
    int64_t replicas = config_int(config, "runtime.num_replicas");
    char place[256];
    *count = 1;
    if (gpus > 1 || replicas > 1) {
        const char *path = gpus > 1 ? "runtime.num_gpus" : "runtime.num_replicas";
        return FAIL(ERR_USAGE,
                    "%s: %s is %lld, but distribution_strategy %s runs one replica; use mirrored",
                    config_place(config, path, place, sizeof place), path,
                    (long long)MAX(gpus, replicas),
                    config_string(config, "runtime.distribution_strategy"));
    }
    return STATUS_OK;
}

static void reduce_nothing(struct graph *graph, struct node **gradients, int count, int replicas)
{
    (void)graph, (void)gradients, (void)count, (void)replicas;
}

static struct node *mean_of_one(struct graph *graph, struct node *value, int replicas)
{
    (void)graph, (void)replicas;
    return value;
}

const struct strategy_def strategy_one_device = {.name = "one_device",
                                                 .help = "one replica on one device",
                                                 .replicas = one_replica,
                                                 .reduce = reduce_nothing,
                                                 .mean = mean_of_one};
const struct strategy_def strategy_off = {.name = "off",
                                          .help = "the same as one_device",
                                          .replicas = one_replica,
                                          .reduce = reduce_nothing,
                                          .mean = mean_of_one};
