// gdn_in for a chunk of tokens: y = (xn wᵀ) / rms(x), its columns to qkv, z and ba.
//
//   xn      bfloat [rows, INPUT_WIDTH], read as 16-byte words
//   x_ss    f32 [rows, norm.ss_stride]
//   weight  matrix [OUTPUTS, INPUT_WIDTH]: q, k, v, then z, then b and a
//   qkv     f32 [rows, CONV_CHANNELS]
//   z       bfloat [rows, V_WIDTH]
//   ba      f32 [rows, GATES]
//
// A threadgroup owns TILE_ROWS tokens and 64 matrix rows; see gemm.h. Tokens vary fastest in the grid, so that
// few weights are in use at a time.
#include "gemm.h"
#include "row_scales.h"

[[kernel, max_total_threads_per_threadgroup(128)]] void gdn_in_chunk(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* xn [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device uint4* weight [[buffer(4)]],
    device float* qkv [[buffer(5)]],
    device bfloat* z [[buffer(6)]],
    device float* ba [[buffer(7)]],
    uint2 tile [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup uint4 memory[TILE_MEMORY];
    threadgroup float scales[TILE_ROWS];

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
    const uint scaled = scaled_row(thread_index);
    row_scales(scales, x_ss + (first + scaled) * args.norm.ss_stride, scaled < rows, args.norm, thread_index);
    multiply_tile(memory, xn, words, rows, weight, 0, tile.y * TILE_COLUMNS, thread_index, simdgroup);

    const uint output = tile.y * TILE_COLUMNS + thread_index % TILE_COLUMNS;
    if (output < CONV_CHANNELS) {
        device float* to = qkv + first * CONV_CHANNELS + output;
        store_column(to, CONV_CHANNELS, memory, scales, rows, thread_index);
    } else if (output < CONV_CHANNELS + V_WIDTH) {
        device bfloat* to = z + first * V_WIDTH + output - CONV_CHANNELS;
        store_column(to, V_WIDTH, memory, scales, rows, thread_index);
    } else if (output < OUTPUTS) {
        device float* to = ba + first * GATES + output - CONV_CHANNELS - V_WIDTH;
        store_column(to, GATES, memory, scales, rows, thread_index);
    }
}
