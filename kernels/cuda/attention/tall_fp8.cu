/// `attend_tall` over pages of FP8: the bits of `attention_tall` over the same numbers.
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, TALL_BLOCKS) attention_tall_fp8(
    bf16* out, const bf16* qkv, const PageUnit* keys, const PageUnit* values, const int4* tiles,
    const int* span_row, const int* span_start, const int* table_at, const int* tables,
    float* totals, int nq, int nkv, float scale) {
    attend_tall(
        out, qkv, keys, values, tiles, span_row, span_start, table_at, tables, totals, nq, nkv,
        scale);
}
