/* Matrix products and attention for CPUs with AMX, AVX-512 or AVX2, in float32 and bfloat16.

   Every element of a result is accumulated in one fixed order that depends on nothing but its own
   row: not on how many rows there are, on where a chunk begins, or on the number of threads.
   Built with -ffp-contract=off; fused operations are written out. */

#include "kernels_linear.h"

/* ---- packed K and V: per K/V head a run of tiles, each K [dim][64 keys], V [64 keys][dim];
        in bfloat16 neighbours along the summed dimension are interleaved ---- */

INLINE void put_float(float *tile, long key, long dim, const float *k, const float *v) {
    for (long d = 0; d < dim; d++) tile[d * PANEL + key] = k[d];
    memcpy(tile + dim * PANEL + key * dim, v, dim * sizeof(float));
}
INLINE void put_bf16(bf16 *tile, long key, long dim, const bf16 *k, const bf16 *v) {
    for (long d = 0; d < dim; d += 2) memcpy(tile + d * PANEL + 2 * key, k + d, 4);
    bf16 *values = tile + dim * PANEL + key / 2 * 2 * dim + key % 2;
    for (long d = 0; d < dim; d++) values[2 * d] = v[d];
    if (key % 2 == 0) /* its partner may be stale; zero until it is written */
        for (long d = 0; d < dim; d++) values[2 * d + 1] = 0;
}

/* 16 keys, the first a multiple of 16. */
INLINE void put16_float(float *tile, long key, long dim, const float *k, long ks, const float *v,
                        long vs) {
    put_keys_16((int32_t *)tile + key, PANEL, dim, k, ks * (long)sizeof(float));
    for (long i = 0; i < 16; i++)
        memcpy(tile + dim * PANEL + (key + i) * dim, v + i * vs, dim * sizeof(float));
}
INLINE void put16_bf16(bf16 *tile, long key, long dim, const bf16 *k, long ks, const bf16 *v,
                       long vs) {
    put_keys_16((int32_t *)tile + key, PANEL, dim / 2, k, ks * (long)sizeof(bf16));
    for (long i = 0; i < 16; i += 2)
        for (long d = 0; d < dim; d += 16)
            put_interleaved_16(tile + dim * PANEL + (key + i) * dim + 2 * d, v + i * vs + d,
                               v + (i + 1) * vs + d);
}

