// What every family of kernels stands on: bf16, 16-byte packs, sums of a warp and of a block.
//
// The host compiles one text for a family: this file, `mma.cu` where the family multiplies
// matrices, and the family's own file, one after another. Nothing is included, so a compiler at run
// time needs no headers. `HEAD_DIM` is defined by the compiler's options.
//
// A second compiler reads the same text: g++, behind `emulator/emulate.h`, which defines
// `ROLLTAPE_EMULATED` and runs a block's threads on a processor. What plain C++ can say is said
// below for both; what it cannot (`mma.cu`, and the words of CUDA itself) the emulator brings.
//
// Words of CUDA in use: `__global__ __device__ __shared__ __launch_bounds__ __align__
// __forceinline__`, `threadIdx blockIdx blockDim gridDim`, `__syncthreads __syncwarp
// __shfl_xor_sync __shfl_sync __ballot_sync __ldg`, `uint2 uint4 int4 float2 float4` with their
// `make_`, `__float_as_uint __uint_as_float`, `fmaf fmaxf fminf rsqrtf exp2f`. Every reduction is a
// fixed tree, and a product that feeds a sum is written as `fmaf` where two kernels must agree, so
// that no compiler's choice shows in the bits.
//
// No pointer is `__restrict__`, and `__ldg` reads only what no kernel of a step writes: such loads
// are not ordered by `wait_for_predecessor`, and compilers move them in front of it.

/// What a program was compiled for, for whoever has nothing but the program.
extern "C" __device__ const int rolltape_head_dim = HEAD_DIM;

typedef unsigned short bf16;
typedef unsigned long long u64;

#define WARP 32
#define EVERY_LANE 0xffffffffu
/// Positions of a page of keys and values.
#define PAGE 16

/// The launch's dynamic shared memory as bytes at a 16-byte border. One a kernel.
#ifdef ROLLTAPE_EMULATED
#define DYNAMIC_SHARED(name) unsigned char* const name = rolltape_dynamic_shared()
#else
#define DYNAMIC_SHARED(name)                         \
    extern __shared__ uint4 rolltape_shared_bytes[]; \
    unsigned char* const name = (unsigned char*)rolltape_shared_bytes
#endif

/// Waits until the launch in front is over and all that it wrote can be read. A launch may begin
/// before that (programmatic dependent launch); until this returns, a thread must not read what a
/// step writes, nor write anything. Every thread of a kernel of a step calls it. An ordinary launch
/// has nothing to wait for.
__device__ __forceinline__ void wait_for_predecessor() {
#if defined(ROLLTAPE_EMULATED)
    emulate::wait_for_predecessor();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next launch begin, once all blocks have called it or ended. It must follow the wait, so
/// that no more than two launches run at a time: whoever begins knows that all but the launch in
/// front is over.
__device__ __forceinline__ void let_successor_begin() {
#if defined(ROLLTAPE_EMULATED)
    emulate::let_successor_begin();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Both, for kernels that have nothing to do before: the blocks of the next launch take what is
/// free of the device as soon as all blocks of this one are there.
__device__ __forceinline__ void take_over() {
    wait_for_predecessor();
    let_successor_begin();
}

/// The `f32` that a bf16 is.
__device__ __forceinline__ float to_float(bf16 value) {
    return __uint_as_float((unsigned)value << 16);
}

/// The lower of two bf16 in a word.
__device__ __forceinline__ float low_float(unsigned pair) {
    return __uint_as_float(pair << 16);
}

/// The upper of two bf16 in a word.
__device__ __forceinline__ float high_float(unsigned pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

/// The nearest bf16, ties to even; any NaN becomes `0x7fff`.
__device__ __forceinline__ bf16 to_bf16(float value) {
#ifdef ROLLTAPE_EMULATED
    unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#else
    bf16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#endif
}

/// Two bf16 in a word, `low` at the lower address.
__device__ __forceinline__ unsigned to_pair(float low, float high) {
#ifdef ROLLTAPE_EMULATED
    return (unsigned)to_bf16(low) | (unsigned)to_bf16(high) << 16;
#else
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

/// `2^x` within two units in the last place, `2^-inf` being 0; results below `2^-126` are 0.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef ROLLTAPE_EMULATED
    float power = exp2f(x);
    return power < 1.17549435e-38f ? 0.0f : power;
#else
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#endif
}

/// Eight bf16 at a 16-byte border.
__device__ __forceinline__ uint4 load_pack(const bf16* from) {
    return *(const uint4*)from;
}

/// Writes eight bf16 to a 16-byte border.
__device__ __forceinline__ void store_pack(bf16* to, uint4 pack) {
    *(uint4*)to = pack;
}

/// The eight numbers of a pack, in order.
__device__ __forceinline__ void unpack(uint4 pack, float (&numbers)[8]) {
    numbers[0] = low_float(pack.x);
    numbers[1] = high_float(pack.x);
    numbers[2] = low_float(pack.y);
    numbers[3] = high_float(pack.y);
    numbers[4] = low_float(pack.z);
    numbers[5] = high_float(pack.z);
    numbers[6] = low_float(pack.w);
    numbers[7] = high_float(pack.w);
}

/// Eight numbers, rounded, as a pack.
__device__ __forceinline__ uint4 pack(const float (&numbers)[8]) {
    return make_uint4(
        to_pair(numbers[0], numbers[1]), to_pair(numbers[2], numbers[3]),
        to_pair(numbers[4], numbers[5]), to_pair(numbers[6], numbers[7]));
}

/// The sum over a warp, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int far = WARP / 2; far > 0; far /= 2) value += __shfl_xor_sync(EVERY_LANE, value, far);
    return value;
}

/// The greatest of a warp's values, in every lane.
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int far = WARP / 2; far > 0; far /= 2) {
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, far));
    }
    return value;
}

/// The sum over a block of whole warps, at most 1024 threads, the same bits in every thread.
/// `scratch` has room for one float a warp; the next use of it must be behind a barrier.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    value = warp_sum(value);
    if (lane == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}
