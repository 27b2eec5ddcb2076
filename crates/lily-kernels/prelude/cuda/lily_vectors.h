// Vectors with Metal's constructors and operators.
#pragma once
#include "lily_words.h"

template <typename T, int N> struct lily_vec;
template <typename T> struct lily_vec_info {
    typedef T elem;
    static constexpr int n = 1;
};
template <typename T, int N> struct lily_vec_info<lily_vec<T, N>> {
    typedef T elem;
    static constexpr int n = N;
};
template <typename A, typename B> struct lily_same {
    static constexpr bool value = false;
};
template <typename A> struct lily_same<A, A> {
    static constexpr bool value = true;
};

template <typename T, int N> struct lily_vec_data;
template <typename T> struct alignas(2 * sizeof(T)) lily_vec_data<T, 2> {
    T x, y;
};
template <typename T> struct alignas(4 * sizeof(T)) lily_vec_data<T, 3> {
    T x, y, z;
};
template <typename T> struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) lily_vec_data<T, 4> {
    T x, y, z, w;
};

template <typename T, int N> struct lily_vec : lily_vec_data<T, N> {
    lily_vec() = default;
    METAL_FUNC T& operator[](int i) { return (&this->x)[i]; }
    METAL_FUNC const T& operator[](int i) const { return (&this->x)[i]; }
    METAL_FUNC lily_vec(T s) {  // a scalar splats
#pragma unroll
        for (int i = 0; i < N; i++) (*this)[i] = s;
    }
    template <typename U> METAL_FUNC explicit lily_vec(lily_vec<U, N> o) {
        if constexpr (lily_same<T, bfloat>::value && lily_same<U, float>::value && N % 2 == 0) {
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                uint r;
                asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(o[i + 1]), "f"(o[i]));
                (*this)[i].b = (ushort)r;
                (*this)[i + 1].b = (ushort)(r >> 16);
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) (*this)[i] = T(o[i]);
        }
    }
    template <typename A, typename B, typename... R> METAL_FUNC lily_vec(A a, B b, R... r) { fill<0>(a, b, r...); }
    template <int AT> METAL_FUNC void fill() {
        static_assert(AT == N, "vector needs as many elements as its width");
    }
    template <int AT, typename A, typename... R> METAL_FUNC void fill(A a, R... r) {
        static_assert(AT + lily_vec_info<A>::n <= N, "too many elements for the vector");
        if constexpr (lily_vec_info<A>::n == 1)
            (*this)[AT] = T(a);
        else {
#pragma unroll
            for (int i = 0; i < lily_vec_info<A>::n; i++) (*this)[AT + i] = T(a[i]);
        }
        fill<AT + lily_vec_info<A>::n>(r...);
    }
};
#define LILY_VOP(op) \
    template <typename T, int N> \
    METAL_FUNC lily_vec<T, N> operator op(const lily_vec<T, N>& a, const lily_vec<T, N>& b) { \
        lily_vec<T, N> r; \
        _Pragma("unroll") for (int i = 0; i < N; i++) r[i] = a[i] op b[i]; \
        return r; \
    } \
    template <typename T, int N> METAL_FUNC lily_vec<T, N> operator op(const lily_vec<T, N>& a, T b) { \
        lily_vec<T, N> r; \
        _Pragma("unroll") for (int i = 0; i < N; i++) r[i] = a[i] op b; \
        return r; \
    } \
    template <typename T, int N> METAL_FUNC lily_vec<T, N> operator op(T a, const lily_vec<T, N>& b) { \
        lily_vec<T, N> r; \
        _Pragma("unroll") for (int i = 0; i < N; i++) r[i] = a op b[i]; \
        return r; \
    } \
    template <typename T, int N, typename B> \
    METAL_FUNC lily_vec<T, N>& operator op##=(lily_vec<T, N>& a, const B & b) { \
        a = a op b; \
        return a; \
    }
LILY_VOP(+)
LILY_VOP(-)
LILY_VOP(*)
LILY_VOP(/)
LILY_VOP(&)
LILY_VOP(|)
LILY_VOP(^)
LILY_VOP(>>)
LILY_VOP(<<)

template <typename T, int N> METAL_FUNC lily_vec<T, N> operator-(const lily_vec<T, N>& a) {
    lily_vec<T, N> r;
#pragma unroll
    for (int i = 0; i < N; i++) r[i] = -a[i];
    return r;
}

// The names of CUDA's own vector types are taken over.
#define LILY_VECS(T) \
    typedef lily_vec<T, 2> lily_##T##2; \
    typedef lily_vec<T, 3> lily_##T##3; \
    typedef lily_vec<T, 4> lily_##T##4;
LILY_VECS(char)
LILY_VECS(uchar)
LILY_VECS(short)
LILY_VECS(ushort)
LILY_VECS(int)
LILY_VECS(uint)
LILY_VECS(half)
LILY_VECS(bfloat)
LILY_VECS(float)
typedef lily_vec<lily_ulong, 2> lily_ulong2;

#define char2 lily_char2
#define char3 lily_char3
#define char4 lily_char4
#define uchar2 lily_uchar2
#define uchar3 lily_uchar3
#define uchar4 lily_uchar4
#define short2 lily_short2
#define short3 lily_short3
#define short4 lily_short4
#define ushort2 lily_ushort2
#define ushort3 lily_ushort3
#define ushort4 lily_ushort4
#define int2 lily_int2
#define int3 lily_int3
#define int4 lily_int4
#define uint2 lily_uint2
#define uint3 lily_uint3
#define uint4 lily_uint4
#define half2 lily_half2
#define half3 lily_half3
#define half4 lily_half4
#define bfloat2 lily_bfloat2
#define bfloat3 lily_bfloat3
#define bfloat4 lily_bfloat4
#define float2 lily_float2
#define float3 lily_float3
#define float4 lily_float4
#define ulong2 lily_ulong2

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#define FLT_MAX 3.402823466e+38f
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f

template <typename To, typename From> METAL_FUNC To as_type(const From& f) {
    static_assert(sizeof(To) == sizeof(From), "as_type needs equal sizes");
    return __builtin_bit_cast(To, f);
}

// NVRTC declares C math functions at global scope: keep clear of their names.
#define exp lily_exp
#define exp2 lily_exp2
#define log lily_log
#define log2 lily_log2
#define sqrt lily_sqrt
#define rsqrt lily_rsqrt
#define tanh lily_tanh
#define sin lily_sin
#define cos lily_cos
#define pow lily_pow
#define floor lily_floor
#define ceil lily_ceil
#define rint lily_rint
#define trunc lily_trunc
#define fma lily_fma
#define min lily_min
#define max lily_max
#define abs lily_abs

namespace metal {

template <typename T, int N> using vec = lily_vec<T, N>;
template <bool B, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> {
    typedef T type;
};
template <bool B, typename T = void> using enable_if_t = typename enable_if<B, T>::type;
template <typename A, typename B> constexpr bool is_same_v = lily_same<A, B>::value;
template <bool B, typename T, typename F> struct conditional {
    typedef T type;
};
template <typename T, typename F> struct conditional<false, T, F> {
    typedef F type;
};
template <bool B, typename T, typename F> using conditional_t = typename conditional<B, T, F>::type;

}  // namespace metal
