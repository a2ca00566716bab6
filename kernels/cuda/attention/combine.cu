// The results of decoded rows, from the sums of their splits that `attention` left.

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
