// The kernels that write pages of bf16.

/// See `rotate_and_write`.
extern "C" __global__ void __launch_bounds__(256) rope_write(
    bf16* qkv, const float* q_norm, const float* k_norm, const float* table, const int* positions,
    const int* slots, bf16* keys, bf16* values, int nq, int nkv, float eps,
    float offset) {
    rotate_and_write(
        qkv, q_norm, k_norm, table, positions, slots, keys, values, nq, nkv, eps, offset);
}

/// See `rotate_part_and_write`.
extern "C" __global__ void __launch_bounds__(256) rope_write_part(
    bf16* qkv, const float* q_norm, const float* k_norm, const float* table, const int* positions,
    const int* slots, bf16* keys, bf16* values, int nq, int nkv, float eps,
    float offset, int width) {
    rotate_part_and_write(
        qkv, q_norm, k_norm, table, positions, slots, keys, values, nq, nkv, eps, offset, width);
}
