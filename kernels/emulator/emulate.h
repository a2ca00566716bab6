// The parts of CUDA C++ that the kernels use, for g++: compiled before base.cu and a family's text.
//
// Differences from nvcc, for which kernels must be written:
//   - dynamic shared memory is declared by base.cu's `DYNAMIC_SHARED(name);`, which here calls
//     `rolltape_dynamic_shared()`.
//   - `__shared__` arrays are declared in kernels, not in inline or template functions.
//   - inline PTX is in small functions under `#ifndef ROLLTAPE_EMULATED`; those of mma.cu
//     are in tensor.h here.
//   - `__activemask` is missing: no kernel may depend on the order of threads.
#pragma once
#include <cfloat>
#include <math.h>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime.h"

#define ROLLTAPE_EMULATED 1
// For accesses of the emulator itself, which it reports to the checks by note_read and the like.
#define ROLLTAPE_UNWATCHED __attribute__((no_sanitize("thread"), noinline))
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static __attribute__((section("emulated_shared")))
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__

// ---- types and indexes ----
#define ROLLTAPE_VECTORS(type, name, two, four)                                          \
  struct __align__(two) name##2 { type x, y; };                                          \
  struct name##3 { type x, y, z; };                                                      \
  struct __align__(four) name##4 { type x, y, z, w; };                                   \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                       \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }            \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
ROLLTAPE_VECTORS(char, char, 2, 4)
ROLLTAPE_VECTORS(unsigned char, uchar, 2, 4)
ROLLTAPE_VECTORS(short, short, 4, 8)
ROLLTAPE_VECTORS(unsigned short, ushort, 4, 8)
ROLLTAPE_VECTORS(int, int, 8, 16)
ROLLTAPE_VECTORS(unsigned, uint, 8, 16)
ROLLTAPE_VECTORS(long long, longlong, 16, 16)
ROLLTAPE_VECTORS(unsigned long long, ulonglong, 16, 16)
ROLLTAPE_VECTORS(float, float, 8, 16)
ROLLTAPE_VECTORS(double, double, 16, 16)

#define threadIdx (emulate::thread_index())
#define blockIdx (emulate::block_index())
#define blockDim (emulate::block_size())
#define gridDim (emulate::grid_size())
constexpr int warpSize = 32;

// ---- barriers and fences ----
inline void __syncthreads() { emulate::barrier(); }
inline int __syncthreads_count(int value) { return emulate::barrier_reduce('+', value); }
inline int __syncthreads_or(int value) { return emulate::barrier_reduce('|', value); }
inline int __syncthreads_and(int value) { return emulate::barrier_reduce('&', value); }
inline void __syncwarp(unsigned mask = 0xffffffff) { emulate::warp_barrier(mask); }
inline void __threadfence() { emulate::fence(); }
inline void __threadfence_block() {}
inline void __threadfence_system() { emulate::fence(); }
inline void __nanosleep(unsigned) {}
inline void __trap() { emulate::fail("trap"); }
inline long long clock64() { return 0; }

inline unsigned char *rolltape_dynamic_shared() {
  return reinterpret_cast<unsigned char *>(emulate::dynamic_shared());
}

// ---- operations of a warp ----
namespace emulate {

// Calls `all(mask, arguments)` once all lanes of `mask` have arrived, each with its own
// `Arguments`.
template <class Arguments, class All>
inline void meet(const char *name, unsigned mask, Arguments &arguments, All) {
  collective(name, mask, &arguments, [](unsigned mask, void **given) {
    All{}(mask, reinterpret_cast<Arguments **>(given));
  });
}

template <class T> struct Shuffle {
  T value, result;
  int argument, width;
};

// `source(lane, argument, width)` returns the lane to read, or -1 to keep the own value.
template <class T, class Source>
inline T shuffle(const char *name, unsigned mask, T value, int argument, int width, Source) {
  Shuffle<T> mine{value, value, argument, width};
  meet(name, mask, mine, [](unsigned mask, Shuffle<T> **all) {
    for (int lane = 0; lane < 32; lane++) {
      if (!(mask >> lane & 1)) continue;
      int from = Source{}(lane, all[lane]->argument, all[lane]->width);
      if (from < 0) continue;
      if (!(mask >> from & 1)) fail("a shuffle reads lane %d, which is not in its mask", from);
      all[lane]->result = all[from]->value;
    }
  });
  return mine.result;
}

constexpr char SHFL[] = "__shfl_sync", SHFL_UP[] = "__shfl_up_sync",
               SHFL_DOWN[] = "__shfl_down_sync", SHFL_XOR[] = "__shfl_xor_sync",
               BALLOT[] = "a vote", REDUCE[] = "__reduce_sync", MATCH[] = "__match_any_sync",
               MMA[] = "mma.sync", LDMATRIX[] = "ldmatrix";
} // namespace emulate

