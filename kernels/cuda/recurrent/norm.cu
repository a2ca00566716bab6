// The norm of the results of value heads, with their gate.
//
//   gated_norm<<<((value heads + 7) / 8, T), 256>>>
//
// A warp has a head of a row. No shared memory; T is at most 65,535.

/// x = x / rms(x) * (weight + offset) * silu(z) for every value head: x `[T, heads * dim]`, weight
/// `[dim]`, z `[T, row_width]` from its first element on. `dim` and `row_width` are even.
extern "C" __global__ void __launch_bounds__(256) gated_norm(
    bf16* x, const bf16* z, const float* weight, int heads, int dim, int row_width, float eps,
    float offset) {
    take_over();
    const int head = blockIdx.x * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (head >= heads) return;
    bf16* const own = x + ((long long)blockIdx.y * heads + head) * dim;
    const bf16* const gates = z + (long long)blockIdx.y * row_width + head * dim;
    float sum = 0.0f;
    for (int at = lane * 2; at < dim; at += 2 * WARP) {
        const unsigned pair = *(const unsigned*)(own + at);
        sum = fmaf(low_float(pair), low_float(pair), sum);
        sum = fmaf(high_float(pair), high_float(pair), sum);
    }
    const float scale = 1.0f / sqrtf(warp_sum(sum) / (float)dim + eps);
    for (int at = lane * 2; at < dim; at += 2 * WARP) {
        const unsigned pair = *(const unsigned*)(own + at), gate = *(const unsigned*)(gates + at);
        const float low = low_float(pair) * scale * (weight[at] + offset);
        const float high = high_float(pair) * scale * (weight[at + 1] + offset);
        const float gated = high * silu(high_float(gate));
        *(unsigned*)(own + at) = to_pair(low * silu(low_float(gate)), gated);
    }
}
