// SPDX-License-Identifier: Apache-2.0
// crc32c.c: CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected 0x82F63B78): the processor's own
// instruction where there is one (SSE4.2), else eight bytes a step by tables.
#include <pthread.h>
#include <string.h>

#include "trainer/io.h"

static uint32_t tables[8][256];

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
        }
        tables[0][i] = crc;
    }
    for (int t = 1; t < 8; t++) {
        for (int i = 0; i < 256; i++) {
            tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 255];
        }
    }
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t *bytes, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_tables);
    for (; size >= 8; bytes += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        word ^= crc;
        crc = 0;
        for (int i = 0; i < 8; i++) {
            crc ^= tables[7 - i][(word >> (8 * i)) & 255];
        }
    }
    for (; size; bytes++, size--) {
        crc = (crc >> 8) ^ tables[0][(crc ^ *bytes) & 255];
    }
    return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc_by_cpu(uint32_t crc, const uint8_t *bytes,
                                                             size_t size)
{
    uint64_t state = crc;
    for (; size >= 8; bytes += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        state = __builtin_ia32_crc32di(state, word);
    }
    for (; size; bytes++, size--) {
        state = __builtin_ia32_crc32qi((uint32_t)state, *bytes);
    }
    return (uint32_t)state;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) {
        return ~crc_by_cpu(~crc, data, size);
    }
#endif
    return ~crc_by_table(~crc, data, size);
}

// TensorFlow stores crcs rotated and shifted by a constant, so that a crc over data that holds crcs
// stays a good one.
static const uint32_t mask_delta = 0xa282ead8u;

uint32_t crc32c_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + mask_delta;
}

uint32_t crc32c_unmask(uint32_t masked)
{
    uint32_t rotated = masked - mask_delta;
    return (rotated >> 17) | (rotated << 15);
}
