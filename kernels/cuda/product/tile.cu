// A tile of 128 x 128 of a product, 32 of depth at a time.
//
// One accumulator an element, filled in order of depth and never divided, so an element's bits
// depend on its row of x and its row of w alone: they are the same for every m, in every place of
// a batch, and those of `product/slab.cu`.
//
// A block has GEMM_THREADS threads and GEMM_SHARED bytes of dynamic shared memory.

#define GEMM_TILE 128
#define GEMM_DEPTH 32
#define GEMM_STAGES 5
#define GEMM_THREADS 128
/// Of a warp: two warps beside each other, two below each other. So large a part of the tile reads
/// little from shared memory for each product.
#define WARP_ROWS 64
#define WARP_COLUMNS 64
#define OPERAND (GEMM_TILE * ROW)
/// Rows that all threads load at once, and rows of a thread.
#define FEED_ROWS (GEMM_THREADS / ROW_CHUNKS)
#define FEEDS (GEMM_TILE / FEED_ROWS)
#define GEMM_SHARED (GEMM_STAGES * 2 * OPERAND)

/// What a thread loads of an operand: eight elements of each of FEEDS rows, FEED_ROWS apart; null
/// for rows that the operand does not have.
struct Feed {
    const bf16* from[FEEDS];
};

/// The feed of w for columns from `tile` on. Those of a gated product are in turn one of the gate
/// and one of the up projection, which stand below each other in w.
template <bool GATED>
__device__ __forceinline__ Feed feed_columns(const Product& product, int tile) {
    int own = threadIdx.x / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
    int parts = GATED ? 2 : 1, rows = product.n / parts;
    Feed feed;
#pragma unroll
    for (int i = 0; i < FEEDS; i++) {
        int row = (tile + own + i * FEED_ROWS) / parts;
        const bf16* from = product.w + ((long long)(own % parts) * rows + row) * product.k;
        feed.from[i] = row < rows ? from + chunk * 8 : nullptr;
    }
    return feed;
}

/// The feed of x, from row `tile` on.
__device__ __forceinline__ Feed feed_rows(const Product& product, int tile) {
    int own = threadIdx.x / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
    Feed feed;
#pragma unroll
    for (int i = 0; i < FEEDS; i++) {
        int row = tile + own + i * FEED_ROWS;
        feed.from[i] = row < product.m ? product.row(row) + chunk * 8 : nullptr;
    }
    return feed;
}

/// Begins to load 32 of depth from `depth` on; zeros past the operand's rows and past `k`.
__device__ __forceinline__ void load(unsigned char* to, const Feed& feed, int depth, int k) {
    bool real = depth + (int)(threadIdx.x % ROW_CHUNKS) * 8 < k;
    to += place_of(threadIdx.x / ROW_CHUNKS, threadIdx.x % ROW_CHUNKS);
#pragma unroll
    for (int i = 0; i < FEEDS; i++) {
        copy_async(to + i * FEED_ROWS * ROW, feed.from[i] + depth, real && feed.from[i]);
    }
}

/// Computes the tile of a product that begins at this row and column.
template <bool GATED = false>
__device__ __forceinline__ void multiply_tile(
    const Product& product, int first_row, int first_column, unsigned char* stages) {
    int m = product.m, k = product.k;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    int row = warp / 2 * WARP_ROWS, column = warp % 2 * WARP_COLUMNS;
    int steps = (k + GEMM_DEPTH - 1) / GEMM_DEPTH;
    float sums[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};
    Feed rows = feed_rows(product, first_row), columns = feed_columns<GATED>(product, first_column);
    auto issue = [&](int step) {
        unsigned char* stage = stages + step % GEMM_STAGES * 2 * OPERAND;
        if (step < steps) {
            load(stage, rows, step * GEMM_DEPTH, k);
            load(stage + OPERAND, columns, step * GEMM_DEPTH, k);
        }
        copy_commit();
    };
#pragma unroll
    for (int step = 0; step < GEMM_STAGES - 1; step++) issue(step);
    for (int step = 0; step < steps; step++) {
        // Behind this barrier the step has arrived, and all threads have left the one before.
        copy_wait<GEMM_STAGES - 2>();
        __syncthreads();
        issue(step + GEMM_STAGES - 1);
        const unsigned char* stage = stages + step % GEMM_STAGES * 2 * OPERAND;
        unsigned right[WARP_COLUMNS / 8][4];
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS / 8; j++) {
            load_right(right[j], stage + OPERAND, column + j * 8);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; i++) {
                unsigned left[4];
                load_left(left, stage, row + i * 16, half);
#pragma unroll
                for (int j = 0; j < WARP_COLUMNS / 8; j++) {
                    mma(sums[i][j], left, right[j][half * 2], right[j][half * 2 + 1]);
                }
            }
        }
    }
    copy_wait<0>();
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int to = first_row + row + i * 16 + half * 8 + g;
            if (to >= m) continue;
#pragma unroll
            for (int j = 0; j < WARP_COLUMNS / 8; j++) {
                write_sums<GATED>(product, to, first_column + column + j * 8 + q * 2,
                                  sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
            }
        }
    }
}
