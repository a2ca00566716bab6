// Products of few rows: out = x . w^T, x [m, k], w [n, k] and out [m, n] as `Product` has them. The
// bits are those of `gemm`, which reads less of w where m is more than the rows of a block; the
// kernels with `spread` in their names have other bits.
//
// Launch: grid (slabs, but two blocks a multiprocessor are enough; m / ROWS rounded up), 128
// threads, `Slabs<ROWS>::SHARED` or `Spread<GROUPS>::SHARED` bytes of dynamic shared memory. ROWS
// is 16, 32 or 64; those with `spread` take up to 16 rows. `gemm_parts` takes 17 to 32 rows: grid
// (slabs, parts), `Slabs<32>::SHARED` bytes.

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    multiply_slabs<SMALL_ROWS>(product, blockIdx.y * SMALL_ROWS, stages);
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small_32(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    multiply_slabs<32>(product, blockIdx.y * 32, stages);
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small_64(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    multiply_slabs<64>(product, blockIdx.y * 64, stages);
}

/// A gated product; n is even.
extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small_gated(
    bf16* out, const bf16* x, const bf16* w, int m, int n, int k) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, 0};
    multiply_slabs<SMALL_ROWS, true>(product, blockIdx.y * SMALL_ROWS, stages);
}

/// A gated product; n is even.
extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small_32_gated(
    bf16* out, const bf16* x, const bf16* w, int m, int n, int k) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, 0};
    multiply_slabs<32, true>(product, blockIdx.y * 32, stages);
}

/// A gated product; n is even.
extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_small_64_gated(
    bf16* out, const bf16* x, const bf16* w, int m, int n, int k) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, 0};
    multiply_slabs<64, true>(product, blockIdx.y * 64, stages);
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_spread(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    multiply_spread_slabs<4>(product, stages);
}

/// For products whose slabs of 32 rows of w would leave half of the multiprocessors idle: slabs
/// of 8.
extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_spread_narrow(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    multiply_spread_slabs<1>(product, stages);
}

/// A gated product; n is even.
extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_spread_gated(
    bf16* out, const bf16* x, const bf16* w, int m, int n, int k) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, 0};
    multiply_spread_slabs<4, true>(product, stages);
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 2) gemm_parts(
    void* out, const bf16* x, const bf16* w, int m, int n, int k, int f32_out, float* sums,
    unsigned* arrived, int depth) {
    DYNAMIC_SHARED(stages);
    Product product = {out, x, w, nullptr, m, n, k, f32_out};
    Meeting meeting = {sums, arrived, depth};
    multiply_part<32>(product, meeting, stages);
}
