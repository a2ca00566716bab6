// Slabs of a product of few rows, which is as fast as w can be read.
//
// A block takes slabs of 32 rows of w in turn, and ROWS rows of x: 16, 32 or 64. Both flow through
// a ring of stages, 128 of depth each, that never runs dry between slabs. Each of four warps
// multiplies 8 rows of w, in the order of `product/tile.cu`, so it gives the same bits.
//
// A block has SMALL_THREADS threads and `Slabs::SHARED` bytes of dynamic shared memory, so that two
// blocks fit on a multiprocessor.

#define SMALL_ROWS 16
#define SMALL_DEPTH 128
/// Warps of a block.
#define SMALL_WARPS 4
#define SMALL_THREADS (SMALL_WARPS * WARP)
/// Chunks of a slab's row.
#define SLAB_CHUNKS (SMALL_DEPTH * 2 / 16)

/// The stages of blocks of so many rows of x.
template <int ROWS>
struct Slabs {
    /// Rows of w of a slab.
    static constexpr int SLAB = SMALL_WARPS * 8;
    /// Rows that all threads load at once.
    static constexpr int FEED_ROWS = SMALL_THREADS / SLAB_CHUNKS;
    /// With 16 rows, 56 KB of w are on their way all the time.
    static constexpr int STAGES = ROWS == 16 ? 8 : ROWS == 32 ? 6 : 4;
    /// A stage is in blocks of 32 of depth. They stand half a row of banks apart, so that the parts
    /// of a row are written to different ones.
    static constexpr int BLOCK = (SLAB + ROWS) * ROW + 64;
    static constexpr int STAGE = SLAB_CHUNKS / ROW_CHUNKS * BLOCK;
    static constexpr int SHARED = STAGES * STAGE;
    /// Packs of x of a stage for a thread.
    static constexpr int PACKS = ROWS / FEED_ROWS;
    /// Stages whose rows of w are on their way before the launch in front is over. Their rows of x
    /// come through registers, which have room for so many packs: were they copied as well, the
    /// first of them would arrive behind the last of w.
    static constexpr int EARLY = 24 / PACKS < STAGES - 1 ? 24 / PACKS : STAGES - 1;
};

/// A walk over the slabs of a block, each from depth 0 on.
struct Place {
    int slab, depth;
};

/// The next `depth` of a slab, or the first of the block's next slab.
__device__ __forceinline__ void advance(Place& place, int depth, int k) {
    place.depth += depth;
    if (place.depth < k) return;
    place.depth = 0;
    place.slab += gridDim.x;
}

/// Where this thread's chunk stands, `below` rows below its first row.
template <int BLOCK>
__device__ __forceinline__ unsigned char* chunk_of(unsigned char* to, int below) {
    int own = threadIdx.x / SLAB_CHUNKS, chunk = threadIdx.x % SLAB_CHUNKS;
    return to + chunk / ROW_CHUNKS * BLOCK + place_of(own + below, chunk % ROW_CHUNKS);
}

/// Begins to load this thread's chunks of `COUNT` rows: the row `row` of the operand, and those
/// `step` rows further on; zeros past the operand's rows and past `k`.
template <int COUNT, class Ring>
__device__ __forceinline__ void load_rows(
    unsigned char* to, const bf16* operand, int row, int step, int rows, int depth, int k) {
    depth += threadIdx.x % SLAB_CHUNKS * 8;
    const bf16* from = operand + (long long)row * k + depth;
#pragma unroll
    for (int below = 0; below < COUNT; below += Ring::FEED_ROWS) {
        copy_async(chunk_of<Ring::BLOCK>(to, below), from, depth < k && row < rows);
        from += (long long)step * k;
        row += step;
    }
}

/// As `load_rows`, for the rows of a slab of w. Those of a gated product are in turn one of the
/// gate and one of the up projection, which stand below each other in w.
template <bool GATED, class Ring>
__device__ __forceinline__ void load_slab(
    unsigned char* to, const Product& product, int slab, int depth) {
    int own = threadIdx.x / SLAB_CHUNKS, n = product.n, k = product.k;
    if constexpr (GATED) {
        const bf16* half = product.w + own % 2 * (long long)(n / 2) * k;
        int row = slab * (Ring::SLAB / 2) + own / 2;
        load_rows<Ring::SLAB, Ring>(to, half, row, Ring::FEED_ROWS / 2, n / 2, depth, k);
    } else {
        load_rows<Ring::SLAB, Ring>(
            to, product.w, slab * Ring::SLAB + own, Ring::FEED_ROWS, n, depth, k);
    }
}

/// As `load_rows`, for the rows of x.
template <int COUNT, class Ring>
__device__ __forceinline__ void load_inputs(
    unsigned char* to, const Product& product, int first, int depth) {
    int row = first + threadIdx.x / SLAB_CHUNKS;
    if (!product.rows) {
        load_rows<COUNT, Ring>(
            to, product.x, row, Ring::FEED_ROWS, product.m, depth, product.k);
        return;
    }
    depth += threadIdx.x % SLAB_CHUNKS * 8;
#pragma unroll
    for (int below = 0; below < COUNT; below += Ring::FEED_ROWS) {
        copy_async(chunk_of<Ring::BLOCK>(to, below), product.row(row + below) + depth,
                   depth < product.k && row + below < product.m);
    }
}

