// From logits to tokens: filters, the draw, logprobs, ranks and the likeliest ids.
//
// Two launches a step, R rows of parameters, `tiles = (vocab + 1023) / 1024`:
//
//   sample_tiles<<<((tiles + 7) / 8, R), 256>>>(logits, params, tiles, vocab, stride)
//   sample_rows <<<R, 1024>>>(logits, params, tiles, ids, scores, top, vocab, stride, most)
//
// No dynamic shared memory. `vocab` is 1 to 1,048,576; a row of logits begins every `stride`
// elements (`stride >= vocab`; 16-byte loads where `stride % 4 == 0`, single ones elsewhere).
//
// extern "C" __global__ void sample_tiles(
//     const float* logits,         // [rows, stride]
//     const SampleParams* params,  // [R]
//     SampleTile* tiles,           // [R, tiles], 24 bytes each: scratch between the two
//     int vocab, int stride);
//
// extern "C" __global__ void sample_rows(
//     const float* logits, const SampleParams* params, const SampleTile* tiles,
//     int* ids,                    // [R]: what `embed` takes as `sampled`; -1 for padding
//     SampleScores* scores,        // [R]; not written where `top_n < 0` or for padding
//     SampleCandidate* top,        // [R, most]; the first `top_n` of a row are written
//     int vocab, int stride, int most);  // most <= 32, top_n <= most

// How to choose one token; 40 bytes.
struct SampleParams {
    float temperature;  // below 1e-5 is greedy: no filters, logits as they are
    float top_p;        // 1 is off
    float min_p;        // 0 is off
    int top_k;          // 0 is off
    int top_n;          // likeliest ids to report; -1 for no scores at all
    int row;            // of the logits; -1 for padding
    unsigned long long seed;
    int position;       // of the token in its reply, which counts the draws
    int raw;            // 1: rank and order are those of the model's own logits, 0: the processed
};

// 16 bytes.
struct SampleScores {
    int id;
    float processed;  // logprob under what was sampled from
    float raw;        // logprob under the model's own distribution
    int rank;         // ids at least as likely, itself among them
};

// 16 bytes. Likeliest first, of equals the lower id first; filtered ids have `processed` = -inf.
struct SampleCandidate {
    int id;
    float processed;
    float raw;
    int pad;
};

// Of 1,024 ids, one for each thread of `sample_rows`.
struct SampleTile {
    double processed;  // sum of exp(value - highest value of the tile)
    double raw;
    float highest;  // raw
    int pad;
};

#define TILE 1024  // ids
#define BINS 2048
#define BINS_A_UNIT 64
#define LIST 4096
#define MOST 32
#define GREEDY_BELOW 1e-5f

// Bits of the weight of a logit, relative to its bin; in two halves, whose sums over 2^20 ids fit
// 32 bits each. Shared memory adds 32-bit integers by itself, but not longer ones.
#define WEIGHT_BITS 24
#define HALF_BITS 12
// A whole weight of one in the sum over all bins; 2^20 of them fit 63 bits.
#define ONE 8796093022208.0

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// exp(d) for d of at most zero; zero below -87 and for what is not a number. Only additions,
// products and fused ones of 32 bits, so that every device gives the same bits.
__device__ __forceinline__ float weight(float d) {
    const float bounded = d > -87.0f ? d : -87.0f;
    const float shifted = fmaf(bounded, 1.44269504f, 12582912.0f);
    const float whole = shifted - 12582912.0f;
    const float rest = fmaf(whole, 2.12194440e-4f, fmaf(whole, -0.693359375f, bounded));
    float power = fmaf(1.9875691e-4f, rest, 1.3981999e-3f);
    power = fmaf(power, rest, 8.333452e-3f);
    power = fmaf(power, rest, 4.1665796e-2f);
    power = fmaf(power, rest, 0.16666665f);
    power = fmaf(power, rest, 0.5f);
    const float fraction = fmaf(power, rest * rest, rest) + 1.0f;
    // The integer stands in the low bits of the shifted number; it becomes the exponent.
    const int scale = (int)(((unsigned)__float_as_int(shifted) << 23) + (127u << 23));
    return d > -87.0f ? fraction * __int_as_float(scale) : 0.0f;
}

