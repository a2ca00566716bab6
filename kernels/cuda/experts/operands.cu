// The product of one tile of places with the matrix of their expert.

/// x `[T, k]` or `[pairs, k]`: a place's input is the row `rows[place]` of x, or without `rows` the
/// row of its own number. matrices has the address of a `[n, k]` matrix for each expert, out is
/// `[pairs, width]` by place.
__device__ __forceinline__ Product product_of(
    bf16* out, const bf16* x, const bf16* const* matrices, const int* rows, int4 tile, int n,
    int k, int width) {
    const int expert = tile.x, place = tile.y, count = tile.z;
    const bf16* from = rows ? x : x + (long long)place * k;
    out += (long long)place * width;
    return {out, from, matrices[expert], rows ? rows + place : nullptr, count, n, k, 0};
}
