// SPDX-License-Identifier: Apache-2.0
// op_real.h: includes the kernels of OP_TEMPLATE for float32 (name_f32) and float64 (name_f64).
// No include guard: each family includes it once with its own template.
#define FN_JOIN(name, suffix) name##_##suffix
#define FN_OF(name, suffix) FN_JOIN(name, suffix)
#define FN(name) FN_OF(name, T_SUFFIX)

#define T float
#define T_SUFFIX f32
#include OP_TEMPLATE
#undef T
#undef T_SUFFIX

#define T double
#define T_SUFFIX f64
#include OP_TEMPLATE
#undef T
#undef T_SUFFIX

#undef FN
#undef FN_OF
#undef FN_JOIN
#undef OP_TEMPLATE
