/* Sixteen numbers in two registers of AVX2, with the results of AVX-512 bit for bit in float32.
   bfloat16 is widened to float32; products and sums are float32's. */

#pragma once

#include <immintrin.h>

/* 16 columns of so many rows fill half of the first cache. Even. */
#define DEPTH_BLOCK 288
#define HAS_BF16 1
#define WIDENS_BF16 1
#define COPIES_COLUMNS 1
/* From so many rows on, copying or widening the columns once pays for itself. */
#define MANY_ROWS_float 64
#define MANY_ROWS_bf16 24

typedef float left_bf16;
typedef struct {
    __m256 low, high;
} vec;
typedef uint16_t lanes;

#define ALL_LANES ((lanes)0xffff)

/* Sixteen registers hold 12 halves of sums, and what they are made of. */
INLINE long widest(long rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

#define EACH_HALF(name, operation)                                                                 \
    INLINE vec name(vec a, vec b) {                                                                \
        return (vec){operation(a.low, b.low), operation(a.high, b.high)};                          \
    }
#define EACH_HALF_OF_3(name, operation)                                                            \
    INLINE vec name(vec a, vec b, vec c) {                                                         \
        return (vec){operation(a.low, b.low, c.low), operation(a.high, b.high, c.high)};           \
    }

INLINE vec vec_set(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vec vec_zero(void) { return vec_set(0.0f); }
INLINE vec vec_load(const float *from) {
    return (vec){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
INLINE void vec_store(float *to, vec x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}
EACH_HALF(vec_add, _mm256_add_ps)
EACH_HALF(vec_sub, _mm256_sub_ps)
EACH_HALF(vec_mul, _mm256_mul_ps)
EACH_HALF(vec_div, _mm256_div_ps)
EACH_HALF(vec_max, _mm256_max_ps)
EACH_HALF(vec_min, _mm256_min_ps)
EACH_HALF_OF_3(vec_fma, _mm256_fmadd_ps)   /* a b + c */
EACH_HALF_OF_3(vec_fms, _mm256_fmsub_ps)   /* a b - c */
EACH_HALF_OF_3(vec_fnma, _mm256_fnmadd_ps) /* c - a b */
INLINE vec vec_sqrt(vec a) { return (vec){_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
INLINE vec vec_round(vec x) {
    return (vec){_mm256_round_ps(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

/* The order in which AVX-512 reduces: halves, quarters, pairs. */
#define REDUCE(name, operation, operation_128)                                                     \
    INLINE float name(vec a) {                                                                     \
        const __m256 eight = operation(a.low, a.high);                                             \
        __m128 four = operation_128(_mm256_castps256_ps128(eight),                                 \
                                    _mm256_extractf128_ps(eight, 1));                              \
        four = operation_128(four, _mm_movehl_ps(four, four));                                     \
        return _mm_cvtss_f32(operation_128(four, _mm_movehdup_ps(four)));                          \
    }
REDUCE(vec_sum, _mm256_add_ps, _mm_add_ps)
REDUCE(vec_top, _mm256_max_ps, _mm_max_ps)

/* x 2^n where 2^n is a normal number. */
INLINE __m256 scaled(__m256 x, __m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
INLINE vec vec_scale(vec x, vec n) { return (vec){scaled(x.low, n.low), scaled(x.high, n.high)}; }
INLINE vec vec_floor(vec x) {
    return (vec){_mm256_floor_ps(x.low), _mm256_floor_ps(x.high)};
}
/* x - floor(x) and x 2^floor(n), of what is below -126 for it; what is not a number stays none. */
INLINE vec vec_not_below(vec x) { return vec_max(vec_set(-126.0f), x); }
INLINE vec vec_above_floor(vec x) {
    x = vec_not_below(x);
    return vec_sub(x, vec_floor(x));
}
INLINE vec vec_scale_floor(vec x, vec n) { return vec_scale(x, vec_floor(vec_not_below(n))); }

INLINE lanes first_lanes(long count) {
    return count >= 16 ? ALL_LANES : count <= 0 ? 0 : (lanes)((1u << count) - 1);
}
INLINE __m256 lanes_set(lanes mask, int first) {
    const __m256i bits = _mm256_slli_epi32(_mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1), first);
    const __m256i found = _mm256_and_si256(_mm256_set1_epi32(mask), bits);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(found, bits));
}
INLINE vec vec_where(lanes mask, vec x) {
    return (vec){_mm256_and_ps(lanes_set(mask, 0), x.low), _mm256_and_ps(lanes_set(mask, 8), x.high)};
}
INLINE vec vec_max_where(lanes mask, vec top, vec x) {
    return (vec){
        _mm256_blendv_ps(top.low, _mm256_max_ps(top.low, x.low), lanes_set(mask, 0)),
        _mm256_blendv_ps(top.high, _mm256_max_ps(top.high, x.high), lanes_set(mask, 8)),
    };
}
INLINE int vec_any_above(vec a, vec b) {
    return !!_mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ),
                                             _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ)));
}

/* Loads and stores take masks of first lanes only. */
INLINE vec load_float(const float *from, lanes mask) {
    if (mask == ALL_LANES) return vec_load(from);
    float some[16] = {0};
    memcpy(some, from, (size_t)__builtin_popcount(mask) * sizeof(float));
    return vec_load(some);
}
INLINE void store_float(float *to, lanes mask, vec x) {
    if (mask == ALL_LANES) {
        vec_store(to, x);
        return;
    }
    float some[16];
    vec_store(some, x);
    memcpy(to, some, (size_t)__builtin_popcount(mask) * sizeof(float));
}

INLINE __m256 widened(const bf16 *from) {
    const __m128i eight = _mm_loadu_si128((const void *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}
INLINE vec load_bf16(const bf16 *from, lanes mask) {
    bf16 some[16] = {0};
    if (mask != ALL_LANES) {
        memcpy(some, from, (size_t)__builtin_popcount(mask) * sizeof(bf16));
        from = some;
    }
    return (vec){widened(from), widened(from + 8)};
}
/* To the nearest, ties to even; what is not a number stays none. In the low halves of 32 bits. */
INLINE __m256i narrowed(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_number = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_ORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(quiet, up, is_number), 16);
}
INLINE void store_bf16(bf16 *to, lanes mask, vec x) {
    const __m256i both = _mm256_packus_epi32(narrowed(x.low), narrowed(x.high));
    bf16 some[16];
    _mm256_storeu_si256((void *)(mask == ALL_LANES ? to : some),
                        _mm256_permute4x64_epi64(both, 0xd8));
    if (mask != ALL_LANES) memcpy(to, some, (size_t)__builtin_popcount(mask) * sizeof(bf16));
}

/* to[word][key] = from[key][word] of 8 keys and 8 words. */
INLINE void transpose_8(float *to, long row, const char *from, long stride_bytes) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps((const void *)(from + i * stride_bytes));
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
            a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
INLINE vec rounded_float(vec x) { return x; }
INLINE vec rounded_bf16(vec x) {
    return (vec){_mm256_castsi256_ps(_mm256_slli_epi32(narrowed(x.low), 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(narrowed(x.high), 16))};
}

/* tile[word][key ...] = k[key ...][word] of 16 keys: words of 32 bits, a multiple of 8 of them. */
INLINE void put_keys_16(int32_t *tile, long row, long words, const void *k, long stride_bytes) {
    for (long word = 0; word < words; word += 8)
        for (long key = 0; key < 16; key += 8)
            transpose_8((float *)tile + word * row + key, row,
                        (const char *)k + key * stride_bytes + 4 * word, stride_bytes);
}

/* to = even[0] odd[0] even[1] odd[1] ..., 16 of each. */
INLINE void put_interleaved_16(bf16 *to, const bf16 *even, const bf16 *odd) {
    const __m256i first = _mm256_loadu_si256((const void *)even);
    const __m256i second = _mm256_loadu_si256((const void *)odd);
    const __m256i low = _mm256_unpacklo_epi16(first, second);
    const __m256i high = _mm256_unpackhi_epi16(first, second);
    _mm256_storeu_si256((void *)to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((void *)(to + 16), _mm256_permute2x128_si256(low, high, 0x31));
}

/* ---- inner product: acc[rows][16 * vectors] (+)= a[rows][depth] * b[depth][..] ---- */

#define LOAD_SUMS                                                                                  \
    __m256 acc[MAX_ROWS][8];                                                                       \
    _Pragma("GCC unroll 6") for (int i = 0; i < rows; i++)                                         \
        _Pragma("GCC unroll 8") for (int j = 0; j < 2 * vectors; j++)                              \
            acc[i][j] = is_first ? _mm256_setzero_ps() : _mm256_loadu_ps(c + i * ldc + 8 * j);
#define STORE_SUMS                                                                                 \
    _Pragma("GCC unroll 6") for (int i = 0; i < rows; i++)                                         \
        _Pragma("GCC unroll 8") for (int j = 0; j < 2 * vectors; j++)                              \
            _mm256_storeu_ps(c + i * ldc + 8 * j, acc[i][j]);

INLINE void inner_float(const int rows, const int vectors, long depth, const float *a, long lda,
                        const float *b, long ldb, float *c, long ldc, int is_first,
                        const float *ahead) {
    (void)ahead;
    LOAD_SUMS
    for (long k = 0; k < depth; k++) {
        __m256 row[8];
#pragma GCC unroll 8
        for (int j = 0; j < 2 * vectors; j++) row[j] = _mm256_loadu_ps(b + k * ldb + 8 * j);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const __m256 value = _mm256_set1_ps(a[i * lda + k]);
#pragma GCC unroll 8
            for (int j = 0; j < 2 * vectors; j++)
                acc[i][j] = _mm256_fmadd_ps(value, row[j], acc[i][j]);
        }
    }
    STORE_SUMS
}

/* The first or the second number of each pair. */
INLINE __m256 of_pairs(__m256i pairs, int part) {
    return _mm256_castsi256_ps(part ? _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000))
                                    : _mm256_slli_epi32(pairs, 16));
}

/* to[depth][16] = 16 columns of b. */
INLINE void put_columns_float(float *to, const float *b, long column, long ldb, long depth) {
    for (long k = 0; k < depth; k++)
        for (int j = 0; j < 16; j += 8)
            _mm256_storeu_ps(to + k * 16 + j, _mm256_loadu_ps(b + k * ldb + column + j));
}
/* The same of b that holds pairs of neighbouring rows interleaved. */
INLINE void put_columns_bf16(float *to, const bf16 *b, long column, long ldb, long depth) {
    for (long k = 0; k < depth; k += 2)
        for (int j = 0; j < 16; j += 8) {
            const void *at = b + k * ldb + 2 * (column + j);
            const __m256i pairs = _mm256_loadu_si256(at);
            _mm256_storeu_ps(to + k * 16 + j, of_pairs(pairs, 0));
            _mm256_storeu_ps(to + (k + 1) * 16 + j, of_pairs(pairs, 1));
        }
}

/* b holds pairs of neighbouring rows interleaved: [depth / 2][columns][2]; depth is even. Of each
   pair the first row is added before the second. a is widened already. */
INLINE void inner_bf16(const int rows, const int vectors, long depth, const float *a, long lda,
                       const bf16 *b, long ldb, float *c, long ldc, int is_first,
                       const bf16 *ahead) {
    (void)ahead;
    LOAD_SUMS
    for (long k = 0; k < depth; k += 2) {
#pragma GCC unroll 2
        for (int part = 0; part < 2; part++) {
            __m256 row[8];
#pragma GCC unroll 8
            for (int j = 0; j < 2 * vectors; j++)
                row[j] = of_pairs(_mm256_loadu_si256((const void *)(b + k * ldb + 16 * j)), part);
#pragma GCC unroll 6
            for (int i = 0; i < rows; i++) {
                const __m256 value = _mm256_set1_ps(a[i * lda + k + part]);
#pragma GCC unroll 8
                for (int j = 0; j < 2 * vectors; j++)
                    acc[i][j] = _mm256_fmadd_ps(value, row[j], acc[i][j]);
            }
        }
    }
    STORE_SUMS
}
