// Barriers and simdgroup functions; all 32 lanes take part, which the MSL test device checks.
#pragma once
#include "lily_math.h"

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr METAL_FUNC mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
METAL_FUNC void threadgroup_barrier(mem_flags) { __syncthreads(); }
METAL_FUNC void simdgroup_barrier(mem_flags) { __syncwarp(); }

#define LILY_ALL 0xffffffffu
METAL_FUNC uint lily_lane() {
    uint l;
    asm("mov.u32 %0, %%laneid;" : "=r"(l));
    return l;
}
template <typename T> METAL_FUNC T simd_shuffle(T v, ushort i) { return __shfl_sync(LILY_ALL, v, i); }
template <typename T> METAL_FUNC T simd_shuffle_xor(T v, ushort m) { return __shfl_xor_sync(LILY_ALL, v, m); }
template <typename T> METAL_FUNC T simd_shuffle_up(T v, ushort d) { return __shfl_up_sync(LILY_ALL, v, d); }
template <typename T> METAL_FUNC T simd_shuffle_down(T v, ushort d) { return __shfl_down_sync(LILY_ALL, v, d); }
template <typename T> METAL_FUNC T simd_broadcast(T v, ushort i) { return __shfl_sync(LILY_ALL, v, i); }
template <typename T> METAL_FUNC T simd_broadcast_first(T v) { return __shfl_sync(LILY_ALL, v, 0); }
METAL_FUNC float simd_sum(float v) {
    _Pragma("unroll") for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(LILY_ALL, v, d);
    return v;
}
METAL_FUNC uint simd_sum(uint v) { return __reduce_add_sync(LILY_ALL, v); }
METAL_FUNC int simd_sum(int v) { return __reduce_add_sync(LILY_ALL, v); }
METAL_FUNC uint simd_min(uint v) { return __reduce_min_sync(LILY_ALL, v); }
METAL_FUNC uint simd_max(uint v) { return __reduce_max_sync(LILY_ALL, v); }
METAL_FUNC int simd_min(int v) { return __reduce_min_sync(LILY_ALL, v); }
METAL_FUNC int simd_max(int v) { return __reduce_max_sync(LILY_ALL, v); }
METAL_FUNC uint simd_and(uint v) { return __reduce_and_sync(LILY_ALL, v); }
METAL_FUNC uint simd_or(uint v) { return __reduce_or_sync(LILY_ALL, v); }
METAL_FUNC uint simd_xor(uint v) { return __reduce_xor_sync(LILY_ALL, v); }
// A float as an int that compares the same way (no NaN), to use the integer reduction.
METAL_FUNC int lily_key(float f) {
    const int i = __float_as_int(f);
    return i ^ ((i >> 31) & 0x7fffffff);
}
METAL_FUNC float lily_unkey(int i) { return __int_as_float(i ^ ((i >> 31) & 0x7fffffff)); }
METAL_FUNC float simd_max(float v) { return lily_unkey(__reduce_max_sync(LILY_ALL, lily_key(v))); }
METAL_FUNC float simd_min(float v) { return lily_unkey(__reduce_min_sync(LILY_ALL, lily_key(v))); }
template <typename T> METAL_FUNC T simd_prefix_inclusive_sum(T v) {
    const uint l = lily_lane();
    _Pragma("unroll") for (uint d = 1; d < 32; d *= 2) {
        const T o = __shfl_up_sync(LILY_ALL, v, d);
        if (l >= d) v = v + o;
    }
    return v;
}
template <typename T> METAL_FUNC T simd_prefix_exclusive_sum(T v) {
    const T o = __shfl_up_sync(LILY_ALL, simd_prefix_inclusive_sum(v), 1);
    return lily_lane() ? o : T(0);
}
METAL_FUNC bool simd_all(bool b) { return __all_sync(LILY_ALL, b); }
METAL_FUNC bool simd_any(bool b) { return __any_sync(LILY_ALL, b); }

}  // namespace metal
