// SPDX-License-Identifier: Apache-2.0
// cpu_vec_impl.h: one vector type for every instruction set. A file that compiles the kernels for
// one set defines LANES (4, 8, 16 floats) after its target pragma and includes the kernel bodies;
// all of them are written against this page only. Private.
#ifndef CPU_VEC_IMPL_H
#define CPU_VEC_IMPL_H

#include <stdint.h>
#include <string.h>

#if LANES > 4
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t vec_int __attribute__((vector_size(4 * LANES)));
// The same at any address: feeds and rows of odd length are not aligned.
typedef float vec_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef uint8_t vec_bytes __attribute__((vector_size(LANES)));

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_load(const float *p)
{
    return *(const vec_any *)p;
}

INLINE void vec_store(float *p, vec v)
{
    *(vec_any *)p = v;
}

// The first `count` < LANES elements; the rest is zero.
INLINE vec vec_load_part(const float *p, int64_t count)
{
    float lane[LANES] = {0};
    for (int64_t i = 0; i < count; i++) {
        lane[i] = p[i];
    }
    return vec_load(lane);
}

INLINE void vec_store_part(float *p, vec v, int64_t count)
{
    float lane[LANES];
    vec_store(lane, v);
    for (int64_t i = 0; i < count; i++) {
        p[i] = lane[i];
    }
}

INLINE vec vec_set(float x)
{
#if LANES == 16
    return (vec)_mm512_set1_ps(x);
#elif LANES == 8
    return (vec)_mm256_set1_ps(x);
#else
    return (vec){x, x, x, x};
#endif
}

// a * b + c; one rounding where the instruction exists.
INLINE vec vec_fma(vec a, vec b, vec c)
{
#if LANES == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

INLINE vec vec_select(vec_int mask, vec yes, vec no)
{
    return (vec)((mask & (vec_int)yes) | (~mask & (vec_int)no));
}

INLINE vec vec_sqrt(vec v)
{
#if LANES == 16
    return (vec)_mm512_sqrt_ps((__m512)v);
#elif LANES == 8
    return (vec)_mm256_sqrt_ps((__m256)v);
#else
    for (int i = 0; i < LANES; i++) {
        v[i] = __builtin_sqrtf(v[i]);
    }
    return v;
#endif
}

// Negative becomes zero; a NaN stays.
INLINE vec vec_relu(vec v)
{
    return (vec)((vec_int)v & ~(v <= vec_set(0)));
}

// The bigger of a and b; b when either is NaN.
INLINE vec vec_max(vec a, vec b)
{
#if LANES == 16
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_select(a > b, a, b);
#endif
}

INLINE vec_int vec_int_set(int32_t x)
{
    return (vec_int)vec_set(0) + x;
}

// Small integers as bytes, a quarter of the memory.
INLINE void vec_store_bytes(uint8_t *p, vec_int v)
{
#if LANES == 16
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif LANES == 8
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v),
                                    _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(words, words));
#else
    vec_bytes bytes = __builtin_convertvector(v, vec_bytes);
    memcpy(p, &bytes, sizeof bytes);
#endif
}

INLINE vec_int vec_load_bytes(const uint8_t *p)
{
#if LANES == 16
    return (vec_int)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif LANES == 8
    return (vec_int)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#else
    vec_bytes bytes;
    memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, vec_int);
#endif
}

// Sum of the lanes in one fixed order.
INLINE float vec_sum(vec v)
{
    float lane[LANES], sum = 0;
    vec_store(lane, v);
    for (int i = 0; i < LANES; i++) {
        sum += lane[i];
    }
    return sum;
}

#endif
