// SPDX-License-Identifier: Apache-2.0
// cpu_table_impl.h: the table of kernels of the instruction set that includes this. Private.
#include "cpu_narrow_impl.h"
#include "cpu_rows_impl.h"
#include "cpu_winograd_impl.h"

static void conv_pack(const struct cpu_conv_task *task, int thread, int threads)
{
    (task->winograd ? wino_pack_run : conv_pack_run)(task, thread, threads);
}

static void conv_forward(const struct cpu_conv_task *task, int thread, int threads)
{
    (task->winograd ? wino_forward_run
     : task->narrow ? narrow_forward_run
                    : conv_forward_run)(task, thread, threads);
}

static void conv_backward(const struct cpu_conv_task *task, int thread, int threads)
{
    (task->winograd ? wino_backward_run
     : task->narrow ? narrow_backward_run
                    : conv_backward_run)(task, thread, threads);
}

static size_t conv_scratch(const struct cpu_conv_task *task)
{
    return task->winograd ? wino_scratch_at(task, 0, NULL) : conv_scratch_at(task, 0, NULL);
}

// Floats of the packed weights; places the passes that will run.
static int64_t conv_packed(const struct cpu_conv_task *task, struct cpu_pass *passes)
{
    int64_t total = 0;
    for (int i = task->backward; i < task->pass_count && !task->winograd; i++) {
        passes[i].packed = total;
        total += conv_packed_size(&passes[i]);
    }
    return task->winograd ? wino_packed_size(task->conv) : total;
}

#define CPU_TABLE(set, text)                     \
    const struct cpu_kernels cpu_kernels_##set = { \
        .name = (text),                          \
        .lanes = LANES,                          \
        .peak = peak_run,                        \
        .gemm = gemm_run,                        \
        .unary = unary_run,                      \
        .binary = binary_run,                    \
        .from_bytes = from_bytes_run,            \
        .sum = sum_run,                          \
        .sum_rows = sum_rows_run,                \
        .update = update_run,                    \
        .pool = pool_run,                        \
        .pool_grad = pool_grad_run,              \
        .norm_sums = norm_sums_run,              \
        .norm_apply = norm_apply_run,            \
        .norm_grad = norm_grad_run,              \
        .softmax = softmax_run,                  \
        .softmax_grad = softmax_grad_run,        \
        .conv_pack = conv_pack,                  \
        .conv_forward = conv_forward,            \
        .conv_backward = conv_backward,          \
        .conv_scratch = conv_scratch,            \
        .conv_packed = conv_packed,              \
        .wino_gather = wino_gather_run,          \
    }
