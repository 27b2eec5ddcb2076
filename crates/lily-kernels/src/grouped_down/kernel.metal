// Down projections of tokens grouped by expert: moe_y[token, slot] = route[token, slot] · (W[expert] hs[row]).
//
//   hs                   bfloat [sorted rows, INPUT_WIDTH], read as 16-byte words
//   work                 int [entries, 4]: expert, first sorted row, rows, number in the expert
//   row_token, row_slot  int [sorted rows]
//   route                f32 [rows, SLOTS]
//   down                 matrix [experts + 1, OUTPUTS, INPUT_WIDTH]
//   moe_y                f32 [rows, SLOTS, OUTPUTS]
//
// A threadgroup owns at most TILE_ROWS rows of one expert, and 64 matrix rows; see gemm.h. The results
// go straight to (token, slot); combine adds the slots up.
#include "gemm.h"
#include "grouped.h"

[[kernel, max_total_threads_per_threadgroup(128)]] void grouped_down(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* hs [[buffer(2)]],
    const device int* work [[buffer(3)]],
    const device int* row_token [[buffer(4)]],
    const device int* row_slot [[buffer(5)]],
    const device float* route [[buffer(6)]],
    const device uint4* down [[buffer(7)]],
    device float* moe_y [[buffer(8)]],
    uint2 tile [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup uint4 memory[TILE_MEMORY];
    threadgroup uint places[TILE_ROWS];
    threadgroup float weights[TILE_ROWS];

    if (!any_row_lives(control, args.step, lane)) {
        return;
    }
    const WorkEntry entry = tile_entry(work, tile.y, args.entries);
    if (entry.rows == 0) {
        return;
    }
    if (thread_index < entry.rows) {  // the product's barriers order this
        const uint row = entry.first + thread_index;
        const uint place = uint(row_token[row]) * SLOTS + uint(row_slot[row]);
        places[thread_index] = place;
        weights[thread_index] = route[place];
    }
    uint words[INPUT_WORDS];
#pragma unroll
    for (uint i = 0; i < INPUT_WORDS; i++) {
        words[i] = input_word(entry.first + min(input_row(i, thread_index), entry.rows - 1), thread_index);
    }
    multiply_tile(
        memory, hs, words, entry.rows, down, entry.expert * OUTPUTS, tile.x * TILE_COLUMNS, thread_index, simdgroup);

    const uint output = tile.x * TILE_COLUMNS + lane * 2;
    const threadgroup float* results = (const threadgroup float*)memory + lane * 2;
    if (output < OUTPUTS) {
        for (uint row = simdgroup; row < entry.rows; row += 4) {
            const float2 both = *(const threadgroup float2*)(results + row * RESULT_PITCH);
            *(device float2*)(moe_y + places[row] * OUTPUTS + output) = both * weights[row];
        }
    }
}
