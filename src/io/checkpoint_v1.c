// SPDX-License-Identifier: Apache-2.0
// checkpoint_v1.c: TensorFlow's first checkpoint format: one or several tables whose rows hold the
// bytes (core/util/saved_tensor_slice.proto, core/framework/tensor_slice.proto, tensor.proto).
//   row ""      SavedTensorSlices { meta 1 { tensor 1 { name 1, shape 2, type 3, slice 4 } } }
//   other rows  SavedTensorSlices { data 2 { name 1, slice 2, data 3 } }
//   slice       TensorSliceProto { extent 1 { start 1, length 2 } }, an extent for each dimension;
//               without a length it is the whole dimension
//   data        TensorProto { float_val 5, double_val 6, int_val 7, string_val 8, int64_val 10 }
// A tensor may be cut into slices, and these may lie in different files.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/file.h"
#include "io_impl.h"

struct slice {
    const char *path, *name;  // the file and the tensor
    struct wire_reader extents, data;
};

struct checkpoint_v1 {
    struct arena arena;    // names and paths
    struct table *tables;  // [table_count]; rows hold the data
    int table_count;
    struct slice *slices;  // sorted by name
    int slice_count, slice_capacity;
    struct bundle_entry *entries;  // until they are handed over
    int count, capacity;
};

// ---- The files ----------------------------------------------------------------------------------

// Splits "base-00001-of-00003"; false when `name` is not a shard of `base`.
static bool shard_of(const char *name, const char *base, size_t base_size, unsigned *shards)
{
    unsigned shard;
    int end = 0;
    return strncmp(name, base, base_size) == 0 &&
           sscanf(name + base_size, "-%5u-of-%5u%n", &shard, shards, &end) == 2 && end == 15 &&
           name[base_size + 15] == '\0' && shard < *shards;
}

// Number of shards of `prefix` (its first `size` characters); 0 when there are none.
static unsigned count_shards(const char *prefix, size_t size)
{
    char *directory = mem_strdup(prefix), **names;
    int count;
    unsigned shards = 0, most = 0;
    directory[size] = '\0';
    char *slash = strrchr(directory, '/');
    const char *base = slash ? slash + 1 : directory;
    size_t base_size = strlen(base);
    char *folder = slash ? mem_strdup(directory) : mem_strdup(".");
    if (slash) {
        folder[slash - directory + (slash == directory)] = '\0';
    }
    if (file_list(folder, &names, &count) == STATUS_OK) {
        for (int i = 0; i < count; i++) {
            if (shard_of(names[i], base, base_size, &shards)) {
                most = MAX(most, shards);
            }
        }
        file_list_free(names, count);
    }
    mem_free(folder);
    mem_free(directory);
    return most;
}

// The names of the files behind a prefix, in the arena; 0 when there are none.
static int find_files(struct checkpoint_v1 *checkpoint, const char *prefix, const char ***paths)
{
    if (file_exists(prefix) && !file_is_directory(prefix)) {
        *paths = arena_alloc(&checkpoint->arena, sizeof **paths);
        (*paths)[0] = arena_strdup(&checkpoint->arena, prefix);
        return 1;
    }
    const char *pattern = strstr(prefix, "-\?\?\?\?\?-of-");
    size_t size = pattern ? (size_t)(pattern - prefix) : strlen(prefix);
    unsigned shards = count_shards(prefix, size);
    *paths = arena_alloc(&checkpoint->arena, MAX(shards, 1) * sizeof **paths);
    for (unsigned i = 0; i < shards; i++) {
        struct text path = {0};
        text_printf(&path, "%.*s-%05u-of-%05u", (int)size, prefix, i, shards);
        (*paths)[i] = arena_strdup(&checkpoint->arena, text_get(&path));
        text_release(&path);
    }
    return (int)shards;
}

// ---- Opening ------------------------------------------------------------------------------------

static const char *keep_name(struct checkpoint_v1 *checkpoint, const struct wire_reader *reader)
{
    return arena_strndup(&checkpoint->arena, (const char *)reader->bytes, reader->size);
}

static enum status unreadable(const char *path, const char *name)
{
    return FAIL(ERR_CORRUPT, "%s: the entry of %s cannot be read", path,
                name && *name ? name : "a tensor");
}

