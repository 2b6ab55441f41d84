/* The matrix product of all kernels over inner products of fixed shapes. */

#pragma once

#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define PANEL 64     /* columns of a weight panel, keys of a tile */
#define MAX_ROWS 6   /* rows of the inner product */
#define ROW_BLOCK 96 /* rows that pass over a panel together */
#define MAX_HEAD_DIM 256
#define MAX_DEPTH 288 /* of one product: of a depth block, of a head */

typedef uint16_t bf16;
typedef float left_float; /* what the rows of a product are given as */

#ifdef __AMX_BF16__
#define HAS_TILES 1
#define QUERY_BLOCK 64 /* rows that attend together */
#else
#define HAS_TILES 0
#define QUERY_BLOCK 48
#endif

/* The first rows that are multiplied with a panel fetch the next one into the second cache: a group
   of rows one line for every FETCH_STEP inputs, so FETCHING_GROUPS of them the whole panel. */
#define FETCH_STEP 8
#define LINE(type) (64 / (long)sizeof(type))
#define FETCHED(type, depth) ((depth) / FETCH_STEP * LINE(type)) /* by a group */
#define FETCHING_GROUPS(type) (FETCH_STEP * PANEL / LINE(type))
INLINE void fetch(const void *line) { __builtin_prefetch(line, 0, 2); }

#ifdef __AVX512F__
#include "kernels_avx512.h"
#else
#include "kernels_avx2.h"
#endif

/* One function per shape, so that the accumulators stay in registers. */
#define SHAPES(type)                                                                               \
    typedef void (*inner_##type##_fn)(long, const left_##type *, long, const type *, long,         \
                                      float *, long, int, const type *);                           \
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
    static void inner_##type##_##r##_##v(long depth, const left_##type *a, long lda,               \
                                         const type *b, long ldb, float *c, long ldc,              \
                                         int is_first, const type *ahead) {                        \
        if ((v) <= widest(r)) /* the others are never asked for */                                 \
            PRODUCT(type)(r, v, depth, a, lda, b, ldb, c, ldc, is_first, ahead);                   \
    }
#define PRODUCT(type) PRODUCT_##type
#define PRODUCT_float inner_float
#define PRODUCT_bf16 inner_bf16

SHAPES(float)
#if HAS_BF16 && !HAS_TILES
SHAPES(bf16)
#endif

#define PRODUCT_ALL(type, name)                                                                    \
    /* Some rows, `count` at a time. */                                                            \
    INLINE void rows_##type(long rows, long count, long columns, long depth,                       \
                            const left_##type *a, long lda, const type *b, long ldb, float *c,     \
                            long ldc, int is_first, const type *ahead) {                           \
        const long most = 16 * widest(count);                                                      \
        for (long column = 0; column < columns; column += most) {                                  \
            const long vectors = (columns - column >= most ? most : columns - column) / 16;        \
            const long skip = sizeof(type) == 2 ? 2 * column : column;                             \
            for (long row = 0; row < rows; row += count) {                                         \
                const type *fetched = b + skip; /* is cached already */                            \
                if (ahead) fetched = ahead + row / count * FETCHED(type, depth);                   \
                inner_##type##_of[vectors - 1][count - 1](depth, a + row * lda, lda, b + skip,     \
                                                          ldb, c + row * ldc + column, ldc,        \
                                                          is_first, fetched);                      \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    /* c[rows][columns] (+)= a * b for any number of rows and a multiple of 16 columns; groups of  \
       MAX_ROWS fetch from `ahead` on, where there is one */                                       \
    static void name(long rows, long columns, long depth, const left_##type *a, long lda,          \
                     const type *b, long ldb, float *c, long ldc, int is_first,                    \
                     const type *ahead) {                                                          \
        const long rest = rows % MAX_ROWS, whole = rows - rest;                                    \
        if (whole)                                                                                 \
            rows_##type(whole, MAX_ROWS, columns, depth, a, lda, b, ldb, c, ldc, is_first, ahead); \
        if (rest)                                                                                  \
            rows_##type(rest, rest, columns, depth, a + whole * lda, lda, b, ldb, c + whole * ldc, \
                        ldc, is_first, 0);                                                         \
    }
#if COPIES_COLUMNS
/* Many rows share 16 columns that lie together, widened in bfloat16. The order of sums, and so every
   bit, is that of few. */
#define PRODUCT_OF_MANY(type)                                                                      \
    PRODUCT_ALL(type, product_of_few_##type)                                                       \
    static void product_##type(long rows, long columns, long depth, const float *a, long lda,      \
                               const type *b, long ldb, float *c, long ldc, int is_first,          \
                               const type *ahead) {                                                \
        float own[MAX_DEPTH * 16] __attribute__((aligned(64)));                                    \
        if (rows < MANY_ROWS_##type) {                                                             \
            product_of_few_##type(rows, columns, depth, a, lda, b, ldb, c, ldc, is_first, ahead);  \
            return;                                                                                \
        }                                                                                          \
        for (long column = 0; column < columns; column += 16) {                                    \
            put_columns_##type(own, b, column, ldb, depth);                                        \
            product_of_few_float(rows, 16, depth, a, lda, own, 16, c + column, ldc, is_first, 0);  \
        }                                                                                          \
    }
PRODUCT_OF_MANY(float)
PRODUCT_OF_MANY(bf16)
#else
PRODUCT_ALL(float, product_float)
#if HAS_TILES
#include "kernels_amx.h"
#elif HAS_BF16
PRODUCT_ALL(bf16, product_bf16)
#endif
#endif

/* Rows that threads share out, at least; depth that is multiplied in one go. */
#define GROUP_float MAX_ROWS
#define DEPTH_BLOCK_float DEPTH_BLOCK
#if !HAS_TILES
#define GROUP_bf16 MAX_ROWS
#define DEPTH_BLOCK_bf16 DEPTH_BLOCK
INLINE void release_tiles(void) {}
#endif

/* ---- numbers ---- */

/* Of what is below the smallest normal number, that number; what is not a number stays none. */
INLINE vec exp_ps(vec x) {
    x = vec_max(vec_set(-87.0f), x);
    const vec n = vec_round(vec_mul(x, vec_set(1.44269504f)));
    vec r = vec_fnma(n, vec_set(0.693359375f), x);
    r = vec_fnma(n, vec_set(-2.12194440e-4f), r);
    vec p = vec_set(1.9875691500e-4f);
    p = vec_fma(p, r, vec_set(1.3981999507e-3f));
    p = vec_fma(p, r, vec_set(8.3334519073e-3f));
    p = vec_fma(p, r, vec_set(4.1665795894e-2f));
    p = vec_fma(p, r, vec_set(1.6666665459e-1f));
    p = vec_fma(p, r, vec_set(5.0000001201e-1f));
    p = vec_fma(p, vec_mul(r, r), vec_add(r, vec_set(1.0f)));
    return vec_scale(p, n);
}

/* 2^x, within 3e-6 of it: half the work, and far finer than bfloat16. */
INLINE vec exp2_ps(vec x) {
    const vec r = vec_above_floor(x);
    vec p = vec_set(1.353416424e-2f);
    p = vec_fma(p, r, vec_set(5.201147175e-2f));
    p = vec_fma(p, r, vec_set(2.414427470e-1f));
    p = vec_fma(p, r, vec_set(6.930038374e-1f));
    p = vec_fma(p, r, vec_set(1.000002593f));
    return vec_scale_floor(p, x);
}
#define LOG2_E 1.44269504f
INLINE vec exp_float(vec x) { return exp_ps(x); }
INLINE vec exp_bf16(vec x) { return exp2_ps(vec_mul(x, vec_set(LOG2_E))); }
