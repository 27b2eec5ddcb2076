// Math: plain names are the fast forms, as under Metal's default fast math.
#pragma once
#include "lily_vectors.h"

namespace metal {

namespace precise {
METAL_FUNC float exp(float x) { return ::expf(x); }
METAL_FUNC float exp2(float x) { return ::exp2f(x); }
METAL_FUNC float log(float x) { return ::logf(x); }
METAL_FUNC float sqrt(float x) { return __fsqrt_rn(x); }
METAL_FUNC float rsqrt(float x) { return __frsqrt_rn(x); }
METAL_FUNC float tanh(float x) { return ::tanhf(x); }
METAL_FUNC float divide(float x, float y) { return __fdiv_rn(x, y); }
}  // namespace precise
METAL_FUNC float exp2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
METAL_FUNC float exp(float x) { return exp2(x * 1.44269504088896340736f); }
METAL_FUNC float log2(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
METAL_FUNC float log(float x) { return log2(x) * 0.69314718055994530942f; }
METAL_FUNC float rsqrt(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
METAL_FUNC float sqrt(float x) {
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
METAL_FUNC float tanh(float x) { return ::tanhf(x); }
METAL_FUNC float sin(float x) { return __sinf(x); }
METAL_FUNC float cos(float x) { return __cosf(x); }
METAL_FUNC float pow(float x, float y) { return __powf(x, y); }
namespace fast {
using metal::cos;
using metal::exp;
using metal::exp2;
using metal::log;
using metal::log2;
using metal::pow;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
using metal::tanh;
METAL_FUNC float divide(float x, float y) { return __fdividef(x, y); }
}  // namespace fast
METAL_FUNC float floor(float x) { return ::floorf(x); }
METAL_FUNC float ceil(float x) { return ::ceilf(x); }
METAL_FUNC float rint(float x) { return ::rintf(x); }
METAL_FUNC float trunc(float x) { return ::truncf(x); }
METAL_FUNC float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
template <int N>
METAL_FUNC lily_vec<float, N> fma(const lily_vec<float, N>& a, const lily_vec<float, N>& b,
                                  const lily_vec<float, N>& c) {
    lily_vec<float, N> r;
    _Pragma("unroll") for (int i = 0; i < N; i++) r[i] = __fmaf_rn(a[i], b[i], c[i]);
    return r;
}
METAL_FUNC float min(float a, float b) { return fminf(a, b); }
METAL_FUNC float max(float a, float b) { return fmaxf(a, b); }
METAL_FUNC int min(int a, int b) { return a < b ? a : b; }
METAL_FUNC int max(int a, int b) { return a < b ? b : a; }
METAL_FUNC uint min(uint a, uint b) { return a < b ? a : b; }
METAL_FUNC uint max(uint a, uint b) { return a < b ? b : a; }
template <typename T> METAL_FUNC T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }
METAL_FUNC float abs(float x) { return fabsf(x); }
template <typename T> METAL_FUNC T select(T a, T b, bool c) { return c ? b : a; }
template <typename T, int N> METAL_FUNC T dot(const lily_vec<T, N>& a, const lily_vec<T, N>& b) {
    T s = a[0] * b[0];
    _Pragma("unroll") for (int i = 1; i < N; i++) s = s + a[i] * b[i];
    return s;
}
METAL_FUNC uint popcount(uint x) { return __popc(x); }
METAL_FUNC uint clz(uint x) { return __clz(x); }
METAL_FUNC uint ctz(uint x) { return x ? __ffs(x) - 1 : 32; }
METAL_FUNC uint mulhi(uint a, uint b) { return __umulhi(a, b); }
METAL_FUNC uint extract_bits(uint x, uint off, uint n) {
    uint r;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(off), "r"(n));
    return r;
}

}  // namespace metal
