// Checks of every memory access in checked builds, where clang calls back before each of them: bounds,
// races, threadgroup memory never written, misalignment, and what UBSan finds.
//
// A race is two accesses of one byte, one of them a write, by threads with no barrier between them that
// orders this memory. Barriers are counted: a threadgroup barrier orders all threads of the threadgroup, a
// simdgroup barrier those of the simdgroup; simd operations order nothing.
#include "engine.h"

namespace lily_rt {

enum Memory { THREADGROUP, DEVICE };

static const char* verb(bool write) { return write ? "write" : "read"; }

// Whether an access by `thread` of this threadgroup at these epochs comes before the running lane's.
static bool ordered(uint32_t thread, uint32_t epoch, uint16_t simd_epoch, Memory memory) {
    const Lane* me = current;
    if (thread == me->thread || epoch != engine->epoch[memory]) return true;
    return thread / 32 == me->thread / 32 && simd_epoch != (uint16_t)me->simd->epoch[memory];
}

static const Array* array_around(size_t offset, size_t bytes) {
    for (const Array& array : engine->arrays) {
        if (offset >= array.offset && offset + bytes <= array.offset + array.bytes) return &array;
    }
    return nullptr;
}

[[noreturn]] static void fail_outside_arrays(size_t offset, size_t bytes, bool write, uintptr_t pc) {
    const Array* near = nullptr;
    for (const Array& array : engine->arrays) {
        if (offset + bytes > array.offset) near = &array;
    }
    if (!near) fail_at(pc, "%s of %zu bytes outside threadgroup memory", verb(write), bytes);
    fail_at(pc, "%s of %zu bytes outside threadgroup memory: byte %zd of the %zu-byte array declared in line %u",
        verb(write), bytes, (ssize_t)(offset - near->offset), near->bytes, near->place.line());
}

// Whether a write now races with the reads since the last write.
static bool races_with_readers(const ThreadgroupCell& c) {
    if (!c.reader || c.read_epoch != engine->epoch[THREADGROUP]) return false;
    if (c.flags & MANY_SIMDGROUPS) return true;
    const uint32_t reader = c.reader - 1u;
    if (c.flags & MANY_READERS) {
        const bool same_simd = reader / 32 == current->thread / 32;
        return !(same_simd && c.read_simd_epoch != (uint16_t)current->simd->epoch[THREADGROUP]);
    }
    return !ordered(reader, c.read_epoch, c.read_simd_epoch, THREADGROUP);
}

static void note_read(ThreadgroupCell& c) {
    const uint32_t me = current->thread;
    if (!c.reader || ordered(c.reader - 1, c.read_epoch, c.read_simd_epoch, THREADGROUP)) {
        c.reader = me + 1;
        c.flags &= WAS_ATOMIC;
    } else {
        c.flags |= (c.reader - 1u) / 32 == me / 32 ? MANY_READERS : MANY_SIMDGROUPS;
    }
    c.read_epoch = engine->epoch[THREADGROUP];
    c.read_simd_epoch = current->simd->epoch[THREADGROUP];
}

static void check_threadgroup(size_t offset, size_t bytes, bool write, bool atomic, uintptr_t pc) {
    const Array* array = array_around(offset, bytes);
    if (!array) fail_outside_arrays(offset, bytes, write, pc);
    const uint32_t line = array->place.line();
    for (size_t i = offset; i < offset + bytes; i++) {
        ThreadgroupCell& c = engine->arena_shadow[i];
        const size_t byte = i - array->offset;
        if (!write && !c.writer) {
            fail_at(pc, "read of threadgroup memory never written: byte %zu of the array declared in line %u", byte, line);
        }
        const bool both_atomic = atomic && (c.flags & WAS_ATOMIC);
        if (c.writer && !both_atomic && !ordered(c.writer - 1, c.write_epoch, c.write_simd_epoch, THREADGROUP)) {
            fail_at(pc, "race on threadgroup memory: %s of byte %zu of the array declared in line %u, written by thread "
                "%u with no barrier between", verb(write), byte, line, c.writer - 1);
        }
        if (!write) {
            note_read(c);
            continue;
        }
        if (!both_atomic && races_with_readers(c)) {
            const char* others = c.flags & (MANY_READERS | MANY_SIMDGROUPS) ? " and others" : "";
            fail_at(pc, "race on threadgroup memory: write of byte %zu of the array declared in line %u, read by thread "
                "%u%s with no barrier between", byte, line, c.reader - 1, others);
        }
        c.writer = current->thread + 1;
        c.write_epoch = engine->epoch[THREADGROUP];
        c.write_simd_epoch = current->simd->epoch[THREADGROUP];
        c.reader = 0;
        c.flags = atomic ? WAS_ATOMIC : 0;
    }
}

// As `ordered`, for a thread of the grid: threadgroups are never ordered.
static bool ordered_in_grid(uint32_t thread, uint16_t epoch, uint16_t simd_epoch) {
    const uint32_t first = engine->group * MAX_THREADS;
    if (thread < first || thread >= first + MAX_THREADS) return false;
    if (epoch != (uint16_t)engine->epoch[DEVICE]) return true;
    return ordered(thread - first, engine->epoch[DEVICE], simd_epoch, DEVICE);
}

static void check_device(Slot* slot, intptr_t offset, size_t bytes, bool write, bool atomic, uintptr_t pc) {
    if (offset < 0 || (uint64_t)offset + bytes > slot->bytes) {
        fail_at(pc, "%s of %zu bytes at byte %zd of buffer(%d), which has %llu bytes", verb(write), bytes, (ssize_t)offset,
            argument_of(slot), (unsigned long long)slot->bytes);
    }
    if (!slot->writable) {
        if (write) fail_at(pc, "write to buffer(%d), which the kernel takes as read-only", argument_of(slot));
        return;
    }
    const uint32_t me = engine->group * MAX_THREADS + current->thread;
    const uint16_t epoch = engine->epoch[DEVICE], simd_epoch = current->simd->epoch[DEVICE];
    for (intptr_t i = offset; i < offset + (intptr_t)bytes; i++) {
        DeviceCell& c = slot->shadow[i];
        const bool was_atomic = c.writer >> 31;
        const uint32_t writer = c.writer & 0x7fffffffu;
        const bool both_atomic = was_atomic && atomic;
        if (writer && !both_atomic && !ordered_in_grid(writer - 1, c.write_epoch, c.write_simd_epoch)) {
            fail_at(pc, "race on device memory: %s of byte %zd of buffer(%d), written by threadgroup %u thread %u",
                verb(write), (ssize_t)i, argument_of(slot), (writer - 1) / MAX_THREADS, (writer - 1) % MAX_THREADS);
        }
        if (!write) {
            c.reader = me + 1;
            c.read_epoch = epoch;
            c.read_simd_epoch = simd_epoch;
            continue;
        }
        if (c.reader && !both_atomic && !ordered_in_grid(c.reader - 1, c.read_epoch, c.read_simd_epoch)) {
            fail_at(pc, "race on device memory: write of byte %zd of buffer(%d), read by threadgroup %u thread %u",
                (ssize_t)i, argument_of(slot), (c.reader - 1) / MAX_THREADS, (c.reader - 1) % MAX_THREADS);
        }
        c.writer = (me + 1) | (atomic ? 0x80000000u : 0);
        c.write_epoch = epoch;
        c.write_simd_epoch = simd_epoch;
        c.reader = 0;
    }
}

static void check_access(uintptr_t address, size_t bytes, bool write, bool atomic, uintptr_t pc) {
    if (!engine || !engine->in_kernel) return;
    const uintptr_t offset = address - (uintptr_t)engine->arena;
    if (offset < ARENA_BYTES) return check_threadgroup(offset, bytes, write, atomic, pc);
    if (Slot* slot = slot_of(address)) check_device(slot, address - (uintptr_t)slot->data, bytes, write, atomic, pc);
}

void atomic_access(const volatile void* p, size_t bytes, bool write) {
    if (engine->reverse) yield_lane();  // in this order, other lanes run between two atomic operations
    if (engine->checked) check_access((uintptr_t)p, bytes, write, true, (uintptr_t)__builtin_return_address(0));
}

}  // namespace lily_rt

