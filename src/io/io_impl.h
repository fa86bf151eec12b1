// SPDX-License-Identifier: Apache-2.0
// io_impl.h: what the files of the part share. Private to src/io.
#ifndef TRAINER_IO_IMPL_H
#define TRAINER_IO_IMPL_H

#include "trainer/io.h"

// Reads a varint at *at, moves on. False at the end or when it is longer than 64 bits.
bool wire_read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value);
void wire_put_varint(struct text *out, uint64_t value);

// A sorted table of keys and values: the .index file of a checkpoint (the format of LevelDB's tables).
struct table_row {
    const char *key;
    size_t key_size;
    const char *value;
    size_t value_size;
};
struct table {
    struct arena arena;
    struct table_row *rows;
    int count, capacity;
};
// Checks every block's crc. Rows live in the table's arena. Release also after a failure.
enum status table_decode(const char *path, const uint8_t *bytes, size_t size, struct table *out);
void table_release(struct table *table);
// `rows` sorted by key. Bytes as TensorFlow's own writer makes them.
void table_encode(const struct table_row *rows, int count, struct text *out);

#endif
