// The causal convolution of queries, keys and values, channel by channel.
//
//   convolve<<<((channels / 2 + 255) / 256, T), 256>>>
//
// A thread has two neighboring channels of a row. The rows that look back at what was before the
// step belong to the block of the span's first row, which also writes the states: so nothing of a
// slot is read after it was written. No shared memory; T is at most 65,535.

/// The most positions that a convolution reads, its own included.
#define TAPS_MAX 4

/// Two channels of the rows of a span, and of the rows before it.
struct ChannelPair {
    const bf16* rows; // of the first row of the span
    const bf16* past; // of the oldest row before it, null for zeros
    int row_width, channels, count;

    /// The input `index`, counted from the oldest one before the span.
    __device__ __forceinline__ unsigned at(int index) const {
        if (index >= count) {
            return *(const unsigned*)(rows + (long long)(index - count) * row_width);
        }
        return past ? *(const unsigned*)(past + (long long)index * channels) : 0;
    }
};

/// One of the numbers, by an index that is known at run time only.
__device__ __forceinline__ unsigned pick(const unsigned (&numbers)[TAPS_MAX - 1], int index) {
    unsigned found = numbers[0];
#pragma unroll
    for (int i = 1; i < TAPS_MAX - 1; i++) found = i == index ? numbers[i] : found;
    return found;
}

/// out[t] = silu of the sum of the `taps` last inputs times the weights of the channel, the oldest
/// first: projected `[T, row_width]`, of which the first `channels` are convolved, kernel
/// `[channels, taps]`, out `[T, channels]`. states is `[slots, taps - 1, channels]`: the last
/// inputs of each state, the oldest first. row_spans `[T]` is the span of each row, -1 for padding.
/// `row_width` and `channels` are even, `taps` is at most TAPS_MAX.
extern "C" __global__ void __launch_bounds__(256) convolve(
    bf16* out, const bf16* projected, const float* kernel, bf16* states, const int* row_spans,
    const int4* spans, const int2* marks, int row_width, int channels, int taps) {
    take_over();
    const int t = blockIdx.y, channel = (blockIdx.x * 256 + threadIdx.x) * 2;
    if (row_spans[t] < 0 || channel >= channels) return;
    const int4 span = spans[row_spans[t]];
    const int row = t - span.x, count = taps - 1;
    if (row > 0 && row < count) return; // the first row's block has it
    const long long slot_size = (long long)count * channels;
    const bf16* const past = span.z < 0 ? nullptr : states + span.z * slot_size + channel;
    const bf16* const rows = projected + (long long)span.x * row_width + channel;
    const ChannelPair input = {rows, past, row_width, channels, count};

    // Fewer taps are filled up with zeros in front.
    float low[TAPS_MAX], high[TAPS_MAX];
    unsigned window[TAPS_MAX - 1], first[TAPS_MAX - 1];
#pragma unroll
    for (int i = 0; i < TAPS_MAX; i++) {
        const int tap = i - (TAPS_MAX - taps);
        low[i] = tap < 0 ? 0.0f : kernel[channel * taps + tap];
        high[i] = tap < 0 ? 0.0f : kernel[(channel + 1) * taps + tap];
        if (i < TAPS_MAX - 1) first[i] = window[i] = tap < 0 ? 0 : input.at(row + tap);
    }

    const int last = row > 0 ? row : min(max(count, 1), span.y) - 1;
    for (int now = row; now <= last; now++) {
        const unsigned own = input.at(now + count);
        float sums[2] = {};
#pragma unroll
        for (int i = 0; i < TAPS_MAX; i++) {
            const unsigned pair = i < TAPS_MAX - 1 ? window[i] : own;
            sums[0] = fmaf(low[i], low_float(pair), sums[0]);
            sums[1] = fmaf(high[i], high_float(pair), sums[1]);
        }
        unsigned* const to = (unsigned*)(out + (long long)(span.x + now) * channels + channel);
        *to = to_pair(silu(sums[0]), silu(sums[1]));
#pragma unroll
        for (int i = 0; i < TAPS_MAX - 2; i++) window[i] = window[i + 1];
        window[TAPS_MAX - 2] = own;
    }
    if (row > 0) return;

    // What the slot of the past held is in `first`: it may be written here.
    for (const int2* mark = marks + span.w;; mark++) {
        bf16* const to = states + mark->y * slot_size + channel;
#pragma unroll
        for (int i = 0; i < TAPS_MAX - 1; i++) {
            const int tap = i - (TAPS_MAX - taps), index = mark->x + tap;
            if (tap < 0) continue;
            const unsigned pair =
                index < count ? pick(first, index + TAPS_MAX - taps) : input.at(index);
            *(unsigned*)(to + (long long)tap * channels) = pair;
        }
        if (mark->x >= span.y) return;
    }
}
