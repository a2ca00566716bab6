// Attention of packed rows over the pages of their sequence, for the query heads that share a key
// and value head.
//
// Packed row `r` of a tile is query head `r % group` of row `r / group`, so that one load of keys
// and values serves the whole group. Keys are walked in tiles of 64 and splits of 512, or of the
// length that a decoded row's tile says:
//
//   within a split, tile by tile:  top' = max(top, scores)      (in powers of two)
//                                  sum  = sum * 2^(top - top') + weights . values
//   then, split by split:          the splits' sums are folded the same way, in order.
//
// `sum` has one column more, of ones, so the weights' own sum is rounded as what it divides.
// A row's bits depend on its query, its keys and the length of its splits alone: `narrow` (16 packed
// rows, four warps share them), `wide` (64 packed rows, 16 a warp) and `attention_tall` (128, 32 a
// warp) do the same sums in the same order, and `attention_combine` folds as they do. Keys past a
// row change nothing: they weigh zero, and what lies past the tile's last row is read as zeros.
//
// keys, values: this layer's pages [pages][kv heads][PAGE_HEAD].
// tiles: one of a prompt is {span, first row within the span, rows, -1}, with at most 64 packed
//   rows; its result goes to `out` [rows of the step, nq * HEAD_DIM]. One of a decoded row is
//   {span, tiles of a split, splits, split}, with at most 16 packed rows; the split's sums go to
//   `partial` [tiles][kv heads][16][HEAD_DIM + 2]: HEAD_DIM sums, the top, the weights' sum. The
//   splits of a row stand one after another. Span -1 is no tile.
// arrived: zeros [tiles][kv heads], and again zeros behind the kernel: the last block of a row
//   folds its splits. Null leaves that to `attention_combine`, which gives the same bits.
// Launch: grid (tiles, kv heads), 128 threads, dynamic shared memory of a ring of SLOTS, a tile's
//   weights and the tops of all warps.

__device__ __forceinline__ void attend(
    bf16* out, const bf16* qkv, const PageUnit* keys, const PageUnit* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* partial, unsigned* arrived, int nq, int nkv, float scale) {
    take_over();
    DYNAMIC_SHARED(shared);
    int4 tile = tiles[blockIdx.x];
    if (tile.x < 0) return;
    bool decoded = tile.w >= 0;
    int head = blockIdx.y, group = nq / nkv, rows = decoded ? 1 : tile.z;
    int first_row = decoded ? 0 : tile.y, length = decoded ? tile.y : SPLIT / TILE;
    long long row = span_row[tile.x] + first_row;
    unsigned page_stride = nkv * PAGE_HEAD;
    int query_stride = (nq + 2 * nkv) * HEAD_DIM, out_stride = nq * HEAD_DIM;
    int at = head * group * HEAD_DIM;
    int position = span_start[tile.x] + first_row;
    Task task = {
        qkv + row * query_stride + at, query_stride, out + row * out_stride + at, out_stride,
        group, rows * group, position, scale * LOG2_E};
    Source source = {
        keys + head * PAGE_HEAD, values + head * PAGE_HEAD,
        tables + table_at[tile.x], page_stride, position + rows};
    if (HEAD_DIM <= 128 && task.packed > NARROW) {
        if constexpr (HEAD_DIM <= 128) {
            Ring<WIDE_SLOTS> ring = {source};
            ring.slots = shared;
            Wide::walk(task, ring);
        }
        return;
    }
    Ring<SLOTS> ring = {source};
    ring.slots = shared;
    Narrow narrow = {
        shared + RING_BYTES(SLOTS),
        (float*)(shared + RING_BYTES(SLOTS) + NARROW * WEIGHT_BYTES)};
    // A row of one split is folded at once.
    bool joins = decoded && arrived;
    int split = joins && tile.z == 1 ? -1 : tile.w;
    long long place = (long long)blockIdx.x * nkv + head;
    float* sums = partial + place * NARROW * (HEAD_DIM + 2);
    // Wider heads have no room in registers for `wide`: 16 packed rows at a time.
    for (int first = 0; first < task.packed; first += NARROW) {
        auto begin = [&](int tile, int end, unsigned (&queries)[STEPS][4]) {
            start(ring, tile, end);
            load_queries(task, first, queries);
        };
        narrow.walk(task, ring, first, split, length, sums, begin);
    }
    if (!joins || split < 0) return;
    long long stride = (long long)nkv * NARROW * (HEAD_DIM + 2);
    unsigned* count = arrived + place - (long long)split * nkv;
    join_splits(task, sums, count, split, tile.z, stride, (unsigned*)narrow.tops);
}
