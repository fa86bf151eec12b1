// SPDX-License-Identifier: Apache-2.0
// tensor.h: element types and shapes. Floor 1.
#ifndef TRAINER_TENSOR_H
#define TRAINER_TENSOR_H

#include "trainer/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum dtype { DTYPE_F32, DTYPE_F64, DTYPE_I32, DTYPE_I64, DTYPE_U8, DTYPE_COUNT };

size_t dtype_size(enum dtype dtype);        // bytes an element
const char *dtype_name(enum dtype dtype);   // "float32", ... as TensorFlow and numpy say
bool dtype_is_float(enum dtype dtype);

enum { SHAPE_RANK_MAX = 6 };

// Row-major ("C order"). Rank 0 is a scalar with one element. Unused dims are 0.
struct shape {
    int rank;
    int64_t dim[SHAPE_RANK_MAX];
};

struct shape shape_scalar(void);
struct shape shape_of(int rank, const int64_t *dim);
#define SHAPE(...)                                                                  \
    shape_of((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
int64_t shape_count(struct shape shape);    // number of elements
bool shape_equal(struct shape a, struct shape b);
// numpy's rule; false when a dimension differs and neither is 1.
bool shape_broadcast(struct shape a, struct shape b, struct shape *out);
// "(64, 28, 28, 1)"; "()" for a scalar. Returns `buffer`.
enum { SHAPE_TEXT_SIZE = 160 };
const char *shape_text(struct shape shape, char buffer[SHAPE_TEXT_SIZE]);
// The text in a buffer of the thread's own; eight at a time may be in use in one expression.
const char *shape_str(struct shape shape);

#ifdef __cplusplus
}
#endif
#endif
