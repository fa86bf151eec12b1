// SPDX-License-Identifier: Apache-2.0
// mem.h: host memory. Small blocks never fail (the process ends with a sentence instead: nothing
// useful can be done without a few kilobytes); big ones return a status. Arenas hold what dies
// together. Floor 0.
#ifndef TRAINER_MEM_H
#define TRAINER_MEM_H

#include "trainer/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// Zeroed. Caller frees with mem_free. Ends the process with exit code 1 when there is no memory.
void *mem_alloc(size_t size);
void *mem_resize(void *block, size_t old_size, size_t new_size);  // new bytes zeroed
char *mem_strdup(const char *text);
void mem_free(void *block);  // NULL is fine
#define MEM_NEW(type) ((type *)mem_alloc(sizeof(type)))
#define MEM_NEW_ARRAY(type, count) ((type *)mem_alloc(sizeof(type) * (size_t)(count)))

// A growable array: `GROW(items, count, capacity)` makes room for one more.
#define GROW(items, count, capacity)                                                       \
    do {                                                                                   \
        if ((count) == (capacity)) {                                                       \
            size_t grow_old_ = (size_t)(capacity);                                         \
            (capacity) = (capacity) ? 2 * (capacity) : 8;                                  \
            (items) = mem_resize((items), grow_old_ * sizeof *(items),                     \
                                 (size_t)(capacity) * sizeof *(items));                    \
        }                                                                                  \
    } while (0)

// Big blocks: 2 MiB aligned, huge pages advised, every page touched once (a first touch inside the
// training loop costs up to 18 us a page on virtual machines). ERR_NO_MEMORY names `what`.
enum status mem_slab_new(size_t size, const char *what, void **out);  // zeroed
void mem_slab_free(void *slab, size_t size);                          // NULL is fine
enum { MEM_ALIGN = 64 };  // a cache line, and the widest vector register

// An arena: blocks are given out and freed all at once. Not thread-safe.
struct arena_chunk;
struct arena {
    struct arena_chunk *chunks;
};
void arena_init(struct arena *arena);
void arena_release(struct arena *arena);  // fine on a zeroed struct
void *arena_alloc(struct arena *arena, size_t size);  // zeroed, 16-byte aligned, never NULL
char *arena_strdup(struct arena *arena, const char *text);
char *arena_strndup(struct arena *arena, const char *text, size_t length);
char *arena_printf(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define ARENA_NEW(arena, type) ((type *)arena_alloc((arena), sizeof(type)))
#define ARENA_NEW_ARRAY(arena, type, count) \
    ((type *)arena_alloc((arena), sizeof(type) * (size_t)(count)))

#ifdef __cplusplus
}
#endif
#endif
