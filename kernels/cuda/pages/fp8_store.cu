// Keys and values into pages of FP8, rounded from the bf16 that pages of bf16 would have.

/// The largest of the sizes that neighboring lanes hold, `LANES` of them.
template <int LANES>
__device__ __forceinline__ unsigned largest_of(unsigned size) {
#pragma unroll
    for (int far = LANES / 2; far > 0; far /= 2) {
        size = max(size, __shfl_xor_sync(EVERY_LANE, size, far));
    }
    return size;
}

/// The largest size of the bf16 of a pack, or that so far.
__device__ __forceinline__ unsigned largest_of_pack(unsigned largest, uint4 pack) {
    largest = larger_size(larger_size(largest, pack.x), pack.y);
    return larger_size(larger_size(largest, pack.z), pack.w);
}

/// Writes a lane's part of a head, from `at` on, to its place in a page. `head` is of this page.
/// All lanes of a warp take part.
__device__ __forceinline__ void store_part(
    PageUnit* head, int place, int at, const HeadPart& part, bool has) {
    uint4 low = pack(part.low), high = pack(part.high);
    unsigned own = has ? largest_of_pack(largest_of_pack(0, low), high) : 0;
    unsigned scale = scale_of(largest_of<ROPE_LANES>(own));
    if (!has) return;
    PageUnit* row = head + place * HEAD_DIM + at;
    *(uint2*)row = to_e4m3_pack(low, scale);
    *(uint2*)(row + ROPE_HALF) = to_e4m3_pack(high, scale);
    if (at == 0) head[PAGE * HEAD_DIM + place] = scale;
}

/// Writes a head of which each lane of a warp has pairs of neighbors, those that there are.
__device__ __forceinline__ void store_pairs(
    PageUnit* head, int place, const unsigned (&pairs)[ROPE_PAIRS]) {
    const int lane = threadIdx.x % WARP;
    unsigned own = 0;
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        if (2 * (i * WARP + lane) < HEAD_DIM) own = larger_size(own, pairs[i]);
    }
    const unsigned scale = scale_of(largest_of<WARP>(own));
    const float factor = scale == SCALE_NONE ? 0.0f : unscale(scale);
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const int at = 2 * (i * WARP + lane);
        // Two lanes have a word of four numbers.
        const unsigned next = __shfl_xor_sync(EVERY_LANE, pairs[i], 1);
        if (at >= HEAD_DIM || lane % 2 == 1) continue;
        const unsigned word = to_e4m3_word(pairs[i], next, factor);
        *(unsigned*)(head + place * HEAD_DIM + at) = scale == SCALE_NONE ? 0 : word;
    }
    if (lane == 0) head[PAGE * HEAD_DIM + place] = scale;
}
