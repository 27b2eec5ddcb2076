// Relaxed atomics on device and threadgroup memory. Loads and stores are read-modify-write operations
// here: clang does not instrument those as plain accesses.
#pragma once
#include "lily_vectors.h"

#ifdef LILY_CHECKED
#define LILY_SPACES(X) X()
#else
#define LILY_SPACES(X) X(device) X(threadgroup)
#endif

namespace metal {

enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T lily_value; };
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;

#define LILY_FETCH(space, name, builtin) \
    template <typename T> \
    METAL_FUNC T atomic_fetch_##name##_explicit(volatile space atomic<T>* p, T v, memory_order) { \
        ::lily_rt::atomic_access((const volatile void*)p, sizeof(T), true); \
        return builtin(&((volatile atomic<T>*)p)->lily_value, v, __ATOMIC_RELAXED); \
    }
#define LILY_ATOMICS(space) \
    template <typename T> METAL_FUNC T atomic_load_explicit(const volatile space atomic<T>* p, memory_order) { \
        ::lily_rt::atomic_access((const volatile void*)p, sizeof(T), false); \
        return as_type<T>(__atomic_fetch_or((volatile uint*)p, 0u, __ATOMIC_RELAXED)); \
    } \
    template <typename T> METAL_FUNC void atomic_store_explicit(volatile space atomic<T>* p, T v, memory_order) { \
        ::lily_rt::atomic_access((const volatile void*)p, sizeof(T), true); \
        (void)__atomic_exchange_n((volatile uint*)p, as_type<uint>(v), __ATOMIC_RELAXED); \
    } \
    LILY_FETCH(space, add, __atomic_fetch_add) \
    LILY_FETCH(space, sub, __atomic_fetch_sub) \
    LILY_FETCH(space, or, __atomic_fetch_or) \
    LILY_FETCH(space, and, __atomic_fetch_and) \
    LILY_FETCH(space, max, __atomic_fetch_max) \
    LILY_FETCH(space, min, __atomic_fetch_min)
LILY_SPACES(LILY_ATOMICS)

}  // namespace metal
