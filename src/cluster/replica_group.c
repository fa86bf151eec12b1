// SPDX-License-Identifier: Apache-2.0
// replica_group.c: sums over replicas that are threads of one process. Every rank shows its buffers,
// sums its own share of the elements over all ranks in rank order, and writes the sum to all of them.
#include <string.h>

#include "trainer/cluster.h"
#include "trainer/mem.h"
#include "trainer/thread.h"

struct replica_group {
    int size;
    double timeout;
    struct barrier *barrier;
    struct collective *members;    // [size]
    void *const **shown;           // [size], each rank's buffers during a call
};

// Sums elements [from, to) of one tensor over the ranks, in rank order. `part` tiles stay in cache.
#define DEFINE_SUM(name, T)                                                                     \
    static void name(const struct replica_group *group, int tensor, int64_t from, int64_t to)  \
    {                                                                                           \
        enum { TILE = 2048 };                                                                   \
        T part[TILE];                                                                           \
        for (int64_t at = from; at < to; at += TILE) {                                          \
            int64_t n = MIN((int64_t)TILE, to - at);                                            \
            memcpy(part, (const T *)group->shown[0][tensor] + at, (size_t)n * sizeof(T));       \
            for (int rank = 1; rank < group->size; rank++) {                                    \
                const T *x = (const T *)group->shown[rank][tensor] + at;                        \
                for (int64_t i = 0; i < n; i++) {                                               \
                    part[i] += x[i];                                                            \
                }                                                                               \
            }                                                                                   \
            for (int rank = 0; rank < group->size; rank++) {                                    \
                memcpy((T *)group->shown[rank][tensor] + at, part, (size_t)n * sizeof(T));      \
            }                                                                                   \
        }                                                                                       \
    }
DEFINE_SUM(sum_f32, float)
DEFINE_SUM(sum_f64, double)

static enum status group_all_reduce(const struct collective *self, int count, void *const *data,
                                    const int64_t *sizes, enum dtype dtype)
{
    struct replica_group *group = self->group;
    CHECK(dtype_is_float(dtype), "all_reduce of %s", dtype_name(dtype));
    group->shown[self->rank] = data;
    TRY(barrier_wait(group->barrier, self->rank, group->timeout, "all_reduce"));
    for (int i = 0; i < count; i++) {
        int64_t from = sizes[i] * self->rank / group->size;
        int64_t to = sizes[i] * (self->rank + 1) / group->size;
        (dtype == DTYPE_F32 ? sum_f32 : sum_f64)(group, i, from, to);
    }
    return barrier_wait(group->barrier, self->rank, group->timeout, "all_reduce");
}

struct replica_group *replica_group_new(int size, double timeout_seconds)
{
    struct replica_group *group = MEM_NEW(struct replica_group);
    group->size = size;
    group->timeout = timeout_seconds;
    group->barrier = barrier_new(size);
    group->members = MEM_NEW_ARRAY(struct collective, size);
    group->shown = MEM_NEW_ARRAY(void *const *, size);
    for (int rank = 0; rank < size; rank++) {
        group->members[rank] = (struct collective){
            .rank = rank, .size = size, .all_reduce = group_all_reduce, .group = group};
    }
    return group;
}

void replica_group_free(struct replica_group *group)
{
    if (group) {
        barrier_free(group->barrier);
        mem_free(group->members);
        mem_free(group->shown);
        mem_free(group);
    }
}

const struct collective *replica_group_member(struct replica_group *group, int rank)
{
    return &group->members[rank];
}

void replica_group_break(struct replica_group *group, int rank)
{
    barrier_break(group->barrier, rank);
}
