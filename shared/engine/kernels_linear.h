/* Products with weights in panels, and what follows them at once. */

#pragma once

#include "kernels_product.h"

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_num_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

/* ---- rows as a product takes them: as they are, or widened into `room` ---- */

INLINE const float *left_of_float(const float *from, float *room, long count) {
    (void)room, (void)count;
    return from;
}
#if WIDENS_BF16
INLINE const float *left_of_bf16(const bf16 *from, float *room, long count) {
    for (long j = 0; j < count; j += 16) {
        const lanes mask = first_lanes(count - j);
        store_float(room + j, mask, load_bf16(from + j, mask));
    }
    return room;
}
#elif HAS_BF16
INLINE const bf16 *left_of_bf16(const bf16 *from, float *room, long count) {
    (void)room, (void)count;
    return from;
}
#endif
#define SHARED_ROWS 16 /* fewer are not worth a second thread */
#define IS_WIDENED(type) (sizeof(left_##type) != sizeof(type))

/* ---- linear: out[rows][columns] = x[rows][depth] * panels (+ bias) (+ residual); `wide` has room
        for x in float32 where bfloat16 is widened ---- */

/* Rows times one of the panels: sums in float32. `group` counts groups of rows before the first. */
#define PANEL_SUMS(type)                                                                           \
    INLINE void sums_##type(const left_##type *x, const type *weights, float *acc, long count,     \
                            long depth, long group) {                                              \
        const long most = DEPTH_BLOCK_##type;                                                      \
        for (long k = 0; k < depth; k += most) {                                                   \
            const long deep = depth - k < most ? depth - k : most;                                 \
            const type *ahead = weights + (depth + k) * PANEL + group * FETCHED(type, deep);       \
            product_##type(count, PANEL, deep, x + k, depth, weights + k * PANEL, PANEL, acc,      \
                           PANEL, k == 0, group < FETCHING_GROUPS(type) ? ahead : 0);              \
        }                                                                                          \
    }

/* All threads get equally many rows of panels, in runs: `each` is done to `count` rows, at most
   ROW_BLOCK, from `first` on, of `panel`. */
