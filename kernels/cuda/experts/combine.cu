// The results of a row's experts, added up.
//
//   combine_experts<<<((hidden / 8 + 255) / 256, T), 256>>>
//
// No shared memory. `hidden` is a multiple of 8, T is at most 65,535.

/// out[t] = the sum of `weights` times the results of the experts of row t, in the order of its
/// choice: chosen, places and weights `[T, width]`, results `[pairs, hidden]` by place, out
/// `[T, hidden]`. A row without experts gets zeros.
extern "C" __global__ void __launch_bounds__(256) combine_experts(
    bf16* out, const bf16* results, const int* chosen, const int* places, const float* weights,
    int hidden, int width) {
    take_over();
    const int at = (blockIdx.x * 256 + threadIdx.x) * 8;
    if (at >= hidden) return;
    const long long first = (long long)blockIdx.y * width;
    float sums[8] = {};
    for (long long pair = first; pair < first + width && chosen[pair] >= 0; pair++) {
        float numbers[8];
        unpack(load_pack(results + (long long)places[pair] * hidden + at), numbers);
#pragma unroll
        for (int i = 0; i < 8; i++) sums[i] = fmaf(weights[pair], numbers[i], sums[i]);
    }
    store_pack(out + (long long)blockIdx.y * hidden + at, pack(sums));
}
