// SPDX-License-Identifier: Apache-2.0
// pipeline.c: examples to batches. Batch number b (counted over all epochs) is a pure function of the
// seed and b, so workers may make batches in any order and hand them over in theirs.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "trainer/dataset.h"
#include "trainer/rng.h"
#include "trainer/thread.h"

enum { WAIT_LIMIT = 300 };  // seconds: a batch takes milliseconds; a dead disk must not hang the run

// ---- Order ------------------------------------------------------------------------------------------

// A bijection on [0, 2^(2 * half)) by four Feistel rounds keyed by (seed, epoch).
static uint64_t feistel(uint64_t seed, int64_t epoch, int half, uint64_t value)
{
    uint64_t mask = (UINT64_C(1) << half) - 1, left = value >> half, right = value & mask;
    for (uint32_t round = 0; round < 4; round++) {
        uint64_t mixed = left ^ (rng_u32(seed, RNG_SHUFFLE, round, (uint64_t)epoch, 4 * right) & mask);
        left = right;
        right = mixed;
    }
    return left << half | right;
}

int64_t pipeline_order(uint64_t seed, int64_t epoch, int64_t count, int64_t position)
{
    int half = 1;
    while ((INT64_C(1) << (2 * half)) < count) {
        half++;
    }
    // Cycle walking: the domain is less than four times too large, so this ends soon.
    uint64_t value = (uint64_t)position;
    do {
        value = feistel(seed, epoch, half, value);
    } while (value >= (uint64_t)count);
    return (int64_t)value;
}

// ---- Batches ----------------------------------------------------------------------------------------

struct slot {
    struct batch batch;
    int64_t number;       // which batch it holds or is being made; -1 = none
    bool ready;
    enum status status;
    struct error_record error;
};

struct pipeline {
    const struct source_def *def;
    const struct source *source;
    struct pipeline_options options;
    int64_t count, per_epoch;
    size_t row_bytes;
    struct slot *slots;   // [slot_count]; batch n is made in slot n % slot_count
    int slot_count;
    void *slab;
    size_t slab_size;
    double waited;
    int64_t bad;          // atomic

    pthread_mutex_t mutex;
    pthread_cond_t made, wanted;
    int64_t next_make, next_give;  // batch numbers, under the mutex
    bool stopping;
    struct thread **workers;       // [options.threads]
};

// Reads one example; a bad one is replaced by the next of the epoch's order, within the budget.
static enum status read_example(struct pipeline *pipeline, int64_t epoch, int64_t position,
                                void *image, int32_t *label, int64_t *index)
{
    for (int64_t tried = 0;; tried++) {
        int64_t at = (position + tried) % pipeline->count;
        *index = pipeline->options.shuffle ? pipeline_order(pipeline->options.seed, epoch,
                                                            pipeline->count, at)
                                           : at;
        enum status status = pipeline->def->read(pipeline->source, *index, image, label);
        if (status == STATUS_OK) {
            return STATUS_OK;
        }
        int64_t bad = __atomic_add_fetch(&pipeline->bad, 1, __ATOMIC_RELAXED);
        if (bad > pipeline->options.max_bad_records || tried + 1 == pipeline->count) {
            char budget[96] = "";
            if (pipeline->options.max_bad_records) {
                snprintf(budget, sizeof budget, "bad record %lld, more than train.max_bad_records=%lld",
                         (long long)bad, (long long)pipeline->options.max_bad_records);
                return error_prefix(status, "%s", budget);
            }
            return status;
        }
        LOG_WARN("skipped: %s", error_get()->message);
    }
}

static enum status make_batch(struct pipeline *pipeline, struct slot *slot)
{
    struct batch *batch = &slot->batch;
    int size = pipeline->options.batch_size;
    batch->epoch = slot->number / pipeline->per_epoch;
    batch->position = slot->number % pipeline->per_epoch * size;
    batch->count = (int)MIN((int64_t)size, pipeline->count - batch->position);
    for (int i = 0; i < batch->count; i++) {
        TRY(read_example(pipeline, batch->epoch, batch->position + i,
                         (char *)batch->images + (size_t)i * pipeline->row_bytes,
                         &batch->labels[i], &batch->indices[i]));
    }
    for (int i = batch->count; i < size; i++) {
        memset((char *)batch->images + (size_t)i * pipeline->row_bytes, 0, pipeline->row_bytes);
        batch->labels[i] = 0;
        batch->indices[i] = -1;
    }
    return STATUS_OK;
}

