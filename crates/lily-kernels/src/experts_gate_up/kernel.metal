// h[row, slot] = silu(g) ∘ u with g, u = (W[expert] · xn) / rms(x), for the chosen experts and the shared one.
//
//   xn       bfloat [rows, hidden]
//   x_ss     f32 [rows, ss_stride]
//   routing  ids int [rows, TOP_K + 1]; FUSED: router logits f32 [rows, EXPERTS + 1]
//   W        matrix [EXPERTS + 1, 2 INNER, hidden], gate and up rows alternate
//   h        bfloat [rows, TOP_K + 1, INNER]
//
// experts_gate_up: a simdgroup owns SIMD_ROWS matrix rows (half as many columns of h) of one slot of one row. FUSED:
// the first simdgroup of every threadgroup chooses the experts again.
#include "gemv.h"
#include "norm.h"
#include "routing.h"

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void experts_gate_up(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* xn [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device int* routing [[buffer(4)]],
    const device uint4* matrix [[buffer(5)]],
    device bfloat* h [[buffer(6)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup int chosen[SLOTS];
    const uint slot = tile.y;
    const uint token = tile.z;
    uint expert;
    if (FUSED) {
        if (simdgroup == 0) {
            const Choice choice = choose_experts((const device float*)routing + token * LOGITS, lane);
            if (lane < SLOTS) {
                chosen[lane] = choice.expert;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        expert = uint(chosen[slot]);
    } else {
        // Clamped: the ids of a halted row may be anything.
        expert = min(uint(routing[token * SLOTS + slot]), uint(EXPERTS));
    }
    const uint first = (tile.x * SIMDGROUPS + simdgroup) * SIMD_ROWS;
    const uint row = expert * (2 * INNER) + first + lane_row(lane);
    RowWords words;
    load_words(matrix, row, lane_word(0, lane), words);
    Tokens tokens;
    if (!find_tokens(control, args.step, token, tokens)) {
        return;
    }
    const float part = rms_part(x_ss + token * args.norm.ss_stride, args.norm, lane);
    float sums[LANE_ROWS * TOKENS];
    multiply(matrix, row, lane_word(0, lane), words, bfloat_inputs(xn, tokens), sums);

    const float y = sum_lanes(sums, 0, lane) * rms_scale_of(part, args.norm);
    const float up = simd_shuffle_xor(y, ushort(RESULT_LANES));
    const uint out = first + result_row(lane);
    if (leads_result(lane) && out % 2 == 0) {
        h[(token * SLOTS + slot) * INNER + out / 2] = bfloat(silu(y) * up);
    }
}
