// SPDX-License-Identifier: Apache-2.0
// pipeline.c: examples to batches. Batch number b (counted over all epochs) is a pure function of
// the seed and b, so workers may make batches in any order and hand them over in theirs.
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "trainer/dataset.h"
#include "trainer/rng.h"
#include "trainer/thread.h"

enum { WAIT_LIMIT = 300 };  // seconds: a batch takes milliseconds; a dead disk must not hang a run

// ---- Order --------------------------------------------------------------------------------------

// Four rounds would do over large domains (Luby and Rackoff: "How to construct pseudorandom
// permutations", 1988). With halves of one or two bits, even eight leave some orders far more often
// than others; from four bits on, all orders of a handful of examples are equally frequent.
enum { ROUNDS = 8, BITS_LEAST = 8, BITS_MOST = 63 };

// The order of one epoch: a Feistel network over the next power of two.
struct order {
    uint64_t count;
    int right_bits;
    uint32_t left_mask, right_mask;
    uint32_t keys[ROUNDS];
};

static struct order order_of(uint64_t seed, int64_t epoch, int64_t count)
{
    struct order order = {.count = (uint64_t)count};
    int bits = BITS_LEAST;
    while (bits < BITS_MOST && (INT64_C(1) << bits) < count) {
        bits++;
    }
    order.right_bits = bits - bits / 2;
    order.left_mask = (uint32_t)((UINT64_C(1) << bits / 2) - 1);
    order.right_mask = (uint32_t)((UINT64_C(1) << order.right_bits) - 1);
    for (int i = 0; i < ROUNDS; i += 4) {
        struct rng_block block = rng_block_at(seed, RNG_SHUFFLE, 0, (uint64_t)epoch,
                                              (uint64_t)i / 4);
        memcpy(&order.keys[i], block.word, sizeof block.word);
    }
    return order;
}

// The finaliser of MurmurHash3 (Austin Appleby, public domain): every bit in changes every bit out.
static uint32_t mix(uint32_t value)
{
    value = (value ^ value >> 16) * 0x85ebca6bu;
    value = (value ^ value >> 13) * 0xc2b2ae35u;
    return value ^ value >> 16;
}

static int64_t order_at(const struct order *order, int64_t position)
{
    // Cycle walking: less than half of a large domain lies beyond the count, so this ends soon.
    uint64_t value = (uint64_t)position;
    do {
        uint32_t left = (uint32_t)(value >> order->right_bits);
        uint32_t right = (uint32_t)value & order->right_mask;
        for (int i = 0; i < ROUNDS; i += 2) {
            left ^= mix(right ^ order->keys[i]) & order->left_mask;
            right ^= mix(left ^ order->keys[i + 1]) & order->right_mask;
        }
        value = (uint64_t)left << order->right_bits | right;
    } while (value >= order->count);
    return (int64_t)value;
}

int64_t pipeline_order(uint64_t seed, int64_t epoch, int64_t count, int64_t position)
{
    CHECK(0 <= position && position < count, "position %lld of an order of %lld",
          (long long)position, (long long)count);
    struct order order = order_of(seed, epoch, count);
    return order_at(&order, position);
}

// ---- Batches ------------------------------------------------------------------------------------

struct fault {
    int64_t example;
    char *message;  // owned
};

struct slot {
    struct batch batch;
    int64_t number;        // which batch it holds or is being made; -1 = none
    bool ready;
    int64_t reading;       // the example being read, for messages; atomic
    struct fault *faults;  // [fault_count <= batch size], in the order of the rows; NULL while none
    int fault_count, fault_capacity;
    enum status status;    // of failures that no replacement helps
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
    int64_t *bad;         // [bad_count] bad examples of the batches given so far, each once
    int bad_count, bad_capacity;

    pthread_mutex_t mutex;
    pthread_cond_t made, wanted;
    int64_t next_make, next_give;  // batch numbers, under the mutex
    bool stopping;                 // set under the mutex, read within a batch without it: atomic
    struct thread **workers;       // [options.threads]
};

static int64_t example_at(const struct pipeline *pipeline, const struct order *order,
                          int64_t position)
{
    return pipeline->options.shuffle ? order_at(order, position) : position;
}

static void forget_faults(struct slot *slot)
{
    for (int i = 0; i < slot->fault_count; i++) {
        mem_free(slot->faults[i].message);
    }
    slot->fault_count = 0;
}

