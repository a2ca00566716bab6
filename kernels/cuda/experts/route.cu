// The experts of each row.
//
//   route<<<(T + 3) / 4, 128, 16 * experts>>>
//
// A warp has a row. `experts` is at most EXPERTS_MAX.

#define ROUTE_ROWS 4
/// A probability that was chosen already; no real one is negative.
#define TAKEN -1.0f

/// The most likely expert that this lane, or the warp, has found.
struct Likeliest {
    float probability;
    int expert; // -1 for none

    __device__ __forceinline__ void offer(float other, int from) {
        bool above = other > probability || (other == probability && from < expert);
        if (from >= 0 && (expert < 0 || above)) *this = {other, from};
    }
};

/// Raises e to the power of each logit less the highest and divides by the sum: probabilities of a
/// row, of which a lane has every 32nd.
__device__ __forceinline__ void softmax(float* to, const float* logits, int experts) {
    const int lane = threadIdx.x % WARP;
    float highest = __uint_as_float(0xff800000u), sum = 0.0f;
    for (int expert = lane; expert < experts; expert += WARP) {
        highest = fmaxf(highest, logits[expert]);
    }
    highest = warp_max(highest);
    for (int expert = lane; expert < experts; expert += WARP) {
        to[expert] = exp2_fast(1.44269504f * (logits[expert] - highest));
        sum += to[expert];
    }
    const float scale = 1.0f / warp_sum(sum);
    for (int expert = lane; expert < experts; expert += WARP) to[expert] *= scale;
}

/// The `width` most likely experts of each row, likeliest first, the lower number among equals, and
/// their probabilities, which are divided by their sum if `normed`: logits `[T, experts]`, chosen
/// and weights `[T, width]`. A row whose `ids` is negative is padding: its experts are -1.
extern "C" __global__ void __launch_bounds__(ROUTE_ROWS * WARP) route(
    const float* logits, const int* ids, int* chosen, float* weights, int rows, int experts,
    int width, int normed) {
    take_over();
    DYNAMIC_SHARED(bytes);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int row = blockIdx.x * ROUTE_ROWS + warp;
    if (row >= rows) return;
    // Each lane reads and writes only its own ones.
    float* const probabilities = (float*)bytes + warp * experts;
    const bool real = ids[row] >= 0;
    if (real) softmax(probabilities, logits + (long long)row * experts, experts);

    const long long first = (long long)row * width;
    float total = 0.0f;
    for (int at = 0; at < width; at++) {
        Likeliest best = {0.0f, -1};
        for (int expert = lane; real && expert < experts; expert += WARP) {
            const float probability = probabilities[expert];
            if (probability != TAKEN) best.offer(probability, expert);
        }
#pragma unroll
        for (int far = WARP / 2; far > 0; far /= 2) {
            const float other = __shfl_xor_sync(EVERY_LANE, best.probability, far);
            best.offer(other, __shfl_xor_sync(EVERY_LANE, best.expert, far));
        }
        // Lanes may disagree about what is no number.
        best.probability = __shfl_sync(EVERY_LANE, best.probability, 0);
        best.expert = __shfl_sync(EVERY_LANE, best.expert, 0);
        if (best.expert >= 0 && best.expert % WARP == lane) probabilities[best.expert] = TAKEN;
        if (at % WARP == lane) {
            chosen[first + at] = best.expert;
            weights[first + at] = best.probability;
        }
        total += best.probability;
    }
    if (!real || !normed) return;
    for (int at = lane; at < width; at += WARP) weights[first + at] /= total;
}
