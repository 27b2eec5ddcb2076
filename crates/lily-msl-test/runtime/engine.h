// State of one launch on one operating system thread, shared by the files of the runtime.
//
// The threads of a threadgroup are fibers of one operating system thread. A fiber runs until it meets a
// simd operation, a barrier or its end; then the next ready lane of its simdgroup goes on. So every
// interleaving is a fixed one, and what a race would break shows in the two orders (forward and reverse)
// or in the checked build.
#pragma once
#include <stdarg.h>
#include <string>
#include <vector>

#include "fiber.h"
#include "lily_runtime.h"

namespace lily_rt {

typedef void (*Entry)(const Call&);

constexpr size_t PAGE = 4096;
constexpr uint32_t MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 128 * 1024;
constexpr size_t THREADGROUP_BYTES = 32 * 1024;  // what every Apple GPU has
constexpr size_t ARENA_BYTES = 64 * 1024;        // with gaps between arrays

// ---- device memory (memory.cpp) ---------------------------------------------------------------------

// Last accesses of a byte of a buffer: thread of the grid + 1, and its barriers so far.
struct DeviceCell {
    uint32_t writer, reader;  // the top bit of writer: it was an atomic operation
    uint16_t write_epoch, write_simd_epoch, read_epoch, read_simd_epoch;
};

struct Slot {
    char* data;
    uint64_t bytes;
    DeviceCell* shadow;  // checked launches, of buffers that the kernel may write
    bool used, writable;
};

// The allocation whose 64 GiB of addresses hold `address`; null if there is none.
Slot* slot_of(uintptr_t address);

// ---- threadgroup memory ------------------------------------------------------------------------------

// Last accesses of a byte of threadgroup memory: thread + 1, and its barriers so far.
struct ThreadgroupCell {
    uint32_t write_epoch, read_epoch;
    uint16_t writer, reader, write_simd_epoch, read_simd_epoch;
    uint8_t flags;
};
enum : uint8_t { WAS_ATOMIC = 1, MANY_READERS = 2, MANY_SIMDGROUPS = 4 };

struct Array {
    uint32_t number;
    size_t offset, bytes;
    Place place;
};

// ---- a launch -------------------------------------------------------------------------------------------

enum State : uint32_t { READY, IN_SIMD, IN_BARRIER, DONE };

struct Failure {
    std::string message;
    Place place;   // if it is known
    uintptr_t pc;  // otherwise, of the access
};

struct Engine {
    void* scheduler;  // its stack pointer while a lane runs
    Entry entry;
    const Call* call;
    uint32_t n_buffers, threads, simdgroups, group;
    bool reverse, checked, in_kernel, failed;
    Failure failure;

    uint32_t done, waiting;
    Place barrier_place;
    uint32_t epoch[2];  // barriers passed: threadgroup memory, device memory

    char* stacks;
    char* arena;
    ThreadgroupCell* arena_shadow;
    std::vector<Array> arrays;
    size_t arena_used;

    Lane lanes[MAX_THREADS];
    Simd simds[MAX_THREADS / 32];
    uint32_t ready[MAX_THREADS / 32];  // a bit for each lane

    char* stack_top(uint32_t thread) const { return stacks + (thread + 1) * STACK_BYTES; }
};
extern __thread Engine* engine LILY_INITIAL_EXEC;

// Runs one threadgroup (schedule.cpp).
void run_threadgroup();
// Leaves the running lane for another.
void yield_lane();
// Leaves the running lane for good.
[[noreturn]] void leave_lane();
// Ends the launch (fault.cpp): for an access whose place follows from its program counter.
[[noreturn]] void fail_at(uintptr_t pc, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Records a failure of the running lane.
void record(Place place, uintptr_t pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
void record_list(Place place, uintptr_t pc, const char* format, va_list list);
void install_fault_handlers();
// The buffer argument that a slot is bound to, -1 if none.
int argument_of(const Slot* slot);
const char* op_name(uint32_t op);

}  // namespace lily_rt