#define EACH_PANEL(type, each)                                                                     \
    const long groups = (rows + GROUP_##type - 1) / GROUP_##type;                                  \
    const left_##type *left = IS_WIDENED(type) ? (const void *)wide : (const void *)x;             \
    _Pragma("omp parallel num_threads(threads) if (threads > 1)") {                                \
        if (IS_WIDENED(type)) {                                                                    \
            _Pragma("omp for schedule(static)")                                                    \
            for (long row = 0; row < rows; row++)                                                  \
                left_of_##type(x + row * depth, wide + row * depth, depth);                        \
        }                                                                                          \
        const long me = omp_get_thread_num(), all = omp_get_num_threads();                         \
        const long end = num_panels * groups * (me + 1) / all;                                     \
        for (long at = num_panels * groups * me / all, run; at < end; at += run) {                 \
            const long panel = at / groups, group = at % groups, first = group * GROUP_##type;     \
            run = groups - group < end - at ? groups - group : end - at;                           \
            if (run > ROW_BLOCK / GROUP_##type) run = ROW_BLOCK / GROUP_##type;                    \
            const long last = first + run * GROUP_##type;                                          \
            const long count = (last < rows ? last : rows) - first;                                \
            each;                                                                                  \
        }                                                                                          \
        release_tiles();                                                                           \
    }

#define LINEAR(type)                                                                               \
    PANEL_SUMS(type)                                                                               \
    static void panel_##type(const left_##type *x, const type *weights, const type *bias,          \
                             const type *residual, type *out, long panel, long first, long count,  \
                             long columns, long depth) {                                           \
        float acc[ROW_BLOCK * PANEL] __attribute__((aligned(64)));                                 \
        sums_##type(x + first * depth, weights + panel * depth * PANEL, acc, count, depth,         \
                    first / GROUP_##type);                                                         \
        for (long row = 0; row < count; row++)                                                     \
            for (long j = 0; j < PANEL; j += 16) {                                                 \
                const long column = panel * PANEL + j;                                             \
                const lanes mask = first_lanes(columns - column);                                  \
                const long at = (first + row) * columns + column;                                  \
                vec value = vec_load(acc + row * PANEL + j);                                       \
                if (bias) value = vec_add(value, load_##type(bias + column, mask));                \
                if (residual) value = vec_add(value, load_##type(residual + at, mask));            \
                store_##type(out + at, mask, value);                                               \
            }                                                                                      \
    }                                                                                              \
    EXPORT void linear_##type(const type *x, float *wide, const type *panels, const type *bias,    \
                              const type *residual, type *out, long rows, long columns,            \
                              long depth, int threads) {                                           \
        const long num_panels = (columns + PANEL - 1) / PANEL;                                     \
        EACH_PANEL(type, panel_##type(left, panels, bias, residual, out, panel, first, count,      \
                                      columns, depth))                                             \
    }
LINEAR(float)
#if HAS_BF16
LINEAR(bf16)
#endif

/* ---- out = silu(gate) * up ---- */

#define SILU_UP(type)                                                                              \
    INLINE vec silu_times_##type(vec gate, vec up) {                                               \
        const vec negative = vec_sub(vec_zero(), gate);                                            \
        const vec below = vec_add(vec_set(1.0f), exp_##type(vec_min(negative, vec_set(88.0f))));   \
        return vec_mul(vec_div(gate, below), up);                                                  \
    }                                                                                              \
    /* From rows of [gate, up]. */                                                                 \
    EXPORT void silu_up_##type(const type *gate_up, type *out, long rows, long columns,            \
                               int threads) {                                                      \
        _Pragma("omp parallel for schedule(static) num_threads(threads)                            \
                if (threads > 1 && rows >= SHARED_ROWS)")                                          \
        for (long row = 0; row < rows; row++)                                                      \
            for (long j = 0; j < columns; j += 16) {                                               \
                const lanes mask = first_lanes(columns - j);                                       \
                const type *at = gate_up + row * 2 * columns + j;                                  \
                const vec gate = load_##type(at, mask), up = load_##type(at + columns, mask);      \
                store_##type(out + row * columns + j, mask, silu_times_##type(gate, up));          \
            }                                                                                      \
    }                                                                                              \
    static void silu_panel_##type(const left_##type *x, const type *gates, const type *ups,        \
                                  type *out, long panel, long first, long count, long columns,     \
                                  long depth) {                                                    \
        float gate[ROW_BLOCK * PANEL] __attribute__((aligned(64)));                                \
        float up[ROW_BLOCK * PANEL] __attribute__((aligned(64)));                                  \
        sums_##type(x + first * depth, gates + panel * depth * PANEL, gate, count, depth,          \
                    first / GROUP_##type);                                                         \
        sums_##type(x + first * depth, ups + panel * depth * PANEL, up, count, depth,              \
                    first / GROUP_##type);                                                         \
        for (long row = 0; row < count; row++)                                                     \
            for (long j = 0; j < PANEL; j += 16) {                                                 \
                const vec a = rounded_##type(vec_load(gate + row * PANEL + j));                    \
                const vec b = rounded_##type(vec_load(up + row * PANEL + j));                      \
                store_##type(out + (first + row) * columns + panel * PANEL + j, ALL_LANES,         \
                             silu_times_##type(a, b));                                             \
            }                                                                                      \
    }                                                                                              \
    /* The same, to the bit, of x times panels of gate and then up, whole panels each. */          \
    EXPORT void linear_silu_up_##type(const type *x, float *wide, const type *panels, type *out,   \
                                      long rows, long columns, long depth, int threads) {          \
        const long num_panels = columns / PANEL;                                                   \
        EACH_PANEL(type, silu_panel_##type(left, panels, panels + columns * depth, out, panel,     \
                                           first, count, columns, depth))                          \
    }
SILU_UP(float)
#if HAS_BF16
SILU_UP(bf16)
#endif
