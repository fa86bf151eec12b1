// SPDX-License-Identifier: Apache-2.0
// dataset_fields.c: the options of train_dataset.* and validation_dataset.*: the same rows twice,
// with the defaults that differ.
#include "trainer/dataset.h"

static const char *const builders[] = {
#define SOURCE(id) #id,
#include "sources.def"
#undef SOURCE
    NULL,
};
// Sets of the builder idx; source_idx.c has a row for each.
static const char *const names[] = {"mnist", "fashion_mnist", NULL};
static const char *const splits[] = {"train", "validation", NULL};
static const char *const dtypes[] = {"float32", "fp32", "float16", "bfloat16", "bf16", NULL};

#define DATASET_FIELDS(P, SPLIT)                                                                   \
    {P "name", CONFIG_STRING, 0, "mnist", 0, 0, names, "Data set."},                               \
    {P "data_dir", CONFIG_STRING, CONFIG_NULLABLE, "null", 0, 0, NULL,                             \
     "Folder of the data; null = what comes with the program (mnist)."},                           \
    {P "builder", CONFIG_STRING, 0, "idx", 0, 0, builders, "Kind of source."},                     \
    {P "split", CONFIG_STRING, 0, SPLIT, 0, 0, splits, "Which part of the data."},                 \
    {P "num_examples", CONFIG_INT, CONFIG_NULLABLE, "null", 1, 1e15, NULL,                         \
     "Use the first so many examples; synthetic: make so many; null = all."},                      \
    {P "batch_size", CONFIG_INT, 0, "128", 1, 1048576, NULL,                                       \
     "Examples a step: of each replica with use_per_replica_batch_size, else of all."},            \
    {P "use_per_replica_batch_size", CONFIG_BOOL, 0, "true", 0, 0, NULL,                           \
     "batch_size is that of one replica."},                                                        \
    {P "num_classes", CONFIG_INT, CONFIG_NULLABLE, "null", 2, 1e6, NULL,                           \
     "synthetic: number of classes."},                                                             \
    {P "image_size", CONFIG_INT, CONFIG_NULLABLE, "null", 1, 16384, NULL,                          \
     "synthetic: height and width."},                                                              \
    {P "num_channels", CONFIG_INT, CONFIG_NULLABLE, "null", 1, 16, NULL,                           \
     "synthetic: channels."},                                                                      \
    {P "dtype", CONFIG_STRING, 0, "float32", 0, 0, dtypes,                                         \
     "Precision of activations; only float32 in this version."},                                   \
    {P "shuffle_buffer_size", CONFIG_INT, CONFIG_IGNORED, "10000", 0, 1e15, NULL,                  \
     "Shuffling is always over the whole set."},                                                   \
    {P "cache", CONFIG_SCALAR, CONFIG_IGNORED, "false", 0, 0, NULL,                                \
     "Small sets are always held in memory."},                                                     \
    {P "download", CONFIG_BOOL, CONFIG_IGNORED, "false", 0, 0, NULL,                               \
     "Nothing is downloaded during a run."}

const struct config_field dataset_fields[] = {
    DATASET_FIELDS("train_dataset.", "train"),
    DATASET_FIELDS("validation_dataset.", "validation"),
    {"train_dataset.shuffle", CONFIG_BOOL, 0, "true", 0, 0, NULL,
     "A new order each epoch, from the seed."},
    {"train_dataset.drop_remainder", CONFIG_BOOL, 0, "false", 0, 0, NULL,
     "Leave out the last, smaller batch of an epoch."},
    {"train_dataset.prefetch", CONFIG_INT, 0, "4", 1, 1024, NULL, "Batches made ahead."},
    {"train_dataset.workers", CONFIG_INT, 0, "0", 0, 1024, NULL,
     "Decoding threads; 0 = decode between the steps, best for small images."},
};
const int dataset_field_count = ARRAY_COUNT(dataset_fields);
