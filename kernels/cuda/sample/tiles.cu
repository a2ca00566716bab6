// The first launch: of each 1,024 ids of a row, the highest logit and the sums of exp.
//
// A warp has a tile. Sums stand relative to the tile's own highest value, which makes them one
// another's measure once the row's highest is known (`rows.cu`), as in a softmax that goes along
// with its input (Milakov and Gimelshein, 2018, arXiv:1805.02867). The tree of each sum is fixed:
// 4 ids, 4 runs, 2 halves, 32 lanes.

// A row of logits and how they are read.
struct Row {
    const float* logits;
    int vocab;
    bool whole;     // 16-byte loads
    float divisor;  // one where values are the logits themselves

    __device__ __forceinline__ float processed(float logit) const {
        return divisor == 1.0f ? logit : logit / divisor;
    }

    // The four logits from `id` on, which is a multiple of four; minus infinity beyond the last.
    __device__ __forceinline__ float4 load(int id) const {
        const float none = -infinity();
        if (whole && id + 4 <= vocab) return *(const float4*)(logits + id);
        float4 out;
        out.x = id < vocab ? logits[id] : none;
        out.y = id + 1 < vocab ? logits[id + 1] : none;
        out.z = id + 2 < vocab ? logits[id + 2] : none;
        out.w = id + 3 < vocab ? logits[id + 3] : none;
        return out;
    }

    // Half a tile, of which each lane has 4 ids in each of 4 runs of 128.
    __device__ __forceinline__ void load_half(float (&out)[16], int first, int lane) const {
#pragma unroll
        for (int run = 0; run < 4; run++) {
            const float4 four = load(first + run * 128 + lane * 4);
            out[4 * run] = four.x;
            out[4 * run + 1] = four.y;
            out[4 * run + 2] = four.z;
            out[4 * run + 3] = four.w;
        }
    }
};

// What a token is drawn from: changed logits, or else the model's own.
__device__ __forceinline__ Row row_of(const float* logits, const float* shaped,
                                      const SampleParams& params, int vocab, int stride) {
    const float divisor = params.temperature < GREEDY_BELOW ? 1.0f : params.temperature;
    const float* const from = params.shaped < 0 ? logits : shaped;
    const long long row = params.shaped < 0 ? params.row : params.shaped;
    return {from + row * stride, vocab, stride % 4 == 0, divisor};
}

// The highest of a lane's 32 logits of a tile over the warp, which has them all.
__device__ __forceinline__ float highest_of_tile(const float (&low)[16], const float (&high)[16]) {
    float highest = -infinity();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        highest = low[i] > highest ? low[i] : highest;
        highest = high[i] > highest ? high[i] : highest;
    }
    return warp_max(highest);
}

// A lane's sum of exp(value - highest) over the values of half a tile that reach a floor. The tree
// is that of the tile, so it does not matter who adds up, nor what stands beside it.
__device__ __forceinline__ float sum_of_half(const float (&logits)[16], float divisor,
                                             float highest, float floor) {
    float runs[4];
#pragma unroll
    for (int run = 0; run < 4; run++) {
        float four[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float logit = logits[4 * run + i];
            const float value = divisor == 1.0f ? logit : logit / divisor;
            four[i] = value >= floor ? weight(value - highest) : 0.0f;
        }
        runs[run] = (four[0] + four[1]) + (four[2] + four[3]);
    }
    return (runs[0] + runs[1]) + (runs[2] + runs[3]);
}

extern "C" __global__ void __launch_bounds__(256) sample_tiles(
    const float* logits, const SampleParams* params, SampleTile* tiles, const float* shaped,
    int vocab, int stride) {
    take_over();
    const int count = (vocab + TILE - 1) / TILE;
    const int tile = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    const SampleParams own = params[blockIdx.y];
    if (own.row < 0 || tile >= count) return;
    const Row row = row_of(logits, shaped, own, vocab, stride);
    float low[16], high[16], highest;
    const bool greedy = own.temperature < GREEDY_BELOW, scored = own.top_n >= 0;
    const auto sum = [&](float divisor) {
        const float most = highest / divisor, none = -infinity();
        const double first = sum_of_half(low, divisor, most, none);
        return sum_of_warp(first + (double)sum_of_half(high, divisor, most, none));
    };
    SampleTile out = {0.0, 0.0, 0.0f, 0.0f};
    if (own.shaped >= 0) {
        // The model's own first. The registers are then those of the changed logits.
        const Row given = {logits + (long long)own.row * stride, vocab, row.whole, 1.0f};
        given.load_half(low, tile * TILE, lane);
        given.load_half(high, tile * TILE + TILE / 2, lane);
        out.raw_highest = highest = highest_of_tile(low, high);
        if (scored) out.raw = sum(1.0f);
    }
    row.load_half(low, tile * TILE, lane);
    row.load_half(high, tile * TILE + TILE / 2, lane);
    out.highest = highest = highest_of_tile(low, high);
    if (own.shaped >= 0) {
        if (scored || !greedy) out.processed = sum(row.divisor);
    } else {
        const bool same = row.divisor == 1.0f;
        out.raw_highest = highest;
        if (scored || (same && !greedy)) out.raw = sum(1.0f);
        out.processed = same ? out.raw : sum(row.divisor);
    }
    if (lane == 0) tiles[(long long)blockIdx.y * count + tile] = out;
}
