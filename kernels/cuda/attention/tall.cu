// 128 packed rows, as long prompts have them: each of the four warps has 32 rows to itself.
//
// A warp has two blocks of 16 rows, so that every fragment of keys and of values that it loads from
// shared memory serves two products (the shape of FlashAttention-2: Dao, 2023, arXiv:2307.08691):
// of a tile of keys and heads of 128, a warp has 80 loads for 264 products, where `wide.cu` has 72
// for 132. A row's sums are those of `wide.cu` in the same order, so it has the same bits from
// either.
//
// Of 255 registers a thread has 192 for the sums of a split and the scores of a tile. What else
// there is to know waits in shared memory, and the sums of the splits in front in device memory,
// which is touched once in 512 keys, and by rows of more keys than that alone.

#define TALL 128
/// Packed rows of a warp, and blocks of 16 of them.
#define TALL_ROWS (TALL / ATTENTION_WARPS)
#define TALL_PARTS (TALL_ROWS / 16)
/// Blocks that a multiprocessor is to have room for: their warps score and multiply by turns.
#define TALL_BLOCKS 2
#define TALL_SHARED sizeof(TallBlock)

/// The weights of a tile for 16 rows: the left side of `mma` for 16 keys at a time.
typedef unsigned Weights[TILE / 16][4];

/// What remains of the splits in front, beside the sums of values.
struct Front {
    float weights;
    float top;
};

/// The shared memory of a block.
struct __align__(16) TallBlock {
    /// A tile of keys and one of values as they are loaded, and room for one of them widened.
    unsigned char tiles[2 * LOADED_BYTES + WIDENED_BYTES];
    unsigned char queries[TALL * ROW_BYTES];
    /// Of each packed row the last position that it attends to. One that is none has that of the
    /// last row, or -1 if no row of its warp is one.
    int last[TALL];
    /// Its place in the result and in the sums of the splits in front, or -1 if it is none.
    int place[TALL];
    Front front[TALL];
    Source source;
};

/// A number that the compiler takes for a new one: it computes anew what follows from it, and does
/// not keep that in registers from tile to tile.
__device__ __forceinline__ int afresh(int value) {
#ifndef ROLLTAPE_EMULATED
    asm volatile("" : "+r"(value));
#endif
    return value;
}

/// The place of the chunk `step` * 2 behind that at `place`, which is the first or second of a row.
__device__ __forceinline__ int place_of_step(int place, int step) {
    return TWISTED ? place ^ step * 32 : place + step * 32;
}

/// 128 packed rows, 32 a warp. Two barriers a tile: keys are there, values are there.
struct Tall {
    /// Fills the lists of rows. `first_place` is the place of the first one.
    __device__ __forceinline__ static void list_rows(
        const Task& task, int first_place, TallBlock& block) {
        int row = threadIdx.x, own = row / task.group * task.out_stride;
        bool used = row / TALL_ROWS * TALL_ROWS < task.packed;
        block.last[row] = used ? last_key(task, min(row, task.packed - 1)) : -1;
        block.place[row] =
            row < task.packed ? first_place + own + row % task.group * HEAD_DIM : -1;
        block.front[row] = {0.0f, NEVER};
    }

    /// Begins to load the queries; they arrive with the first keys.
    __device__ __forceinline__ static void load_queries(const Task& task, TallBlock& block) {
        for (int c = threadIdx.x; c < TALL * CHUNKS; c += ATTENTION_THREADS) {
            int row = c / CHUNKS, chunk = c % CHUNKS;
            int at = row / task.group * task.query_stride + row % task.group * HEAD_DIM;
            copy_async(block.queries + chunk_at(row, chunk), task.queries + at + chunk * 8,
                       row < task.packed);
        }
    }

