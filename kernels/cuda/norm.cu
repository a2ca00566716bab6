// Root-mean-square norms of whole rows, and a part that is added as a whole, one block a row.
//
//   add_rms_norm<<<T, threads>>>   threads = min(1024, hidden / 8 rounded up to 32)
//   gather_norm <<<R, threads>>>
//   add_gated   <<<T, threads>>>
//
// No dynamic shared memory. `hidden` is a multiple of 8. The tree of a sum depends on `hidden`
// alone, so a row has the same bits in every batch.

/// Eight numbers of a row to 32-bit floats.
struct Eight {
    float numbers[8];

    __device__ __forceinline__ void load(const bf16* from) { unpack(load_pack(from), numbers); }

    __device__ __forceinline__ float squares() const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(numbers[i], numbers[i], sum);
        return sum;
    }

    __device__ __forceinline__ float product(const float* weight) const {
        const float4 low = *(const float4*)weight, high = *(const float4*)(weight + 4);
        const float weights[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(numbers[i], weights[i], sum);
        return sum;
    }

    __device__ __forceinline__ uint4 scaled(float scale, const float* weight, float offset) const {
        const float4 low = *(const float4*)weight, high = *(const float4*)(weight + 4);
        const float weights[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        float out[8];
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = numbers[i] * scale * (weights[i] + offset);
        return pack(out);
    }
};

/// out = row / rms(row) * (weight + offset). `first` holds the eight numbers of the row that this
/// thread has, `sum` the squares of all that it has; a row of more than 8,192 is read again.
__device__ __forceinline__ void finish(const Eight& first, float sum, float* scratch,
                                       const bf16* row, const float* weight, bf16* out, int hidden,
                                       float eps, float offset) {
    const float mean = block_sum(sum, scratch) / (float)hidden;
    const float scale = 1.0f / sqrtf(mean + eps);
    int at = threadIdx.x * 8;
    if (at < hidden) store_pack(out + at, first.scaled(scale, weight + at, offset));
    for (at += blockDim.x * 8; at < hidden; at += blockDim.x * 8) {
        Eight more;
        more.load(row + at);
        store_pack(out + at, more.scaled(scale, weight + at, offset));
    }
}

/// residual += delta, rounded to bf16, then out = residual / rms(residual) * (weight + offset):
/// residual, delta and out `[T, hidden]`, weight `[hidden]`. With no delta the residual stays as it
/// is.
extern "C" __global__ void __launch_bounds__(1024) add_rms_norm(
    bf16* residual, const bf16* delta, const float* weight, bf16* out, int hidden, float eps,
    float offset) {
    take_over();
    const long long start = (long long)blockIdx.x * hidden;
    __shared__ float scratch[WARP];
    Eight first;
    float sum = 0.0f;
    for (int at = threadIdx.x * 8; at < hidden; at += blockDim.x * 8) {
        Eight own;
        own.load(residual + start + at);
        if (delta) {
            Eight added;
            added.load(delta + start + at);
#pragma unroll
            for (int i = 0; i < 8; i++) own.numbers[i] += added.numbers[i];
            const uint4 rounded = pack(own.numbers);
            store_pack(residual + start + at, rounded);
            unpack(rounded, own.numbers);
        }
        sum += own.squares();
        if (at == threadIdx.x * 8) first = own;
    }
    finish(first, sum, scratch, residual + start, weight, out + start, hidden, eps, offset);
}

/// out[r] = x / rms(x) * (weight + offset) with x the row `rows[r]` of `residual`; zeros where that
/// is negative: rows `[R]`, out `[R, hidden]`.
extern "C" __global__ void __launch_bounds__(1024) gather_norm(
    const bf16* residual, const int* rows, const float* weight, bf16* out, int hidden, float eps,
    float offset) {
    take_over();
    const int index = rows[blockIdx.x];
    bf16* const to = out + (long long)blockIdx.x * hidden;
    if (index < 0) {
        for (int at = threadIdx.x * 8; at < hidden; at += blockDim.x * 8) {
            store_pack(to + at, make_uint4(0, 0, 0, 0));
        }
        return;
    }
    const bf16* const row = residual + (long long)index * hidden;
    __shared__ float scratch[WARP];
    Eight first;
    float sum = 0.0f;
    for (int at = threadIdx.x * 8; at < hidden; at += blockDim.x * 8) {
        Eight own;
        own.load(row + at);
        sum += own.squares();
        if (at == threadIdx.x * 8) first = own;
    }
    finish(first, sum, scratch, row, weight, to, hidden, eps, offset);
}

/// sum += part / (1 + exp(-gate)), rounded to bf16, with gate = input . weight of the row: input,
/// part and sum `[T, hidden]`, weight `[hidden]`.
extern "C" __global__ void __launch_bounds__(1024) add_gated(
    bf16* sum, const bf16* part, const bf16* input, const float* weight, int hidden) {
    take_over();
    const long long start = (long long)blockIdx.x * hidden;
    __shared__ float scratch[WARP];
    float product = 0.0f;
    for (int at = threadIdx.x * 8; at < hidden; at += blockDim.x * 8) {
        Eight own;
        own.load(input + start + at);
        product += own.product(weight + at);
    }
    const float gate = 1.0f / (1.0f + exp2_fast(-1.44269504f * block_sum(product, scratch)));
    for (int at = threadIdx.x * 8; at < hidden; at += blockDim.x * 8) {
        Eight own, added;
        own.load(sum + start + at);
        added.load(part + start + at);
#pragma unroll
        for (int i = 0; i < 8; i++) own.numbers[i] = fmaf(gate, added.numbers[i], own.numbers[i]);
        store_pack(sum + start + at, pack(own.numbers));
    }
}
