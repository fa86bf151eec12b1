// SPDX-License-Identifier: Apache-2.0
// table.c: the sorted table in a checkpoint's .index file.
//   block    entries (varint shared, varint unshared, varint value size, key rest, value), restart
//            offsets (fixed32 each), their count (fixed32)
//   after it one byte of type (0 plain), masked crc32c of block and type (fixed32)
//   file     data blocks, metaindex block (empty), index block (key >= last key -> offset, size)
//   footer   metaindex handle, index handle, zeros to 40 bytes, magic (fixed64)
#include <string.h>

#include "io_impl.h"

enum {
    FOOTER = 48,
    TRAILER = 5,
    RESTART_EVERY = 16,
    BLOCK_LIMIT = 262144,       // bytes: where TensorFlow's writer begins a new block
    KEY_LIMIT = 1 << 16         // no tensor's name is longer; bounds a damaged file
};
static const uint64_t table_magic = 0xdb4775248b80fb57u;

static uint32_t load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

// ---- Reading ----------------------------------------------------------------------------------------

struct block {
    const uint8_t *bytes, *end;  // the entries
};

static enum status open_block(const char *path, const uint8_t *file, size_t size, uint64_t offset,
                              uint64_t length, struct block *out)
{
    if (length < 4 || offset > size || length + TRAILER > size - offset || length > size) {
        return FAIL(ERR_CORRUPT, "%s: a block at byte %llu of %llu bytes reaches beyond the file's %zu",
                    path, (unsigned long long)offset, (unsigned long long)length, size);
    }
    const uint8_t *bytes = file + offset;
    uint32_t stored = crc32c_unmask(load_u32(bytes + length + 1));
    if (crc32c(0, bytes, length + 1) != stored) {
        return FAIL(ERR_CORRUPT, "%s: the block at byte %llu is damaged (crc)", path,
                    (unsigned long long)offset);
    }
    if (bytes[length] != 0) {
        return FAIL(ERR_UNSUPPORTED, "%s: the block at byte %llu is compressed (type %d)", path,
                    (unsigned long long)offset, bytes[length]);
    }
    uint32_t restarts = load_u32(bytes + length - 4);
    if (restarts > (length - 4) / 4) {
        return FAIL(ERR_CORRUPT, "%s: the block at byte %llu names %u restarts", path,
                    (unsigned long long)offset, restarts);
    }
    *out = (struct block){bytes, bytes + length - 4 - 4 * (size_t)restarts};
    return STATUS_OK;
}

// The next entry of a block; `key` holds the one before it. False at the end or on damage.
static bool next_entry(struct block *block, struct text *key, const uint8_t **value,
                       size_t *value_size, bool *damaged)
{
    uint64_t shared, unshared, length;
    const uint8_t *at = block->bytes;
    *damaged = false;
    if (at == block->end) {
        return false;
    }
    *damaged = true;
    if (!wire_read_varint(&at, block->end, &shared) ||
        !wire_read_varint(&at, block->end, &unshared) ||
        !wire_read_varint(&at, block->end, &length) || shared > key->size ||
        unshared > KEY_LIMIT || shared + unshared > KEY_LIMIT ||
        unshared > (uint64_t)(block->end - at) ||
        length > (uint64_t)(block->end - at) - unshared) {
        return false;
    }
    key->size = (size_t)shared;
    text_append_bytes(key, at, (size_t)unshared);
    *value = at + unshared;
    *value_size = (size_t)length;
    block->bytes = at + unshared + length;
    *damaged = false;
    return true;
}

static enum status damaged_block(const char *path, const uint8_t *file, const struct block *block)
{
    return FAIL(ERR_CORRUPT, "%s: the entry at byte %td cannot be read", path, block->bytes - file);
}

static void add_row(struct table *table, const struct text *key, const uint8_t *value, size_t size)
{
    GROW(table->rows, table->count, table->capacity);
    table->rows[table->count++] = (struct table_row){
        arena_strndup(&table->arena, text_get(key), key->size), key->size,
        arena_strndup(&table->arena, (const char *)value, size), size};
}

static enum status read_data_block(const char *path, const uint8_t *file, size_t size,
                                   const uint8_t *handle, size_t handle_size, struct table *table)
{
    uint64_t offset, length;
    const uint8_t *at = handle, *end = handle + handle_size, *value;
    if (!wire_read_varint(&at, end, &offset) || !wire_read_varint(&at, end, &length)) {
        return FAIL(ERR_CORRUPT, "%s: a block's place cannot be read", path);
    }
    struct block block;
    TRY(open_block(path, file, size, offset, length, &block));
    struct text key = {0};
    size_t value_size;
    bool damaged;
    while (next_entry(&block, &key, &value, &value_size, &damaged)) {
        add_row(table, &key, value, value_size);
    }
    text_release(&key);
    return damaged ? damaged_block(path, file, &block) : STATUS_OK;
}

