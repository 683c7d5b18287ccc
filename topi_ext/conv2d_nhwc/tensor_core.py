"""Tensor core instructions and asynchronous copies, as CUDA functions that a kernel calls by name.

TVM can emit the rest of a kernel, but not these instructions in a form that also runs on the emulated device
of the tests. So kernels call the functions below, and `provide` inserts their source before CUDA code that
uses them. Operands of matrix instructions are pieces of 16 bytes in shared memory: eight values along the
reduction, or sixteen of int8. An instruction takes two pieces; sums are float32, and of int8 they are int32.

- `copy_async<bytes>(to, from, inside)`: copies 16, 8, 4 or 2 bytes into shared memory, or zeros. The copy is
  complete after `copy_commit()` and `copy_wait<groups>()`; other threads need a barrier after that.
- `copy_few<bytes>(to, from, count)`: copies `count` values of so many bytes from any address into a piece,
  and fills it up with zeros; synchronous.
- `team_barrier<threads>(id)`: a barrier of this many threads, whole warps; `id` is 1 to 15.
- `load_matrices<count>(out, from)`: ldmatrix, four or two matrices of 8 x 8.
- `load_transposed(out, from)`: ldmatrix of four matrices, each transposed.
- `multiply<type>(sums, a, b)`: mma, 16 x 8 sums of a warp.
- `multiply_async<type, n>(sums, a, ..., b, ..., keep, pieces)`: wgmma, 64 x n sums of four warps. Each of
  them has 16 rows, distributed as for `multiply`. If `keep` is 0, sums start from 0. In shared memory, 8 rows
  of an operand are contiguous, of `pieces` pieces each: one, or 2, 4 or 8 that are swizzled, of which the
  instruction takes two. `a_step` and `b_step` lead to the next piece along the reduction where a row has one,
  `a_rows` and `b_rows` to the next 8 rows, all in bytes. The call must be between `begin_async()` and
  `commit_async()`, and is complete after `wait_async<groups>()`. It reads what was copied before
  `see_copies()` and a barrier.
- `store_values<type, count>(to, values)`: rounds float32 values to a type, int8 as the operator does, and
  stores them. `load<bytes>(words, from)` reads some; `unpack<type>(word, which)` is one of those in a word.
- `power_of_2(x)`: in one instruction.
- `settle<count>(sums)`: keeps nvcc from moving accesses to the sums across it.
"""

from __future__ import annotations

import re

import tvm

from .._cuda_source import change_by
from .._tvm import register_function

NAMESPACE = "topi_ext_tc"
C_TYPES = {"float16": "half", "bfloat16": "nv_bfloat16", "float32": "float", "int8": "signed char"}
PTX_TYPES = {"float16": "f16", "bfloat16": "bf16", "int8": "s8"}  # of operands

_SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
namespace topi_ext_tc {
template <int kBytes> struct Bits {};
template <> struct Bits<1> { typedef unsigned char type; };
template <> struct Bits<2> { typedef unsigned short type; };
template <> struct Bits<4> { typedef unsigned type; };
template <> struct Bits<8> { typedef uint2 type; };
template <> struct Bits<16> { typedef uint4 type; };

template <int kBytes>
__device__ __forceinline__ void copy_now(void* to, const void* from, bool inside) {
  typedef typename Bits<kBytes>::type T;
  T value = T();
  if (inside) value = *(const T*)from;
  *(T*)to = value;
}
template <int kBytes> __device__ __forceinline__ void copy_few(void* to, const void* from, int count) {
  typedef typename Bits<kBytes>::type T;
  union {
    uint4 piece;
    T values[16 / kBytes];
  } all;
  all.piece = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < 16 / kBytes; ++i) {
    if (i < count) all.values[i] = ((const T*)from)[i];
  }
  *(uint4*)to = all.piece;
}
__device__ __forceinline__ float to_float(half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(float x) { return x; }
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ half from_float<half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ nv_bfloat16 from_float<nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
// Conversions between int8 and float have an eighth of the throughput of sums: these are sums. From 2^23 to
// 2^24, the last bits of a float are an integer.
template <> __device__ __forceinline__ signed char from_float<signed char>(float x) {
  return (signed char)__float_as_int(fmaxf(fminf(x, 127.0f), -128.0f) + 12582912.0f);
}
union Two {
  unsigned bits;
  unsigned short halves[2];
};
template <class T> __device__ __forceinline__ unsigned pack(float x, float y) {
  T a = from_float<T>(x), b = from_float<T>(y);
  Two two;
  two.halves[0] = *(unsigned short*)&a;
  two.halves[1] = *(unsigned short*)&b;
  return two.bits;
}
template <class T> __device__ __forceinline__ float unpack(unsigned word, int which) {
  typename Bits<sizeof(T)>::type part = (typename Bits<sizeof(T)>::type)(word >> (8 * sizeof(T) * which));
  return to_float(*(T*)&part);
}
template <> __device__ __forceinline__ float unpack<signed char>(unsigned word, int which) {
  return __uint_as_float(__byte_perm(0x4b000000, word ^ 0x80808080, 0x3214 | which)) - 8388736.0f;
}
// Values in words, stored to or loaded from kBytes contiguous bytes.
template <int kBytes> __device__ __forceinline__ void store(void* to, const unsigned* words) {
  if constexpr (kBytes > 16) {
    store<16>(to, words);
    store<kBytes - 16>((char*)to + 16, words + 4);
  } else if constexpr (kBytes == 16) {
    *(uint4*)to = make_uint4(words[0], words[1], words[2], words[3]);
  } else if constexpr (kBytes == 8) {
    *(uint2*)to = make_uint2(words[0], words[1]);
  } else {
    *(typename Bits<kBytes>::type*)to = (typename Bits<kBytes>::type)words[0];
  }
}
template <class T, int kCount> __device__ __forceinline__ void store_values(void* to, const float* values) {
  typedef typename Bits<sizeof(T)>::type Part;
  union {
    unsigned words[(kCount * sizeof(T) + 3) / 4];
    Part parts[kCount];
  } all;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    T value = from_float<T>(values[i]);
    all.parts[i] = *(Part*)&value;
  }
  store<kCount * sizeof(T)>(to, all.words);
}
template <int kBytes> __device__ __forceinline__ void load(unsigned* words, const void* from) {
  if constexpr (kBytes > 16) {
    load<16>(words, from);
    load<kBytes - 16>(words + 4, (const char*)from + 16);
  } else if constexpr (kBytes == 16) {
    uint4 v = *(const uint4*)from;
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  } else if constexpr (kBytes == 8) {
    uint2 v = *(const uint2*)from;
    words[0] = v.x, words[1] = v.y;
  } else {
    words[0] = *(const typename Bits<kBytes>::type*)from;
  }
}
template <class T> struct Sum { typedef float type; };
template <> struct Sum<signed char> { typedef int type; };
__device__ __forceinline__ void put(void* to, float value) { *(float*)to = value; }
template <int kCount> __device__ __forceinline__ void get(float* values, const void* from) {
#pragma unroll
  for (int i = 0; i + 1 < kCount; i += 2) {
    float2 v = ((const float2*)from)[i / 2];
    values[i] = v.x, values[i + 1] = v.y;
  }
  if (kCount % 2) values[kCount - 1] = ((const float*)from)[kCount - 1];
}

#ifdef __EMULATED_CUDA__
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
  copy_now<kBytes>(to, from, inside);
}
template <int kThreads> inline void team_barrier(int id) {
  emulator::emulator_named_barrier(id, kThreads, __LINE__);
}
inline void copy_commit() {}
inline float power_of_2(float x) { return exp2f(x); }
template <int kGroups> inline void copy_wait() {}
template <int kCount> inline void load_matrices(unsigned* out, const void* from) {
  emulated_ldmatrix<kCount>(out, from);
}
inline void load_transposed(unsigned* out, const void* from) { emulated_ldmatrix_trans(out, from); }
template <class T>
inline void multiply(typename Sum<T>::type* sums, const unsigned* a, const unsigned* b) {
  emulated_mma<T>(sums, a, b);
}
inline void see_copies() {}
inline void begin_async() {}
inline void commit_async() {}
template <int kGroups> inline void wait_async() {}
template <int kCount, class S> inline void settle(S*) {}
template <class T, int N>
inline void multiply_async(typename Sum<T>::type* sums, const void* a, int a_step, int a_rows, const void* b,
                           int b_step, int b_rows, int keep, int pieces) {
  emulated_wgmma<T, N>(sums, a, a_step, a_rows, b, b_step, b_rows, keep, pieces);
}
#else
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(inside ? 16 : 0) : "memory");
  } else if constexpr (kBytes >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from),
                 "n"(kBytes), "r"(inside ? kBytes : 0) : "memory");
  } else {
    copy_now<kBytes>(to, from, inside);
  }
#else
  copy_now<kBytes>(to, from, inside);
