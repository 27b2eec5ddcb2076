// What the CPU prelude needs from the test device's runtime: lanes, rendezvous, launch arguments.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define LILY_INITIAL_EXEC __attribute__((tls_model("initial-exec")))

namespace lily_rt {

struct Dim3 {
    uint32_t x, y, z;
};

// A place in a kernel's text. Two places are equal when `at` is: line * 1024 + column.
struct Place {
    const char* file;
    uint32_t at;

    uint32_t line() const { return at / 1024; }
    uint32_t column() const { return at % 1024; }
};

// One 32-lane simdgroup. Lanes are fibers; a simd operation is a rendezvous of all of them.
struct Simd {
    alignas(64) unsigned char exchange[2][32][32];  // values laid down by the lanes, by parity of `generation`
    alignas(64) unsigned char result[256];          // reduction, computed once for each rendezvous
    uint32_t result_generation;
    uint32_t generation;  // completed rendezvous
    uint32_t arrived;
    uint32_t op;  // of the first lane to arrive, with its place
    Place place;
    uint32_t epoch[2];  // simdgroup barriers passed: threadgroup memory, device memory
    uint32_t index, alive;
};

// One thread.
struct Lane {
    void* stack;
    Simd* simd;
    uint32_t lane, thread, state, op;
    Place place;
};

// The lane that runs on this operating system thread.
extern __thread Lane* current LILY_INITIAL_EXEC;

enum Op : uint32_t {
    OP_SUM = 1,
    OP_PRODUCT,
    OP_MIN,
    OP_MAX,
    OP_AND,
    OP_OR,
    OP_XOR,
    OP_SHUFFLE,
    OP_SHUFFLE_UP,
    OP_SHUFFLE_DOWN,
    OP_SHUFFLE_XOR,
    OP_BROADCAST,
    OP_PREFIX_INCLUSIVE,
    OP_PREFIX_EXCLUSIVE,
    OP_VOTE,
    OP_MULTIPLY,
    OP_MATRIX_LOAD,
    OP_MATRIX_STORE,
    OP_TENSOR,
    OP_SIMD_BARRIER,
    OP_BARRIER,
};

// Index of the thread in its threadgroup. A function, because `thread` is a word of Metal's for what comes later.
inline uint32_t thread_index() { return current->thread; }
// Waits for the 32 lanes; all must be at the same operation and place.
void meet(Op op, Place place);
// Barriers; `flags` are Metal's mem_flags: 1 device memory, 2 threadgroup memory.
void simd_barrier(uint32_t flags, Place place);
void barrier(uint32_t flags, Place place);
// Ends the launch with a message about `place`.
[[noreturn]] void fail(Place place, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Memory of the threadgroup array that is number `array` in the text: the same for every thread.
void* threadgroup_array(uint32_t array, Place place, size_t bytes, size_t align);
// Announces an atomic operation.
void atomic_access(const volatile void* p, size_t bytes, bool write);

struct Buffer {
    void* data;
    uint64_t bytes;
    uint32_t writable;
};

// A launch as its entry point sees it.
struct Call {
    const Buffer* buffers;
    Dim3 grid, position;
    uint32_t threads;

    void* pointer(uint32_t buffer, size_t element_bytes) const;
    const void* reference(uint32_t buffer, size_t bytes) const;

    Dim3 threadgroup_position_in_grid() const { return position; }
    Dim3 threads_per_threadgroup() const { return {threads, 1, 1}; }
    Dim3 threadgroups_per_grid() const { return grid; }
    Dim3 threads_per_grid() const { return {grid.x * threads, grid.y, grid.z}; }
    Dim3 thread_position_in_threadgroup() const { return {current->thread, 0, 0}; }
    Dim3 thread_position_in_grid() const { return {position.x * threads + current->thread, position.y, position.z}; }
    Dim3 thread_index_in_threadgroup() const { return {current->thread, 0, 0}; }
    Dim3 thread_index_in_simdgroup() const { return {current->lane, 0, 0}; }
    Dim3 simdgroup_index_in_threadgroup() const { return {current->simd->index, 0, 0}; }
    Dim3 simdgroups_per_threadgroup() const { return {threads / 32, 1, 1}; }
    Dim3 threads_per_simdgroup() const { return {32, 1, 1}; }
};

}  // namespace lily_rt
