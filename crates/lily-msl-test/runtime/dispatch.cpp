// Launches, as the Rust side asks for them.
#include <algorithm>
#include <atomic>
#include <dlfcn.h>
#include <mutex>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <thread>

#include "engine.h"

namespace lily_rt {

const void* Call::reference(uint32_t i, size_t bytes) const {
    if (buffers[i].bytes < bytes) {
        const unsigned long long found = buffers[i].bytes;
        fail({"arguments", 1024}, "buffer(%u) has %llu bytes, need %zu", i, found, bytes);
    }
    return buffers[i].data;
}

void* Call::pointer(uint32_t i, size_t element_bytes) const {
    const size_t align = std::min<size_t>(16, element_bytes & -element_bytes);
    if ((uintptr_t)buffers[i].data % align) fail({"arguments", 1024}, "buffer(%u) is not aligned to its elements", i);
    return buffers[i].data;
}

static void* map(size_t bytes, int protection) {
    return mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static Engine* new_engine() {
    Engine* e = new Engine();
    e->stacks = (char*)map(STACK_BYTES * MAX_THREADS, PROT_READ | PROT_WRITE);
    for (uint32_t i = 0; i < MAX_THREADS; i++) mprotect(e->stacks + i * STACK_BYTES, PAGE, PROT_NONE);
    char* arena = (char*)map(ARENA_BYTES + 2 * PAGE, PROT_NONE);
    mprotect(arena + PAGE, ARENA_BYTES, PROT_READ | PROT_WRITE);
    e->arena = arena + PAGE;
    e->arena_shadow = (ThreadgroupCell*)map(ARENA_BYTES * sizeof(ThreadgroupCell), PROT_READ | PROT_WRITE);
    return e;
}

// Engines are kept: their stacks are large. A fault needs a stack of its own while one is in use.
class EngineGuard {
public:
    EngineGuard() {
        {
            std::lock_guard<std::mutex> guard(mutex);
            if (!kept.empty()) {
                engine = kept.back();
                kept.pop_back();
            }
        }
        if (!engine) engine = new_engine();
        stack_t stack = {};
        stack.ss_sp = signal_stack;
        stack.ss_size = sizeof signal_stack;
        sigaltstack(&stack, &before);
    }
    ~EngineGuard() {
        sigaltstack(&before, nullptr);
        std::lock_guard<std::mutex> guard(mutex);
        kept.push_back(engine);
        engine = nullptr;
    }

private:
    static std::mutex mutex;
    static std::vector<Engine*> kept;
    stack_t before = {};
    char signal_stack[65536];
};
std::mutex EngineGuard::mutex;
std::vector<Engine*> EngineGuard::kept;

}  // namespace lily_rt

using namespace lily_rt;

extern "C" {

struct LilyLaunch {
    Entry entry;
    const Buffer* buffers;
    uint32_t n_buffers, threads, grid[3];
    uint32_t checked, reverse, workers;
};

struct LilyFailure {
    char message[2048];
    char file[512];  // of the kernel's text, empty if unknown; otherwise of the library
    uint64_t line;   // of the text; otherwise the offset in the library
    uint32_t in_text;
};

static void describe(const Failure& failure, LilyFailure* out) {
    snprintf(out->message, sizeof out->message, "%s", failure.message.c_str());
    out->file[0] = 0;
    Dl_info library;
    if (failure.place.file) {
        snprintf(out->file, sizeof out->file, "%s", failure.place.file);
        out->line = failure.place.line();
        out->in_text = 1;
    } else if (failure.pc && dladdr((void*)failure.pc, &library)) {
        snprintf(out->file, sizeof out->file, "%s", library.dli_fname);
        out->line = failure.pc - (uintptr_t)library.dli_fbase;
        out->in_text = 0;
    }
}

static void prepare(const LilyLaunch& launch) {
    static std::once_flag once;
    std::call_once(once, install_fault_handlers);
    for (uint32_t i = 0; i < launch.n_buffers; i++) {
        const Buffer& buffer = launch.buffers[i];
        Slot* slot = slot_of((uintptr_t)buffer.data);
        if (!slot) continue;
        slot->writable = buffer.writable;
        if (!launch.checked || !slot->writable || slot->bytes == 0) continue;
        const size_t bytes = slot->bytes * sizeof(DeviceCell);
        if (slot->shadow) munmap(slot->shadow, bytes);
        slot->shadow = (DeviceCell*)map(bytes, PROT_READ | PROT_WRITE);
    }
}

// Runs a launch; 0, or 1 with its first failure.
int lily_dispatch(const LilyLaunch* launch, LilyFailure* out) {
    prepare(*launch);
    const Dim3 grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
    const uint64_t groups = (uint64_t)grid.x * grid.y * grid.z;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    Failure failure;
    auto work = [&] {
        EngineGuard guard;
        Engine* e = engine;
        Call call = {launch->buffers, grid, {0, 0, 0}, launch->threads};
        e->entry = launch->entry;
        e->call = &call;
        e->n_buffers = launch->n_buffers;
        e->threads = launch->threads;
        e->simdgroups = launch->threads / 32;
        e->reverse = launch->reverse;
        e->checked = launch->checked;
        e->failed = false;
        e->arena_used = 0;
        for (uint64_t i; !failed && (i = next++) < groups;) {
            const uint64_t group = launch->reverse ? groups - 1 - i : i;
            call.position = {(uint32_t)(group % grid.x), (uint32_t)(group / grid.x % grid.y),
                (uint32_t)(group / ((uint64_t)grid.x * grid.y))};
            e->group = (uint32_t)group;
            run_threadgroup();
            if (!e->failed) continue;
            std::lock_guard<std::mutex> lock(mutex);
            if (!failed) failure = e->failure;
            failed = true;
        }
    };
    // The checks of device memory see one threadgroup at a time.
    const uint32_t workers = launch->checked ? 1 : (uint32_t)std::min<uint64_t>(launch->workers, groups);
    if (workers <= 1) {
        work();
    } else {
        std::vector<std::thread> threads;
        for (uint32_t i = 0; i < workers; i++) threads.emplace_back(work);
        for (std::thread& thread : threads) thread.join();
    }
    if (!failed) return 0;
    describe(failure, out);
    return 1;
}

}  // extern "C"
