// SPDX-License-Identifier: Apache-2.0
// io_impl.h: what the files of the part share. Private to src/io.
#ifndef TRAINER_IO_IMPL_H
#define TRAINER_IO_IMPL_H

#include "trainer/io.h"

// Reads a varint at *at, moves on. False at the end or when it is longer than 64 bits.
bool wire_read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value);
void wire_put_varint(struct text *out, uint64_t value);

// A sorted table: the .index file of a V2 checkpoint, all of a V1 one (the format of LevelDB's
// tables).
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

// TensorShapeProto { dim 2 { size 1 } }. ERR_CORRUPT also when the elements cannot be counted in an
// int64, ERR_UNSUPPORTED beyond SHAPE_RANK_MAX; `path` and `name` are for messages.
enum status tensor_shape_decode(const char *path, const char *name, const uint8_t *bytes,
                                size_t size, struct shape *out);

// Checkpoints of TensorFlow's first version (checkpoint_v1.c), read only. PREFIX is one file, or a
// set PREFIX-00000-of-00002 ..., also named as TensorFlow does, with five question marks for the
// number. All of it is held in memory. *entries are sorted by name, the caller frees them with
// mem_free; the names are borrowed. *out is NULL, with STATUS_OK, when there is no such file.
struct checkpoint_v1;
enum status checkpoint_v1_open(const char *prefix, struct checkpoint_v1 **out,
                               struct bundle_entry **entries, int *count);
void checkpoint_v1_close(struct checkpoint_v1 *checkpoint);  // NULL is fine
// Puts a numeric tensor together from its slices; entry is one of *entries.
enum status checkpoint_v1_read(const struct checkpoint_v1 *checkpoint,
                               const struct bundle_entry *entry, void *data);
// A scalar string. Caller frees *bytes with mem_free.
enum status checkpoint_v1_read_string(const struct checkpoint_v1 *checkpoint,
                                      const struct bundle_entry *entry, uint8_t **bytes,
                                      size_t *size);

#endif
