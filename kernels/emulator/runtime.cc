// Fibers, synchronization of threads, and checks of memory. runtime.h documents each function.
#include "runtime.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "warpgroup.h"

#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulate {
namespace {

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 128 << 10;
// From stack to stack. Not a power of two: the ends of all stacks would share a few lines of the cache.
constexpr size_t STACK_STRIDE = STACK_BYTES + 4096 + 192;
constexpr size_t DYNAMIC_BYTES = 232448;
constexpr uint64_t CANARY = 0x726f6c6c74617065;
// It is NaN as bf16 and as f32, and far out of bounds as an index.
constexpr uint16_t POISON = 0x7fff;

// ---- switching stacks ----
#if defined(__x86_64__)
using Context = void *;
extern "C" void emulate_switch(void **save, void *load);
asm(R"(
.text
.hidden emulate_switch
.globl emulate_switch
.type emulate_switch,@function
emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size emulate_switch,.-emulate_switch
)");
void switch_to(Context *save, Context *load) { emulate_switch(save, *load); }
void prepare(Context *context, char *stack, void (*entry)()) {
  auto top = reinterpret_cast<void **>(stack + STACK_BYTES - 64);
  *--top = nullptr;                          // where `entry` would return to: it never does
  *--top = reinterpret_cast<void *>(entry);  // taken by `ret`
  for (int i = 0; i < 6; i++) *--top = nullptr;
  *context = top;
}
#else
using Context = ucontext_t;
void switch_to(Context *save, Context *load) { swapcontext(save, load); }
void prepare(Context *context, char *stack, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack + 64;
  context->uc_stack.ss_size = STACK_BYTES - 64;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}
#endif

// ---- the running block ----
enum class State : char { Ready, Collective, Barrier, Done };

struct Pending {
  char *to;
  const char *from;
  int bytes, from_bytes;
};

struct Thread {
  Context context;
  Index index;
  int linear;
  const char *name;  // of the collective it waits in
  unsigned mask;
  void *arguments;
  bool early;  // it did not wait yet for the kernel in front
  std::vector<std::vector<Pending>> groups;  // committed copies, oldest first
  std::vector<Pending> open;                 // copies not committed yet
};

// The last access to two bytes of memory, in eight bytes: the block's number (which is never used
// again), the numbers of barriers that the block and the warp had passed, and the thread.
constexpr unsigned BARRIERS_MAX = (1 << 12) - 1, WARP_BARRIERS_MAX = (1 << 9) - 1;
struct Access {
  uint32_t block;
  uint32_t barrier : 12, warp : 9, thread : 10, atomic : 1;
};
static_assert(sizeof(Access) == 8, "packed");
// `far` read in another warp than `near`, so that a writer meets a reader of another warp.
struct Shadow {
  Access write, near, far;
};

struct Machine {
  std::mutex lock;
  Arena arena{0, 0, nullptr};
  uint64_t seed = 0, random = 0;
  char *stacks = nullptr;
  char *dynamic = nullptr;
  std::vector<Thread> threads;
  State states[MAX_THREADS];            // by thread, close together: each round reads them all
  uint32_t meeting[MAX_THREADS / 32];   // by warp: the lanes that wait in a collective
  Context scheduler{};
  const Launch *launch = nullptr;
  Thread *current = nullptr;
  Access now{};  // of the current thread
  Index block{};
  int live = 0, waiting = 0;
  uint32_t block_number = 0, first_block = 0;
  unsigned barrier_number = 0;
  uint32_t warp_number[MAX_THREADS / 32];
  int reduce = 0, reduced = 0;
  char reduce_kind = 0;
  std::vector<Shadow> shared_shadow, dynamic_shadow;
  Shadow *arena_shadow = nullptr;
  std::vector<bool> fenced;  // by block of this launch
  bool acquired = false;     // the running block did an atomic on device memory
  bool failed = false;
  char message[512];
};

Machine m;

uint64_t next_random() {
  m.random += 0x9e3779b97f4a7c15;
  uint64_t z = m.random;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void shuffle(std::vector<int> &order) {
  if (m.seed == 0) return;
  for (size_t i = order.size(); i > 1; i--)
    std::swap(order[i - 1], order[(next_random() >> 32) * i >> 32]);
}

void poison(char *begin, char *end) {
  constexpr uint64_t four = POISON * 0x0001000100010001;
  for (; end - begin >= 8; begin += 8) memcpy(begin, &four, 8);
  memcpy(begin, &four, end - begin);
}

// ---- races ----
// Of two accesses in one launch.
bool ordered(const Access &then, const Access &now) {
  if (then.block != now.block) return false;
  if (then.thread == now.thread) return true;
  if (then.barrier < now.barrier || then.barrier == BARRIERS_MAX) return true;
  if (then.thread / 32 != now.thread / 32) return false;
  return then.warp < now.warp || then.warp == WARP_BARRIERS_MAX;
}

// Blocks run one after another here, but in parallel on a device: a block may read what another one
// wrote only after a fence and an atomic.
bool published(const Access &then) {
  return m.acquired && then.block >= m.first_block && m.fenced[then.block - m.first_block];
}

// Sets `m.now`: when a thread goes on, and when it passed a barrier.
void note_time() {
  auto linear = static_cast<unsigned>(m.current->linear);
  m.now = {m.block_number, std::min(m.barrier_number, BARRIERS_MAX),
           std::min(m.warp_number[linear / 32], WARP_BARRIERS_MAX), linear, false};
}

[[noreturn]] void report_race(const char *what, const void *address, const Access &then) {
  const char *where = is_shared(address) ? "shared" : "device";
  if (then.block != m.block_number)
    fail("%s %s memory at %p: also touched by block %u of this launch", what, where, address,
         then.block - m.first_block);
  fail("%s %s memory at %p by thread %d: thread %d touched it and no barrier lies in between",
       what, where, address, m.current->linear, then.thread);
}

void check_shadow(Shadow &shadow, const void *address, const Access &now, bool shared, bool write) {
  auto racy = [&](const Access &then) {
    if (then.block < m.first_block || (shared && then.block != now.block)) return false;
    if (ordered(then, now) || (then.atomic && now.atomic)) return false;
    return then.block == now.block || !published(then);
  };
  if (racy(shadow.write)) report_race(write ? "write to" : "read of", address, shadow.write);
  if (!write) {
    const Access &near = shadow.near;
    bool current = near.block == now.block && near.barrier == now.barrier;
    (current && near.thread / 32 != now.thread / 32 ? shadow.far : shadow.near) = now;
    return;
  }
  for (const Access &reader : {shadow.near, shadow.far})
    if (racy(reader)) report_race("write to", address, reader);
  shadow.write = now;
}

// An access to device memory by a thread of an early launch before its wait: the kernel in front may
// still be running. All kernels before that one are over, because it waited before it let this one
// begin.
void check_early(const Shadow *shadow, const Shadow *end, const void *address, bool write) {
  if (write) fail("write to device memory at %p before the wait of an early launch", address);
  Blocks running = m.launch->predecessor;
  for (; shadow < end; shadow++) {
    uint32_t block = shadow->write.block;
    if (block >= running.first && block < running.end)
      fail("read of device memory at %p before the wait of an early launch: block %u of the kernel "
           "in front wrote it",
           address, block - running.first);
  }
}

char *stack_of(size_t thread) { return m.stacks + thread * STACK_STRIDE; }

__attribute__((noinline)) void check_memory(const void *pointer, size_t bytes, bool write,
                                            bool atomic) {
  auto address = static_cast<const char *>(pointer);
  Shadow *shadows = nullptr;
  bool shared = true;
  size_t offset = 0;
  const Launch &launch = *m.launch;
  if (address >= m.dynamic && address < m.dynamic + DYNAMIC_BYTES) {
    offset = address - m.dynamic;
    if (offset + bytes > launch.dynamic_bytes)
      fail("%s of %zu bytes at %zu of dynamic shared memory, of which the launch has %u",
           write ? "write" : "read", bytes, offset, launch.dynamic_bytes);
    shadows = m.dynamic_shadow.data();
    if (write) warpgroup::note_write(m.current->linear, offset, bytes);
  } else if (address >= launch.shared_begin && address < launch.shared_end) {
    offset = address - launch.shared_begin;
    shadows = m.shared_shadow.data();
  } else {
    auto number = reinterpret_cast<uintptr_t>(address);
    if (number < 65536) fail("%s at %p", write ? "write" : "read", pointer);
    if (number < m.arena.begin || number >= m.arena.end) return;
    if (!m.arena.live(number, bytes))
      fail("%s of %zu bytes at %p, outside of every allocation", write ? "write" : "read", bytes,
           pointer);
    offset = number - m.arena.begin;
    shadows = m.arena_shadow;
    shared = false;
    if (m.current->early)
      check_early(shadows + offset / 2, shadows + (offset + bytes + 1) / 2, pointer, write);
  }
  if (reinterpret_cast<uintptr_t>(address) % (bytes < 16 ? bytes : 16) && !(bytes & (bytes - 1)))
    fail("%s of %zu bytes at %p, which is not aligned", write ? "write" : "read", bytes, pointer);
  if (bytes == 1) return;
  Access now = m.now;
  now.atomic = atomic;
  for (size_t at = offset / 2; at < (offset + bytes) / 2; at++)
    check_shadow(shadows[at], pointer, now, shared, write);
}

inline void check(const void *pointer, size_t bytes, bool write, bool atomic) {
  auto address = static_cast<const char *>(pointer);
  bool local = address >= m.stacks && address < stack_of(MAX_THREADS);
  if (m.current && !local) return check_memory(pointer, bytes, write, atomic);
  if (m.current && warpgroup::under_way)
    warpgroup::check_registers(m.current->linear, pointer, bytes, write);
}

// ---- running a block ----
void leave() { switch_to(&m.current->context, &m.scheduler); }

void release_barrier() {
  m.waiting = 0;
  m.barrier_number++;
  m.reduced = m.reduce;
  m.reduce_kind = 0;
  for (size_t i = 0; i < m.threads.size(); i++)
    if (m.states[i] == State::Barrier) m.states[i] = State::Ready;
}

void thread_body() {
  m.launch->invoke(m.launch->arguments);
  Thread &thread = *m.current;
  bool pending = !thread.open.empty();
  for (auto &group : thread.groups) pending |= !group.empty();
  if (pending) fail("it ends with asynchronous copies under way");
  if (thread.early) fail("it ends without the wait of an early launch");
  warpgroup::end_thread(thread.linear, m.live == 1);
  m.states[thread.linear] = State::Done;
  m.live--;
  if (m.waiting > 0 && m.waiting == m.live) release_barrier();
  leave();
}

const char *state_name(const Thread &thread) {
  switch (m.states[thread.linear]) {
  case State::Collective: return thread.name;
  case State::Barrier: return "__syncthreads";
  case State::Done: return "nothing: it has ended";
  default: return "nothing";
  }
}

// No thread can continue, and not all have ended.
void report_stuck() {
  auto state = [](const Thread &thread) { return m.states[thread.linear]; };
  const Thread *stuck = nullptr;
  for (auto &thread : m.threads)
    if (state(thread) != State::Done && (!stuck || state(thread) == State::Collective))
      stuck = &thread;
  const Thread *other = nullptr;
  for (auto &thread : m.threads) {
    bool wanted = state(*stuck) == State::Barrier ||
                  (thread.linear / 32 == stuck->linear / 32 &&
                   (stuck->mask >> (thread.linear % 32) & 1));
    bool same = state(thread) == state(*stuck) &&
                (state(thread) == State::Barrier || thread.name == stuck->name);
    if (wanted && !same) other = &thread;
  }
  snprintf(m.message, sizeof m.message,
           "kernel %s, block %u,%u,%u: thread %d waits in %s (mask %08x) for thread %d, which "
           "waits in %s",
           m.launch->kernel, m.block.x, m.block.y, m.block.z, stuck->linear, state_name(*stuck),
           stuck->mask, other ? other->linear : -1, other ? state_name(*other) : "?");
  m.failed = true;
}

void start_block(const Launch &launch, unsigned number) {
  m.block = {number % launch.grid.x, number / launch.grid.x % launch.grid.y,
             number / launch.grid.x / launch.grid.y};
  m.block_number = m.first_block + number;
  m.acquired = false;
  m.barrier_number = 0;
  m.waiting = 0;
  m.reduce_kind = 0;
  m.live = static_cast<int>(m.threads.size());
  for (auto &number : m.warp_number) number = 0;
  for (auto &lanes : m.meeting) lanes = 0;
  warpgroup::start_block(m.threads.size(), launch.dynamic_bytes);
  poison(m.dynamic, m.dynamic + launch.dynamic_bytes);
  if (launch.shared_begin) poison(launch.shared_begin, launch.shared_end);
  for (int i = 0; i < m.live; i++) {
    Thread &thread = m.threads[i];
    unsigned x = launch.block.x, y = launch.block.y, linear = i;
    thread.index = {linear % x, linear / x % y, linear / x / y};
    thread.linear = i;
    m.states[i] = State::Ready;
    thread.name = nullptr;
    thread.mask = 0;
    thread.early = launch.early;
    thread.groups.clear();
    thread.open.clear();
    char *stack = stack_of(i);
    memcpy(stack, &CANARY, sizeof CANARY);
    prepare(&thread.context, stack, thread_body);
  }
}

bool run_ready(const std::vector<int> &order) {
  bool progress = false;
  for (int i : order) {
    if (m.states[i] != State::Ready) continue;
    Thread &thread = m.threads[i];
    progress = true;
    m.current = &thread;
    note_time();
    switch_to(&m.scheduler, &thread.context);
    m.current = nullptr;
    if (m.failed) return false;
    if (m.states[i] == State::Done && memcmp(stack_of(i), &CANARY, sizeof CANARY)) {
      snprintf(m.message, sizeof m.message, "kernel %s: a thread's stack is too small",
               m.launch->kernel);
      m.failed = true;
      return false;
    }
  }
  return progress;
}

void run_block(const Launch &launch, unsigned number) {
  start_block(launch, number);
  std::vector<int> order(m.threads.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = static_cast<int>(i);
  do shuffle(order);
  while (run_ready(order));
  if (!m.failed && m.live > 0) report_stuck();
}

void *reserve(size_t bytes) {
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("emulator: mmap");
    abort();
  }
  return memory;
}

const char *refuse(const Launch &launch) {
  auto product = [](const Index &i) { return uint64_t(i.x) * i.y * i.z; };
  uint64_t threads = product(launch.block), blocks = product(launch.grid);
  const char *what = nullptr;
  if (threads == 0 || threads > MAX_THREADS || launch.block.z > 64) what = "block size";
  if (blocks == 0 || launch.grid.x > 0x7fffffff || launch.grid.y > 65535 || launch.grid.z > 65535)
    what = "grid size";
  if (launch.dynamic_bytes > DYNAMIC_BYTES) what = "size of dynamic shared memory";
  if (!what) return nullptr;
  snprintf(m.message, sizeof m.message, "kernel %s: wrong %s", launch.kernel, what);
  return m.message;
}

} // namespace

void set_arena(const Arena &arena) {
  std::lock_guard<std::mutex> guard(m.lock);
  m.arena = arena;
  m.arena_shadow =
      static_cast<Shadow *>(reserve((arena.end - arena.begin) / 2 * sizeof(Shadow)));
}

void forget(uintptr_t address, size_t bytes) {
  std::lock_guard<std::mutex> guard(m.lock);
  auto page = [](uintptr_t at) { return (at + 4095) & ~uintptr_t{4095}; };
  auto shadow = reinterpret_cast<uintptr_t>(m.arena_shadow + (address - m.arena.begin) / 2);
  uintptr_t begin = page(shadow), end = page(shadow + bytes / 2 * sizeof(Shadow)) - 4096;
  if (begin < end) madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED);
}

