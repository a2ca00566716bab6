// What works on single elements: rows of the embedding, biases, the gates of the feed-forward part
// and of attention.
//
//   embed   <<<T, threads_of(hidden)>>>         threads_of(n) = min(256, n / 8 rounded up to 32)
//   add_bias<<<((columns / 8 + 255) / 256, T), 256>>>
//   silu_mul, sigmoid_mul<<<((width / 8 + 255) / 256, T), 256>>>
//
// No shared memory. Widths are multiples of 8, T is at most 65,535.

/// out[t] = table[id] with the id of row t: out `[T, hidden]`, table `[V, hidden]`. The id is
/// `sampled[feedback[t]]` where `feedback[t]` is not negative, `ids[t]` elsewhere; a negative one
/// gives zeros.
extern "C" __global__ void __launch_bounds__(256) embed(
    bf16* out, const bf16* table, const int* ids, const int* feedback, const int* sampled,
    int hidden) {
    take_over();
    const int t = blockIdx.x, from = feedback[t];
    const int id = from >= 0 ? sampled[from] : ids[t];
    for (int at = threadIdx.x * 8; at < hidden; at += blockDim.x * 8) {
        uint4 pack = make_uint4(0, 0, 0, 0);
        if (id >= 0) pack = load_pack(table + (long long)id * hidden + at);
        store_pack(out + (long long)t * hidden + at, pack);
    }
}

/// x[t] += bias: x `[T, columns]`, bias `[columns]`.
extern "C" __global__ void __launch_bounds__(256) add_bias(
    bf16* x, const float* bias, int columns) {
    take_over();
    const int at = (blockIdx.x * 256 + threadIdx.x) * 8;
    if (at >= columns) return;
    bf16* const to = x + (long long)blockIdx.y * columns + at;
    float numbers[8];
    unpack(load_pack(to), numbers);
    const float4 low = *(const float4*)(bias + at), high = *(const float4*)(bias + at + 4);
    const float added[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; i++) numbers[i] += added[i];
    store_pack(to, pack(numbers));
}

/// out = gate / (1 + exp(-gate)) * up: gate_up `[T, 2 * width]`, the gate first in a row, out
/// `[T, width]`.
extern "C" __global__ void __launch_bounds__(256) silu_mul(
    const bf16* gate_up, bf16* out, int width) {
    take_over();
    const int at = (blockIdx.x * 256 + threadIdx.x) * 8;
    if (at >= width) return;
    const bf16* const row = gate_up + 2ll * blockIdx.y * width + at;
    float gates[8], ups[8];
    unpack(load_pack(row), gates);
    unpack(load_pack(row + width), ups);
#pragma unroll
    for (int i = 0; i < 8; i++) gates[i] = gated(gates[i], ups[i]);
    store_pack(out + (long long)blockIdx.y * width + at, pack(gates));
}

/// x /= 1 + exp(-gate): x and gate `[T, width]`.
extern "C" __global__ void __launch_bounds__(256) sigmoid_mul(
    bf16* x, const bf16* gate, int width) {
    take_over();
    const int at = (blockIdx.x * 256 + threadIdx.x) * 8;
    if (at >= width) return;
    const long long place = (long long)blockIdx.y * width + at;
    float gates[8], numbers[8];
    unpack(load_pack(gate + place), gates);
    unpack(load_pack(x + place), numbers);
#pragma unroll
    for (int i = 0; i < 8; i++) numbers[i] /= 1.0f + exp2_fast(-1.44269504f * gates[i]);
    store_pack(x + place, pack(numbers));
}
