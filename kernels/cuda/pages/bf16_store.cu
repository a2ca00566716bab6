// Keys and values into pages of bf16.

/// Writes a lane's part of a head, from `at` on, to its place in a page. `head` is of this page.
/// All lanes of a warp take part.
__device__ __forceinline__ void store_part(
    PageUnit* head, int place, int at, const HeadPart& part, bool has) {
    if (!has) return;
    PageUnit* row = head + place * HEAD_DIM + at;
    store_pack(row, pack(part.low));
    store_pack(row + ROPE_HALF, pack(part.high));
}

/// Writes a head of which each lane of a warp has pairs of neighbors, those that there are.
__device__ __forceinline__ void store_pairs(
    PageUnit* head, int place, const unsigned (&pairs)[ROPE_PAIRS]) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const int at = 2 * (i * WARP + lane);
        if (at < HEAD_DIM) *(unsigned*)(head + place * HEAD_DIM + at) = pairs[i];
    }
}