void set_seed(uint64_t seed) {
  std::lock_guard<std::mutex> guard(m.lock);
  m.seed = m.random = seed;
}

const char *run(const Launch &launch) {
  std::lock_guard<std::mutex> guard(m.lock);
  if (const char *refused = refuse(launch)) return refused;
  if (!m.stacks) {
    m.stacks = static_cast<char *>(reserve(MAX_THREADS * STACK_STRIDE));
    m.dynamic = static_cast<char *>(reserve(DYNAMIC_BYTES));
    m.dynamic_shadow.resize(DYNAMIC_BYTES / 2);
  }
  size_t shared = launch.shared_end - launch.shared_begin;
  m.shared_shadow.assign(shared / 2 + 1, Shadow{});
  m.launch = &launch;
  m.failed = false;
  m.threads.resize(launch.block.x * launch.block.y * launch.block.z);
  unsigned blocks = launch.grid.x * launch.grid.y * launch.grid.z;
  m.first_block = m.block_number + 1;
  m.fenced.assign(blocks, false);
  std::vector<int> order(blocks);
  for (unsigned i = 0; i < blocks; i++) order[i] = static_cast<int>(i);
  shuffle(order);
  for (int number : order) {
    run_block(launch, static_cast<unsigned>(number));
    if (m.failed) break;
  }
  m.block_number = m.first_block + blocks;
  m.launch = nullptr;
  return m.failed ? m.message : nullptr;
}

