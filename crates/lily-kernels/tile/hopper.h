// Words of NVIDIA's compute capability 9.0 for CUDA texts: asynchronous copies, barriers in shared memory and
// warpgroup matrix products. NVIDIA's PTX manual, sections "Asynchronous Warpgroup Level Matrix Instructions" and
// "Parallel Synchronization and Communication Instructions", defines them.
#pragma once

// Address of shared memory as instructions want it.
METAL_FUNC uint shared_address(const void* pointer) { return uint(__cvta_generic_to_shared(pointer)); }

// Copies 16 bytes from device to shared memory; zeros where `valid` is false, and then nothing is read.
METAL_FUNC void copy_async_16(uint to, const void* from, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
METAL_FUNC void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last PENDING groups of this thread's copies have arrived.
template <int PENDING> METAL_FUNC void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Stores to shared memory become visible to wgmma and bulk copies; in each writing thread, before the barrier.
METAL_FUNC void fence_shared_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers and shared memory that the next products read are ready; all four warps.
METAL_FUNC void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
METAL_FUNC void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the last PENDING groups of products are done.
template <int PENDING> METAL_FUNC void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Describes a bfloat operand in shared memory whose rows of 64 elements (128 bytes) lie one behind the other, eight
// of them a 1,024-byte pattern in which the 16-byte word `w` of row `r` is at `w ^ r % 8`. The address is a multiple of
// 1,024, plus 32 bytes for each further 16 elements along the row.
METAL_FUNC ulong swizzled_operand(uint address) {
    return ulong((address & 0x3ffff) >> 4) | ulong(1) << 16 | ulong(1024 >> 4) << 32 | ulong(1) << 62;
}

// Barriers in shared memory, 8 bytes each, which count arrivals and alternate between two phases. A wait returns when
// the phase of that parity has ended; that of parity 1 has ended before the first one begins.
METAL_FUNC void barrier_init(uint barrier, uint arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
METAL_FUNC void barrier_arrive(uint barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives once all copies that this thread has asked for are done.
METAL_FUNC void barrier_arrive_after_copies(uint barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// The whole warp calls it, and goes on together.
METAL_FUNC void barrier_wait(uint barrier, uint parity) {
    uint done;
    do {
        asm volatile("{ .reg .pred done;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, done; }" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!__all_sync(0xffffffffu, done != 0));
}
// As barrier_wait(), each thread for itself.
METAL_FUNC void barrier_wait_alone(uint barrier, uint parity) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra ready;\nbra again;\nready:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
// Barrier of one warpgroup; `name` from 1 to 15.
METAL_FUNC void warpgroup_barrier(uint name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }

// Copies 16 bytes from device to shared memory if `valid`, and more of the line to the cache.
METAL_FUNC void copy_streamed_16(uint to, const void* from, bool valid) {
    asm volatile("{ .reg .pred valid;\n setp.ne.u32 valid, %2, 0;\n"
                 "@valid cp.async.cg.shared.global.L2::128B [%0], [%1], 16; }"
                 ::"r"(to), "l"(from), "r"(uint(valid)) : "memory");
}
METAL_FUNC uint4 load_shared_16(uint from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
    return v;
}
// Loads 16 bytes if `wanted`, and leaves `v` alone otherwise.
METAL_FUNC void load_shared_16_if(uint4& v, uint from, bool wanted) {
    asm volatile("{ .reg .pred wanted;\n setp.ne.u32 wanted, %5, 0;\n"
                 "@wanted ld.shared.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "r"(from), "r"(uint(wanted)));
}

// The low word of swizzled_operand, to which numbers of 16-byte words can be added; the high one is the same for all.
METAL_FUNC uint swizzled_operand_low(uint address) { return (address & 0x3ffff) >> 4 | 1u << 16; }

#define SUMS_16(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]), \
        "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_1 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_2 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_3 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// The descriptor's high word: eight rows every 1,024 bytes, a swizzle of 128 bytes.
#define PRODUCT(n, names, a_names, b_low, ...) \
    asm volatile("{ .reg .b64 b;\n mov.b64 b, {" b_low ", 0x40000040};\n" \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" names "}, {" a_names "}, b, 1, 1, 1, 0; }" \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low_word))

// sums [64, N] += a bᵀ: a bfloat [64, 16] in registers, b [N, 16] described by the low word of its descriptor. A warp
// owns 16 rows; lane 4g + c has of row g + 8r the columns 8i + 2c + j in sums[4i + 2r + j], and of a the columns 2c and
// 2c + 1 of rows g and g + 8, then the same 8 columns further on.
template <uint N> METAL_FUNC void multiply_accumulate(float (&sums)[N / 2], const uint (&a)[4], uint b_low_word) {
    if constexpr (N == 32) {
        PRODUCT("32", NAMES_0, "%16, %17, %18, %19", "%20", SUMS_16(sums, 0));
    } else if constexpr (N == 64) {
        PRODUCT("64", NAMES_0 NAMES_1, "%32, %33, %34, %35", "%36", SUMS_16(sums, 0), SUMS_16(sums, 16));
    } else if constexpr (N == 96) {
        PRODUCT("96", NAMES_0 NAMES_1 NAMES_2, "%48, %49, %50, %51", "%52", SUMS_16(sums, 0), SUMS_16(sums, 16),
                SUMS_16(sums, 32));
    } else {
        static_assert(N == 128, "32, 64, 96 or 128 columns");
        PRODUCT("128", NAMES_0 NAMES_1 NAMES_2 NAMES_3, "%64, %65, %66, %67", "%68", SUMS_16(sums, 0),
                SUMS_16(sums, 16), SUMS_16(sums, 32), SUMS_16(sums, 48));
    }
}
