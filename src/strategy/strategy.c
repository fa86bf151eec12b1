// SPDX-License-Identifier: Apache-2.0
// strategy.c: the table, the options of runtime.*, and what all strategies share.
#include "trainer/strategy.h"

#include <stdlib.h>
#include <string.h>

#define STRATEGY(id) extern const struct strategy_def strategy_##id;
#include "strategies.def"
#undef STRATEGY

const struct strategy_def *const strategy_table[] = {
#define STRATEGY(id) &strategy_##id,
#include "strategies.def"
#undef STRATEGY
    NULL,
};

// The last two are known names that this version refuses (strategy_get says why).
static const char *const strategy_names[] = {
    "off", "one_device", "mirrored", "multi_worker_mirrored", "tpu", NULL};
static const char *const device_names[] = {"auto", "cpu", "ref", "cuda", "tpu", NULL};
static const char *const precision_names[] = {"float32", "float16", "bfloat16", NULL};

const struct config_field strategy_fields[] = {
    {"runtime.distribution_strategy", CONFIG_STRING, 0, "one_device", 0, 0, strategy_names,
     "How a step is spread over devices."},
    {"runtime.device", CONFIG_STRING, 0, "auto", 0, 0, device_names,
     "What computes; auto = the best that is there, ref = plain loops."},
    {"runtime.num_gpus", CONFIG_INT, 0, "0", 0, 1024, NULL, "GPUs to use; 0 = CPU."},
    {"runtime.cpu_fallback", CONFIG_BOOL, 0, "false", 0, 0, NULL,
     "With num_gpus and no GPU: run as many replicas on the CPU, and say so."},
    {"runtime.num_replicas", CONFIG_INT, 0, "1", 1, 256, NULL, "CPU replicas of mirrored."},
    {"runtime.threads", CONFIG_INT, 0, "0", 0, 1024, NULL,
     "Compute threads of the process, shared among replicas; 0 = all cores."},
    {"runtime.seed", CONFIG_INT, 0, "0", 0, 9.2e18, NULL,
     "Seed of weights, shuffling, augmentation and dropout."},
    {"runtime.timeout", CONFIG_FLOAT, 0, "300.0", 1, 1e6, NULL,
     "Seconds that a replica waits for the others."},
    {"runtime.mixed_precision_dtype", CONFIG_STRING, CONFIG_NULLABLE, "float32", 0, 0,
     precision_names, "Precision of activations; only float32 in this version."},
    {"runtime.loss_scale", CONFIG_SCALAR, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0, 0, NULL,
     "Has no meaning with float32."},
    {"runtime.all_reduce_alg", CONFIG_STRING, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0, 0, NULL,
     "Sums are always taken in rank order."},
    {"runtime.num_packs", CONFIG_INT, CONFIG_IGNORED, "1", 0, 0, NULL, "Has no meaning here."},
    {"runtime.tpu", CONFIG_STRING, CONFIG_NULLABLE, "null", 0, 0, NULL,
     "Address of a TPU; not in this version."},
    {"runtime.worker_hosts", CONFIG_STRING, CONFIG_NULLABLE, "null", 0, 0, NULL,
     "host:port,... of several hosts; not in this version."},
    {"runtime.task_index", CONFIG_INT, 0, "-1", -1, 1e6, NULL, "This host's place in worker_hosts; not in this version."},
    {"runtime.enable_xla", CONFIG_BOOL, CONFIG_IGNORED, "false", 0, 0, NULL,
     "The step is always compiled as one graph."},
    {"runtime.run_eagerly", CONFIG_BOOL, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0, 0, NULL,
     "The step is always compiled as one graph."},
    {"runtime.gpu_thread_mode", CONFIG_STRING, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0, 0, NULL,
     "Has no meaning here."},
    {"runtime.per_gpu_thread_count", CONFIG_INT, CONFIG_IGNORED, "0", 0, 0, NULL,
     "Has no meaning here."},
    {"runtime.dataset_num_private_threads", CONFIG_INT, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0,
     0, NULL, "Has no meaning here."},
    {"runtime.batchnorm_spatial_persistent", CONFIG_BOOL, CONFIG_IGNORED, "false", 0, 0, NULL,
     "Has no meaning here."},
    {"runtime.num_cores_per_replica", CONFIG_INT, CONFIG_IGNORED, "1", 0, 0, NULL,
     "Has no meaning here."},
    {"runtime.default_shard_dim", CONFIG_INT, CONFIG_IGNORED, "-1", 0, 0, NULL,
     "Has no meaning here."},
    {"runtime.model_dir", CONFIG_STRING, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0, 0, NULL,
     "Key of early configuration files; --model_dir counts."},
    {"runtime.mode", CONFIG_STRING, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0, 0, NULL,
     "Key of early configuration files; --mode counts."},
};
const int strategy_field_count = ARRAY_COUNT(strategy_fields);

// What would need hosts or devices that this version cannot use: refused, not quietly left out.
static enum status refuse_remote(const struct config *config)
{
    static const char *const paths[] = {"runtime.tpu", "runtime.worker_hosts"};
    char place[256];
    for (size_t i = 0; i < ARRAY_COUNT(paths); i++) {
        const char *text = config_string(config, paths[i]);
        if (text && *text) {
            return FAIL(ERR_USAGE, "%s: %s is '%s'; this version trains on the CPUs of one host, "
                        "leave it out", config_place(config, paths[i], place, sizeof place),
                        paths[i], text);
        }
    }
    if (config_int(config, "runtime.task_index") >= 1) {
        return FAIL(ERR_USAGE, "%s: runtime.task_index is %lld; this version trains on one host, "
                    "leave it out",
                    config_place(config, "runtime.task_index", place, sizeof place),
                    (long long)config_int(config, "runtime.task_index"));
    }
    const char *cluster = getenv("TF_CONFIG");
    if (cluster && *cluster) {
        LOG_WARN("TF_CONFIG is set, without effect: this version trains on one host");
    }
    return STATUS_OK;
}

enum status strategy_get(const struct config *config, const struct strategy_def **out)
{
    const char *path = "runtime.distribution_strategy";
    const char *name = config_string(config, path);
    char place[256];
    for (const struct strategy_def *const *row = strategy_table; *row; row++) {
        if (strcmp((*row)->name, name) == 0) {
            *out = *row;
            return refuse_remote(config);
        }
    }
    return FAIL(ERR_USAGE,
                "%s: distribution_strategy '%s' is not in this version; use mirrored to train on "
                "several replicas of this machine, or one_device",
                config_place(config, path, place, sizeof place), name);
}
