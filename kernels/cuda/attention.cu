// Attention of packed rows over the pages of their sequence, for the query heads that share a key
// and value head.
//
// Packed row `r` of a tile is query head `r % group` of row `r / group`, so that one load of keys
// and values serves the whole group. Keys are walked in tiles of 64 and splits of 512:
//
//   within a split, tile by tile:  top' = max(top, scores)      (in powers of two)
//                                  sum  = sum * 2^(top - top') + weights . values
//   then, split by split:          the splits' sums are folded the same way, in order.
//
// `sum` has one column more, of ones, so the weights' own sum is rounded as what it divides.
// A row's bits depend on its query and its keys alone: `narrow` (16 packed rows, four warps share
// them) and `wide` (64 packed rows, 16 a warp) do the same sums in the same order, and
// `attention_combine` folds as they do. Keys past a row change nothing: they weigh zero, and what
// lies past the tile's last row is read as zeros.
//
// keys, values: this layer's pages [pages][kv heads][PAGE][HEAD_DIM].
// tiles: {span, first row of the tile within the span, rows, split or -1}; span -1 is no tile.
//   With a split, at most 16 packed rows, and the split's sums go to `partial`
//   [tiles][kv heads][16][HEAD_DIM + 2]: HEAD_DIM sums, the top, the weights' sum.
//   Without, at most 64 packed rows, and the result goes to `out`
//   [rows of the step, nq * HEAD_DIM].
// Launch: grid (tiles, kv heads), 128 threads, ATTENTION_SHARED bytes of dynamic shared memory.

#define TILE 64
#define SPLIT 512
/// Blocks that a multiprocessor is to have room for.
#define ATTENTION_BLOCKS (HEAD_DIM <= 64 ? 3 : 2)
#define NARROW 16
#define WIDE 64
#define ATTENTION_WARPS 4
#define ATTENTION_THREADS (ATTENTION_WARPS * WARP)
#define LOG2_E 1.4426950408889634f
#define NEVER __uint_as_float(0xff800000u)
/// Two bf16 ones.
#define ONES 0x3f803f80u

/// 16-byte chunks of a head, and of a page.
#define CHUNKS (HEAD_DIM / 8)
#define PAGE_CHUNKS (PAGE * CHUNKS)
/// Chunks change places within rows of whole 128 bytes, or rows are one chunk longer: either way
/// eight rows of one column lie in different banks.
#define TWISTED (HEAD_DIM % 64 == 0)
#define ROW_BYTES (TWISTED ? HEAD_DIM * 2 : HEAD_DIM * 2 + 16)
#define SLOT_BYTES (TILE * ROW_BYTES)
/// Tiles of keys or of values that are in shared memory or on their way.
#define SLOTS (HEAD_DIM <= 64 ? 8 : HEAD_DIM <= 128 ? 6 : 3)
/// Those that `wide` uses.
#define WIDE_SLOTS (SLOTS - 3)
#define WEIGHT_BYTES ((TILE + 8) * 2)
#define ATTENTION_SHARED (SLOTS * SLOT_BYTES + NARROW * WEIGHT_BYTES + ATTENTION_WARPS * NARROW * 4)

/// 16 x 16 blocks of a head: in its depth for scores, in its breadth for sums.
#define STEPS (HEAD_DIM / 16)
/// Those that a warp of `narrow` sums.
#define OWN_STEPS ((STEPS + ATTENTION_WARPS - 1) / ATTENTION_WARPS)

/// What the packed rows of a tile are.
struct Task {
    const bf16* queries; // of the tile's first row and the group's first head
    int query_stride;    // from row to row
    bf16* out;           // likewise
    int out_stride;
    int group;
    int packed;   // packed rows
    int position; // of the first row
    float scale;  // to powers of two
};

/// Keys and values on their way: tiles in order, keys before values, through slots in turn.
template <int COUNT>
struct Ring {
    const bf16* keys;
    const bf16* values;
    const int* pages;
    unsigned page_stride;
    int limit;       // positions that exist
    unsigned issued; // tile * 2, and one more for values
    unsigned end;    // of `issued`
    int in, out;
    unsigned char* slots;
};

/// Sums of a warp's 16 packed rows over `N` times 8 columns; rows g and g + 8 of a lane.
template <int N>
struct Sums {
    float values[N][4];
    float weights[4];
    float top[2];
};

/// The place of a chunk in a slot.
__device__ __forceinline__ int chunk_at(int row, int chunk) {
    return row * ROW_BYTES + (TWISTED ? chunk ^ (row & 7) : chunk) * 16;
}

