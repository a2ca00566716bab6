// Numbers on the device: intrinsics, conversions, bits, atomics, loads with hints. Included by
// emulate.h.
#pragma once

// ---- conversions of bits ----
namespace emulate {
template <class To, class From> inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
} // namespace emulate
inline unsigned __float_as_uint(float x) { return emulate::bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulate::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emulate::bits<float>(x); }
inline float __int_as_float(int x) { return emulate::bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulate::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulate::bits<double>(x); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double((long long)high << 32 | (unsigned)low);
}
inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return (int)__double_as_longlong(x); }

// ---- integers ----
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
  return y;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((unsigned long long)a * b >> 32);
}
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    unsigned pick = selector >> (4 * i) & 15;
    unsigned byte = both >> (8 * (pick & 7)) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// ---- reals: fast intrinsics are exact here ----
inline float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return (float)pow(10.0, (double)x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1.0f : 0.0f; }

// A conversion on the device saturates, and gives 0 for NaN.
namespace emulate {
template <class To> inline To convert(double x) {
  using Limits = std::numeric_limits<To>;
  if (x != x) return sizeof(To) == 8 && Limits::is_signed ? Limits::min() : To{0};
  if (x <= (double)Limits::min()) return Limits::min();
  if (x >= (double)Limits::max()) return Limits::max();
  return (To)x;
}
} // namespace emulate
#define ROLLTAPE_CONVERSIONS(real, to, name)                                              \
  inline to __##real##2##name##_rn(real x) { return emulate::convert<to>(nearbyint(x)); } \
  inline to __##real##2##name##_rz(real x) { return emulate::convert<to>(trunc(x)); }     \
  inline to __##real##2##name##_rd(real x) { return emulate::convert<to>(floor(x)); }     \
  inline to __##real##2##name##_ru(real x) { return emulate::convert<to>(ceil(x)); }
ROLLTAPE_CONVERSIONS(float, int, int)
ROLLTAPE_CONVERSIONS(float, unsigned, uint)
ROLLTAPE_CONVERSIONS(float, long long, ll)
ROLLTAPE_CONVERSIONS(float, unsigned long long, ull)
ROLLTAPE_CONVERSIONS(double, int, int)
ROLLTAPE_CONVERSIONS(double, unsigned, uint)
ROLLTAPE_CONVERSIONS(double, long long, ll)
ROLLTAPE_CONVERSIONS(double, unsigned long long, ull)
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __ll2float_rn(long long x) { return (float)x; }
inline float __ull2float_rn(unsigned long long x) { return (float)x; }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return (double)x; }
inline double __ull2double_rn(unsigned long long x) { return (double)x; }
inline float __double2float_rn(double x) { return (float)x; }

// ---- memory ----
template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
template <class T> inline T __ldca(const T *p) { return *p; }
template <class T> inline T __ldlu(const T *p) { return *p; }
template <class T> inline void __stcs(T *p, T value) { *p = value; }
template <class T> inline void __stcg(T *p, T value) { *p = value; }
template <class T> inline void __stwb(T *p, T value) { *p = value; }
inline unsigned __cvta_generic_to_shared(const void *p) {
  emulate::fail("__cvta_generic_to_shared(%p): keep it where the PTX is", p);
}

// ---- atomics: one thread runs at a time here, so a plain update is atomic ----
namespace emulate {
template <class T, class Update> ROLLTAPE_UNWATCHED T atomic(T *p, Update update) {
  note_atomic(p, sizeof(T));
  T old;
  memcpy(&old, p, sizeof old);
  T now = update(old);
  memcpy(p, &now, sizeof now);
  return old;
}
template <class T> struct Same { using Type = T; };
template <class T> using Value = typename Same<T>::Type;  // is not deduced from
} // namespace emulate
template <class T> inline T atomicAdd(T *p, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T old) { return old + v; });
}
template <class T> inline T atomicSub(T *p, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T old) { return old - v; });
}
template <class T> inline T atomicMin(T *p, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T old) { return v < old ? v : old; });
}
template <class T> inline T atomicMax(T *p, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T old) { return old < v ? v : old; });
}
template <class T> inline T atomicAnd(T *p, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T old) { return old & v; });
}
template <class T> inline T atomicOr(T *p, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T old) { return old | v; });
}
template <class T> inline T atomicXor(T *p, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T old) { return old ^ v; });
}
template <class T> inline T atomicExch(T *p, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T) { return v; });
}
template <class T> inline T atomicCAS(T *p, emulate::Value<T> expected, emulate::Value<T> v) {
  return emulate::atomic(p, [=](T old) { return old == expected ? v : old; });
}
inline unsigned atomicInc(unsigned *p, unsigned limit) {
  return emulate::atomic(p, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}