// The SavedSliceMeta of one tensor. Every file lists the tensors that have slices in it.
static enum status add_tensor(struct checkpoint_v1 *checkpoint, const char *path,
                              struct wire_reader meta)
{
    struct bundle_entry entry = {.name = ""};
    struct wire_reader shape = {0};
    while (wire_next(&meta)) {
        if (meta.field == 1 && meta.type == 2) {
            entry.name = keep_name(checkpoint, &meta);
        } else if (meta.field == 2 && meta.type == 2) {
            wire_open(&shape, meta.bytes, meta.size);
        } else if (meta.field == 3) {
            entry.tf_dtype = (int)meta.value;
        }
    }
    if (meta.damaged || !*entry.name) {
        return unreadable(path, entry.name);
    }
    TRY(tensor_shape_decode(path, entry.name, shape.at, (size_t)(shape.end - shape.at),
                            &entry.shape));
    enum dtype dtype;
    if (tf_dtype_find(entry.tf_dtype, &dtype)) {
        entry.size = (uint64_t)shape_count(entry.shape) * dtype_size(dtype);
    }
    GROW(checkpoint->entries, checkpoint->count, checkpoint->capacity);
    checkpoint->entries[checkpoint->count++] = entry;
    return STATUS_OK;
}

static enum status add_slice(struct checkpoint_v1 *checkpoint, const char *path,
                             struct wire_reader saved)
{
    struct slice slice = {.path = path, .name = ""};
    while (wire_next(&saved)) {
        if (saved.type != 2) {
            continue;
        }
        if (saved.field == 1) {
            slice.name = keep_name(checkpoint, &saved);
        } else if (saved.field == 2) {
            wire_open(&slice.extents, saved.bytes, saved.size);
        } else if (saved.field == 3) {
            wire_open(&slice.data, saved.bytes, saved.size);
        }
    }
    if (saved.damaged || !*slice.name) {
        return unreadable(path, slice.name);
    }
    GROW(checkpoint->slices, checkpoint->slice_count, checkpoint->slice_capacity);
    checkpoint->slices[checkpoint->slice_count++] = slice;
    return STATUS_OK;
}

// SavedTensorSlices: its meta (the first row) or its data.
static enum status read_row(struct checkpoint_v1 *checkpoint, const char *path,
                            const struct table_row *row)
{
    struct wire_reader slices;
    wire_open(&slices, row->value, row->value_size);
    while (wire_next(&slices)) {
        struct wire_reader part;
        if (slices.type != 2) {
            continue;
        }
        wire_open(&part, slices.bytes, slices.size);
        if (slices.field == 2) {
            TRY(add_slice(checkpoint, path, part));
        }
        while (slices.field == 1 && wire_next(&part)) {
            if (part.field == 1 && part.type == 2) {
                struct wire_reader tensor;
                wire_open(&tensor, part.bytes, part.size);
                TRY(add_tensor(checkpoint, path, tensor));
            }
        }
        if (slices.field == 1 && part.damaged) {
            return unreadable(path, NULL);
        }
    }
    return slices.damaged ? unreadable(path, NULL) : STATUS_OK;
}

static enum status read_file(struct checkpoint_v1 *checkpoint, const char *path)
{
    const size_t limit = (size_t)1 << 32;  // bytes; TensorFlow wrote larger ones in shards
    uint8_t *bytes;
    size_t size;
    struct table *table = &checkpoint->tables[checkpoint->table_count++];
    TRY(file_read(path, limit, &bytes, &size));
    enum status status = table_decode(path, bytes, size, table);
    mem_free(bytes);
    TRY(status);
    if (table->count == 0 || table->rows[0].key_size != 0) {
        return FAIL(ERR_CORRUPT, "%s: is a table without the list of tensors of a checkpoint",
                    path);
    }
    for (int i = 0; i < table->count; i++) {
        TRY(read_row(checkpoint, path, &table->rows[i]));
    }
    return STATUS_OK;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct bundle_entry *)a)->name, ((const struct bundle_entry *)b)->name);
}

static int compare_slices(const void *a, const void *b)
{
    return strcmp(((const struct slice *)a)->name, ((const struct slice *)b)->name);
}

// Sorts the tensors and keeps one entry of each: those with slices in several files come several
// times.
static enum status merge_tensors(struct checkpoint_v1 *checkpoint, const char *prefix)
{
    struct bundle_entry *entries = checkpoint->entries;
    int kept = 0;
    if (checkpoint->count) {
        qsort(entries, (size_t)checkpoint->count, sizeof *entries, compare_entries);
    }
    for (int i = 0; i < checkpoint->count; i++) {
        struct bundle_entry *last = kept ? &entries[kept - 1] : NULL;
        if (!last || strcmp(last->name, entries[i].name) != 0) {
            entries[kept++] = entries[i];
        } else if (last->tf_dtype != entries[i].tf_dtype ||
                   !shape_equal(last->shape, entries[i].shape)) {
            return FAIL(ERR_CORRUPT, "%s: tensor %s is listed with the shapes %s and %s", prefix,
                        last->name, shape_str(last->shape), shape_str(entries[i].shape));
        }
    }
    checkpoint->count = kept;
    return STATUS_OK;
}

