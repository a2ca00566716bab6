// The products of experts with few rows: tiles of 16 places, as `sort_pairs` made them. The bits
// are those of `expert_gemm`.
//
// Launch: grid (slabs or fewer, tiles), 128 threads, `Slabs<SMALL_ROWS>::SHARED`
// bytes of dynamic shared memory.

/// See `product_of`; k is a multiple of 8.
extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) expert_gemm_small(
    bf16* out, const bf16* x, const bf16* const* matrices, const int* rows, const int4* tiles,
    int n, int k) {
    take_over();
    DYNAMIC_SHARED(stages);
    const int4 tile = tiles[blockIdx.y];
    if (tile.x < 0) return;
    Product product = product_of(out, x, matrices, rows, tile, n, k, n);
    multiply_slabs<SMALL_ROWS>(product, 0, stages);
}

/// As `expert_gemm_small`, gated: out is `[pairs, n / 2]` by place.
extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) expert_gemm_small_gated(
    bf16* out, const bf16* x, const bf16* const* matrices, const int* rows, const int4* tiles,
    int n, int k) {
    take_over();
    DYNAMIC_SHARED(stages);
    const int4 tile = tiles[blockIdx.y];
    if (tile.x < 0) return;
    Product product = product_of(out, x, matrices, rows, tile, n, k, n / 2);
    multiply_slabs<SMALL_ROWS, true>(product, 0, stages);
}
