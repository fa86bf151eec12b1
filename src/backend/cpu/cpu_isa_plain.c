// SPDX-License-Identifier: Apache-2.0
// cpu_isa_plain.c: the kernels for every x86-64 has: SSE2, 4 floats a vector, no fused
// multiply-add.

#define LANES 4
#include "cpu_table_impl.h"

CPU_TABLE(plain, "plain vectors");
