// A head of a row on its way from the product of queries, keys and values: its norm and rotation,
// and the place of keys and values in their pages.
//
// Neighboring lanes share a head, ROPE_LANES of them: HEAD_DIM / 16 rounded up to a power of two. A
// lane has eight numbers of the first half, from `at` on, and those that they are rotated against.

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
#define ROPE_HALF (HEAD_DIM / 2)
/// Pairs of neighbors that a lane has, where a warp has a head.
#define ROPE_PAIRS ((HEAD_DIM + 63) / 64)

/// A lane's numbers of a head.
struct HeadPart {
    float low[8], high[8];
};

/// The norm and the rotation of heads: weights for queries and for keys (`[HEAD_DIM]` each, or both
/// null), to which `offset` is added, and `table`, which has `HEAD_DIM / 2` cosines, then as many
/// sines for each position.
struct Rotation {
    const float* q_norm;
    const float* k_norm;
    const float* table;
    float eps, offset;
};

/// Loads a part of the head at `from`, or zeros if the lane has none.
__device__ __forceinline__ HeadPart load_part(const bf16* from, int at, bool has) {
    HeadPart part = {};
    if (has) {
        unpack(load_pack(from + at), part.low);
        unpack(load_pack(from + ROPE_HALF + at), part.high);
    }
    return part;
}

/// The factor by which the norm of a head scales it. All lanes of a warp take part.
__device__ __forceinline__ float norm_scale(const HeadPart& part, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum = fmaf(part.low[i], part.low[i], fmaf(part.high[i], part.high[i], sum));
    }
#pragma unroll
    for (int far = ROPE_LANES / 2; far > 0; far /= 2) {
        sum += __shfl_xor_sync(EVERY_LANE, sum, far);
    }
    return 1.0f / sqrtf(sum / (float)HEAD_DIM + eps);
}

/// Rotates the numbers of a half of a head against those of the other half. Products that feed a
/// sum are `fmaf`, so that the kernels that rotate agree.
__device__ __forceinline__ void rotate(HeadPart& part, const float* cosines, const float* sines) {
#pragma unroll
    for (int four = 0; four < 8; four += 4) {
        const float4 c = *(const float4*)(cosines + four), s = *(const float4*)(sines + four);
        const float cosine[4] = {c.x, c.y, c.z, c.w}, sine[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float a = part.low[four + i], b = part.high[four + i];
            part.low[four + i] = fmaf(a, cosine[i], -(b * sine[i]));
            part.high[four + i] = fmaf(b, cosine[i], a * sine[i]);
        }
    }
}

/// Norms a part of a query or key head by `weight`, unless that is null, and rotates it for a
/// position.
__device__ __forceinline__ void turn(
    HeadPart& part, int at, float scale, const float* weight, const Rotation& rotation,
    int position) {
#pragma unroll
    for (int i = 0; i < 8 && weight; i++) {
        part.low[i] = part.low[i] * scale * (weight[at + i] + rotation.offset);
        part.high[i] = part.high[i] * scale * (weight[ROPE_HALF + at + i] + rotation.offset);
    }
    const float* const cosines = rotation.table + (long long)position * HEAD_DIM + at;
    rotate(part, cosines, cosines + ROPE_HALF);
}

/// The place of head `kv`, of `nkv` heads, of the page of this slot in the keys or values of a
/// layer.
__device__ __forceinline__ long long page_head(int slot, int kv, int nkv) {
    return ((long long)(slot / PAGE) * nkv + kv) * PAGE_HEAD;
}
