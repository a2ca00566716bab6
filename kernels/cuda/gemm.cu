// A product in tiles of 128 x 128, 32 of depth at a time: out = x . w^T.
//
// One accumulator an element, filled in order of depth and never divided, so an element's bits
// depend on its row of x and its row of w alone: they are the same for every m, in every place of
// a batch, and those of `gemm_small`.
//
// x [m, k] and w [n, k] bf16 at 16-byte borders; out [m, n], f32 if `f32_out`, else bf16. k is a
// multiple of 8; m and n are what they are.
// Launch: grid (m / 128, n / 128), each rounded up, 256 threads, GEMM_SHARED bytes of dynamic
// shared memory. Blocks that share rows of w are neighbours, so w is read from memory once.

#define GEMM_TILE 128
#define GEMM_DEPTH 32
#define GEMM_STAGES 4
#define GEMM_THREADS 256
/// Of a warp: four warps beside each other, two below each other.
#define WARP_ROWS 64
#define WARP_COLUMNS 32
/// Bytes of a row of a stage; eight lanes read two rows, which lie in different banks.
#define ROW (GEMM_DEPTH * 2)
#define ROW_CHUNKS (ROW / 16)
#define OPERAND (GEMM_TILE * ROW)
#define GEMM_SHARED (GEMM_STAGES * 2 * OPERAND)

/// Begins to load 128 rows from `first` on, 32 of depth from `depth` on; zeros where there is none.
__device__ __forceinline__ void load_operand(
    unsigned char* to, const bf16* from, int first, int rows, int depth, int k) {
#pragma unroll
    for (int c = threadIdx.x; c < GEMM_TILE * ROW_CHUNKS; c += GEMM_THREADS) {
        int row = first + c / ROW_CHUNKS, at = depth + c % ROW_CHUNKS * 8;
        bool real = row < rows && at < k;
        copy_async(to + c * 16, from + (real ? (long long)row * k + at : 0), real);
    }
}

extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2) gemm(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    int first_row = blockIdx.x * GEMM_TILE, first_column = blockIdx.y * GEMM_TILE;
    int row = warp / 4 * WARP_ROWS, column = warp % 4 * WARP_COLUMNS;
    int steps = (k + GEMM_DEPTH - 1) / GEMM_DEPTH;
    float sums[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};
    auto issue = [&](int step) {
        unsigned char* stage = stages + step % GEMM_STAGES * 2 * OPERAND;
        if (step < steps) {
            load_operand(stage, x, first_row, m, step * GEMM_DEPTH, k);
            load_operand(stage + OPERAND, w, first_column, n, step * GEMM_DEPTH, k);
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
        const unsigned char* a = stage + (row + g) * ROW + q * 16;
        const unsigned char* b = stage + OPERAND + (column + g) * ROW + q * 16;
        uint4 columns[WARP_COLUMNS / 8];
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS / 8; j++) columns[j] = *(const uint4*)(b + j * 8 * ROW);
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; i++) {
            uint4 low = *(const uint4*)(a + i * 16 * ROW);
            uint4 high = *(const uint4*)(a + (i * 16 + 8) * ROW);
#pragma unroll
            for (int j = 0; j < WARP_COLUMNS / 8; j++) mma_32(sums[i][j], low, high, columns[j]);
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
                write_columns(out, f32_out, to, first_column + column + j * 8 + q * 2, n,
                              sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
            }
        }
    }
}
