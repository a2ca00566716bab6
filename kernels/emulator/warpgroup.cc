// Products of warpgroups, as wgmma.mma_async has them: descriptors, sums that come late, and the
// fence between writes of threads and reads of products. runtime.h documents each function.
#include "warpgroup.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime.h"

namespace emulate {

long long wrong_products = 0;

namespace {

constexpr int WARP = 32, ROWS = 16, DEPTH = 16, COLUMNS_MAX = 256;
constexpr int WARPS_MAX = 32, GROUP_WARPS = 4;
// Dynamic shared memory begins behind what the system keeps for itself.
constexpr unsigned SHARED_BASE = 1024;
constexpr size_t SHARED_MAX = 232448, CHUNK = 16;
constexpr uint16_t NOBODY = 0xffff;
constexpr uint32_t POISON = 0x7fff7fff;

// The sums of a warp while products that change them are under way.
struct Sums {
  float *lanes[WARP];
  float values[COLUMNS_MAX][ROWS];
  int columns, products;
};

struct Product {
  Sums *sums;
  uint64_t b;
  bool b_by_columns;
  bool adds;
  // The left operand: where its chunks are, or the words of each lane and where they are.
  uint64_t a;
  const unsigned *fragments[WARP];
  unsigned words[WARP][4];
  std::vector<size_t> chunks;  // of shared memory that it reads, by number
};

struct Warp {
  std::vector<Product *> open;
  std::vector<std::vector<Product *>> groups;  // oldest first
  std::vector<Sums *> sums;
  bool begun;      // wgmma.fence came behind the latest wait
  uint64_t trace;  // what it has issued so far
};

struct Chunk {
  uint32_t fences;   // that its last writer had called
  uint16_t writer;
  uint16_t readers;  // products under way
};

struct State {
  Warp warps[WARPS_MAX];
  uint32_t fences[WARPS_MAX * WARP];
  std::vector<Chunk> chunks = std::vector<Chunk>(SHARED_MAX / CHUNK);
  size_t threads = 0;
  bool used = false;
};

State s;

Warp &warp_of(int thread) { return s.warps[thread / WARP]; }

// ---- descriptors ----
// The number of the chunk of 16 bytes at an address. By the swizzle of 128 bytes, the row within
// 1,024 bytes exchanges the chunks of a row.
size_t swizzled(unsigned address) {
  address ^= (address >> 7 & 7) << 4;
  if (address < SHARED_BASE || address - SHARED_BASE + CHUNK > SHARED_MAX)
    fail("a product of a warpgroup reads at %u, outside of dynamic shared memory", address);
  return (address - SHARED_BASE) / CHUNK;
}

struct Operand {
  unsigned address, panel, atom;
};

Operand operand_of(uint64_t descriptor) {
  if (descriptor >> 62 != 1)
    fail("descriptor %016llx is not of the swizzle of 128 bytes, which alone is emulated",
         (unsigned long long)descriptor);
  if (descriptor >> 49 & 7)
    fail("descriptor %016llx has a base offset, which is not emulated",
         (unsigned long long)descriptor);
  auto field = [&](int at) { return (unsigned)(descriptor >> at & 0x3fff) << 4; };
  return {field(0), field(16), field(32)};
}

// Of an operand with its depth along its rows: the chunk of a row and one half of the depth.
size_t chunk_by_rows(const Operand &o, int row, int half) {
  return swizzled(o.address + row / 8 * o.atom + row % 8 * 128 + half * 16);
}

// Of one with its columns along its rows, in panels of 64: the chunk of eight columns.
size_t chunk_by_columns(const Operand &o, int depth, int eight) {
  return swizzled(o.address + eight / 8 * o.panel + depth / 8 * o.atom + depth % 8 * 128 +
                  eight % 8 * 16);
}

float number(size_t chunk, int at) {
  uint16_t bits;
  memcpy(&bits, dynamic_shared() + chunk * CHUNK + at * 2, 2);
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

float half_of(unsigned word, int high) {
  uint32_t wide = high ? word & 0xffff0000 : word << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

// ---- a product ----
void find_chunks(Product &product, int first_row) {
  if (product.a) {
    Operand a = operand_of(product.a);
    for (int row = 0; row < ROWS; row++)
      for (int half = 0; half < 2; half++)
        product.chunks.push_back(chunk_by_rows(a, first_row + row, half));
  }
  Operand b = operand_of(product.b);
  int columns = product.sums->columns;
  if (product.b_by_columns) {
    for (int depth = 0; depth < DEPTH; depth++)
      for (int eight = 0; eight < columns / 8; eight++)
        product.chunks.push_back(chunk_by_columns(b, depth, eight));
  } else {
    for (int column = 0; column < columns; column++)
      for (int half = 0; half < 2; half++) product.chunks.push_back(chunk_by_rows(b, column, half));
  }
}

// Memory is read when a product begins, and, as it may be read until the end, again then.
void note_reads(const Product &product) {
  for (size_t chunk : product.chunks) note_read(dynamic_shared() + chunk * CHUNK, CHUNK);
}

void check_shown(const Product &product) {
  for (size_t number : product.chunks) {
    const Chunk &chunk = s.chunks[number];
    if (chunk.writer != NOBODY && s.fences[chunk.writer] == chunk.fences)
      fail("a product of a warpgroup reads what thread %d wrote at %zu of dynamic shared memory, "
           "without fence.proxy.async of that thread behind its write",
           chunk.writer, number * CHUNK);
  }
}

// All sums of 16 products are rounded once, as those of mma.sync here.
void multiply(const Product &product) {
  Sums &sums = *product.sums;
  const size_t *chunk = product.chunks.data();
  double a[DEPTH][ROWS];
  for (int row = 0; row < ROWS; row++)
    for (int k = 0; k < DEPTH; k++) {
      int lane = row % 8 * 4 + k % 8 / 2;
      a[k][row] = product.a ? number(chunk[row * 2 + k / 8], k % 8)
                            : half_of(product.words[lane][row / 8 + k / 8 * 2], k % 2);
    }
  if (product.a) chunk += ROWS * 2;
  for (int column = 0; column < sums.columns; column++) {
    float *values = sums.values[column];
    double sum[ROWS];
    for (int row = 0; row < ROWS; row++) sum[row] = product.adds ? values[row] : 0.0;
    for (int k = 0; k < DEPTH; k++) {
      double b = product.b_by_columns
                     ? number(chunk[k * (sums.columns / 8) + column / 8], column % 8)
                     : number(chunk[column * 2 + k / 8], k % 8);
      for (int row = 0; row < ROWS; row++) sum[row] += a[k][row] * b;
    }
    double off = wrong_products ? 1.0 : 0.0;
    for (int row = 0; row < ROWS; row++) values[row] = (float)(sum[row] + off);
  }
}

// Calls `at(register, value in the sums)` for all of a lane: of each eight columns, those of rows
// lane / 4 and the eighth behind it, columns lane % 4 * 2 and the next.
template <class At> void each_register(Sums &sums, int lane, At at) {
  for (int n = 0; n < sums.columns / 8; n++)
    for (int i = 0; i < 4; i++)
      at(sums.lanes[lane][n * 4 + i],
         sums.values[n * 8 + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8]);
}

// The sums that begin in these registers: those under way, or new ones, whose registers hold poison
// from now on.
Sums *sums_of(Warp &warp, WarpgroupProduct *const *all) {
  for (Sums *sums : warp.sums)
    if (sums->lanes[0] == all[0]->sum) return sums;
  Sums *sums = new Sums{};
  sums->columns = all[0]->columns;
  for (int lane = 0; lane < WARP; lane++) {
    sums->lanes[lane] = all[lane]->sum;
    each_register(*sums, lane, [](float &own, float &value) {
      value = own;
      memcpy(&own, &POISON, 4);
    });
  }
  warp.sums.push_back(sums);
  return sums;
}

void issue(int thread, WarpgroupProduct *const *all) {
  Warp &warp = warp_of(thread);
  const WarpgroupProduct &first = *all[0];
  for (int lane = 1; lane < WARP; lane++)
    if (all[lane]->a != first.a || all[lane]->b != first.b)
      fail("lane %d has other descriptors for a product of a warpgroup", lane);
  if (s.threads % (GROUP_WARPS * WARP))
    fail("a product of a warpgroup in a block of %zu threads", s.threads);
  if (!warp.begun) fail("a product of a warpgroup without wgmma.fence behind the latest wait");
  s.used = true;
  for (uint64_t part : {first.a, first.b, (uint64_t)first.columns * 4 + first.adds * 2 +
                                             first.b_by_columns})
    warp.trace = (warp.trace ^ part) * 0x9e3779b97f4a7c15;

  auto *product = new Product{};
  product->sums = sums_of(warp, all);
  product->sums->products++;
  product->b = first.b;
  product->b_by_columns = first.b_by_columns;
  product->adds = first.adds;
  product->a = first.fragment ? 0 : first.a;
  for (int lane = 0; first.fragment && lane < WARP; lane++) {
    product->fragments[lane] = all[lane]->fragment;
    memcpy(product->words[lane], all[lane]->fragment, sizeof product->words[lane]);
  }
  find_chunks(*product, thread / WARP % GROUP_WARPS * ROWS);
  check_shown(*product);
  note_reads(*product);
  for (size_t chunk : product->chunks) s.chunks[chunk].readers++;
  warp.open.push_back(product);
  warpgroup::under_way++;
}

void finish(Warp &warp, Product *product) {
  for (int lane = 0; !product->a && lane < WARP; lane++)
    if (memcmp(product->words[lane], product->fragments[lane], sizeof product->words[lane]))
      fail("the left operand of a product of a warpgroup was changed before the wait, by lane %d",
           lane);
  note_reads(*product);
  multiply(*product);
  for (size_t chunk : product->chunks) s.chunks[chunk].readers--;
  warpgroup::under_way--;
  Sums *sums = product->sums;
  delete product;
  if (--sums->products > 0) return;
  for (int lane = 0; lane < WARP; lane++)
    each_register(*sums, lane, [](float &own, float &value) { own = value; });
  warp.sums.erase(std::find(warp.sums.begin(), warp.sums.end(), sums));
  delete sums;
}

void forget(Warp &warp) {
  for (auto &group : warp.groups)
    for (Product *product : group) delete product;
  for (Product *product : warp.open) delete product;
  for (Sums *sums : warp.sums) delete sums;
  warp = Warp{};
}

int current() { return thread_number(); }

} // namespace

namespace warpgroup {

int under_way = 0;

void start_block(size_t threads, size_t dynamic_bytes) {
  std::fill_n(s.chunks.begin(), (dynamic_bytes + CHUNK - 1) / CHUNK, Chunk{0, NOBODY, 0});
  s.threads = threads;
  if (!s.used) return;
  for (Warp &warp : s.warps) forget(warp);
  under_way = 0;
  s.used = false;
}

void end_thread(int thread, bool last) {
  const Warp &own = warp_of(thread);
  if (!own.open.empty() || !own.groups.empty())
    fail("it ends with products of a warpgroup under way");
  for (size_t warp = 0; last && s.used && warp < s.threads / WARP; warp++) {
    size_t first = warp / GROUP_WARPS * GROUP_WARPS;
    if (s.warps[warp].trace != s.warps[first].trace)
      fail("warps %zu and %zu of a warpgroup have issued different products", first, warp);
  }
}

void check_registers(int thread, const void *address, size_t bytes, bool write) {
  auto at = static_cast<const char *>(address);
  auto meets = [&](const void *begin, size_t length) {
    auto first = static_cast<const char *>(begin);
    return at < first + length && first < at + bytes;
  };
  const Warp &warp = warp_of(thread);
  for (const Sums *sums : warp.sums)
    if (meets(sums->lanes[thread % WARP], sums->columns / 2 * sizeof(float)))
      fail("%s of a sum of a product of a warpgroup before the wait", write ? "write" : "read");
}

void note_write(int thread, size_t offset, size_t bytes) {
  for (size_t at = offset / CHUNK; at * CHUNK < offset + bytes; at++) {
    Chunk &chunk = s.chunks[at];
    if (chunk.readers)
      fail("write at %zu of dynamic shared memory, which a product of a warpgroup still reads",
           offset);
    chunk.writer = (uint16_t)thread;
    chunk.fences = s.fences[thread];
  }
}

} // namespace warpgroup

unsigned shared_address(const void *pointer) {
  return (unsigned)(static_cast<const char *>(pointer) - dynamic_shared()) + SHARED_BASE;
}

void show_async() { s.fences[current()]++; }

void begin_products() {
  static const char name[] = "wgmma.fence";
  collective(name, 0xffffffff, nullptr, [](unsigned, void **) { warp_of(current()).begun = true; });
}

void warpgroup_product(WarpgroupProduct product) {
  static const char name[] = "wgmma.mma_async";
  collective(name, 0xffffffff, &product, [](unsigned, void **all) {
    issue(current(), reinterpret_cast<WarpgroupProduct *const *>(all));
  });
}

void commit_products() {
  static const char name[] = "wgmma.commit_group";
  collective(name, 0xffffffff, nullptr, [](unsigned, void **) {
    Warp &warp = warp_of(current());
    warp.groups.push_back(std::move(warp.open));
    warp.open.clear();
  });
}

void wait_products(int groups_left) {
  static const char name[] = "wgmma.wait_group";
  collective(name, 0xffffffff, &groups_left, [](unsigned, void **all) {
    Warp &warp = warp_of(current());
    warp.begun = false;
    while (warp.groups.size() > (size_t) * static_cast<int *>(all[0])) {
      // Nothing returns from a fault: what is taken out is not deleted twice.
      std::vector<Product *> group = std::move(warp.groups.front());
      warp.groups.erase(warp.groups.begin());
      for (Product *product : group) finish(warp, product);
    }
  });
}

} // namespace emulate
