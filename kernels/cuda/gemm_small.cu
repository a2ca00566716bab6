// A product of few rows, which is as fast as w can be read: out = x . w^T.
//
// A block takes slabs of 32 rows of w in turn, and 16 rows of x. Both flow through a ring of
// stages, 128 of depth each, that never runs dry between slabs: 56 KB are on their way all the
// time. Each warp multiplies 8 rows of w, in the order of `gemm`, so it gives the same bits.
//
// x [m, k] and w [n, k] bf16 at 16-byte borders; out [m, n], f32 if `f32_out`, else bf16. k is a
// multiple of 8; m and n are what they are, though beyond 16 rows `gemm` reads less of w.
// Launch: grid (slabs, but two blocks a multiprocessor are enough; m / 16 rounded up), 128 threads,
// SMALL_SHARED bytes of dynamic shared memory.

#define SMALL_ROWS 16
#define SLAB 32
#define SMALL_DEPTH 128
#define SMALL_STAGES 8
#define SMALL_THREADS 128
/// Chunks of a slab's row.
#define SLAB_CHUNKS (SMALL_DEPTH * 2 / 16)
/// A stage is in blocks of 32 of depth. They stand half a row of banks apart, so that the parts of
/// a row are written to different ones.
#define BLOCK ((SLAB + SMALL_ROWS) * ROW + 64)
#define STAGE (SLAB_CHUNKS / ROW_CHUNKS * BLOCK)
#define SMALL_SHARED (SMALL_STAGES * STAGE)
/// Rows that all threads load at once.
#define FEED_ROWS (SMALL_THREADS / SLAB_CHUNKS)

/// A walk over the slabs of a block, each from depth 0 on.
struct Place {
    int slab, depth;
};

__device__ __forceinline__ void advance(Place& place, int k) {
    place.depth += SMALL_DEPTH;
    if (place.depth < k) return;
    place.depth = 0;
    place.slab += gridDim.x;
}

/// Begins to load `COUNT` rows from `first` on; zeros past the operand's rows and past `k`.
template <int COUNT>
__device__ __forceinline__ void load_rows(
    unsigned char* to, const bf16* operand, int first, int rows, int depth, int k) {
    int own = threadIdx.x / SLAB_CHUNKS, chunk = threadIdx.x % SLAB_CHUNKS, row = first + own;
    const bf16* from = operand + (long long)row * k + depth + chunk * 8;
    to += chunk / ROW_CHUNKS * BLOCK + place_of(own, chunk % ROW_CHUNKS);
    bool real = depth + chunk * 8 < k;
#pragma unroll
    for (int below = 0; below < COUNT; below += FEED_ROWS) {
        copy_async(to + below * ROW, from, real && row + below < rows);
        from += (long long)FEED_ROWS * k;
    }
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    int first_row = blockIdx.y * SMALL_ROWS, slabs = (n + SLAB - 1) / SLAB;
    Place ahead = {(int)blockIdx.x, 0};
    int in = 0, used = 0;
    auto issue = [&]() {
        unsigned char* stage = stages + in * STAGE;
        if (ahead.slab < slabs) {
            load_rows<SLAB>(stage, w, ahead.slab * SLAB, n, ahead.depth, k);
            load_rows<SMALL_ROWS>(stage + SLAB * ROW, x, first_row, m, ahead.depth, k);
            advance(ahead, k);
        }
        copy_commit();
        in = (in + 1) % SMALL_STAGES;
    };
#pragma unroll 1
    for (int stage = 0; stage < SMALL_STAGES - 1; stage++) issue();
    float sum[4] = {};
    for (Place place = {(int)blockIdx.x, 0}; place.slab < slabs;) {
        // Behind this barrier the stage has arrived, and all threads have left the one before.
        copy_wait<SMALL_STAGES - 2>();
        __syncthreads();
        issue();
        const unsigned char* block = stages + used * STAGE;
#pragma unroll
        for (int part = 0; part < SLAB_CHUNKS / ROW_CHUNKS; part++, block += BLOCK) {
            unsigned left[4], right[4];
            load_right(right, block, warp * 8);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                load_left(left, block + SLAB * ROW, 0, half);
                mma(sum, left, right[half * 2], right[half * 2 + 1]);
            }
        }
        used = (used + 1) % SMALL_STAGES;
        int column = place.slab * SLAB + warp * 8 + q * 2;
        advance(place, k);
        if (place.depth > 0) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first_row + half * 8 + g;
            if (row < m) {
                write_columns(out, f32_out, row, column, n, sum[half * 2], sum[half * 2 + 1]);
            }
            sum[half * 2] = sum[half * 2 + 1] = 0.0f;
        }
    }
    copy_wait<0>();
}