enum status table_decode(const char *path, const uint8_t *bytes, size_t size, struct table *out)
{
    *out = (struct table){0};
    arena_init(&out->arena);
    if (size < FOOTER || memcmp(bytes + size - 8, &table_magic, 8) != 0) {
        return FAIL(ERR_CORRUPT,
                    "%s: has %zu bytes and does not end as a checkpoint's index does: it is cut "
                    "short, or something else", path, size);
    }
    const uint8_t *at = bytes + size - FOOTER, *end = bytes + size - 8, *value;
    uint64_t skipped, offset, length;
    if (!wire_read_varint(&at, end, &skipped) || !wire_read_varint(&at, end, &skipped) ||
        !wire_read_varint(&at, end, &offset) || !wire_read_varint(&at, end, &length)) {
        return FAIL(ERR_CORRUPT, "%s: the footer at byte %zu cannot be read", path, size - FOOTER);
    }
    struct block index;
    TRY(open_block(path, bytes, size - FOOTER, offset, length, &index));
    struct text key = {0};
    size_t value_size;
    bool damaged;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && next_entry(&index, &key, &value, &value_size, &damaged)) {
        status = read_data_block(path, bytes, size - FOOTER, value, value_size, out);
    }
    if (status == STATUS_OK && damaged) {
        status = damaged_block(path, bytes, &index);
    }
    text_release(&key);
    return status;
}

void table_release(struct table *table)
{
    arena_release(&table->arena);
    mem_free(table->rows);
    *table = (struct table){0};
}

// ---- Writing ----------------------------------------------------------------------------------------

static void put_u32(struct text *out, uint32_t value)
{
    text_append_bytes(out, &value, sizeof value);
}

// Appends one block of rows and gives its handle.
static void put_block(struct text *out, const struct table_row *rows, int count, int interval,
                      struct text *handle)
{
    size_t start = out->size;
    uint32_t restarts[1 + BLOCK_LIMIT / 4];  // an entry takes at least 3 bytes, a restart 16 entries
    uint32_t restart_count = 0;
    for (int i = 0; i < count; i++) {
        size_t shared = 0;
        if (i % interval == 0) {
            restarts[restart_count++] = (uint32_t)(out->size - start);
        } else {
            size_t least = MIN(rows[i].key_size, rows[i - 1].key_size);
            while (shared < least && rows[i].key[shared] == rows[i - 1].key[shared]) {
                shared++;
            }
        }
        wire_put_varint(out, shared);
        wire_put_varint(out, rows[i].key_size - shared);
        wire_put_varint(out, rows[i].value_size);
        text_append_bytes(out, rows[i].key + shared, rows[i].key_size - shared);
        text_append_bytes(out, rows[i].value, rows[i].value_size);
    }
    if (restart_count == 0) {
        restarts[restart_count++] = 0;
    }
    for (uint32_t i = 0; i < restart_count; i++) {
        put_u32(out, restarts[i]);
    }
    put_u32(out, restart_count);
    size_t length = out->size - start;
    text_append_bytes(out, "\0", 1);
    put_u32(out, crc32c_mask(crc32c(0, out->data + start, length + 1)));
    wire_put_varint(handle, start);
    wire_put_varint(handle, length);
}

// The short key that closes the index: the first byte below 255 goes up by one, the rest is cut.
static size_t successor(const struct table_row *row, char *buffer)
{
    for (size_t i = 0; i < row->key_size; i++) {
        buffer[i] = row->key[i];
        if ((unsigned char)row->key[i] != 255) {
            buffer[i]++;
            return i + 1;
        }
    }
    return row->key_size;
}

// How many rows from `first` on fill a block.
static int block_rows(const struct table_row *rows, int count, int first)
{
    size_t size = 0;
    int n = 0;
    while (first + n < count && size < BLOCK_LIMIT) {
        size += rows[first + n].key_size + rows[first + n].value_size + 6;
        n++;
    }
    return n;
}

void table_encode(const struct table_row *rows, int count, struct text *out)
{
    struct arena arena;
    struct table_row *index = NULL;
    int index_count = 0, index_capacity = 0;
    arena_init(&arena);
    for (int first = 0, n; first < count; first += n) {
        n = block_rows(rows, count, first);
        struct text handle = {0};
        put_block(out, rows + first, n, RESTART_EVERY, &handle);
        const struct table_row *last = &rows[first + n - 1];
        GROW(index, index_count, index_capacity);
        struct table_row *row = &index[index_count++];
        *row = (struct table_row){last->key, last->key_size,
                                  arena_strndup(&arena, handle.data, handle.size), handle.size};
        if (first + n == count) {
            char *key = arena_alloc(&arena, last->key_size + 1);
            row->key_size = successor(last, key);
            row->key = key;
        }
        text_release(&handle);
    }
    struct text footer = {0};
    put_block(out, NULL, 0, RESTART_EVERY, &footer);
    put_block(out, index, index_count, 1, &footer);
    while (footer.size < FOOTER - 8) {
        text_append_bytes(&footer, "\0", 1);
    }
    text_append_bytes(&footer, &table_magic, 8);
    text_append_bytes(out, footer.data, footer.size);
    text_release(&footer);
    mem_free(index);
    arena_release(&arena);
}
