// SPDX-License-Identifier: Apache-2.0
// cluster.h: who computes together, and sums over them. Floor 2.
#ifndef TRAINER_CLUSTER_H
#define TRAINER_CLUSTER_H

#include "trainer/tensor.h"

// One member's view of a group. Backends and reference kernels call through it.
struct collective {
    int rank, size;
    // data[i] becomes the sum over all ranks, in rank order: the same bits on every rank.
    // Several tensors in one call cost one synchronisation.
    // Blocks; ERR_TIMEOUT names the ranks that did not come, ERR_PEER when one failed.
    enum status (*all_reduce)(const struct collective *self, int count, void *const *data,
                              const int64_t *sizes, enum dtype dtype);
    void *group;
};

// Replicas that are threads of this process.
struct replica_group;
struct replica_group *replica_group_new(int size, double timeout_seconds);
void replica_group_free(struct replica_group *group);  // NULL is fine
const struct collective *replica_group_member(struct replica_group *group, int rank);  // borrowed
// A replica that failed releases the others (they get ERR_PEER).
void replica_group_break(struct replica_group *group, int rank);

#endif
