/* The product in bfloat16 on the matrix units of AMX.

   A tile has 16 rows of 64 bytes. One instruction sums 32 inputs of a row, even and odd ones apart
   and in order, then adds both to the row's sums: a row's bits depend on that row alone. */

#pragma once

#define TILE_ROWS 16
#define TILE_DEPTH 32
#define TILE_COLUMNS 16
#define DEPTH_BLOCK_bf16 192 /* of a panel: 24 KB, which stay in the first cache for all rows */
#define GROUP_bf16 (2 * TILE_ROWS)
#define DEPTH_AHEAD 64 /* how much deeper few rows fetch columns, since they wait for memory */

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((packed, aligned(64))) tile_shapes_t;

static __thread long configured_rows; /* of sums and of rows; 0: this thread has no tiles */

/* Older versions of gcc take tile loads for no reads of memory, and leave out or move what was
   written for them. */
INLINE void let_tiles_see_memory(void) { __asm__ volatile("" ::: "memory"); }

/* Tiles 0 to 3 hold sums, 4 rows, 5 columns or (all 16 rows high) more rows, 6 and 7 columns. */
INLINE void configure_tiles(long rows) {
    if (configured_rows == rows) return;
    tile_shapes_t shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shapes.row_bytes[tile] = 64;
        shapes.rows[tile] = tile < 5 ? (uint8_t)rows : TILE_ROWS;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes)); /* all of it, which older intrinsics forget */
    configured_rows = rows;
}

/* At the end of a parallel region: tiles in use make every switch of threads slower. */
INLINE void release_tiles(void) {
    if (configured_rows) _tile_release();
    configured_rows = 0;
}

/* What is left of the depth, filled up with zeros to whole tiles. */
typedef struct {
    bf16 rows[2 * TILE_ROWS * TILE_DEPTH], columns[TILE_DEPTH * MAX_HEAD_DIM];
} __attribute__((aligned(64))) tail_t;

INLINE void put_tail_rows(tail_t *tail, const bf16 *a, long lda, long count, long rest) {
    memset(tail->rows, 0, sizeof tail->rows);
    for (long row = 0; row < count; row++)
        memcpy(tail->rows + row * TILE_DEPTH, a + row * lda, rest * sizeof(bf16));
}

INLINE void put_tail_columns(tail_t *tail, const bf16 *b, long ldb, long columns, long rest) {
    memset(tail->columns, 0, TILE_DEPTH * columns * sizeof(bf16));
    for (long pair = 0; pair < rest / 2; pair++)
        memcpy(tail->columns + 2 * pair * columns, b + 2 * pair * ldb, 2 * columns * sizeof(bf16));
}

#define SUMS(tile, at)                                                                             \
    do {                                                                                           \
        if (is_first)                                                                              \
            _tile_zero(tile);                                                                      \
        else                                                                                       \
            _tile_loadd(tile, at, 4 * ldc);                                                        \
    } while (0)

/* 32 rows, 32 columns. */
static void tiles_2_2(long depth, const bf16 *a, long lda, const bf16 *b, long ldb, float *c,
                      long ldc, int is_first, const bf16 *tail_rows, const bf16 *tail_columns,
                      long tail_ldb, const bf16 *ahead) {
    float *below = c + TILE_ROWS * ldc;
    let_tiles_see_memory();
    SUMS(0, c);
    SUMS(1, c + TILE_COLUMNS);
    SUMS(2, below);
    SUMS(3, below + TILE_COLUMNS);
#define STEP_2_2(a, lda, b, ldb)                                                                   \
    _tile_loadd(6, b, 4 * (ldb));                                                                  \
    _tile_loadd(4, a, 2 * (lda));                                                                  \
    _tile_dpbf16ps(0, 4, 6);                                                                       \
    _tile_loadd(7, (b) + 2 * TILE_COLUMNS, 4 * (ldb));                                             \
    _tile_dpbf16ps(1, 4, 7);                                                                       \
    _tile_loadd(5, (a) + TILE_ROWS * (lda), 2 * (lda));                                            \
    _tile_dpbf16ps(2, 5, 6);                                                                       \
    _tile_dpbf16ps(3, 5, 7)
    for (long k = 0; k < depth; k += TILE_DEPTH, ahead += 2 * LINE(bf16)) {
        fetch(ahead);
        fetch(ahead + LINE(bf16));
        STEP_2_2(a + k, lda, b + k * ldb, ldb);
    }
    if (tail_rows) {
        STEP_2_2(tail_rows, TILE_DEPTH, tail_columns, tail_ldb);
    }
    _tile_stored(0, c, 4 * ldc);
    _tile_stored(1, c + TILE_COLUMNS, 4 * ldc);
    _tile_stored(2, below, 4 * ldc);
    _tile_stored(3, below + TILE_COLUMNS, 4 * ldc);
}

/* 32 deep of 64 columns. What is not there is not fetched either. */
INLINE void fetch_columns(const bf16 *b) {
    for (long line = 0; line < TILE_DEPTH * PANEL / 32; line++)
        _mm_prefetch((const char *)b + 64 * line, _MM_HINT_T0);
}

