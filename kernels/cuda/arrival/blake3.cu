// The compression of BLAKE3 (github.com/BLAKE3-team/BLAKE3-specs), in registers.

/// Bytes of a chunk, and of a block of it.
#define CHUNK 1024
#define BLOCK 64

/// What a block is.
#define CHUNK_START 1u
#define CHUNK_END 2u
#define PARENT 4u
#define ROOT 8u

/// The chain before the first block of a chunk, and that of every parent.
__device__ __forceinline__ void begin_chain(unsigned (&chain)[8]) {
    chain[0] = 0x6a09e667u, chain[1] = 0xbb67ae85u, chain[2] = 0x3c6ef372u, chain[3] = 0xa54ff53au;
    chain[4] = 0x510e527fu, chain[5] = 0x9b05688cu, chain[6] = 0x1f83d9abu, chain[7] = 0x5be0cd19u;
}

__device__ __forceinline__ unsigned rotated(unsigned word, int right) {
    return __funnelshift_r(word, word, right);
}

/// Mixes two words of a message into a column or a diagonal.
__device__ __forceinline__ void mix(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned x,
                                    unsigned y) {
    a += b + x;
    d = rotated(d ^ a, 16);
    c += d;
    b = rotated(b ^ c, 12);
    a += b + y;
    d = rotated(d ^ a, 8);
    c += d;
    b = rotated(b ^ c, 7);
}

/// Brings the words of a message into the order of the next round.
__device__ __forceinline__ void permute(unsigned (&m)[16]) {
    const unsigned next[16] = {m[2], m[6],  m[3],  m[10], m[7], m[0],  m[4],  m[13],
                               m[1], m[11], m[12], m[5],  m[9], m[14], m[15], m[8]};
#pragma unroll
    for (int i = 0; i < 16; i++) m[i] = next[i];
}

/// Compresses a block of `bytes` bytes into the chain. The message is lost.
__device__ __forceinline__ void compress(unsigned (&chain)[8], unsigned (&m)[16], u64 counter,
                                         unsigned bytes, unsigned flags) {
    unsigned v[16] = {
        chain[0],    chain[1],    chain[2],    chain[3],
        chain[4],    chain[5],    chain[6],    chain[7],
        0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
        (unsigned)counter, (unsigned)(counter >> 32), bytes, flags};
#pragma unroll
    for (int round = 0; round < 7; round++) {
        mix(v[0], v[4], v[8], v[12], m[0], m[1]);
        mix(v[1], v[5], v[9], v[13], m[2], m[3]);
        mix(v[2], v[6], v[10], v[14], m[4], m[5]);
        mix(v[3], v[7], v[11], v[15], m[6], m[7]);
        mix(v[0], v[5], v[10], v[15], m[8], m[9]);
        mix(v[1], v[6], v[11], v[12], m[10], m[11]);
        mix(v[2], v[7], v[8], v[13], m[12], m[13]);
        mix(v[3], v[4], v[9], v[14], m[14], m[15]);
        permute(m);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) chain[i] = v[i] ^ v[i + 8];
}