    /// The scores of a tile.
    __device__ __forceinline__ static void score_tile(
        const TallBlock& block, const unsigned char* keys, int first,
        float (&scores)[TALL_PARTS][TILE / 8][4]) {
        int lane = threadIdx.x % WARP;
        int own_query = afresh(chunk_at(first + lane % 16, lane / 16));
        int own_key = afresh(chunk_at(lane / 16 * 8 + lane % 8, lane / 8 % 2));
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            unsigned a[TALL_PARTS][4];
#pragma unroll
            for (int part = 0; part < TALL_PARTS; part++) {
                int at = place_of_step(own_query, step) + part * 16 * ROW_BYTES;
                load_matrices(a[part], block.queries + at);
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n += 2) {
                unsigned b[4];
                int at = place_of_step(own_key, step) + n * 8 * ROW_BYTES;
                load_matrices(b, keys + at);
#pragma unroll
                for (int part = 0; part < TALL_PARTS; part++) {
                    mma(scores[part][n], a[part], b[0], b[1]);
                    mma(scores[part][n + 1], a[part], b[2], b[3]);
                }
            }
        }
    }

    /// Scores of 16 rows, from `row` on, to weights.
    __device__ __forceinline__ static void weigh_tile(
        const TallBlock& block, int row, int key, bool partly, float scale,
        float (&scores)[TILE / 8][4], Sums<STEPS * 2>& sums, Weights& weights) {
        int lane = threadIdx.x % WARP, q = lane % 4;
        if (partly) {
            int last[2] = {block.last[row + lane / 4], block.last[row + lane / 4 + 8]};
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) mask(scores[n], key + n * 8 + q * 2, last);
        }
        float top[2];
        find_tops(scores, top);
        lift(sums, top, scale);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            weigh(scores[n], scale, sums.top);
            weights[n / 2][n % 2 * 2] = to_pair(scores[n][0], scores[n][1]);
            weights[n / 2][n % 2 * 2 + 1] = to_pair(scores[n][2], scores[n][3]);
        }
    }

    /// Adds the values of a tile.
    __device__ __forceinline__ static void add(
        const unsigned char* values, const Weights (&weights)[TALL_PARTS],
        Sums<STEPS * 2> (&sums)[TALL_PARTS]) {
        int lane = threadIdx.x % WARP;
        int own_value = afresh(chunk_at(lane % 16, lane / 16));
#pragma unroll
        for (int keys = 0; keys < TILE / 16; keys++) {
#pragma unroll
            for (int part = 0; part < TALL_PARTS; part++) {
                mma(sums[part].weights, weights[part][keys], ONES, ONES);
            }
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                unsigned b[4];
                int at = place_of_step(own_value, step) + keys * 16 * ROW_BYTES;
                load_transposed(b, values + at);
#pragma unroll
                for (int part = 0; part < TALL_PARTS; part++) {
                    mma(sums[part].values[step * 2], weights[part][keys], b[0], b[1]);
                    mma(sums[part].values[step * 2 + 1], weights[part][keys], b[2], b[3]);
                }
            }
        }
    }

    /// The tile of keys that begins at `key`. While one half of it is read the other is loaded.
    __device__ __forceinline__ static void tile(
        TallBlock& block, int first, int key, float scale, Sums<STEPS * 2> (&sums)[TALL_PARTS]) {
        const Source& source = block.source;
        unsigned char* loaded_keys = block.tiles;
        unsigned char* loaded_values = block.tiles + LOADED_BYTES;
        unsigned char* widened = block.tiles + 2 * LOADED_BYTES;
        // The keys are there, and nobody reads the values of the tile before any more.
        copy_wait<0>();
        __syncthreads();
        load_tile(source, source.values, key / TILE, loaded_values, afresh(threadIdx.x));
        copy_commit();
        const unsigned char* keys =
            whole_tile(loaded_keys, widened, source.limit - key, afresh(threadIdx.x));
        bool any = key <= block.last[first + TALL_ROWS - 1];
        Weights weights[TALL_PARTS];
        if (any) {
            float scores[TALL_PARTS][TILE / 8][4] = {};
            score_tile(block, keys, first, scores);
            // Most tiles lie in front of all rows.
            bool partly = key + TILE - 1 > block.last[first];
#pragma unroll
            for (int part = 0; part < TALL_PARTS; part++) {
                weigh_tile(block, first + part * 16, key, partly, scale, scores[part], sums[part],
                           weights[part]);
            }
        }
        copy_wait<0>();
        __syncthreads();
        if (key + TILE < source.limit) {
            load_tile(source, source.keys, key / TILE + 1, loaded_keys, afresh(threadIdx.x));
        }
        copy_commit();
        const unsigned char* values =
            whole_tile(loaded_values, widened, source.limit - key, afresh(threadIdx.x));
        if (any) add(values, weights, sums);
    }

    /// Adds to the sums of a split of 16 rows, from `first` on, those of the splits in front, of
    /// which there are none if it `begins`. They wait in `totals` for the next split, unless this
    /// one `ends`. A lane reads what it wrote itself, 16 bytes of 16 columns at a time.
    __device__ __forceinline__ static void fold_front(
        TallBlock& block, int first, bool begins, bool ends, float* totals,
        Sums<STEPS * 2>& sums) {
        int lane = threadIdx.x % WARP;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + lane / 4 + half * 8, place = block.place[row];
            Front front = block.front[row];
            Joint joint = join(front.top, sums.top[half]);
            sums.top[half] = joint.top;
            sums.weights[half * 2] = folded(front.weights, sums.weights[half * 2], joint);
            // All four lanes of the row have read.
            __syncwarp();
            if (lane % 4 == 0) block.front[row] = {sums.weights[half * 2], joint.top};
            bool real = place >= 0;
            float4* own = (float4*)(totals + place) + lane % 4;
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                float* low = sums.values[step * 2] + half * 2;
                float* high = sums.values[step * 2 + 1] + half * 2;
                float4 old = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (real && !begins) old = own[step * 4];
                low[0] = folded(old.x, low[0], joint);
                low[1] = folded(old.y, low[1], joint);
                high[0] = folded(old.z, high[0], joint);
                high[1] = folded(old.w, high[1], joint);
                if (real && !ends) own[step * 4] = make_float4(low[0], low[1], high[0], high[1]);
            }
        }
    }

    /// Writes the results of 16 rows, from `first` on.
    __device__ __forceinline__ static void write(
        const TallBlock& block, int first, bf16* out, const Sums<STEPS * 2>& sums) {
        int lane = threadIdx.x % WARP;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int place = block.place[first + lane / 4 + half * 8];
            if (place < 0) continue;
            float whole = 1.0f / sums.weights[half * 2];
            unsigned* to = (unsigned*)(out + place) + lane % 4;
#pragma unroll
            for (int n = 0; n < STEPS * 2; n++) {
                float low = sums.values[n][half * 2], high = sums.values[n][half * 2 + 1];
                to[n * 4] = to_pair(low * whole, high * whole);
            }
        }
    }

    /// All keys of all splits.
    __device__ __forceinline__ static void walk(
        TallBlock& block, float scale, bf16* out, float* totals) {
        int first = threadIdx.x / WARP * TALL_ROWS, limit = block.source.limit;
        load_tile(block.source, block.source.keys, 0, block.tiles, threadIdx.x);
        copy_commit();
        Sums<STEPS * 2> sums[TALL_PARTS];
        for (int key = 0; key < limit;) {
#pragma unroll
            for (int part = 0; part < TALL_PARTS; part++) clear(sums[part]);
            bool begins = key == 0;
            int border = min(key + SPLIT, limit);
            for (; key < border; key += TILE) tile(block, first, key, scale, sums);
#pragma unroll
            for (int part = 0; part < TALL_PARTS; part++) {
                fold_front(block, first + part * 16, begins, key >= limit, totals, sums[part]);
            }
        }
#pragma unroll
        for (int part = 0; part < TALL_PARTS; part++) {
            write(block, first + part * 16, out, sums[part]);
        }
    }
};