// Integers in the order of the floats that they stand for, and back.
__device__ __forceinline__ unsigned key_of(float value) {
    const unsigned bits = (unsigned)__float_as_int(value);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(unsigned key) {
    return __int_as_float((int)(key >> 31 ? key & 0x7fffffffu : ~key));
}

// The numbers of the SplitMix64 generator that the host draws, too.
__device__ __forceinline__ unsigned long long mix(unsigned long long value) {
    value += 0x9E3779B97F4A7C15ull;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

__device__ __forceinline__ double uniform(unsigned long long seed, int position) {
    const unsigned long long counter = (unsigned long long)position * 0x9E3779B97F4A7C15ull;
    return (double)(mix(mix(seed) + counter) >> 11) * (1.0 / 9007199254740992.0);
}

__device__ __forceinline__ double sum_of_warp(double value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(EVERY_LANE, value, step);
    return value;
}

// A row of logits and how they are read.
struct Row {
    const float* logits;
    int vocab;
    bool whole;     // 16-byte loads
    float divisor;  // one where values are the logits themselves

    __device__ __forceinline__ float processed(float logit) const {
        return divisor == 1.0f ? logit : logit / divisor;
    }

    // The four logits from `id` on, which is a multiple of four; minus infinity beyond the last.
    __device__ __forceinline__ float4 load(int id) const {
        const float none = -infinity();
        if (whole && id + 4 <= vocab) return __ldg((const float4*)(logits + id));
        float4 out;
        out.x = id < vocab ? logits[id] : none;
        out.y = id + 1 < vocab ? logits[id + 1] : none;
        out.z = id + 2 < vocab ? logits[id + 2] : none;
        out.w = id + 3 < vocab ? logits[id + 3] : none;
        return out;
    }

    // Half a tile, of which each lane has 4 ids in each of 4 runs of 128.
    __device__ __forceinline__ void load_half(float (&out)[16], int first, int lane) const {
#pragma unroll
        for (int run = 0; run < 4; run++) {
            const float4 four = load(first + run * 128 + lane * 4);
            out[4 * run] = four.x;
            out[4 * run + 1] = four.y;
            out[4 * run + 2] = four.z;
            out[4 * run + 3] = four.w;
        }
    }
};

__device__ __forceinline__ Row row_of(const float* logits, const SampleParams& params, int vocab,
                                      int stride) {
    const float divisor = params.temperature < GREEDY_BELOW ? 1.0f : params.temperature;
    return {logits + (long long)params.row * stride, vocab, stride % 4 == 0, divisor};
}

// A lane's sum of exp(value - highest) over the values of half a tile that reach a floor. The tree
// is that of the tile, so it does not matter who adds up, nor what stands beside it.
__device__ __forceinline__ float sum_of_half(const float (&logits)[16], float divisor,
                                             float highest, float floor) {
    float runs[4];
#pragma unroll
    for (int run = 0; run < 4; run++) {
        float four[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float logit = logits[4 * run + i];
            const float value = divisor == 1.0f ? logit : logit / divisor;
            four[i] = value >= floor ? weight(value - highest) : 0.0f;
        }
        runs[run] = (four[0] + four[1]) + (four[2] + four[3]);
    }
    return (runs[0] + runs[1]) + (runs[2] + runs[3]);
}

extern "C" __global__ void __launch_bounds__(256) sample_tiles(
    const float* logits, const SampleParams* params, SampleTile* tiles, int vocab, int stride) {
    const int count = (vocab + TILE - 1) / TILE;
    const int tile = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    const SampleParams own = params[blockIdx.y];
    if (own.row < 0 || tile >= count) return;
    const Row row = row_of(logits, own, vocab, stride);
    float low[16], high[16];
    row.load_half(low, tile * TILE, lane);
    row.load_half(high, tile * TILE + TILE / 2, lane);
    float highest = -infinity();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        highest = low[i] > highest ? low[i] : highest;
        highest = high[i] > highest ? high[i] : highest;
    }
    highest = warp_max(highest);
    const bool greedy = own.temperature < GREEDY_BELOW, scored = own.top_n >= 0;
    const auto sum = [&](float divisor) {
        const float most = highest / divisor, none = -infinity();
        const double first = sum_of_half(low, divisor, most, none);
        return sum_of_warp(first + (double)sum_of_half(high, divisor, most, none));
    };
    SampleTile out = {0.0, 0.0, highest, 0};
    const bool same = row.divisor == 1.0f;
    if (scored || (same && !greedy)) out.raw = sum(1.0f);
    out.processed = same ? out.raw : sum(row.divisor);
    if (lane == 0) tiles[(long long)blockIdx.y * count + tile] = out;
}

// What the threads of a row share. It is one variable, not handed on, so that compilers know where
// it lies.
struct Shared {
    // How the row is read: as it is sampled from, and as ranks and order go by it.
    Row row, shown;
    SampleParams own;
    float highest[TILE];  // of each tile, as the model gave it
    double sums[TILE];    // of the weights of each tile that are left
    unsigned high[BINS], low[BINS];
    float list[LIST];
    double doubles[32];
    unsigned long long integers[32];
    float floats[32];
    int found_ids[MOST];
    float found[MOST];
    int listed, chosen, answer;
    unsigned long long before, inside;
    double left;
};
__shared__ Shared shared;

__device__ __forceinline__ float highest_of_block(float value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 16; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, step));
    }
    if (lane == 0) shared.floats[warp] = value;
    __syncthreads();
    value = shared.floats[lane];
    for (int step = 16; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, step));
    }
    __syncthreads();
    return value;
}

