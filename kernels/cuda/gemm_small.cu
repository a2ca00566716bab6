// Products of few rows: out = x . w^T, x [m, k], w [n, k] and out [m, n] as `Product` has them. The
// bits are those of `gemm`, which reads less of w where m is more than the rows of a block.
//
// Launch: grid (slabs, but two blocks a multiprocessor are enough; m / ROWS rounded up), 128
// threads, `Slabs<ROWS>::SHARED` bytes of dynamic shared memory. ROWS is 16, 32 or 64.

template <int ROWS>
__device__ __forceinline__ void multiply(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out,
    unsigned char* stages) {
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    multiply_slabs<ROWS>(product, blockIdx.y * ROWS, stages);
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    multiply<SMALL_ROWS>(out, x, w, m, n, k, f32_out, stages);
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small_32(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    multiply<32>(out, x, w, m, n, k, f32_out, stages);
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small_64(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    multiply<64>(out, x, w, m, n, k, f32_out, stages);
}
