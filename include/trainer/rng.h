// SPDX-License-Identifier: Apache-2.0
// rng.h: random numbers as a pure function (Philox4x32-10; Salmon, Moraes, Dror, Shaw: "Parallel
// random numbers: as easy as 1, 2, 3", SC11). Never a stateful stream: the same (seed, purpose,
// time, index) gives the same numbers on every device, in every thread, after every resume.
// Shared with CUDA: C11 and C++17 at once. Floor 0.
#ifndef TRAINER_RNG_H
#define TRAINER_RNG_H

#include <stdint.h>

// What a number is for; part of the key, so that no two uses share numbers.
enum rng_purpose {
    RNG_INIT = 1,      // initial weights: time = hash of the variable's name, index = element
    RNG_SHUFFLE = 2,   // order of examples: time = epoch
    RNG_DROPOUT = 3,   // time = step, index = global row * row size + element
    RNG_AUGMENT = 4,   // time = epoch, index = example
    RNG_SYNTHETIC = 5  // synthetic data: index = example
};

struct rng_block {
    uint32_t word[4];
};

static inline struct rng_block rng_philox(uint32_t k0, uint32_t k1, uint32_t c0, uint32_t c1,
                                          uint32_t c2, uint32_t c3)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    struct rng_block block = {{c0, c1, c2, c3}};
    return block;
}

// Four numbers at once: block `index` of the stream (seed, purpose, salt, time). `salt` tells uses
// of one purpose apart (the node, the variable).
static inline struct rng_block rng_block_at(uint64_t seed, int purpose, uint32_t salt,
                                            uint64_t time, uint64_t index)
{
    uint32_t k0 = (uint32_t)seed ^ ((uint32_t)purpose * 0x85EBCA6Bu);
    uint32_t k1 = (uint32_t)(seed >> 32) ^ salt;
    return rng_philox(k0, k1, (uint32_t)index, (uint32_t)(index >> 32), (uint32_t)time,
                      (uint32_t)(time >> 32));
}

// Number `index` of the stream; 32 random bits.
static inline uint32_t rng_u32(uint64_t seed, int purpose, uint32_t salt, uint64_t time,
                               uint64_t index)
{
    struct rng_block block = rng_block_at(seed, purpose, salt, time, index >> 2);
    return block.word[index & 3];
}

// [0, 1) with 24 bits, exact in float.
static inline float rng_unit(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-24f;
}

#endif
