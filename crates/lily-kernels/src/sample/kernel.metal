// Greedy choice: the best candidate of a row, the lowest id on ties, becomes its sequence's next token.
//
//   control     int [batch, 8], read and written
//   best_value  f32 [batch, head_tiles], as bits
//   best_id     int [batch, head_tiles]
//   stop_ids    int [batch, 8], padded with -1
//   output      int [batch, ring]
//
// A threadgroup of SIMDGROUPS simdgroups owns a row of candidates; a prefill chunk has row 0 alone.
#include "choice.h"

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
    const uint sequence = row_sequence(args.choice.step, row);
    device int* words = control + sequence * CONTROL_WORDS;
    if (!choice_lives(args.choice, words)) {
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
    // Everybody has read the control words before one thread writes them.
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    if (simdgroup > 0) {
        return;
    }
    best = lane < SIMDGROUPS ? orders[lane] : -LARGEST;
    id = lane < SIMDGROUPS ? ids[lane] : LARGEST;
    largest = simd_max(best);
    id = simd_min(best == largest ? id : LARGEST);
    if (lane == 0) {
        finish_choice(args.choice, words, stop_ids, output, sequence, largest, id);
    }
}
