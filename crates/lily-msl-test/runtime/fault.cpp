// Failures of a kernel: what is recorded of them, and faults on unmapped pages.
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>

#include "engine.h"

namespace lily_rt {

void record_list(Place place, uintptr_t pc, const char* format, va_list list) {
    Engine* e = engine;
    const Dim3 at = e->call->position;
    char text[2048];
    int length = snprintf(text, sizeof text, "threadgroup (%u,%u,%u)", at.x, at.y, at.z);
    if (const Lane* lane = current) {
        length += snprintf(text + length, sizeof text - length, " thread %u (simdgroup %u lane %u)", lane->thread,
            lane->simd->index, lane->lane);
    }
    length += snprintf(text + length, sizeof text - length, ": ");
    vsnprintf(text + length, sizeof text - length, format, list);
    e->failure = {text, place, pc};
    e->failed = true;
}

void record(Place place, uintptr_t pc, const char* format, ...) {
    va_list list;
    va_start(list, format);
    record_list(place, pc, format, list);
    va_end(list);
}

void fail(Place place, const char* format, ...) {
    va_list list;
    va_start(list, format);
    record_list(place, 0, format, list);
    va_end(list);
    leave_lane();
}

void fail_at(uintptr_t pc, const char* format, ...) {
    va_list list;
    va_start(list, format);
    record_list({nullptr, 0}, pc - 1, format, list);  // inside the call, not behind it
    va_end(list);
    leave_lane();
}

int argument_of(const Slot* slot) {
    for (uint32_t i = 0; i < engine->n_buffers; i++) {
        if (engine->call->buffers[i].data == slot->data) return i;
    }
    return -1;
}

#if defined(__x86_64__)
static greg_t& program_counter(ucontext_t* context) { return context->uc_mcontext.gregs[REG_RIP]; }
static greg_t& stack_pointer(ucontext_t* context) { return context->uc_mcontext.gregs[REG_RSP]; }
#else
static unsigned long long& program_counter(ucontext_t* context) { return context->uc_mcontext.pc; }
static unsigned long long& stack_pointer(ucontext_t* context) { return context->uc_mcontext.sp; }
#endif

static struct sigaction segv_before, bus_before;

// A fault in a kernel ends the launch; any other is left to whoever handled them before.
static void on_fault(int signal, siginfo_t* info, void* untyped) {
    Engine* e = engine;
    if (!e || !e->in_kernel) {
        sigaction(signal, signal == SIGSEGV ? &segv_before : &bus_before, nullptr);
        return;  // and faults again
    }
    ucontext_t* context = (ucontext_t*)untyped;
    const uintptr_t address = (uintptr_t)info->si_addr, pc = program_counter(context);
    const Slot* slot = slot_of(address);
    const uintptr_t stack = address - (uintptr_t)e->stacks;
    if (slot && argument_of(slot) >= 0) {
        record({nullptr, 0}, pc, "access at byte %zd of buffer(%d), which has %llu bytes",
            (ssize_t)(address - (uintptr_t)slot->data), argument_of(slot), (unsigned long long)slot->bytes);
    } else if (stack < STACK_BYTES * MAX_THREADS) {
        record({nullptr, 0}, 0, "a thread needs more than %zu KiB of stack", STACK_BYTES / 1024);
    } else {
        record({nullptr, 0}, pc, "access to unmapped address %p", info->si_addr);
    }
    // The lane's frames are of no use any more, and its stack may be full: begin at its top.
    program_counter(context) = (uintptr_t)&leave_lane;
    stack_pointer(context) = (uintptr_t)e->stack_top(current->thread) - 64 - 8;
}

void install_fault_handlers() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &segv_before);
    sigaction(SIGBUS, &action, &bus_before);
}

}  // namespace lily_rt
