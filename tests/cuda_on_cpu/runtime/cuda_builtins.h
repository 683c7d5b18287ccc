// CUDA C++ for g++: included in front of every CUDA source.
//
// Arithmetic is the host's, in IEEE single and double precision without contraction. The fast functions
// (__expf and the like) are the exact ones: a test must not depend on their last bits.
#pragma once
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "emulator.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __EMULATED_CUDA__ 1
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF INFINITY
#define CUDART_NAN NAN

// --- barriers

#define __syncthreads() emulator::emulator_barrier(emulator::Wait::barrier, 0, __LINE__)
#define __syncthreads_count(p) emulator::emulator_barrier(emulator::Wait::barrier_count, (p) != 0, __LINE__)
#define __syncthreads_and(p) emulator::emulator_barrier(emulator::Wait::barrier_and, (p) != 0, __LINE__)
#define __syncthreads_or(p) emulator::emulator_barrier(emulator::Wait::barrier_or, (p) != 0, __LINE__)
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// --- shared memory: compile_source.py turns declarations into these

template <class Array>
inline Array& emulated_shared(int slot, const char* name) {
  return *static_cast<Array*>(emulator::emulator_shared(slot, name, sizeof(Array)));
}
template <class Element>
inline Element* emulated_dynamic_shared() {
  return static_cast<Element*>(emulator::emulator_dynamic_shared());
}

// --- warps

#define EMULATED_WARP(kind, mask, ...) \
  emulator::emulator_warp(emulator::Wait::kind, (mask), __VA_ARGS__, __LINE__)
#define __syncwarp(...) EMULATED_WARP(syncwarp, emulated_mask(__VA_ARGS__), 0, 0)
#define __activemask() unsigned(EMULATED_WARP(activemask, ~0u, 0, 0))
#define __ballot_sync(mask, p) unsigned(EMULATED_WARP(vote, mask, (p) != 0, 0))
#define __any_sync(mask, p) int(__ballot_sync(mask, p) != 0)
#define __all_sync(mask, p) int(__ballot_sync(mask, !(p)) == 0)
inline unsigned emulated_mask(unsigned mask = ~0u) { return mask; }

inline int emulated_lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
}

template <class T>
T emulated_shuffle(unsigned mask, T value, int lane, int line) {
  static_assert(sizeof(T) <= 8, "CUDA shuffles at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = emulator::emulator_warp(emulator::Wait::shuffle, mask, bits, lane, line);
  memcpy(&value, &bits, sizeof(T));
  return value;
}
// The lane read from, in a group of `width` lanes; a lane outside the group means one's own.
inline int emulated_lane_at(int lane, int width = warpSize) {
  return (emulated_lane() & -width) + (lane & (width - 1));
}
inline int emulated_lane_up(int delta, int width = warpSize) {
  int lane = emulated_lane() - delta;
  return lane < (emulated_lane() & -width) ? emulated_lane() : lane;
}
inline int emulated_lane_down(int delta, int width = warpSize) {
  int lane = emulated_lane() + delta;
  return lane >= (emulated_lane() & -width) + width ? emulated_lane() : lane;
}
inline int emulated_lane_xor(int bits, int width = warpSize) {
  int lane = emulated_lane() ^ bits;
  return lane >= (emulated_lane() & -width) + width ? emulated_lane() : lane;
}
#define EMULATED_SHUFFLE(how, mask, value, ...) \
  emulated_shuffle((mask), (value), emulated_lane_##how(__VA_ARGS__), __LINE__)
#define __shfl_sync(mask, value, ...) EMULATED_SHUFFLE(at, mask, value, __VA_ARGS__)
#define __shfl_up_sync(mask, value, ...) EMULATED_SHUFFLE(up, mask, value, __VA_ARGS__)
#define __shfl_down_sync(mask, value, ...) EMULATED_SHUFFLE(down, mask, value, __VA_ARGS__)
#define __shfl_xor_sync(mask, value, ...) EMULATED_SHUFFLE(xor, mask, value, __VA_ARGS__)

// --- bits

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
// Of the eight bytes of y and x; a selector's fourth bit, which repeats a byte's sign, is not used here.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i) found |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return found;
}
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
  return y;
}
inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
inline int __mulhi(int a, int b) { return (long long)a * b >> 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += int(int8_t(a >> i)) * int8_t(b >> i);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 32; i += 8) c += unsigned(uint8_t(a >> i)) * uint8_t(b >> i);
  return c;
}

