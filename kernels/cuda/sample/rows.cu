// The second launch: a block a row, from the tiles' sums to the token and its scores.

// The weights of each tile that reach a floor, in place of those of all.
__device__ __forceinline__ void sum_again(const Row& row, float highest, float floor) {
    const int tiles = (row.vocab + TILE - 1) / TILE;
    __syncthreads();
    for (int tile = threadIdx.x / 32; tile < tiles; tile += 32) {
        const float top = row.processed(shared.highest[tile]);
        double sum = 0.0;
        if (top >= floor) {
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                float values[16];
                row.load_half(values, tile * TILE + half * (TILE / 2), threadIdx.x % 32);
                sum += (double)sum_of_half(values, row.divisor, top, floor);
            }
            sum = sum_of_warp(sum);
            sum *= exp((double)top - (double)highest);
        }
        if (threadIdx.x % 32 == 0) shared.sums[tile] = sum;
    }
    __syncthreads();
}

// Both distributions of a row.
struct Sums {
    float highest, raw_highest, floor;
    double log_sum, log_raw_sum;

    __device__ __forceinline__ SampleCandidate candidate(const Row& row, int id) const {
        const float logit = shared.given[id], value = row.processed(row.logits[id]);
        const double processed = (double)(value - highest) - log_sum;
        const double raw = (double)(logit - raw_highest) - log_raw_sum;
        return {id, value >= floor ? (float)processed : -infinity(), (float)raw, 0};
    }
};

extern "C" __global__ void __launch_bounds__(TILE) sample_rows(
    const float* logits, const SampleParams* params, const SampleTile* tiles, int* ids,
    SampleScores* scores, SampleCandidate* top, const float* shaped, unsigned short* counts,
    int vocab, int stride, int most) {
    take_over();
    if (params[blockIdx.x].row < 0) {
        if (threadIdx.x == 0) ids[blockIdx.x] = -1;
        return;
    }
    if (threadIdx.x == 0) {
        shared.own = params[blockIdx.x];
        shared.row = shared.shown = row_of(logits, shaped, shared.own, vocab, stride);
        shared.given = logits + (long long)shared.own.row * stride;
        if (shared.own.raw) {
            shared.shown.divisor = 1.0f;
            shared.shown.logits = shared.given;
        }
    }
    __syncthreads();
    const int count = (vocab + TILE - 1) / TILE, thread = threadIdx.x;
    const bool greedy = shared.own.temperature < GREEDY_BELOW;

    // All tiles to one.
    SampleTile tile = {0.0, 0.0, -infinity(), -infinity()};
    if (thread < count) tile = tiles[(long long)blockIdx.x * count + thread];
    shared.highest[thread] = tile.highest;
    Sums sums;
    const float highest = highest_of_block(tile.highest);
    sums.highest = shared.row.processed(highest);
    sums.raw_highest = shared.own.shaped < 0 ? highest : highest_of_block(tile.raw_highest);
    sums.floor = -infinity();
    const bool finite = fabsf(sums.highest) < infinity();
    const double distance = (double)shared.row.processed(tile.highest) - (double)sums.highest;
    shared.sums[thread] = finite ? tile.processed * exp(distance) : 0.0;
    double sum = sum_of_block(shared.sums[thread]);

    if (!greedy && finite) sums.floor = floor_of(shared.row, sums.highest, sum);
    if (sums.floor > -infinity()) {
        sum_again(shared.row, sums.highest, sums.floor);
        sum = sum_of_block(shared.sums[thread]);
    }

    int id;
    if (greedy || !(sum > 0.0)) {
        id = likeliest(shared.row, sums.highest);
    } else {
        const double at = uniform(shared.own.seed, shared.own.position);
        id = draw(shared.row, sums.highest, sums.floor, at);
    }
    if (thread == 0) {
        ids[blockIdx.x] = id;
        if (shared.own.slot >= 0) counts_of(counts, shared.own.slot, vocab)[id] += 1;
    }
    if (shared.own.top_n < 0) return;

    // What is known about it.
    double raw = 0.0;
    if (thread < count && finite) {
        const SampleTile own = tiles[(long long)blockIdx.x * count + thread];
        raw = own.raw * exp((double)own.raw_highest - (double)sums.raw_highest);
        // From here on only what is shown is looked at.
        if (shared.own.raw) shared.highest[thread] = own.raw_highest;
    }
    __syncthreads();
    sums.log_raw_sum = log(sum_of_block(raw));
    sums.log_sum = log(sum);
    const int rank = count_at_least(shared.shown, shared.shown.processed(shared.shown.logits[id]));
    if (thread == 0) {
        const SampleCandidate chosen = sums.candidate(shared.row, id);
        scores[blockIdx.x] = {id, chosen.processed, chosen.raw, rank};
    }
    const int wanted = min(min(shared.own.top_n, most), min(vocab, MOST));
    if (shared.own.top_n <= 0 || most <= 0) return;
    __syncthreads();
    const float first = shared.own.raw ? sums.raw_highest : sums.highest;
    const int found = gather_top(shared.shown, first, wanted);
    if (thread >= min(shared.own.top_n, min(most, MOST))) return;
    SampleCandidate* const out = top + (long long)blockIdx.x * most;
    if (thread >= found) {
        out[thread] = {-1, -infinity(), -infinity(), 0};
        return;
    }
    int at = 0;
    for (int other = 0; other < found; other++) {
        const bool higher = shared.found[other] > shared.found[thread];
        const bool equal = shared.found[other] == shared.found[thread];
        at += higher || (equal && shared.found_ids[other] < shared.found_ids[thread]);
    }
    out[at] = sums.candidate(shared.row, shared.found_ids[thread]);
}