using namespace lily_rt;

// ---- what clang calls ------------------------------------------------------------------------------------
extern "C" {

#define ACCESS(bytes) \
    void __sanitizer_cov_load##bytes(void* p) { \
        check_access((uintptr_t)p, bytes, false, false, (uintptr_t)__builtin_return_address(0)); \
    } \
    void __sanitizer_cov_store##bytes(void* p) { \
        check_access((uintptr_t)p, bytes, true, false, (uintptr_t)__builtin_return_address(0)); \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __sanitizer_cov_trace_pc_guard(uint32_t*) {}
void __sanitizer_cov_trace_pc_guard_init(uint32_t*, uint32_t*) {}

struct UndefinedAt {
    const char* file;
    uint32_t line, column;
};
#define UNDEFINED(name, text) \
    void __ubsan_handle_##name(UndefinedAt* at, uintptr_t) { fail({at->file, at->line * 1024 + at->column % 1024}, text); } \
    void __ubsan_handle_##name##_abort(UndefinedAt* at, uintptr_t) { __ubsan_handle_##name(at, 0); }
UNDEFINED(type_mismatch_v1, "misaligned or null access")
UNDEFINED(out_of_bounds, "index outside an array")
UNDEFINED(shift_out_of_bounds, "shift amount out of range")
UNDEFINED(divrem_overflow, "division by zero, or its result does not fit")
UNDEFINED(float_cast_overflow, "float value does not fit the integer type")

// What clang calls to round a float to bfloat16; older compiler libraries have none.
__attribute__((weak)) __bf16 __truncsfbf2(float f) {
    uint32_t bits;
    __builtin_memcpy(&bits, &f, 4);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint16_t rounded = nan ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    __bf16 out;
    __builtin_memcpy(&out, &rounded, 2);
    return out;
}

}  // extern "C"