// Takes the next batch that is wanted, until the end.
static enum status worker_main(void *argument)
{
    struct pipeline *pipeline = argument;
    pthread_mutex_lock(&pipeline->mutex);
    for (;;) {
        while (!pipeline->stopping &&
               pipeline->next_make >= pipeline->next_give + pipeline->slot_count - 1) {
            pthread_cond_wait(&pipeline->wanted, &pipeline->mutex);
        }
        if (pipeline->stopping) {
            break;
        }
        struct slot *slot = &pipeline->slots[pipeline->next_make % pipeline->slot_count];
        slot->number = pipeline->next_make++;
        slot->ready = false;
        pthread_mutex_unlock(&pipeline->mutex);
        slot->status = make_batch(pipeline, slot);
        if (slot->status != STATUS_OK) {
            slot->error = *error_get();
        }
        pthread_mutex_lock(&pipeline->mutex);
        slot->ready = true;
        pthread_cond_broadcast(&pipeline->made);
    }
    pthread_mutex_unlock(&pipeline->mutex);
    return STATUS_OK;
}

static void stop_workers(struct pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->mutex);
    pipeline->stopping = true;
    pthread_cond_broadcast(&pipeline->wanted);
    pthread_mutex_unlock(&pipeline->mutex);
    for (int i = 0; i < pipeline->options.threads; i++) {
        (void)thread_join(pipeline->workers[i]);
        pipeline->workers[i] = NULL;
    }
    pipeline->stopping = false;
}

// All buffers in one slab: images at cache lines, then labels, then indices.
static enum status make_slots(struct pipeline *pipeline)
{
    size_t rows = (size_t)pipeline->options.batch_size;
    size_t images = CEIL_DIV(rows * pipeline->row_bytes, (size_t)MEM_ALIGN) * MEM_ALIGN;
    size_t labels = CEIL_DIV(rows * sizeof(int32_t), (size_t)MEM_ALIGN) * MEM_ALIGN;
    size_t indices = CEIL_DIV(rows * sizeof(int64_t), (size_t)MEM_ALIGN) * MEM_ALIGN;
    size_t each = images + labels + indices;
    pipeline->slab_size = each * (size_t)pipeline->slot_count;
    TRY(mem_slab_new(pipeline->slab_size, "the batches", &pipeline->slab));
    for (int i = 0; i < pipeline->slot_count; i++) {
        char *at = (char *)pipeline->slab + each * (size_t)i;
        pipeline->slots[i].batch.images = at;
        pipeline->slots[i].batch.labels = (int32_t *)(void *)(at + images);
        pipeline->slots[i].batch.indices = (int64_t *)(void *)(at + images + labels);
        pipeline->slots[i].number = -1;
    }
    return STATUS_OK;
}

enum status pipeline_new(const struct source_def *def, const struct source *source,
                         const struct pipeline_options *options, struct pipeline **out)
{
    int64_t count = def->count(source);
    const struct example_spec *spec = def->spec(source);
    *out = NULL;
    if (count == 0) {
        return FAIL(ERR_USAGE, "%s: no examples", def->describe(source));
    }
    if (options->drop_remainder && options->batch_size > count) {
        return FAIL(ERR_USAGE,
                    "the batch has %d examples, but there are only %lld (%s), and smaller batches are "
                    "left out (drop_remainder)", options->batch_size, (long long)count,
                    def->describe(source));
    }
    struct pipeline *pipeline = MEM_NEW(struct pipeline);
    pipeline->def = def;
    pipeline->source = source;
    pipeline->options = *options;
    pipeline->count = count;
    pipeline->per_epoch = options->drop_remainder
                              ? count / options->batch_size
                              : CEIL_DIV(count, (int64_t)options->batch_size);
    pipeline->row_bytes = (size_t)shape_count(spec->shape) * dtype_size(spec->dtype);
    pipeline->slot_count = options->threads ? options->prefetch + 1 : 1;  // one is the caller's
    pipeline->slots = MEM_NEW_ARRAY(struct slot, pipeline->slot_count);
    pipeline->workers = MEM_NEW_ARRAY(struct thread *, options->threads);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&pipeline->mutex, NULL);
    pthread_cond_init(&pipeline->made, &attributes);
    pthread_cond_init(&pipeline->wanted, &attributes);
    pthread_condattr_destroy(&attributes);
    enum status status = make_slots(pipeline);
    if (status != STATUS_OK) {
        pipeline_free(pipeline);
        return status;
    }
    *out = pipeline;
    return STATUS_OK;
}

