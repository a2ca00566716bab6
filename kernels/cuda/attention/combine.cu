// The results of decoded rows, from the sums of their splits that `attention` left.

/// Two columns of a query head, and the sums of all splits so far.
struct Fold {
    const float* sums; // of the head in the next split
    int column;
    float low, high, weights, top;

    __device__ __forceinline__ void begin(const float* first, int own) {
        sums = first;
        column = own;
        low = high = weights = 0.0f;
        top = NEVER;
    }

    /// Folds one split into those before it; the next one stands `stride` floats further on.
    __device__ __forceinline__ void next(long long stride) {
        float2 pair = *(const float2*)(sums + column);
        float2 rest = *(const float2*)(sums + HEAD_DIM);
        Joint joint = join(top, rest.x);
        top = joint.top;
        low = folded(low, pair.x, joint);
        high = folded(high, pair.y, joint);
        weights = folded(weights, rest.y, joint);
        sums += stride;
    }

    /// The result; zeros without any split.
    __device__ __forceinline__ unsigned result(int splits) const {
        float whole = splits > 0 ? 1.0f / weights : 0.0f;
        return to_pair(low * whole, high * whole);
    }
};

/// Splits whose sums are on their way at a time. Heads of 256 leave few registers.
constexpr int FOLDED_AT_ONCE = HEAD_DIM > 128 ? 4 : 8;

/// Folds the splits of PLACES pairs of columns at once, `apart` from each other: a fold waits for
/// memory most of its time.
template <int PLACES>
__device__ __forceinline__ void fold_places(
    const Task& task, const float* first, int at, int apart, int splits, long long stride) {
    Fold folds[PLACES];
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
        int place = at + i * apart;
        folds[i].begin(first + place / HEAD_DIM * (HEAD_DIM + 2), place % HEAD_DIM);
    }
#pragma unroll FOLDED_AT_ONCE
    for (int split = 0; split < splits; split++) {
#pragma unroll
        for (int i = 0; i < PLACES; i++) folds[i].next(stride);
    }
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
        *(unsigned*)(task.out + at + i * apart) = folds[i].result(splits);
    }
}

/// Folds the splits of a decoded row, for the heads of this block, in the block of them that comes
/// last. `partial` are the sums of the block's own split, number `split` of `splits`; `arrived`
/// counts the blocks of the row that are done, and is zero again behind the last. The result has
/// the bits of `attention_combine`, because the order of the sums is that of the splits and not
/// that of the blocks. `flag` is a word of shared memory.
__device__ __forceinline__ void join_splits(
    const Task& task, const float* partial, unsigned* arrived, int split, int splits,
    long long stride, unsigned* flag) {
    // All sums of the block are visible before it is counted.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *flag = atomicInc(arrived, splits - 1);
    __syncthreads();
    if (*flag != (unsigned)splits - 1) return;
    // And those of the others before they are read.
    __threadfence();
    const float* first = partial - split * stride;
    const int all = task.packed * HEAD_DIM, apart = ATTENTION_THREADS * 2;
    int at = threadIdx.x * 2;
    for (; at + apart < all; at += apart * 2) {
        fold_places<2>(task, first, at, apart, splits, stride);
    }
    if (at < all) fold_places<1>(task, first, at, apart, splits, stride);
}