__device__ __forceinline__ double sum_of_block(double value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    value = sum_of_warp(value);
    if (lane == 0) shared.doubles[warp] = value;
    __syncthreads();
    value = sum_of_warp(shared.doubles[lane]);
    __syncthreads();
    return value;
}

// The sum over the threads up to this one.
__device__ __forceinline__ unsigned long long prefix_of_block(unsigned long long value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(EVERY_LANE, value, step);
        value += lane >= step ? other : 0;
    }
    if (lane == 31) shared.integers[warp] = value;
    __syncthreads();
    unsigned long long total = shared.integers[lane];
    for (int step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(EVERY_LANE, total, step);
        total += lane >= step ? other : 0;
    }
    const unsigned long long warps = __shfl_sync(EVERY_LANE, total, warp > 0 ? warp - 1 : 0);
    __syncthreads();
    return value + (warp > 0 ? warps : 0);
}

// The same of weights.
__device__ __forceinline__ double sum_up_to(double value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(EVERY_LANE, value, step);
        value += lane >= step ? other : 0.0;
    }
    if (lane == 31) shared.doubles[warp] = value;
    __syncthreads();
    double before = lane < warp ? shared.doubles[lane] : 0.0;
    for (int step = 16; step > 0; step /= 2) before += __shfl_xor_sync(EVERY_LANE, before, step);
    __syncthreads();
    return value + before;
}

// Calls `visit(id, four)` for runs of four ids with their logits, in all tiles that reach a floor.
// All lanes of a warp call it together; ids may lie beyond the vocabulary.
template <class Visit>
__device__ __forceinline__ void visit_tiles(const Row& row, float floor,
                                            const Visit& visit) {
    const int lane = threadIdx.x % 32, tiles = (row.vocab + TILE - 1) / TILE;
    for (int tile = threadIdx.x / 32; tile < tiles; tile += 32) {
        if (!(row.processed(shared.highest[tile]) >= floor)) continue;
#pragma unroll 1
        for (int pair = 0; pair < 4; pair++) {
            const int id = tile * TILE + pair * 256 + lane * 4;
            const float4 a = row.load(id), b = row.load(id + 128);
            const float first[4] = {a.x, a.y, a.z, a.w}, second[4] = {b.x, b.y, b.z, b.w};
            visit(id, first);
            visit(id + 128, second);
        }
    }
}

