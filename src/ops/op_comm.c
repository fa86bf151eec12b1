// SPDX-License-Identifier: Apache-2.0
// op_comm.c: sums over replicas.
#include <string.h>

#include "ops_impl.h"
#include "trainer/cluster.h"

static enum status ref_all_reduce(const struct op_call *call)
{
    const struct collective *collective = call->collective;
    int64_t count = shape_count(call->node->shape);
    memmove(call->out, call->in[0], node_bytes(call->node));  // may share storage
    if (!collective) {
        return STATUS_OK;
    }
    return collective->all_reduce(collective, 1, &call->out, &count, call->node->dtype);
}

// It comes after the gradients, so it needs no rule of its own.
const struct op_def op_def_ALL_REDUCE = {.name = "all_reduce",
                                         .min_inputs = 1,
                                         .max_inputs = 1,
                                         .in_place = true,
                                         .infer = op_infer_like,
                                         .reference = ref_all_reduce};