template <class To, class From>
inline To emulated_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }

// --- atomics: plain code, since one thread runs at a time

#define EMULATED_UNCHECKED __attribute__((noinline, no_sanitize("kernel-address", "thread")))
#ifndef EMULATED_ATOMIC  // which check an atomic access makes
#define EMULATED_ATOMIC(address, size)
#endif
template <class T, class... Allowed>
constexpr bool emulated_one_of = (std::is_same<T, Allowed>::value || ...);

#define EMULATED_ATOMIC_FUNCTION(name, new_value, ...)                                    \
  template <class T>                                                                      \
  EMULATED_UNCHECKED T name(T* address, typename std::common_type<T>::type value) {       \
    static_assert(emulated_one_of<T, __VA_ARGS__>, "CUDA has no " #name " of this type"); \
    EMULATED_ATOMIC(address, sizeof(T));                                                  \
    T old = *address;                                                                     \
    *address = new_value;                                                                 \
    return old;                                                                           \
  }
typedef unsigned long long emulated_ull;
struct __half;
EMULATED_ATOMIC_FUNCTION(atomicAdd, T(old + value), int, unsigned, emulated_ull, float, double, __half)
EMULATED_ATOMIC_FUNCTION(atomicSub, T(old - value), int, unsigned)
EMULATED_ATOMIC_FUNCTION(atomicExch, value, int, unsigned, emulated_ull, float)
EMULATED_ATOMIC_FUNCTION(atomicMin, value < old ? value : old, int, unsigned, emulated_ull, long long)
EMULATED_ATOMIC_FUNCTION(atomicMax, value > old ? value : old, int, unsigned, emulated_ull, long long)
EMULATED_ATOMIC_FUNCTION(atomicAnd, T(old& value), int, unsigned, emulated_ull)
EMULATED_ATOMIC_FUNCTION(atomicOr, T(old | value), int, unsigned, emulated_ull)
EMULATED_ATOMIC_FUNCTION(atomicXor, T(old ^ value), int, unsigned, emulated_ull)
EMULATED_ATOMIC_FUNCTION(atomicInc, old >= value ? 0 : old + 1, unsigned)
EMULATED_ATOMIC_FUNCTION(atomicDec, old == 0 || old > value ? value : old - 1, unsigned)

template <class T>
EMULATED_UNCHECKED T atomicCAS(T* address, typename std::common_type<T>::type compare,
                               typename std::common_type<T>::type value) {
  static_assert(emulated_one_of<T, int, unsigned, emulated_ull, unsigned short>,
                "CUDA has no atomicCAS of this type");
  EMULATED_ATOMIC(address, sizeof(T));
  T old = *address;
  if (old == compare) *address = value;
  return old;
}

// --- arithmetic

template <class A, class B>
inline typename std::common_type<A, B>::type min(A a, B b) {
  static_assert(std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, "min of numbers");
  typedef typename std::common_type<A, B>::type T;
  if constexpr (std::is_floating_point<T>::value)
    return fmin(T(a), T(b));
  else
    return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B>
inline typename std::common_type<A, B>::type max(A a, B b) {
  static_assert(std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, "max of numbers");
  typedef typename std::common_type<A, B>::type T;
  if constexpr (std::is_floating_point<T>::value)
    return fmax(T(a), T(b));
  else
    return T(a) > T(b) ? T(a) : T(b);
}

template <class T>
__forceinline__ T __ldg(const T* address) {
  return *address;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return fminf(fmaxf(a, 0), 1); }
inline float rsqrtf(float a) { return 1 / sqrtf(a); }
inline double rsqrt(double a) { return 1 / sqrt(a); }
inline int __float2int_rn(float a) { return lrintf(a); }
inline int __float2int_rd(float a) { return floorf(a); }
inline int __float2int_ru(float a) { return ceilf(a); }
inline int __float2int_rz(float a) { return a; }
inline float __int2float_rn(int a) { return a; }
// Macros, since glibc declares functions of these names.
#define __expf expf
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __exp10f(x) powf(10.0f, x)
#define exp10f(x) powf(10.0f, x)

#include "vector_types.h"
#include "half.h"
#include "tensor_cores.h"
#include "launch.h"

// g++ counts the steps of a kernel (see scheduler.cpp), but not those of a loop that it has emptied.
extern "C" void __sanitizer_cov_trace_pc();
#define while(...) while (__sanitizer_cov_trace_pc(), (__VA_ARGS__))
