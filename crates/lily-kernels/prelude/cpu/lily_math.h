// Math. The CPU always uses the precise forms; GPUs use fast ones where `precise::` is not written.
#pragma once
#include "lily_vectors.h"

#define LILY_UNARY(name, builtin) \
    METAL_FUNC float name(float x) { return builtin(x); }
#define LILY_MATH \
    LILY_UNARY(exp, __builtin_expf) \
    LILY_UNARY(exp2, __builtin_exp2f) \
    LILY_UNARY(log, __builtin_logf) \
    LILY_UNARY(log2, __builtin_log2f) \
    LILY_UNARY(sqrt, __builtin_sqrtf) \
    LILY_UNARY(tanh, __builtin_tanhf) \
    LILY_UNARY(sin, __builtin_sinf) \
    LILY_UNARY(cos, __builtin_cosf) \
    METAL_FUNC float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); } \
    METAL_FUNC float pow(float x, float y) { return __builtin_powf(x, y); } \
    METAL_FUNC float divide(float x, float y) { return x / y; }

namespace metal {

LILY_MATH
namespace precise {
LILY_MATH
}
namespace fast {
LILY_MATH
}
LILY_UNARY(floor, __builtin_floorf)
LILY_UNARY(ceil, __builtin_ceilf)
LILY_UNARY(rint, __builtin_rintf)
LILY_UNARY(trunc, __builtin_truncf)

template <typename T> METAL_FUNC T fma(T a, T b, T c) {
    if constexpr (lily_vec<T>::n == 1) {
        return __builtin_fmaf(a, b, c);
    } else {
        T r;
        for (int i = 0; i < lily_vec<T>::n; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
        return r;
    }
}

template <typename T> METAL_FUNC T min(T a, T b) {
    if constexpr (lily_vec<T>::n == 1) {
        return b < a ? b : a;
    } else {
        T r;
        for (int i = 0; i < lily_vec<T>::n; i++) r[i] = b[i] < a[i] ? b[i] : a[i];
        return r;
    }
}

template <typename T> METAL_FUNC T max(T a, T b) {
    if constexpr (lily_vec<T>::n == 1) {
        return a < b ? b : a;
    } else {
        T r;
        for (int i = 0; i < lily_vec<T>::n; i++) r[i] = a[i] < b[i] ? b[i] : a[i];
        return r;
    }
}

template <typename T> METAL_FUNC T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <typename T> METAL_FUNC T abs(T a) { return a < T(0) ? -a : a; }
template <typename T> METAL_FUNC T select(T a, T b, bool c) { return c ? b : a; }

template <typename T> METAL_FUNC typename lily_vec<T>::elem dot(T a, T b) {
    typename lily_vec<T>::elem s = a[0] * b[0];
    for (int i = 1; i < lily_vec<T>::n; i++) s = s + a[i] * b[i];
    return s;
}

METAL_FUNC uint popcount(uint x) { return __builtin_popcount(x); }
METAL_FUNC uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
METAL_FUNC uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
METAL_FUNC uint mulhi(uint a, uint b) { return (uint)(((ulong)a * b) >> 32); }
METAL_FUNC uint extract_bits(uint x, uint offset, uint bits) {
    return bits == 0 ? 0 : (x >> offset) & (0xffffffffu >> (32 - bits));
}

}  // namespace metal