/// Begins to load the next tile, if there is one.
template <int COUNT>
__device__ __forceinline__ void issue(Ring<COUNT>& ring) {
    if (ring.issued < ring.end) {
        const bf16* from = ring.issued % 2 ? ring.values : ring.keys;
        unsigned tile = ring.issued / 2;
        const int* list = ring.pages + tile * (TILE / PAGE);
        int left = ring.limit - (int)tile * TILE;
        unsigned char* slot = ring.slots + ring.in * SLOT_BYTES;
#pragma unroll
        for (int part = 0; part < TILE / PAGE; part++) {
            unsigned page = part * PAGE < left ? __ldg(list + part) : 0;
            const bf16* own = from + (u64)page * ring.page_stride + threadIdx.x * 8;
#pragma unroll
            for (int block = 0; block < PAGE_CHUNKS; block += ATTENTION_THREADS) {
                int c = block + (int)threadIdx.x;
                if (PAGE_CHUNKS % ATTENTION_THREADS && c >= PAGE_CHUNKS) break;
                int row = part * PAGE + c / CHUNKS;
                copy_async(slot + chunk_at(row, c % CHUNKS), own + block * 8, row < left);
            }
        }
    }
    copy_commit();
    ring.issued++;
    ring.in = ring.in + 1 == COUNT ? 0 : ring.in + 1;
}

/// Begins to load tiles from `first` to `end`. No other thread may still read the slots.
template <int COUNT>
__device__ __forceinline__ void start(Ring<COUNT>& ring, int first, int end) {
    ring.issued = first * 2;
    ring.end = end * 2;
    ring.in = 0;
    ring.out = 0;
#pragma unroll 1
    for (int slot = 0; slot < COUNT - 1; slot++) issue(ring);
}

/// The next tile, behind a barrier: all threads have left the one before, whose slot is filled.
template <int COUNT>
__device__ __forceinline__ const unsigned char* next(Ring<COUNT>& ring) {
    copy_wait<COUNT - 2>();
    __syncthreads();
    issue(ring);
    const unsigned char* slot = ring.slots + ring.out * SLOT_BYTES;
    ring.out = ring.out + 1 == COUNT ? 0 : ring.out + 1;
    return slot;
}

/// Lets the slots be used anew.
__device__ __forceinline__ void finish() {
    copy_wait<0>();
    __syncthreads();
}

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

/// What two tops make: the greater, and what sums below each shrink by.
struct Joint {
    float top, all, split;
};

__device__ __forceinline__ Joint join(float all, float split) {
    float top = fmaxf(all, split);
    return {top, shrink(all, top), shrink(split, top)};
}

/// One sum of all splits so far and one of the next, by what their tops make.
__device__ __forceinline__ float folded(float all, float split, const Joint& joint) {
    return fmaf(all, joint.all, split * joint.split);
}

/// Sums over all splits so far of a warp's 16 packed rows. Those of the values stand `stride`
/// apart, where there is room for them: as `Sums` has them, four by four.
struct Totals {
    float4* values;
    int stride;
    float weights[2];
    float top[2];
};

template <int N>
__device__ __forceinline__ void clear(Totals& all) {
#pragma unroll
    for (int n = 0; n < N; n++) all.values[n * all.stride] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        all.weights[half] = 0.0f;
        all.top[half] = NEVER;
    }
}

/// Folds a split into those before it.
template <int N>
__device__ __forceinline__ void fold(Totals& all, const Sums<N>& split) {
    Joint joint[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        joint[half] = join(all.top[half], split.top[half]);
        all.top[half] = joint[half].top;
        all.weights[half] = folded(all.weights[half], split.weights[half * 2], joint[half]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        float4 old = all.values[n * all.stride];
        all.values[n * all.stride] = make_float4(
            folded(old.x, split.values[n][0], joint[0]),
            folded(old.y, split.values[n][1], joint[0]),
            folded(old.z, split.values[n][2], joint[1]),
            folded(old.w, split.values[n][3], joint[1]));
    }
}

/// Writes the `n`th 8 columns of the lane's two rows, which begin at `column`, as the result.
__device__ __forceinline__ void write_result(
    const Task& task, int first, int n, int column, const Totals& all) {
    int lane = threadIdx.x % WARP;
    float4 values = all.values[n * all.stride];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + lane / 4 + half * 8;
        if (row >= task.packed) continue;
        int at = row / task.group * task.out_stride + row % task.group * HEAD_DIM;
        float whole = 1.0f / all.weights[half];
        float low = half ? values.z : values.x, high = half ? values.w : values.y;
        *((unsigned*)(task.out + at + column) + lane % 4) = to_pair(low * whole, high * whole);
    }
}

/// 16 packed rows: every warp scores 16 keys of a tile and sums some of the columns.
struct Narrow {
    unsigned char* weights; // [16][TILE + 8] bf16
    float* tops;            // [warps][16]

