// The results of decoded rows, from the sums of their splits that `attention` left.

/// Two columns of a query head: the sums of its splits, folded in order. `sums` are those of the
/// first split, and the next ones stand `stride` floats apart.
__device__ __forceinline__ unsigned fold_splits(
    const float* sums, long long stride, int splits, int column) {
    float low = 0.0f, high = 0.0f, weights = 0.0f, top = NEVER;
#pragma unroll 8
    for (int split = 0; split < splits; split++, sums += stride) {
        float2 pair = *(const float2*)(sums + column);
        float2 rest = *(const float2*)(sums + HEAD_DIM);
        Joint joint = join(top, rest.x);
        top = joint.top;
        low = folded(low, pair.x, joint);
        high = folded(high, pair.y, joint);
        weights = folded(weights, rest.y, joint);
    }
    float whole = splits > 0 ? 1.0f / weights : 0.0f;
    return to_pair(low * whole, high * whole);
}

/// Folds the splits of decoded rows. Span `s` has one row, `span_row[s]` of the step, and the
/// partial sums of tiles `first_tile[s]` to `first_tile[s] + tile_count[s]`, in order of splits.
/// A span without tiles gets zeros, or nothing if its row is -1.
/// Launch: grid (spans, nq), 64 threads.
extern "C" __global__ void __launch_bounds__(64) attention_combine(
    bf16* out, const float* partial, const int* first_tile, const int* tile_count,
    const int* span_row, int nq, int nkv) {
    take_over();
    int span = blockIdx.x, query_head = blockIdx.y, group = nq / nkv;
    int tiles = tile_count[span];
    long long row = span_row[span];
    if (row < 0) return;
    const float* sums =
        partial
        + (((long long)first_tile[span] * nkv + query_head / group) * NARROW + query_head % group)
              * (HEAD_DIM + 2);
    long long stride = (long long)nkv * NARROW * (HEAD_DIM + 2);
    bf16* to = out + (row * nq + query_head) * HEAD_DIM;
    for (int column = threadIdx.x * 2; column < HEAD_DIM; column += 128) {
        *(unsigned*)(to + column) = fold_splits(sums, stride, tiles, column);
    }
}

/// Folds the splits of a decoded row, for the heads of this block, in the block of them that comes
/// last. `partial` are the sums of the block's own split, number `split` of `splits`; `arrived` counts the blocks of the row that are done, and is zero again
/// behind the last. The result has the bits of `attention_combine`, because the order of the sums
/// is that of the splits and not that of the blocks. `flag` is a word of shared memory.
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
    for (int at = threadIdx.x * 2; at < task.packed * HEAD_DIM; at += ATTENTION_THREADS * 2) {
        int head = at / HEAD_DIM, column = at % HEAD_DIM;
        const float* sums = first + head * (HEAD_DIM + 2);
        *(unsigned*)(task.out + at) = fold_splits(sums, stride, splits, column);
    }
}