Blocks latest_blocks() {
  std::lock_guard<std::mutex> guard(m.lock);
  return {m.first_block, m.block_number};
}

Index thread_index() { return m.current->index; }
Index block_index() { return m.block; }
Index block_size() { return m.launch->block; }
Index grid_size() { return m.launch->grid; }
int lane() { return m.current->linear % 32; }
int thread_number() { return m.current->linear; }
char *dynamic_shared() { return m.dynamic; }

void fail(const char *format, ...) {
  char text[400];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  snprintf(m.message, sizeof m.message, "kernel %s, block %u,%u,%u, thread %d: %s",
           m.launch->kernel, m.block.x, m.block.y, m.block.z, m.current->linear, text);
  m.failed = true;
  leave();
  abort();  // a failed block is never resumed
}

void barrier() {
  m.states[m.current->linear] = State::Barrier;
  if (++m.waiting < m.live) return leave();
  release_barrier();
  note_time();
}

int barrier_reduce(char kind, int value) {
  if (m.reduce_kind == 0) {
    m.reduce_kind = kind;
    m.reduce = kind == '&';
  }
  if (m.reduce_kind != kind) fail("threads meet in different reductions at a barrier");
  if (kind == '+') m.reduce += value != 0;
  if (kind == '|') m.reduce |= value != 0;
  if (kind == '&') m.reduce &= value != 0;
  barrier();
  int result = m.reduced;
  return result;
}

