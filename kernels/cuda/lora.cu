// Low-rank products for adapters: out[t] += scale * B (A x[t]), rows of many adapters in one batch.
//
//   lora_shrink<<<((T + 7) / 8, slices, (r_max + 7) / 8), 256>>>(...)
//   lora_expand<<<((columns_max + 511) / 512, (T + 7) / 8, slices), 256>>>(...)
//
// One pair of launches for each fused matrix of a layer. A fused matrix has `slices` parts (query,
// key, value: 3; gate, up: 2; others 1), each with an A and a B of its own.
//
// extern "C" __global__ void lora_shrink(
//     float* mid,            // [T, slices, r_max], scratch between the two
//     const bf16* x,         // [T, k]; k a multiple of 8
//     const LoraPart* table, // [adapters, slices], of this layer and matrix
//     const int* adapter,    // [T]; -1 for none: such rows of `mid` are not written, nor read
//     int rows, int k, int slices, int r_max);
//
// extern "C" __global__ void lora_expand(
//     bf16* out,             // [T, stride], in and out
//     const float* mid, const LoraPart* table, const int* adapter,
//     int rows, int stride, int slices, int r_max);

// One part of an adapter; 32 bytes. An adapter that leaves a part alone has rank 0 there.
struct LoraPart {
    const unsigned short* a;  // [rank, k] bf16
    const unsigned short* b;  // [columns, rank] bf16
    int rank;                 // a multiple of 8, at most r_max; pad A with rows of zeros, B with columns
    int first;                // first column of `out`; even
    int columns;              // even
    float scale;
};
