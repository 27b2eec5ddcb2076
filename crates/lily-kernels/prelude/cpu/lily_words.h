// Metal's words for clang: address spaces, functions, scalar types.
//
// By default address spaces are real: device, constant and threadgroup pointers do not convert into one
// another or into thread ones. With LILY_CHECKED they are dropped, because clang instruments no access
// through them; the runtime then checks every access.
#pragma once
#include "lily_runtime.h"

#define __METAL_CPU__ 1

#ifdef LILY_CHECKED
#define LILY_SPACE(n)
#else
#define LILY_SPACE(n) __attribute__((address_space(n)))
#endif
#define device LILY_SPACE(1)
#define constant const LILY_SPACE(2)
#define threadgroup LILY_SPACE(3)
#define thread /* the default; the translator checks that it is written */
#define METAL_FUNC inline __attribute__((always_inline))

// What the translator writes: a kernel function, its entry point, a threadgroup array.
#define LILY_KERNEL static inline __attribute__((always_inline))
#define LILY_EXPORT extern "C" __attribute__((visibility("default")))
#define LILY_STRIP_(...) __VA_ARGS__
#define LILY_STRIP(x) LILY_STRIP_ x
#define LILY_THREADGROUP(type, name, dims, index) \
    typedef LILY_STRIP(type) name##_array dims; \
    threadgroup name##_array& name = *(threadgroup name##_array*)::lily_rt::threadgroup_array( \
        index, LILY_HERE, sizeof(name##_array), alignof(name##_array) > 16 ? alignof(name##_array) : 16);

// The place of a call, as a default argument of the function called.
#define LILY_HERE \
    (::lily_rt::Place{__builtin_FILE(), \
        uint32_t(__builtin_LINE() * 1024 + (__builtin_COLUMN() < 1023 ? __builtin_COLUMN() : 1023))})
#define LILY_PLACE ::lily_rt::Place place = LILY_HERE

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX __FLT_MAX__
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f

namespace metal {

template <bool B, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { typedef T type; };
template <bool B, typename T = void> using enable_if_t = typename enable_if<B, T>::type;
template <typename A, typename B> struct is_same { static constexpr bool value = false; };
template <typename A> struct is_same<A, A> { static constexpr bool value = true; };
template <typename A, typename B> constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, typename T, typename F> struct conditional { typedef T type; };
template <typename T, typename F> struct conditional<false, T, F> { typedef F type; };
template <bool B, typename T, typename F> using conditional_t = typename conditional<B, T, F>::type;

}  // namespace metal
