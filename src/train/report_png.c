// SPDX-License-Identifier: Apache-2.0
// report_png.c: small pictures as PNG (W3C Recommendation, second edition) in a data URI.
#include <string.h>
#include <zlib.h>

#include "report_impl.h"

static void put_be32(struct text *out, uint32_t value)
{
    uint8_t bytes[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8),
                        (uint8_t)value};
    text_append_bytes(out, bytes, sizeof bytes);
}

// Chunk: length, type, data, crc of type and data.
static void put_chunk(struct text *out, const char *type, const void *data, size_t size)
{
    put_be32(out, (uint32_t)size);
    size_t start = out->size;
    text_append_bytes(out, type, 4);
    text_append_bytes(out, data, size);
    put_be32(out, (uint32_t)crc32(0, (const Bytef *)out->data + start, (uInt)(4 + size)));
}

static void put_base64(struct text *out, const uint8_t *bytes, size_t size)
{
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        size_t left = MIN(size - i, (size_t)3);
        uint32_t word = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (left > 2 ? bytes[i + 2] : 0);
        char four[4] = {digits[word >> 18], digits[word >> 12 & 63],
                        left > 1 ? digits[word >> 6 & 63] : '=',
                        left > 2 ? digits[word & 63] : '='};
        text_append_bytes(out, four, 4);
    }
}

void png_data_uri(struct text *out, const uint8_t *pixels, struct shape shape)
{
    size_t height = (size_t)shape.dim[0], row = (size_t)(shape.dim[1] * shape.dim[2]);
    struct text png = {0}, header = {0};
    uLongf packed_size = compressBound((uLong)(height * (row + 1)));
    uint8_t *raw = mem_alloc(height * (row + 1)), *packed = mem_alloc(packed_size);
    for (size_t y = 0; y < height; y++) {  // each row begins with its filter: 0, none
        memcpy(raw + y * (row + 1) + 1, pixels + y * row, row);
    }
    int result = compress2(packed, &packed_size, raw, (uLong)(height * (row + 1)), 9);
    CHECK(result == Z_OK, "zlib refused to pack a picture (%d)", result);
    put_be32(&header, (uint32_t)shape.dim[1]);
    put_be32(&header, (uint32_t)shape.dim[0]);
    const uint8_t kind[5] = {8, shape.dim[2] == 3 ? 2 : 0, 0, 0, 0};  // 8 bits; color or gray
    text_append_bytes(&header, kind, sizeof kind);
    text_append_bytes(&png, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(&png, "IHDR", header.data, header.size);
    put_chunk(&png, "IDAT", packed, packed_size);
    put_chunk(&png, "IEND", "", 0);
    text_append(out, "data:image/png;base64,");
    put_base64(out, (const uint8_t *)png.data, png.size);
    mem_free(raw);
    mem_free(packed);
    text_release(&header);
    text_release(&png);
}
