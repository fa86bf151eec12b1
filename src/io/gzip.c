// SPDX-License-Identifier: Apache-2.0
// gzip.c: whole files, plain or gzip with any number of members.
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "trainer/file.h"
#include "trainer/io.h"

static enum status inflate_all(const char *path, const uint8_t *packed, size_t packed_size,
                               size_t limit, uint8_t **data, size_t *size)
{
    // The last four bytes say the unpacked size of the last member: a good first guess, but not to be
    // trusted beyond what deflate can do (1032 to 1).
    uint32_t guess = 0;
    if (packed_size >= 4) {
        memcpy(&guess, packed + packed_size - 4, 4);
    }
    size_t possible = MIN(limit, 1032 * packed_size + 4096);
    size_t capacity = MIN(MAX((size_t)guess, (size_t)4096), possible) + 1;
    z_stream stream = {0};
    if (inflateInit2(&stream, 15 + 16) != Z_OK) {  // 16: gzip headers
        return FAIL(ERR_NO_MEMORY, "%s: no memory to unpack it", path);
    }
    *data = malloc(capacity + 1);
    stream.next_in = (Bytef *)(uintptr_t)packed;
    int result = *data ? Z_OK : Z_MEM_ERROR;
    *size = 0;
    size_t left = packed_size;
    while (result == Z_OK || (result == Z_STREAM_END && (left || stream.avail_in))) {
        if (result == Z_STREAM_END && inflateReset(&stream) != Z_OK) {
            break;  // the next member
        }
        if (!stream.avail_in) {
            stream.avail_in = (uInt)MIN(left, (size_t)1 << 30);
            left -= stream.avail_in;
        }
        if (*size == capacity) {
            uint8_t *grown = capacity > limit ? NULL : realloc(*data, 2 * capacity + 1);
            if (!grown) {
                result = Z_BUF_ERROR;
                break;
            }
            *data = grown;
            capacity *= 2;
        }
        stream.next_out = *data + *size;
        stream.avail_out = (uInt)MIN(capacity - *size, (size_t)1 << 30);
        uInt room = stream.avail_out;
        result = inflate(&stream, Z_NO_FLUSH);
        *size += room - stream.avail_out;
        if (result == Z_BUF_ERROR && stream.avail_out == 0) {
            result = Z_OK;  // the buffer was full exactly
        }
    }
    size_t at = packed_size - left - stream.avail_in;
    enum status status = STATUS_OK;
    if (*size > limit) {
        status = FAIL(ERR_UNSUPPORTED, "%s: unpacks to more than the limit of %zu bytes", path,
                      limit);
    } else if (!*data || result == Z_MEM_ERROR) {
        status = FAIL(ERR_NO_MEMORY, "%s: no memory to unpack it", path);
    } else if (result != Z_STREAM_END) {
        status = FAIL(ERR_CORRUPT, "%s: the gzip data is damaged or cut short at byte %zu of %zu (%s)",
                      path, at, packed_size,
                      stream.msg ? stream.msg : "it ends too early");
    }
    inflateEnd(&stream);
    return status;
}

enum status gzip_unpack(const char *where, const uint8_t *packed, size_t packed_size, size_t limit,
                        uint8_t **data, size_t *size)
{
    enum status status = inflate_all(where, packed, packed_size, limit, data, size);
    if (status != STATUS_OK) {
        mem_free(*data);
        *data = NULL;
        *size = 0;
        return status;
    }
    (*data)[*size] = 0;
    return STATUS_OK;
}

enum status gzip_read(const char *path, size_t limit, uint8_t **data, size_t *size)
{
    uint8_t *raw;
    size_t raw_size;
    *data = NULL;
    *size = 0;
    TRY(file_read(path, limit, &raw, &raw_size));
    if (raw_size < 2 || raw[0] != 0x1f || raw[1] != 0x8b) {
        *data = raw;
        *size = raw_size;
        return STATUS_OK;
    }
    enum status status = gzip_unpack(path, raw, raw_size, limit, data, size);
    mem_free(raw);
    return status;
}
