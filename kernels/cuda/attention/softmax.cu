// One tile of keys for 16 packed rows of a warp: scores, weights, sums of values.
//
// The softmax goes along with the keys, and no row of scores is ever whole (Milakov and Gimelshein,
// 2018, arXiv:1805.02867; FlashAttention: Dao et al., 2022, arXiv:2205.14135). Tile by tile:
//
//   top' = max(top, scores)                                   (in powers of two)
//   sum  = sum * 2^(top - top') + weights . values,           weights = 2^(scores - top')
//
// `sum` has one column more, of ones, so the weights' own sum is rounded as what it divides.
// Scores are [16 rows, 8 keys] of `mma` at a time, of which a lane has two keys of the rows
// lane / 4 and lane / 4 + 8; values likewise, with columns for keys.

/// Sums of a warp's 16 packed rows over `N` times 8 columns; rows g and g + 8 of a lane.
template <int N>
struct Sums {
    float values[N][4];
    float weights[4];
    float top[2];
};

/// The last position that a packed row attends to, or -1.
__device__ __forceinline__ int last_key(const Task& task, int row) {
    return row < task.packed ? task.position + row / task.group : -1;
}

/// The 16 packed rows from `first` on, as fragments.
__device__ __forceinline__ void load_queries(
    const Task& task, int first, unsigned (&queries)[STEPS][4]) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + lane / 4 + half * 8;
        bool real = row < task.packed;
        int at = row / task.group * task.query_stride + row % task.group * HEAD_DIM;
        const unsigned* words = (const unsigned*)(task.queries + at) + lane % 4;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            queries[step][half] = real ? words[step * 8] : 0;
            queries[step][half + 2] = real ? words[step * 8 + 4] : 0;
        }
    }
}

template <int N>
__device__ __forceinline__ void clear(Sums<N>& sums) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sums.values[n][i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sums.weights[i] = 0.0f;
    sums.top[0] = NEVER;
    sums.top[1] = NEVER;
}

/// `2^(from - to)`, and 0 if neither is a number yet.
__device__ __forceinline__ float shrink(float from, float to) {
    return exp2_fast(from - (to == NEVER ? 0.0f : to));
}

/// Adds to the scores of the 16 keys from `first` on what 16 of a head's elements give.
__device__ __forceinline__ void score(
    const unsigned (&queries)[4], const unsigned char* keys, int first, int step,
    float (&low)[4], float (&high)[4]) {
    int lane = threadIdx.x % WARP;
    unsigned b[4];
    load_matrices(b, keys + chunk_at(first + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
    mma(low, queries, b[0], b[1]);
    mma(high, queries, b[2], b[3]);
}

/// Takes out the scores of keys past the rows' last; `key` is that of the lane's first score.
__device__ __forceinline__ void mask(float (&scores)[4], int key, const int (&last)[2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (key + i % 2 > last[i / 2]) scores[i] = NEVER;
    }
}

/// The greatest of a row's scores that a quad of lanes holds.
__device__ __forceinline__ float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, 1));
    return fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, 2));
}

/// The tops of a lane's two rows, over the scores that their quad of lanes holds.
template <int N>
__device__ __forceinline__ void find_tops(const float (&scores)[N][4], float (&top)[2]) {
    top[0] = NEVER;
    top[1] = NEVER;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
    }
    top[0] = quad_max(top[0]);
    top[1] = quad_max(top[1]);
}

/// Scores to weights below the rows' tops.
__device__ __forceinline__ void weigh(float (&scores)[4], float scale, const float (&top)[2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float base = top[i / 2] == NEVER ? 0.0f : top[i / 2];
        scores[i] = exp2_fast(fmaf(scores[i], scale, -base));
    }
}

/// Lifts the tops to those of a tile and shrinks the sums below them.
template <int N>
__device__ __forceinline__ void lift(Sums<N>& sums, const float (&tile_top)[2], float scale) {
    float less[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = fmaxf(sums.top[half], tile_top[half] * scale);
        less[half] = shrink(sums.top[half], top);
        sums.top[half] = top;
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sums.values[n][i] *= less[i / 2];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sums.weights[i] *= less[i / 2];
}

/// Adds the values of 16 keys from `first` on, in columns from 16 * `step` on, by weights `a`.
__device__ __forceinline__ void mix(
    const unsigned (&a)[4], const unsigned char* values, int first, int step,
    float (&low)[4], float (&high)[4]) {
    int lane = threadIdx.x % WARP;
    unsigned b[4];
    load_transposed(b, values + chunk_at(first + lane % 16, step * 2 + lane / 16));
    mma(low, a, b[0], b[1]);
    mma(high, a, b[2], b[3]);
}