enum status checkpoint_v1_open(const char *prefix, struct checkpoint_v1 **out,
                               struct bundle_entry **entries, int *count)
{
    struct checkpoint_v1 *checkpoint = MEM_NEW(struct checkpoint_v1);
    const char **paths;
    enum status status = STATUS_OK;
    *out = NULL;
    arena_init(&checkpoint->arena);
    int files = find_files(checkpoint, prefix, &paths);
    checkpoint->tables = MEM_NEW_ARRAY(struct table, files + 1);
    for (int i = 0; i < files && status == STATUS_OK; i++) {
        status = read_file(checkpoint, paths[i]);
    }
    if (status == STATUS_OK) {
        status = merge_tensors(checkpoint, prefix);
    }
    if (files == 0 || status != STATUS_OK) {
        checkpoint_v1_close(checkpoint);
        return status;
    }
    if (checkpoint->slice_count) {
        qsort(checkpoint->slices, (size_t)checkpoint->slice_count, sizeof *checkpoint->slices,
              compare_slices);
    }
    *entries = checkpoint->entries;
    *count = checkpoint->count;
    checkpoint->entries = NULL;
    *out = checkpoint;
    return STATUS_OK;
}

void checkpoint_v1_close(struct checkpoint_v1 *checkpoint)
{
    if (checkpoint) {
        for (int i = 0; i < checkpoint->table_count; i++) {
            table_release(&checkpoint->tables[i]);
        }
        mem_free(checkpoint->tables);
        mem_free(checkpoint->slices);
        mem_free(checkpoint->entries);
        arena_release(&checkpoint->arena);
        mem_free(checkpoint);
    }
}

// ---- Reading ------------------------------------------------------------------------------------

// A slice's place in its tensor.
struct region {
    int64_t start[SHAPE_RANK_MAX], length[SHAPE_RANK_MAX];
};

static enum status decode_region(const struct slice *slice, struct shape shape, struct region *out)
{
    struct wire_reader extents = slice->extents;
    int rank = 0;
    while (wire_next(&extents)) {
        if (extents.field != 1 || extents.type != 2) {
            continue;
        }
        struct wire_reader extent;
        int64_t start = 0, length = -1;
        wire_open(&extent, extents.bytes, extents.size);
        while (wire_next(&extent)) {
            start = extent.field == 1 ? (int64_t)extent.value : start;
            length = extent.field == 2 ? (int64_t)extent.value : length;
        }
        if (rank < shape.rank && length < 0 && start == 0) {
            length = shape.dim[rank];
        }
        if (extent.damaged || rank == shape.rank || start < 0 || length < 0 ||
            length > shape.dim[rank] || start > shape.dim[rank] - length) {
            return FAIL(ERR_CORRUPT, "%s: a slice of tensor %s reaches beyond its shape %s",
                        slice->path, slice->name, shape_str(shape));
        }
        out->start[rank] = start;
        out->length[rank++] = length;
    }
    return extents.damaged || rank != shape.rank
               ? FAIL(ERR_CORRUPT, "%s: a slice of tensor %s has %d extents, its shape is %s",
                      slice->path, slice->name, rank, shape_str(shape))
               : STATUS_OK;
}

static bool overlap(const struct region *a, const struct region *b, int rank)
{
    for (int i = 0; i < rank; i++) {
        if (a->start[i] + a->length[i] <= b->start[i] ||
            b->start[i] + b->length[i] <= a->start[i]) {
            return false;
        }
    }
    return true;
}

// Field of TensorProto that holds the values; 0 when there is none for this type.
static int value_field(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return 5;
    case DTYPE_F64: return 6;
    case DTYPE_I32:
    case DTYPE_U8: return 7;
    case DTYPE_I64: return 10;
    default: return 0;
    }
}

// Hands out the values of a slice one after another. Values come packed, or one to a field.
struct values {
    struct wire_reader message, packed;
    int field;
    enum dtype dtype;
};

static bool next_value(struct values *values, void *out)
{
    size_t size = dtype_size(values->dtype);
    bool varint = values->dtype != DTYPE_F32 && values->dtype != DTYPE_F64;
    uint64_t value = 0;
    while (values->packed.at == values->packed.end) {
        if (!wire_next(&values->message)) {
            return false;
        }
        if (values->message.field != values->field) {
            continue;
        }
        if (values->message.type == 2) {
            wire_open(&values->packed, values->message.bytes, values->message.size);
        } else {
            memcpy(out, &values->message.value, size);  // little-endian: the low bytes
            return values->message.type == (varint ? 0 : size == 4 ? 5 : 1);
        }
    }
    if (varint) {
        if (!wire_read_varint(&values->packed.at, values->packed.end, &value)) {
            return false;
        }
    } else {
        if ((size_t)(values->packed.end - values->packed.at) < size) {
            return false;
        }
        memcpy(&value, values->packed.at, size);
        values->packed.at += size;
    }
    memcpy(out, &value, size);
    return true;
}