#endif
}
template <int kThreads> __device__ __forceinline__ void team_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
// exp2f also cares for results that are no normal numbers; here they are 0.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ void copy_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kGroups> __device__ __forceinline__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}
template <int kCount> __device__ __forceinline__ void load_matrices(unsigned* out, const void* from) {
  if constexpr (kCount == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(shared_address(from))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1]) : "r"(shared_address(from)) : "memory");
  }
}
__device__ __forceinline__ void load_transposed(unsigned* out, const void* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(shared_address(from))
               : "memory");
}
template <class T>
__device__ __forceinline__ void multiply(typename Sum<T>::type* d, const unsigned* a, const unsigned* b);
template <>
__device__ __forceinline__ void multiply<half>(float* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
               "{%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
               "{%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
               "{%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}
template <>
__device__ __forceinline__ void multiply<nv_bfloat16>(float* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
               "{%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
template <>
__device__ __forceinline__ void multiply<signed char>(int* d, const unsigned* a, const unsigned* b) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
               "{%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // the upper and the lower eight rows, of the first and the second piece
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(d[i % 2 * 2]), "+r"(d[i % 2 * 2 + 1]) : "r"(a[i]), "r"(b[i / 2]));
  }
#endif
}
// What follows needs sm_90a.
__device__ __forceinline__ void see_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void begin_async() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_async() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kGroups> __device__ __forceinline__ void wait_async() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Accesses to the sums by anything but wgmma are not moved across this.
template <int kCount> __device__ __forceinline__ void settle(float* sums) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int kCount> __device__ __forceinline__ void settle(int* sums) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(sums[i])::"memory");
}
// The address, the step along the reduction, the step to the next 8 rows, in units of 16 bytes; the swizzle.
__device__ __forceinline__ unsigned long long describe(const void* from, int step, int rows, int pieces) {
  unsigned long long swizzle = pieces == 8 ? 1 : pieces == 4 ? 2 : pieces == 2 ? 3 : 0;
  return (unsigned long long)(shared_address(from) >> 4) | (unsigned long long)(step >> 4) << 16 |
         (unsigned long long)(rows >> 4) << 32 | swizzle << 62;
}
template <class T, int N>
__device__ __forceinline__ void multiply_async(typename Sum<T>::type* sums, const void* a, int a_step,
                                               int a_rows, const void* b, int b_step, int b_rows, int keep,
                                               int pieces);
//WGMMA
#endif
}  // namespace topi_ext_tc
"""


def _wgmma(dtype: str, n: int) -> str:
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    sum_type, letter = ("int", "r") if dtype == "int8" else ("float", "f")
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    kind = PTX_TYPES[dtype]
    shape = f"m64n{n}k32.s32.{kind}.{kind}" if dtype == "int8" else f"m64n{n}k16.f32.{kind}.{kind}"
    # Of floats, also factors of both operands and which of these are transposed.
    more = "" if dtype == "int8" else ", 1, 1, 0, 0"
    return f"""template <>
__device__ __forceinline__ void multiply_async<{C_TYPES[dtype]}, {n}>(
    {sum_type}* d, const void* a, int a_step, int a_rows, const void* b, int b_step, int b_rows, int keep,
    int pieces) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; "
               "wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, "
               "%{count}, %{count + 1}, p{more}; }}"
               : {outputs}
               : "l"(describe(a, a_step, a_rows, pieces)), "l"(describe(b, b_step, b_rows, pieces)),
                 "r"(keep));
}}
"""


def name(function: str) -> str:
    """The full name of one of these functions, as CUDA code calls it."""
    return f"{NAMESPACE}::{function}"


def provide(code: str) -> str:
    """The CUDA code, after the source of the functions above if it calls any of them."""
    if NAMESPACE not in code:
        return code
    dtypes = {c_type: dtype for dtype, c_type in C_TYPES.items()}
    found = re.findall(rf"{NAMESPACE}::multiply_async<([\w ]+), (\d+)>", code)
    needed = [_wgmma(dtypes[c_type], int(n)) for c_type, n in sorted(set(found))]
    code = code.replace("extern __shared__ uchar", "extern __shared__ __align__(1024) uchar")  # for swizzles
    return _SOURCE.replace("//WGMMA\n", "".join(needed)) + code


def _compile_for_all_of_hopper() -> None:
    """Compile code with wgmma for sm_90a: sm_90 does not include wgmma, though the GPUs are the same."""
    name = "tvm_callback_cuda_compile"
    compile_cuda = tvm.get_global_func(name, allow_missing=True)
    if compile_cuda is None:
        return

    @register_function(name)
    def compile_wgmma_for_sm_90a(code: str, *target: tvm.target.Target) -> bytearray:
        if "wgmma.mma_async" not in code:
            return compile_cuda(code, *target)
        with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}):
            return compile_cuda(code, *target)


change_by(provide)
_compile_for_all_of_hopper()
