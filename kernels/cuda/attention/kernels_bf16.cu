// The kernels of attention over pages of bf16.

/// See `attend`.
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS) attention(
    bf16* out, const bf16* qkv, const bf16* keys, const bf16* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* partial, unsigned* arrived, int nq, int nkv, float scale) {
    attend(
        out, qkv, keys, values, tiles, span_row, span_start, table_at, tables, partial, arrived, nq,
        nkv, scale);
}

/// See `rotate_and_attend`.
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS) rope_attention(
    bf16* out, const bf16* qkv, bf16* keys, bf16* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* partial, unsigned* arrived, const float* q_norm, const float* k_norm,
    const float* table, const int* positions, int nq, int nkv, float scale, float eps,
    float offset) {
    rotate_and_attend(
        out, qkv, keys, values, tiles, span_row, span_start, table_at, tables, partial, arrived,
        q_norm, k_norm, table, positions, nq, nkv, scale, eps, offset);
}

/// Folds the splits of decoded rows. Span `s` has one row, `span_row[s]` of the step, and the
/// partial sums of tiles `first_tile[s]` to `first_tile[s] + tile_count[s]`, in order of splits.
/// A span without tiles gets zeros, or nothing if its row is -1.
/// Launch: grid (spans, nq), 64 threads.
extern "C" __global__ void __launch_bounds__(64) attention_combine(
    bf16* out, const float* partial, const int* first_tile, const int* tile_count,
    const int* span_row, int nq, int nkv) {
    take_over();
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
        Fold fold;
        fold.begin(sums, column);
#pragma unroll 8
        for (int split = 0; split < tiles; split++) fold.next(stride);
        *(unsigned*)(to + column) = fold.result(tiles);
    }
}
