// The internals of the emulated driver: memory, streams, modules. One lock guards everything.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime.h"

// The results that functions return, with the driver's numbers.
enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_BINARY_FOR_GPU = 209,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  LAUNCH_OUT_OF_RESOURCES = 701,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
  STREAM_CAPTURE_UNSUPPORTED = 900,
  STREAM_CAPTURE_INVALIDATED = 901,
  STREAM_CAPTURE_UNMATCHED = 903,
  STREAM_CAPTURE_ISOLATION = 905,
  STREAM_CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  UNKNOWN = 999,
};

namespace twin {

using Address = uintptr_t;
using Work = std::function<Result()>;  // NOT_READY: not yet, ask again

// Settings of the environment or a test; see README.md.
struct Settings {
  long long memory, fail_allocation, fail_launch, fail_recording, capability, driver, devices, seed,
      hang, order;
};
enum Order { LATE, EARLY, RANDOM };
Settings &settings();
uint64_t random_number();

// Counters, for tests.
struct Counts {
  long long launches, early_launches, graph_launches, recordings, allocations, synchronizations,
      bytes_to_host, faults;
};
Counts &counts();

extern std::recursive_mutex lock;

// Reports an error on stderr, counts it, and makes the context fail with it from then on.
Result fault(Result result, const std::string &text);
// Calls `run` until it does not return NOT_READY, and releases the lock between calls.
Result patiently(const Work &run);
// Every call begins with this check: the context is current and has not failed.
Result ready();

// ---- memory.cc ----
Result allocate(Address *address, size_t bytes);
Result release(Address address);
void release_all();
bool live(Address address, size_t bytes);
size_t used();
Result pin(void **memory, size_t bytes);
Result unpin(void *memory);
bool pinned(const void *memory, size_t bytes);
void poison(void *memory, size_t bytes);

// ---- stream.cc ----
struct Event;
struct Stream;

// What work is to a kernel behind it that is launched early.
enum Kind {
  BARRIER,  // a copy and the like: all is over before the kernel begins
  KERNEL,   // it may still be running
  LIBRARY,  // likewise, and nobody knows what it reads and writes
  MARK,     // an event: what is before it counts
};

struct Operation {
  Work work;
  Kind kind = BARRIER;
  Event *wait = nullptr;  // run only after what was before this event's record
  uint64_t wait_for = 0;
};

struct Graph {
  std::vector<Operation> nodes;
  long long running = 0;  // launches that are not over
};

struct Stream {
  bool blocking = false;
  std::deque<Operation> queue;
  uint64_t asked = 0, done = 0;
  Kind latest = BARRIER;            // of the work that was done last, but for marks
  emulate::Blocks latest_blocks{};  // if that was a kernel
  std::shared_ptr<Graph> capture;
  bool capture_broken = false;
  int capture_mode = 0;
  std::thread::id capture_thread;
};

struct Event {
  Stream *stream = nullptr;
  uint64_t number = 0;  // of the operation in its stream
  double seconds = 0;   // when it was reached
  bool captured = false;
};

Stream *stream_of(void *handle);  // null if there is none
Event *event_of(void *handle);
// Adds work to a stream, or to the graph that it is being captured into.
Result enqueue(Stream *stream, Work work, Kind kind = BARRIER);
// The stream of the work that runs now: a graph may run in another one than it was captured from.
Stream *running_stream();
Result run_all(Stream *stream);
Result run_everything();
void drop_everything();  // with a context that is broken
void settle(Stream *stream);  // as the order says: late, early, or by chance
bool captures(int mode);      // some stream captures in a mode that forbids this call

// ---- module.cc ----
struct Function;
struct Shape {
  emulate::Index grid, block;
  unsigned shared;
  bool early;  // it may begin before the kernel in front is over
};
Result launch(Function *function, const Shape &shape, Stream *stream, void **arguments);

} // namespace twin
