// SPDX-License-Identifier: Apache-2.0
// wire.c: protocol buffers on the wire: https://protobuf.dev/programming-guides/encoding.
#include <string.h>

#include "io_impl.h"

void wire_put_varint(struct text *out, uint64_t value)
{
    uint8_t bytes[10];
    size_t size = 0;
    do {
        bytes[size++] = (uint8_t)((value & 127) | (value > 127 ? 128 : 0));
        value >>= 7;
    } while (value);
    text_append_bytes(out, bytes, size);
}

static void put_tag(struct text *out, int field, int type)
{
    wire_put_varint(out, (uint64_t)field << 3 | (uint64_t)type);
}

void wire_varint(struct text *out, int field, uint64_t value)
{
    put_tag(out, field, 0);
    wire_put_varint(out, value);
}

void wire_fixed32(struct text *out, int field, uint32_t value)
{
    put_tag(out, field, 5);
    text_append_bytes(out, &value, sizeof value);  // little-endian, as the machine
}

void wire_float(struct text *out, int field, float value)
{
    put_tag(out, field, 5);
    text_append_bytes(out, &value, sizeof value);
}

void wire_double(struct text *out, int field, double value)
{
    put_tag(out, field, 1);
    text_append_bytes(out, &value, sizeof value);
}

void wire_bytes(struct text *out, int field, const void *bytes, size_t size)
{
    put_tag(out, field, 2);
    wire_put_varint(out, size);
    text_append_bytes(out, bytes, size);
}

void wire_string(struct text *out, int field, const char *string)
{
    wire_bytes(out, field, string, strlen(string));
}

void wire_message(struct text *out, int field, const struct text *message)
{
    wire_bytes(out, field, text_get(message), message->size);
}

void wire_open(struct wire_reader *reader, const void *bytes, size_t size)
{
    *reader = (struct wire_reader){.at = bytes, .end = (const uint8_t *)bytes + size};
}

bool wire_read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            return true;
        }
    }
    return false;
}

bool wire_next(struct wire_reader *reader)
{
    uint64_t tag, size;
    if (reader->damaged || reader->at == reader->end) {
        return false;
    }
    reader->damaged = true;
    if (!wire_read_varint(&reader->at, reader->end, &tag) || tag >> 3 == 0 || tag >> 32) {
        return false;
    }
    reader->field = (int)(tag >> 3);
    reader->type = (int)(tag & 7);
    size_t left = (size_t)(reader->end - reader->at);
    size_t fixed = reader->type == 1 ? 8 : 4;
    switch (reader->type) {
    case 0:
        reader->damaged = !wire_read_varint(&reader->at, reader->end, &reader->value);
        break;
    case 1:
    case 5:
        reader->value = 0;
        if (left >= fixed) {
            memcpy(&reader->value, reader->at, fixed);
            reader->at += fixed;
            reader->damaged = false;
        }
        break;
    case 2:
        if (wire_read_varint(&reader->at, reader->end, &size) &&
            size <= (uint64_t)(reader->end - reader->at)) {
            reader->bytes = reader->at;
            reader->size = (size_t)size;
            reader->at += size;
            reader->damaged = false;
        }
        break;
    default: break;  // groups are not in TensorFlow's files
    }
    return !reader->damaged;
}
