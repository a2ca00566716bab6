// Numbers that the host and every device must get alike: exp for weights, floats in the order of
// integers, and the uniform number of a draw.
//
// The generator is SplitMix64 (Steele, Lea and Flood, 2014) with a counter for its state: the seed
// of a reply and the place of a token in it give the number, whatever was drawn before or beside
// it.

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// exp(d) for d of at most zero; zero below -87 and for what is not a number. Only additions,
// products and fused ones of 32 bits, so that every device gives the same bits.
__device__ __forceinline__ float weight(float d) {
    const float bounded = d > -87.0f ? d : -87.0f;
    const float shifted = fmaf(bounded, 1.44269504f, 12582912.0f);
    const float whole = shifted - 12582912.0f;
    const float rest = fmaf(whole, 2.12194440e-4f, fmaf(whole, -0.693359375f, bounded));
    float power = fmaf(1.9875691e-4f, rest, 1.3981999e-3f);
    power = fmaf(power, rest, 8.333452e-3f);
    power = fmaf(power, rest, 4.1665796e-2f);
    power = fmaf(power, rest, 0.16666665f);
    power = fmaf(power, rest, 0.5f);
    const float fraction = fmaf(power, rest * rest, rest) + 1.0f;
    // The integer stands in the low bits of the shifted number; it becomes the exponent.
    const int scale = (int)(((unsigned)__float_as_int(shifted) << 23) + (127u << 23));
    return d > -87.0f ? fraction * __int_as_float(scale) : 0.0f;
}

// Integers in the order of the floats that they stand for, and back.
__device__ __forceinline__ unsigned key_of(float value) {
    const unsigned bits = (unsigned)__float_as_int(value);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(unsigned key) {
    return __int_as_float((int)(key >> 31 ? key & 0x7fffffffu : ~key));
}

// The numbers of the SplitMix64 generator that the host draws, too.
__device__ __forceinline__ unsigned long long mix(unsigned long long value) {
    value += 0x9E3779B97F4A7C15ull;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

__device__ __forceinline__ double uniform(unsigned long long seed, int position) {
    const unsigned long long counter = (unsigned long long)position * 0x9E3779B97F4A7C15ull;
    return (double)(mix(mix(seed) + counter) >> 11) * (1.0 / 9007199254740992.0);
}

__device__ __forceinline__ double sum_of_warp(double value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(EVERY_LANE, value, step);
    return value;
}
