// The functions that emulated kernels, the emulated driver and test programs call: threads of a
// block as fibers, their synchronization, and the checks of memory. Built once, without
// instrumentation.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulate {

struct Index {
  unsigned x, y, z;
};

// One kernel as build.sh registers it: its name, how to call it, and the sizes of its arguments.
struct Kernel {
  const char *name;
  void (*invoke)(void **arguments);
  int count;
  const size_t *sizes;
};

// The contents of one library of build.sh, which exports it as `rolltape_family`.
struct Family {
  const char *name;
  int head_dim;  // 0 if the text does not say HEAD_DIM
  const Kernel *kernels;
  int count;
  char *shared_begin, *shared_end;
};

// The blocks of a launch by their numbers, which are never used again; none if both are equal.
struct Blocks {
  uint32_t first, end;
};

struct Launch {
  const char *kernel;
  void (*invoke)(void **arguments);
  void **arguments;
  Index grid, block;
  unsigned dynamic_bytes;
  // Static shared memory of the family, to be poisoned and watched.
  char *shared_begin, *shared_end;
  // True if it may begin before the kernel in front of it is over (programmatic dependent launch),
  // and the blocks of that kernel; none if something else lies in between.
  bool early = false;
  Blocks predecessor = {0, 0};
};

// Device memory as the emulated driver keeps it: addresses in [begin, end) are device addresses,
// and `live` says whether all bytes of a range lie in one allocation. With no arena (a test
// program that hands over its own arrays) only shared memory is checked.
struct Arena {
  uintptr_t begin, end;
  bool (*live)(uintptr_t address, size_t bytes);
};

void set_arena(const Arena &arena);
// Forgets the accesses to a range that was freed.
void forget(uintptr_t address, size_t bytes);
// 0 runs threads and blocks in order; every other seed shuffles them.
void set_seed(uint64_t seed);
// Runs all blocks of a launch, one after another. Returns null, or the error of the kernel.
const char *run(const Launch &launch);
// The blocks of the latest launch.
Blocks latest_blocks();

// ---- called from kernels ----
Index thread_index() __attribute__((pure));
Index block_index() __attribute__((pure));
Index block_size() __attribute__((pure));
Index grid_size() __attribute__((pure));
int lane() __attribute__((pure));
int thread_number() __attribute__((pure));  // within its block
char *dynamic_shared() __attribute__((pure));

// Ends the launch with an error; the message is a printf format.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

void barrier();
// A barrier that also adds up (or ORs, ANDs) one value of every thread: kind '+', '|', '&'.
int barrier_reduce(char kind, int value);

// Synchronizes the lanes in `mask`. The last to arrive calls `complete` with the arguments of all
// lanes (null for a lane that is not in the mask), after which all continue. `name` is compared by
// pointer: lanes that arrive in different operations are an error.
using Complete = void (*)(unsigned mask, void **arguments);
void collective(const char *name, unsigned mask, void *arguments, Complete complete);
// As `collective`, and orders the memory accesses of the warp (only __syncwarp does).
void warp_barrier(unsigned mask);

// griddepcontrol.wait: the kernel in front of this one is over, and this thread may read and write
// what that one wrote.
void wait_for_predecessor();
// griddepcontrol.launch_dependents: the kernel behind this one may begin, once all blocks have said
// so or ended.
void let_successor_begin();

// __threadfence(): blocks that see this block's atomics may now read what it wrote.
void fence();

// Accesses of an operation that the instrumentation does not see (atomics, ldmatrix, cp.async).
void note_read(const void *address, size_t bytes);
void note_write(const void *address, size_t bytes);
void note_atomic(const void *address, size_t bytes);
bool is_shared(const void *address);

// cp.async: nothing arrives before the wait; until then the destination holds poison.
void async_copy(void *to, const void *from, int bytes, int from_bytes);
void async_commit();
void async_wait(int groups_left);

// The address of dynamic shared memory as descriptors have it.
unsigned shared_address(const void *pointer);

// fence.proxy.async: products may read what this thread wrote to shared memory, once a barrier
// lies in between.
void show_async();

// wgmma.mma_async of one warp: 16 of the 64 rows, a depth of 16. `sum` are the registers of a lane.
// The left operand is in registers, as `mma` has it, or else described by `a`, and then has its
// depth along its rows. So has `b`, or its columns, in panels of 64.
struct WarpgroupProduct {
  float *sum;
  int columns;
  const unsigned *fragment;
  uint64_t a, b;
  bool adds, b_by_columns;
};

// Computed at the wait, the latest moment at which hardware may; until then its sums hold poison.
// Faults: no fence in front, an access to its sums, a change of what it reads, memory that was
// written without `show_async`, a warp that issues other products than its warpgroup.
void warpgroup_product(WarpgroupProduct product);
void begin_products();  // wgmma.fence
void commit_products();
void wait_products(int groups_left);

} // namespace emulate
