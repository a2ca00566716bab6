// 128 packed rows of long prompts, by products of warpgroups: each of the two has 64 rows.
//
// Products run beside the arithmetic (FlashAttention-3: Shah et al., 2024, arXiv:2407.08608): while
// the values of a tile are added, the scores of the next one are multiplied and weighed. Weights
// stay in the registers in which scores came, as the left side of the product with the values. All
// threads load by `cp.async` what is two products ahead; there is one barrier a tile.
//
//   behind the barrier   scores = queries * keys of tile `t`;  sums += weights * values of `t - 1`
//   meanwhile            loads of the keys of `t + 1` and the values of `t`
//   scores are there     weights of `t`, while the values of `t - 1` are added
//   values are there     sums shrink below the new tops
//
// There are no splits: a row's sums go from its first key to its last. So its bits are not those of
// `attention`, but they depend on neither its tile nor its piece of the prompt. Weights are summed
// before they are rounded to bf16.

/// Devices that have products of warpgroups, and sizes of heads for which there are tiles.
#if (defined(ROLLTAPE_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)) && \
    (HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256)
#define HAS_WARPGROUPS
#endif

#define GROUP_THREADS (4 * WARP)
#define GROUP_ROWS 64
/// Packed rows of a block, and its threads.
#define BLOCK_ROWS 128
#define BLOCK_THREADS (BLOCK_ROWS / GROUP_ROWS * GROUP_THREADS)
/// Keys of a tile: sums of wider heads leave no registers for more.
#define KEYS (HEAD_DIM <= 128 ? 128 : 64)
/// Panels of a head, and their bytes, of keys or values and of queries.
#define PANELS (HEAD_DIM / PANEL_WIDTH)
#define KEY_PANEL (KEYS * PANEL_ROW)
#define QUERY_PANEL (BLOCK_ROWS * PANEL_ROW)

#ifdef HAS_WARPGROUPS

/// The shared memory of a block, at a border of an atom. Tiles of keys and of values take turns.
struct WarpgroupBlock {
    unsigned char queries[PANELS * QUERY_PANEL];
    unsigned char keys[2][PANELS * KEY_PANEL];
    unsigned char values[2][PANELS * KEY_PANEL];
};

typedef float Scores[KEYS / 8][4];
/// The weights of a tile: the left side of products for 16 keys at a time.
typedef unsigned TileWeights[KEYS / 16][4];

/// What a lane knows of its two rows, 8 apart.
struct RowSums {
    float values[HEAD_DIM / 8][4];
    /// Of the keys that the lane has, and no other lane of its quad.
    float weights[2];
    float top[2];
};

/// 128 packed rows, 64 a warpgroup.
struct Warpgroups {
    /// Begins to load the queries.
    __device__ __forceinline__ static void load_queries(const Task& task, unsigned char* to) {
#pragma unroll 1
        for (int c = threadIdx.x; c < BLOCK_ROWS * CHUNKS; c += BLOCK_THREADS) {
            int row = c / CHUNKS, chunk = c % CHUNKS;
            int at = row / task.group * task.query_stride + row % task.group * HEAD_DIM;
            int panel = chunk / (PANEL_WIDTH / 8) * QUERY_PANEL;
            copy_async(to + panel + panel_place(row, chunk % (PANEL_WIDTH / 8)),
                       task.queries + at + chunk * 8, row < task.packed);
        }
    }

    /// Begins to load a tile of one side, keys or values.
    __device__ __forceinline__ static void load(
        const Source& source, const PageUnit* side, int tile, unsigned char* to) {
        constexpr int rows = BLOCK_THREADS / CHUNKS; // at a time
        int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const int* list = source.pages + tile * (KEYS / PAGE);
        int left = source.limit - tile * KEYS;
        unsigned char* own = to + chunk / (PANEL_WIDTH / 8) * KEY_PANEL +
                             panel_place(row, chunk % (PANEL_WIDTH / 8));
#pragma unroll 4
        for (int first = 0; first < KEYS; first += rows) {
            int at = first + row;
            unsigned page = at / PAGE * PAGE < left ? __ldg(list + at / PAGE) : 0;
            const PageUnit* from = side + (u64)page * source.page_stride;
            copy_async(own + first * PANEL_ROW, from + at % PAGE * HEAD_DIM + chunk * 8, at < left);
        }
    }

