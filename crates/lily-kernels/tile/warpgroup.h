// Words for kernels whose warpgroups have roles, and a warpgroup's products at the widths that attention wants.
// NVIDIA's PTX manual, sections "setmaxnreg", "barrier.cluster" and "wgmma.mma_async", defines them.
#pragma once
#include "hopper.h"

// A hardware barrier, 1 to 15, of `threads` threads.
METAL_FUNC void threads_meet(uint barrier, uint threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Registers of each thread from here on, a multiple of 8; all warps of a warpgroup.
template <int COUNT> METAL_FUNC void registers_shrink() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> METAL_FUNC void registers_grow() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Floats to and from shared memory, by address.
METAL_FUNC void shared_store(uint to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}
METAL_FUNC float4 shared_load(uint from) {
    float x, y, z, w;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(from) : "memory");
    return float4(x, y, z, w);
}

// Clusters: blocks that read each other's shared memory. All threads that have not ended meet, and see what was stored.
METAL_FUNC void cluster_meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The place of `address` in the memory of the cluster's block `rank`.
METAL_FUNC uint cluster_address(uint address, uint rank) {
    uint there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
METAL_FUNC float2 cluster_load_2(uint from) {
    float x, y;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(from) : "memory");
    return float2(x, y);
}
METAL_FUNC float4 cluster_load_4(uint from) {
    float x, y, z, w;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(from) : "memory");
    return float4(x, y, z, w);
}

// Keeps the compiler from moving work on results of products across this place.
template <int N> METAL_FUNC void pin(float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(values[i])::"memory");
    }
}

// Describes the memory of swizzled_operand() for a factor that is summed over its rows: columns in slices of 64,
// `slice_bytes` from one to the next. Each further 16 rows are 2,048 bytes.
METAL_FUNC ulong swizzled_rows_operand(uint address, uint slice_bytes) {
    return swizzled_operand(address) - (ulong(1) << 16) + (ulong(slice_bytes >> 4) << 16);
}

#define LILY_SUMS_8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define LILY_SUMS_32(d, i) LILY_SUMS_8(d, i), LILY_SUMS_8(d, i + 8), LILY_SUMS_8(d, i + 16), LILY_SUMS_8(d, i + 24)

// Starts sums[64, 80] = a b^T over 16 elements, or += with `add`; both in shared memory as swizzled_operand() says.
// Lane l of warp w has two rows, 16 w + l / 4 and 8 further on: of each 8 columns two of the first row from 2 (l % 4)
// on, then two of the other.
METAL_FUNC void product_start(float (&sums)[40], ulong a, ulong b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %42, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39}, "
        "%40, %41, add, 1, 1, 0, 0;\n"
        "}"
        : LILY_SUMS_32(sums, 0), LILY_SUMS_8(sums, 32)
        : "l"(a), "l"(b), "r"(uint(add)));
}
// Starts sums[64, 256] += a b over 16 elements: `a` in registers, in pairs in the order that sums of 16 columns have,
// `b` as swizzled_rows_operand() says.
METAL_FUNC void product_start(float (&sums)[128], const uint (&a)[4], ulong b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
        : LILY_SUMS_32(sums, 0), LILY_SUMS_32(sums, 32), LILY_SUMS_32(sums, 64), LILY_SUMS_32(sums, 96)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
