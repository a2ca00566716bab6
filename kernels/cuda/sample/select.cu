// The value at which a row's values, from the highest down, reach a number or a weight.
//
// No sorting: values fall into 2,048 bins by their distance from the highest, the bin in which the
// target lies is found by a prefix sum, and within it the same is done with the bits of the
// values, 11 + 11 + 10 of them (radix selection: Alabi et al., "Fast K-Selection Algorithms for
// Graphics Processing Units", 2012). Weights are counted in fixed point: integers add up to the
// same whatever the order, and atomic additions come in any order.

// Bins by distance from the highest value; a lower one has the same bin or a later one.
struct Place {
    int bin;
    unsigned amount;  // weight relative to that of the bin's upper edge, below 2^WEIGHT_BITS
};

__device__ __forceinline__ Place place_of(float value, float highest) {
    const float distance = (value == highest ? 0.0f : highest - value) * BINS_A_UNIT;
    if (!(distance < BINS - 1)) return {BINS - 1, 0};
    const int bin = (int)distance;
    const float x = (distance - bin) * (1.0f / BINS_A_UNIT);
    const float relative = fmaf(x, fmaf(x, fmaf(x, -0.16666667f, 0.5f), -1.0f), 1.0f);
    const unsigned amount = (unsigned)(relative * (1 << WEIGHT_BITS));
    return {bin, amount - (amount >> WEIGHT_BITS)};
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
