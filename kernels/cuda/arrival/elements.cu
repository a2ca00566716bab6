// Elements of tensors as a trainer broadcasts them: checked, and converted to the type that serves.
//
//   check_f32, check_bf16, round_f32, round_f16, widen_f16, widen_bf16<<<blocks, 256>>>,
//   blocks = min((n + 2047) / 2048, 4096)
//
// No shared memory. An input lies where the broadcast has put it, at any even address, and a result
// at a 16-byte border. `bad` becomes 1 if an element is infinite or NaN after the conversion, and
// stays as it is otherwise. Numbers are bits here and rounded as integers, so that the results, and
// with them the checksums, have the host's bits on every device.

/// Bits of the `f32` that a float16 is, exactly; a NaN becomes quiet.
__device__ __forceinline__ unsigned widened_f16(unsigned half) {
    const unsigned sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest > 0x7c00u) return sign | 0x7fc00000u | rest << 13;
    if (rest == 0x7c00u) return sign | 0x7f800000u;
    if (rest >= 0x0400u) return sign | ((rest << 13) + (112u << 23));
    // What is below the normal numbers is a multiple of 2^-24.
    return sign | __float_as_uint((float)rest * 5.9604644775390625e-8f);
}

/// Bits of the `f32` that a bf16 is; a NaN becomes quiet.
__device__ __forceinline__ unsigned widened_bf16(unsigned half) {
    return ((half & 0x7fffu) > 0x7f80u ? half | 0x40u : half) << 16;
}

/// The nearest bf16 of an `f32`, ties to even; a NaN becomes quiet.
__device__ __forceinline__ unsigned rounded(unsigned wide) {
    if ((wide & 0x7fffffffu) > 0x7f800000u) return wide >> 16 | 0x40u;
    return (wide + 0x7fffu + (wide >> 16 & 1u)) >> 16;
}

/// True for bits of an `f32`, or of a bf16, that are infinite or NaN.
template <bool WIDE>
__device__ __forceinline__ bool is_bad(unsigned bits) {
    const unsigned exponent = WIDE ? 0x7f800000u : 0x7f80u;
    return (bits & exponent) == exponent;
}

/// The bits of eight elements of four bytes, or of two, at a 16-byte border.
template <bool WIDE>
__device__ __forceinline__ void load_eight(const unsigned char* in, long long i,
                                           unsigned (&bits)[8]) {
    const uint4* const from = (const uint4*)(in + i * (WIDE ? 4 : 2));
    if (WIDE) {
        const uint4 low = from[0], high = from[1];
        bits[0] = low.x, bits[1] = low.y, bits[2] = low.z, bits[3] = low.w;
        bits[4] = high.x, bits[5] = high.y, bits[6] = high.z, bits[7] = high.w;
        return;
    }
    const unsigned pairs[4] = {from->x, from->y, from->z, from->w};
#pragma unroll
    for (int at = 0; at < 4; at++) {
        bits[2 * at] = pairs[at] & 0xffffu;
        bits[2 * at + 1] = pairs[at] >> 16;
    }
}

/// The bits of an element of four bytes, or of two, at an even address.
template <bool WIDE>
__device__ __forceinline__ unsigned load_one(const unsigned char* in, long long i) {
    const unsigned short* const halves = (const unsigned short*)in + i * (WIDE ? 2 : 1);
    return WIDE ? halves[0] | (unsigned)halves[1] << 16 : halves[0];
}

__device__ __forceinline__ void report(unsigned* bad, bool seen) {
    if (seen) atomicOr(bad, 1u);
}

