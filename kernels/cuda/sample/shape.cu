// What a request changes of its logits before a token is drawn: ids that may not come, biases, and
// penalties. The order is vLLM's, and every step is rounded by itself, so the results have the bits
// of the host's (`engine/src/sample.rs`). The model's own logits stay as they are, for scores.
//
// extern "C" __global__ void begin_counts(
//     const CountSeed* seeds,      // [N]
//     const int* words,            // what the offsets of seeds and shapes count from
//     unsigned short* counts,      // [slots, count_stride(vocab)]
//     int vocab);
//
// extern "C" __global__ void shape_logits(
//     const float* logits,         // [rows, stride]
//     const RowShape* shapes,      // [S]
//     const int* words,
//     const unsigned short* counts,
//     float* shaped,               // [S, stride]; the first `vocab` of a row are written
//     int vocab, int stride);

// The changes of one row; 32 bytes.
struct RowShape {
    int row;           // of the logits
    int slot;          // of the counts of its reply; -1 for no penalties
    float repetition;  // 1 is off
    float frequency;   // 0 is off
    float presence;    // 0 is off
    int biases;        // offset of pairs of an id and a bias; no id is there twice
    int bias_count;
    int mask;          // offset of a bit for each id, set if it may come; -1 if all may
};

// The tokens of a reply that begins, or that lost its slot; 16 bytes.
struct CountSeed {
    int slot;
    int first;  // offset of pairs of an id and its word; no id is there twice
    int count;
    int pad;
};

// Of a count, the bit of ids that the prompt has.
#define IN_PROMPT 0x8000

__device__ __forceinline__ int count_stride(int vocab) { return (vocab + 7) / 8 * 8; }

__device__ __forceinline__ unsigned short* counts_of(unsigned short* counts, int slot,
                                                     int vocab) {
    return counts + (long long)slot * count_stride(vocab);
}

extern "C" __global__ void __launch_bounds__(TILE) begin_counts(
    const CountSeed* seeds, const int* words, unsigned short* counts, int vocab) {
    take_over();
    const CountSeed own = seeds[blockIdx.x];
    unsigned short* const to = counts_of(counts, own.slot, vocab);
    for (int pack = threadIdx.x; pack < count_stride(vocab) / 8; pack += TILE) {
        ((uint4*)to)[pack] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (int at = threadIdx.x; at < own.count; at += TILE) {
        const int* const pair = words + own.first + 2 * at;
        to[pair[0]] = (unsigned short)pair[1];
    }
}

extern "C" __global__ void __launch_bounds__(256) shape_logits(
    const float* logits, const RowShape* shapes, const int* words, const unsigned short* counts,
    float* shaped, int vocab, int stride) {
    __shared__ float biases[TILE];
    take_over();
    const RowShape own = shapes[blockIdx.y];
    const int first = blockIdx.x * TILE, end = min(first + TILE, vocab);
    if (own.bias_count > 0) {
        for (int at = threadIdx.x; at < TILE; at += 256) biases[at] = 0.0f;
        __syncthreads();
        for (int at = threadIdx.x; at < own.bias_count; at += 256) {
            const int* const pair = words + own.biases + 2 * at;
            const int id = pair[0];
            if (id >= first && id < end) biases[id - first] = __int_as_float(pair[1]);
        }
        __syncthreads();
    }
    const float* const from = logits + (long long)own.row * stride;
    float* const to = shaped + (long long)blockIdx.y * stride;
    const unsigned short* const counted = counts + (long long)own.slot * count_stride(vocab);
    for (int id = first + threadIdx.x; id < end; id += 256) {
        float value = from[id];
        if (own.mask >= 0 && !((unsigned)words[own.mask + id / 32] >> (id % 32) & 1)) {
            value = -infinity();
        }
        if (own.bias_count > 0) value = __fadd_rn(value, biases[id - first]);
        const int count = own.slot < 0 ? 0 : counted[id];
        if (count != 0) {
            value = value > 0.0f ? value / own.repetition : __fmul_rn(value, own.repetition);
        }
        const int places = count & (IN_PROMPT - 1);
        if (places > 0) {
            value = __fsub_rn(value, __fmul_rn(own.frequency, (float)places));
            value = __fsub_rn(value, own.presence);
        }
        to[id] = value;
    }
}
