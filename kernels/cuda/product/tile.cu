// A tile of 128 x 128 of a product, 32 of depth at a time.
//
// One accumulator an element, filled in order of depth and never divided, so an element's bits
// depend on its row of x and its row of w alone: they are the same for every m, in every place of
// a batch, and those of `product/slab.cu`.
//
// A block has 256 threads and GEMM_SHARED bytes of dynamic shared memory.

#define GEMM_TILE 128
#define GEMM_DEPTH 32
#define GEMM_STAGES 5
#define GEMM_THREADS 256
/// Of a warp: four warps beside each other, two below each other.
#define WARP_ROWS 64
#define WARP_COLUMNS 32
#define OPERAND (GEMM_TILE * ROW)
/// Rows that all threads load at once: half of an operand.
#define FEED_ROWS (GEMM_THREADS / ROW_CHUNKS)
#define GEMM_SHARED (GEMM_STAGES * 2 * OPERAND)

/// What a thread loads of an operand: eight elements of each of two rows, 64 apart.
struct Feed {
    const bf16* from;
    long long below;
    bool first, second;
};

/// The feed of w, from row `tile` on.
__device__ __forceinline__ Feed feed(const bf16* operand, int tile, int rows, int k) {
    int row = tile + threadIdx.x / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
    long long below = (long long)FEED_ROWS * k;
    return {operand + (long long)row * k + chunk * 8, below, row < rows, row + FEED_ROWS < rows};
}

/// The feed of w for columns from `tile` on. Those of a gated product are in turn one of the gate
/// and one of the up projection, which stand below each other in w.
template <bool GATED>
__device__ __forceinline__ Feed feed_columns(const Product& product, int tile) {
    if constexpr (!GATED) return feed(product.w, tile, product.n, product.k);
    int own = threadIdx.x / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS, half = product.n / 2;
    int row = tile / 2 + own / 2, next = FEED_ROWS / 2;
    const bf16* from = product.w + ((long long)(own % 2) * half + row) * product.k;
    long long below = (long long)next * product.k;
    return {from + chunk * 8, below, row < half, row + next < half};
}

/// The feed of x, from row `tile` on.
__device__ __forceinline__ Feed feed_rows(const Product& product, int tile) {
    if (!product.rows) return feed(product.x, tile, product.m, product.k);
    int row = tile + threadIdx.x / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
    const bf16* from = product.row(row);
    long long below = product.row(row + FEED_ROWS) - from;
    return {from + chunk * 8, below, row < product.m, row + FEED_ROWS < product.m};
}

/// Begins to load 32 of depth from `depth` on; zeros past the operand's rows and past `k`.
__device__ __forceinline__ void load(unsigned char* to, const Feed& feed, int depth, int k) {
    bool real = depth + (int)(threadIdx.x % ROW_CHUNKS) * 8 < k;
    to += place_of(threadIdx.x / ROW_CHUNKS, threadIdx.x % ROW_CHUNKS);
    copy_async(to, feed.from + depth, real && feed.first);
    copy_async(to + OPERAND / 2, feed.from + feed.below + depth, real && feed.second);
}

/// Computes the tile of a product that begins at this row and column.
template <bool GATED = false>
__device__ __forceinline__ void multiply_tile(
    const Product& product, int first_row, int first_column, unsigned char* stages) {
    int m = product.m, k = product.k;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    int row = warp / 4 * WARP_ROWS, column = warp % 4 * WARP_COLUMNS;
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
