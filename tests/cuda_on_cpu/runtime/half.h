// half and bfloat16: each operation is done in single precision and rounded to nearest even, which for
// + - * / is the correctly rounded result.
#pragma once

// `kExponent` bits of exponent, and as many bits of fraction as the sign leaves.
template <int kExponent>
struct emulated_float16 {
  static uint16_t from_float(float value) {
    constexpr int fraction = 15 - kExponent, drop = 23 - fraction;
    constexpr int bias = (1 << (kExponent - 1)) - 1, all_ones = (1 << kExponent) - 1;
    unsigned x = emulated_bits<unsigned>(value), magnitude = x & 0x7fffffff;
    unsigned sign = x >> 16 & 0x8000, infinity = unsigned(all_ones) << fraction;
    if (magnitude > 0x7f800000) return sign | infinity | 1u << (fraction - 1);
    int exponent = int(magnitude >> 23) - 127 + bias;
    unsigned mantissa = (magnitude & 0x7fffff) | 0x800000, shift = drop;
    if (magnitude >> 23 == 0) mantissa = magnitude & 0x7fffff, exponent = 1 - 127 + bias;
    if (exponent < 1) shift += 1 - exponent, exponent = 1;
    if (shift > 25) return sign;
    unsigned kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
    if (rest > tie || (rest == tie && kept & 1)) ++kept;
    unsigned bits = (unsigned(exponent - 1) << fraction) + kept;  // a carry moves into the exponent
    return sign | (bits < infinity ? bits : infinity);
  }
  static float to_float(uint16_t bits) {
    constexpr int fraction = 15 - kExponent, bias = (1 << (kExponent - 1)) - 1;
    int exponent = bits >> fraction & ((1 << kExponent) - 1), mantissa = bits & ((1 << fraction) - 1);
    float sign = bits >> 15 ? -1 : 1;
    if (exponent == (1 << kExponent) - 1) return sign * (mantissa ? NAN : INFINITY);
    if (exponent == 0) return sign * ldexpf(mantissa, 1 - bias - fraction);
    return sign * ldexpf(mantissa + (1 << fraction), exponent - bias - fraction);
  }
};