#define PACK(type)                                                                                 \
    EXPORT void pack_##type(const type *keys, const type *values, long stride, type *packed,       \
                            long head_stride, long first, long count, long heads, long dim,        \
                            int threads) {                                                         \
        const long tiles = (first + count - 1) / PANEL - first / PANEL + 1;                        \
        _Pragma("omp parallel for schedule(static) num_threads(threads)                            \
                if (threads > 1 && count >= PANEL)")                                               \
        for (long item = 0; item < heads * tiles; item++) {                                        \
            const long head = item / tiles, at = first / PANEL + item % tiles;                     \
            const long end = first + count < (at + 1) * PANEL ? first + count : (at + 1) * PANEL;  \
            type *tile = packed + head * head_stride + at * 2 * PANEL * dim;                       \
            for (long key = first > at * PANEL ? first : at * PANEL; key < end;) {                 \
                const long from = (key - first) * stride + head * dim;                             \
                if (key % 16 == 0 && end - key >= 16) {                                            \
                    put16_##type(tile, key % PANEL, dim, keys + from, stride, values + from,       \
                                 stride);                                                          \
                    key += 16;                                                                     \
                } else {                                                                           \
                    put_##type(tile, key % PANEL, dim, keys + from, values + from);                \
                    key++;                                                                         \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
PACK(float)
PACK(bf16)

/* ---- attention of some rows of one head over its tiles ---- */

typedef struct {
    float scores[QUERY_BLOCK * PANEL];
    float out[QUERY_BLOCK * MAX_HEAD_DIM];
    float sums[QUERY_BLOCK * 16];
    float largest[QUERY_BLOCK];
#if WIDENS_BF16
    float query[QUERY_BLOCK * MAX_HEAD_DIM];
#else
    bf16 weights[QUERY_BLOCK * PANEL];
#endif
} __attribute__((aligned(64))) scratch_t;

#define NO_SCORE -1e30f /* below all of them, and finite: masked tiles may come first */
/* Scores are powers of e, or in bfloat16 of 2. */
INLINE float scale_float(float scale) { return scale; }
INLINE float scale_bf16(float scale) { return scale * LOG2_E; }
INLINE vec power_float(vec x) { return exp_ps(x); }
INLINE vec power_bf16(vec x) { return exp2_ps(x); }

INLINE void put_weights_float(scratch_t *s, long row, long j, vec p) {
    vec_store(s->scores + row * PANEL + j, p);
}
INLINE const float *weights_float(scratch_t *s) { return s->scores; }
INLINE const float *query_float(scratch_t *s, const float *query, long *ld, long rows, long dim) {
    (void)s, (void)ld, (void)rows, (void)dim;
    return query;
}
#if WIDENS_BF16
INLINE void put_weights_bf16(scratch_t *s, long row, long j, vec p) {
    put_weights_float(s, row, j, p);
}
INLINE const float *weights_bf16(scratch_t *s) { return s->scores; }
INLINE const float *query_bf16(scratch_t *s, const bf16 *query, long *ld, long rows, long dim) {
    for (long row = 0; row < rows; row++)
        left_of_bf16(query + row * *ld, s->query + row * dim, dim);
    *ld = dim;
    return s->query;
}
#elif HAS_BF16
INLINE void put_weights_bf16(scratch_t *s, long row, long j, vec p) {
    store_bf16(s->weights + row * PANEL + j, ALL_LANES, p);
}
INLINE const bf16 *weights_bf16(scratch_t *s) { return s->weights; }
INLINE const bf16 *query_bf16(scratch_t *s, const bf16 *query, long *ld, long rows, long dim) {
    (void)s, (void)ld, (void)rows, (void)dim;
    return query;
}
#endif

#define ATTEND_ROWS(type)                                                                          \
    /* Scores of one row and tile to weights; sums and output so far to the new largest score. */  \
    INLINE void soften_##type(scratch_t *s, long row, long visible, long window, long dim,         \
                              float scale, const int is_first, const int is_whole) {               \
        vec score[4], top = vec_set(s->largest[row]);                                              \
        lanes mask[4];                                                                             \
        for (int j = 0; j < 4; j++) {                                                              \
            score[j] = vec_load(s->scores + row * PANEL + 16 * j);                                 \
            if (is_whole) {                                                                        \
                top = vec_max(top, score[j]);                                                      \
                continue;                                                                          \
            }                                                                                      \
            mask[j] = first_lanes(visible - 16 * j) &                                              \
                      (lanes)~first_lanes(visible - window - 16 * j);                              \
            top = vec_max_where(mask[j], top, score[j]);                                           \
        }                                                                                          \
        vec sum = vec_load(s->sums + row * 16);                                                    \
        if (is_first || vec_any_above(top, vec_set(s->largest[row]))) {                            \
            const float largest = vec_top(top);                                                    \
            if (!is_first) {                                                                       \
                const vec shrink = power_##type(vec_set((s->largest[row] - largest) * scale));     \
                sum = vec_mul(sum, shrink);                                                        \
                for (long d = 0; d < dim; d += 16) {                                               \
                    float *at = s->out + row * dim + d;                                            \
                    vec_store(at, vec_mul(vec_load(at), shrink));                                  \
                }                                                                                  \
            }                                                                                      \
            s->largest[row] = largest;                                                             \
        }                                                                                          \
        const vec factor = vec_set(scale), shift = vec_set(s->largest[row] * scale);               \
        for (int j = 0; j < 4; j++) {                                                              \
            vec p = power_##type(vec_fms(score[j], factor, shift));                                \
            if (!is_whole) p = vec_where(mask[j], p);                                              \
            sum = vec_add(sum, p);                                                                 \
            put_weights_##type(s, row, 16 * j, p);                                                 \
        }                                                                                          \
        vec_store(s->sums + row * 16, sum);                                                        \
    }                                                                                              \
    /* Row i is at position + i * step and sees `window` keys, its own the last of them. */        \
    static void attend_rows_##type(const type *query, long ldq, long rows, long position,          \
                                   long step, long window, const type *packed, long dim,           \
                                   float scale, type *out, long ldo, scratch_t *s) {               \
        const long first = position + 1 > window ? (position + 1 - window) / PANEL : 0;            \
        scale = scale_##type(scale);                                                               \
        const long last = position + (rows - 1) * step;                                            \
        const left_##type *left = query_##type(s, query, &ldq, rows, dim);                         \
        for (long row = 0; row < rows; row++) {                                                    \
            s->largest[row] = NO_SCORE;                                                            \
            vec_store(s->sums + row * 16, vec_zero());                                             \
        }                                                                                          \
        for (long tile = first; tile * PANEL <= last; tile++) {                                    \
            const type *keys = packed + tile * 2 * PANEL * dim, *values = keys + PANEL * dim;      \
            const long seen = last + 1 - tile * PANEL;                                             \
            long depth = seen < PANEL ? seen : PANEL;                                              \
            const long columns = (depth + 15) / 16 * 16; /* the rest is masked out */              \
            if (sizeof(type) == 2) depth = (depth + 1) / 2 * 2;                                    \
            product_##type(rows, columns, dim, left, ldq, keys, PANEL, s->scores, PANEL, 1, 0);    \
            for (long row = 0; row < rows; row++) {                                                \
                const long visible = position + row * step + 1 - tile * PANEL;                     \
                if (visible >= PANEL && visible <= window)                                         \
                    soften_##type(s, row, visible, window, dim, scale, tile == first, 1);          \
                else                                                                               \
                    soften_##type(s, row, visible, window, dim, scale, tile == first, 0);          \
            }                                                                                      \
            product_##type(rows, dim, depth, weights_##type(s), PANEL, values, dim, s->out, dim,   \
                           tile == first, 0);                                                      \
        }                                                                                          \
        for (long row = 0; row < rows; row++) {                                                    \
            const float sum = vec_sum(vec_load(s->sums + row * 16));                               \
            for (long d = 0; d < dim; d += 16)                                                     \
                store_##type(out + row * ldo + d, ALL_LANES,                                       \
                             vec_div(vec_load(s->out + row * dim + d), vec_set(sum)));             \
        }                                                                                          \
    }

#define ATTEND(type)                                                                               \
    ATTEND_ROWS(type)                                                                              \
    /* A run of queries of one sequence, the first at `position`. */                               \
    EXPORT void attend_run_##type(const type *query, long query_stride, const type *packed,        \
                                  long head_stride,                                                \
                                  type *out, long rows, long position, long window, long heads,    \
                                  long kv_heads, long dim, float scale, int threads) {             \
        const long blocks = (rows + QUERY_BLOCK - 1) / QUERY_BLOCK, ld = heads * dim;              \
        _Pragma("omp parallel num_threads(threads) if (threads > 1)") {                            \
            _Pragma("omp for schedule(dynamic) nowait")                                            \
            for (long item = 0; item < heads * blocks; item++) {                                   \
                scratch_t scratch;                                                                 \
                /* The longest rows first, so that threads end together. */                        \
                const long head = item % heads, first = (blocks - 1 - item / heads) * QUERY_BLOCK; \
                const long count = rows - first < QUERY_BLOCK ? rows - first : QUERY_BLOCK;        \
                attend_rows_##type(query + first * query_stride + head * dim, query_stride, count, \
                                   position + first, 1, window,                                    \
                                   packed + head / (heads / kv_heads) * head_stride, dim, scale,   \
                                   out + first * ld + head * dim, ld, &scratch);                   \
            }                                                                                      \
            release_tiles();                                                                       \
        }                                                                                          \
    }                                                                                              \
    /* One token of each of several sequences: its K and V are appended, then it attends. */       \
    EXPORT void attend_each_##type(const type *query, const type *keys, const type *values,        \
                                   long query_stride, long stride, type *const *packed,            \
                                   const int64_t *head_strides,                                    \
                                   const int64_t *positions, type *out, long sequences,            \
                                   long window, long heads, long kv_heads, long dim, float scale,  \
                                   int threads) {                                                  \
        const long group = heads / kv_heads;                                                       \
        _Pragma("omp parallel num_threads(threads) if (threads > 1)") {                            \
            _Pragma("omp for schedule(dynamic) nowait")                                            \
            for (long item = 0; item < sequences * kv_heads; item++) {                             \
                scratch_t scratch;                                                                 \
                const long sequence = item / kv_heads, head = item % kv_heads;                     \
                const long at = head * group * dim, position = positions[sequence];                \
                type *tiles = packed[sequence] + head * head_strides[sequence];                    \
                put_##type(tiles + position / PANEL * 2 * PANEL * dim, position % PANEL, dim,      \
                           keys + sequence * stride + head * dim,                                  \
                           values + sequence * stride + head * dim);                               \
                attend_rows_##type(query + sequence * query_stride + at, dim, group, position, 0,  \
                                   window, tiles, dim, scale, out + sequence * heads * dim + at,   \
                                   dim, &scratch);                                                 \
            }                                                                                      \
            release_tiles();                                                                       \
        }                                                                                          \
    }
ATTEND(float)
#if HAS_BF16
ATTEND(bf16)
#endif

/* ---- out = x / rms(x) * weight ---- */

#define RMS_NORM(type)                                                                             \
    EXPORT void rms_norm_##type(const type *x, const type *weight, type *out, long rows,           \
                                long columns, float eps, int threads) {                            \
        _Pragma("omp parallel for schedule(static) num_threads(threads)                            \
                if (threads > 1 && rows >= SHARED_ROWS)")                                          \
        for (long row = 0; row < rows; row++) {                                                    \
            vec squares = vec_zero();                                                              \
            for (long j = 0; j < columns; j += 16) {                                               \
                const vec v = load_##type(x + row * columns + j, first_lanes(columns - j));        \
                squares = vec_fma(v, v, squares);                                                  \
            }                                                                                      \
            const float mean = vec_sum(squares) / (float)columns + eps;                            \
            const vec factor = vec_div(vec_set(1.0f),                                              \
                                                vec_sqrt(vec_set(mean)));                          \
            for (long j = 0; j < columns; j += 16) {                                               \
                const lanes mask = first_lanes(columns - j);                                       \
                const vec v = load_##type(x + row * columns + j, mask);                            \
                store_##type(out + row * columns + j, mask,                                        \
                             vec_mul(vec_mul(v, factor),                                           \
                                           load_##type(weight + j, mask)));                        \
            }                                                                                      \
        }                                                                                          \
    }
RMS_NORM(float)
#if HAS_BF16
RMS_NORM(bf16)
#endif

/* ---- rotary embedding, in place, of the first `heads` of each row's `all_heads` ---- */

#define ROTATE(type)                                                                               \
    EXPORT void rotate_##type(type *rows, const type *cos, const type *sin, long count,            \
                              long heads, long all_heads, long dim, int threads) {                 \
        const long half = dim / 2;                                                                 \
        _Pragma("omp parallel for schedule(static) num_threads(threads)                            \
                if (threads > 1 && count >= SHARED_ROWS)")                                         \
        for (long row = 0; row < count; row++)                                                     \
            for (long head = 0; head < heads; head++) {                                            \
                type *at = rows + (row * all_heads + head) * dim;                                  \
                for (long d = 0; d < half; d += 16) {                                              \
                    const lanes mask = first_lanes(half - d);                                      \
                    const vec c = load_##type(cos + row * half + d, mask);                         \
                    const vec s = load_##type(sin + row * half + d, mask);                         \
                    const vec re = load_##type(at + d, mask);                                      \
                    const vec im = load_##type(at + half + d, mask);                               \
                    store_##type(at + d, mask, vec_fms(re, c, vec_mul(im, s)));                    \
                    store_##type(at + half + d, mask,                                              \
                                 vec_fma(im, c, vec_mul(re, s)));                                  \
                }                                                                                  \
            }                                                                                      \
    }
ROTATE(float)
#if HAS_BF16
ROTATE(bf16)
#endif