/* As many rows as are configured, `tiles` times 16 columns. */
INLINE void tiles_1(const int tiles, long depth, const bf16 *a, long lda, const bf16 *b, long ldb,
                    float *c, long ldc, int is_first, const bf16 *tail_rows,
                    const bf16 *tail_columns, long tail_ldb) {
    let_tiles_see_memory();
    SUMS(0, c);
    if (tiles > 1) SUMS(1, c + TILE_COLUMNS);
    if (tiles > 2) SUMS(2, c + 2 * TILE_COLUMNS);
    if (tiles > 3) SUMS(3, c + 3 * TILE_COLUMNS);
#define STEP_1(a, lda, b, ldb)                                                                     \
    _tile_loadd(4, a, 2 * (lda));                                                                  \
    _tile_loadd(5, b, 4 * (ldb));                                                                  \
    _tile_dpbf16ps(0, 4, 5);                                                                       \
    if (tiles > 1) {                                                                               \
        _tile_loadd(6, (b) + 2 * TILE_COLUMNS, 4 * (ldb));                                         \
        _tile_dpbf16ps(1, 4, 6);                                                                   \
    }                                                                                              \
    if (tiles > 2) {                                                                               \
        _tile_loadd(7, (b) + 4 * TILE_COLUMNS, 4 * (ldb));                                         \
        _tile_dpbf16ps(2, 4, 7);                                                                   \
    }                                                                                              \
    if (tiles > 3) {                                                                               \
        _tile_loadd(5, (b) + 6 * TILE_COLUMNS, 4 * (ldb));                                         \
        _tile_dpbf16ps(3, 4, 5);                                                                   \
    }
    for (long k = 0; k < depth; k += TILE_DEPTH) {
        fetch_columns(b + (k + DEPTH_AHEAD) * ldb);
        STEP_1(a + k, lda, b + k * ldb, ldb)
    }
    if (tail_rows) {
        STEP_1(tail_rows, TILE_DEPTH, tail_columns, tail_ldb)
    }
    _tile_stored(0, c, 4 * ldc);
    if (tiles > 1) _tile_stored(1, c + TILE_COLUMNS, 4 * ldc);
    if (tiles > 2) _tile_stored(2, c + 2 * TILE_COLUMNS, 4 * ldc);
    if (tiles > 3) _tile_stored(3, c + 3 * TILE_COLUMNS, 4 * ldc);
}

/* At most 16 rows. */
INLINE void product_of_tile(long rows, long columns, long depth, long rest, const bf16 *a, long lda,
                            const bf16 *b, long ldb, float *c, long ldc, int is_first,
                            tail_t *tail, long tail_ldb, const bf16 *tail_columns) {
    configure_tiles(rows);
    const bf16 *tail_rows = rest ? tail->rows : 0;
    if (rest) put_tail_rows(tail, a + depth, lda, rows, rest);
    for (long column = 0; column < columns; column += 4 * TILE_COLUMNS) {
        const long tiles = (columns - column) / TILE_COLUMNS;
#define TILES(count)                                                                               \
    tiles_1(count, depth, a, lda, b + 2 * column, ldb, c + column, ldc, is_first, tail_rows,       \
            tail_columns + 2 * column, tail_ldb)
        if (tiles >= 4)
            TILES(4);
        else if (tiles == 3)
            TILES(3);
        else if (tiles == 2)
            TILES(2);
        else
            TILES(1);
    }
}

/* c[rows][columns] (+)= a * b for a multiple of 16 columns; b holds pairs of neighbouring rows
   interleaved: [depth / 2][columns][2]; depth is even. */
static void product_bf16(long rows, long columns, long depth, const bf16 *a, long lda,
                         const bf16 *b, long ldb, float *c, long ldc, int is_first,
                         const bf16 *ahead) {
    tail_t tail;
    const long rest = depth % TILE_DEPTH, whole = depth - rest;
    const long paired_rows = rows / (2 * TILE_ROWS) * 2 * TILE_ROWS;
    const long paired_columns = columns / (2 * TILE_COLUMNS) * 2 * TILE_COLUMNS;
    if (rest) put_tail_columns(&tail, b + whole * ldb, ldb, columns, rest);
    if (paired_rows) configure_tiles(TILE_ROWS);
    for (long row = 0; row < paired_rows; row += 2 * TILE_ROWS) {
        if (rest) put_tail_rows(&tail, a + row * lda + whole, lda, 2 * TILE_ROWS, rest);
        for (long column = 0; column < paired_columns; column += 2 * TILE_COLUMNS) {
            const bf16 *fetched = b + 2 * column;
            if (ahead) /* half of what these rows fetch, with each half of the columns */
                fetched = ahead + (row / TILE_ROWS + column / (2 * TILE_COLUMNS)) *
                                      (FETCHED(bf16, whole) / 2);
            tiles_2_2(whole, a + row * lda, lda, b + 2 * column, ldb, c + row * ldc + column, ldc,
                      is_first, rest ? tail.rows : 0, tail.columns + 2 * column, columns, fetched);
        }
    }
    for (long row = 0; row < rows; row += TILE_ROWS) {
        const long first = row < paired_rows ? paired_columns : 0;
        const long count = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
        if (first < columns)
            product_of_tile(count, columns - first, whole, rest, a + row * lda, lda, b + 2 * first,
                            ldb, c + row * ldc + first, ldc, is_first, &tail, columns,
                            tail.columns + 2 * first);
    }
}
