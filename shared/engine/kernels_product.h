/* The inner product of all kernels, and numbers in vectors of 16. */

#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define PANEL 64     /* columns of a weight panel, keys of a tile */
#define MAX_ROWS 6   /* rows of the inner product: 6 x 4 accumulators */
#define ROW_BLOCK 96 /* rows that pass over a panel together */
#define DEPTH_BLOCK 1024
#define QUERY_BLOCK 48
#define MAX_HEAD_DIM 256

typedef uint16_t bf16;

/* ---- inner product: acc[rows][16 * vectors] (+)= a[rows][depth] * b[depth][..] ---- */

INLINE void inner_f32(const int rows, const int vectors, long depth, const float *a, long lda,
                      const float *b, long ldb, float *c, long ldc, int is_first) {
    __m512 acc[MAX_ROWS][4];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            acc[i][j] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + i * ldc + 16 * j);
    for (long k = 0; k < depth; k++) {
        __m512 row[4];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) row[j] = _mm512_loadu_ps(b + k * ldb + 16 * j);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const __m512 value = _mm512_set1_ps(a[i * lda + k]);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) acc[i][j] = _mm512_fmadd_ps(value, row[j], acc[i][j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) _mm512_storeu_ps(c + i * ldc + 16 * j, acc[i][j]);
}

#ifdef __AVX512BF16__
/* b holds pairs of neighbouring rows interleaved: [depth / 2][columns][2]; depth is even. */
INLINE void inner_bf16(const int rows, const int vectors, long depth, const bf16 *a, long lda,
                       const bf16 *b, long ldb, float *c, long ldc, int is_first) {
    __m512 acc[MAX_ROWS][4];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            acc[i][j] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(c + i * ldc + 16 * j);
    for (long k = 0; k < depth / 2; k++) {
        __m512i row[4];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) row[j] = _mm512_loadu_si512(b + 2 * (k * ldb + 16 * j));
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            int32_t pair;
            memcpy(&pair, a + i * lda + 2 * k, 4);
            const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                acc[i][j] = _mm512_dpbf16_ps(acc[i][j], value, (__m512bh)row[j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) _mm512_storeu_ps(c + i * ldc + 16 * j, acc[i][j]);
}
#endif

/* One function per shape, so that the accumulators stay in registers. */
#define SHAPES(type)                                                                               \
    typedef void (*inner_##type##_fn)(long, const type *, long, const type *, long, float *, long, \
                                      int);                                                        \
    ROWS(type, 1) ROWS(type, 2) ROWS(type, 3) ROWS(type, 4)                                        \
    static const inner_##type##_fn inner_##type##_of[4][6] = {                                     \
        ROW_OF(type, 1), ROW_OF(type, 2), ROW_OF(type, 3), ROW_OF(type, 4)};
#define ROWS(type, v)                                                                              \
    SHAPE(type, 1, v) SHAPE(type, 2, v) SHAPE(type, 3, v) SHAPE(type, 4, v) SHAPE(type, 5, v)      \
    SHAPE(type, 6, v)
#define ROW_OF(type, v)                                                                            \
    {inner_##type##_1_##v, inner_##type##_2_##v, inner_##type##_3_##v,                             \
     inner_##type##_4_##v, inner_##type##_5_##v, inner_##type##_6_##v}
#define SHAPE(type, r, v)                                                                          \
    static void inner_##type##_##r##_##v(long depth, const type *a, long lda, const type *b,       \
                                         long ldb, float *c, long ldc, int is_first) {             \
        PRODUCT(type)(r, v, depth, a, lda, b, ldb, c, ldc, is_first);                              \
    }
#define PRODUCT(type) PRODUCT_##type
#define PRODUCT_float inner_f32
#define PRODUCT_bf16 inner_bf16

SHAPES(float)
#ifdef __AVX512BF16__
SHAPES(bf16)
#endif

#define PRODUCT_ALL(type)                                                                          \
    /* c[rows][columns] (+)= a * b for any number of rows and a multiple of 16 columns */          \
    static void product_##type(long rows, long columns, long depth, const type *a, long lda,       \
                               const type *b, long ldb, float *c, long ldc, int is_first) {        \
        for (long column = 0; column < columns; column += PANEL) {                                 \
            const long vectors = (columns - column >= PANEL ? PANEL : columns - column) / 16;      \
            const long skip = sizeof(type) == 2 ? 2 * column : column;                             \
            for (long row = 0; row < rows; row += MAX_ROWS) {                                      \
                const long count = rows - row < MAX_ROWS ? rows - row : MAX_ROWS;                  \
                inner_##type##_of[vectors - 1][count - 1](depth, a + row * lda, lda, b + skip,     \
                                                          ldb, c + row * ldc + column, ldc,        \
                                                          is_first);                               \
            }                                                                                      \
        }                                                                                          \
    }
PRODUCT_ALL(float)
#ifdef __AVX512BF16__
PRODUCT_ALL(bf16)
#endif

/* ---- numbers ---- */

INLINE __m512 exp_ps(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-104.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

INLINE __m512 load_float(const float *from, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, from);
}
INLINE void store_float(float *to, __mmask16 mask, __m512 value) {
    _mm512_mask_storeu_ps(to, mask, value);
}
#ifdef __AVX512BF16__
INLINE __m512 load_bf16(const bf16 *from, __mmask16 mask) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE void store_bf16(bf16 *to, __mmask16 mask, __m512 value) {
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(value));
}
#endif

INLINE __mmask16 first_lanes(long count) {
    return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

