// Slabs of a product of up to 16 rows, with the depth of a slab divided among the warps of a block.
// Such a product waits for its chains of sums more than for w, and a chain over a quarter of the
// depth is a quarter as long. The bits are not those of `product/slab.cu`.
//
// A block takes slabs of 8 * GROUPS rows of w in turn, and all rows of x. Both flow through a ring
// of stages that never runs dry between slabs. Of each 128 of depth a warp multiplies 32, whatever
// GROUPS is, and the sums of the warps are added up in order at the end of a slab. Of x only the
// rows that exist are loaded.
//
// A block has SMALL_THREADS threads and `Spread::SHARED` bytes of dynamic shared memory.

template <int GROUPS>
struct Spread {
    /// Rows of w of a slab.
    static constexpr int SLAB = 8 * GROUPS;
    /// Blocks of 32 of depth of a stage, for each warp.
    static constexpr int PARTS = GROUPS == 1 ? 2 : 1;
    static constexpr int DEPTH = PARTS * SMALL_DEPTH;
    /// Chunks of a row of a stage, and rows that all threads load at once.
    static constexpr int CHUNKS = DEPTH / 8;
    static constexpr int FEED_ROWS = SMALL_THREADS / CHUNKS;
    static constexpr int STAGES = 7;
    /// Bytes of 32 of depth; see `Slabs`.
    static constexpr int BLOCK = (SLAB + SMALL_ROWS) * ROW + 64;
    static constexpr int STAGE = SMALL_WARPS * PARTS * BLOCK;
    /// Behind the stages, the sums of all warps.
    static constexpr int SHARED = STAGES * STAGE + SMALL_WARPS * GROUPS * WARP * 16;

    /// Where a chunk of a row stands.
    static __device__ __forceinline__ unsigned char* place(unsigned char* to, int row, int chunk) {
        return to + chunk / ROW_CHUNKS * BLOCK + place_of(row, chunk % ROW_CHUNKS);
    }
};

/// Begins to load the rows of a slab of w at this depth; those of a gated product are in turn one
/// of the gate and one of the up projection. Zeros past the rows of w and past its depth.
template <bool GATED, class Ring>
__device__ __forceinline__ void spread_slab(
    unsigned char* to, const Product& product, int slab, int depth) {
    int own = threadIdx.x / Ring::CHUNKS, chunk = threadIdx.x % Ring::CHUNKS, k = product.k;
    int rows = GATED ? product.n / 2 : product.n, parts = GATED ? 2 : 1;
    int row = slab * (Ring::SLAB / parts) + own / parts;
    const bf16* from = product.w + ((long long)(own % parts) * rows + row) * k + depth + chunk * 8;
#pragma unroll
    for (int below = 0; below < Ring::SLAB; below += Ring::FEED_ROWS) {
        bool real = depth + chunk * 8 < k && row < rows;
        copy_async(Ring::place(to, own + below, chunk), from, real);
        from += (long long)(Ring::FEED_ROWS / parts) * k;
        row += Ring::FEED_ROWS / parts;
    }
}

/// Begins to load the rows of x at this depth.
template <class Ring>
__device__ __forceinline__ void spread_inputs(
    unsigned char* to, const Product& product, int depth) {
    for (int i = threadIdx.x; i < product.m * Ring::CHUNKS; i += SMALL_THREADS) {
        int row = i / Ring::CHUNKS, chunk = i % Ring::CHUNKS, at = depth + chunk * 8;
        const bf16* from = product.x + (long long)row * product.k + at;
        copy_async(Ring::place(to, Ring::SLAB + row, chunk), from, at < product.k);
    }
}

/// Loads the rows of x of the first stages, and waits for them: their rows of w are on their way,
/// and copies of x would arrive behind those.
template <class Ring>
__device__ __forceinline__ void spread_first_inputs(
    unsigned char* stages, const Product& product) {
    int chunk = threadIdx.x % Ring::CHUNKS, k = product.k;
    for (int row = threadIdx.x / Ring::CHUNKS; row < product.m; row += Ring::FEED_ROWS) {
        const bf16* from = product.x + (long long)row * k;
        uint4 packs[Ring::STAGES - 1];
        int depth = chunk * 8;
#pragma unroll
        for (int stage = 0; stage < Ring::STAGES - 1; stage++) {
            packs[stage] = depth < k ? load_pack(from + depth) : make_uint4(0, 0, 0, 0);
            // Behind the last of its depth begins the next slab.
            depth += Ring::DEPTH;
            if (depth - chunk * 8 >= k) depth = chunk * 8;
        }
        unsigned char* to = Ring::place(stages, Ring::SLAB + row, chunk);
#pragma unroll
        for (int stage = 0; stage < Ring::STAGES - 1; stage++) {
            *(uint4*)(to + stage * Ring::STAGE) = packs[stage];
        }
    }
}

