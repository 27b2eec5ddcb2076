// Gate and up projections of tokens grouped by expert: hs = silu(g) ∘ u with g, u = (W[expert] xn[token]) / rms(x).
//
//   xn         bfloat [rows, INPUT_WIDTH], read as 16-byte words
//   x_ss       f32 [rows, norm.ss_stride]
//   work       int [entries, 4]: expert, first sorted row, rows, number in the expert
//   row_token  int [sorted rows]
//   gate_up    matrix [experts + 1, OUTPUTS, INPUT_WIDTH], gate and up rows alternate
//   hs         bfloat [sorted rows, OUTPUTS / 2]
//
// A threadgroup owns at most TILE_ROWS rows of one expert, whose inputs it gathers while it loads them, and
// 64 matrix rows; see gemm.h.
#include "gemm.h"
#include "row_scales.h"
#include "grouped.h"

[[kernel, max_total_threads_per_threadgroup(128)]] void grouped_gate_up(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* xn [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device int* work [[buffer(4)]],
    const device int* row_token [[buffer(5)]],
    const device uint4* gate_up [[buffer(6)]],
    device bfloat* hs [[buffer(7)]],
    uint2 tile [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup uint4 memory[TILE_MEMORY];
    threadgroup float scales[TILE_ROWS];

    if (!any_row_lives(control, args.step, lane)) {
        return;
    }
    const WorkEntry entry = tile_entry(work, tile.y, args.entries);
    if (entry.rows == 0) {
        return;
    }
    uint words[INPUT_WORDS];
#pragma unroll
    for (uint i = 0; i < INPUT_WORDS; i++) {
        const uint row = min(input_row(i, thread_index), entry.rows - 1);
        words[i] = input_word(uint(row_token[entry.first + row]), thread_index);
    }
    const uint scaled = scaled_row(thread_index);
    const uint token = uint(row_token[entry.first + min(scaled, entry.rows - 1)]);
    row_scales(scales, x_ss + token * args.norm.ss_stride, scaled < entry.rows, args.norm, thread_index);
    multiply_tile(
        memory, xn, words, entry.rows, gate_up, entry.expert * OUTPUTS, tile.x * TILE_COLUMNS, thread_index, simdgroup);

    const uint column = thread_index % 32;
    const threadgroup float* results = (const threadgroup float*)memory + column * 2;
    device bfloat* to = hs + entry.first * (OUTPUTS / 2) + tile.x * (TILE_COLUMNS / 2) + column;
    for (uint row = simdgroup; row < entry.rows; row += 4) {
        const float2 both = *(const threadgroup float2*)(results + row * RESULT_PITCH) * scales[row];
        to[row * (OUTPUTS / 2)] = bfloat(silu(both.x) * both.y);
    }
}