    /// Begins the products of a warpgroup's queries with a tile of keys.
    __device__ __forceinline__ static void score(
        unsigned queries, unsigned keys, Scores& scores) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            // Four steps to a panel.
            int panel = step / 4, within = step % 4 * PRODUCT_DEPTH * 2;
            u64 a = describe(queries + panel * QUERY_PANEL + within, QUERY_PANEL);
            u64 b = describe(keys + panel * KEY_PANEL + within, KEY_PANEL);
            if (step == 0) {
                product<KEYS / 8, false>(scores, a, b);
            } else {
                product<KEYS / 8, true>(scores, a, b);
            }
        }
        commit_products();
    }

    /// Begins to add a tile of values by its weights.
    __device__ __forceinline__ static void add(
        const TileWeights& weights, unsigned values, RowSums& sums) {
#pragma unroll
        for (int step = 0; step < KEYS / PRODUCT_DEPTH; step++) {
            u64 b = describe(values + step * PRODUCT_DEPTH * PANEL_ROW, KEY_PANEL);
            add_product<HEAD_DIM / 8>(sums.values, weights[step], b);
        }
        commit_products();
    }

    /// Scores to weights below the new tops of the lane's rows. Returns in `less` what the sums
    /// below the old tops shrink by. `key` is that of the lane's first score. The first tile has a
    /// key for every row, so tops are numbers.
    __device__ __forceinline__ static void weigh(
        Scores& scores, int key, bool partly, const int (&last)[2], float scale, RowSums& sums,
        float (&less)[2]) {
        if (partly) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) mask(scores[n], key + n * 8, last);
        }
        float top[2];
        find_tops(scores, top);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[half] = fmaxf(sums.top[half], top[half] * scale);
            less[half] = exp2_fast(sums.top[half] - top[half]);
            sums.top[half] = top[half];
            sums.weights[half] *= less[half];
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[n][i] = exp2_fast(fmaf(scores[n][i], scale, -top[i / 2]));
                sums.weights[i / 2] += scores[n][i];
            }
        }
    }

    /// Rounds weights.
    __device__ __forceinline__ static void round(const Scores& scores, TileWeights& weights) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            weights[n / 2][n % 2 * 2] = to_pair(scores[n][0], scores[n][1]);
            weights[n / 2][n % 2 * 2 + 1] = to_pair(scores[n][2], scores[n][3]);
        }
    }

    /// What was loaded is there, for all threads and for products, and the products of the tile in
    /// front have read what is loaded next.
    __device__ __forceinline__ static void meet() {
        copy_wait<0>();
        show_async();
        __syncthreads();
    }

    /// Writes the results of the lane's rows.
    __device__ __forceinline__ static void write(const Task& task, int row, RowSums& sums) {
#pragma unroll
        for (int half = 0; half < 2; half++, row += 8) {
            float total = sums.weights[half];
            total += __shfl_xor_sync(EVERY_LANE, total, 1);
            total += __shfl_xor_sync(EVERY_LANE, total, 2);
            if (row >= task.packed) continue;
            int at = row / task.group * task.out_stride + row % task.group * HEAD_DIM;
            float whole = 1.0f / total;
            unsigned* to = (unsigned*)(task.out + at) + threadIdx.x % 4;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                float low = sums.values[n][half * 2], high = sums.values[n][half * 2 + 1];
                to[n * 4] = to_pair(low * whole, high * whole);
            }
        }
    }

    /// All keys.
    __device__ __forceinline__ static void walk(
        const Task& task, const Source& source, WarpgroupBlock& block) {
        int group = threadIdx.x / GROUP_THREADS, warp_row = threadIdx.x / WARP * 16;
        int row = warp_row + threadIdx.x % WARP / 4, own_key = threadIdx.x % 4 * 2;
        // A row that is none has the keys of the last one.
        int border = task.packed - 1;
        int last[2] = {last_key(task, min(row, border)), last_key(task, min(row + 8, border))};
        int all = last_key(task, min(warp_row, border)); // keys that every row of the warp has
        int tiles = (source.limit + KEYS - 1) / KEYS;
        unsigned queries = shared_address(block.queries) + group * GROUP_ROWS * PANEL_ROW;

        load_queries(task, block.queries);
        load(source, source.keys, 0, block.keys[0]);
        copy_commit();
        meet();
        Scores scores;
        TileWeights weights;
        RowSums sums = {};
        sums.top[0] = NEVER;
        sums.top[1] = NEVER;
        float less[2];
        begin_products();
        score(queries, shared_address(block.keys[0]), scores);
        if (tiles > 1) load(source, source.keys, 1, block.keys[1]);
        load(source, source.values, 0, block.values[0]);
        copy_commit();
        wait_products<0>();
        settle(scores);
        weigh(scores, own_key, KEYS - 1 > all, last, task.scale, sums, less);
        round(scores, weights);

#pragma unroll 1
        for (int tile = 1; tile < tiles; tile++) {
            int now = tile % 2, other = now ^ 1;
            meet();
            settle(sums.values);
            begin_products();
            score(queries, shared_address(block.keys[now]), scores);
            add(weights, shared_address(block.values[other]), sums);
            if (tile + 1 < tiles) load(source, source.keys, tile + 1, block.keys[other]);
            load(source, source.values, tile, block.values[now]);
            copy_commit();
            wait_products<1>();
            settle(scores);
            bool partly = tile * KEYS + KEYS - 1 > all;
            weigh(scores, tile * KEYS + own_key, partly, last, task.scale, sums, less);
            wait_products<0>();
            settle(sums.values);
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sums.values[n][i] *= less[i / 2];
            }
            round(scores, weights);
        }

        meet();
        settle(sums.values);
        begin_products();
        add(weights, shared_address(block.values[(tiles - 1) % 2]), sums);
        wait_products<0>();
        settle(sums.values);
        write(task, row, sums);
    }
};