void pipeline_free(struct pipeline *pipeline)
{
    if (pipeline) {
        stop_workers(pipeline);
        pthread_mutex_destroy(&pipeline->mutex);
        pthread_cond_destroy(&pipeline->made);
        pthread_cond_destroy(&pipeline->wanted);
        mem_slab_free(pipeline->slab, pipeline->slab_size);
        mem_free(pipeline->slots);
        mem_free(pipeline->workers);
        mem_free(pipeline);
    }
}

enum status pipeline_seek(struct pipeline *pipeline, struct pipeline_state state)
{
    stop_workers(pipeline);
    int64_t first = state.epoch * pipeline->per_epoch + state.batch;
    pipeline->next_make = pipeline->next_give = first;
    for (int i = 0; i < pipeline->slot_count; i++) {
        pipeline->slots[i].number = -1;
        pipeline->slots[i].ready = false;
    }
    for (int i = 0; i < pipeline->options.threads; i++) {
        TRY(thread_start(worker_main, pipeline, "input", &pipeline->workers[i]));
    }
    return STATUS_OK;
}

// Waits until the slot holds the batch; with the mutex held.
static enum status wait_for(struct pipeline *pipeline, const struct slot *slot, int64_t number)
{
    double start = time_now(), end = start + WAIT_LIMIT;
    struct timespec limit = {.tv_sec = (time_t)end};
    while (slot->number != number || !slot->ready) {
        if (pthread_cond_timedwait(&pipeline->made, &pipeline->mutex, &limit) == ETIMEDOUT) {
            return FAIL(ERR_TIMEOUT,
                        "no data for %d s: batch %lld of epoch %lld, from example %lld of the order on, "
                        "is still being read (%s)", WAIT_LIMIT,
                        (long long)(number % pipeline->per_epoch) + 1,
                        (long long)(number / pipeline->per_epoch) + 1,
                        (long long)(number % pipeline->per_epoch) * pipeline->options.batch_size,
                        pipeline->def->describe(pipeline->source));
        }
    }
    pipeline->waited += time_now() - start;
    return STATUS_OK;
}

enum status pipeline_next(struct pipeline *pipeline, const struct batch **out)
{
    int64_t number = pipeline->next_give;
    struct slot *slot = &pipeline->slots[number % pipeline->slot_count];
    if (pipeline->options.threads == 0) {
        double start = time_now();
        slot->number = number;
        TRY(make_batch(pipeline, slot));
        pipeline->waited += time_now() - start;
        pipeline->next_give++;
    } else {
        // The batch before this one is the caller's no more: its slot may be filled.
        pthread_mutex_lock(&pipeline->mutex);
        enum status status = wait_for(pipeline, slot, number);
        pipeline->next_give = number + 1;
        pthread_cond_broadcast(&pipeline->wanted);
        pthread_mutex_unlock(&pipeline->mutex);
        TRY(status);
        if (slot->status != STATUS_OK) {
            error_restore(&slot->error);
            return slot->status;
        }
    }
    *out = &slot->batch;
    return STATUS_OK;
}

int64_t pipeline_batches_per_epoch(const struct pipeline *pipeline)
{
    return pipeline->per_epoch;
}

double pipeline_wait_seconds(const struct pipeline *pipeline)
{
    return pipeline->waited;
}

int64_t pipeline_bad_records(const struct pipeline *pipeline)
{
    return __atomic_load_n(&pipeline->bad, __ATOMIC_RELAXED);
}
