// Tests of the emulator: correct kernels give the right result under every order of threads, and
// each kind of error is reported by name. Run by `.ci/run cuda`.
#include "emulate.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

typedef unsigned short bf16;
constexpr int N = 256;
#define HEAD_DIM 64

extern "C" {
__global__ void reverse(float *x) {
  __shared__ float tile[N];
  tile[threadIdx.x] = x[blockIdx.x * N + threadIdx.x];
  __syncthreads();
  x[blockIdx.x * N + threadIdx.x] = tile[N - 1 - threadIdx.x];
}

__global__ void forgets_barrier(float *x) {
  __shared__ float tile[N];
  tile[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

// The second write may come before all have read.
__global__ void forgets_second_barrier(float *x) {
  __shared__ float tile[N];
  for (int i = 0; i < 2; i++) {
    tile[threadIdx.x] = x[threadIdx.x] + i;
    __syncthreads();
    x[threadIdx.x] = tile[N - 1 - threadIdx.x];
  }
}

__global__ void warp_of_barriers(float *x) {
  __shared__ float tile[N];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  x[threadIdx.x] = tile[threadIdx.x ^ 31];
}

__global__ void shuffles_for_barriers(float *x) {
  __shared__ float tile[N];
  tile[threadIdx.x] = x[threadIdx.x];
  float other = __shfl_xor_sync(0xffffffff, x[threadIdx.x], 1);
  x[threadIdx.x] = tile[threadIdx.x ^ 1] + other;
}

__global__ void part_at_barrier(float *x) {
  if (threadIdx.x < 40) __syncthreads();
  if (threadIdx.x == 50) __shfl_sync(0xffffffff, x[0], 0);
}

__global__ void divergent(float *x) {
  if (threadIdx.x % 2)
    x[threadIdx.x] = __shfl_xor_sync(0xffffffff, 1.0f, 1);
  else
    __syncwarp();
}

__global__ void reads_past(float *x) { x[threadIdx.x] = x[threadIdx.x + N]; }

__global__ void writes_past_shared(float *x) {
  float *tile = (float *)rolltape_dynamic_shared();
  tile[threadIdx.x] = x[threadIdx.x];
}

__global__ void misaligned(float *x) {
  float4 v = *(float4 *)(x + 1);
  if (threadIdx.x == 0) x[0] = v.x;
}

__global__ void past_its_array(float *x) {
  float local[4] = {1, 2, 3, 4};
  x[threadIdx.x] = local[threadIdx.x];
}

__global__ void blocks_meet(float *x) {
  if (threadIdx.x == 0) x[blockIdx.x == 0 ? 0 : 1] = x[blockIdx.x == 0 ? 1 : 0] + 1;
}

// The last block to arrive adds up what all blocks have written.
__global__ void last_block(float *x, float *partial, unsigned *done) {
  __shared__ int last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    last = atomicAdd(done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; i++) sum += partial[i];
  x[0] = sum;
}

__global__ void copies(float *x, int wait) {
  __shared__ __align__(16) float tile[2][N];
  int at = threadIdx.x * 4;
  for (int stage = 0; stage < 2; stage++) {
    if (threadIdx.x < N / 4) emulate::async_copy(&tile[stage][at], x + stage * N + at, 16, 16);
    emulate::async_commit();
  }
  if (wait) emulate::async_wait(1);
  __syncthreads();
  float first = tile[0][N - 1 - threadIdx.x];
  emulate::async_wait(0);
  __syncthreads();
  x[threadIdx.x] = first;
  x[N + threadIdx.x] = tile[1][N - 1 - threadIdx.x];
}

// Reverses what the kernel in front left. A constant is read before the wait.
__global__ void follows(float *x, const float *constant) {
  float added = constant[threadIdx.x];
  emulate::wait_for_predecessor();
  emulate::let_successor_begin();
  __shared__ float tile[N];
  tile[threadIdx.x] = x[threadIdx.x] + added;
  __syncthreads();
  x[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

__global__ void reads_early(float *x) {
  float early = x[threadIdx.x];
  emulate::wait_for_predecessor();
  x[threadIdx.x] = early;
}

// The wait of one thread is none of another.
__global__ void waits_in_part(float *x) {
  if (threadIdx.x < 32) emulate::wait_for_predecessor();
  x[threadIdx.x] += 1;
  emulate::wait_for_predecessor();
}

__global__ void writes_early(float *x) {
  x[threadIdx.x] = 1;
  emulate::wait_for_predecessor();
}

__global__ void counts_early(float *x) {
  if (threadIdx.x == 0) atomicAdd((unsigned *)x, 1u);
  emulate::wait_for_predecessor();
}

__global__ void copies_early(float *x) {
  __shared__ __align__(16) float tile[N];
  if (threadIdx.x < N / 4) emulate::async_copy(&tile[threadIdx.x * 4], x + threadIdx.x * 4, 16, 16);
  emulate::async_commit();
  emulate::wait_for_predecessor();
  emulate::async_wait(0);
}

__global__ void never_waits(float *x) {
  if (threadIdx.x < 32) emulate::wait_for_predecessor();
}

__global__ void triggers_before_it_waits(float *x) {
  emulate::let_successor_begin();
  emulate::wait_for_predecessor();
}

__global__ void shuffles_with_all(float *x) { x[threadIdx.x] = __shfl_sync(~0u, 1.0f, 0); }

// What a block finds in shared memory is not what the block before it left there.
__global__ void reads_unwritten(unsigned short *found) {
  auto shared = (unsigned short *)rolltape_dynamic_shared();
  found[blockIdx.x * N + threadIdx.x] = shared[threadIdx.x];
  shared[threadIdx.x] = 1;
}

__global__ void notes_turns(unsigned *turns, unsigned *count) {
  turns[threadIdx.x] = atomicAdd(count, 1u);
}

// The second thread writes all of its stack.
__global__ void fills_its_stack() {
  auto here = (volatile char *)__builtin_frame_address(0);
  for (int below = 256; threadIdx.x == 1 && below < 128 << 10; below++) here[-below] = 0;
}

// Rows of A and columns of B are loaded by ldmatrix, as in a real product.
__global__ void multiplies(float *d, const bf16 *a, const bf16 *b) {
  __shared__ __align__(16) bf16 tile_a[16 * 16];
  __shared__ __align__(16) bf16 tile_b[8 * 16], tile_bt[16 * 8];
  for (int i = threadIdx.x; i < 256; i += 32) tile_a[i] = a[i];
  for (int i = threadIdx.x; i < 128; i += 32) {
    tile_b[i] = b[i];
    tile_bt[i % 16 * 8 + i / 16] = b[i];
  }
  __syncwarp();
  unsigned ra[4], rb[2], rt[2];
  int lane = threadIdx.x;
  emulate::ldmatrix<4>(ra, &tile_a[(lane % 16) * 16 + lane / 16 * 8]);
  emulate::ldmatrix<2>(rb, &tile_b[(lane % 8) * 16 + lane / 8 % 2 * 8]);
  emulate::ldmatrix<2>(rt, &tile_bt[(lane % 16) * 8], true);
  if (rb[0] != rt[0] || rb[1] != rt[1]) __trap();
  float c[4] = {1, 1, 1, 1};
  emulate::mma_m16n8k16(c, ra, rb, c);
  for (int i = 0; i < 4; i++)
    d[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = c[i];
}
}

static int failures = 0;

static void expect(const char *what, const char *got, const char *wanted) {
  std::string text = got ? got : "no error";
  if (wanted ? got && text.find(wanted) != std::string::npos : !got) return;
  printf("%s: wanted '%s', got '%s'\n", what, wanted ? wanted : "no error", text.c_str());
  failures++;
}
static void require(const char *what, bool holds) {
  if (holds) return;
  printf("%s does not hold\n", what);
  failures++;
}

#include "test_warpgroup.h"

static char *arena;
static bool live(uintptr_t address, size_t bytes) {
  uintptr_t begin = (uintptr_t)arena + 4096;
  return address >= begin && address + bytes <= begin + 2 * N * sizeof(float);
}
static float *device() { return (float *)(arena + 4096); }

static void check_right_kernels() {
  float *x = device();
  for (int i = 0; i < 2 * N; i++) x[i] = (float)i;
  expect("reverse", emulate::launch<reverse>("reverse", {2, 1, 1}, {N, 1, 1}, 0, x), nullptr);
  require("reversed", x[0] == N - 1 && x[N] == 2 * N - 1);
  expect("warp", emulate::launch<warp_of_barriers>("warp", {1, 1, 1}, {N, 1, 1}, 0, x), nullptr);
  for (int i = 0; i < 2 * N; i++) x[i] = (float)i;
  expect("copies", emulate::launch<copies>("copies", {1, 1, 1}, {N, 1, 1}, 0, x, 1), nullptr);
  require("copied", x[0] == N - 1 && x[2 * N - 1] == N);
  for (int i = 0; i < N; i++) x[i] = 2;
  unsigned *done = (unsigned *)(x + N);
  *done = 0;
  expect("last", emulate::launch<last_block>("last", {9, 1, 1}, {64, 1, 1}, 0, x, x + 64, done),
         nullptr);
  require("sum of blocks", x[0] == 18);
}

static void check_product() {
  bf16 *a = (bf16 *)device(), *b = a + 256;
  float *d = (float *)(b + 128);
  auto whole = [](int i) { return (bf16)(emulate::bits<unsigned>((float)(i % 17 - 8)) >> 16); };
  for (int i = 0; i < 384; i++) a[i] = whole(i * 7);
  expect("product", emulate::launch<multiplies>("multiplies", {1, 1, 1}, {32, 1, 1}, 0, d, a, b),
         nullptr);
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 8; column++) {
      float sum = 1;
      for (int k = 0; k < 16; k++)
        sum += emulate::widen(a[row * 16 + k]) * emulate::widen(b[column * 16 + k]);
      require("product", d[row * 8 + column] == sum);
    }
}

static void check_order(unsigned seed) {
  auto found = (unsigned short *)device();
  expect("unwritten",
         emulate::launch<reads_unwritten>("unwritten", {2, 1, 1}, {N, 1, 1}, 2 * N, found),
         nullptr);
  for (int i = 0; i < 2 * N; i++) require("shared memory is poison", found[i] == 0x7fff);

  auto turns = (unsigned *)device();
  turns[N] = 0;
  expect("turns", emulate::launch<notes_turns>("turns", {1, 1, 1}, {N, 1, 1}, 0, turns, turns + N),
         nullptr);
  std::vector<bool> seen(N);
  bool in_order = true;
  for (unsigned i = 0; i < N; i++) {
    require("each thread has a turn", turns[i] < N && !seen[turns[i]]);
    seen[turns[i] % N] = true;
    in_order &= turns[i] == i;
  }
  require("the seed shuffles threads", in_order == (seed == 0));
}

#define WRONG(kernel, grid, wanted, ...) \
  expect(#kernel, emulate::launch<kernel>(#kernel, {grid, 1, 1}, {N, 1, 1}, __VA_ARGS__), wanted)

static void check_wrong_kernels() {
  float *x = device();
  WRONG(forgets_barrier, 1, "no barrier lies in between", 0, x);
  WRONG(forgets_second_barrier, 1, "no barrier lies in between", 0, x);
  WRONG(shuffles_for_barriers, 1, "no barrier lies in between", 0, x);
  WRONG(part_at_barrier, 1, "waits in __shfl_sync", 0, x);
  WRONG(divergent, 1, "meets", 0, x);
  WRONG(reads_past, 1, nullptr, 0, x);
  WRONG(reads_past, 1, "outside of every allocation", 0, x + N);
  WRONG(writes_past_shared, 1, "of dynamic shared memory", 1020, x);
  WRONG(writes_past_shared, 1, nullptr, 1024, x);
  WRONG(misaligned, 1, "not aligned", 0, x);
  WRONG(past_its_array, 1, "outside of its array", 0, x);
  WRONG(blocks_meet, 2, "also touched by block", 0, x);
  WRONG(copies, 1, "no barrier lies in between", 0, x, 0);
  WRONG(reverse, 1, "read at", 0, (float *)nullptr);
  expect("20 threads",
         emulate::launch<shuffles_with_all>("20 threads", {1, 1, 1}, {20, 1, 1}, 0, x),
         "waits for lane 20, which the block does not have");
  expect("stack", emulate::launch<fills_its_stack>("stack", {1, 1, 1}, {2, 1, 1}, 0),
         "stack is too small");
}

#define FOLLOWED(wanted, kernel, ...)                                                         \
  do {                                                                                      \
    expect("in front of " #kernel,                                                          \
           emulate::launch<follows>("follows", {1, 1, 1}, {N, 1, 1}, 0, x, x + N), nullptr);  \
    expect(#kernel, emulate::launch_early<kernel>(#kernel, {2, 1, 1}, {N, 1, 1},             \
                                                  emulate::latest_blocks(), __VA_ARGS__),   \
           wanted);                                                                         \
  } while (0)

static void check_early_launches() {
  float *x = device();
  for (int i = 0; i < 2 * N; i++) x[i] = i < N ? (float)i : 1;
  emulate::Blocks front = {0, 0};
  for (int i = 0; i < 3; i++) {
    expect("follows",
           emulate::launch_early<follows>("follows", {1, 1, 1}, {N, 1, 1}, front, x, x + N),
           nullptr);
    front = emulate::latest_blocks();
  }
  require("reversed three times", x[0] == N + 2 && x[N - 1] == 3);
  const char *early = "before the wait of an early launch";
  FOLLOWED("block 0 of the kernel in front wrote it", reads_early, x);
  FOLLOWED(early, waits_in_part, x);
  FOLLOWED("write to device memory", writes_early, x + N);
  FOLLOWED("write to device memory", counts_early, x + N);
  FOLLOWED(early, copies_early, x);
  FOLLOWED("ends without the wait of an early launch", never_waits, x);
  FOLLOWED("lets the next kernel begin before the wait", triggers_before_it_waits, x);
  // The launch before the last one is over, and so is everything if something lies in between.
  FOLLOWED(nullptr, copies_early, x + N);
  expect("two in front", emulate::launch<copies_early>("x", {1, 1, 1}, {N, 1, 1}, 0, x), nullptr);
  expect("the next",
         emulate::launch_early<copies_early>("y", {1, 1, 1}, {N, 1, 1}, emulate::latest_blocks(),
                                             x),
         nullptr);
  WRONG(follows, 1, nullptr, 0, x, x + N);
  expect("behind a copy",
         emulate::launch_early<copies_early>("y", {1, 1, 1}, {N, 1, 1}, {0, 0}, x), nullptr);
  // An ordinary launch has nothing to wait for.
  WRONG(triggers_before_it_waits, 1, nullptr, 0, x);
  WRONG(writes_early, 1, nullptr, 0, x);
}

int main() {
  arena = (char *)aligned_alloc(4096, 1 << 16);
  emulate::set_arena({(uintptr_t)arena, (uintptr_t)arena + (1 << 16), live});
  for (unsigned seed = 0; seed < 20; seed++) {
    emulate::set_seed(seed);
    check_right_kernels();
    check_order(seed);
    check_product();
    check_wrong_kernels();
    check_early_launches();
    check_warpgroups();
  }
  printf(failures ? "%d failures\n" : "the emulator is right\n", failures);
  return failures ? 1 : 0;
}
