// What comes between the product of queries, keys and values and the attention: norms of heads,
// rotation, and the keys and values into their pages.
//
//   rope_write<<<((heads * ROPE_LANES + 255) / 256, T), 256>>>, heads = nq + 2 * nkv
//
// ROPE_LANES is HEAD_DIM / 16 rounded up to a power of two. No shared memory; T at most 65,535.

#if HEAD_DIM == 16
#define ROPE_LANES 1
#elif HEAD_DIM == 32
#define ROPE_LANES 2
#elif HEAD_DIM <= 64
#define ROPE_LANES 4
#elif HEAD_DIM <= 128
#define ROPE_LANES 8
#else
#define ROPE_LANES 16
#endif

/// Rotates the eight numbers of a half of a head against those of the other half.
__device__ __forceinline__ void rotate(float (&low)[8], float (&high)[8], const float* cosines,
                                       const float* sines) {
#pragma unroll
    for (int four = 0; four < 8; four += 4) {
        const float4 c = *(const float4*)(cosines + four), s = *(const float4*)(sines + four);
        const float cosine[4] = {c.x, c.y, c.z, c.w}, sine[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float a = low[four + i], b = high[four + i];
            low[four + i] = a * cosine[i] - b * sine[i];
            high[four + i] = b * cosine[i] + a * sine[i];
        }
    }
}

/// Query and key heads are normed by `q_norm` and `k_norm` (`[HEAD_DIM]` each, or both null) and
/// rotated; queries go back to `qkv` (`[T, (nq + 2 * nkv) * HEAD_DIM]`), keys and values to the
/// slot of their row in the pages of one layer. `table` has `HEAD_DIM / 2` cosines, then as many
/// sines for each position; a slot is `page * 16 + offset`, and -1 writes nothing.
extern "C" __global__ void __launch_bounds__(256) rope_write(
    bf16* qkv, const float* q_norm, const float* k_norm, const float* table, const int* positions,
    const int* slots, bf16* keys, bf16* values, int nq, int nkv, float eps) {
    const int half = HEAD_DIM / 2, heads = nq + 2 * nkv, t = blockIdx.y;
    const int unit = blockIdx.x * 256 + threadIdx.x;
    const int head = unit / ROPE_LANES, at = unit % ROPE_LANES * 8;
    const bool query = head < nq, value = head >= nq + nkv;
    // All lanes take part in the sums of a warp, those that have nothing with zeros.
    const bool has = head < heads && at < half;
    bf16* const from = qkv + ((long long)t * heads + head) * HEAD_DIM + at;
    float low[8] = {}, high[8] = {};
    if (has) {
        unpack(load_pack(from), low);
        unpack(load_pack(from + half), high);
    }
    float scale = 1.0f;
    if (q_norm) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
#pragma unroll
        for (int far = ROPE_LANES / 2; far > 0; far /= 2) {
            sum += __shfl_xor_sync(EVERY_LANE, sum, far);
        }
        scale = 1.0f / sqrtf(sum / (float)HEAD_DIM + eps);
    }
    if (!has) return;
    if (!value) {
        const float* const weight = query ? q_norm : k_norm;
#pragma unroll
        for (int i = 0; i < 8 && weight; i++) {
            low[i] = low[i] * scale * weight[at + i];
            high[i] = high[i] * scale * weight[half + at + i];
        }
        const float* const cosines = table + (long long)positions[t] * HEAD_DIM + at;
        rotate(low, high, cosines, cosines + half);
    }
    bf16* to = from;
    if (!query) {
        const int slot = slots[t], kv = value ? head - nq - nkv : head - nq;
        if (slot < 0) return;
        const long long row = ((long long)(slot / PAGE) * nkv + kv) * PAGE + slot % PAGE;
        to = (value ? values : keys) + row * HEAD_DIM + at;
    }
    store_pack(to, pack(low));
    store_pack(to + half, pack(high));
}
