// Splits of a row's positions, folded into one result; of 512 positions each, where bits must not
// depend on other rows.
//
// Each split has a softmax of its own, as if there were no other keys; two are made one by their
// tops, as two tiles are. Blocks can then share one long sequence, each a split, and whoever folds
// does it in order of splits: the result does not depend on how many blocks there were
// (Flash-Decoding: Dao et al., 2023; fixed sizes of splits for the sake of equal bits: "Defeating
// Nondeterminism in LLM Inference", He et al., 2025).

/// What two tops make: the greater, and what sums below each shrink by.
struct Joint {
    float top, all, split;
};

__device__ __forceinline__ Joint join(float all, float split) {
    float top = fmaxf(all, split);
    return {top, shrink(all, top), shrink(split, top)};
}

/// One sum of all splits so far and one of the next, by what their tops make.
__device__ __forceinline__ float folded(float all, float split, const Joint& joint) {
    return fmaf(all, joint.all, split * joint.split);
}

/// Sums over all splits so far of a warp's 16 packed rows. Those of the values stand `stride`
/// apart, where there is room for them: as `Sums` has them, four by four.
struct Totals {
    float4* values;
    int stride;
    float weights[2];
    float top[2];
};

template <int N>
__device__ __forceinline__ void clear(Totals& all) {
#pragma unroll
    for (int n = 0; n < N; n++) all.values[n * all.stride] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        all.weights[half] = 0.0f;
        all.top[half] = NEVER;
    }
}

/// Folds a split into those before it.
template <int N>
__device__ __forceinline__ void fold(Totals& all, const Sums<N>& split) {
    Joint joint[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        joint[half] = join(all.top[half], split.top[half]);
        all.top[half] = joint[half].top;
        all.weights[half] = folded(all.weights[half], split.weights[half * 2], joint[half]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        float4 old = all.values[n * all.stride];
        all.values[n * all.stride] = make_float4(
            folded(old.x, split.values[n][0], joint[0]),
            folded(old.y, split.values[n][1], joint[0]),
            folded(old.z, split.values[n][2], joint[1]),
            folded(old.w, split.values[n][3], joint[1]));
    }
}

/// Writes the `n`th 8 columns of the lane's two rows, which begin at `column`, as the result.
__device__ __forceinline__ void write_result(
    const Task& task, int first, int n, int column, const Totals& all) {
    int lane = threadIdx.x % WARP;
    float4 values = all.values[n * all.stride];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + lane / 4 + half * 8;
        if (row >= task.packed) continue;
        int at = row / task.group * task.out_stride + row % task.group * HEAD_DIM;
        float whole = 1.0f / all.weights[half];
        float low = half ? values.z : values.x, high = half ? values.w : values.y;
        *((unsigned*)(task.out + at + column) + lane % 4) = to_pair(low * whole, high * whole);
    }
}
