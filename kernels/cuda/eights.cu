// Loops over elements in memory, eight at a time where addresses allow it.

/// Runs `whole(i)` for runs of eight elements from `i` on and `single(i)` for what is left; all
/// singly where the pointers are not aligned.
template <class Whole, class Single>
__device__ __forceinline__ void by_eights(bool aligned, long long n, const Whole& whole,
                                          const Single& single) {
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long threads = (long long)gridDim.x * blockDim.x, eights = aligned ? n / 8 : 0;
    for (long long i = thread; i < eights; i += threads) whole(i * 8);
    for (long long i = eights * 8 + thread; i < n; i += threads) single(i);
}

__device__ __forceinline__ bool aligned(const void* a, const void* b) {
    return (((u64)a | (u64)b) & 15) == 0;
}
