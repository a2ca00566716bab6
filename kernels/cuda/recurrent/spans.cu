// What the kernels of layers with a recurrent state (gated delta rule) have in common: the spans of
// a step, which are the rows of one sequence each, and the slots that their states are in.
//
// A span has four words: its first row (-1 if it is padding), the number of its rows, the slot with
// the state before them (-1 for zeros), and the index of its first mark. A mark has two: a number
// of rows, and the slot that is given the state after them. Marks ascend by rows, and the last one
// of a span has all of its rows. A slot that is written belongs to one span, and no other reads it.
//
// A row has the same bits however its sequence is cut into spans: everything is computed row by row
// in the order of positions, by sums whose order depends on nothing but the shape of the layer.

/// x / (1 + exp(-x)).
__device__ __forceinline__ float silu(float x) {
    return x / (1.0f + exp2_fast(-1.44269504f * x));
}

/// The sum over eight neighboring lanes, the same bits in each of them.
__device__ __forceinline__ float eight_lanes_sum(float value) {
#pragma unroll
    for (int far = 4; far > 0; far /= 2) value += __shfl_xor_sync(EVERY_LANE, value, far);
    return value;
}
