// The token: the likeliest id, or one drawn by its weight.
//
// A draw inverts the distribution function over ids in their order, as the host does
// (`engine/src/sample/draw.rs`): the first id at which the sum of weights passes the drawn fraction
// of the whole. First the tile is found by the tiles' sums, then the id in it.

// The first id with the highest value; zero if there is none.
__device__ __forceinline__ int likeliest(const Row& row, float highest) {
    const int tiles = (row.vocab + TILE - 1) / TILE;
    if (threadIdx.x == 0) shared.answer = row.vocab;
    __syncthreads();
    if (threadIdx.x < tiles && row.processed(shared.highest[threadIdx.x]) == highest) {
        atomicMin(&shared.answer, (int)threadIdx.x * TILE);
    }
    __syncthreads();
    const int first = shared.answer;
    __syncthreads();
    if (threadIdx.x == 0) shared.answer = row.vocab;
    // One tile has it, unless there are only numbers that are none.
    for (int from = first; from < row.vocab; from += TILE) {
        const int id = from + threadIdx.x;
        __syncthreads();
        if (id < row.vocab && row.processed(row.logits[id]) == highest) {
            atomicMin(&shared.answer, id);
        }
        __syncthreads();
        if (shared.answer < row.vocab) return shared.answer;
    }
    return 0;
}

// The tile in which the sum over all passes `left`, for one warp; `left` becomes what is left of it
// there.
__device__ __forceinline__ int draw_tile(int tiles, double at, double& left) {
    const int lane = threadIdx.x % 32, run = (tiles + 31) / 32, first = lane * run;
    double sum = 0.0;
    for (int tile = first; tile < first + run && tile < tiles; tile++) sum += shared.sums[tile];
    double to = sum;
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(EVERY_LANE, to, step);
        to += lane >= step ? other : 0.0;
    }
    left = at * __shfl_sync(EVERY_LANE, to, 31);
    const unsigned some = __ballot_sync(EVERY_LANE, sum > 0.0);
    const unsigned reached = __ballot_sync(EVERY_LANE, sum > 0.0 && to > left);
    // Sums in different orders may differ by a crumb, which the last one has.
    const int chosen = reached ? __ffs(reached) - 1 : 31 - __clz(some);
    const double from = __shfl_sync(EVERY_LANE, to - sum, chosen);
    left = left > from ? left - from : 0.0;
    int last = -1;
    for (int tile = chosen * run; tile < (chosen + 1) * run && tile < tiles; tile++) {
        const double own = shared.sums[tile];
        if (own == 0.0) continue;
        if (last >= 0) left -= shared.sums[last];
        last = tile;
        if (left < own) break;
    }
    return last;
}

// The id at which the sum over ids in order passes the fraction `at` of the whole.
__device__ __forceinline__ int draw(const Row& row, float highest, float floor, double at) {
    const int thread = threadIdx.x, lane = thread % 32, tiles = (row.vocab + TILE - 1) / TILE;
    __syncthreads();
    if (thread < 32) {
        double left;
        const int tile = draw_tile(tiles, at, left);
        if (lane == 0) {
            shared.chosen = tile;
            shared.left = left;
            shared.answer = row.vocab;
            shared.listed = 0;
        }
    }
    __syncthreads();
    const int id = shared.chosen * TILE + thread;
    const float top = row.processed(shared.highest[shared.chosen]);
    const float value = id < row.vocab ? row.processed(row.logits[id]) : -infinity();
    const double own = value >= floor ? weight(value - top) : 0.0f;
    const double left = shared.left / exp((double)top - (double)highest);
    const double to = sum_up_to(own);
    if (own > 0.0 && to > left) atomicMin(&shared.answer, id);
    if (own > 0.0) atomicMax(&shared.listed, id);
    __syncthreads();
    // Sums in different orders may differ by a crumb, which the last one has.
    return shared.answer < row.vocab ? shared.answer : shared.listed;
}
