// SPDX-License-Identifier: Apache-2.0
// op_table.c: the table of ops, and the sources, which have nothing to compute.
#include "ops_impl.h"

const struct op_def op_def_INPUT = {.name = "input"};
const struct op_def op_def_VARIABLE = {.name = "variable"};
const struct op_def op_def_CONST = {.name = "const"};

const struct op_def *const op_table[OP_COUNT] = {
#define OP(id, name) [OP_##id] = &op_def_##id,
#include "trainer/ops.def"
#undef OP
};
