/* Sixteen numbers in one register of AVX-512. */

#pragma once

#include <immintrin.h>

#define DEPTH_BLOCK 1024
#define WIDENS_BF16 0
#define COPIES_COLUMNS 0

typedef bf16 left_bf16;
typedef __m512 vec;
typedef __mmask16 lanes;

#define ALL_LANES ((lanes)0xffff)

/* Registers hold 24 sums: six rows of four vectors. */
INLINE long widest(long rows) { return rows > 0 ? 4 : 0; }

INLINE vec vec_zero(void) { return _mm512_setzero_ps(); }
INLINE vec vec_set(float x) { return _mm512_set1_ps(x); }
INLINE vec vec_load(const float *from) { return _mm512_loadu_ps(from); }
INLINE void vec_store(float *to, vec x) { _mm512_storeu_ps(to, x); }
INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec vec_sqrt(vec a) { return _mm512_sqrt_ps(a); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }   /* a b + c */
INLINE vec vec_fms(vec a, vec b, vec c) { return _mm512_fmsub_ps(a, b, c); }   /* a b - c */
INLINE vec vec_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
INLINE float vec_sum(vec a) { return _mm512_reduce_add_ps(a); }
INLINE float vec_top(vec a) { return _mm512_reduce_max_ps(a); }
INLINE vec vec_round(vec x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vec vec_scale(vec x, vec n) { return _mm512_scalef_ps(x, n); } /* x 2^n */

INLINE vec vec_above_floor(vec x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF); }
INLINE vec vec_scale_floor(vec x, vec n) { return _mm512_scalef_ps(x, n); } /* x 2^floor(n) */

INLINE lanes first_lanes(long count) {
    return count >= 16 ? ALL_LANES : count <= 0 ? 0 : (lanes)((1u << count) - 1);
}
INLINE vec vec_where(lanes mask, vec x) { return _mm512_maskz_mov_ps(mask, x); }
INLINE vec vec_max_where(lanes mask, vec top, vec x) { return _mm512_mask_max_ps(top, mask, top, x); }
INLINE int vec_any_above(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }

/* Loads and stores take masks of first lanes only. */
INLINE vec load_float(const float *from, lanes mask) { return _mm512_maskz_loadu_ps(mask, from); }
INLINE void store_float(float *to, lanes mask, vec x) { _mm512_mask_storeu_ps(to, mask, x); }

INLINE vec rounded_float(vec x) { return x; }

#ifdef __AVX512BF16__
#define HAS_BF16 1
INLINE vec rounded_bf16(vec x) {
    const __m512i wide = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE vec load_bf16(const bf16 *from, lanes mask) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE void store_bf16(bf16 *to, lanes mask, vec x) {
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(x));
}
#else
#define HAS_BF16 0
#endif

/* tile[word][key ...] = k[key ...][word] of 16 keys: words of 32 bits, gathered across the keys. */
INLINE void put_keys_16(int32_t *tile, long row, long words, const void *k, long stride_bytes) {
    const __m512i each = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i at = _mm512_mullo_epi32(each, _mm512_set1_epi32((int)stride_bytes));
    for (long word = 0; word < words; word++)
        _mm512_storeu_si512(tile + word * row,
                            _mm512_i32gather_epi32(at, (const char *)k + 4 * word, 1));
}

/* to = even[0] odd[0] even[1] odd[1] ..., 16 of each. */
INLINE void put_interleaved_16(bf16 *to, const bf16 *even, const bf16 *odd) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)even));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)odd));
    _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

/* ---- inner product: acc[rows][16 * vectors] (+)= a[rows][depth] * b[depth][..] ---- */

INLINE void step_float(const int rows, const int vectors, const float *a, long lda, const float *b,
                       vec acc[MAX_ROWS][4]) {
    vec row[4];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) row[j] = vec_load(b + 16 * j);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        const vec value = vec_set(a[i * lda]);
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) acc[i][j] = vec_fma(value, row[j], acc[i][j]);
    }
}

INLINE void inner_float(const int rows, const int vectors, long depth, const float *a, long lda,
                        const float *b, long ldb, float *c, long ldc, int is_first,
                        const float *ahead) {
    vec acc[MAX_ROWS][4];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            acc[i][j] = is_first ? vec_zero() : vec_load(c + i * ldc + 16 * j);
    long k = 0;
    for (; k + FETCH_STEP <= depth; k += FETCH_STEP, ahead += LINE(float)) {
        fetch(ahead);
#pragma GCC unroll 8
        for (long each = 0; each < FETCH_STEP; each++)
            step_float(rows, vectors, a + k + each, lda, b + (k + each) * ldb, acc);
    }
    for (; k < depth; k++) step_float(rows, vectors, a + k, lda, b + k * ldb, acc);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) vec_store(c + i * ldc + 16 * j, acc[i][j]);
}

#if HAS_BF16
/* b holds pairs of neighbouring rows interleaved: [depth / 2][columns][2]; depth is even. */
INLINE void inner_bf16(const int rows, const int vectors, long depth, const bf16 *a, long lda,
                       const bf16 *b, long ldb, float *c, long ldc, int is_first,
                       const bf16 *ahead) {
    vec acc[MAX_ROWS][4];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            acc[i][j] = is_first ? vec_zero() : vec_load(c + i * ldc + 16 * j);
    for (long k = 0; k < depth / 2; k++) {
        if (k % (FETCH_STEP / 2) == 0) fetch(ahead + k * (2 * LINE(bf16) / FETCH_STEP));
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
        for (int j = 0; j < vectors; j++) vec_store(c + i * ldc + 16 * j, acc[i][j]);
}
#endif
