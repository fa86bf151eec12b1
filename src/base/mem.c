// SPDX-License-Identifier: Apache-2.0
// mem.c: checked allocation, slabs in huge pages, arenas.
#include "trainer/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void out_of_memory(size_t size)
{
    fprintf(stderr, "error: out of memory: a block of %zu bytes could not be had\n", size);
    _Exit(1);
}

void *mem_alloc(size_t size)
{
    void *block = calloc(1, size ? size : 1);
    if (!block) {
        out_of_memory(size);
    }
    return block;
}

void *mem_resize(void *block, size_t old_size, size_t new_size)
{
    char *grown = realloc(block, new_size ? new_size : 1);
    if (!grown) {
        out_of_memory(new_size);
    }
    if (new_size > old_size) {
        memset(grown + old_size, 0, new_size - old_size);
    }
    return grown;
}

char *mem_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(mem_alloc(size), text, size);
}

void mem_free(void *block)
{
    free(block);
}

enum { HUGE_PAGE = 2 << 20 };

static size_t slab_size(size_t size)
{
    return CEIL_DIV(MAX(size, 1), (size_t)HUGE_PAGE) * HUGE_PAGE;
}

enum status mem_slab_new(size_t size, const char *what, void **out)
{
    *out = NULL;
    if (size > SIZE_MAX - 2 * (size_t)HUGE_PAGE) {
        return FAIL(ERR_NO_MEMORY, "%s: %zu bytes are more than this machine can address", what,
                    size);
    }
    // Map one huge page more than needed and give the ends back, so that the slab is aligned.
    size_t rounded = slab_size(size), mapped = rounded + HUGE_PAGE;
    char *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return FAIL(ERR_NO_MEMORY,
                    "%s: %.1f MiB could not be had; a smaller batch or model needs less", what,
                    (double)size / 1048576.0);
    }
    char *slab = map + (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
    if (slab > map) {
        munmap(map, (size_t)(slab - map));
    }
    if (slab + rounded < map + mapped) {
        munmap(slab + rounded, (size_t)(map + mapped - (slab + rounded)));
    }
    madvise(slab, rounded, MADV_HUGEPAGE);
    // Touch what was asked for, not the rounding: small slabs stay small where pages are 4 KiB.
    for (size_t i = 0; i < size; i += 4096) {
        ((volatile char *)slab)[i] = 0;
    }
    *out = slab;
    return STATUS_OK;
}

void mem_slab_free(void *slab, size_t size)
{
    if (slab) {
        munmap(slab, slab_size(size));
    }
}

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void arena_init(struct arena *arena)
{
    arena->chunks = NULL;
}

void arena_release(struct arena *arena)
{
    while (arena->chunks) {
        struct arena_chunk *next = arena->chunks->next;
        mem_free(arena->chunks);
        arena->chunks = next;
    }
}

void *arena_alloc(struct arena *arena, size_t size)
{
    enum { CHUNK = 16384 };  // holds a few hundred graph nodes' worth of small blocks
    size = CEIL_DIV(MAX(size, 1), (size_t)16) * 16;
    struct arena_chunk *chunk = arena->chunks;
    if (!chunk || chunk->size - chunk->used < size) {
        size_t capacity = MAX(size, (size_t)CHUNK);
        chunk = mem_alloc(sizeof *chunk + capacity);
        chunk->size = capacity;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
    }
    void *block = chunk->data + chunk->used;
    chunk->used += size;
    return block;
}

char *arena_strndup(struct arena *arena, const char *text, size_t length)
{
    return memcpy(arena_alloc(arena, length + 1), text, length);
}

char *arena_strdup(struct arena *arena, const char *text)
{
    return arena_strndup(arena, text, strlen(text));
}

char *arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(length >= 0, "bad format %s", format);
    char *text = arena_alloc(arena, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}
