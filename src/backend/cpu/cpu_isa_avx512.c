// SPDX-License-Identifier: Apache-2.0
// cpu_isa_avx512.c: the kernels for AVX-512: 16 floats a vector.
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl")

#define LANES 16
#include "cpu_table_impl.h"

CPU_TABLE(avx512, "AVX-512");
