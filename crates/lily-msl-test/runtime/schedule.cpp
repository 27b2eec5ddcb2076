// The lanes of a threadgroup: who runs, who waits for whom.
#include <map>
#include <stdio.h>
#include <string.h>

#include "engine.h"

namespace lily_rt {

__thread Lane* current LILY_INITIAL_EXEC;
__thread Engine* engine LILY_INITIAL_EXEC;

const char* op_name(uint32_t op) {
    static const char* const names[] = {
        "?", "simd_sum", "simd_product", "simd_min", "simd_max", "simd_and", "simd_or", "simd_xor", "simd_shuffle",
        "simd_shuffle_up", "simd_shuffle_down", "simd_shuffle_xor", "simd_broadcast", "simd_prefix_inclusive_sum",
        "simd_prefix_exclusive_sum", "a simd vote", "simdgroup_multiply_accumulate", "simdgroup_load",
        "simdgroup_store", "a tensor operation", "simdgroup_barrier", "threadgroup_barrier",
    };
    return op < sizeof names / sizeof *names ? names[op] : "?";
}

void leave_lane() {
    void* dead;
    lily_switch(&dead, engine->scheduler);
    __builtin_unreachable();
}

void yield_lane() {
    Lane* lane = current;
    Engine* e = engine;
    const uint32_t ready = e->ready[lane->simd->index];
    if (ready == 0) {
        lily_switch(&lane->stack, e->scheduler);
        return;
    }
    uint32_t next;
    if (e->reverse) {
        const uint32_t below = ready & ((1u << lane->lane) - 1);
        next = 31 - __builtin_clz(below ? below : ready);
    } else {
        const uint32_t above = lane->lane == 31 ? 0 : ready & (0xfffffffeu << lane->lane);
        next = __builtin_ctz(above ? above : ready);
    }
    Lane* to = &e->lanes[lane->simd->index * 32 + next];
    if (to == lane) return;
    current = to;
    lily_switch(&lane->stack, to->stack);
}

static bool same(Place a, Place b) {
    return a.at == b.at && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

static void wait(Lane* lane, State state, uint32_t op, Place place) {
    lane->state = state;
    lane->op = op;
    lane->place = place;
    engine->ready[lane->simd->index] &= ~(1u << lane->lane);
    yield_lane();
    lane->state = READY;
}

static inline void pass(uint32_t (&epoch)[2], uint32_t flags) {
    if (flags & 2) epoch[0]++;
    if (flags & 1) epoch[1]++;
}

static inline void meet_at(Op op, Place place, uint32_t flags) {
    Lane* lane = current;
    Simd* simd = lane->simd;
    if (simd->alive != 32) fail(place, "%s after %u lanes of the simdgroup have finished", op_name(op), 32 - simd->alive);
    if (simd->arrived == 0) {
        simd->op = op;
        simd->place = place;
    } else if (simd->op != op || !same(simd->place, place)) {
        fail(place, "%s, while other lanes of the simdgroup are at %s, %s:%u:%u (divergent simdgroup operation)",
            op_name(op), op_name(simd->op), simd->place.file, simd->place.line(), simd->place.column());
    }
    if (++simd->arrived == 32) {
        simd->arrived = 0;
        simd->generation++;
        engine->ready[simd->index] = 0xffffffffu;
        pass(simd->epoch, flags);
        return;
    }
    wait(lane, IN_SIMD, op, place);
}
void meet(Op op, Place place) { meet_at(op, place, 0); }
void simd_barrier(uint32_t flags, Place place) { meet_at(OP_SIMD_BARRIER, place, flags); }

void barrier(uint32_t flags, Place place) {
    Engine* e = engine;
    if (e->waiting == 0) {
        e->barrier_place = place;
    } else if (!same(e->barrier_place, place)) {
        fail(place, "threadgroup_barrier, while other threads wait at the one in %s:%u (divergent barrier)",
            e->barrier_place.file, e->barrier_place.line());
    }
    if (++e->waiting == e->threads) {
        e->waiting = 0;
        for (uint32_t i = 0; i < e->simdgroups; i++) e->ready[i] = 0xffffffffu;
        pass(e->epoch, flags);
        return;
    }
    wait(current, IN_BARRIER, OP_BARRIER, place);
}

void* threadgroup_array(uint32_t number, Place place, size_t bytes, size_t align) {
    Engine* e = engine;
    size_t total = bytes;
    for (const Array& array : e->arrays) {
        if (array.number == number) return e->arena + array.offset;
        total += (array.bytes + 15) / 16 * 16;
    }
    if (total > THREADGROUP_BYTES) {
        fail(place, "%zu bytes of threadgroup memory, over the 32 KiB that every Apple GPU has", total);
    }
    const size_t offset = (e->arena_used + align - 1) / align * align;
    e->arena_used = offset + bytes + 256;  // a gap that no access may touch
    if (e->arena_used > ARENA_BYTES) fail(place, "more threadgroup arrays than the test device has room for");
    e->arrays.push_back({number, offset, bytes, place});
    return e->arena + offset;
}

static void lane_main() {
    engine->entry(*engine->call);
    Lane* lane = current;
    Simd* simd = lane->simd;
    lane->state = DONE;
    engine->ready[simd->index] &= ~(1u << lane->lane);
    simd->alive--;
    engine->done++;
    if (simd->arrived != 0) {
        fail(simd->place, "finished while other lanes of the simdgroup wait at %s", op_name(simd->op));
    }
    yield_lane();
    __builtin_unreachable();
}

// Arrays start out as NaN, so that a forgotten store shows.
static void reset(Engine* e) {
    const size_t used = e->arena_used ? e->arena_used : ARENA_BYTES;
    memset(e->arena, 0xff, used);
    if (e->checked) memset((void*)e->arena_shadow, 0, used * sizeof(ThreadgroupCell));
    e->arrays.clear();
    e->arena_used = 0;
    e->done = e->waiting = 0;
    e->epoch[0] = e->epoch[1] = 0;
    for (uint32_t i = 0; i < e->simdgroups; i++) {
        Simd& simd = e->simds[i];
        simd.generation = simd.arrived = simd.result_generation = 0;
        simd.epoch[0] = simd.epoch[1] = 0;
        simd.index = i;
        simd.alive = 32;
        e->ready[i] = 0xffffffffu;
    }
    for (uint32_t t = 0; t < e->threads; t++) {
        Lane& lane = e->lanes[t];
        lane.simd = &e->simds[t / 32];
        lane.lane = t % 32;
        lane.thread = t;
        lane.state = READY;
        // Stacks begin at different offsets, or their tops would share a few cache lines.
        lane.stack = new_fiber(e->stack_top(t) - 64 - t % 32 * 128, &lane_main);
    }
}

static void report_deadlock(Engine* e) {
    std::map<std::string, int> states;
    Place place = {nullptr, 0};
    for (uint32_t t = 0; t < e->threads; t++) {
        const Lane& lane = e->lanes[t];
        char text[256] = "finished";
        if (lane.state != DONE) {
            snprintf(text, sizeof text, "at %s, %s:%u", op_name(lane.op), lane.place.file, lane.place.line());
            place = lane.place;
        }
        states[text]++;
    }
    std::string list;
    for (const auto& state : states) {
        list += (list.empty() ? "" : ", ") + std::to_string(state.second) + " " + state.first;
    }
    current = nullptr;
    record(place, 0, "threads will never meet: %s", list.c_str());
}

void run_threadgroup() {
    Engine* e = engine;
    reset(e);
    e->in_kernel = true;
    bool progress = true;
    while (e->done < e->threads && !e->failed && progress) {
        progress = false;
        for (uint32_t i = 0; i < e->simdgroups && !e->failed; i++) {
            const uint32_t simd = e->reverse ? e->simdgroups - 1 - i : i;
            while (e->ready[simd] && !e->failed) {
                progress = true;
                const uint32_t ready = e->ready[simd];
                Lane* lane = &e->lanes[simd * 32 + (e->reverse ? 31 - __builtin_clz(ready) : __builtin_ctz(ready))];
                current = lane;
                lily_switch(&e->scheduler, lane->stack);
            }
        }
    }
    e->in_kernel = false;
    if (!e->failed && e->done < e->threads) report_deadlock(e);
}

}  // namespace lily_rt
