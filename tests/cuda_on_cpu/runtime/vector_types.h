// CUDA's vector types, with CUDA's sizes and alignments.
#pragma once

#define EMULATED_VECTORS(T, name, two, four)                         \
  struct name##1 { T x; };                                           \
  struct __align__(two) name##2 { T x, y; };                         \
  struct name##3 { T x, y, z; };                                     \
  struct __align__(four) name##4 { T x, y, z, w; };                  \
  inline name##1 make_##name##1(T x) { return {x}; }                 \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTORS(signed char, char, 2, 4)
EMULATED_VECTORS(unsigned char, uchar, 2, 4)
EMULATED_VECTORS(short, short, 4, 8)
EMULATED_VECTORS(unsigned short, ushort, 4, 8)
EMULATED_VECTORS(int, int, 8, 16)
EMULATED_VECTORS(unsigned, uint, 8, 16)
EMULATED_VECTORS(long, long, 16, 16)
EMULATED_VECTORS(unsigned long, ulong, 16, 16)
EMULATED_VECTORS(long long, longlong, 16, 16)
EMULATED_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATED_VECTORS(float, float, 8, 16)
EMULATED_VECTORS(double, double, 16, 16)
#undef EMULATED_VECTORS