/// Multiplies this warp's part of a stage. The last row of x stands in for rows that do not exist:
/// a row of the result depends on no other row.
template <int GROUPS>
__device__ __forceinline__ void multiply_spread(
    float (&sums)[GROUPS][4], const unsigned char* stage, int m) {
    using Ring = Spread<GROUPS>;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int row = Ring::SLAB + min(lane % 16, m - 1);
#pragma unroll
    for (int part = 0; part < Ring::PARTS; part++) {
        const unsigned char* block = stage + (part * SMALL_WARPS + warp) * Ring::BLOCK;
        unsigned low[4], high[4], right[4];
        load_matrices(low, block + place_of(row, lane / 16));
        load_matrices(high, block + place_of(row, 2 + lane / 16));
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            load_right(right, block, group * 8);
            mma(sums[group], low, right[0], right[1]);
            mma(sums[group], high, right[2], right[3]);
        }
    }
}

/// Adds up the sums of all warps in order, writes the columns of a slab, and clears the sums. A
/// barrier must come before the next call.
template <bool GATED, int GROUPS>
__device__ __forceinline__ void write_spread(
    float (&sums)[GROUPS][4], const Product& product, int first_column, float4* parts) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        float(&own)[4] = sums[group];
        parts[(warp * GROUPS + group) * WARP + lane] = make_float4(own[0], own[1], own[2], own[3]);
        own[0] = own[1] = own[2] = own[3] = 0.0f;
    }
    __syncthreads();
    if (warp >= GROUPS) return;
    float4 total = parts[warp * WARP + lane];
#pragma unroll
    for (int other = 1; other < SMALL_WARPS; other++) {
        float4 part = parts[(other * GROUPS + warp) * WARP + lane];
        total = make_float4(total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w);
    }
    int column = first_column + warp * 8 + q * 2;
    if (g < product.m) write_sums<GATED>(product, g, column, total.x, total.y);
    if (g + 8 < product.m) write_sums<GATED>(product, g + 8, column, total.z, total.w);
}

/// Computes a product of up to 16 rows: the block's slabs, which are `blockIdx.x` and those
/// `gridDim.x` further on. It waits for the launch in front before it reads x; w must not be
/// written by a step.
template <int GROUPS, bool GATED = false>
__device__ __forceinline__ void multiply_spread_slabs(
    const Product& product, unsigned char* stages) {
    using Ring = Spread<GROUPS>;
    int rows = GATED ? product.n / 2 : product.n, width = GATED ? Ring::SLAB / 2 : Ring::SLAB;
    int slabs = (rows + width - 1) / width;
    Place ahead = {(int)blockIdx.x, 0};
    int in = 0, used = 0;
    auto issue = [&](bool inputs) {
        unsigned char* stage = stages + in * Ring::STAGE;
        if (ahead.slab < slabs) {
            spread_slab<GATED, Ring>(stage, product, ahead.slab, ahead.depth);
            if (inputs) spread_inputs<Ring>(stage, product, ahead.depth);
            advance(ahead, Ring::DEPTH, product.k);
        }
        copy_commit();
        in = (in + 1) % Ring::STAGES;
    };
#pragma unroll 1
    for (int stage = 0; stage < Ring::STAGES - 1; stage++) issue(false);
    take_over();
    spread_first_inputs<Ring>(stages, product);

    float4* parts = (float4*)(stages + Ring::STAGES * Ring::STAGE);
    float sums[GROUPS][4] = {};
    for (Place place = {(int)blockIdx.x, 0}; place.slab < slabs;) {
        // Behind this barrier the stage has arrived, and all threads have left the one before.
        copy_wait<Ring::STAGES - 2>();
        __syncthreads();
        issue(true);
        multiply_spread(sums, stages + used * Ring::STAGE, product.m);
        used = (used + 1) % Ring::STAGES;
        int first_column = place.slab * Ring::SLAB;
        advance(place, Ring::DEPTH, product.k);
        if (place.depth == 0) write_spread<GATED>(sums, product, first_column, parts);
    }
    copy_wait<0>();
}
