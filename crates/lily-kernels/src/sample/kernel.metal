// Greedy choice: the best candidate of a row, the lowest id on ties, becomes its sequence's next token.
//
//   control     int [batch, 8], read and written
//   best_value  f32 [batch, head_tiles], as bits
//   best_id     int [batch, head_tiles]
//   stop_ids    int [batch, 8], padded with -1
//   output      int [batch, ring]
//
// A threadgroup of SIMDGROUPS simdgroups owns a row of candidates; a prefill chunk has row 0 alone. Values are
// compared as integers that order like the floats: a NaN or an infinite best must be seen, and fast arithmetic may
// assume that there is none.
#include "lily.h"

constant constexpr uint STOP_IDS = 8;       // lily_plan::control
constant constexpr int HALT_ENDED = 1;
constant constexpr int HALT_NON_FINITE = 2;
constant constexpr int LARGEST = 0x7fffffff;

// A candidate: order of its value, and its id. A NaN is above everything.
METAL_FUNC int order_of(int bits) {
    const int magnitude = bits & LARGEST;
    return magnitude > 0x7f800000 ? LARGEST : bits < 0 ? -magnitude : magnitude;
}

METAL_FUNC int saturating_add(int value, int added) { return value > LARGEST - added ? LARGEST : value + added; }

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void sample(
    constant Args& args [[buffer(0)]],
    device int* control [[buffer(1)]],
    const device int* best_value [[buffer(2)]],
    const device int* best_id [[buffer(3)]],
    const device int* stop_ids [[buffer(4)]],
    device int* output [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup int orders[32];
    threadgroup int ids[32];
    const bool prefill = args.step.prefill != 0;
    const uint sequence = row_sequence(args.step, row);
    device int* words = control + sequence * CONTROL_WORDS;
    if (words[CONTROL_HALT] != 0 || (prefill && words[CONTROL_COUNT] <= 0)) {
        return;
    }
    int best = -LARGEST;
    int id = LARGEST;
    for (uint i = thread_index; i < args.head_tiles; i += THREADS) {
        const int order = order_of(best_value[row * args.head_tiles + i]);
        const int candidate = best_id[row * args.head_tiles + i];
        if (order > best || (order == best && candidate < id)) {
            best = order;
            id = candidate;
        }
    }
    int largest = simd_max(best);
    id = simd_min(best == largest ? id : LARGEST);
    if (lane == 0) {
        orders[simdgroup] = largest;
        ids[simdgroup] = id;
    }
    // Device memory too: every thread has read the control row before one of them writes it.
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    if (simdgroup > 0) {
        return;
    }
    best = lane < SIMDGROUPS ? orders[lane] : -LARGEST;
    id = lane < SIMDGROUPS ? ids[lane] : LARGEST;
    largest = simd_max(best);
    id = simd_min(best == largest ? id : LARGEST);
    if (lane > 0) {
        return;
    }
    if (largest >= 0x7f800000 || largest <= -0x7f800000) {
        words[CONTROL_HALT] = HALT_NON_FINITE;
        return;
    }
    const int was = words[CONTROL_PRODUCED];
    const int produced = saturating_add(was, 1);
    const int position = saturating_add(words[CONTROL_POSITION], prefill ? words[CONTROL_COUNT] : 1);
    bool ends = produced >= words[CONTROL_LIMIT] || position >= int(args.capacity);
    for (uint i = 0; i < STOP_IDS; i++) {
        ends = ends || stop_ids[sequence * STOP_IDS + i] == id;
    }
    output[sequence * args.ring + uint(max(was, 0)) % args.ring] = id;
    words[CONTROL_TOKEN] = id;
    words[CONTROL_PRODUCED] = produced;
    words[CONTROL_POSITION] = position;
    if (ends) {
        words[CONTROL_HALT] = HALT_ENDED;
    }
}