    /// One tile. Three barriers: keys are there, tops are there, values and weights are there.
    __device__ __forceinline__ void tile(
        Ring<SLOTS>& ring, const unsigned (&queries)[STEPS][4], int key, const int (&last)[2],
        float scale, Sums<OWN_STEPS * 2>& sums) {
        int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
        const unsigned char* keys = next(ring);
        float scores[2][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            score(queries[step], keys, warp * 16, step, scores[0], scores[1]);
        }
        float top[2] = {NEVER, NEVER};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mask(scores[n], key + warp * 16 + n * 8 + q * 2, last);
#pragma unroll
            for (int i = 0; i < 4; i++) top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[half] = quad_max(top[half]);
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
        add(next(ring), sums);
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

    /// All keys of a split, or of all splits, for the packed rows from `first` on.
    __device__ __forceinline__ void walk(
        const Task& task, Ring<SLOTS>& ring, int first, int split, float* partial) {
        int row = first + threadIdx.x % WARP / 4;
        int last[2] = {last_key(task, row), last_key(task, row + 8)};
        int final_row = min(first + NARROW, task.packed) - 1;
        int tiles = (last_key(task, final_row) + TILE) / TILE;
        int tile = split < 0 ? 0 : split * (SPLIT / TILE);
        int end = split < 0 ? tiles : min(tile + SPLIT / TILE, tiles);
        start(ring, tile, end);
        unsigned queries[STEPS][4];
        load_queries(task, first, queries);
        Sums<OWN_STEPS * 2> sums;
        float4 values[OWN_STEPS * 2];
        Totals all = {values, 1};
        clear<OWN_STEPS * 2>(all);
        while (tile < end) {
            clear(sums);
            int border = min((tile / (SPLIT / TILE) + 1) * (SPLIT / TILE), end);
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
        const unsigned char* keys = next(ring);
        bool any = __ballot_sync(EVERY_LANE, key <= max(last[0], last[1])) != 0;
        float scores[TILE / 8][4] = {};
        if (any) {
            float top[2] = {NEVER, NEVER};
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
            for (int n = 0; n < TILE / 8; n++) {
                mask(scores[n], key + n * 8 + q * 2, last);
#pragma unroll
                for (int i = 0; i < 4; i++) top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
            }
            top[0] = quad_max(top[0]);
            top[1] = quad_max(top[1]);
            lift(sums, top, scale);
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) weigh(scores[n], scale, sums.top);
        }
        const unsigned char* values = next(ring);
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
        unsigned char* queries = ring.slots + WIDE_SLOTS * SLOT_BYTES;
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

extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS) attention(
    bf16* out, const bf16* qkv, const bf16* keys, const bf16* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* partial, int nq, int nkv, float scale) {
    DYNAMIC_SHARED(shared);
    int4 tile = tiles[blockIdx.x];
    if (tile.x < 0) return;
    int head = blockIdx.y, group = nq / nkv;
    long long row = span_row[tile.x] + tile.y;
    unsigned page_stride = nkv * PAGE * HEAD_DIM;
    int query_stride = (nq + 2 * nkv) * HEAD_DIM, out_stride = nq * HEAD_DIM;
    int at = head * group * HEAD_DIM;
    int position = span_start[tile.x] + tile.y;
    Task task = {
        qkv + row * query_stride + at, query_stride, out + row * out_stride + at, out_stride,
        group, tile.z * group, position, scale * LOG2_E};
    const bf16* head_keys = keys + head * PAGE * HEAD_DIM;
    const bf16* head_values = values + head * PAGE * HEAD_DIM;
    const int* pages = tables + table_at[tile.x];
    int limit = position + tile.z;
    if (HEAD_DIM <= 128 && task.packed > NARROW) {
        if constexpr (HEAD_DIM <= 128) {
            Ring<WIDE_SLOTS> ring = {head_keys, head_values, pages, page_stride, limit};
            ring.slots = shared;
            Wide::walk(task, ring);
        }
        return;
    }
    Ring<SLOTS> ring = {head_keys, head_values, pages, page_stride, limit};
    ring.slots = shared;
    Narrow narrow = {
        shared + SLOTS * SLOT_BYTES,
        (float*)(shared + SLOTS * SLOT_BYTES + NARROW * WEIGHT_BYTES)};
    // Wider heads have no room in registers for `wide`: 16 packed rows at a time.
    for (int first = 0; first < task.packed; first += NARROW) {
        long long place = (long long)blockIdx.x * nkv + head;
        narrow.walk(task, ring, first, tile.w, partial + place * NARROW * (HEAD_DIM + 2));
    }
}

/// Folds the splits of decoded rows. Span `s` has one row, `span_row[s]` of the step, and the
/// partial sums of tiles `first_tile[s]` to `first_tile[s] + tile_count[s]`, in order of splits.
/// A span without tiles gets zeros, or nothing if its row is -1.
/// Launch: grid (spans, nq), 64 threads.
extern "C" __global__ void __launch_bounds__(64) attention_combine(
    bf16* out, const float* partial, const int* first_tile, const int* tile_count,
    const int* span_row, int nq, int nkv) {
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
        float low = 0.0f, high = 0.0f, weights = 0.0f, top = NEVER;
#pragma unroll 4
        for (int tile = 0; tile < tiles; tile++) {
            const float* split = sums + tile * stride;
            float2 pair = *(const float2*)(split + column);
            float2 rest = *(const float2*)(split + HEAD_DIM);
            Joint joint = join(top, rest.x);
            top = joint.top;
            low = folded(low, pair.x, joint);
            high = folded(high, pair.y, joint);
            weights = folded(weights, rest.y, joint);
        }
        float whole = tiles > 0 ? 1.0f / weights : 0.0f;
        *(unsigned*)(to + column) = to_pair(low * whole, high * whole);
    }
}
