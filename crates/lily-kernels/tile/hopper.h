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
