// The operands of a product of matrices, and its result. Stands behind `mma.cu` and `gate.cu` in
// the families of products.

/// out = x . w^T: w `[n, k]`, out `[m, n]`, f32 if `f32_out`, else bf16. x and w at 16-byte
/// borders; k is a multiple of 8, m and n are what they are.
///
/// A gated product has the gate in the upper half of the rows of w and the up projection in the
/// lower one; out `[m, n / 2]` is bf16, with the bits that `silu_mul` makes of the product.
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

/// Writes two columns of a row, from the even `column` on: those of them that there are. Of a gated
/// product they are the gate and the up projection of the column `column / 2` of the result.
template <bool GATED>
__device__ __forceinline__ void write_sums(
    const Product& product, int row, int column, float low, float high) {
    if constexpr (GATED) {
        int to = column / 2, width = product.n / 2;
        if (to >= width) return;
        // Rounded, as `silu_mul` reads them.
        float value = gated(to_float(to_bf16(low)), to_float(to_bf16(high)));
        ((bf16*)product.out)[(long long)row * width + to] = to_bf16(value);
    } else {
        write_columns(product.out, product.f32_out, row, column, product.n, low, high);
    }
}
