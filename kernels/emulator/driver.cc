// The emulated driver: settings, devices, contexts, copies. Built as libcuda.so.1.
//
// Other functions are missing, as they are in an old driver.
#include "driver.h"
#include "warpgroup.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace twin {

std::recursive_mutex lock;

// The most bytes of device memory at once since a test set it to zero, the pieces of pinned memory
// that were allocated, and the one of them that fails, counted from now.
extern long long peak, pins, fail_pin;

namespace {

struct State {
  bool initialized = false;
  int retained = 0;
  Result broken = SUCCESS;  // after a failed launch nothing else goes
};
State state;
char context_object;
thread_local void *current_context = nullptr;
char pool_object;

// Bytes that were copied between the device and pageable memory of the host, and pinned memory.
long long bytes_pageable = 0, bytes_pinned = 0, bytes_pageable_to_device = 0;
// The copy to the host that cannot be started, counted from now; 0 is none.
long long fail_read = 0;

long long from_environment(const char *name, long long otherwise) {
  const char *text = getenv((std::string("ROLLTAPE_EMULATED_") + name).c_str());
  return text && *text ? atoll(text) : otherwise;
}

Settings read_settings() {
  const char *order = getenv("ROLLTAPE_EMULATED_ORDER");
  std::string text = order ? order : "late";
  return {
      from_environment("MEMORY", 256ll << 20),
      from_environment("FAIL_ALLOCATION", 0),
      from_environment("FAIL_LAUNCH", 0),
      from_environment("FAIL_RECORDING", 0),
      from_environment("CAPABILITY", 90),
      from_environment("DRIVER", 13000),
      from_environment("DEVICES", 1),
      from_environment("SEED", 0),
      from_environment("HANG", 0),
      text == "early" ? EARLY : text == "random" ? RANDOM : LATE,
  };
}

long long *named(const std::string &name) {
  Settings &s = settings();
  Counts &c = counts();
  static const std::map<std::string, long long *> all = {
      {"memory", &s.memory},
      {"fail_allocation", &s.fail_allocation},
      {"fail_launch", &s.fail_launch},
      {"fail_recording", &s.fail_recording},
      {"driver", &s.driver},
      {"seed", &s.seed},
      {"hang", &s.hang},
      {"wrong_products", &emulate::wrong_products},
      {"order", &s.order},
      {"launches", &c.launches},
      {"early_launches", &c.early_launches},
      {"graph_launches", &c.graph_launches},
      {"recordings", &c.recordings},
      {"allocations", &c.allocations},
      {"synchronizations", &c.synchronizations},
      {"bytes_to_host", &c.bytes_to_host},
      {"bytes_pageable", &bytes_pageable},
      {"bytes_pinned", &bytes_pinned},
      {"bytes_pageable_to_device", &bytes_pageable_to_device},
      {"peak", &peak},
      {"pins", &pins},
      {"fail_pin", &fail_pin},
      {"fail_read", &fail_read},
      {"faults", &c.faults},
  };
  auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

struct Named {
  int code;
  const char *name, *text;
};
constexpr Named NAMES[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a "
                                       "capturing stream"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Named *find_name(int code) {
  for (const Named &one : NAMES)
    if (one.code == code) return &one;
  return nullptr;
}

Result initialized() { return state.initialized ? SUCCESS : NOT_INITIALIZED; }

bool is_device(int device) { return device >= 0 && device < settings().devices; }

// A copy of memory that was freed too early is a fault, not a crash.
Result copy(void *to, const void *from, size_t bytes, const char *what) {
  for (auto side : {reinterpret_cast<Address>(to), reinterpret_cast<Address>(from)})
    if (side && what && !live(side, bytes) && !pinned(reinterpret_cast<void *>(side), bytes))
      return fault(LAUNCH_FAILED, std::string(what) + " of memory that is not there");
  memcpy(to, from, bytes);
  return SUCCESS;
}

void count_copy(const void *host, size_t bytes) {
  (pinned(host, bytes) ? bytes_pinned : bytes_pageable) += static_cast<long long>(bytes);
}

Result in_range(Address address, size_t bytes) {
  return live(address, bytes) ? SUCCESS : INVALID_VALUE;
}

} // namespace

Settings &settings() {
  static Settings settings = read_settings();
  return settings;
}

Counts &counts() {
  static Counts counts{};
  return counts;
}

uint64_t random_number() {
  static uint64_t state = static_cast<uint64_t>(settings().seed) * 2 + 1;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

Result fault(Result result, const std::string &text) {
  fprintf(stderr, "emulated CUDA: %s\n", text.c_str());
  counts().faults++;
  if (result == LAUNCH_FAILED) state.broken = result;
  return result;
}

Result ready() {
  if (!state.initialized) return NOT_INITIALIZED;
  if (!current_context || state.retained == 0) return INVALID_CONTEXT;
  return state.broken;
}

extern "C" {
#define API __attribute__((visibility("default"))) int
#define LOCKED std::lock_guard<std::recursive_mutex> guard(lock)
#define BEGIN \
  LOCKED;     \
  if (Result wrong = ready()) return wrong

// ---- for tests: settings and counters by name ----
API rolltape_emulated_set(const char *name, long long value) {
  LOCKED;
  long long *place = named(name);
  if (!place) return 0;
  *place = value;
  emulate::set_seed(static_cast<uint64_t>(settings().seed));
  return 1;
}
__attribute__((visibility("default"))) long long rolltape_emulated_get(const char *name) {
  LOCKED;
  if (!strcmp(name, "used")) return static_cast<long long>(used());
  long long *place = named(name);
  return place ? *place : -1;
}
// For the other libraries: adds work to a stream. `function` is called with a copy of `data`, and
// again as long as it returns NOT_READY.
API rolltape_emulated_enqueue(void *stream, int (*function)(void *), const void *data, size_t bytes) {
  BEGIN;
  auto known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  auto from = static_cast<const char *>(data);
  std::vector<char> kept(from, from + bytes);
  auto work = [=]() mutable { return static_cast<Result>(function(kept.data())); };
  return enqueue(known, work, LIBRARY);
}
API rolltape_emulated_live(uint64_t address, size_t bytes) { return live(address, bytes); }
API rolltape_emulated_fault(const char *text) { return fault(LAUNCH_FAILED, text); }

// ---- the driver and its devices ----
API cuDriverGetVersion(int *version) {
  *version = static_cast<int>(settings().driver);
  return SUCCESS;
}
API cuInit(unsigned flags) {
  LOCKED;
  if (flags) return INVALID_VALUE;
  if (settings().devices == 0) return NO_DEVICE;
  state.initialized = true;
  emulate::set_seed(static_cast<uint64_t>(settings().seed));
  return SUCCESS;
}
API cuDeviceGetCount(int *count) {
  if (Result wrong = initialized()) return wrong;
  *count = static_cast<int>(settings().devices);
  return SUCCESS;
}
API cuDeviceGet(int *device, int ordinal) {
  if (Result wrong = initialized()) return wrong;
  if (!is_device(ordinal)) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}
API cuDeviceGetName(char *name, int length, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  snprintf(name, static_cast<size_t>(length), "Emulated GPU (rolltape)");
  return SUCCESS;
}
API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  memset(uuid, device + 1, 16);
  return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  *bytes = static_cast<size_t>(settings().memory);
  return SUCCESS;
}
API cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  static const std::map<int, int> known = {
      {1, 1024},    // threads of a block
      {2, 1024},    {3, 1024},  {4, 64},  // block sizes
      {5, 2147483647}, {6, 65535}, {7, 65535},  // grid sizes
      {8, 49152},   // shared memory of a block
      {10, 32},     // warp
      {12, 65536},  // registers of a block
      {13, 1000000}, {36, 1000000},  // clocks in kHz
      {37, 5120},   // memory bus in bits
      {38, 50 << 20},  // second-level cache
      {39, 2048},   // threads of a multiprocessor
      {41, 1},      // unified addresses
      {82, 65536},  // registers of a multiprocessor
      {97, 232448},  // shared memory of a block that asks for it
      {81, 233472},  // and of a multiprocessor
      {106, 32},    // blocks of a multiprocessor
  };
  int capability = static_cast<int>(settings().capability);
  auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  if (attribute == 16) *value = 4;  // multiprocessors
  if (attribute == 75) *value = capability / 10;
  if (attribute == 76) *value = capability % 10;
  if (attribute == 97 && capability < 90) *value = 166912;
  return SUCCESS;
}

// NVRTC asks a loaded driver for a table, and does not check the answer. This table is empty: its
// size says so.
API cuGetExportTable(const void **table, const void *) {
  static const size_t empty[16] = {sizeof(size_t)};
  *table = empty;
  return SUCCESS;
}

// ---- contexts ----
API cuDevicePrimaryCtxRetain(void **context, int device) {
  LOCKED;
  if (Result wrong = initialized()) return wrong;
  if (!is_device(device)) return INVALID_DEVICE;
  state.retained++;
  *context = &context_object;
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
  LOCKED;
  if (!is_device(device)) return INVALID_DEVICE;
  if (state.retained == 0) return INVALID_CONTEXT;
  if (--state.retained == 0) {
    if (state.broken) drop_everything();
    else run_everything();
    release_all();
    state.broken = SUCCESS;
  }
  return SUCCESS;
}
API cuCtxSetCurrent(void *context) {
  LOCKED;
  if (context && (context != &context_object || state.retained == 0)) return INVALID_CONTEXT;
  current_context = context;
  return SUCCESS;
}
API cuCtxGetCurrent(void **context) {
  *context = current_context;
  return SUCCESS;
}
API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = 0;
  return SUCCESS;
}
API cuCtxSetFlags(unsigned) {
  BEGIN;
  return SUCCESS;
}

API cuGetErrorName(int code, const char **text) {
  const Named *found = find_name(code);
  *text = found ? found->name : nullptr;
  return found ? SUCCESS : INVALID_VALUE;
}
API cuGetErrorString(int code, const char **text) {
  const Named *found = find_name(code);
  *text = found ? found->text : nullptr;
  return found ? SUCCESS : INVALID_VALUE;
}

// ---- memory ----
API cuMemGetInfo_v2(size_t *free, size_t *total) {
  BEGIN;
  *total = static_cast<size_t>(settings().memory);
  *free = *total - used();
  return SUCCESS;
}
API cuMemAlloc_v2(Address *address, size_t bytes) {
  BEGIN;
  if (captures(1)) return STREAM_CAPTURE_UNSUPPORTED;
  return allocate(address, bytes);
}
API cuMemFree_v2(Address address) {
  BEGIN;
  if (captures(1)) return STREAM_CAPTURE_UNSUPPORTED;
  if (address == 0) return SUCCESS;
  if (Result result = run_everything()) return result;
  return release(address);
}
API cuMemAllocAsync(Address *address, size_t bytes, void *stream) {
  BEGIN;
  Stream *known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  if (known->capture) return NOT_SUPPORTED;
  return allocate(address, bytes);
}
API cuMemFreeAsync(Address address, void *stream) {
  BEGIN;
  Stream *known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  if (known->capture) return NOT_SUPPORTED;
  if (address == 0) return SUCCESS;
  if (Result wrong = in_range(address, 1)) return wrong;
  return enqueue(known, [=] { return release(address); });
}
API cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
  BEGIN;
  return pin(memory, bytes);
}
API cuMemAllocHost_v2(void **memory, size_t bytes) { return cuMemHostAlloc(memory, bytes, 0); }
API cuMemFreeHost(void *memory) {
  LOCKED;
  return unpin(memory);
}
API cuDeviceGetDefaultMemPool(void **pool, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  *pool = &pool_object;
  return SUCCESS;
}
API cuDeviceGetMemPool(void **pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
API cuMemPoolSetAttribute(void *, int, void *) { return SUCCESS; }
API cuMemPoolTrimTo(void *, size_t) { return SUCCESS; }

// ---- copies ----
API cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) {
  BEGIN;
  if (captures(1)) return STREAM_CAPTURE_UNSUPPORTED;
  if (Result wrong = in_range(to, bytes)) return wrong;
  memcpy(reinterpret_cast<void *>(to), from, bytes);
  return SUCCESS;
}
API cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) {
  BEGIN;
  if (captures(1)) return STREAM_CAPTURE_UNSUPPORTED;
  if (Result wrong = in_range(from, bytes)) return wrong;
  counts().bytes_to_host += static_cast<long long>(bytes);
  memcpy(to, reinterpret_cast<void *>(from), bytes);
  return SUCCESS;
}
// The driver copies pageable memory at once. Pinned memory is read when the stream reaches the
// copy.
API cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
  BEGIN;
  Stream *known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  if (bytes == 0) return SUCCESS;
  if (Result wrong = in_range(to, bytes)) return wrong;
  auto target = reinterpret_cast<void *>(to);
  count_copy(from, bytes);
  if (pinned(from, bytes))
    return enqueue(known, [=] { return copy(target, from, bytes, "an asynchronous copy"); });
  if (known->capture) return STREAM_CAPTURE_UNSUPPORTED;
  bytes_pageable_to_device += static_cast<long long>(bytes);
  auto begin = static_cast<const char *>(from);
  auto kept = std::make_shared<std::vector<char>>(begin, begin + bytes);
  return enqueue(known, [=] {
    if (!live(to, bytes)) return fault(LAUNCH_FAILED, "a copy to memory that is not there");
    memcpy(target, kept->data(), bytes);
    return SUCCESS;
  });
}
// The driver waits for copies to pageable memory. Pinned memory is unspecified until the stream
// reaches the copy.
API cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
  BEGIN;
  Stream *known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  if (bytes == 0) return SUCCESS;
  if (Result wrong = in_range(from, bytes)) return wrong;
  if (fail_read > 0 && --fail_read == 0) return UNKNOWN;
  counts().bytes_to_host += static_cast<long long>(bytes);
  auto source = reinterpret_cast<const void *>(from);
  count_copy(to, bytes);
  if (pinned(to, bytes)) {
    if (!known->capture && settings().order == LATE) poison(to, bytes);
    return enqueue(known, [=] { return copy(to, source, bytes, "an asynchronous copy"); });
  }
  if (known->capture) return STREAM_CAPTURE_UNSUPPORTED;
  if (Result result = patiently([=] { return run_all(known); })) return result;
  memcpy(to, source, bytes);
  return SUCCESS;
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) {
  BEGIN;
  Stream *known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  if (bytes == 0) return SUCCESS;
  if (in_range(to, bytes) || in_range(from, bytes)) return INVALID_VALUE;
  if (to < from + bytes && from < to + bytes && to != from)
    return fault(INVALID_VALUE, "a copy between ranges that overlap");
  return enqueue(known, [=] {
    return copy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes, "a copy");
  });
}
// The driver's description of a copy of rows, without arrays.
struct Copy2D {
  size_t from_x, from_y;
  unsigned from_kind;
  const void *from_host;
  Address from_device;
  void *from_array;
  size_t from_pitch, to_x, to_y;
  unsigned to_kind;
  void *to_host;
  Address to_device;
  void *to_array;
  size_t to_pitch, width, height;
};
// Between pinned memory and the device only, and rows are at most 2^31 - 1 bytes apart. What is
// written on the host is not poisoned first: copies before it may still read there, in order.
API cuMemcpy2DAsync_v2(const Copy2D *asked, void *stream) {
  BEGIN;
  enum { HOST = 1, DEVICE = 2 };
  Stream *known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  if (!asked) return INVALID_VALUE;
  Copy2D one = *asked;
  bool to_host = one.from_kind == DEVICE && one.to_kind == HOST;
  bool to_device = one.from_kind == HOST && one.to_kind == DEVICE;
  if (!to_host && !to_device) return NOT_SUPPORTED;
  if (one.from_x || one.from_y || one.to_x || one.to_y) return NOT_SUPPORTED;
  if (one.width > one.from_pitch || one.width > one.to_pitch) return INVALID_VALUE;
  if (one.from_pitch > INT32_MAX || one.to_pitch > INT32_MAX) return INVALID_VALUE;
  auto at = [](const void *host, Address device, bool is_host) {
    return is_host ? reinterpret_cast<Address>(host) : device;
  };
  Address from = at(one.from_host, one.from_device, to_device);
  Address to = at(one.to_host, one.to_device, to_host);
  for (size_t row = 0; row < one.height; row++) {
    Address source = from + row * one.from_pitch, target = to + row * one.to_pitch;
    Address host = to_host ? target : source, device = to_host ? source : target;
    if (!pinned(reinterpret_cast<void *>(host), one.width)) return INVALID_VALUE;
    if (Result wrong = in_range(device, one.width)) return wrong;
    if (to_host) counts().bytes_to_host += static_cast<long long>(one.width);
    Result result = enqueue(known, [=, width = one.width] {
      return copy(reinterpret_cast<void *>(target), reinterpret_cast<void *>(source), width,
                  "a copy of rows");
    });
    if (result) return result;
  }
  return SUCCESS;
}
API cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
  return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
}
API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void *stream) {
  BEGIN;
  Stream *known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  if (bytes == 0) return SUCCESS;
  if (Result wrong = in_range(to, bytes)) return wrong;
  return enqueue(known, [=] {
    if (!live(to, bytes)) return fault(LAUNCH_FAILED, "memory is set that is not there");
    memset(reinterpret_cast<void *>(to), value, bytes);
    return SUCCESS;
  });
}
API cuMemsetD8_v2(Address to, unsigned char value, size_t bytes) {
  return cuMemsetD8Async(to, value, bytes, nullptr);
}
API cuMemsetD32Async(Address to, unsigned value, size_t count, void *stream) {
  BEGIN;
  Stream *known = stream_of(stream);
  if (!known) return INVALID_HANDLE;
  if (Result wrong = in_range(to, count * 4)) return wrong;
  return enqueue(known, [=] {
    if (!live(to, count * 4)) return fault(LAUNCH_FAILED, "memory is set that is not there");
    for (size_t i = 0; i < count; i++) reinterpret_cast<unsigned *>(to)[i] = value;
    return SUCCESS;
  });
}
}

} // namespace twin
