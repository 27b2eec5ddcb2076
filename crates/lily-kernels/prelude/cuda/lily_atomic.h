// Relaxed atomics.
#pragma once
#include "lily_vectors.h"

namespace metal {

enum memory_order { memory_order_relaxed };
template <typename T> struct atomic {
    T lily_value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;
template <typename T> METAL_FUNC T atomic_load_explicit(const volatile atomic<T>* p, memory_order) {
    return p->lily_value;
}
template <typename T> METAL_FUNC void atomic_store_explicit(volatile atomic<T>* p, T v, memory_order) {
    p->lily_value = v;
}
#define LILY_RMW(name, fn) \
    template <typename T> METAL_FUNC T atomic_fetch_##name##_explicit(volatile atomic<T>* p, T v, memory_order) { \
        return fn((T*)&p->lily_value, v); \
    }
LILY_RMW(add, atomicAdd)
LILY_RMW(sub, atomicSub)
LILY_RMW(or, atomicOr)
LILY_RMW(and, atomicAnd)
LILY_RMW(max, atomicMax)
LILY_RMW(min, atomicMin)

}  // namespace metal
