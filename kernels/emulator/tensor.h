// Tensor core products, ldmatrix, cp.async and products of warpgroups: what the kernels' PTX does,
// with the layouts of the PTX manual. Included by emulate.h.
#pragma once

namespace emulate {

inline float widen(unsigned bits) { return __uint_as_float(bits << 16); }

struct Mma {
  float *d;
  const unsigned *a, *b;
  const float *c;
};

// D = A B + C of one warp, A 16x16 by rows, B 16x8 by columns, all sums of 16 products rounded
// once. With g = lane / 4 and t = lane % 4, register r of A holds row g + 8 (r % 2), columns
// 2 t + 8 (r / 2) and the next; register r of B rows 2 t + 8 r and the next of column g; d[i] is
// row g + 8 (i / 2), column 2 t + i % 2.
ROLLTAPE_UNWATCHED inline void mma_all(unsigned, Mma **all) {
  float a[16][16], b[8][16], c[16][8];
  for (int lane = 0; lane < 32; lane++) {
    int g = lane / 4, t = lane % 4;
    const Mma &mma = *all[lane];
    for (int r = 0; r < 4; r++)
      for (int half = 0; half < 2; half++)
        a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + half] = widen(mma.a[r] >> (16 * half) & 0xffff);
    for (int r = 0; r < 2; r++)
      for (int half = 0; half < 2; half++)
        b[g][2 * t + 8 * r + half] = widen(mma.b[r] >> (16 * half) & 0xffff);
    for (int i = 0; i < 4; i++) c[g + 8 * (i / 2)][2 * t + i % 2] = mma.c[i];
  }
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 8; column++) {
      double sum = c[row][column];
      for (int k = 0; k < 16; k++) sum += (double)a[row][k] * b[column][k];
      c[row][column] = (float)sum;
    }
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++)
      all[lane]->d[i] = c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
}

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32; `d` may be `c`.
inline void mma_m16n8k16(float *d, const unsigned *a, const unsigned *b, const float *c) {
  Mma mine{d, a, b, c};
  meet(MMA, 0xffffffff, mine, [](unsigned mask, Mma **all) { mma_all(mask, all); });
}

struct Ldmatrix {
  unsigned *out;
  const void *row;
  int matrices;
  bool transposed;
};

ROLLTAPE_UNWATCHED inline void ldmatrix_all(unsigned, Ldmatrix **all) {
  int matrices = all[0]->matrices;
  for (int matrix = 0; matrix < matrices; matrix++) {
    unsigned short values[8][8];
    for (int row = 0; row < 8; row++) memcpy(values[row], all[matrix * 8 + row]->row, 16);
    for (int lane = 0; lane < 32; lane++) {
      int g = lane / 4, t = lane % 4;
      bool across = all[lane]->transposed;
      unsigned low = across ? values[2 * t][g] : values[g][2 * t];
      unsigned high = across ? values[2 * t + 1][g] : values[g][2 * t + 1];
      all[lane]->out[matrix] = low | high << 16;
    }
  }
}

// ldmatrix.sync.aligned.m8n8.xN(.trans).shared.b16 with N of 1, 2 or 4: lane i of the first 8 N
// gives the address of row i % 8 of matrix i / 8.
template <int N> inline void ldmatrix(unsigned *out, const void *row, bool transposed = false) {
  static_assert(N == 1 || N == 2 || N == 4, "one, two or four matrices");
  if (lane() < 8 * N) {
    if (!is_shared(row)) fail("ldmatrix of %p, which is not shared memory", row);
    note_read(row, 16);
  }
  Ldmatrix mine{out, row, N, transposed};
  meet(LDMATRIX, 0xffffffff, mine,
       [](unsigned mask, Ldmatrix **all) { ldmatrix_all(mask, all); });
}

} // namespace emulate

// ---- the functions of mma.cu ----
inline void mma(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  unsigned b[2] = {b0, b1};
  emulate::mma_m16n8k16(sum, a, b, sum);
}
inline void load_matrices(unsigned (&to)[4], const void *row) { emulate::ldmatrix<4>(to, row); }
inline void load_transposed(unsigned (&to)[4], const void *row) {
  emulate::ldmatrix<4>(to, row, true);
}
inline void copy_async(void *to, const void *from, bool real) {
  emulate::async_copy(to, from, 16, real ? 16 : 0);
}
inline void copy_commit() { emulate::async_commit(); }
template <int LATEST> inline void copy_wait() { emulate::async_wait(LATEST); }

// ---- the functions of warpgroup.cu ----
inline unsigned shared_address(const void *pointer) { return emulate::shared_address(pointer); }
inline void show_async() { emulate::show_async(); }
inline void begin_products() { emulate::begin_products(); }
inline void commit_products() { emulate::commit_products(); }
template <int N> inline void settle(float (&)[N][4]) {}
template <int LATEST> inline void wait_products() { emulate::wait_products(LATEST); }
template <int N, bool ADDS> inline void product(float (&sums)[N][4], uint64_t a, uint64_t b) {
  emulate::warpgroup_product({sums[0], N * 8, nullptr, a, b, ADDS, false});
}
template <int N>
inline void add_product(float (&sums)[N][4], const unsigned (&a)[4], uint64_t b) {
  emulate::warpgroup_product({sums[0], N * 8, a, 0, b, true, true});
}
