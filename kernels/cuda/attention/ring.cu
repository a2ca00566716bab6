// Tiles of keys and of values on their way from pages to shared memory.
//
// A ring of slots, each for one tile as it is loaded: keys, then values, of one tile after another.
// While one slot is read the others are being filled by `cp.async`, so that memory is never waited
// for by itself. Behind them is room for a tile that has to be widened. A sequence's positions lie
// in pages of PAGE, anywhere, found by the list of its pages (PagedAttention: Kwon et al., 2023,
// arXiv:2309.06180).

/// Keys and values on their way: tiles in order, keys before values, through slots in turn.
template <int COUNT>
struct Ring {
    const Source& source;
    unsigned issued; // tile * 2, and one more for values
    unsigned end;    // of `issued`
    int in, out;
    unsigned char* slots;
};

/// Bytes of a ring of `COUNT` slots.
#define RING_BYTES(count) ((count) * LOADED_BYTES + WIDENED_BYTES)

/// Room for a widened tile.
template <int COUNT>
__device__ __forceinline__ unsigned char* widened(const Ring<COUNT>& ring) {
    return ring.slots + COUNT * LOADED_BYTES;
}

/// Begins to load the next tile, if there is one.
template <int COUNT>
__device__ __forceinline__ void issue(Ring<COUNT>& ring) {
    if (ring.issued < ring.end) {
        const PageUnit* side = ring.issued % 2 ? ring.source.values : ring.source.keys;
        unsigned char* slot = ring.slots + ring.in * LOADED_BYTES;
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

/// The next tile as it is loaded, behind a barrier: all threads have left the one before, whose
/// slot is filled.
template <int COUNT>
__device__ __forceinline__ const unsigned char* next(Ring<COUNT>& ring) {
    copy_wait<COUNT - 2>();
    __syncthreads();
    issue(ring);
    const unsigned char* slot = ring.slots + ring.out * LOADED_BYTES;
    ring.out = ring.out + 1 == COUNT ? 0 : ring.out + 1;
    return slot;
}

/// Lets the slots be used anew.
__device__ __forceinline__ void finish() {
    copy_wait<0>();
    __syncthreads();
}