#define EMULATED_SMALL_FLOAT(Type, Format)                                                        \
  struct __align__(2) Type {                                                                      \
    uint16_t bits;                                                                                \
    Type() = default;                                                                             \
    template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>                    \
    Type(T value) : bits(Format::from_float(float(value))) {}                                     \
    operator float() const { return Format::to_float(bits); }                                     \
    operator float() const volatile { return Format::to_float(bits); }                            \
    Type& operator+=(Type b) { return *this = float(*this) + float(b); }                          \
    Type& operator-=(Type b) { return *this = float(*this) - float(b); }                          \
    Type& operator*=(Type b) { return *this = float(*this) * float(b); }                          \
    Type& operator/=(Type b) { return *this = float(*this) / float(b); }                          \
  };                                                                                              \
  inline Type operator+(Type a, Type b) { return float(a) + float(b); }                           \
  inline Type operator-(Type a, Type b) { return float(a) - float(b); }                           \
  inline Type operator*(Type a, Type b) { return float(a) * float(b); }                           \
  inline Type operator/(Type a, Type b) { return float(a) / float(b); }                           \
  inline Type operator-(Type a) { return -float(a); }                                             \
  inline bool operator==(Type a, Type b) { return float(a) == float(b); }                         \
  inline bool operator!=(Type a, Type b) { return float(a) != float(b); }                         \
  inline bool operator<(Type a, Type b) { return float(a) < float(b); }                           \
  inline bool operator<=(Type a, Type b) { return float(a) <= float(b); }                         \
  inline bool operator>(Type a, Type b) { return float(a) > float(b); }                           \
  inline bool operator>=(Type a, Type b) { return float(a) >= float(b); }                         \
  inline Type __hadd(Type a, Type b) { return a + b; }                                            \
  inline Type __hsub(Type a, Type b) { return a - b; }                                            \
  inline Type __hmul(Type a, Type b) { return a * b; }                                            \
  inline Type __hdiv(Type a, Type b) { return a / b; }                                            \
  inline Type __hneg(Type a) { return -a; }                                                       \
  inline Type __habs(Type a) { return fabsf(a); }                                                 \
  inline Type __hfma(Type a, Type b, Type c) { return float(double(a) * double(b) + double(c)); } \
  inline bool __heq(Type a, Type b) { return a == b; }                                            \
  inline bool __hne(Type a, Type b) { return a != b; }                                            \
  inline bool __hlt(Type a, Type b) { return a < b; }                                             \
  inline bool __hle(Type a, Type b) { return a <= b; }                                            \
  inline bool __hgt(Type a, Type b) { return a > b; }                                             \
  inline bool __hge(Type a, Type b) { return a >= b; }                                            \
  inline bool __hisnan(Type a) { return isnan(float(a)); }                                        \
  inline Type __hmax(Type a, Type b) { return fmaxf(a, b); }                                      \
  inline Type __hmin(Type a, Type b) { return fminf(a, b); }                                      \
  inline Type hexp(Type a) { return expf(a); }                                                    \
  inline Type hexp2(Type a) { return exp2f(a); }                                                  \
  inline Type hexp10(Type a) { return powf(10, a); }                                              \
  inline Type hlog(Type a) { return logf(a); }                                                    \
  inline Type hlog2(Type a) { return log2f(a); }                                                  \
  inline Type hlog10(Type a) { return log10f(a); }                                                \
  inline Type hsqrt(Type a) { return sqrtf(a); }                                                  \
  inline Type hrsqrt(Type a) { return 1 / sqrtf(a); }                                             \
  inline Type hrcp(Type a) { return 1 / float(a); }                                               \
  inline Type hsin(Type a) { return sinf(a); }                                                    \
  inline Type hcos(Type a) { return cosf(a); }                                                    \
  inline Type hfloor(Type a) { return floorf(a); }                                                \
  inline Type hceil(Type a) { return ceilf(a); }                                                  \
  inline Type htrunc(Type a) { return truncf(a); }                                                \
  inline Type hrint(Type a) { return rintf(a); }                                                  \
  inline Type __ldg(const Type* address) { return *address; }                                     \
  struct __align__(4) Type##2 {                                                                   \
    Type x, y;                                                                                    \
    Type##2() = default;                                                                          \
    Type##2(Type x, Type y) : x(x), y(y) {}                                                       \
  };                                                                                              \
  inline Type##2 __halves2##Type##2(Type x, Type y) { return {x, y}; }                            \
  inline Type __low2##Type(Type##2 a) { return a.x; }                                             \
  inline Type __high2##Type(Type##2 a) { return a.y; }                                            \
  inline Type##2 __hadd2(Type##2 a, Type##2 b) { return {a.x + b.x, a.y + b.y}; }                 \
  inline Type##2 __hsub2(Type##2 a, Type##2 b) { return {a.x - b.x, a.y - b.y}; }                 \
  inline Type##2 __hmul2(Type##2 a, Type##2 b) { return {a.x * b.x, a.y * b.y}; }                 \
  inline Type##2 __hfma2(Type##2 a, Type##2 b, Type##2 c) {                                       \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                        \
  }                                                                                               \
  inline Type##2 operator+(Type##2 a, Type##2 b) { return __hadd2(a, b); }                        \
  inline Type##2 operator-(Type##2 a, Type##2 b) { return __hsub2(a, b); }                        \
  inline Type##2 operator*(Type##2 a, Type##2 b) { return __hmul2(a, b); }

EMULATED_SMALL_FLOAT(__half, emulated_float16<5>)
typedef __half half;
typedef __half2 half2;
inline half __float2half(float a) { return a; }
inline half __float2half_rn(float a) { return a; }
inline float __half2float(half a) { return a; }
inline half __int2half_rn(int a) { return a; }
inline int __half2int_rz(half a) { return float(a); }
inline unsigned short __half_as_ushort(half a) { return a.bits; }
inline half __ushort_as_half(unsigned short a) { return emulated_bits<half>(a); }
inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half2 __half2half2(half a) { return {a, a}; }
inline half2 __float2half2_rn(float a) { return {a, a}; }
inline half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline float2 __half22float2(half2 a) { return {a.x, a.y}; }
inline half __low2half(half2 a) { return a.x; }
inline half __high2half(half2 a) { return a.y; }
inline float __low2float(half2 a) { return a.x; }
inline float __high2float(half2 a) { return a.y; }

EMULATED_SMALL_FLOAT(__nv_bfloat16, emulated_float16<8>)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
inline nv_bfloat16 __float2bfloat16(float a) { return a; }
inline nv_bfloat16 __float2bfloat16_rn(float a) { return a; }
inline float __bfloat162float(nv_bfloat16 a) { return a; }
inline nv_bfloat162 make_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }
