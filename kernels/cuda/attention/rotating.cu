// `rope_write` and `attention` in one kernel, for steps that only decode.
//
// The block of a split norms and rotates the queries of its heads, as the blocks of the row's other
// splits do, too. The block of the last split, which alone reads the row's own position, norms and
// rotates its key, writes key and value to their pages, and then begins to load. The others begin
// to load before they rotate. The bits are those of the two kernels.
//
// Queries are passed from thread to thread in the ring's last bytes, which are written behind the
// first barrier of the walk, when they are in registers.

/// A row of the step whose heads are rotated.
struct RotatedRow {
    const bf16* qkv; // its heads
    int nq, nkv;
    int position;
    int slot; // of its key and value; -1 where another block writes them
};

/// Norms and rotates the query heads of group `head` into `queries`, with zeros behind them, and
/// writes key and value to the pages `keys` and `values` of the layer if the row has a slot.
__device__ __forceinline__ void rotate_group(
    const RotatedRow& row, const Rotation& rotation, int head, unsigned char* queries,
    PageUnit* keys, PageUnit* values) {
    int group = row.nq / row.nkv, heads = group + (row.slot < 0 ? 0 : 2);
    // All lanes take part in the sums of a warp, those that have nothing with zeros.
    for (int first = 0; first < heads * ROPE_LANES; first += ATTENTION_THREADS) {
        int unit = first + threadIdx.x, own = unit / ROPE_LANES, at = unit % ROPE_LANES * 8;
        bool has = own < heads && at < ROPE_HALF, query = own < group, value = own > group;
        int place = query ? head * group + own : row.nq + (value ? row.nkv : 0) + head;
        HeadPart part = load_part(row.qkv + place * HEAD_DIM, at, has);
        float scale = rotation.q_norm ? norm_scale(part, rotation.eps) : 1.0f;
        if (has && !value) {
            const float* weight = query ? rotation.q_norm : rotation.k_norm;
            turn(part, at, scale, weight, rotation, row.position);
        }
        if (has && query) {
            store_pack((bf16*)(queries + chunk_at(own, at / 8)), pack(part.low));
            store_pack((bf16*)(queries + chunk_at(own, (ROPE_HALF + at) / 8)), pack(part.high));
        }
        if (row.slot >= 0) {
            PageUnit* page = (value ? values : keys) + page_head(row.slot, head, row.nkv);
            store_part(page, row.slot % PAGE, at, part, has && !query);
        }
    }
    for (int c = group * CHUNKS + threadIdx.x; c < NARROW * CHUNKS; c += ATTENTION_THREADS) {
        *(uint4*)(queries + chunk_at(c / CHUNKS, c % CHUNKS)) = make_uint4(0, 0, 0, 0);
    }
}

/// As `attention`, for tiles of decoded rows alone, with the product of queries, keys and values in
/// `qkv`: see `rope_write` for the norms, `table` and `positions`. `qkv` stays as it is. No
/// position that a row writes may be read by another row, unless that writes it, too.
/// Launch: as `attention`.
__device__ __forceinline__ void rotate_and_attend(
    bf16* out, const bf16* qkv, PageUnit* keys, PageUnit* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* partial, unsigned* arrived, const float* q_norm, const float* k_norm, const float* table,
    const int* positions, int nq, int nkv, float scale, float eps, float offset) {
    DYNAMIC_SHARED(shared);
    // Words of the step: a copy in front of all kernels has written them.
    int4 tile = tiles[blockIdx.x];
    if (tile.x < 0) {
        take_over();
        return;
    }
    int head = blockIdx.y, group = nq / nkv, position = span_start[tile.x];
    long long row = span_row[tile.x];
    const int* pages = tables + table_at[tile.x];
    bool last = tile.w == tile.z - 1;
    Task task = {
        nullptr, 0, out + (row * nq + head * group) * HEAD_DIM, 0,
        group, group, position, scale * LOG2_E};
    Source source = {
        keys + head * PAGE_HEAD, values + head * PAGE_HEAD, pages,
        (unsigned)(nkv * PAGE_HEAD), position + 1};
    Ring<SLOTS> ring = {source};
    ring.slots = shared;
    Narrow narrow = {
        shared + RING_BYTES(SLOTS),
        (float*)(shared + RING_BYTES(SLOTS) + NARROW * WEIGHT_BYTES)};
    unsigned char* rotated = shared + RING_BYTES(SLOTS) - SLOT_BYTES;
    bool joins = arrived != nullptr;
    int split = joins && tile.z == 1 ? -1 : tile.w;
    long long place = (long long)blockIdx.x * nkv + head;
    float* sums = partial + place * NARROW * (HEAD_DIM + 2);
    auto begin = [&](int first, int end, unsigned (&queries)[STEPS][4]) {
        // Keys and values of earlier positions are written by no kernel of the step.
        if (!last) start(ring, first, end);
        take_over();
        int slot = last ? __ldg(pages + position / PAGE) * PAGE + position % PAGE : -1;
        RotatedRow own = {
            qkv + row * (nq + 2 * nkv) * HEAD_DIM, nq, nkv, positions[row], slot};
        rotate_group(own, {q_norm, k_norm, table, eps, offset}, head, rotated, keys, values);
        __syncthreads();
        if (last) start(ring, first, end);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            int lane = threadIdx.x % WARP;
            load_matrices(queries[step], rotated + chunk_at(lane % 16, step * 2 + lane / 16));
        }
    };
    narrow.walk(task, ring, 0, split, tile.y, sums, begin);
    if (!joins || split < 0) return;
    long long stride = (long long)nkv * NARROW * (HEAD_DIM + 2);
    unsigned* count = arrived + place - (long long)split * nkv;
    join_splits(task, sums, count, split, tile.z, stride, (unsigned*)narrow.tops);
}
