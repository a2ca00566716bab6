// What may be drawn at all: min_p (Nguyen et al., 2024, arXiv:2407.01082), top_k (Fan et al., 2018,
// arXiv:1805.04833) and top_p (Holtzman et al., 2019, arXiv:1904.09751), in this order.
//
// All three keep the values from some value on, so what they leave is one floor.

// A value that at least `k` values reach: the `k`-th highest of the highest of all tiles.
__device__ __forceinline__ float reached_by(const Row& row, int k) {
    const int tiles = (row.vocab + TILE - 1) / TILE;
    if (threadIdx.x == 0) shared.floats[0] = -infinity();
    __syncthreads();
    if (threadIdx.x < tiles) {
        const float own = shared.highest[threadIdx.x];
        int higher = 0;
        for (int tile = 0; tile < tiles; tile++) {
            const float other = shared.highest[tile];
            higher += other > own || (other == own && tile < threadIdx.x);
        }
        if (higher == k - 1) shared.floats[0] = row.processed(own);
    }
    __syncthreads();
    return shared.floats[0];
}

// The `k`-th highest value.
__device__ __forceinline__ float select_highest(const Row& row, float highest, int k) {
    const float floor = reached_by(row, k);
    return select<false>(row, highest, floor, k, 0.0);
}

// What `min_p`, then `top_k`, then `top_p` leave: all values that reach the result. `sum` is that
// of all weights.
__device__ __forceinline__ float floor_of(const Row& row, float highest, double sum) {
    const SampleParams& own = shared.own;
    float floor = -infinity();
    if (own.min_p > 0.0f) floor = highest + (float)log((double)own.min_p);
    if (own.top_k > 0 && own.top_k < row.vocab) {
        floor = fmaxf(floor, select_highest(row, highest, own.top_k));
    }
    if (!(own.top_p < 1.0f)) return floor;
    const double part = own.top_p;
    unsigned long long target = 0;
    if (floor == -infinity() && part < 0.9999) {
        // Values so low that all of them together would not fill half of what is left out.
        floor = highest - (float)log(2.0 * row.vocab / (1.0 - part)) - 0.01f;
        target = (unsigned long long)ceil(part * sum * ONE);
    }
    return select<true>(row, highest, floor, target, part);
}