// Reads the example of one row; a bad one is noted and replaced by the next good one of the order.
static enum status read_row(const struct pipeline *pipeline, struct slot *slot,
                            const struct order *order, int row)
{
    struct batch *batch = &slot->batch;
    void *image = (char *)batch->images + (size_t)row * pipeline->row_bytes;
    for (int64_t tried = 0; tried < pipeline->count; tried++) {
        int64_t position = (batch->position + row + tried) % pipeline->count;
        int64_t example = example_at(pipeline, order, position);
        batch->indices[row] = example;
        __atomic_store_n(&slot->reading, example, __ATOMIC_RELAXED);
        enum status status =
            pipeline->def->read(pipeline->source, example, image, &batch->labels[row]);
        if (status != ERR_CORRUPT) {
            return status;
        }
        if (tried == 0) {  // the others are noted by the rows that they belong to
            GROW(slot->faults, slot->fault_count, slot->fault_capacity);
            slot->faults[slot->fault_count++] =
                (struct fault){example, mem_strdup(error_get()->message)};
            if (slot->fault_count > pipeline->options.max_bad_records) {
                return STATUS_OK;  // count_faults will refuse the batch
            }
        }
    }
    return error_prefix(ERR_CORRUPT, "%s: no example can be read; the last",
                        pipeline->def->describe(pipeline->source));
}

static enum status read_rows(const struct pipeline *pipeline, struct slot *slot)
{
    struct batch *batch = &slot->batch;
    int size = pipeline->options.batch_size;
    batch->epoch = slot->number / pipeline->per_epoch;
    batch->position = slot->number % pipeline->per_epoch * size;
    batch->count = (int)MIN((int64_t)size, pipeline->count - batch->position);
    struct order order = order_of(pipeline->options.seed, batch->epoch, pipeline->count);
    for (int i = 0; i < batch->count; i++) {
        TRY(read_row(pipeline, slot, &order, i));
        if (slot->fault_count > pipeline->options.max_bad_records ||
            __atomic_load_n(&pipeline->stopping, __ATOMIC_RELAXED)) {
            return STATUS_OK;  // nobody will look at this batch
        }
    }
    memset((char *)batch->images + (size_t)batch->count * pipeline->row_bytes, 0,
           (size_t)(size - batch->count) * pipeline->row_bytes);
    for (int i = batch->count; i < size; i++) {
        batch->labels[i] = 0;
        batch->indices[i] = -1;
    }
    return STATUS_OK;
}

static void make_batch(const struct pipeline *pipeline, struct slot *slot)
{
    forget_faults(slot);
    slot->status = read_rows(pipeline, slot);
    if (slot->status != STATUS_OK) {
        slot->error = *error_get();
    }
}

// Takes the next batch that is wanted, until the end.
static enum status worker_main(void *argument)
{
    struct pipeline *pipeline = argument;
    pthread_mutex_lock(&pipeline->mutex);
    for (;;) {
        // All slots but one are for batches to come: that one is the caller's.
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
        make_batch(pipeline, slot);
        pthread_mutex_lock(&pipeline->mutex);
        slot->ready = true;
        pthread_cond_signal(&pipeline->made);
    }
    pthread_mutex_unlock(&pipeline->mutex);
    return STATUS_OK;
}

static void stop_workers(struct pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->mutex);
    __atomic_store_n(&pipeline->stopping, true, __ATOMIC_RELAXED);
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
    CHECK(options->batch_size > 0 && options->threads >= 0 &&
              (options->prefetch > 0 || options->threads == 0),
          "a pipeline of batches of %d, %d threads, %d ahead", options->batch_size,
          options->threads, options->prefetch);
    if (count == 0) {
        return FAIL(ERR_USAGE, "%s: no examples", def->describe(source));
    }
    if (options->drop_remainder && options->batch_size > count) {
        return FAIL(ERR_USAGE,
                    "the batch has %d examples, but there are only %lld (%s), and smaller batches "
                    "are left out (drop_remainder)", options->batch_size, (long long)count,
                    def->describe(source));
    }
    struct pipeline *pipeline = MEM_NEW(struct pipeline);
    pipeline->def = def;
    pipeline->source = source;
    pipeline->options = *options;
    pipeline->options.timeout = options->timeout > 0 ? options->timeout : WAIT_LIMIT;
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
        for (int i = 0; i < pipeline->slot_count; i++) {
            forget_faults(&pipeline->slots[i]);
            mem_free(pipeline->slots[i].faults);
        }
        mem_slab_free(pipeline->slab, pipeline->slab_size);
        mem_free(pipeline->slots);
        mem_free(pipeline->workers);
        mem_free(pipeline->bad);
        mem_free(pipeline);
    }
}

