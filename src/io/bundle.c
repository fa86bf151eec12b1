// SPDX-License-Identifier: Apache-2.0
// bundle.c: TensorFlow's checkpoints: PREFIX.index (a table of names) and PREFIX.data-00000-of-00001
// (the tensors' bytes one after another).
//   entry ""     BundleHeaderProto { num_shards 1, version 3 { producer 1 } }
//   other keys   BundleEntryProto { dtype 1, shape 2 { dim 2 { size 1 } }, shard_id 3, offset 4, size 5,
//                crc32c 6 (fixed32, masked) }
//   string       varint length, masked crc of the length as 4 bytes, the bytes
// On overwriting a prefix the data come first: until the index follows, the crcs say that the old index
// does not fit them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/file.h"
#include "io_impl.h"

static const struct {
    enum dtype dtype;
    int tf;
} dtypes[] = {{DTYPE_F32, TF_FLOAT}, {DTYPE_F64, TF_DOUBLE}, {DTYPE_I32, TF_INT32},
              {DTYPE_I64, TF_INT64}, {DTYPE_U8, TF_UINT8}};

int tf_dtype(enum dtype dtype)
{
    for (size_t i = 0; i < ARRAY_COUNT(dtypes); i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].tf;
        }
    }
    return 0;
}

bool tf_dtype_find(int tf, enum dtype *dtype)
{
    for (size_t i = 0; i < ARRAY_COUNT(dtypes); i++) {
        if (dtypes[i].tf == tf) {
            *dtype = dtypes[i].dtype;
            return true;
        }
    }
    return false;
}

static char *data_path(const char *prefix, unsigned shard, unsigned shards)
{
    struct text path = {0};
    text_printf(&path, "%s.data-%05u-of-%05u", prefix, shard, shards);
    return path.data;
}

static char *index_path(const char *prefix)
{
    struct text path = {0};
    text_printf(&path, "%s.index", prefix);
    return path.data;
}

// ---- Writer -----------------------------------------------------------------------------------------

struct bundle_writer {
    char *prefix;
    struct file_writer *data;
    struct arena arena;
    struct table_row *rows;
    int count, capacity;
};

static void add_row(struct bundle_writer *writer, const char *name, const struct text *value)
{
    GROW(writer->rows, writer->count, writer->capacity);
    writer->rows[writer->count++] = (struct table_row){
        arena_strdup(&writer->arena, name), strlen(name),
        arena_strndup(&writer->arena, text_get(value), value->size), value->size};
}

enum status bundle_create(const char *prefix, struct bundle_writer **out)
{
    struct bundle_writer *writer = MEM_NEW(struct bundle_writer);
    *out = NULL;
    writer->prefix = mem_strdup(prefix);
    arena_init(&writer->arena);
    char *path = data_path(prefix, 0, 1);
    enum status status = file_create(path, &writer->data);
    mem_free(path);
    if (status != STATUS_OK) {
        bundle_abort(writer);
        return status;
    }
    struct text version = {0}, header = {0};
    wire_varint(&version, 1, 1);
    wire_varint(&header, 1, 1);
    wire_message(&header, 3, &version);
    add_row(writer, "", &header);
    text_release(&version);
    text_release(&header);
    *out = writer;
    return STATUS_OK;
}

// proto3: zeros are left out, but the shape message is always there.
static void encode_entry(struct text *out, int dtype, const struct shape *shape, uint64_t offset,
                         uint64_t size, uint32_t crc)
{
    struct text dims = {0};
    for (int i = 0; shape && i < shape->rank; i++) {
        struct text dim = {0};
        if (shape->dim[i]) {
            wire_varint(&dim, 1, (uint64_t)shape->dim[i]);
        }
        wire_message(&dims, 2, &dim);
        text_release(&dim);
    }
    wire_varint(out, 1, (uint64_t)dtype);
    wire_message(out, 2, &dims);
    if (offset) {
        wire_varint(out, 4, offset);
    }
    if (size) {
        wire_varint(out, 5, size);
    }
    wire_fixed32(out, 6, crc32c_mask(crc));
    text_release(&dims);
}

enum status bundle_put(struct bundle_writer *writer, const char *name, enum dtype dtype,
                       struct shape shape, const void *data)
{
    size_t size = (size_t)shape_count(shape) * dtype_size(dtype);
    struct text entry = {0};
    encode_entry(&entry, tf_dtype(dtype), &shape, file_position(writer->data), size,
                 crc32c(0, data, size));
    add_row(writer, name, &entry);
    text_release(&entry);
    return file_put(writer->data, data, size);
}

