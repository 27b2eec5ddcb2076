// Metal's words for NVRTC, sm_80 and up; needs no CUDA header. Compile with
// --device-as-default-execution-space: plain functions are device code. There is one generic address space: the
// MSL test device checks the qualifiers.
#pragma once

#define __METAL_CUDA__ 1
#define device
#define constant const
#define threadgroup
#define thread
#define METAL_FUNC __device__ __forceinline__

// What the translator writes: a kernel function, its least number of resident threadgroups, an array.
#define LILY_KERNEL static __device__ __forceinline__
#ifndef LILY_MIN_BLOCKS
#define LILY_MIN_BLOCKS 1
#endif
#define LILY_STRIP_(...) __VA_ARGS__
#define LILY_STRIP(x) LILY_STRIP_ x
#define LILY_THREADGROUP(type, name, dims, index) __shared__ LILY_STRIP(type) name dims;

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long lily_ulong;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
#define ulong lily_ulong

// bfloat and half are storage types: arithmetic needs an explicit float(x).
struct alignas(2) bfloat {
    ushort b;
    bfloat() = default;
    METAL_FUNC explicit bfloat(float f) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(f)); }
    METAL_FUNC explicit operator float() const { return __uint_as_float((uint)b << 16); }
};
struct alignas(2) half {
    ushort b;
    half() = default;
    METAL_FUNC explicit half(float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(f)); }
    METAL_FUNC explicit operator float() const {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(b));
        return f;
    }
};