enum status pipeline_seek(struct pipeline *pipeline, struct pipeline_state state)
{
    CHECK(state.epoch >= 0 && state.batch >= 0, "seek to epoch %lld, batch %lld",
          (long long)state.epoch, (long long)state.batch);
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

static enum status late(struct pipeline *pipeline, const struct slot *slot)
{
    int64_t number = pipeline->next_give, batch = number % pipeline->per_epoch;
    int64_t epoch = number / pipeline->per_epoch;
    struct order order = order_of(pipeline->options.seed, epoch, pipeline->count);
    int64_t example = slot->number == number
                          ? __atomic_load_n(&slot->reading, __ATOMIC_RELAXED)
                          : example_at(pipeline, &order, batch * pipeline->options.batch_size);
    return FAIL(ERR_TIMEOUT,
                "%s: waited %g s for batch %lld of epoch %lld; example %lld is still being read",
                pipeline->def->describe(pipeline->source), pipeline->options.timeout,
                (long long)batch + 1, (long long)epoch + 1, (long long)example);
}

// Waits until the slot holds the next batch; with the mutex held.
static enum status wait_for(struct pipeline *pipeline, const struct slot *slot)
{
    double end = time_now() + pipeline->options.timeout;
    struct timespec limit = {.tv_sec = (time_t)end,
                             .tv_nsec = (long)((end - (double)(time_t)end) * 1e9)};
    while (slot->number != pipeline->next_give || !slot->ready) {
        if (pthread_cond_timedwait(&pipeline->made, &pipeline->mutex, &limit) == ETIMEDOUT &&
            (slot->number != pipeline->next_give || !slot->ready)) {
            return late(pipeline, slot);
        }
    }
    return STATUS_OK;
}

static bool is_known_bad(const struct pipeline *pipeline, int64_t example)
{
    for (int i = 0; i < pipeline->bad_count; i++) {
        if (pipeline->bad[i] == example) {
            return true;
        }
    }
    return false;
}

// Counts the bad examples of a batch in the order of its rows, when it is given and not when it is
// made: so the budget ends at the same example whatever the threads do.
static enum status count_faults(struct pipeline *pipeline, const struct slot *slot)
{
    for (int i = 0; i < slot->fault_count; i++) {
        const struct fault *fault = &slot->faults[i];
        bool known = is_known_bad(pipeline, fault->example);
        if (!known) {
            GROW(pipeline->bad, pipeline->bad_count, pipeline->bad_capacity);
            pipeline->bad[pipeline->bad_count++] = fault->example;
        }
        if (pipeline->bad_count > pipeline->options.max_bad_records) {
            return FAIL(ERR_CORRUPT,
                        "%s; that makes %d, more than max_bad_records=%lld (--mode=check_data "
                        "lists all)", fault->message, pipeline->bad_count,
                        (long long)pipeline->options.max_bad_records);
        }
        if (!known) {
            LOG_WARN("replaced by the next: %s", fault->message);
        }
    }
    return STATUS_OK;
}

enum status pipeline_next(struct pipeline *pipeline, const struct batch **out)
{
    double start = time_now();
    struct slot *slot = &pipeline->slots[pipeline->next_give % pipeline->slot_count];
    enum status status = STATUS_OK;
    pthread_mutex_lock(&pipeline->mutex);
    if (pipeline->options.threads == 0) {
        slot->number = pipeline->next_give;
        make_batch(pipeline, slot);
    } else {
        CHECK(pipeline->workers[0], "pipeline_next before pipeline_seek");
        status = wait_for(pipeline, slot);
    }
    if (status == STATUS_OK && slot->status != STATUS_OK) {
        error_restore(&slot->error);
        status = slot->status;
    }
    if (status == STATUS_OK) {
        status = count_faults(pipeline, slot);
    }
    if (status == STATUS_OK) {
        // The batch before this one is the caller's no more: its slot may be filled.
        pipeline->next_give++;
        pthread_cond_signal(&pipeline->wanted);
        *out = &slot->batch;
    }
    pthread_mutex_unlock(&pipeline->mutex);
    pipeline->waited += time_now() - start;
    return status;
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
    return pipeline->bad_count;
}