enum status bundle_put_string(struct bundle_writer *writer, const char *name, const void *bytes,
                              size_t size)
{
    uint32_t length = (uint32_t)size, crc = crc32c(0, &length, sizeof length);
    uint32_t check = crc32c_mask(crc);
    struct text head = {0}, entry = {0};
    crc = crc32c(crc32c(crc, &check, sizeof check), bytes, size);
    wire_put_varint(&head, size);
    text_append_bytes(&head, &check, sizeof check);
    encode_entry(&entry, TF_STRING, NULL, file_position(writer->data), head.size + size, crc);
    add_row(writer, name, &entry);
    enum status status = file_put(writer->data, head.data, head.size);
    if (status == STATUS_OK) {
        status = file_put(writer->data, bytes, size);
    }
    text_release(&head);
    text_release(&entry);
    return status;
}

static int compare_rows(const void *a, const void *b)
{
    return strcmp(((const struct table_row *)a)->key, ((const struct table_row *)b)->key);
}

enum status bundle_commit(struct bundle_writer *writer)
{
    struct text index = {0};
    qsort(writer->rows, (size_t)writer->count, sizeof *writer->rows, compare_rows);
    for (int i = 1; i < writer->count; i++) {
        CHECK(strcmp(writer->rows[i - 1].key, writer->rows[i].key) != 0,
              "two tensors of a checkpoint are called %s", writer->rows[i].key);
    }
    table_encode(writer->rows, writer->count, &index);
    struct file_writer *data = writer->data;
    writer->data = NULL;
    enum status status = file_commit(data);
    if (status == STATUS_OK) {
        char *path = index_path(writer->prefix);
        status = file_write(path, index.data, index.size);
        mem_free(path);
    }
    text_release(&index);
    bundle_abort(writer);
    return status;
}

void bundle_abort(struct bundle_writer *writer)
{
    if (writer) {
        file_abort(writer->data);
        mem_free(writer->prefix);
        mem_free(writer->rows);
        arena_release(&writer->arena);
        mem_free(writer);
    }
}

// ---- Reader -----------------------------------------------------------------------------------------

struct location {
    uint64_t shard;
    uint32_t crc;
    bool has_crc;
};

struct bundle {
    char *prefix;
    struct table table;
    struct bundle_entry *entries;   // sorted by name
    struct location *locations;
    int count;
    unsigned shards;
    struct checkpoint_v1 *v1;       // instead of table and locations, for a V1 checkpoint
};

enum status tensor_shape_decode(const char *path, const char *name, const uint8_t *bytes,
                                size_t size, struct shape *out)
{
    struct wire_reader shape;
    int64_t count = 1;
    *out = (struct shape){0};
    wire_open(&shape, bytes, size);
    while (wire_next(&shape)) {
        if (shape.field != 2 || shape.type != 2) {
            continue;
        }
        struct wire_reader dim;
        int64_t length = 0;
        wire_open(&dim, shape.bytes, shape.size);
        while (wire_next(&dim)) {
            length = dim.field == 1 ? (int64_t)dim.value : length;
        }
        if (out->rank == SHAPE_RANK_MAX) {
            return FAIL(ERR_UNSUPPORTED, "%s: tensor %s has more than %d dimensions", path, name,
                        SHAPE_RANK_MAX);
        }
        if (dim.damaged || length < 0 || __builtin_mul_overflow(count, length, &count) ||
            count > INT64_MAX / 16) {
            return FAIL(ERR_CORRUPT, "%s: tensor %s has a dimension of %lld", path, name,
                        (long long)length);
        }
        out->dim[out->rank++] = length;
    }
    return shape.damaged ? FAIL(ERR_CORRUPT, "%s: the shape of %s cannot be read", path, name)
                         : STATUS_OK;
}

