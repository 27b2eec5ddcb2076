// Built-in arguments of kernels.
#pragma once
#include "lily_simd.h"

template <typename T> struct lily_builtin_of {
    static METAL_FUNC T get(uint x, uint y, uint z) { return (T)x; }
};
template <typename E> struct lily_builtin_of<lily_vec<E, 2>> {
    static METAL_FUNC lily_vec<E, 2> get(uint x, uint y, uint z) { return lily_vec<E, 2>((E)x, (E)y); }
};
template <typename E> struct lily_builtin_of<lily_vec<E, 3>> {
    static METAL_FUNC lily_vec<E, 3> get(uint x, uint y, uint z) { return lily_vec<E, 3>((E)x, (E)y, (E)z); }
};
struct lily_dim {
    uint x, y, z;
};
template <typename T> METAL_FUNC T lily_builtin(lily_dim d) { return lily_builtin_of<T>::get(d.x, d.y, d.z); }
METAL_FUNC lily_dim lily_threadgroup_position_in_grid() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
METAL_FUNC lily_dim lily_thread_position_in_threadgroup() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
METAL_FUNC lily_dim lily_thread_position_in_grid() {
    return {blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
            blockIdx.z * blockDim.z + threadIdx.z};
}
METAL_FUNC lily_dim lily_threads_per_threadgroup() { return {blockDim.x, blockDim.y, blockDim.z}; }
METAL_FUNC lily_dim lily_threadgroups_per_grid() { return {gridDim.x, gridDim.y, gridDim.z}; }
METAL_FUNC lily_dim lily_threads_per_grid() {
    return {gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z};
}
// Threadgroups have one axis.
METAL_FUNC lily_dim lily_thread_index_in_threadgroup() { return {threadIdx.x, 0, 0}; }
METAL_FUNC lily_dim lily_simdgroups_per_threadgroup() { return {(blockDim.x + 31) / 32, 1, 1}; }
METAL_FUNC lily_dim lily_thread_index_in_simdgroup() { return {metal::lily_lane(), 0, 0}; }
// The shuffle tells the compiler that the value is the same for the whole warp.
METAL_FUNC lily_dim lily_simdgroup_index_in_threadgroup() {
    return {__shfl_sync(0xffffffffu, lily_thread_index_in_threadgroup().x / 32, 0), 0, 0};
}
METAL_FUNC lily_dim lily_threads_per_simdgroup() { return {32, 1, 1}; }
// Kernels of a plan overlap at their borders (programmatic dependent launch): the blocks of this one may start
// while the one before it ends. It waits until that one has ended and its stores are seen: at its start, or where
// the text says so, behind loads of what no kernel writes. Without such a launch this is no operation.
METAL_FUNC void lily_wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#define wait_for_previous_kernel() lily_wait_for_previous_kernel()
using metal::vec;