void collective(const char *name, unsigned mask, void *arguments, Complete complete) {
  Thread &self = *m.current;
  int warp = self.linear / 32, first = warp * 32, own = self.linear % 32;
  if (!(mask >> own & 1)) fail("%s with a mask without its own lane", name);
  int lanes = std::min(32, static_cast<int>(m.threads.size()) - first);
  if (lanes < 32 && mask >> lanes)
    fail("%s waits for lane %d, which the block does not have", name,
         lanes + __builtin_ctz(mask >> lanes));
  self.name = name;
  self.mask = mask;
  self.arguments = arguments;
  m.states[self.linear] = State::Collective;

  // A lane looks at one of those that wait, and the last that comes at all.
  uint32_t waiting = m.meeting[warp] & mask;
  m.meeting[warp] |= 1u << own;
  bool is_last = (waiting | 1u << own) == mask;
  void *all[32] = {};
  all[own] = arguments;
  for (; waiting != 0; waiting = is_last ? waiting & (waiting - 1) : 0) {
    int lane = __builtin_ctz(waiting);
    const Thread &peer = m.threads[first + lane];
    if (peer.name != name || peer.mask != mask)
      fail("%s (mask %08x) meets %s (mask %08x) of thread %d", name, mask, peer.name, peer.mask,
           peer.linear);
    all[lane] = peer.arguments;
  }
  if (!is_last) return leave();
  complete(mask, all);
  m.meeting[warp] &= ~mask;
  for (int lane = 0; lane < lanes; lane++)
    if (mask >> lane & 1) m.states[first + lane] = State::Ready;
}

