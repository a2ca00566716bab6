// Weights into the places that graphs read them from, and how fast memory is.
//
//   cast_rows, copy_rows, widen_rows<<<blocks, 256>>>, blocks = min((n + 2047) / 2048, 4096)
//   probe_read, probe_copy<<<blocks, 256>>>, blocks = 8 for each multiprocessor, at most 4096
//
// No shared memory. Pointers are aligned as their elements are; 16-byte accesses where they are
// aligned to 16 bytes, single ones elsewhere. A fused matrix is filled part by part: a part's rows
// lie one after another in it, so it is `n` elements from the part's first on.

/// out = in, rounded to bf16; `n` elements.
extern "C" __global__ void __launch_bounds__(256) cast_rows(bf16* out, const float* in,
                                                            long long n) {
    by_eights(
        aligned(out, in), n,
        [=](long long i) {
            const float4 low = *(const float4*)(in + i), high = *(const float4*)(in + i + 4);
            const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            store_pack(out + i, pack(all));
        },
        [=](long long i) { out[i] = to_bf16(in[i]); });
}

/// out = in; `n` elements.
extern "C" __global__ void __launch_bounds__(256) copy_rows(bf16* out, const bf16* in,
                                                            long long n) {
    by_eights(
        aligned(out, in), n, [=](long long i) { store_pack(out + i, load_pack(in + i)); },
        [=](long long i) { out[i] = in[i]; });
}

/// out = in as 32-bit floats, for the weights of norms and for biases; `n` elements.
extern "C" __global__ void __launch_bounds__(256) widen_rows(float* out, const bf16* in,
                                                             long long n) {
    by_eights(
        aligned(out, in), n,
        [=](long long i) {
            float all[8];
            unpack(load_pack(in + i), all);
            *(float4*)(out + i) = make_float4(all[0], all[1], all[2], all[3]);
            *(float4*)(out + i + 4) = make_float4(all[4], all[5], all[6], all[7]);
        },
        [=](long long i) { out[i] = to_float(in[i]); });
}

/// Reads `packs` packs of 16 bytes; `sink[b]` is the exclusive or of the words that block b read.
extern "C" __global__ void __launch_bounds__(256) probe_read(unsigned* sink, const uint4* in,
                                                             long long packs) {
    const long long threads = (long long)gridDim.x * 256;
    long long at = (long long)blockIdx.x * 256 + threadIdx.x;
    unsigned bits = 0;
    for (; at + 3 * threads < packs; at += 4 * threads) {
        const uint4 a = in[at], b = in[at + threads];
        const uint4 c = in[at + 2 * threads], d = in[at + 3 * threads];
        bits ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
        bits ^= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; at < packs; at += threads) {
        const uint4 a = in[at];
        bits ^= a.x ^ a.y ^ a.z ^ a.w;
    }
    for (int far = WARP / 2; far > 0; far /= 2) bits ^= __shfl_xor_sync(EVERY_LANE, bits, far);
    __shared__ unsigned warps[8];
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = bits;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < 8; warp++) bits ^= warps[warp];
    sink[blockIdx.x] = bits;
}

/// Copies `packs` packs of 16 bytes.
extern "C" __global__ void __launch_bounds__(256) probe_copy(uint4* out, const uint4* in,
                                                             long long packs) {
    const long long threads = (long long)gridDim.x * 256;
    long long at = (long long)blockIdx.x * 256 + threadIdx.x;
    for (; at + 3 * threads < packs; at += 4 * threads) {
        const uint4 a = in[at], b = in[at + threads];
        const uint4 c = in[at + 2 * threads], d = in[at + 3 * threads];
        out[at] = a;
        out[at + threads] = b;
        out[at + 2 * threads] = c;
        out[at + 3 * threads] = d;
    }
    for (; at < packs; at += threads) out[at] = in[at];
}
