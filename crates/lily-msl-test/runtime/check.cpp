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

// The running lane and its barriers so far in one kind of memory: read once for each access.
struct Now {
    uint32_t thread, epoch;
    uint16_t simd_epoch;

    explicit Now(Memory memory)
        : thread(current->thread), epoch(engine->epoch[memory]), simd_epoch((uint16_t)current->simd->epoch[memory]) {}

    // Whether a barrier stands between an access by `other` of this threadgroup at these epochs and now.
    bool behind_barrier(uint32_t other, uint32_t at_epoch, uint16_t at_simd_epoch) const {
        return at_epoch != epoch || (other / 32 == thread / 32 && at_simd_epoch != simd_epoch);
    }
    // Whether that access comes before now.
    bool follows(uint32_t other, uint32_t at_epoch, uint16_t at_simd_epoch) const {
        return other == thread || behind_barrier(other, at_epoch, at_simd_epoch);
    }
};

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
static bool races_with_readers(const ThreadgroupCell& c, const Now& now) {
    if (!c.reader || c.read_epoch != now.epoch) return false;
    if (c.flags & MANY_SIMDGROUPS) return true;
    const uint32_t reader = c.reader - 1u;
    if (c.flags & MANY_READERS) return reader / 32 != now.thread / 32 || c.read_simd_epoch == now.simd_epoch;
    return !now.follows(reader, c.read_epoch, c.read_simd_epoch);
}

static void note_read(ThreadgroupCell& c, const Now& now) {
    if (!c.reader || now.behind_barrier(c.reader - 1, c.read_epoch, c.read_simd_epoch)) {
        c.reader = now.thread + 1;
        c.flags &= WAS_ATOMIC;
    } else if (c.reader - 1u != now.thread) {
        c.flags |= (c.reader - 1u) / 32 == now.thread / 32 ? MANY_READERS : MANY_SIMDGROUPS;
    }
    c.read_epoch = now.epoch;
    c.read_simd_epoch = now.simd_epoch;
}

static void check_threadgroup(size_t offset, size_t bytes, bool write, bool atomic, uintptr_t pc) {
    const Array* array = array_around(offset, bytes);
    if (!array) fail_outside_arrays(offset, bytes, write, pc);
    const uint32_t line = array->place.line();
    const Now now(THREADGROUP);
    for (size_t i = offset; i < offset + bytes; i++) {
        ThreadgroupCell& c = engine->arena_shadow[i];
        const size_t byte = i - array->offset;
        if (!write && !c.writer) {
            fail_at(pc, "read of threadgroup memory never written: byte %zu of the array declared in line %u", byte, line);
        }
        const bool both_atomic = atomic && (c.flags & WAS_ATOMIC);
        if (c.writer && !both_atomic && !now.follows(c.writer - 1, c.write_epoch, c.write_simd_epoch)) {
            fail_at(pc, "race on threadgroup memory: %s of byte %zu of the array declared in line %u, written by thread "
                "%u with no barrier between", verb(write), byte, line, c.writer - 1);
        }
        if (!write) {
            note_read(c, now);
            continue;
        }
        if (!both_atomic && races_with_readers(c, now)) {
            const char* others = c.flags & (MANY_READERS | MANY_SIMDGROUPS) ? " and others" : "";
            fail_at(pc, "race on threadgroup memory: write of byte %zu of the array declared in line %u, read by thread "
                "%u%s with no barrier between", byte, line, c.reader - 1, others);
        }
        c.writer = now.thread + 1;
        c.write_epoch = now.epoch;
        c.write_simd_epoch = now.simd_epoch;
        c.reader = 0;
        c.flags = atomic ? WAS_ATOMIC : 0;
    }
}

// As `follows`, for a thread of the grid: threadgroups are never ordered.
static bool follows_in_grid(const Now& now, uint32_t first, uint32_t thread, uint16_t epoch, uint16_t simd_epoch) {
    if (thread - first >= MAX_THREADS) return false;
    if (epoch != (uint16_t)now.epoch) return true;
    return now.follows(thread - first, now.epoch, simd_epoch);
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
    const Now now(DEVICE);
    const uint32_t first = engine->group * MAX_THREADS, me = first + now.thread;
    for (intptr_t i = offset; i < offset + (intptr_t)bytes; i++) {
        DeviceCell& c = slot->shadow[i];
        const bool was_atomic = c.writer >> 31;
        const uint32_t writer = c.writer & 0x7fffffffu;
        const bool both_atomic = was_atomic && atomic;
        if (writer && !both_atomic && !follows_in_grid(now, first, writer - 1, c.write_epoch, c.write_simd_epoch)) {
            fail_at(pc, "race on device memory: %s of byte %zd of buffer(%d), written by threadgroup %u thread %u",
                verb(write), (ssize_t)i, argument_of(slot), (writer - 1) / MAX_THREADS, (writer - 1) % MAX_THREADS);
        }
        if (!write) {
            c.reader = me + 1;
            c.read_epoch = (uint16_t)now.epoch;
            c.read_simd_epoch = now.simd_epoch;
            continue;
        }
        if (c.reader && !both_atomic && !follows_in_grid(now, first, c.reader - 1, c.read_epoch, c.read_simd_epoch)) {
            fail_at(pc, "race on device memory: write of byte %zd of buffer(%d), read by threadgroup %u thread %u",
                (ssize_t)i, argument_of(slot), (c.reader - 1) / MAX_THREADS, (c.reader - 1) % MAX_THREADS);
        }
        c.writer = (me + 1) | (atomic ? 0x80000000u : 0);
        c.write_epoch = (uint16_t)now.epoch;
        c.write_simd_epoch = now.simd_epoch;
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
