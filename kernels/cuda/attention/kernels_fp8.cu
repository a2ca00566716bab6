// The kernels of attention over pages of FP8. Their bits are those of the kernels over pages of
// bf16 with the same numbers.

/// See `attend`.
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS) attention_fp8(
    bf16* out, const bf16* qkv, const PageUnit* keys, const PageUnit* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* partial, unsigned* arrived, int nq, int nkv, float scale) {
    attend(
        out, qkv, keys, values, tiles, span_row, span_start, table_at, tables, partial, arrived, nq,
        nkv, scale);
}

/// See `rotate_and_attend`.
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS)
rope_attention_fp8(
    bf16* out, const bf16* qkv, PageUnit* keys, PageUnit* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* partial, unsigned* arrived, const float* q_norm, const float* k_norm,
    const float* table, const int* positions, int nq, int nkv, float scale, float eps,
    float offset) {
    rotate_and_attend(
        out, qkv, keys, values, tiles, span_row, span_start, table_at, tables, partial, arrived,
        q_norm, k_norm, table, positions, nq, nkv, scale, eps, offset);
}
