// BLAKE3 of a tensor where it lies: the digest that the host computes of the same bytes.
//
//   hash_chunks<<<(chunks + 255) / 256, 256>>>, chunks = max((head + count + 1023) / 1024, 1)
//   hash_nodes<<<(count + 255) / 256, 256>>>
//
// The input is a head of a few bytes, which names the tensor, and behind it the elements. Nothing
// is copied together: chunks begin anywhere among the elements, so words are put together from two
// aligned ones.
//
// Every chunk of 1024 bytes is hashed by itself, by one thread. Chunks are the leaves of a tree:
// two neighbors make a node, level by level, and the last of an odd number goes up as it is, which
// gives the left-balanced tree of the specification. A block folds 256 nodes to one and writes its
// eight words. 256 is a power of two, so blocks are whole subtrees. A launch of one block ends the
// tree, and its last compression is that of the root.

/// Nodes that a block folds to one: a thread has one.
#define NODES 256
/// Words between the blocks of two chunks in shared memory: odd, so that lanes that read their own
/// chunk's words use different banks.
#define STRIDE 17

/// The bytes to hash: `from` bytes of the head, then the elements up to byte `end`.
struct Input {
    const unsigned char* head;
    const unsigned char* elements;
    long long from, end;

    /// The byte at `at`; zero behind the end.
    __device__ __forceinline__ unsigned byte(long long at) const {
        if (at >= end) return 0;
        return at < from ? head[at] : elements[at - from];
    }

    /// The four bytes from `at` on, zeros behind the end.
    __device__ __forceinline__ unsigned word(long long at) const {
        // Two aligned words that lie within the elements, but for what is in front of their first
        // byte: allocations are aligned.
        if (at >= from && at + 8 <= end) {
            const u64 place = (u64)(elements + (at - from));
            const unsigned* const words = (const unsigned*)(place & ~3ull);
            const unsigned shift = (unsigned)(place & 3) * 8;
            return shift == 0 ? words[0] : __funnelshift_r(words[0], words[1], shift);
        }
        return byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
    }
};

/// Brings block `block` of a warp's chunks, the first of which begins at byte `start`, into shared
/// memory: half a warp reads the 16 words of a chunk.
__device__ __forceinline__ void stage_block(unsigned* stage, const Input& input, long long start,
                                            int block) {
    const int lane = threadIdx.x % WARP, row = lane / 16, column = lane % 16;
    const long long at = start + row * CHUNK + block * BLOCK + column * 4;
    unsigned* const to = stage + row * STRIDE + column;
    // Mostly all chunks lie within the elements, and so does the word behind each of their words.
    if (start >= input.from && start + WARP * CHUNK + 4 <= input.end) {
        const u64 place = (u64)(input.elements + (at - input.from));
        const unsigned* const words = (const unsigned*)(place & ~3ull);
        const unsigned shift = (unsigned)(place & 3) * 8;
#pragma unroll
        for (int i = 0; i < WARP / 2; i++) {
            const unsigned* const two = words + i * (2 * CHUNK / 4);
            to[i * 2 * STRIDE] = __funnelshift_r(two[0], two[1], shift);
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < WARP / 2; i++) to[i * 2 * STRIDE] = input.word(at + i * 2 * CHUNK);
}

/// Folds the nodes of the block's first `count` threads to one, which the first thread then has.
/// `shared` has 8 words for each thread.
__device__ __forceinline__ void fold(unsigned* shared, unsigned (&node)[8], int count,
                                     bool is_root) {
    const int thread = threadIdx.x;
    while (count > 1) {
        __syncthreads();
        if (thread < count) {
#pragma unroll
            for (int i = 0; i < 8; i++) shared[i * NODES + thread] = node[i];
        }
        __syncthreads();
        if (2 * thread + 1 < count) {
            unsigned message[16];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                message[i] = shared[i * NODES + 2 * thread];
                message[8 + i] = shared[i * NODES + 2 * thread + 1];
            }
            begin_chain(node);
            compress(node, message, 0, BLOCK, PARENT | (is_root && count == 2 ? ROOT : 0));
        } else if (2 * thread + 1 == count) {
#pragma unroll
            for (int i = 0; i < 8; i++) node[i] = shared[i * NODES + 2 * thread];
        }
        count = (count + 1) / 2;
    }
}

/// Writes the node of a block.
__device__ __forceinline__ void write_node(unsigned* out, const unsigned (&node)[8]) {
    if (threadIdx.x > 0) return;
#pragma unroll
    for (int i = 0; i < 8; i++) out[(long long)blockIdx.x * 8 + i] = node[i];
}

/// nodes[b] = the node over chunks 256 b to 256 b + 255 of `head_bytes` bytes of a head and `count`
/// bytes of elements.
extern "C" __global__ void __launch_bounds__(256) hash_chunks(
    unsigned* nodes, const unsigned char* head, int head_bytes, const unsigned char* elements,
    long long count) {
    __shared__ unsigned shared[NODES * STRIDE];
    const Input input = {head, elements, head_bytes, head_bytes + count};
    const long long chunks = input.end > 0 ? (input.end + CHUNK - 1) / CHUNK : 1;
    const long long chunk = (long long)blockIdx.x * NODES + threadIdx.x;
    const int lane = threadIdx.x % WARP, length = (int)min((long long)CHUNK,
                                                           input.end - chunk * CHUNK);
    // The chunks of a warp come into shared memory block by block, 64 bytes of a chunk at a time.
    const long long start = (chunk - lane) * CHUNK;
    unsigned* const stage = shared + (threadIdx.x - lane) * STRIDE;

    unsigned chain[8];
    begin_chain(chain);
    for (int block = 0; block < CHUNK / BLOCK && chunk - lane < chunks; block++) {
        stage_block(stage, input, start, block);
        __syncwarp();
        unsigned message[16];
#pragma unroll
        for (int i = 0; i < 16; i++) message[i] = stage[lane * STRIDE + i];
        __syncwarp();

        const int left = length - block * BLOCK;
        if (chunk >= chunks || (left <= 0 && block > 0)) continue;
        unsigned flags = block == 0 ? CHUNK_START : 0;
        if (left <= BLOCK) flags |= chunks == 1 ? CHUNK_END | ROOT : CHUNK_END;
        compress(chain, message, chunk, min(left, BLOCK), flags);
    }

    fold(shared, chain, (int)min((long long)NODES, chunks - (long long)blockIdx.x * NODES),
         gridDim.x == 1);
    write_node(nodes, chain);
}

/// out[b] = the node over nodes 256 b to 256 b + 255 of `count`, which lie at a 16-byte border.
extern "C" __global__ void __launch_bounds__(256) hash_nodes(unsigned* out, const unsigned* nodes,
                                                             int count) {
    __shared__ unsigned shared[NODES * 8];
    const int first = blockIdx.x * NODES, at = first + threadIdx.x;
    unsigned node[8] = {};
    if (at < count) {
        const uint4* const from = (const uint4*)(nodes + (long long)at * 8);
        const uint4 low = from[0], high = from[1];
        node[0] = low.x, node[1] = low.y, node[2] = low.z, node[3] = low.w;
        node[4] = high.x, node[5] = high.y, node[6] = high.z, node[7] = high.w;
    }
    fold(shared, node, min(NODES, count - first), gridDim.x == 1);
    write_node(out, node);
}
