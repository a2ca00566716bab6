// Memory of the device and pinned memory of the host.
//
// An address is not allocated again before the end of the arena is reached, so that a use after
// free is found. New memory holds poison.
#include "driver.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

namespace twin {

long long peak = 0, pins = 0, fail_pin = 0;

namespace {

constexpr size_t ALIGNMENT = 256, GAP = 4096, ROUNDS = 8;

struct Arena {
  Address begin = 0, end = 0, next = 0;
  std::map<Address, size_t> allocations;
  std::map<char *, size_t> pinned;
  size_t used = 0;
  std::array<std::pair<Address, Address>, 4> recent{};
  unsigned turn = 0;
};

Arena &arena() {
  static Arena arena;
  return arena;
}

bool is_live(Address address, size_t bytes) { return live(address, bytes); }

void open_arena() {
  Arena &a = arena();
  if (a.begin) return;
  size_t bytes = static_cast<size_t>(settings().memory) * ROUNDS;
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  a.begin = a.next = reinterpret_cast<Address>(memory);
  a.end = a.begin + bytes;
  emulate::set_arena({a.begin, a.end, is_live});
}

// The first gap of that size from `from` on; 0 if there is none.
Address hole(Address from, size_t bytes) {
  Arena &a = arena();
  auto next = a.allocations.lower_bound(from);
  if (next != a.allocations.begin()) {
    auto before = std::prev(next);
    from = std::max(from, before->first + before->second + GAP);
  }
  for (; next != a.allocations.end(); ++next) {
    if (from + bytes + GAP <= next->first) return from;
    from = next->first + next->second + GAP;
  }
  return from + bytes + GAP <= a.end ? from : 0;
}

} // namespace

void poison(void *memory, size_t bytes) {
  auto to = static_cast<unsigned char *>(memory);
  for (size_t i = 0; i < bytes; i++) to[i] = i & 1 ? 0x7f : 0xff;
}

Result allocate(Address *address, size_t bytes) {
  if (bytes == 0 || !address) return INVALID_VALUE;
  open_arena();
  Arena &a = arena();
  counts().allocations++;
  auto &fail = settings().fail_allocation;
  if (fail > 0 && --fail == 0) return OUT_OF_MEMORY;
  size_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (a.used + size > static_cast<size_t>(settings().memory)) return OUT_OF_MEMORY;
  Address found = hole(a.next, size);
  if (!found) found = hole(a.begin, size);
  if (!found) return OUT_OF_MEMORY;
  // The size is exact: an access one byte past the end is a fault.
  a.allocations[found] = bytes;
  a.used += size;
  peak = std::max(peak, static_cast<long long>(a.used));
  a.next = found + size + GAP;
  a.next = (a.next + GAP - 1) / GAP * GAP;
  poison(reinterpret_cast<void *>(found), bytes);
  *address = found;
  return SUCCESS;
}

Result release(Address address) {
  Arena &a = arena();
  auto found = a.allocations.find(address);
  if (found == a.allocations.end()) return INVALID_VALUE;
  size_t bytes = found->second;
  a.used -= (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  a.allocations.erase(found);
  a.recent = {};
  emulate::forget(address, bytes);
  Address begin = (address + 4095) & ~Address{4095}, end = (address + bytes) & ~Address{4095};
  if (begin < end) madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED);
  return SUCCESS;
}

void release_all() {
  while (!arena().allocations.empty()) release(arena().allocations.begin()->first);
}

bool live(Address address, size_t bytes) {
  // A kernel accesses the same few allocations again and again, so they are searched first.
  Arena &a = arena();
  for (auto &[begin, end] : a.recent)
    if (address >= begin && address + bytes <= end) return true;
  auto after = a.allocations.upper_bound(address);
  if (after == a.allocations.begin()) return false;
  --after;
  auto &slot = a.recent[a.turn++ % a.recent.size()];
  slot = {after->first, after->first + after->second};
  return address + bytes <= slot.second;
}

size_t used() { return arena().used; }

Result pin(void **memory, size_t bytes) {
  if (!memory || bytes == 0) return INVALID_VALUE;
  if (fail_pin > 0 && --fail_pin == 0) return OUT_OF_MEMORY;
  pins++;
  *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*memory) return OUT_OF_MEMORY;
  poison(*memory, bytes);
  arena().pinned[static_cast<char *>(*memory)] = bytes;
  return SUCCESS;
}

Result unpin(void *memory) {
  auto found = arena().pinned.find(static_cast<char *>(memory));
  if (found == arena().pinned.end()) return INVALID_VALUE;
  arena().pinned.erase(found);
  free(memory);
  return SUCCESS;
}

bool pinned(const void *memory, size_t bytes) {
  auto address = static_cast<const char *>(memory);
  auto after = arena().pinned.upper_bound(const_cast<char *>(address));
  if (after == arena().pinned.begin()) return false;
  --after;
  return address + bytes <= after->first + after->second;
}

} // namespace twin
