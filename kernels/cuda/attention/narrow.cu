// 16 packed rows, as decoding has them: the four warps of a block share every tile.
//
// Scores: each warp has 16 of a tile's 64 keys for all 16 rows. Their tops and weights go through
// shared memory, because values are summed the other way: each warp has all 64 keys for every
// fourth run of 16 columns. One split, whose sums go to `partial`, or all of them.

/// 16 packed rows: every warp scores 16 keys of a tile and sums some of the columns.
struct Narrow {
    unsigned char* weights; // [16][TILE + 8] bf16
    float* tops;            // [warps][16]

    /// One tile. Three barriers: keys are there, tops are there, values and weights are there.
    __device__ __forceinline__ void tile(
        Ring<SLOTS>& ring, const unsigned (&queries)[STEPS][4], int key, const int (&last)[2],
        float scale, Sums<OWN_STEPS * 2>& sums) {
        int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
        int left = ring.source.limit - key;
        const unsigned char* keys = own_keys(next(ring), widened(ring), left);
        float scores[2][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            score(queries[step], keys, warp * 16, step, scores[0], scores[1]);
        }
#pragma unroll
        for (int n = 0; n < 2; n++) mask(scores[n], key + warp * 16 + n * 8 + q * 2, last);
        float top[2];
        find_tops(scores, top);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (q == 0) tops[warp * NARROW + g + half * 8] = top[half];
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int other = 0; other < ATTENTION_WARPS; other++) {
                top[half] = fmaxf(top[half], tops[other * NARROW + g + half * 8]);
            }
        }
        lift(sums, top, scale);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            weigh(scores[n], scale, sums.top);
            unsigned char* to = weights + g * WEIGHT_BYTES + (warp * 16 + n * 8 + q * 2) * 2;
            *(unsigned*)to = to_pair(scores[n][0], scores[n][1]);
            *(unsigned*)(to + 8 * WEIGHT_BYTES) = to_pair(scores[n][2], scores[n][3]);
        }
        add(own_values(next(ring), widened(ring), left), sums);
    }

    /// Adds the values of a tile by the weights that all warps have written.
    __device__ __forceinline__ void add(const unsigned char* values, Sums<OWN_STEPS * 2>& sums) {
        int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
        for (int keys = 0; keys < TILE; keys += 16) {
            unsigned a[4];
            load_matrices(a, weights + lane % 16 * WEIGHT_BYTES + (keys + lane / 16 * 8) * 2);
            mma(sums.weights, a, ONES, ONES);
#pragma unroll
            for (int own = 0; own < OWN_STEPS; own++) {
                int step = warp + own * ATTENTION_WARPS;
                if (STEPS % ATTENTION_WARPS && step >= STEPS) break;
                mix(a, values, keys, step, sums.values[own * 2], sums.values[own * 2 + 1]);
            }
        }
    }

    /// Writes the sums of one split.
    __device__ __forceinline__ void write_partial(
        const Task& task, float* partial, const Sums<OWN_STEPS * 2>& sums) {
        int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, q = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = lane / 4 + half * 8;
            if (row >= task.packed) continue;
            float* to = partial + row * (HEAD_DIM + 2);
#pragma unroll
            for (int n = 0; n < OWN_STEPS * 2; n++) {
                int step = warp + n / 2 * ATTENTION_WARPS;
                if (STEPS % ATTENTION_WARPS && step >= STEPS) break;
                *(float2*)(to + step * 16 + n % 2 * 8 + q * 2) =
                    make_float2(sums.values[n][half * 2], sums.values[n][half * 2 + 1]);
            }
            if (warp == 0 && q == 0) {
                *(float2*)(to + HEAD_DIM) = make_float2(sums.top[half], sums.weights[half * 2]);
            }
        }
    }

    __device__ __forceinline__ void write(const Task& task, int first, const Totals& all) {
        int warp = threadIdx.x / WARP;
#pragma unroll
        for (int n = 0; n < OWN_STEPS * 2; n++) {
            int step = warp + n / 2 * ATTENTION_WARPS;
            if (STEPS % ATTENTION_WARPS && step >= STEPS) break;
            write_result(task, first, n, step * 16 + n % 2 * 8, all);
        }
    }

    /// All keys of a split, or of all splits, for the packed rows from `first` on. A split has
    /// `length` tiles. `begin` begins to load tiles from its first argument to its second, and gets
    /// the queries of these rows as fragments.
    template <class Begin>
    __device__ __forceinline__ void walk(
        const Task& task, Ring<SLOTS>& ring, int first, int split, int length, float* partial,
        const Begin& begin) {
        int row = first + threadIdx.x % WARP / 4;
        int last[2] = {last_key(task, row), last_key(task, row + 8)};
        int final_row = min(first + NARROW, task.packed) - 1;
        int tiles = (last_key(task, final_row) + TILE) / TILE;
        int tile = split < 0 ? 0 : split * length;
        int end = split < 0 ? tiles : min(tile + length, tiles);
        unsigned queries[STEPS][4];
        begin(tile, end, queries);
        Sums<OWN_STEPS * 2> sums;
        float4 values[OWN_STEPS * 2];
        Totals all = {values, 1};
        clear<OWN_STEPS * 2>(all);
        while (tile < end) {
            clear(sums);
            int border = min(tile + length, end);
            for (; tile < border; tile++) {
                this->tile(ring, queries, tile * TILE, last, task.scale, sums);
            }
            if (split < 0) fold(all, sums);
        }
        finish();
        if (split < 0) {
            write(task, first, all);
        } else {
            write_partial(task, partial, sums);
        }
    }
};
