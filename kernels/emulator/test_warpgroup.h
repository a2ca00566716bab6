// Tests of products of warpgroups: right ones, and each mistake. Part of test.cc.
#pragma once

#include "base.cu"
#include "warpgroup.cu"

// One mistake each. The last ones give wrong numbers, as on a device.
enum Mistake {
  NONE, NO_SHOW, SHOWS_EARLY, NO_BARRIER, NO_BEGIN, NO_BEGIN_AGAIN, READS_SUM, WAITS_FOR_ONE,
  WRITES_SUM, WRITES_OPERAND, CHANGES_LEFT, NO_WAIT, ONE_WARP_MORE, NO_SWIZZLE, OUTSIDE,
  PLACES, ATOMS, STEPS_OF_DEPTH, COLUMNS
};

constexpr int SIDE = 64;                      // rows, columns and depth
constexpr int PANEL = SIDE * PANEL_ROW;       // bytes

// d = a b^T, then e = d b, of whole numbers that bf16 has.
extern "C" __global__ void products(float *d, float *e, const bf16 *a, const bf16 *b, int mistake) {
  auto shared = (unsigned char *)rolltape_dynamic_shared();
  if (mistake == SHOWS_EARLY) show_async();
  for (int i = threadIdx.x; i < 2 * SIDE * SIDE / 8; i += 128) {
    int row = i / 8, chunk = i % 8;
    const bf16 *from = (row < SIDE ? a + row * SIDE : b + (row - SIDE) * SIDE) + chunk * 8;
    int place = mistake == PLACES ? row * PANEL_ROW + chunk * 16 : panel_place(row, chunk);
    store_pack((bf16 *)(shared + place), load_pack(from));
  }
  if (mistake != NO_SHOW && mistake != SHOWS_EARLY) show_async();
  if (mistake != NO_BARRIER) __syncthreads();

  float sums[SIDE / 8][4];
  unsigned at = shared_address(shared) + (mistake == OUTSIDE ? 220 << 10 : 0);
  if (mistake != NO_BEGIN) begin_products();
  for (int step = 0; step < 4; step++) {
    int within = step * (mistake == STEPS_OF_DEPTH ? 16 : 32);
    u64 left = describe(at + within, PANEL), right = describe(at + PANEL + within, PANEL);
    if (mistake == NO_SWIZZLE) left &= ~SWIZZLE_128;
    if (mistake == ATOMS) left ^= 3ull << 36;
    step ? product<8, true>(sums, left, right) : product<8, false>(sums, left, right);
  }
  commit_products();
  if (mistake == WRITES_OPERAND && threadIdx.x == 5) *(bf16 *)(shared + PANEL + 64) = 0;
  if (mistake == READS_SUM && threadIdx.x == 77) d[0] = sums[1][2];
  if (mistake == WRITES_SUM && threadIdx.x == 77) sums[7][3] = 1;
  if (mistake == NO_WAIT) return;
  wait_products<0>();
  unsigned weights[SIDE / 16][4];
  int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int n = 0; n < SIDE / 8; n++)
    for (int half = 0; half < 2; half++) {
      float low = sums[n][half * 2], high = sums[n][half * 2 + 1];
      *(float2 *)(d + (row + half * 8) * SIDE + n * 8 + column) = make_float2(low, high);
      weights[n / 2][n % 2 * 2 + half] = to_pair(low, high);
    }

  float results[SIDE / 8][4] = {};
  if (mistake != NO_BEGIN_AGAIN) begin_products();
  for (int step = 0; step < 4; step++) {
    int depth = step * PRODUCT_DEPTH * (mistake == COLUMNS ? 64 : PANEL_ROW);
    add_product<8>(results, weights[step], describe(at + PANEL + depth, PANEL));
    if (mistake == WAITS_FOR_ONE) commit_products();
  }
  if (mistake == ONE_WARP_MORE && threadIdx.x / 32 == 2)
    add_product<8>(results, weights[0], describe(at + PANEL, PANEL));
  commit_products();
  if (mistake == CHANGES_LEFT && threadIdx.x == 40) weights[3][1] ^= 1;
  if (mistake == WAITS_FOR_ONE) {
    wait_products<2>();
  } else {
    wait_products<0>();
  }
  for (int n = 0; n < SIDE / 8; n++)
    for (int i = 0; i < 4; i++)
      e[(row + i / 2 * 8) * SIDE + n * 8 + column + i % 2] = results[n][i];
}

// The error, or "wrong numbers".
static const char *multiply_wrongly(Mistake mistake, unsigned threads = 128) {
  std::vector<bf16> a(SIDE * SIDE), b(SIDE * SIDE);
  std::vector<float> d(SIDE * SIDE, -1), e(SIDE * SIDE, -1);
  auto whole = [](int i) { return to_bf16((float)(i * i % 11 % 3 - 1)); };
  for (int i = 0; i < SIDE * SIDE; i++) a[i] = whole(i * 7 + i / 64), b[i] = whole(i * 5 + i / 50);
  const char *error =
      emulate::launch<products>("products", {1, 1, 1}, {threads, 1, 1}, 2 * PANEL, d.data(),
                                e.data(), a.data(), b.data(), (int)mistake);
  if (error) return error;
  for (int row = 0; row < SIDE; row++)
    for (int column = 0; column < SIDE; column++) {
      float sum = 0, next = 0;
      for (int k = 0; k < SIDE; k++)
        sum += to_float(a[row * SIDE + k]) * to_float(b[column * SIDE + k]),
            next += d[row * SIDE + k] * to_float(b[k * SIDE + column]);
      if (d[row * SIDE + column] != sum || e[row * SIDE + column] != next) return "wrong numbers";
    }
  return nullptr;
}

static void check_warpgroups() {
  expect("products of a warpgroup", multiply_wrongly(NONE), nullptr);
  const std::pair<Mistake, const char *> wrong[] = {
      {NO_SHOW, "without fence.proxy.async"},
      {SHOWS_EARLY, "without fence.proxy.async"},
      {NO_BARRIER, "no barrier lies in between"},
      {NO_BEGIN, "without wgmma.fence"},
      {NO_BEGIN_AGAIN, "without wgmma.fence"},
      {READS_SUM, "read of a sum of a product of a warpgroup before the wait"},
      {WAITS_FOR_ONE, "read of a sum of a product of a warpgroup before the wait"},
      {WRITES_SUM, "write of a sum of a product of a warpgroup before the wait"},
      {WRITES_OPERAND, "which a product of a warpgroup still reads"},
      {CHANGES_LEFT, "was changed before the wait"},
      {NO_WAIT, "products of a warpgroup under way"},
      {ONE_WARP_MORE, "have issued different products"},
      {NO_SWIZZLE, "which alone is emulated"},
      {OUTSIDE, "outside of dynamic shared memory"},
      {PLACES, "wrong numbers"},
      {ATOMS, "wrong numbers"},
      {STEPS_OF_DEPTH, "wrong numbers"},
      {COLUMNS, "wrong numbers"},
  };
  for (auto &[mistake, wanted] : wrong) expect(wanted, multiply_wrongly(mistake), wanted);
  expect("half a warpgroup", multiply_wrongly(NONE, 64), "in a block of 64 threads");
}