#endif

/// Attention of the rows of prompts, as `attention` has it, for heads of 64, 128 and 256 on devices
/// of compute capability 9.0; elsewhere it does nothing.
///
/// tiles: {span, first row within the span, rows, -1}, with at most 128 packed rows; span -1 is no
///   tile. Later ones, which have more keys, begin first.
/// Launch: grid (kv heads, tiles), 256 threads, dynamic shared memory of a `WarpgroupBlock` and
///   1,024 bytes.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_warpgroups(
    bf16* out, const bf16* qkv, const bf16* keys, const bf16* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables, int nq,
    int nkv, float scale) {
    take_over();
#ifdef HAS_WARPGROUPS
    DYNAMIC_SHARED(shared);
    int4 tile = tiles[gridDim.y - 1 - blockIdx.y];
    if (tile.x < 0) return;
    int head = blockIdx.x, group = nq / nkv;
    long long row = span_row[tile.x] + tile.y;
    int query_stride = (nq + 2 * nkv) * HEAD_DIM, out_stride = nq * HEAD_DIM;
    int at = head * group * HEAD_DIM, position = span_start[tile.x] + tile.y;
    Task task = {
        qkv + row * query_stride + at, query_stride, out + row * out_stride + at, out_stride,
        group, tile.z * group, position, scale * LOG2_E};
    Source source = {
        keys + head * PAGE_HEAD, values + head * PAGE_HEAD, tables + table_at[tile.x],
        (unsigned)(nkv * PAGE_HEAD), position + tile.z};
    unsigned over = shared_address(shared) % ATOM_BYTES;
    Warpgroups::walk(task, source, *(WarpgroupBlock*)(shared + (ATOM_BYTES - over) % ATOM_BYTES));
#endif
}
