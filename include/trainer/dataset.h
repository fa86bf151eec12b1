// SPDX-License-Identifier: Apache-2.0
// dataset.h: where examples come from, and the pipeline that turns them into batches. A batch is a
// pure function of (seed, epoch, position): threads, replicas and restarts change nothing. Floor 4.
#ifndef TRAINER_DATASET_H
#define TRAINER_DATASET_H

#include "trainer/config.h"
#include "trainer/tensor.h"

// The rows of train_dataset.* and validation_dataset.*.
extern const struct config_field dataset_fields[];
extern const int dataset_field_count;

// ---- Sources: one row of sources.def each --------------------------------------------------------

// What one example looks like after decoding.
struct example_spec {
    enum dtype dtype;      // of the image: DTYPE_U8 today
    struct shape shape;    // (H, W, C)
    int num_classes;
    const char *const *class_names;  // [num_classes] or NULL: "0", "1", ... Owned by the source.
};

struct source;  // opaque, one per open data set

struct source_options {
    const char *data_dir;       // NULL: the source's own default, or an error
    const char *dataset;        // "mnist", "fashion_mnist", ...
    const char *split;          // "train" or "validation"
    int64_t num_examples;       // synthetic: how many; others: 0 = all, else at most
    uint64_t seed;              // synthetic
    struct example_spec spec;   // synthetic: what to make
};

// A bad record, for check_data and max_bad_records.
struct source_fault {
    int64_t example;
    const char *message;  // what and where; borrowed during the call
};

struct source_def {
    const char *name;     // "idx", "synthetic"
    const char *help;     // one line
    enum status (*open)(const struct source_options *options, struct source **out);
    void (*close)(struct source *source);  // NULL is fine
    int64_t (*count)(const struct source *source);
    const struct example_spec *(*spec)(const struct source *source);
    // Decodes example `index` into `image` (spec's dtype and shape) and `label`. Thread-safe.
    // ERR_CORRUPT when this one is bad.
    enum status (*read)(const struct source *source, int64_t index, void *image, int32_t *label);
    // A sentence on what was opened: files, counts. Owned by the source.
    const char *(*describe)(const struct source *source);
};

extern const struct source_def *const source_table[];  // NULL-terminated
const struct source_def *source_find(const char *name);  // NULL when unknown

// Opens by the row's name; close with (*def)->close. ERR_USAGE lists the rows when it is unknown.
enum status source_open(const char *builder, const struct source_options *options,
                        const struct source_def **def, struct source **out);

// ---- Pipeline ------------------------------------------------------------------------------------

// One global batch. Rows beyond `count` are padding: image zero, label 0, index -1.
struct batch {
    void *images;       // (B, H, W, C), example dtype
    int32_t *labels;    // (B)
    int64_t *indices;   // (B) example number in the source
    int count;          // real rows, 1..B
    int64_t epoch;      // 0-based
    int64_t position;   // of row 0 within the epoch
};

struct pipeline_options {
    int batch_size;         // global
    bool shuffle;           // a permutation from (seed, epoch); false: in order
    bool drop_remainder;    // else the last batch of an epoch is short (padded)
    uint64_t seed;
    int threads;            // decoding workers; 0: pipeline_next decodes, best where that is a copy
    int prefetch;           // batches ready ahead, >= 1; unused without workers
    int64_t max_bad_records;  // beyond it the run fails, naming the record; bad ones are replaced by
                              // the next good example of the epoch's order and counted, each once
    double timeout;         // seconds that pipeline_next waits for the workers; 0 = 300
};

// All the state an exact resume needs.
struct pipeline_state {
    int64_t epoch;      // 0-based
    int64_t batch;      // batches of this epoch already handed out
};

struct pipeline;
// Borrows the source. ERR_USAGE when the batch is larger than the data (drop_remainder) or there
// are no examples; the sentence has both numbers.
enum status pipeline_new(const struct source_def *def, const struct source *source,
                         const struct pipeline_options *options, struct pipeline **out);
void pipeline_free(struct pipeline *pipeline);  // NULL is fine; stops and joins the workers
// Starts (or restarts) at `state`; due before the first pipeline_next. Batches follow for ever,
// epoch after epoch.
enum status pipeline_seek(struct pipeline *pipeline, struct pipeline_state state);
// The next batch. Borrowed; valid until the next call. Blocks; ERR_TIMEOUT says which example it
// waits for. The number of threads changes neither the batches nor which of them fails.
enum status pipeline_next(struct pipeline *pipeline, const struct batch **out);
int64_t pipeline_batches_per_epoch(const struct pipeline *pipeline);
double pipeline_wait_seconds(const struct pipeline *pipeline);  // spent in pipeline_next
int64_t pipeline_bad_records(const struct pipeline *pipeline);  // replaced so far, each once

// The order of examples: which one is at `position` of the epoch. A bijection on [0, count). Pure.
int64_t pipeline_order(uint64_t seed, int64_t epoch, int64_t count, int64_t position);

#endif
