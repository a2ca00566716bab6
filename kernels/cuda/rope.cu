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

/// Norm (where there is a weight) and rotation of a head, of which this lane has eight numbers of
/// the first half and the eight of the second that turn with them.
__device__ __forceinline__ void turn(float (&low)[8], float (&high)[8], int lane,
                                     const float* weight, const float* table, float eps) {
    const int at = lane * 8, half = HEAD_DIM / 2;
    const bool whole = at < half;
    if (weight) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
        if (!whole) sum = 0.0f;
#pragma unroll
        for (int far = ROPE_LANES / 2; far > 0; far /= 2) {
            sum += __shfl_xor_sync(EVERY_LANE, sum, far);
        }
        const float scale = 1.0f / sqrtf(sum / (float)HEAD_DIM + eps);
        if (whole) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                low[i] *= scale * weight[at + i];
                high[i] *= scale * weight[half + at + i];
            }
        }
    }
    if (!whole) return;
#pragma unroll
    for (int four = 0; four < 8; four += 4) {
        const float4 cosines = *(const float4*)(table + at + four);
        const float4 sines = *(const float4*)(table + half + at + four);
        const float cosine[4] = {cosines.x, cosines.y, cosines.z, cosines.w};
        const float sine[4] = {sines.x, sines.y, sines.z, sines.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float a = low[four + i], b = high[four + i];
            low[four + i] = a * cosine[i] - b * sine[i];
            high[four + i] = b * cosine[i] + a * sine[i];
        }
    }
}

/// Query and key heads are normed by `q_norm` and `k_norm` (`[HEAD_DIM]` each, or null for no norm)
/// and rotated; queries go back to `qkv` (`[T, (nq + 2 * nkv) * HEAD_DIM]`), keys and values to
/// the slot of their row in the pages of one layer. `table` has `HEAD_DIM / 2` cosines, then as
/// many sines for each position; a slot is `page * 16 + offset`, and -1 writes nothing.
extern "C" __global__ void __launch_bounds__(256) rope_write(
    bf16* qkv, const float* q_norm, const float* k_norm, const float* table, const int* positions,
    const int* slots, bf16* keys, bf16* values, int nq, int nkv, float eps) {
    const int t = blockIdx.y, heads = nq + 2 * nkv;
    const int unit = blockIdx.x * 256 + threadIdx.x;
    const int head = unit / ROPE_LANES, lane = unit % ROPE_LANES, at = lane * 8;
    // All lanes take part in the sums of a warp, those without numbers with zeros.
    const bool has = head < heads && at < HEAD_DIM / 2;
    bf16* const from = qkv + ((long long)t * heads + head) * HEAD_DIM + at;
    float low[8] = {}, high[8] = {};
    if (has) {
        unpack(load_pack(from), low);
        unpack(load_pack(from + HEAD_DIM / 2), high);
    }
    const bool query = head < nq, value = head >= nq + nkv;
    const float* const weight = query ? q_norm : k_norm;
    if (q_norm) {
        // A warp may hold heads of all three kinds.
        float normed_low[8], normed_high[8];
#pragma unroll
        for (int i = 0; i < 8; i++) normed_low[i] = low[i], normed_high[i] = high[i];
        turn(normed_low, normed_high, lane, weight, table + (long long)positions[t] * HEAD_DIM, eps);
#pragma unroll
        for (int i = 0; i < 8 && !value; i++) low[i] = normed_low[i], high[i] = normed_high[i];
    } else if (has && !value) {
        turn(low, high, lane, nullptr, table + (long long)positions[t] * HEAD_DIM, eps);
    }
    if (!has) return;
    bf16* to = from;
    if (!query) {
        const int slot = slots[t], kv = value ? head - nq - nkv : head - nq;
        if (slot < 0) return;
        const long long row = ((long long)(slot / PAGE) * nkv + kv) * PAGE + slot % PAGE;
        to = (value ? values : keys) + row * HEAD_DIM + at;
    }
    store_pack(to, pack(low));
    store_pack(to + HEAD_DIM / 2, pack(high));
}