// Bins by distance from the highest value; a lower one has the same bin or a later one.
struct Place {
    int bin;
    unsigned amount;  // weight relative to that of the bin's upper edge
};

__device__ __forceinline__ Place place_of(float value, float highest) {
    const float distance = (value == highest ? 0.0f : highest - value) * BINS_A_UNIT;
    if (!(distance < BINS - 1)) return {BINS - 1, 0};
    const int bin = (int)distance;
    const float x = (distance - bin) * (1.0f / BINS_A_UNIT);
    const float relative = fmaf(x, fmaf(x, fmaf(x, -0.16666667f, 0.5f), -1.0f), 1.0f);
    return {bin, (unsigned)(relative * (1 << WEIGHT_BITS))};
}

// Adds to bins, once for the whole warp where all its lanes have the same.
template <bool WEIGHTS>
__device__ __forceinline__ void add_to_bin(bool valid, int bin, unsigned amount) {
    const unsigned active = __ballot_sync(EVERY_LANE, valid);
    if (active == 0) return;
    const int leader = __ffs(active) - 1;
    const int first = __shfl_sync(EVERY_LANE, bin, leader);
    const bool same = __all_sync(EVERY_LANE, !valid || bin == first);
    unsigned high = valid ? amount >> HALF_BITS : 0;
    unsigned low = WEIGHTS ? amount & ((1 << HALF_BITS) - 1) : 1;
    if (same) {
        high = WEIGHTS ? __reduce_add_sync(EVERY_LANE, high) : 0;
        low = WEIGHTS ? __reduce_add_sync(EVERY_LANE, valid ? low : 0) : __popc(active);
        valid = threadIdx.x % 32 == leader;
    }
    if (!valid) return;
    if (WEIGHTS) atomicAdd(&shared.high[bin], high);
    atomicAdd(&shared.low[bin], low);
}

__device__ __forceinline__ void clear_bins() {
    for (int bin = threadIdx.x; bin < BINS; bin += TILE) shared.high[bin] = shared.low[bin] = 0;
    __syncthreads();
}

__device__ __forceinline__ unsigned long long amount_in(int bin) {
    return ((unsigned long long)shared.high[bin] << HALF_BITS) + shared.low[bin];
}

// Finds the bin at which the amounts, from the first bin on, reach a target of at least one; it and
// what is before it are left in `shared`. `part` of the whole is the target where that is zero.
__device__ __forceinline__ void find_bin(const unsigned long long (&amounts)[2],
                                         unsigned long long target, double part) {
    const unsigned long long to = prefix_of_block(amounts[0] + amounts[1]);
    const unsigned long long middle = to - amounts[1], from = middle - amounts[0];
    if (threadIdx.x == TILE - 1) shared.inside = to;
    if (threadIdx.x == 0) shared.chosen = -1;
    __syncthreads();
    const unsigned long long whole = shared.inside;
    if (target == 0) target = (unsigned long long)ceil(part * (double)whole);
    target = target > whole ? whole : target < 1 ? 1 : target;
    if (from < target && target <= to) {
        const int second = target > middle;
        shared.chosen = 2 * threadIdx.x + second;
        shared.before = target - (second ? middle : from);
    }
    __syncthreads();
}

