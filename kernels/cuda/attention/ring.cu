// Tiles of keys and of values on their way from pages to shared memory.
//
// A ring of slots, each for the 64 x HEAD_DIM bf16 of one tile: keys, then values, of one tile
// after another. While one slot is read the others are being filled by `cp.async`, so that memory
// is never waited for by itself. A sequence's positions lie in pages of PAGE, anywhere, found by
// the list of its pages (PagedAttention: Kwon et al., 2023, arXiv:2309.06180).

/// The keys and values of a sequence, of one head.
struct Source {
    const bf16* keys;
    const bf16* values;
    const int* pages;
    unsigned page_stride;
    int limit; // positions that exist
};

/// Keys and values on their way: tiles in order, keys before values, through slots in turn.
template <int COUNT>
struct Ring {
    const Source& source;
    unsigned issued; // tile * 2, and one more for values
    unsigned end;    // of `issued`
    int in, out;
    unsigned char* slots;
};

/// The place of a chunk in a slot.
__device__ __forceinline__ int chunk_at(int row, int chunk) {
    return row * ROW_BYTES + (TWISTED ? chunk ^ (row & 7) : chunk) * 16;
}

/// Begins to load a tile of one side, keys or values. `thread` is the thread of the block.
__device__ __forceinline__ void load_tile(
    const Source& source, const bf16* side, unsigned tile, unsigned char* slot, unsigned thread) {
    const int* list = source.pages + tile * (TILE / PAGE);
    int left = source.limit - (int)tile * TILE;
#pragma unroll
    for (int part = 0; part < TILE / PAGE; part++) {
        unsigned page = part * PAGE < left ? __ldg(list + part) : 0;
        const bf16* own = side + (u64)page * source.page_stride + thread * 8;
#pragma unroll
        for (int block = 0; block < PAGE_CHUNKS; block += ATTENTION_THREADS) {
            int c = block + (int)thread;
            if (PAGE_CHUNKS % ATTENTION_THREADS && c >= PAGE_CHUNKS) break;
            int row = part * PAGE + c / CHUNKS;
            copy_async(slot + chunk_at(row, c % CHUNKS), own + block * 8, row < left);
        }
    }
}

/// Begins to load the next tile, if there is one.
template <int COUNT>
__device__ __forceinline__ void issue(Ring<COUNT>& ring) {
    if (ring.issued < ring.end) {
        const bf16* side = ring.issued % 2 ? ring.source.values : ring.source.keys;
        unsigned char* slot = ring.slots + ring.in * SLOT_BYTES;
        load_tile(ring.source, side, ring.issued / 2, slot, threadIdx.x);
    }
    copy_commit();
    ring.issued++;
    ring.in = ring.in + 1 == COUNT ? 0 : ring.in + 1;
}

/// Begins to load tiles from `first` to `end`. No other thread may still read the slots.
template <int COUNT>
__device__ __forceinline__ void start(Ring<COUNT>& ring, int first, int end) {
    ring.issued = first * 2;
    ring.end = end * 2;
    ring.in = 0;
    ring.out = 0;
#pragma unroll 1
    for (int slot = 0; slot < COUNT - 1; slot++) issue(ring);
}

/// The next tile, behind a barrier: all threads have left the one before, whose slot is filled.
template <int COUNT>
__device__ __forceinline__ const unsigned char* next(Ring<COUNT>& ring) {
    copy_wait<COUNT - 2>();
    __syncthreads();
    issue(ring);
    const unsigned char* slot = ring.slots + ring.out * SLOT_BYTES;
    ring.out = ring.out + 1 == COUNT ? 0 : ring.out + 1;
    return slot;
}

/// Lets the slots be used anew.
__device__ __forceinline__ void finish() {
    copy_wait<0>();
    __syncthreads();
}