template <class T> inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  return emulate::shuffle(emulate::SHFL, mask, value, from, width,
                          [](int lane, int from, int width) {
                            return (lane & ~(width - 1)) + (from & (width - 1));
                          });
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return emulate::shuffle(emulate::SHFL_UP, mask, value, (int)by, width,
                          [](int lane, int by, int width) {
                            return (lane & (width - 1)) < by ? -1 : lane - by;
                          });
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return emulate::shuffle(emulate::SHFL_DOWN, mask, value, (int)by, width,
                          [](int lane, int by, int width) {
                            return (lane & (width - 1)) + by >= width ? -1 : lane + by;
                          });
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  return emulate::shuffle(emulate::SHFL_XOR, mask, value, by, width,
                          [](int lane, int by, int width) {
                            int from = lane ^ by;
                            return (from / width) > (lane / width) ? -1 : from;
                          });
}

namespace emulate {
struct Vote {
  unsigned long long value;
  unsigned result;
};
inline unsigned ballot(unsigned mask, bool predicate) {
  Vote mine{predicate, 0};
  meet(BALLOT, mask, mine, [](unsigned mask, Vote **all) {
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
      if (mask >> lane & 1) votes |= (unsigned)all[lane]->value << lane;
    for (int lane = 0; lane < 32; lane++)
      if (mask >> lane & 1) all[lane]->result = votes;
  });
  return mine.result;
}

template <class T, class Fold> inline T reduce(unsigned mask, T value, Fold) {
  Shuffle<T> mine{value, value, 0, 0};
  meet(REDUCE, mask, mine, [](unsigned mask, Shuffle<T> **all) {
    T sum{};
    bool first = true;
    for (int lane = 0; lane < 32; lane++) {
      if (!(mask >> lane & 1)) continue;
      sum = first ? all[lane]->value : Fold{}(sum, all[lane]->value);
      first = false;
    }
    for (int lane = 0; lane < 32; lane++)
      if (mask >> lane & 1) all[lane]->result = sum;
  });
  return mine.result;
}
} // namespace emulate

inline unsigned __ballot_sync(unsigned mask, int value) { return emulate::ballot(mask, value); }
inline int __any_sync(unsigned mask, int value) { return emulate::ballot(mask, value) != 0; }
inline int __all_sync(unsigned mask, int value) { return emulate::ballot(mask, value) == mask; }
template <class T> inline unsigned __match_any_sync(unsigned mask, T value) {
  emulate::Vote mine{0, 0};
  static_assert(sizeof(T) <= 8, "match takes 32 and 64 bits");
  memcpy(&mine.value, &value, sizeof value);
  emulate::meet(emulate::MATCH, mask, mine, [](unsigned mask, emulate::Vote **all) {
    for (int lane = 0; lane < 32; lane++)
      for (int other = 0; other < 32; other++)
        if (mask >> lane & 1 && mask >> other & 1 && all[lane]->value == all[other]->value)
          all[lane]->result |= 1u << other;
  });
  return mine.result;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return emulate::reduce(mask, value, [](unsigned a, unsigned b) { return a + b; });
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return (int)__reduce_add_sync(mask, (unsigned)value);
}
template <class T> inline T __reduce_min_sync(unsigned mask, T value) {
  return emulate::reduce(mask, value, [](T a, T b) { return a < b ? a : b; });
}
template <class T> inline T __reduce_max_sync(unsigned mask, T value) {
  return emulate::reduce(mask, value, [](T a, T b) { return a < b ? b : a; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return emulate::reduce(mask, value, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return emulate::reduce(mask, value, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
  return emulate::reduce(mask, value, [](unsigned a, unsigned b) { return a ^ b; });
}

#include "device_math.h"
#include "tensor.h"

// ---- for build.sh and for test programs ----
namespace emulate {
extern "C" char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));

template <auto function> struct Entry;
template <class... A, void (*function)(A...)> struct Entry<function> {
  static constexpr size_t sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
  template <size_t... I> static void call(void **arguments, std::index_sequence<I...>) {
    function(*static_cast<std::decay_t<A> *>(arguments[I])...);
  }
  static void invoke(void **arguments) { call(arguments, std::index_sequence_for<A...>{}); }
  static constexpr Kernel kernel(const char *name) {
    return {name, invoke, sizeof...(A), sizes};
  }
};

template <class... A> std::tuple<A...> parameter_types(void (*)(A...));

// Runs a kernel with these arguments.
template <auto function, class... Given> const char *launch_as(Launch launch, Given... given) {
  decltype(parameter_types(function)) values(given...);
  launch.invoke = Entry<function>::invoke;
  launch.shared_begin = __start_emulated_shared, launch.shared_end = __stop_emulated_shared;
  return std::apply(
      [&](auto &...value) {
        void *arguments[] = {(void *)&value..., nullptr};
        launch.arguments = arguments;
        return run(launch);
      },
      values);
}

// For test programs: `const char *error = emulate::launch<kernel>("kernel", grid, block, shared,
// arguments...)`. Arguments are converted as in a call.
template <auto function, class... Given>
const char *launch(const char *name, Index grid, Index block, unsigned shared, Given... given) {
  Launch launch = {name, nullptr, nullptr, grid, block, shared, nullptr, nullptr};
  return launch_as<function>(launch, given...);
}

// As `launch`, for a kernel that may begin before the one in front of it is over.
template <auto function, class... Given>
const char *launch_early(const char *name, Index grid, Index block, Blocks predecessor,
                         Given... given) {
  Launch launch = {name, nullptr, nullptr, grid, block, 0, nullptr, nullptr, true, predecessor};
  return launch_as<function>(launch, given...);
}
} // namespace emulate