void warp_barrier(unsigned mask) {
  static const char name[] = "__syncwarp";
  collective(name, mask, nullptr,
             [](unsigned, void **) { m.warp_number[m.current->linear / 32]++; });
  note_time();
}

void wait_for_predecessor() { m.current->early = false; }

void let_successor_begin() {
  if (m.current->early) fail("it lets the next kernel begin before the wait of an early launch");
}

void fence() { m.fenced[m.block_number - m.first_block] = true; }

bool is_shared(const void *pointer) {
  auto address = static_cast<const char *>(pointer);
  return (address >= m.dynamic && address < m.dynamic + DYNAMIC_BYTES) ||
         (address >= m.launch->shared_begin && address < m.launch->shared_end);
}

void note_read(const void *address, size_t bytes) { check(address, bytes, false, false); }
void note_write(const void *address, size_t bytes) { check(address, bytes, true, false); }
void note_atomic(const void *address, size_t bytes) {
  check(address, bytes, true, true);
  if (!is_shared(address)) m.acquired = true;
}

void async_copy(void *to, const void *from, int bytes, int from_bytes) {
  if (!is_shared(to)) fail("cp.async to %p, which is not shared memory", to);
  note_write(to, bytes);
  if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
    fail("cp.async of %d bytes from %p to %p: not aligned", bytes, from, to);
  if (from_bytes > 0) note_read(from, from_bytes);
  poison(static_cast<char *>(to), static_cast<char *>(to) + bytes);
  m.current->open.push_back({static_cast<char *>(to), static_cast<const char *>(from), bytes,
                             from_bytes});
}

