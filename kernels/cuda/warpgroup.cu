// Products of warpgroups, four warps each, by the tensor cores of compute capability 9.0 (sm_90a):
// 64 rows, operands in shared memory, sums that are not there before a wait.
//
// Operands stand in panels: rows of 64 bf16 (128 bytes), of which eight are an atom of 1,024 bytes
// at a border of as many. The 16-byte chunks of row `r` of an atom change places by `^ r`: the
// swizzle of 128 bytes, which the hardware undoes by the bits of the address. A descriptor says
// where an operand begins and how far its atoms are apart:
//
//   bits 0-13   address / 16
//   bits 16-29  stride from panel to panel / 16, where the depth runs from row to row
//   bits 32-45  stride from atom to atom / 16
//   bits 49-51  0, as atoms stand at borders of their size
//   bits 62-63  1: swizzle of 128 bytes
//
// Order, as PTX wants it. Whoever writes an operand calls `show_async` behind its writes and in
// front of a barrier, because products read memory by another way than threads do (the async
// proxy). `begin_products` comes between the last access to registers of sums and of left operands,
// and the products. Until `wait_products` nobody touches these registers, or writes the operands.
// The emulator names each of these that is missing.

/// Bytes of a row of a panel, of an atom, and its rows.
#define PANEL_ROW 128
#define ATOM_ROWS 8
#define ATOM_BYTES (ATOM_ROWS * PANEL_ROW)
/// Elements of a row of a panel, and of the depth of a product.
#define PANEL_WIDTH 64
#define PRODUCT_DEPTH 16
#define SWIZZLE_128 (1ull << 62)

/// The place of a chunk in a panel.
__device__ __forceinline__ int panel_place(int row, int chunk) {
    return row * PANEL_ROW + (chunk ^ (row % ATOM_ROWS)) * 16;
}

/// Describes an operand that begins at an address of shared memory. `panel_bytes` are from panel to
/// panel.
__device__ __forceinline__ u64 describe(unsigned address, unsigned panel_bytes) {
    return SWIZZLE_128 | (u64)(ATOM_BYTES >> 4) << 32 | (u64)(panel_bytes >> 4) << 16 |
           (address & 0x3ffff) >> 4;
}

#ifndef ROLLTAPE_EMULATED

/// Lets products read what this thread has written to shared memory. A barrier must follow.
__device__ __forceinline__ void show_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Comes between the last access to registers of products and the products.
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes a group of products.
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Keeps the compiler from using sums before the wait in front, or changing them behind.
template <int N>
__device__ __forceinline__ void settle(float (&sums)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(sums[n][i])::"memory");
    }
}

/// Waits until all but the latest `LATEST` groups are done. `settle` must follow.
template <int LATEST>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATEST) : "memory");
}

// The registers of 8, 16 and 32 times 8 columns, by name and as operands.
#define NAMES_8                                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "  \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_16                                                                             \
    NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "  \
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_32                                                                             \
    NAMES_16 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "  \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "   \
    "%125, %126, %127"
#define SUM_1(s, n) "+f"(s[n][0]), "+f"(s[n][1]), "+f"(s[n][2]), "+f"(s[n][3])
#define SUM_4(s, n) SUM_1(s, n), SUM_1(s, n + 1), SUM_1(s, n + 2), SUM_1(s, n + 3)
#define SUM_8(s, n) SUM_4(s, n), SUM_4(s, n + 4)
#define SUM_16(s, n) SUM_8(s, n), SUM_8(s, n + 8)
#define SUM_32(s, n) SUM_16(s, n), SUM_16(s, n + 16)

/// `sums = A * B`, or `sums += A * B` where `ADDS`, for `N` times 8 columns: A of 64 rows and B of
/// one row a column, both with the depth along their rows. A lane of warp `w` has of `sums[n]` the
/// rows 16 w + lane / 4 and the eighth behind it, of each two columns from 8 n + lane % 4 * 2 on.
template <int N, bool ADDS>
__device__ __forceinline__ void product(float (&sums)[N][4], u64 a, u64 b) {
    static_assert(N == 8 || N == 16, "columns that are in use");
    if constexpr (N == 8) {
        asm volatile(
            "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_8 "}, "
            "%32, %33, adds, 1, 1, 0, 0;\n}"
            : SUM_8(sums, 0)
            : "l"(a), "l"(b), "n"((int)ADDS));
    } else {
        asm volatile(
            "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_16 "}, "
            "%64, %65, adds, 1, 1, 0, 0;\n}"
            : SUM_16(sums, 0)
            : "l"(a), "l"(b), "n"((int)ADDS));
    }
}

/// `sums += A * B` for `N` times 8 columns: the 16 rows of A of a warp as fragments of `mma`, and B
/// with the columns along its rows, in panels, and the depth from row to row.
template <int N>
__device__ __forceinline__ void add_product(float (&sums)[N][4], const unsigned (&a)[4], u64 b) {
    static_assert(N == 8 || N == 16 || N == 32, "columns that are in use");
    if constexpr (N == 8) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_8 "}, "
            "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
            : SUM_8(sums, 0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    } else if constexpr (N == 16) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_16 "}, "
            "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
            : SUM_16(sums, 0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    } else {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NAMES_32 "}, "
            "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
            : SUM_32(sums, 0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
}

#endif
