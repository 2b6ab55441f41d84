/* Copies runs of bytes between mapped segments piece by piece, with xxh3 on the way.
 *
 * Python calls it without the GIL. The hash is the xxhash library's own: its functions come as
 * pointers. A piece is small enough to be in the core's cache still when it is hashed. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct {
    uint64_t to;
    uint64_t from;
    uint64_t bytes;
    uint64_t generation;    /* the use of the source that is meant */
    uint64_t generation_at; /* address of the number of its use now; 0: not looked at */
    uint64_t digest;        /* out */
} run_t;

typedef struct {
    int (*reset)(void *);
    int (*update)(void *, const void *, size_t);
    uint64_t (*digest)(const void *);
    void *state;
} hash_t;

#define EXPORT __attribute__((visibility("default")))

static int holds(const run_t *run)
{
    return !run->generation_at
        || __atomic_load_n((const uint64_t *)run->generation_at, __ATOMIC_ACQUIRE)
        == run->generation;
}

#if defined(__x86_64__)
/* Stores that go around the cache: memory is written once instead of read and written. */
__attribute__((target("avx512f"))) static void stream_512(char *to, const char *from, size_t bytes)
{
    for (; bytes >= 256; bytes -= 256, to += 256, from += 256) {
        _mm_prefetch(from + 2048, _MM_HINT_T0);
        _mm_prefetch(from + 2112, _MM_HINT_T0);
        _mm_prefetch(from + 2176, _MM_HINT_T0);
        _mm_prefetch(from + 2240, _MM_HINT_T0);
        __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
        __m512i c = _mm512_loadu_si512(from + 128), d = _mm512_loadu_si512(from + 192);
        _mm512_stream_si512((void *)to, a);
        _mm512_stream_si512((void *)(to + 64), b);
        _mm512_stream_si512((void *)(to + 128), c);
        _mm512_stream_si512((void *)(to + 192), d);
    }
    memcpy(to, from, bytes);
}

__attribute__((target("avx2"))) static void stream_256(char *to, const char *from, size_t bytes)
{
    for (; bytes >= 128; bytes -= 128, to += 128, from += 128) {
        _mm_prefetch(from + 2048, _MM_HINT_T0);
        _mm_prefetch(from + 2112, _MM_HINT_T0);
        __m256i a = _mm256_loadu_si256((const void *)from);
        __m256i b = _mm256_loadu_si256((const void *)(from + 32));
        __m256i c = _mm256_loadu_si256((const void *)(from + 64));
        __m256i d = _mm256_loadu_si256((const void *)(from + 96));
        _mm256_stream_si256((void *)to, a);
        _mm256_stream_si256((void *)(to + 32), b);
        _mm256_stream_si256((void *)(to + 64), c);
        _mm256_stream_si256((void *)(to + 96), d);
    }
    memcpy(to, from, bytes);
}
#endif

static void copy_piece(char *to, const char *from, size_t bytes, int around_cache)
{
#if defined(__x86_64__)
    if (around_cache && bytes >= 4096) {
        size_t head = -(uintptr_t)to & 63;
        memcpy(to, from, head);
        if (__builtin_cpu_supports("avx512f")) {
            stream_512(to + head, from + head, bytes - head);
            return;
        }
        if (__builtin_cpu_supports("avx2")) {
            stream_256(to + head, from + head, bytes - head);
            return;
        }
    }
#endif
    memcpy(to, from, bytes);
}

static void settle(int around_cache)
{
#if defined(__x86_64__)
    if (around_cache)
        _mm_sfence(); /* before anybody is told that the bytes are there */
#endif
}

/* How many leading runs are whole and were the same use of their source before and after.
 *
 * The piece is hashed where it is in the cache: at its new place, or at the old one where the
 * stores went around the cache. */
EXPORT int64_t moonpool_copy(
    run_t *runs, int64_t num_runs, int64_t piece_bytes, int around_cache, const hash_t *hash,
    const volatile int32_t *stop)
{
    for (int64_t number = 0; number < num_runs; number++) {
        run_t *run = &runs[number];
        char *to = (char *)run->to;
        const char *from = (const char *)run->from;
        if (!holds(run))
            return number;
        if (hash)
            hash->reset(hash->state);
        for (uint64_t at = 0; at < run->bytes; at += piece_bytes) {
            if (*stop)
                return number;
            uint64_t left = run->bytes - at;
            size_t bytes = left < (uint64_t)piece_bytes ? left : (uint64_t)piece_bytes;
            copy_piece(to + at, from + at, bytes, around_cache);
            if (hash)
                hash->update(hash->state, (around_cache ? from : to) + at, bytes);
        }
        settle(around_cache);
        if (!holds(run))
            return number;
        if (hash)
            run->digest = hash->digest(hash->state);
    }
    return num_runs;
}
