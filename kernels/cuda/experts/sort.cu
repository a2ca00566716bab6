// Pairs of a row and one of its experts, sorted by expert, and by row within an expert.
//
//   sort_pairs<<<experts, 256>>>
//
// A block has an expert. It counts all pairs, so that it needs nothing of another block, and places
// its own: the order depends on the pairs alone.

#define EXPERTS_MAX 1024
#define SORT_THREADS 256

/// The sum of the values of all threads before this one. `scratch` has room for one int a warp.
__device__ __forceinline__ int block_sum_before(int value, int* scratch) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int sum = value;
    for (int far = 1; far < WARP; far *= 2) {
        const int other = __shfl_up_sync(EVERY_LANE, sum, far);
        if (lane >= far) sum += other;
    }
    if (lane == WARP - 1) scratch[warp] = sum;
    __syncthreads();
    for (int before = 0; before < warp; before++) sum += scratch[before];
    return sum - value;
}

__device__ __forceinline__ int tiles_of(int pairs, int tile_rows) {
    return (pairs + tile_rows - 1) / tile_rows;
}

/// chosen `[pairs]` is the expert of each pair, -1 for none, and `pair / width` its row. Writes for
/// each place in the order of experts its row (`rows`), for each pair its place (`places`), and the
/// tiles of at most `tile_rows` places of one expert: expert, first place, number of places. The
/// rest of the `tile_count` tiles has the expert -1. A pair without an expert has no place.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) sort_pairs(
    const int* chosen, int* rows, int* places, int4* tiles, int pairs, int width, int experts,
    int tile_rows, int tile_count) {
    take_over();
    __shared__ int counts[EXPERTS_MAX], warps[SORT_THREADS / WARP], first_place, first_tile;
    const int own = blockIdx.x, thread = threadIdx.x;
    for (int expert = thread; expert < experts; expert += SORT_THREADS) counts[expert] = 0;
    if (thread == 0) first_place = first_tile = 0;
    __syncthreads();

    // A thread has a run of pairs.
    const int run = (pairs + SORT_THREADS - 1) / SORT_THREADS;
    const int begin = min(thread * run, pairs), end = min(begin + run, pairs);
    int found = 0;
    for (int pair = begin; pair < end; pair++) {
        const int expert = chosen[pair];
        if (expert >= 0) atomicAdd(&counts[expert], 1);
        found += expert == own;
    }
    __syncthreads();
    for (int expert = thread; expert < own; expert += SORT_THREADS) {
        atomicAdd(&first_place, counts[expert]);
        atomicAdd(&first_tile, tiles_of(counts[expert], tile_rows));
    }
    // It has a barrier, behind which the sums of lower experts are complete.
    const int before = block_sum_before(found, warps);
    int place = first_place + before;
    for (int pair = begin; pair < end; pair++) {
        if (chosen[pair] != own) continue;
        rows[place] = pair / width;
        places[pair] = place++;
    }

    const int count = counts[own], last = first_tile + tiles_of(count, tile_rows);
    for (int tile = first_tile + thread; tile < last; tile += SORT_THREADS) {
        const int done = (tile - first_tile) * tile_rows;
        tiles[tile] = make_int4(own, first_place + done, min(count - done, tile_rows), 0);
    }
    if (own < experts - 1) return;
    for (int tile = last + thread; tile < tile_count; tile += SORT_THREADS) {
        tiles[tile] = make_int4(-1, 0, 0, 0);
    }
}
