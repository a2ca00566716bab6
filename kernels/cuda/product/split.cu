// A slab of a product of 17 to 32 rows, with its depth divided among blocks. Results of few columns
// have too few slabs to fill the device. The bits are not those of `product/slab.cu`.
//
// A block takes a slab of 32 rows of w, a part of the depth, and all rows of x, through the ring of
// `Slabs`. It leaves its sums in memory, and the block of a slab that comes last adds up those of
// all parts in their order, whatever the order of the blocks.

/// Where the blocks of a slab meet.
struct Meeting {
    /// `[slabs, parts, ROWS, Slabs::SLAB]`.
    float* sums;
    /// A counter for each slab, zero before and behind each product.
    unsigned* arrived;
    /// The depth of a part, a multiple of SMALL_DEPTH.
    int depth;
};

/// Computes a part of a slab: slab `blockIdx.x`, part `blockIdx.y`, of which none is empty. It waits
/// for the launch in front before it reads x; w must not be written by a step.
template <int ROWS>
__device__ __forceinline__ void multiply_part(
    const Product& product, const Meeting& meeting, unsigned char* stages) {
    using Ring = Slabs<ROWS>;
    constexpr int AHEAD = Ring::STAGES - 1;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    int slab = blockIdx.x, part = blockIdx.y, parts = gridDim.y;
    int begin = part * meeting.depth, end = min(product.k, begin + meeting.depth);
    auto load_weights = [&](int stage, int depth) {
        unsigned char* to = stages + stage * Ring::STAGE;
        if (depth < end) load_slab<false, Ring>(to, product, slab, depth);
    };
    auto load_x = [&](int stage, int depth) {
        unsigned char* to = stages + stage * Ring::STAGE + Ring::SLAB * ROW;
        if (depth < end) load_inputs<ROWS, Ring>(to, product, 0, depth);
    };
#pragma unroll 1
    for (int stage = 0; stage < AHEAD; stage++) {
        load_weights(stage, begin + stage * SMALL_DEPTH);
        copy_commit();
    }
    take_over();
#pragma unroll 1
    for (int stage = 0; stage < AHEAD; stage++) {
        load_x(stage, begin + stage * SMALL_DEPTH);
        copy_commit();
    }

    float sums[ROWS / 16][4] = {};
    int in = AHEAD, used = 0;
    for (int depth = begin; depth < end; depth += SMALL_DEPTH) {
        // Behind this barrier the stage has arrived, and all threads have left the one before.
        copy_wait<Ring::STAGES - 2>();
        __syncthreads();
        load_weights(in, depth + AHEAD * SMALL_DEPTH);
        load_x(in, depth + AHEAD * SMALL_DEPTH);
        copy_commit();
        in = (in + 1) % Ring::STAGES;
        multiply_stage<ROWS>(sums, stages + used * Ring::STAGE, warp);
        used = (used + 1) % Ring::STAGES;
    }
    copy_wait<0>();

    // This thread's two columns of the rows g, g + 8 and so on.
    const int slab_sums = ROWS * Ring::SLAB, column = warp * 8 + q * 2;
    float* first = meeting.sums + (long long)slab * parts * slab_sums + g * Ring::SLAB + column;
    float* own = first + (long long)part * slab_sums;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        float(&pair)[4] = sums[i / 2];
        *(float2*)(own + i * 8 * Ring::SLAB) = make_float2(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
    }
    // All sums of the block are visible before it is counted.
    __threadfence();
    __syncthreads();
    unsigned* latest = (unsigned*)stages;
    if (threadIdx.x == 0) *latest = atomicInc(meeting.arrived + slab, parts - 1);
    __syncthreads();
    if (*latest != (unsigned)parts - 1) return;
    // And those of the others before they are read.
    __threadfence();
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        const float* from = first + i * 8 * Ring::SLAB;
        float2 total = *(const float2*)from;
        for (int other = 1; other < parts; other++) {
            float2 pair = *(const float2*)(from + (long long)other * slab_sums);
            total = make_float2(total.x + pair.x, total.y + pair.y);
        }
        int row = i * 8 + g;
        if (row >= product.m) continue;
        write_sums<false>(product, row, slab * Ring::SLAB + column, total.x, total.y);
    }
}
