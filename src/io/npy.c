// SPDX-License-Identifier: Apache-2.0
// npy.c: NumPy's .npy: "\x93NUMPY", version, header length, a Python dictionary as text, the elements.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/file.h"
#include "trainer/io.h"

static const struct {
    const char *descr;
    enum dtype dtype;
} types[] = {{"<f4", DTYPE_F32}, {"<f8", DTYPE_F64}, {"<i4", DTYPE_I32}, {"<i8", DTYPE_I64},
             {"|u1", DTYPE_U8}};

enum { PREAMBLE = 10 };  // magic 6, version 2, header length 2

static enum status parse_header(const char *path, const char *header, enum dtype *dtype,
                                struct shape *shape)
{
    const char *descr = strstr(header, "'descr': '"), *order = strstr(header, "'fortran_order': ");
    const char *dims = strstr(header, "'shape': (");
    if (!descr || !order || !dims) {
        return FAIL(ERR_CORRUPT, "%s: the header lacks descr, fortran_order or shape", path);
    }
    bool known = false;
    for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
        if (strncmp(descr + 10, types[i].descr, 3) == 0) {
            *dtype = types[i].dtype;
            known = true;
        }
    }
    if (!known || strncmp(order + 17, "False", 5) != 0) {
        return FAIL(ERR_UNSUPPORTED,
                    "%s: expected float32, float64, int32, int64 or uint8 in C order, got %.40s",
                    path, descr);
    }
    *shape = shape_scalar();
    for (const char *at = dims + 10; *at && *at != ')';) {
        char *end;
        long long dim = strtoll(at, &end, 10);
        if (end == at || dim < 0 || shape->rank == SHAPE_RANK_MAX) {
            return FAIL(ERR_UNSUPPORTED, "%s: the shape %.40s cannot be read", path, dims);
        }
        shape->dim[shape->rank++] = dim;
        at = end + strspn(end, ", ");
    }
    return STATUS_OK;
}

enum status npy_read(const char *path, enum dtype *dtype, struct shape *shape, void **data)
{
    uint8_t *bytes;
    size_t size;
    *data = NULL;
    TRY(file_read(path, (size_t)1 << 32, &bytes, &size));
    enum status status = STATUS_OK;
    size_t header = size >= PREAMBLE ? (size_t)(bytes[8] | bytes[9] << 8) : 0;
    if (size < PREAMBLE || memcmp(bytes, "\x93NUMPY\x01", 7) != 0 || PREAMBLE + header > size) {
        status = FAIL(ERR_CORRUPT, "%s: is not a .npy file of version 1", path);
    } else {
        char *text = mem_alloc(header + 1);
        memcpy(text, bytes + PREAMBLE, header);
        status = parse_header(path, text, dtype, shape);
        mem_free(text);
    }
    if (status == STATUS_OK) {
        size_t want = (size_t)shape_count(*shape) * dtype_size(*dtype);
        if (size - PREAMBLE - header != want) {
            status = FAIL(ERR_CORRUPT, "%s: holds %zu bytes of elements, expected %zu for %s %s",
                          path, size - PREAMBLE - header, want, dtype_name(*dtype),
                          shape_str(*shape));
        } else {
            *data = mem_alloc(want);
            memcpy(*data, bytes + PREAMBLE + header, want);
        }
    }
    mem_free(bytes);
    return status;
}

enum status npy_write(const char *path, enum dtype dtype, struct shape shape, const void *data)
{
    const char *descr = NULL;
    for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
        descr = types[i].dtype == dtype ? types[i].descr : descr;
    }
    struct text header = {0};
    text_printf(&header, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < shape.rank; i++) {
        text_printf(&header, shape.rank == 1 || i < shape.rank - 1 ? "%lld, " : "%lld",
                    (long long)shape.dim[i]);
    }
    text_append(&header, "), }");
    while ((PREAMBLE + header.size + 1) % 64) {  // elements begin at a multiple of 64
        text_append(&header, " ");
    }
    text_append(&header, "\n");
    uint8_t preamble[PREAMBLE] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0,
                                  (uint8_t)(header.size & 255), (uint8_t)(header.size >> 8)};
    struct file_writer *writer;
    enum status status = file_create(path, &writer);
    if (status == STATUS_OK) {
        const void *parts[] = {preamble, header.data, data};
        size_t sizes[] = {PREAMBLE, header.size,
                          (size_t)shape_count(shape) * dtype_size(dtype)};
        for (int i = 0; i < 3 && status == STATUS_OK; i++) {
            status = file_put(writer, parts[i], sizes[i]);
        }
        if (status == STATUS_OK) {
            status = file_commit(writer);
        } else {
            file_abort(writer);
        }
    }
    text_release(&header);
    return status;
}
