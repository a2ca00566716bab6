// Tensor cores and copies that run beside the arithmetic. Stands between `base.cu` and the families
// that multiply matrices.
//
// A lane's place in a fragment is (`g`, `q`) = (lane / 4, lane % 4). For `mma`, in words of two
// bf16:
//   a[0] = A[g][2q..]    a[1] = A[g+8][2q..]    a[2] = A[g][2q+8..]    a[3] = A[g+8][2q+8..]
//   b0   = B[2q..][g]    b1   = B[2q+8..][g]
//   sum[0..2] = D[g][2q..2q+2]    sum[2..4] = D[g+8][2q..2q+2]
// with A of 16 x 16, B of 16 x 8 and D of 16 x 8.

#ifndef ROLLTAPE_EMULATED

/// `sum += A * B`: 16 x 16 by 16 x 8, bf16 into f32.
__device__ __forceinline__ void mma(
    float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Where in shared memory a pointer points.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

/// Four 8 x 8 matrices of bf16 from shared memory. Lane `l` gives the address of row `l % 8` of
/// matrix `l / 8`, 16 bytes at a 16-byte border; it gets `M[g][2q..]` of each.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// As `load_matrices`, each matrix transposed: a lane gets `M[2q][g]` and `M[2q+1][g]` of each.
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// Begins to copy 16 bytes to shared memory past the registers; zeros instead where not `real`,
/// whose `from` is not read. Both at 16-byte borders.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool real) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}

/// Closes a group of this thread's copies, which may be empty.
__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until all but this thread's latest `LATEST` groups have arrived. A barrier must follow
/// before other threads read them.
template <int LATEST>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}

#endif

// Operands of products stand in shared memory 32 elements of depth at a time, in rows of 64 bytes.

/// Bytes of a row, and its chunks.
#define ROW 64
#define ROW_CHUNKS (ROW / 16)

/// The place of a row's chunk. Chunks change places within a row, so that those of eight rows, as
/// `load_matrices` takes them, lie in different banks.
__device__ __forceinline__ int place_of(int row, int chunk) {
    return row * ROW + (chunk ^ (row / 2 % ROW_CHUNKS)) * 16;
}

/// 16 rows of the left operand, from `first` on, and the lower or upper half of the depth.
__device__ __forceinline__ void load_left(
    unsigned (&a)[4], const unsigned char* rows, int first, int half) {
    int lane = threadIdx.x % WARP;
    load_matrices(a, rows + place_of(first + lane % 16, half * 2 + lane / 16));
}

/// 8 rows of the right operand, from `first` on, all of the depth: `b[0..2]` is the lower half.
__device__ __forceinline__ void load_right(
    unsigned (&b)[4], const unsigned char* rows, int first) {
    int lane = threadIdx.x % WARP;
    load_matrices(b, rows + place_of(first + lane % 8, lane / 8));
}

/// Writes two columns of a row of `[m, n]`, those of them that there are, as f32 or as bf16.
__device__ __forceinline__ void write_columns(
    void* out, int f32_out, long long row, int column, int n, float low, float high) {
    long long at = row * n + column;
    bool both = n % 2 == 0; // then every pair is whole, and at a border of its own
    if (column >= n) return;
    if (f32_out) {
        float* to = (float*)out + at;
        if (both) {
            *(float2*)to = make_float2(low, high);
        } else {
            to[0] = low;
            if (column + 1 < n) to[1] = high;
        }
    } else {
        bf16* to = (bf16*)out + at;
        if (both) {
            *(unsigned*)to = to_pair(low, high);
        } else {
            to[0] = to_bf16(low);
            if (column + 1 < n) to[1] = to_bf16(high);
        }
    }
}
