// attn_in for a chunk of tokens: y = (xn wᵀ) / rms(x), its columns to aq, gate, ak and av.
//
//   xn      bfloat [rows, INPUT_WIDTH], read as 16-byte words
//   x_ss    f32 [rows, norm.ss_stride]
//   weight  matrix [OUTPUTS, INPUT_WIDTH]: HEAD_DIM query and HEAD_DIM gate rows of each head, keys, values
//   aq      f32 [rows, Q_WIDTH]
//   gate    bfloat [rows, Q_WIDTH]
//   ak, av  f32 [rows, KV_WIDTH]
//
// A threadgroup owns TILE_ROWS tokens and 64 matrix rows; see gemm.h. Tokens vary fastest in the grid, so that
// few weights are in use at a time.
#include "gemm.h"
#include "row_scales.h"

[[kernel, max_total_threads_per_threadgroup(128)]] void attn_in_chunk(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* xn [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device uint4* weight [[buffer(4)]],
    device float* aq [[buffer(5)]],
    device bfloat* gate [[buffer(6)]],
    device float* ak [[buffer(7)]],
    device float* av [[buffer(8)]],
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
    if (output < 2 * Q_WIDTH) {
        const uint head = output / (2 * HEAD_DIM);
        const uint column = output - head * HEAD_DIM;  // of the head's queries, or HEAD_DIM behind that of its gates
        if (output - head * (2 * HEAD_DIM) < HEAD_DIM) {
            store_column(aq + first * Q_WIDTH + column, Q_WIDTH, memory, scales, rows, thread_index);
        } else {
            device bfloat* to = gate + first * Q_WIDTH + column - HEAD_DIM;
            store_column(to, Q_WIDTH, memory, scales, rows, thread_index);
        }
    } else if (output < 2 * Q_WIDTH + KV_WIDTH) {
        device float* to = ak + first * KV_WIDTH + output - 2 * Q_WIDTH;
        store_column(to, KV_WIDTH, memory, scales, rows, thread_index);
    } else if (output < OUTPUTS) {
        device float* to = av + first * KV_WIDTH + output - 2 * Q_WIDTH - KV_WIDTH;
        store_column(to, KV_WIDTH, memory, scales, rows, thread_index);
    }
}
