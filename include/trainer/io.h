// SPDX-License-Identifier: Apache-2.0
// io.h: file formats. They know bytes, names and shapes, and nothing about models. Floor 2.
#ifndef TRAINER_IO_H
#define TRAINER_IO_H

#include "trainer/mem.h"
#include "trainer/tensor.h"
#include "trainer/text.h"

// ---- crc32c (Castagnoli), as TensorFlow masks it ---------------------------------------------------

uint32_t crc32c(uint32_t crc, const void *data, size_t size);  // start with 0; SSE4.2 where there is
uint32_t crc32c_mask(uint32_t crc);
uint32_t crc32c_unmask(uint32_t masked);

// ---- Protocol buffers on the wire (wire.c): just enough to read and write TensorFlow's messages ----

// Writing appends to a text buffer. A nested message is built in its own buffer and put with wire_bytes.
void wire_varint(struct text *out, int field, uint64_t value);
void wire_fixed32(struct text *out, int field, uint32_t value);
void wire_float(struct text *out, int field, float value);
void wire_double(struct text *out, int field, double value);
void wire_bytes(struct text *out, int field, const void *bytes, size_t size);
void wire_string(struct text *out, int field, const char *string);
void wire_message(struct text *out, int field, const struct text *message);

// Reading: a cursor over bytes it borrows. wire_next returns false at the end or on damage; then
// `damaged` tells which. `type` is the wire type (0 varint, 1 fixed64, 2 bytes, 5 fixed32).
struct wire_reader {
    const uint8_t *at, *end;
    bool damaged;
    int field, type;
    uint64_t value;         // varint, fixed32, fixed64
    const uint8_t *bytes;   // type 2
    size_t size;
};
void wire_open(struct wire_reader *reader, const void *bytes, size_t size);
bool wire_next(struct wire_reader *reader);

// ---- Tensor bundle: TensorFlow's checkpoint files (bundle.c), V2 and V1 ---------------------------

// Dtype as TensorFlow numbers it (types.proto).
enum { TF_FLOAT = 1, TF_DOUBLE = 2, TF_INT32 = 3, TF_UINT8 = 4, TF_STRING = 7, TF_INT64 = 9,
       TF_BOOL = 10, TF_RESOURCE = 20 };
int tf_dtype(enum dtype dtype);
bool tf_dtype_find(int tf, enum dtype *dtype);  // false for string and others

// Writer. Tensors may come in any order; names are unique. Files appear only at commit:
// data first, index last, each under a temporary name, fsynced and renamed.
struct bundle_writer;
enum status bundle_create(const char *prefix, struct bundle_writer **out);
enum status bundle_put(struct bundle_writer *writer, const char *name, enum dtype dtype,
                       struct shape shape, const void *data);
enum status bundle_put_string(struct bundle_writer *writer, const char *name, const void *bytes,
                              size_t size);  // a scalar string tensor
enum status bundle_commit(struct bundle_writer *writer);  // frees, also on failure
void bundle_abort(struct bundle_writer *writer);          // NULL is fine

// Reader. Opens `prefix` (V2: prefix.index; V1: the file itself or its shards), checks the index. Data are read
// and checked (crc) at bundle_read. All errors name the file, and the tensor and byte where known.
struct bundle;
struct bundle_entry {
    const char *name;
    int tf_dtype;
    struct shape shape;
    uint64_t offset, size;  // bytes, within its data file
};
enum status bundle_open(const char *prefix, struct bundle **out);
void bundle_close(struct bundle *bundle);  // NULL is fine
int bundle_count(const struct bundle *bundle);
const struct bundle_entry *bundle_at(const struct bundle *bundle, int i);  // sorted by name
const struct bundle_entry *bundle_find(const struct bundle *bundle, const char *name);  // or NULL
// Reads a whole numeric tensor of this dtype and shape; ERR_MISMATCH says both.
enum status bundle_read(struct bundle *bundle, const char *name, enum dtype dtype,
                        struct shape shape, void *data);
