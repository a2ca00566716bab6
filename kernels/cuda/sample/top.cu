// What stands beside the token: how many ids are at least as likely, and which are the likeliest.

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
