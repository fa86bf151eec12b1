// SPDX-License-Identifier: Apache-2.0
// cpu_isa_avx2.c: the kernels for AVX2 and FMA: 8 floats a vector.
#pragma GCC target("avx2,fma")

#define LANES 8
#include "cpu_table_impl.h"

CPU_TABLE(avx2, "AVX2");
