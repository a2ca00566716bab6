// What a block of attention works on: a tile of packed rows, and keys in tiles of 64 positions.
//
// Packed row `r` of a tile is query head `r % group` of row `r / group`: all query heads that share
// a key and value head stand in one block, so that one load of keys and values serves them all
// (grouped-query attention: Ainslie et al., 2023, arXiv:2305.13245). Three ways to lay 128 threads
// over them: `narrow.cu` has 16 packed rows (a decoded token), `wide.cu` has 64 (prompts), and
// `tall.cu` has 128 (long prompts).

#define TILE 64
#define SPLIT 512
/// Blocks that a multiprocessor is to have room for.
#define ATTENTION_BLOCKS (HEAD_DIM <= 64 ? 3 : 2)
#define NARROW 16
#define WIDE 64
#define ATTENTION_WARPS 4
#define ATTENTION_THREADS (ATTENTION_WARPS * WARP)
#define LOG2_E 1.4426950408889634f
#define NEVER __uint_as_float(0xff800000u)
/// Two bf16 ones.
#define ONES 0x3f803f80u

/// 16-byte chunks of a head, and of a page.
#define CHUNKS (HEAD_DIM / 8)
#define PAGE_CHUNKS (PAGE * CHUNKS)
/// Chunks change places within rows of whole 128 bytes, or rows are one chunk longer: either way
/// eight rows of one column lie in different banks.
#define TWISTED (HEAD_DIM % 64 == 0)
#define ROW_BYTES (TWISTED ? HEAD_DIM * 2 : HEAD_DIM * 2 + 16)
#define SLOT_BYTES (TILE * ROW_BYTES)
#define WEIGHT_BYTES ((TILE + 8) * 2)

/// 16 x 16 blocks of a head: in its depth for scores, in its breadth for sums.
#define STEPS (HEAD_DIM / 16)
/// Those that a warp of `narrow` sums.
#define OWN_STEPS ((STEPS + ATTENTION_WARPS - 1) / ATTENTION_WARPS)

/// What the packed rows of a tile are.
struct Task {
    const bf16* queries; // of the tile's first row and the group's first head
    int query_stride;    // from row to row
    bf16* out;           // likewise
    int out_stride;
    int group;
    int packed;   // packed rows
    int position; // of the first row
    float scale;  // to powers of two
};

/// The keys and values of a sequence, of one head.
struct Source {
    const PageUnit* keys;
    const PageUnit* values;
    const int* pages;
    unsigned page_stride;
    int limit; // positions that exist
};

/// The place of a chunk in a slot.
__device__ __forceinline__ int chunk_at(int row, int chunk) {
    return row * ROW_BYTES + (TWISTED ? chunk ^ (row & 7) : chunk) * 16;
}