/// Writes `n` elements of two bytes: `convert` of the bits of each.
template <bool WIDE, class Convert>
__device__ __forceinline__ void write_bf16(unsigned* bad, bf16* out, const unsigned char* in,
                                           long long n, const Convert& convert) {
    bool seen = false;
    by_eights(
        aligned(out, in), n,
        [&](long long i) {
            unsigned bits[8];
            load_eight<WIDE>(in, i, bits);
#pragma unroll
            for (int at = 0; at < 8; at++) {
                bits[at] = convert(bits[at]);
                seen |= is_bad<false>(bits[at]);
            }
            *(uint4*)(out + i) = make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16,
                                            bits[4] | bits[5] << 16, bits[6] | bits[7] << 16);
        },
        [&](long long i) {
            const unsigned half = convert(load_one<WIDE>(in, i));
            seen |= is_bad<false>(half);
            out[i] = (bf16)half;
        });
    report(bad, seen);
}

/// Writes `n` elements of four bytes: `convert` of the bits of each, which has two bytes.
template <class Convert>
__device__ __forceinline__ void write_f32(unsigned* bad, unsigned* out, const unsigned char* in,
                                          long long n, const Convert& convert) {
    bool seen = false;
    by_eights(
        aligned(out, in), n,
        [&](long long i) {
            unsigned bits[8];
            load_eight<false>(in, i, bits);
#pragma unroll
            for (int at = 0; at < 8; at++) {
                bits[at] = convert(bits[at]);
                seen |= is_bad<true>(bits[at]);
            }
            uint4* const to = (uint4*)(out + i);
            to[0] = make_uint4(bits[0], bits[1], bits[2], bits[3]);
            to[1] = make_uint4(bits[4], bits[5], bits[6], bits[7]);
        },
        [&](long long i) {
            const unsigned wide = convert(load_one<false>(in, i));
            seen |= is_bad<true>(wide);
            out[i] = wide;
        });
    report(bad, seen);
}

/// Checks `n` elements of four bytes, or of two.
template <bool WIDE>
__device__ __forceinline__ void check(unsigned* bad, const unsigned char* in, long long n) {
    bool seen = false;
    by_eights(
        aligned(in, in), n,
        [&](long long i) {
            unsigned bits[8];
            load_eight<WIDE>(in, i, bits);
#pragma unroll
            for (int at = 0; at < 8; at++) seen |= is_bad<WIDE>(bits[at]);
        },
        [&](long long i) { seen |= is_bad<WIDE>(load_one<WIDE>(in, i)); });
    report(bad, seen);
}

/// Checks `n` numbers of 32 bits.
extern "C" __global__ void __launch_bounds__(256) check_f32(unsigned* bad, const unsigned char* in,
                                                            long long n) {
    check<true>(bad, in, n);
}

/// Checks `n` numbers of bf16.
extern "C" __global__ void __launch_bounds__(256) check_bf16(unsigned* bad, const unsigned char* in,
                                                             long long n) {
    check<false>(bad, in, n);
}

/// out = in, from 32 bits to bf16; `n` elements.
extern "C" __global__ void __launch_bounds__(256) round_f32(unsigned* bad, bf16* out,
                                                            const unsigned char* in, long long n) {
    write_bf16<true>(bad, out, in, n, [](unsigned wide) { return rounded(wide); });
}

/// out = in, from float16 to bf16 by way of 32 bits; `n` elements.
extern "C" __global__ void __launch_bounds__(256) round_f16(unsigned* bad, bf16* out,
                                                            const unsigned char* in, long long n) {
    write_bf16<false>(bad, out, in, n, [](unsigned half) { return rounded(widened_f16(half)); });
}

/// out = in, from float16 to 32 bits; `n` elements.
extern "C" __global__ void __launch_bounds__(256) widen_f16(unsigned* bad, unsigned* out,
                                                            const unsigned char* in, long long n) {
    write_f32(bad, out, in, n, [](unsigned half) { return widened_f16(half); });
}

/// out = in, from bf16 to 32 bits; `n` elements.
extern "C" __global__ void __launch_bounds__(256) widen_bf16(unsigned* bad, unsigned* out,
                                                             const unsigned char* in, long long n) {
    write_f32(bad, out, in, n, [](unsigned half) { return widened_bf16(half); });
}
