// attn_out for a chunk of tokens: x += att wᵀ, then the residual epilogue.
//
//   att        bfloat [rows, INPUT_WIDTH], read as 16-byte words
//   weight     matrix [OUTPUTS, INPUT_WIDTH]
//   x          f32 [rows, OUTPUTS]
//   next_norm  f32 [OUTPUTS]
//   xn         bfloat [rows, OUTPUTS]
//   x_ss       f32 [rows, residual.ss_stride]
//
// A threadgroup owns TILE_ROWS tokens and 64 columns; see gemm.h. Tokens vary fastest in the grid, so that few
// weights are in use at a time.
#include "residual_tile.h"

[[kernel, max_total_threads_per_threadgroup(128)]] void attn_out_chunk(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* att [[buffer(2)]],
    const device uint4* weight [[buffer(3)]],
    device float* x [[buffer(4)]],
    const device float* next_norm [[buffer(5)]],
    device bfloat* xn [[buffer(6)]],
    device float* x_ss [[buffer(7)]],
    uint2 tile [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup uint4 memory[TILE_MEMORY];

    const uint first = tile.x * TILE_ROWS;
    const uint live = chunk_rows(control, args.step);
    if (first >= live) {
        return;
    }
    const uint rows = min(live - first, uint(TILE_ROWS));
    uint words[INPUT_WORDS];
#pragma unroll
    for (uint i = 0; i < INPUT_WORDS; i++) {
        words[i] = input_word(first + min(input_row(i, thread_index), rows - 1), thread_index);
    }
    multiply_tile(memory, att, words, rows, weight, 0, tile.y * TILE_COLUMNS, thread_index, simdgroup);
    add_tile(memory, first, rows, tile.y * TILE_COLUMNS, args.residual, x, next_norm, xn, x_ss, simdgroup, lane);
}
