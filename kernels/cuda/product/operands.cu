// The operands of a product of matrices. Stands behind `mma.cu` in the families of products.

/// out = x . w^T: w `[n, k]`, out `[m, n]`, f32 if `f32_out`, else bf16. x and w at 16-byte
/// borders; k is a multiple of 8, m and n are what they are.
struct Product {
    void* out;
    const bf16* x;
    const bf16* w;
    /// The row of x for each of the m rows; null for the rows 0 to m.
    const int* rows;
    int m, n, k, f32_out;

    /// Where a row of x begins; any address past the last one.
    __device__ __forceinline__ const bf16* row(int row) const {
        if (rows && row < m) row = rows[row];
        return x + (long long)row * k;
    }
};
