// Slabs of a product of few rows, which is as fast as w can be read.
//
// A block takes slabs of 32 rows of w in turn, and ROWS rows of x: 16, 32 or 64. Both flow through
// a ring of stages, 128 of depth each, that never runs dry between slabs. Each warp multiplies 8
// rows of w, in the order of `product/tile.cu`, so it gives the same bits.
//
// A block has 128 threads and `Slabs<ROWS>::SHARED` bytes of dynamic shared memory, so that two
// blocks fit on a multiprocessor.

#define SMALL_ROWS 16
#define SLAB 32
#define SMALL_DEPTH 128
#define SMALL_THREADS 128
/// Chunks of a slab's row.
#define SLAB_CHUNKS (SMALL_DEPTH * 2 / 16)
/// Rows that all threads load at once.
#define FEED_ROWS (SMALL_THREADS / SLAB_CHUNKS)

/// The stages of blocks of so many rows of x.
template <int ROWS>
struct Slabs {
    /// With 16 rows, 56 KB of w are on their way all the time.
    static constexpr int STAGES = ROWS == 16 ? 8 : ROWS == 32 ? 6 : 4;
    /// A stage is in blocks of 32 of depth. They stand half a row of banks apart, so that the parts
    /// of a row are written to different ones.
    static constexpr int BLOCK = (SLAB + ROWS) * ROW + 64;
    static constexpr int STAGE = SLAB_CHUNKS / ROW_CHUNKS * BLOCK;
    static constexpr int SHARED = STAGES * STAGE;
};

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
template <int COUNT, int BLOCK>
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

/// As `load_rows`, for the rows of x.
template <int COUNT, int BLOCK>
__device__ __forceinline__ void load_inputs(
    unsigned char* to, const Product& product, int first, int depth) {
    if (!product.rows) {
        load_rows<COUNT, BLOCK>(to, product.x, first, product.m, depth, product.k);
        return;
    }
    int own = threadIdx.x / SLAB_CHUNKS, chunk = threadIdx.x % SLAB_CHUNKS;
    to += chunk / ROW_CHUNKS * BLOCK + place_of(own, chunk % ROW_CHUNKS);
    bool real = depth + chunk * 8 < product.k;
#pragma unroll
    for (int below = 0; below < COUNT; below += FEED_ROWS) {
        int row = first + own + below;
        copy_async(to + below * ROW, product.row(row) + depth + chunk * 8,
                   real && row < product.m);
    }
}

/// Computes `ROWS` rows of a product from `first_row` on: the block's slabs, which are `blockIdx.x`
/// and those `gridDim.x` further on.
template <int ROWS>
__device__ __forceinline__ void multiply_slabs(
    const Product& product, int first_row, unsigned char* stages) {
    using Ring = Slabs<ROWS>;
    int m = product.m, n = product.n, k = product.k;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    int slabs = (n + SLAB - 1) / SLAB;
    Place ahead = {(int)blockIdx.x, 0};
    int in = 0, used = 0;
    auto issue = [&]() {
        unsigned char* stage = stages + in * Ring::STAGE;
        if (ahead.slab < slabs) {
            load_rows<SLAB, Ring::BLOCK>(stage, product.w, ahead.slab * SLAB, n, ahead.depth, k);
            load_inputs<ROWS, Ring::BLOCK>(stage + SLAB * ROW, product, first_row, ahead.depth);
            advance(ahead, k);
        }
        copy_commit();
        in = (in + 1) % Ring::STAGES;
    };
#pragma unroll 1
    for (int stage = 0; stage < Ring::STAGES - 1; stage++) issue();
    float sums[ROWS / 16][4] = {};
    for (Place place = {(int)blockIdx.x, 0}; place.slab < slabs;) {
        // Behind this barrier the stage has arrived, and all threads have left the one before.
        copy_wait<Ring::STAGES - 2>();
        __syncthreads();
        issue();
        const unsigned char* block = stages + used * Ring::STAGE;
#pragma unroll
        for (int part = 0; part < SLAB_CHUNKS / ROW_CHUNKS; part++, block += Ring::BLOCK) {
            unsigned left[4], right[4];
            load_right(right, block, warp * 8);
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int i = 0; i < ROWS / 16; i++) {
                    load_left(left, block + SLAB * ROW, i * 16, half);
                    mma(sums[i], left, right[half * 2], right[half * 2 + 1]);
                }
            }
        }
        used = (used + 1) % Ring::STAGES;
        int column = place.slab * SLAB + warp * 8 + q * 2;
        advance(place, k);
        if (place.depth > 0) continue;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = first_row + i * 16 + half * 8 + g;
                if (row < m) {
                    write_columns(product.out, product.f32_out, row, column, n,
                                  sums[i][half * 2], sums[i][half * 2 + 1]);
                }
                sums[i][half * 2] = sums[i][half * 2 + 1] = 0.0f;
            }
        }
    }
    copy_wait<0>();
}
