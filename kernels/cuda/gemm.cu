// Products of many rows: out = x . w^T, x [m, k], w [n, k] and out [m, n] as `Product` has them.
//
// Launch: grid (m / 128, n / 128), each rounded up, 128 threads, GEMM_SHARED bytes of dynamic
// shared memory. Blocks that share rows of w are neighbours, so w is read from memory once.

extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2) gemm(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    take_over();
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    multiply_tile(product, blockIdx.x * GEMM_TILE, blockIdx.y * GEMM_TILE, stages);
}

/// A gated product; n is even.
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 2) gemm_gated(
    bf16* out, const bf16* x, const bf16* w, int m, int n, int k) {
    take_over();
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, 0};
    multiply_tile<true>(product, blockIdx.x * GEMM_TILE, blockIdx.y * GEMM_TILE, stages);
}