/// Attention of the rows of prompts, as `attention` has it, for heads of up to 128.
///
/// tiles: {span, first row within the span, rows, -1}, with at most 128 packed rows; span -1 is no
///   tile. Later ones, which have more keys, begin first.
/// totals: scratch memory [rows of the step, nq * HEAD_DIM], fewer than 2^31 elements.
/// Launch: grid (kv heads, tiles), 128 threads, TALL_SHARED bytes of dynamic shared memory.
__device__ __forceinline__ void attend_tall(
    bf16* out, const bf16* qkv, const PageUnit* keys, const PageUnit* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* totals, int nq, int nkv, float scale) {
    take_over();
    DYNAMIC_SHARED(shared);
    int4 tile = tiles[gridDim.y - 1 - blockIdx.y];
    if (HEAD_DIM > 128 || tile.x < 0) return;
    if constexpr (HEAD_DIM <= 128) {
        int head = blockIdx.x, group = nq / nkv;
        long long row = span_row[tile.x] + tile.y;
        int query_stride = (nq + 2 * nkv) * HEAD_DIM, out_stride = nq * HEAD_DIM;
        int at = head * group * HEAD_DIM, position = span_start[tile.x] + tile.y;
        Task task = {
            qkv + row * query_stride + at, query_stride, out + row * out_stride + at, out_stride,
            group, tile.z * group, position, scale * LOG2_E};
        TallBlock& block = *(TallBlock*)shared;
        if (threadIdx.x == 0) {
            block.source = {
                keys + head * PAGE_HEAD, values + head * PAGE_HEAD,
                tables + table_at[tile.x], (unsigned)(nkv * PAGE_HEAD), position + tile.z};
        }
        Tall::list_rows(task, (int)(row * out_stride + at), block);
        Tall::load_queries(task, block);
        __syncthreads();
        Tall::walk(block, task.scale, out, totals);
    }
}
