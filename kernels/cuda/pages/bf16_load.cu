// Tiles of keys and of values from pages of bf16: they are loaded as they are multiplied.

/// Bytes of a tile as it is loaded, and of the tile that it is widened to, which is the same one.
#define LOADED_BYTES SLOT_BYTES
#define WIDENED_BYTES 0
/// Tiles of keys or of values that are in shared memory or on their way.
#define SLOTS (HEAD_DIM <= 64 ? 8 : HEAD_DIM <= 128 ? 6 : 3)
/// Those that `wide` uses.
#define WIDE_SLOTS (SLOTS - 3)

/// Begins to load a tile of one side, keys or values. `thread` is the thread of the block.
__device__ __forceinline__ void load_tile(
    const Source& source, const PageUnit* side, unsigned tile, unsigned char* slot,
    unsigned thread) {
    const int* list = source.pages + tile * (TILE / PAGE);
    int left = source.limit - (int)tile * TILE;
#pragma unroll
    for (int part = 0; part < TILE / PAGE; part++) {
        unsigned page = part * PAGE < left ? __ldg(list + part) : 0;
        const PageUnit* own = side + (u64)page * source.page_stride + thread * 8;
#pragma unroll
        for (int block = 0; block < PAGE_CHUNKS; block += ATTENTION_THREADS) {
            int c = block + (int)thread;
            if (PAGE_CHUNKS % ATTENTION_THREADS && c >= PAGE_CHUNKS) break;
            int row = part * PAGE + c / CHUNKS;
            copy_async(slot + chunk_at(row, c % CHUNKS), own + block * 8, row < left);
        }
    }
}

/// A loaded tile for all threads of the block. See `fp8_load.cu`.
__device__ __forceinline__ const unsigned char* whole_tile(
    const unsigned char* loaded, unsigned char*, int, int) {
    return loaded;
}

/// A loaded tile of keys for a warp of `narrow`.
__device__ __forceinline__ const unsigned char* own_keys(
    const unsigned char* loaded, unsigned char*, int) {
    return loaded;
}

/// A loaded tile of values for a warp of `narrow`.
__device__ __forceinline__ const unsigned char* own_values(
    const unsigned char* loaded, unsigned char*, int) {
    return loaded;
}