static enum status decode_entry(const char *path, const struct table_row *row,
                                struct bundle_entry *entry, struct location *location)
{
    struct wire_reader reader;
    *entry = (struct bundle_entry){.name = row->key};
    wire_open(&reader, row->value, row->value_size);
    while (wire_next(&reader)) {
        switch (reader.field) {
        case 1: entry->tf_dtype = (int)reader.value; break;
        case 2:
            if (reader.type == 2) {
                TRY(tensor_shape_decode(path, row->key, reader.bytes, reader.size, &entry->shape));
            }
            break;
        case 3: location->shard = reader.value; break;
        case 4: entry->offset = reader.value; break;
        case 5: entry->size = reader.value; break;
        case 6:
            location->crc = crc32c_unmask((uint32_t)reader.value);
            location->has_crc = true;
            break;
        default: break;
        }
    }
    enum dtype dtype;
    bool numeric = tf_dtype_find(entry->tf_dtype, &dtype);
    if (reader.damaged || strlen(row->key) != row->key_size) {
        return FAIL(ERR_CORRUPT, "%s: the entry of %s cannot be read", path, row->key);
    }
    if (numeric && entry->size != (uint64_t)shape_count(entry->shape) * dtype_size(dtype)) {
        return FAIL(ERR_CORRUPT, "%s: tensor %s has %llu bytes, which do not fit its shape %s",
                    path, row->key, (unsigned long long)entry->size, shape_str(entry->shape));
    }
    return STATUS_OK;
}

static enum status decode_header(const char *path, const struct table_row *row, unsigned *shards)
{
    struct wire_reader reader;
    *shards = 0;
    wire_open(&reader, row->value, row->value_size);
    while (wire_next(&reader)) {
        if (reader.field == 1) {
            *shards = (unsigned)MIN(reader.value, (uint64_t)100000);
        } else if (reader.field == 2 && reader.value != 0) {
            return FAIL(ERR_UNSUPPORTED, "%s: was written on a big-endian machine", path);
        }
    }
    if (reader.damaged || row->key_size != 0 || *shards == 0 || *shards > 99999) {
        return FAIL(ERR_CORRUPT, "%s: the header cannot be read", path);
    }
    return STATUS_OK;
}

static enum status open_v2(struct bundle *bundle, const char *path)
{
    enum { INDEX_LIMIT = 1 << 28 }; // bytes; a million tensors have about 100 MB
    uint8_t *bytes = NULL;
    size_t size;
    TRY(file_read(path, INDEX_LIMIT, &bytes, &size));
    enum status status = table_decode(path, bytes, size, &bundle->table);
    mem_free(bytes);
    TRY(status);
    if (bundle->table.count == 0) {
        return FAIL(ERR_CORRUPT, "%s: is empty", path);
    }
    TRY(decode_header(path, &bundle->table.rows[0], &bundle->shards));
    bundle->count = bundle->table.count - 1;
    bundle->entries = MEM_NEW_ARRAY(struct bundle_entry, bundle->count);
    bundle->locations = MEM_NEW_ARRAY(struct location, bundle->count);
    for (int i = 0; i < bundle->count; i++) {
        const struct table_row *row = &bundle->table.rows[i + 1];
        TRY(decode_entry(path, row, &bundle->entries[i], &bundle->locations[i]));
        if (i > 0 && strcmp(row[-1].key, row->key) >= 0) {
            return FAIL(ERR_CORRUPT, "%s: the names are not sorted at %s", path, row->key);
        }
    }
    return STATUS_OK;
}

enum status bundle_open(const char *prefix, struct bundle **out)
{
    char *path = index_path(prefix);
    *out = NULL;
    struct bundle *bundle = MEM_NEW(struct bundle);
    bundle->prefix = mem_strdup(prefix);
    enum status status = STATUS_OK;
    if (!file_exists(path)) { // V1 has no index; a prefix with neither is told by the V2 name
        status = checkpoint_v1_open(prefix, &bundle->v1, &bundle->entries, &bundle->count);
    }
    if (status == STATUS_OK && !bundle->v1) {
        status = open_v2(bundle, path);
    }
    mem_free(path);
    if (status != STATUS_OK) {
        bundle_close(bundle);
        return status;
    }
    *out = bundle;
    return STATUS_OK;
}

void bundle_close(struct bundle *bundle)
{
    if (bundle) {
        table_release(&bundle->table);
        checkpoint_v1_close(bundle->v1);
        mem_free(bundle->prefix);
        mem_free(bundle->entries);
        mem_free(bundle->locations);
        mem_free(bundle);
    }
}

int bundle_count(const struct bundle *bundle)
{
    return bundle->count;
}

const struct bundle_entry *bundle_at(const struct bundle *bundle, int i)
{
    return &bundle->entries[i];
}

