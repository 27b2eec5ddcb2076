// Vectors: clang's own, with Metal's constructors.
#pragma once
#include "lily_words.h"

#define LILY_VECTORS(T) \
    typedef T T##2 __attribute__((ext_vector_type(2))); \
    typedef T T##3 __attribute__((ext_vector_type(3))); \
    typedef T T##4 __attribute__((ext_vector_type(4)));
LILY_VECTORS(char)
LILY_VECTORS(uchar)
LILY_VECTORS(short)
LILY_VECTORS(ushort)
LILY_VECTORS(int)
LILY_VECTORS(uint)
LILY_VECTORS(long)
LILY_VECTORS(ulong)
LILY_VECTORS(half)
LILY_VECTORS(bfloat)
LILY_VECTORS(float)

namespace metal {

template <typename T, int N> using vec = T __attribute__((ext_vector_type(N)));

// Element type and width; a scalar has width 1.
template <typename T> struct lily_vec {
    typedef T elem;
    static const int n = 1;
};
template <typename T, int N> struct lily_vec<T __attribute__((ext_vector_type(N)))> {
    typedef T elem;
    static const int n = N;
};

// V(arguments): one scalar is repeated, one vector of the same width is converted, several arguments are
// put one after another.
template <typename V> struct lily_make {
    typedef typename lily_vec<V>::elem E;
    static constexpr int N = lily_vec<V>::n;

    template <typename A> METAL_FUNC static V make(A a) {
        if constexpr (lily_vec<A>::n == 1) {
            return (V)(E)a;
        } else {
            static_assert(lily_vec<A>::n == N, "vector width");
            return __builtin_convertvector(a, V);
        }
    }
    template <typename A, typename B, typename... R> METAL_FUNC static V make(A a, B b, R... r) {
        V v;
        fill<0>(v, a, b, r...);
        return v;
    }
    template <int AT> METAL_FUNC static void fill(V&) {
        static_assert(AT == N, "vector needs as many elements as its width");
    }
    template <int AT, typename A, typename... R> METAL_FUNC static void fill(V& v, A a, R... r) {
        static_assert(AT + lily_vec<A>::n <= N, "too many elements for the vector");
        if constexpr (lily_vec<A>::n == 1) {
            v[AT] = (E)a;
        } else {
            for (int i = 0; i < lily_vec<A>::n; i++) v[AT + i] = (E)a[i];
        }
        fill<AT + lily_vec<A>::n>(v, r...);
    }
};

template <typename To, typename From> METAL_FUNC To as_type(From f) {
    static_assert(sizeof(To) == sizeof(From), "as_type needs equal sizes");
    return __builtin_bit_cast(To, f);
}

}  // namespace metal
