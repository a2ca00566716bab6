// Tiles of keys and of values from pages of FP8: they are loaded as bytes, half as many as bf16
// has, and widened to a tile of bf16 in shared memory before they are multiplied. The products are
// those of bf16 pages, and so are the bits.
//
// A loaded tile is TILE rows of HEAD_DIM bytes and then the scale of each row. 16-byte chunks
// change places within rows of 64 or 128 bytes, so that a chunk of eight rows lies in different
// banks.

/// 16-byte chunks of a row as it is loaded, each of which is widened to two of bf16.
#define LOADED_CHUNKS (HEAD_DIM / 16)
#define LOADED_PAGE_CHUNKS (PAGE * LOADED_CHUNKS)
/// Bytes of a tile as it is loaded, and of the one that it is widened to.
#define LOADED_BYTES (TILE * (HEAD_DIM + 1))
#define WIDENED_BYTES SLOT_BYTES
/// Tiles of keys or of values that are in shared memory or on their way.
#define SLOTS (HEAD_DIM <= 64 ? 12 : HEAD_DIM <= 128 ? 9 : 4)
/// Those that `wide` uses, beside three times the bytes of a widened tile.
#define WIDE_SLOTS (SLOTS - (3 * SLOT_BYTES + LOADED_BYTES - 1) / LOADED_BYTES)

/// The place of a chunk in a loaded tile.
__device__ __forceinline__ int loaded_at(int row, int chunk) {
    int other = HEAD_DIM % 128 == 0 ? row & 7 : HEAD_DIM % 64 == 0 ? row / 2 & 3 : 0;
    return row * HEAD_DIM + (chunk ^ other) * 16;
}

/// Begins to load a tile of one side, keys or values. `thread` is the thread of the block.
__device__ __forceinline__ void load_tile(
    const Source& source, const PageUnit* side, unsigned tile, unsigned char* slot,
    unsigned thread) {
    const int* list = source.pages + tile * (TILE / PAGE);
    int left = source.limit - (int)tile * TILE;
#pragma unroll
    for (int part = 0; part < TILE / PAGE; part++) {
        unsigned page = part * PAGE < left ? __ldg(list + part) : 0;
        const PageUnit* own = side + (u64)page * source.page_stride + thread * 16;
#pragma unroll
        for (int block = 0; block < LOADED_PAGE_CHUNKS; block += ATTENTION_THREADS) {
            int c = block + (int)thread;
            if (LOADED_PAGE_CHUNKS % ATTENTION_THREADS && c >= LOADED_PAGE_CHUNKS) break;
            int row = part * PAGE + c / LOADED_CHUNKS;
            copy_async(slot + loaded_at(row, c % LOADED_CHUNKS), own + block * 16, row < left);
        }
    }
    // The scales of a page are one chunk.
    if (thread < TILE / PAGE) {
        bool real = (int)thread * PAGE < left;
        unsigned page = real ? __ldg(list + thread) : 0;
        const PageUnit* own = side + (u64)page * source.page_stride + PAGE * HEAD_DIM;
        copy_async(slot + TILE * HEAD_DIM + thread * PAGE, own, real);
    }
}

/// Widens a chunk of a loaded tile, of which `left` rows are real. Others are zeros: what their
/// scales are is not known.
__device__ __forceinline__ void widen_chunk(
    const unsigned char* loaded, unsigned char* tile, int left, int row, int chunk) {
    uint4 bytes = *(const uint4*)(loaded + loaded_at(row, chunk));
    unsigned scale = row < left ? loaded[TILE * HEAD_DIM + row] : 0;
    scale = scale << 7 | scale << 23;
    uint2 a = widen_word(bytes.x, scale), b = widen_word(bytes.y, scale);
    *(uint4*)(tile + chunk_at(row, chunk * 2)) = make_uint4(a.x, a.y, b.x, b.y);
    a = widen_word(bytes.z, scale);
    b = widen_word(bytes.w, scale);
    *(uint4*)(tile + chunk_at(row, chunk * 2 + 1)) = make_uint4(a.x, a.y, b.x, b.y);
}

/// Widens a loaded tile for all threads of the block, which have left the tile before behind a
/// barrier. There is another one in here.
__device__ __forceinline__ const unsigned char* whole_tile(
    const unsigned char* loaded, unsigned char* tile, int left, int thread) {
#pragma unroll 2
    for (int c = thread; c < TILE * LOADED_CHUNKS; c += ATTENTION_THREADS) {
        widen_chunk(loaded, tile, left, c / LOADED_CHUNKS, c % LOADED_CHUNKS);
    }
    __syncthreads();
    return tile;
}

/// Widens those keys of a tile that a warp of `narrow` scores: 16 positions, which are a page.
__device__ __forceinline__ const unsigned char* own_keys(
    const unsigned char* loaded, unsigned char* tile, int left) {
    int lane = threadIdx.x % WARP, first = threadIdx.x / WARP * PAGE;
#pragma unroll 2
    for (int block = 0; block < LOADED_PAGE_CHUNKS; block += WARP) {
        int c = block + lane;
        if (LOADED_PAGE_CHUNKS % WARP && c >= LOADED_PAGE_CHUNKS) break;
        widen_chunk(loaded, tile, left, first + c / LOADED_CHUNKS, c % LOADED_CHUNKS);
    }
    __syncwarp();
    return tile;
}

/// Widens those values of a tile that a warp of `narrow` sums: of each run of 16 columns a chunk.
__device__ __forceinline__ const unsigned char* own_values(
    const unsigned char* loaded, unsigned char* tile, int left) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int own = 0; own < OWN_STEPS; own++) {
        int step = threadIdx.x / WARP + own * ATTENTION_WARPS;
        if (STEPS % ATTENTION_WARPS && step >= STEPS) break;
#pragma unroll 1
        for (int row = lane; row < TILE; row += WARP) {
            widen_chunk(loaded, tile, left, row, step);
        }
    }
    __syncwarp();
    return tile;
}