static int compare_entry(const void *name, const void *entry)
{
    return strcmp(name, ((const struct bundle_entry *)entry)->name);
}

const struct bundle_entry *bundle_find(const struct bundle *bundle, const char *name)
{
    return bundle->count ? bsearch(name, bundle->entries, (size_t)bundle->count,
                                   sizeof *bundle->entries, compare_entry)
                         : NULL;
}

// Reads an entry's bytes; the caller checks their crc.
static enum status read_bytes(const struct bundle *bundle, const struct bundle_entry *entry,
                              uint8_t *data)
{
    const struct location *location = &bundle->locations[entry - bundle->entries];
    char *path = data_path(bundle->prefix, (unsigned)location->shard, bundle->shards);
    enum status status = file_read_at(path, entry->offset, data, (size_t)entry->size);
    if (status != STATUS_OK) {
        status = error_prefix(status, "tensor %s", entry->name);
    }
    mem_free(path);
    return status;
}

static enum status find_entry(const struct bundle *bundle, const char *name,
                              const struct bundle_entry **entry)
{
    *entry = bundle_find(bundle, name);
    return *entry ? STATUS_OK : FAIL(ERR_NOT_FOUND, "%s: has no tensor %s", bundle->prefix, name);
}

static enum status damaged(const struct bundle *bundle, const struct bundle_entry *entry)
{
    return FAIL(ERR_CORRUPT, "%s: tensor %s (%llu bytes from byte %llu) is damaged (crc)",
                bundle->prefix, entry->name, (unsigned long long)entry->size,
                (unsigned long long)entry->offset);
}

enum status bundle_read(struct bundle *bundle, const char *name, enum dtype dtype,
                        struct shape shape, void *data)
{
    const struct bundle_entry *entry;
    TRY(find_entry(bundle, name, &entry));
    enum dtype stored = DTYPE_COUNT;
    (void)tf_dtype_find(entry->tf_dtype, &stored);
    if (stored != dtype || !shape_equal(entry->shape, shape)) {
        return FAIL(ERR_MISMATCH, "%s: tensor %s is %s %s, expected %s %s", bundle->prefix, name,
                    stored == DTYPE_COUNT ? "of another type" : dtype_name(stored),
                    shape_str(entry->shape), dtype_name(dtype), shape_str(shape));
    }
    if (bundle->v1) {
        return checkpoint_v1_read(bundle->v1, entry, data);
    }
    TRY(read_bytes(bundle, entry, data));
    const struct location *location = &bundle->locations[entry - bundle->entries];
    if (!location->has_crc || crc32c(0, data, (size_t)entry->size) != location->crc) {
        return damaged(bundle, entry);
    }
    return STATUS_OK;
}

enum status bundle_read_string(struct bundle *bundle, const char *name, uint8_t **bytes,
                               size_t *size)
{
    enum { STRING_LIMIT = 1 << 30 };
    const struct bundle_entry *entry;
    *bytes = NULL;
    *size = 0;
    TRY(find_entry(bundle, name, &entry));
    if (entry->tf_dtype != TF_STRING || entry->shape.rank != 0 || entry->size > STRING_LIMIT) {
        return FAIL(ERR_MISMATCH, "%s: tensor %s is not a single string", bundle->prefix, name);
    }
    if (bundle->v1) {
        return checkpoint_v1_read_string(bundle->v1, entry, bytes, size);
    }
    uint8_t *raw = mem_alloc((size_t)entry->size + 1);
    enum status status = read_bytes(bundle, entry, raw);
    const uint8_t *at = raw, *end = raw + entry->size;
    uint64_t length = 0;
    if (status == STATUS_OK) {
        bool good = wire_read_varint(&at, end, &length) && end - at >= 4 &&
                    length == (uint64_t)(end - at) - 4;
        uint32_t length_32 = (uint32_t)length, crc = crc32c(0, &length_32, 4);
        if (good) {
            crc = crc32c(crc, at, 4);
            crc = crc32c(crc, at + 4, (size_t)length);
        }
        if (!good || crc != bundle->locations[entry - bundle->entries].crc) {
            status = damaged(bundle, entry);
        }
    }
    if (status == STATUS_OK) {
        *size = (size_t)length;
        *bytes = mem_alloc(*size + 1);
        memcpy(*bytes, at + 4, *size);
    }
    mem_free(raw);
    return status;
}
