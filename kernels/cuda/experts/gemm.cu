// The products of experts with many rows: tiles of 128 places, as `sort_pairs` made them.
//
// Launch: grid (tiles, n / 128 rounded up), 128 threads, GEMM_SHARED bytes of dynamic shared
// memory. Blocks that share rows of a matrix are neighbours, so it is read from memory once.

/// See `product_of`; k is a multiple of 8.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2) expert_gemm(
    bf16* out, const bf16* x, const bf16* const* matrices, const int* rows, const int4* tiles,
    int n, int k) {
    take_over();
    DYNAMIC_SHARED(stages);
    const int4 tile = tiles[blockIdx.x];
    if (tile.x < 0) return;
    Product product = product_of(out, x, matrices, rows, tile, n, k, n);
    multiply_tile(product, 0, blockIdx.y * GEMM_TILE, stages);
}

/// As `expert_gemm`, gated: out is `[pairs, n / 2]` by place.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2) expert_gemm_gated(
    bf16* out, const bf16* x, const bf16* const* matrices, const int* rows, const int4* tiles,
    int n, int k) {
    take_over();
    DYNAMIC_SHARED(stages);
    const int4 tile = tiles[blockIdx.x];
    if (tile.x < 0) return;
    Product product = product_of(out, x, matrices, rows, tile, n, k, n / 2);
    multiply_tile<true>(product, 0, blockIdx.y * GEMM_TILE, stages);
}