/// Loads the rows of x of the first `Ring::EARLY` stages, through registers.
template <int COUNT, class Ring>
__device__ __forceinline__ void load_first_inputs(
    unsigned char* stages, const Product& product, int first) {
    int row = first + threadIdx.x / SLAB_CHUNKS, chunk = threadIdx.x % SLAB_CHUNKS * 8;
    uint4 packs[Ring::EARLY][Ring::PACKS];
#pragma unroll
    for (int i = 0; i < Ring::PACKS; i++) {
        int own = row + i * Ring::FEED_ROWS;
        const bf16* from = product.row(own);
        int depth = chunk;
#pragma unroll
        for (int stage = 0; stage < Ring::EARLY; stage++) {
            packs[stage][i] = make_uint4(0, 0, 0, 0);
            if (own < product.m && depth < product.k) packs[stage][i] = load_pack(from + depth);
            // Behind the last of its depth begins the next slab.
            depth += SMALL_DEPTH;
            if (depth - chunk >= product.k) depth = chunk;
        }
    }
#pragma unroll
    for (int stage = 0; stage < Ring::EARLY; stage++) {
        unsigned char* to = stages + stage * Ring::STAGE + Ring::SLAB * ROW;
#pragma unroll
        for (int i = 0; i < Ring::PACKS; i++) {
            *(uint4*)chunk_of<Ring::BLOCK>(to, i * Ring::FEED_ROWS) = packs[stage][i];
        }
    }
}

/// Multiplies a stage: this warp's 8 rows of w, and all rows of x.
template <int ROWS>
__device__ __forceinline__ void multiply_stage(
    float (&sums)[ROWS / 16][4], const unsigned char* block, int warp) {
    using Ring = Slabs<ROWS>;
#pragma unroll
    for (int part = 0; part < SLAB_CHUNKS / ROW_CHUNKS; part++, block += Ring::BLOCK) {
        unsigned left[4], right[4];
        load_right(right, block, warp * 8);
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < ROWS / 16; i++) {
                load_left(left, block + Ring::SLAB * ROW, i * 16, half);
                mma(sums[i], left, right[half * 2], right[half * 2 + 1]);
            }
        }
    }
}

/// Computes `ROWS` rows of a product from `first_row` on: the block's slabs, which are `blockIdx.x`
/// and those `gridDim.x` further on. It waits for the launch in front before it reads x; w must not
/// be written by a step.
template <int ROWS, bool GATED = false>
__device__ __forceinline__ void multiply_slabs(
    const Product& product, int first_row, unsigned char* stages) {
    using Ring = Slabs<ROWS>;
    int m = product.m, n = product.n, k = product.k;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    int slabs = GATED ? (n / 2 + Ring::SLAB / 2 - 1) / (Ring::SLAB / 2)
                      : (n + Ring::SLAB - 1) / Ring::SLAB;
    Place ahead = {(int)blockIdx.x, 0};
    int in = 0, used = 0;
    auto issue = [&](bool inputs) {
        unsigned char* stage = stages + in * Ring::STAGE;
        if (ahead.slab < slabs) {
            load_slab<GATED, Ring>(stage, product, ahead.slab, ahead.depth);
            if (inputs) {
                load_inputs<ROWS, Ring>(stage + Ring::SLAB * ROW, product, first_row, ahead.depth);
            }
            advance(ahead, SMALL_DEPTH, k);
        }
        copy_commit();
        in = (in + 1) % Ring::STAGES;
    };
#pragma unroll 1
    for (int stage = 0; stage < Ring::EARLY; stage++) issue(false);
    take_over();
    load_first_inputs<ROWS, Ring>(stages, product, first_row);
#pragma unroll 1
    for (int stage = Ring::EARLY; stage < Ring::STAGES - 1; stage++) issue(true);
    float sums[ROWS / 16][4] = {};
    for (Place place = {(int)blockIdx.x, 0}; place.slab < slabs;) {
        // Behind this barrier the stage has arrived, and all threads have left the one before.
        copy_wait<Ring::STAGES - 2>();
        __syncthreads();
        issue(true);
        multiply_stage<ROWS>(sums, stages + used * Ring::STAGE, warp);
        used = (used + 1) % Ring::STAGES;
        int column = place.slab * Ring::SLAB + warp * 8 + q * 2;
        advance(place, SMALL_DEPTH, k);
        if (place.depth > 0) continue;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = first_row + i * 16 + half * 8 + g;
                if (row < m) {
                    write_sums<GATED>(product, row, column, sums[i][half * 2],
                                      sums[i][half * 2 + 1]);
                }
                sums[i][half * 2] = sums[i][half * 2 + 1] = 0.0f;
            }
        }
    }
    copy_wait<0>();
}
