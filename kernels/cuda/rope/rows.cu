// What comes between the product of queries, keys and values and the attention: norms of heads,
// rotation, and the keys and values into their pages. Names of kernels over pages of FP8 end in
// `_fp8`.
//
//   rope_write<<<((heads * ROPE_LANES + 255) / 256, T), 256>>>, heads = nq + 2 * nkv
//   rope_write_part<<<((heads + 7) / 8, T), 256>>>
//
// No dynamic shared memory; T at most 65,535.

/// Query and key heads are normed by `q_norm` and `k_norm` plus `offset` (`[HEAD_DIM]` each, or
/// both null) and rotated; queries go back to `qkv` (`[T, (nq + 2 * nkv) * HEAD_DIM]`), keys and
/// values to the slot of their row in the pages of one layer. `table` has `HEAD_DIM / 2` cosines,
/// then as many sines for each position; a slot is `page * 16 + place`, and -1 writes nothing.
__device__ __forceinline__ void rotate_and_write(
    bf16* qkv, const float* q_norm, const float* k_norm, const float* table, const int* positions,
    const int* slots, PageUnit* keys, PageUnit* values, int nq, int nkv, float eps,
    float offset) {
    take_over();
    const int heads = nq + 2 * nkv, t = blockIdx.y;
    const int unit = blockIdx.x * 256 + threadIdx.x;
    const int head = unit / ROPE_LANES, at = unit % ROPE_LANES * 8;
    const bool query = head < nq, value = head >= nq + nkv;
    // All lanes take part in the sums of a warp, those that have nothing with zeros.
    const bool has = head < heads && at < ROPE_HALF;
    bf16* const from = qkv + ((long long)t * heads + head) * HEAD_DIM;
    HeadPart part = load_part(from, at, has);
    const float scale = q_norm ? norm_scale(part, eps) : 1.0f;
    if (has && !value) {
        const Rotation rotation = {q_norm, k_norm, table, eps, offset};
        turn(part, at, scale, query ? q_norm : k_norm, rotation, positions[t]);
    }
    if (has && query) {
        store_pack(from + at, pack(part.low));
        store_pack(from + ROPE_HALF + at, pack(part.high));
    }
    const int slot = slots[t], kv = value ? head - nq - nkv : head - nq;
    if (slot < 0) return;
    const bool kept = has && !query;
    PageUnit* const page = (value ? values : keys) + (kept ? page_head(slot, kv, nkv) : 0);
    store_part(page, slot % PAGE, at, part, kept);
}

/// As `rope_write`, but only the first `width` elements of a head are rotated, the first half of
/// them against the second: `table` has `width / 2` cosines, then as many sines for each position.
/// A warp has a head, and a lane has pairs of neighbors. `width` is even.
__device__ __forceinline__ void rotate_part_and_write(
    bf16* qkv, const float* q_norm, const float* k_norm, const float* table, const int* positions,
    const int* slots, PageUnit* keys, PageUnit* values, int nq, int nkv, float eps, float offset,
    int width) {
    take_over();
    __shared__ float all_numbers[8 * HEAD_DIM];
    const int heads = nq + 2 * nkv, t = blockIdx.y, lane = threadIdx.x % WARP;
    const int head = blockIdx.x * 8 + threadIdx.x / WARP;
    if (head >= heads) return;
    const bool query = head < nq, value = head >= nq + nkv;
    float* const numbers = all_numbers + threadIdx.x / WARP * HEAD_DIM;
    bf16* const from = qkv + ((long long)t * heads + head) * HEAD_DIM;
    float low[ROPE_PAIRS], high[ROPE_PAIRS], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const int at = 2 * (i * WARP + lane);
        const unsigned pair = at < HEAD_DIM ? *(const unsigned*)(from + at) : 0;
        low[i] = low_float(pair);
        high[i] = high_float(pair);
        sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
    }
    const float* const weight = value ? nullptr : query ? q_norm : k_norm;
    const float scale = 1.0f / sqrtf(warp_sum(sum) / (float)HEAD_DIM + eps);
#pragma unroll
    for (int i = 0; i < ROPE_PAIRS; i++) {
        const int at = 2 * (i * WARP + lane);
        if (at >= HEAD_DIM) continue;
        if (weight) {
            low[i] = low[i] * scale * (weight[at] + offset);
            high[i] = high[i] * scale * (weight[at + 1] + offset);
        }
        numbers[at] = low[i];
        numbers[at + 1] = high[i];
    }
    __syncwarp();

    const float* const cosines = table + (long long)positions[t] * width;
    const int half = width / 2;
    unsigned turned[ROPE_PAIRS];
#pragma unroll
    for (int pair = 0; pair < ROPE_PAIRS; pair++) {
        const int at = 2 * (pair * WARP + lane);
        float both[2] = {};
#pragma unroll
        for (int i = 0; i < 2 && at < HEAD_DIM; i++) {
            const int own = at + i, turn = own < half ? own : own - half;
            both[i] = numbers[own];
            if (value || own >= width) continue;
            const float other = numbers[own < half ? own + half : turn];
            const float sine = cosines[half + turn];
            both[i] = both[i] * cosines[turn] + other * (own < half ? -sine : sine);
        }
        turned[pair] = to_pair(both[0], both[1]);
        if (query && at < HEAD_DIM) *(unsigned*)(from + at) = turned[pair];
    }
    const int slot = slots[t], kv = value ? head - nq - nkv : head - nq;
    if (query || slot < 0) return;
    store_pairs((value ? values : keys) + page_head(slot, kv, nkv), slot % PAGE, turned);
}