// The highest value such that those at least as high, of all that reach `floor`, have a total
// weight (or number) of `target`, or of `part` of the whole if `target` is zero; the lowest value
// if all together have less.
template <bool WEIGHTS>
__device__ __forceinline__ float select(const Row& given, float highest, float floor,
                                        unsigned long long target, double part) {
    const Row row = given;
    clear_bins();
    visit_tiles(row, floor, [&](int id, const float(&four)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float value = row.processed(four[i]);
            const Place place = place_of(value, highest);
            const bool valid = value >= floor && id + i < row.vocab;
            add_to_bin<WEIGHTS>(valid, place.bin, place.amount);
        }
    });
    __syncthreads();
    unsigned long long amounts[2];
    double unit = 1.0;
    for (int i = 0; i < 2; i++) {
        const int bin = 2 * threadIdx.x + i;
        unit = exp(-(double)bin / BINS_A_UNIT) * (ONE / (1 << WEIGHT_BITS));
        const unsigned long long amount = amount_in(bin);
        amounts[i] = WEIGHTS ? (unsigned long long)((double)amount * unit) : amount;
    }
    find_bin(amounts, target, part);
    const int chosen = shared.chosen;
    if (chosen < 0) return floor;
    target = shared.before;
    if (WEIGHTS) {
        unit = exp(-(double)chosen / BINS_A_UNIT) * (ONE / (1 << WEIGHT_BITS));
        target = (unsigned long long)ceil((double)target / unit);
    }
    // Within the bin, by the bits of the values: first all of the row, then those that were found.
    unsigned prefix = 0;
    if (threadIdx.x == 0) shared.listed = 0;
    bool listed = false;
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
        const int width = shift == 0 ? 10 : 11;
        __syncthreads();
        clear_bins();
        const auto count = [&](float value, bool valid) {
            const unsigned key = key_of(value);
            const Place place = place_of(value, highest);
            valid = valid && place.bin == chosen;
            if (shift == 21) {
                const unsigned lanes = __ballot_sync(EVERY_LANE, valid);
                int at = 0;
                if (threadIdx.x % 32 == 0 && lanes) at = atomicAdd(&shared.listed, __popc(lanes));
                at = __shfl_sync(EVERY_LANE, at, 0);
                at += __popc(lanes & ((1u << threadIdx.x % 32) - 1));
                if (valid && at < LIST) shared.list[at] = value;
            } else {
                valid = valid && key >> (shift + width) == prefix;
            }
            const int bin = BINS - 1 - (key >> shift & ((1 << width) - 1));
            add_to_bin<WEIGHTS>(valid, bin, place.amount);
        };
        if (listed) {
            for (int first = 0; first < shared.listed; first += TILE) {
                const int at = first + threadIdx.x;
                const bool valid = at < shared.listed;
                count(valid ? shared.list[at] : 0.0f, valid);
            }
        } else {
            visit_tiles(row, floor, [&](int id, const float(&four)[4]) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float value = row.processed(four[i]);
                    count(value, value >= floor && id + i < row.vocab);
                }
            });
        }
        __syncthreads();
        listed = shared.listed <= LIST;
        amounts[0] = amount_in(2 * threadIdx.x);
        amounts[1] = amount_in(2 * threadIdx.x + 1);
        find_bin(amounts, target, 0.0);
        prefix = prefix << width | (BINS - 1 - shared.chosen);
        target = shared.before;
    }
    return value_of(prefix);
}

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

// Ids whose value is at least this one.
__device__ __forceinline__ int count_at_least(const Row& given, float floor) {
    const Row row = given;
    if (threadIdx.x == 0) shared.listed = 0;
    __syncthreads();
    unsigned count = 0;
    visit_tiles(row, floor, [&](int id, const float(&four)[4]) {
        for (int i = 0; i < 4; i++) {
            count += row.processed(four[i]) >= floor && id + i < row.vocab;
        }
    });
    count = __reduce_add_sync(EVERY_LANE, count);
    if (threadIdx.x % 32 == 0 && count) atomicAdd(&shared.listed, (int)count);
    __syncthreads();
    return shared.listed;
}

