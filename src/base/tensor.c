// SPDX-License-Identifier: Apache-2.0
// tensor.c: element types and shape arithmetic.
#include "trainer/tensor.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"float32", 4, true}, [DTYPE_F64] = {"float64", 8, true},
    [DTYPE_I32] = {"int32", 4, false},  [DTYPE_I64] = {"int64", 8, false},
    [DTYPE_U8] = {"uint8", 1, false},
};

size_t dtype_size(enum dtype dtype)
{
    return dtypes[dtype].size;
}

const char *dtype_name(enum dtype dtype)
{
    return dtypes[dtype].name;
}

bool dtype_is_float(enum dtype dtype)
{
    return dtypes[dtype].is_float;
}

struct shape shape_scalar(void)
{
    return (struct shape){0};
}

struct shape shape_of(int rank, const int64_t *dim)
{
    CHECK(rank >= 0 && rank <= SHAPE_RANK_MAX, "rank %d", rank);
    struct shape shape = {.rank = rank};
    for (int i = 0; i < rank; i++) {
        shape.dim[i] = dim[i];
    }
    return shape;
}

int64_t shape_count(struct shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) {
        count *= shape.dim[i];
    }
    return count;
}

bool shape_equal(struct shape a, struct shape b)
{
    return a.rank == b.rank && memcmp(a.dim, b.dim, sizeof(int64_t) * (size_t)a.rank) == 0;
}

bool shape_broadcast(struct shape a, struct shape b, struct shape *out)
{
    *out = (struct shape){.rank = MAX(a.rank, b.rank)};
    for (int i = 1; i <= out->rank; i++) {
        int64_t da = i <= a.rank ? a.dim[a.rank - i] : 1;
        int64_t db = i <= b.rank ? b.dim[b.rank - i] : 1;
        if (da != db && da != 1 && db != 1) {
            return false;
        }
        out->dim[out->rank - i] = da == 1 ? db : da;
    }
    return true;
}

const char *shape_text(struct shape shape, char buffer[SHAPE_TEXT_SIZE])
{
    size_t used = (size_t)snprintf(buffer, SHAPE_TEXT_SIZE, "(");
    for (int i = 0; i < shape.rank; i++) {
        used += (size_t)snprintf(buffer + used, SHAPE_TEXT_SIZE - used, "%s%lld", i ? ", " : "",
                                 (long long)shape.dim[i]);
    }
    snprintf(buffer + used, SHAPE_TEXT_SIZE - used, ")");
    return buffer;
}

const char *shape_str(struct shape shape)
{
    enum { BUFFERS = 8 };
    static _Thread_local char buffers[BUFFERS][SHAPE_TEXT_SIZE];
    static _Thread_local unsigned next;
    return shape_text(shape, buffers[next++ % BUFFERS]);
}
