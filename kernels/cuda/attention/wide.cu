// 64 packed rows, as prompts have them: each of the four warps has 16 rows to itself.
//
// Weights stay in the registers in which scores came, as the left side of the next product
// (FlashAttention-2: Dao, 2023, arXiv:2307.08691). All splits, one after another, with the same
// sums in the same order as `narrow.cu`, so a row has the same bits from either.

/// 64 packed rows, 16 a warp. Two barriers a tile: keys are there, values are there. Queries
/// take a slot, and the totals two, for which there is no room in registers.
struct Wide {
    /// Begins to load the queries; they arrive with the first keys.
    __device__ __forceinline__ static void load_queries(const Task& task, unsigned char* slot) {
        for (int c = threadIdx.x; c < WIDE * CHUNKS; c += ATTENTION_THREADS) {
            int row = c / CHUNKS, chunk = c % CHUNKS;
            int at = row / task.group * task.query_stride + row % task.group * HEAD_DIM;
            copy_async(slot + chunk_at(row, chunk), task.queries + at + chunk * 8,
                       row < task.packed);
        }
    }

    __device__ __forceinline__ static void tile(
        Ring<WIDE_SLOTS>& ring, const unsigned char* queries, int key, const int (&last)[2],
        float scale, Sums<STEPS * 2>& sums) {
        int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, q = lane % 4;
        int left = ring.source.limit - key;
        const unsigned char* keys = whole_tile(next(ring), widened(ring), left, threadIdx.x);
        bool any = __ballot_sync(EVERY_LANE, key <= max(last[0], last[1])) != 0;
        float scores[TILE / 8][4] = {};
        if (any) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                unsigned a[4];
                load_matrices(a, queries + chunk_at(warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
                for (int n = 0; n < TILE / 8; n += 2) {
                    score(a, keys, n * 8, step, scores[n], scores[n + 1]);
                }
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) mask(scores[n], key + n * 8 + q * 2, last);
            float top[2];
            find_tops(scores, top);
            lift(sums, top, scale);
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) weigh(scores[n], scale, sums.top);
        }
        const unsigned char* values = whole_tile(next(ring), widened(ring), left, threadIdx.x);
        if (any) add(scores, values, sums);
    }

    __device__ __forceinline__ static void add(
        const float (&weights)[TILE / 8][4], const unsigned char* values, Sums<STEPS * 2>& sums) {
#pragma unroll
        for (int keys = 0; keys < TILE / 8; keys += 2) {
            unsigned a[4] = {
                to_pair(weights[keys][0], weights[keys][1]),
                to_pair(weights[keys][2], weights[keys][3]),
                to_pair(weights[keys + 1][0], weights[keys + 1][1]),
                to_pair(weights[keys + 1][2], weights[keys + 1][3])};
            mma(sums.weights, a, ONES, ONES);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                mix(a, values, keys * 8, step, sums.values[step * 2], sums.values[step * 2 + 1]);
            }
        }
    }

    /// All keys of all splits.
    __device__ __forceinline__ static void walk(const Task& task, Ring<WIDE_SLOTS>& ring) {
        int first = threadIdx.x / WARP * 16, row = first + threadIdx.x % WARP / 4;
        int last[2] = {last_key(task, row), last_key(task, row + 8)};
        int tile = 0, end = (last_key(task, task.packed - 1) + TILE) / TILE;
        unsigned char* queries = ring.slots + RING_BYTES(WIDE_SLOTS);
        load_queries(task, queries);
        start(ring, tile, end);
        Sums<STEPS * 2> sums;
        Totals all = {(float4*)(queries + SLOT_BYTES) + threadIdx.x, ATTENTION_THREADS};
        clear<STEPS * 2>(all);
        while (tile < end) {
            clear(sums);
            int border = min((tile / (SPLIT / TILE) + 1) * (SPLIT / TILE), end);
            for (; tile < border; tile++) {
                Wide::tile(ring, queries, tile * TILE, last, task.scale, sums);
            }
            fold(all, sums);
        }
        finish();
#pragma unroll
        for (int n = 0; n < STEPS * 2; n++) {
            write_result(task, first, n, n * 8, all);
        }
    }
};
