// Pages of FP8: a head of a page is PAGE rows of HEAD_DIM bytes, e4m3, of keys or of values, and
// then a byte for each row: its scale. The scale is the least power of two with which the row's
// largest number is at most 448.
//
// So a number of a page times its scale is a bf16 without rounding, and what is computed of FP8
// pages has the bits of what is computed of bf16 pages with the same numbers. A number loses
// nothing by the scale being a power of two, because e4m3 has an exponent of its own; a scale that
// is no power of two would give one bit more to numbers below a 2^14th of the largest.
//
// The scale's byte is the exponent, as bf16 has it, of 2^120 times the scale: 2^120 is what lies
// between the exponents of e4m3 and of bf16. A row with a number that is none, or with an infinite
// one, has zeros and the byte 255, an infinite scale: it is read as numbers that are none.
//
// The four numbers of a word stand in the order 2, 0, 3, 1, so that two of them come in place for a
// pair of bf16 by shifts alone.

typedef unsigned char PageUnit;
/// Units of a head of a page.
#define PAGE_HEAD (PAGE * (HEAD_DIM + 1))

/// The least and the largest byte of a scale that is a number: 2^-110 and 2^7.
#define SCALE_MIN 137
#define SCALE_MAX 254
#define SCALE_NONE 255
#define E4M3_MAX 448.0f

/// The byte of the scale of a row, from the bits of its largest bf16 without their sign.
__device__ __forceinline__ unsigned scale_of(unsigned largest) {
    if (largest >= 0x7f80u) return SCALE_NONE;
    // 448 is 1.75 * 2^8: what is above 1.75 times a power of two carries into the exponent.
    int exponent = (int)((largest + 0x1f) >> 7) + 112;
    return min(max(exponent, SCALE_MIN), SCALE_MAX);
}

/// What a number is multiplied by before it is rounded to e4m3: one over the scale.
__device__ __forceinline__ float unscale(unsigned scale) {
    return __uint_as_float((254 + 120 - scale) << 23);
}

/// The nearest e4m3, ties to even, of a number; 448 for larger ones.
__device__ __forceinline__ unsigned to_e4m3(float number) {
    unsigned bits = __float_as_uint(number), sign = bits >> 24 & 0x80u;
    float size = fminf(__uint_as_float(bits & 0x7fffffffu), E4M3_MAX);
    // Below 2^-6 numbers are multiples of 2^-9, as floats near 2^14 are.
    unsigned small = __float_as_uint(size + 16384.0f) - __float_as_uint(16384.0f);
    unsigned whole = __float_as_uint(size);
    unsigned large = ((whole + 0x7ffffu + (whole >> 20 & 1u)) >> 20) - (120 << 3);
    return sign | (size < 0.015625f ? small : large);
}

/// Four numbers, two bf16 a word, as a word of e4m3.
__device__ __forceinline__ unsigned to_e4m3_word(unsigned low, unsigned high, float factor) {
    return to_e4m3(low_float(high) * factor) | to_e4m3(low_float(low) * factor) << 8 |
           to_e4m3(high_float(high) * factor) << 16 | to_e4m3(high_float(low) * factor) << 24;
}

/// The larger of two bf16 without their sign, of each word.
__device__ __forceinline__ unsigned larger_size(unsigned largest, unsigned pair) {
    return max(largest, max(pair & 0x7fffu, pair >> 16 & 0x7fffu));
}

/// Eight bf16 as e4m3.
__device__ __forceinline__ uint2 to_e4m3_pack(uint4 pack, unsigned scale) {
    if (scale == SCALE_NONE) return make_uint2(0, 0);
    float factor = unscale(scale);
    return make_uint2(
        to_e4m3_word(pack.x, pack.y, factor), to_e4m3_word(pack.z, pack.w, factor));
}

/// The products of the bf16 of two words, pair by pair, rounded once.
__device__ __forceinline__ unsigned multiply_pair(unsigned a, unsigned b) {
#ifdef ROLLTAPE_EMULATED
    return to_pair(low_float(a) * low_float(b), high_float(a) * high_float(b));
#else
    unsigned product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
#endif
}

/// Two e4m3 in the upper halves of the halves of a word, as bf16 that are a 2^120th of them.
__device__ __forceinline__ unsigned widen_pair(unsigned pair) {
    return (pair & 0x80008000u) | (pair >> 4 & 0x07f007f0u);
}

/// Four e4m3 of a word, times `scale`, which is the exponent's bits of a bf16 twice.
__device__ __forceinline__ uint2 widen_word(unsigned word, unsigned scale) {
    return make_uint2(
        multiply_pair(widen_pair(word), scale), multiply_pair(widen_pair(word << 8), scale));
}
