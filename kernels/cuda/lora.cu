// Low-rank products for adapters: out[t] += scale * B (A x[t]), rows of many adapters in one batch.
//
//   lora_shrink<<<((T + 7) / 8, slices, (r_max + 3) / 4), 256>>>(...)
//   lora_expand<<<((columns_max + 511) / 512, (T + 7) / 8, slices), 256>>>(...)
//
// One pair of launches for each fused matrix of a layer. A fused matrix has `slices` parts (query,
// key, value: 3; gate, up: 2; others 1), each with an A and a B of its own. A row's bits do not
// depend on its neighbours; a row without an adapter is not touched, and eight of them in a row
// cost one load.
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
//     int rows, int stride, int slices, int r_max);  // stride: columns of `out`, even
// r_max is a multiple of 8.

// One part of an adapter; 32 bytes. An adapter that leaves a part alone has rank 0 there.
struct LoraPart {
    const bf16* a;  // [rank, k]
    const bf16* b;  // [columns, rank]
    int rank;       // a multiple of 8, at most r_max: pad A with rows of zeros, B with columns
    int first;      // first column of `out`; even
    int columns;    // even
    float scale;
};

// Rows of a block, which share what they read of one adapter.
#define ROWS 8
// Rows of A that a block multiplies with, and the parts of `k` that it splits each into.
#define RANKS 4
#define PARTS 2

// The rows of a block that have an adapter, as bits, and one adapter after another.
struct Users {
    int adapters[ROWS];
    unsigned left;

    __device__ __forceinline__ Users(const int* adapter, int first, int rows) : left(0) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            adapters[i] = first + i < rows ? adapter[first + i] : -1;
            left |= (unsigned)(adapters[i] >= 0) << i;
        }
    }

    // Takes the next adapter and returns its rows.
    __device__ __forceinline__ unsigned next(int& adapter) {
        adapter = -1;
        unsigned users = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (!(left >> i & 1)) continue;
            if (adapter < 0) adapter = adapters[i];
            users |= (unsigned)(adapters[i] == adapter) << i;
        }
        left &= ~users;
        return users;
    }
};

/// mid[t] = A x[t].
extern "C" __global__ void __launch_bounds__(256) lora_shrink(
    float* mid, const bf16* x, const LoraPart* table, const int* adapter, int rows, int k,
    int slices, int r_max) {
    take_over();
    __shared__ float sums[RANKS][PARTS][ROWS];
    const int first = blockIdx.x * ROWS, slice = blockIdx.y, lane = threadIdx.x % WARP;
    const int part = threadIdx.x / WARP % PARTS, local = threadIdx.x / WARP / PARTS;
    const int rank = blockIdx.z * RANKS + local;
    Users users(adapter, first, rows);
    while (users.left) {
        int own;
        const unsigned mask = users.next(own);
        const LoraPart to = table[(long long)own * slices + slice];
        float sum[ROWS] = {};
        if (rank < to.rank) {
            const bf16* const a = to.a + (long long)rank * k;
#pragma unroll 2
            for (int at = (part * WARP + lane) * 8; at < k; at += PARTS * WARP * 8) {
                float weights[8];
                unpack(load_pack(a + at), weights);
#pragma unroll
                for (int row = 0; row < ROWS; row++) {
                    if (!(mask >> row & 1)) continue;
                    float numbers[8];
                    unpack(load_pack(x + (long long)(first + row) * k + at), numbers);
#pragma unroll
                    for (int i = 0; i < 8; i++) sum[row] = fmaf(weights[i], numbers[i], sum[row]);
                }
            }
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            sum[row] = warp_sum(sum[row]);
            if (lane == row) sums[local][part][row] = sum[row];
        }
        __syncthreads();
        if (part == 0 && lane < ROWS && (mask >> lane & 1) && rank < to.rank) {
            const long long at = ((long long)(first + lane) * slices + slice) * r_max + rank;
            mid[at] = sums[local][0][lane] + sums[local][1][lane];
        }
        __syncthreads();
    }
}

/// out[t] += scale * B mid[t], rounded to bf16.
extern "C" __global__ void __launch_bounds__(256) lora_expand(
    bf16* out, const float* mid, const LoraPart* table, const int* adapter, int rows, int stride,
    int slices, int r_max) {
    take_over();
    const int column = (blockIdx.x * 256 + threadIdx.x) * 2;
    const int first = blockIdx.y * ROWS, slice = blockIdx.z;
    Users users(adapter, first, rows);
    while (users.left) {
        int own;
        const unsigned mask = users.next(own);
        const LoraPart from = table[(long long)own * slices + slice];
        if (column >= from.columns || from.rank == 0) continue;
        float sums[ROWS][2] = {};
        const bf16* const b = from.b + (long long)column * from.rank;
        for (int rank = 0; rank < from.rank; rank += 8) {
            float even[8], odd[8];
            unpack(load_pack(b + rank), even);
            unpack(load_pack(b + from.rank + rank), odd);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                if (!(mask >> row & 1)) continue;
                const long long t = (long long)(first + row) * slices + slice;
#pragma unroll
                for (int four = 0; four < 8; four += 4) {
                    const float4 m = *(const float4*)(mid + t * r_max + rank + four);
                    const float numbers[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        sums[row][0] = fmaf(even[four + i], numbers[i], sums[row][0]);
                        sums[row][1] = fmaf(odd[four + i], numbers[i], sums[row][1]);
                    }
                }
            }
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            if (!(mask >> row & 1)) continue;
            const long long at = (long long)(first + row) * stride + from.first + column;
            unsigned* const pair = (unsigned*)(out + at);
            const float low = fmaf(from.scale, sums[row][0], low_float(*pair));
            const float high = fmaf(from.scale, sums[row][1], high_float(*pair));
            *pair = to_pair(low, high);
        }
    }
}