// The `count` ids with the highest values, of equals the lower ids, into `found_ids` in no order.
// Returns how many there are: what is not a number is not among them.
__device__ __forceinline__ int gather_top(const Row& given, float highest, int count) {
    const Row row = given;
    const float last = select_highest(given, highest, count);
    const int lane = threadIdx.x % 32, tiles = (row.vocab + TILE - 1) / TILE;
    __syncthreads();
    if (threadIdx.x == 0) shared.listed = 0;
    shared.low[threadIdx.x] = 0;
    __syncthreads();
    visit_tiles(row, last, [&](int id, const float(&four)[4]) {
        int equals = 0;
        for (int i = 0; i < 4; i++) {
            const float value = row.processed(four[i]);
            if (id + i >= row.vocab) continue;
            equals += value == last;
            if (value > last) {
                const int at = atomicAdd(&shared.listed, 1);
                if (at < count) {
                    shared.found_ids[at] = id + i;
                    shared.found[at] = value;
                }
            }
        }
        equals = __reduce_add_sync(EVERY_LANE, (unsigned)equals);
        if (lane == 0) shared.low[id / TILE] += equals;
    });
    __syncthreads();
    const int higher = shared.listed;
    const unsigned long long own = shared.low[threadIdx.x];
    const unsigned long long to = prefix_of_block(own);
    shared.high[threadIdx.x] = (unsigned)(to - own);
    if (threadIdx.x == TILE - 1) shared.inside = to;
    __syncthreads();
    for (int tile = threadIdx.x / 32; tile < tiles; tile += 32) {
        int at = higher + shared.high[tile];
        if (shared.low[tile] == 0 || at >= count) continue;
        for (int run = 0; run < 8; run++) {
            const int id = tile * TILE + run * 128 + lane * 4;
            const float4 four = row.load(id);
            const float logits[4] = {four.x, four.y, four.z, four.w};
            int equals = 0;
            for (int i = 0; i < 4; i++) {
                equals += id + i < row.vocab && row.processed(logits[i]) == last;
            }
            int to = equals;
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(EVERY_LANE, to, step);
                to += lane >= step ? other : 0;
            }
            int slot = at + to - equals;
            for (int i = 0; i < 4; i++) {
                if (id + i >= row.vocab || row.processed(logits[i]) != last) continue;
                if (slot < count) {
                    shared.found_ids[slot] = id + i;
                    shared.found[slot] = last;
                }
                slot++;
            }
            at += __shfl_sync(EVERY_LANE, to, 31);
        }
    }
    __syncthreads();
    const int found = higher + (int)shared.inside;
    return found < count ? found : count;
}

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
        const float logit = row.logits[id], value = row.processed(logit);
        const double processed = (double)(value - highest) - log_sum;
        const double raw = (double)(logit - raw_highest) - log_raw_sum;
        return {id, value >= floor ? (float)processed : -infinity(), (float)raw, 0};
    }
};

extern "C" __global__ void __launch_bounds__(TILE) sample_rows(
    const float* logits, const SampleParams* params, const SampleTile* tiles, int* ids,
    SampleScores* scores, SampleCandidate* top, int vocab, int stride, int most) {
    if (params[blockIdx.x].row < 0) {
        if (threadIdx.x == 0) ids[blockIdx.x] = -1;
        return;
    }
    if (threadIdx.x == 0) {
        shared.own = params[blockIdx.x];
        shared.row = shared.shown = row_of(logits, shared.own, vocab, stride);
        if (shared.own.raw) shared.shown.divisor = 1.0f;
    }
    __syncthreads();
    const int count = (vocab + TILE - 1) / TILE, thread = threadIdx.x;
    const bool greedy = shared.own.temperature < GREEDY_BELOW;

    // All tiles to one.
    SampleTile tile = {0.0, 0.0, -infinity(), 0};
    if (thread < count) tile = tiles[(long long)blockIdx.x * count + thread];
    shared.highest[thread] = tile.highest;
    Sums sums;
    sums.raw_highest = highest_of_block(tile.highest);
    sums.highest = shared.row.processed(sums.raw_highest);
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
    if (thread == 0) ids[blockIdx.x] = id;
    if (shared.own.top_n < 0) return;

    // What is known about it.
    double raw = 0.0;
    if (thread < count && finite) {
        raw = tiles[(long long)blockIdx.x * count + thread].raw;
        raw *= exp((double)shared.highest[thread] - (double)sums.raw_highest);
    }
    __syncthreads();
    sums.log_raw_sum = log(sum_of_block(raw));
    sums.log_sum = log(sum);
    const int rank = count_at_least(shared.shown, shared.shown.processed(shared.row.logits[id]));
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
