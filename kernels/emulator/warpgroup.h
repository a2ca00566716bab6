// Products of warpgroups (wgmma) and the async proxy: what runtime.cc tells of, and asks.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulate {

// For tests: if it is not zero, sums of products are off by one.
extern long long wrong_products;

} // namespace emulate

namespace emulate::warpgroup {

// A block begins, with so many threads and bytes of dynamic shared memory.
void start_block(size_t threads, size_t dynamic_bytes);
// A thread ends, perhaps as the last one of its block.
void end_thread(int thread, bool last);

// The registers of products under way lie on the stacks of their threads: an access to them is an
// error, as one to any other stack is none.
extern int under_way;
void check_registers(int thread, const void *address, size_t bytes, bool write);
// A write to dynamic shared memory, at an offset.
void note_write(int thread, size_t offset, size_t bytes);

} // namespace emulate::warpgroup