// Copies one slice to its region of `data`, row by row of its last dimension.
static enum status copy_slice(const struct slice *slice, const struct region *region,
                              struct shape shape, enum dtype dtype, uint8_t *data)
{
    struct values values = {.message = slice->data, .field = value_field(dtype), .dtype = dtype};
    int64_t at[SHAPE_RANK_MAX] = {0}, count = 1, rank = shape.rank;
    size_t size = dtype_size(dtype);
    uint8_t spare[8];
    for (int i = 0; i < rank; i++) {
        count *= region->length[i];
    }
    for (int64_t n = 0; n < count; n++) {
        int64_t index = 0;
        for (int i = 0; i < rank; i++) {
            index = index * shape.dim[i] + region->start[i] + at[i];
        }
        if (!next_value(&values, data + (size_t)index * size)) {
            return FAIL(ERR_CORRUPT, "%s: a slice of tensor %s has %lld values, expected %lld",
                        slice->path, slice->name, (long long)n, (long long)count);
        }
        for (int64_t i = rank - 1; i >= 0 && ++at[i] == region->length[i]; i--) {
            at[i] = 0;
        }
    }
    return next_value(&values, spare)
               ? FAIL(ERR_CORRUPT, "%s: a slice of tensor %s has more than its %lld values",
                      slice->path, slice->name, (long long)count)
               : STATUS_OK;
}

// The slices of a tensor, one after another; NULL when there are none.
static const struct slice *slices_of(const struct checkpoint_v1 *checkpoint, const char *name,
                                     int *count)
{
    const struct slice *end = checkpoint->slices + checkpoint->slice_count;
    const struct slice *any = NULL, *first, *last;
    *count = 0;
    if (checkpoint->slice_count) {
        any = bsearch(&(struct slice){.name = name}, checkpoint->slices,
                      (size_t)checkpoint->slice_count, sizeof *any, compare_slices);
    }
    if (!any) {
        return NULL;
    }
    for (first = any; first > checkpoint->slices && strcmp(first[-1].name, name) == 0; first--) {
    }
    for (last = any; last < end && strcmp(last->name, name) == 0; last++) {
    }
    *count = (int)(last - first);
    return first;
}

enum status checkpoint_v1_read(const struct checkpoint_v1 *checkpoint,
                               const struct bundle_entry *entry, void *data)
{
    int count;
    enum dtype dtype = DTYPE_COUNT;
    const struct slice *slices = slices_of(checkpoint, entry->name, &count);
    struct region *regions = MEM_NEW_ARRAY(struct region, count + 1);
    int64_t covered = 0;
    enum status status = STATUS_OK;
    CHECK(tf_dtype_find(entry->tf_dtype, &dtype), "the caller asked for a type that has no name");
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        int64_t elements = 1;
        status = decode_region(&slices[i], entry->shape, &regions[i]);
        for (int k = 0; k < entry->shape.rank && status == STATUS_OK; k++) {
            elements *= regions[i].length[k];
        }
        for (int k = 0; k < i && status == STATUS_OK; k++) {
            if (elements && overlap(&regions[k], &regions[i], entry->shape.rank)) {
                status = FAIL(ERR_CORRUPT, "%s: two slices of tensor %s overlap", slices[i].path,
                              entry->name);
            }
        }
        covered += elements;
    }
    if (status == STATUS_OK && covered != shape_count(entry->shape)) {
        status = FAIL(ERR_CORRUPT,
                      "tensor %s: its %d slices hold %lld of %lld elements; a file of "
                      "the checkpoint is missing or damaged",
                      entry->name, count, (long long)covered, (long long)shape_count(entry->shape));
    }
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        status = copy_slice(&slices[i], &regions[i], entry->shape, dtype, data);
    }
    mem_free(regions);
    return status;
}

enum status checkpoint_v1_read_string(const struct checkpoint_v1 *checkpoint,
                                      const struct bundle_entry *entry, uint8_t **bytes,
                                      size_t *size)
{
    int count;
    const struct slice *slice = slices_of(checkpoint, entry->name, &count);
    struct wire_reader data = {0};
    if (count == 1) {
        data = slice->data;
    }
    while (wire_next(&data)) {
        if (data.field == 8 && data.type == 2) {
            *bytes = mem_alloc(data.size + 1);
            memcpy(*bytes, data.bytes, data.size);
            *size = data.size;
            return STATUS_OK;
        }
    }
    return FAIL(ERR_CORRUPT, "tensor %s: has no string", entry->name);
}
