// What the 1,024 threads of a row share, and sums, prefixes and visits that they make together.

// What the threads of a row share. It is one variable, not handed on, so that compilers know where
// it lies.
struct Shared {
    // How the row is read: as it is sampled from, and as ranks and order go by it.
    Row row, shown;
    const float* given;   // the model's own logits
    SampleParams own;
    float highest[TILE];  // of each tile, before temperature
    double sums[TILE];    // of the weights of each tile that are left
    unsigned high[BINS], low[BINS];
    float list[LIST];
    double doubles[32];
    unsigned long long integers[32];
    float floats[32];
    int found_ids[MOST];
    float found[MOST];
    int listed, chosen, answer;
    unsigned long long before, inside;
    double left;
};
__shared__ Shared shared;

__device__ __forceinline__ float highest_of_block(float value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 16; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, step));
    }
    if (lane == 0) shared.floats[warp] = value;
    __syncthreads();
    value = shared.floats[lane];
    for (int step = 16; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, step));
    }
    __syncthreads();
    return value;
}

__device__ __forceinline__ double sum_of_block(double value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    value = sum_of_warp(value);
    if (lane == 0) shared.doubles[warp] = value;
    __syncthreads();
    value = sum_of_warp(shared.doubles[lane]);
    __syncthreads();
    return value;
}

// The sum over the threads up to this one.
__device__ __forceinline__ unsigned long long prefix_of_block(unsigned long long value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(EVERY_LANE, value, step);
        value += lane >= step ? other : 0;
    }
    if (lane == 31) shared.integers[warp] = value;
    __syncthreads();
    unsigned long long total = shared.integers[lane];
    for (int step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(EVERY_LANE, total, step);
        total += lane >= step ? other : 0;
    }
    const unsigned long long warps = __shfl_sync(EVERY_LANE, total, warp > 0 ? warp - 1 : 0);
    __syncthreads();
    return value + (warp > 0 ? warps : 0);
}

// The same of weights.
__device__ __forceinline__ double sum_up_to(double value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(EVERY_LANE, value, step);
        value += lane >= step ? other : 0.0;
    }
    if (lane == 31) shared.doubles[warp] = value;
    __syncthreads();
    double before = lane < warp ? shared.doubles[lane] : 0.0;
    for (int step = 16; step > 0; step /= 2) before += __shfl_xor_sync(EVERY_LANE, before, step);
    __syncthreads();
    return value + before;
}

// Calls `visit(id, four)` for runs of four ids with their logits, in all tiles that reach a floor.
// All lanes of a warp call it together; ids may lie beyond the vocabulary.
template <class Visit>
__device__ __forceinline__ void visit_tiles(const Row& row, float floor,
                                            const Visit& visit) {
    const int lane = threadIdx.x % 32, tiles = (row.vocab + TILE - 1) / TILE;
    for (int tile = threadIdx.x / 32; tile < tiles; tile += 32) {
        if (!(row.processed(shared.highest[tile]) >= floor)) continue;
#pragma unroll 1
        for (int pair = 0; pair < 4; pair++) {
            const int id = tile * TILE + pair * 256 + lane * 4;
            const float4 a = row.load(id), b = row.load(id + 128);
            const float first[4] = {a.x, a.y, a.z, a.w}, second[4] = {b.x, b.y, b.z, b.w};
            visit(id, first);
            visit(id + 128, second);
        }
    }
}