void async_commit() {
  m.current->groups.push_back(m.current->open);
  m.current->open.clear();
}

void async_wait(int groups_left) {
  auto &groups = m.current->groups;
  while (groups.size() > static_cast<size_t>(groups_left)) {
    for (const Pending &copy : groups.front()) {
      note_write(copy.to, copy.bytes);
      memcpy(copy.to, copy.from, copy.from_bytes);
      memset(copy.to + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
    }
    groups.erase(groups.begin());
  }
}

} // namespace emulate

// ---- calls of g++ at every memory access of code built with -fsanitize=thread ----
extern "C" {
using emulate::note_read;
using emulate::note_write;
#define ROLLTAPE_HOOK(bytes)                                                        \
  void __tsan_read##bytes(void *p) { note_read(p, bytes); }                         \
  void __tsan_write##bytes(void *p) { note_write(p, bytes); }                       \
  void __tsan_unaligned_read##bytes(void *p) { note_read(p, bytes); }               \
  void __tsan_unaligned_write##bytes(void *p) { note_write(p, bytes); }             \
  void __tsan_volatile_read##bytes(void *p) { note_read(p, bytes); }                \
  void __tsan_volatile_write##bytes(void *p) { note_write(p, bytes); }
ROLLTAPE_HOOK(1)
ROLLTAPE_HOOK(2)
ROLLTAPE_HOOK(4)
ROLLTAPE_HOOK(8)
ROLLTAPE_HOOK(16)
void __tsan_read_range(void *p, size_t bytes) { note_read(p, bytes); }
void __tsan_write_range(void *p, size_t bytes) { note_write(p, bytes); }

// ---- calls of g++ for a wrong pointer, index or shift ----
struct Place {
  const char *file;
  unsigned line, column;
};
void __ubsan_handle_type_mismatch_v1(Place *place, void *pointer) {
  if (emulate::m.current)
    emulate::fail("%s:%u: a pointer is not aligned to its type: %p", place->file, place->line,
                  pointer);
}
void __ubsan_handle_out_of_bounds(Place *place, void *index) {
  if (emulate::m.current)
    emulate::fail("%s:%u: index %zd is outside of its array", place->file, place->line,
                  reinterpret_cast<intptr_t>(index));
}
void __ubsan_handle_shift_out_of_bounds(Place *place, void *, void *by) {
  if (emulate::m.current)
    emulate::fail("%s:%u: a shift by %zd", place->file, place->line,
                  reinterpret_cast<intptr_t>(by));
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
}