// Reads a scalar string tensor. Caller frees *bytes with mem_free.
enum status bundle_read_string(struct bundle *bundle, const char *name, uint8_t **bytes,
                               size_t *size);

// ---- Trackable object graph (object_graph.c): the tree behind Keras checkpoints --------------------

struct object_node;
struct object_graph {
    struct arena arena;
    struct object_node **nodes;  // [count], node 0 is the root
    int count, capacity;
};
struct object_child {
    int node;
    const char *name;
};
struct object_slot {
    int variable, slot_node;
    const char *name;
};
struct object_node {
    int id;
    const char *key;        // checkpoint key of VARIABLE_VALUE, NULL when the node is no variable
    const char *full_name;  // variable name, may be NULL
    struct object_child *children;
    int child_count, child_capacity;
    struct object_slot *slots;
    int slot_count, slot_capacity;
};
void object_graph_init(struct object_graph *graph);  // with a root
void object_graph_release(struct object_graph *graph);
int object_add(struct object_graph *graph, int parent, const char *name);  // new child; its id
int object_add_orphan(struct object_graph *graph);  // known only by a slot; its id
void object_link(struct object_graph *graph, int parent, const char *name, int child);
// Makes the node a variable with checkpoint key "<path>/.ATTRIBUTES/VARIABLE_VALUE".
void object_set_variable(struct object_graph *graph, int node, const char *path,
                         const char *full_name);
void object_add_slot(struct object_graph *graph, int optimizer, int variable, const char *slot_name,
                     int slot_node);
int object_find(const struct object_graph *graph, int parent, const char *name);  // id or -1
void object_graph_encode(const struct object_graph *graph, struct text *out);
enum status object_graph_decode(const char *where, const void *bytes, size_t size,
                                struct object_graph *out);

// ---- The `checkpoint` state file (checkpoint_state.c) ---------------------------------------------

// Newest prefix named by DIR/checkpoint, relative names resolved against DIR (absolute ones that
// are gone are tried by their last part in DIR, so that a moved folder works). ERR_NOT_FOUND when
// there is no state file. Caller frees *prefix with mem_free.
enum status checkpoint_state_read(const char *directory, char **prefix);
// All kept names, oldest first, the last is the newest; relative to DIR where they lie in it.
// ERR_NOT_FOUND when there is no state file. Caller frees with file_list_free.
enum status checkpoint_state_list(const char *directory, char ***names, int *count);
enum status checkpoint_state_write(const char *directory, const char *const *names, int count);

// ---- TFRecord framing (record.c) and event files (events.c) ---------------------------------------

void record_frame(struct text *out, const void *bytes, size_t size);

struct event_writer;
// Makes DIR/events.out.tfevents.<time>.<host>.<pid>.v2 with its version record.
enum status event_open(const char *directory, struct event_writer **out);
// One scalar. Written at once (one append), so a crash loses nothing and tears at most the tail.
enum status event_scalar(struct event_writer *writer, const char *tag, int64_t step, double value);
void event_close(struct event_writer *writer);  // NULL is fine

// ---- NumPy .npy (npy.c), version 1.0, little-endian, C order ---------------------------------------

// Caller frees *data with mem_free. f4, f8, i4, i8, u1 only.
enum status npy_read(const char *path, enum dtype *dtype, struct shape *shape, void **data);
enum status npy_write(const char *path, enum dtype dtype, struct shape shape, const void *data);

// ---- gzip (gzip.c) -------------------------------------------------------------------------------

// Reads a file that is plain or gzip (by its first bytes; several members are fine) into memory.
// At most `limit` bytes after unpacking. Caller frees *data with mem_free.
enum status gzip_read(const char *path, size_t limit, uint8_t **data, size_t *size);
// The same for gzip bytes in memory; `where` is for messages.
enum status gzip_unpack(const char *where, const uint8_t *packed, size_t packed_size, size_t limit,
                        uint8_t **data, size_t *size);

#endif
