// A product of few rows: out = x . w^T, x [m, k], w [n, k] and out [m, n] as `Product` has them.
// Beyond 16 rows `gemm` reads less of w.
//
// Launch: grid (slabs, but two blocks a multiprocessor are enough; m / 16 rounded up), 128 threads,
// SMALL_SHARED bytes of dynamic shared memory.

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    multiply_slabs(product, blockIdx.y * SMALL_ROWS, stages);
}
