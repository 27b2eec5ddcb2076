// 1 / rms of every row of a tile of a matrix product. Constant: TILE_ROWS.
#pragma once
#include "lily.h"

constant constexpr uint SCALE_LANES = 128 / TILE_ROWS;  // lanes that add up one row's partial sums

// Row of the tile whose scale a thread finds.
METAL_FUNC uint scaled_row(uint thread_index) { return thread_index / SCALE_LANES; }

// Finds the scale of row scaled_row(thread_index) from its partial sums of squares, `ss` [norm.ss_tiles]; rows
// that do not live have none. All threads call it; a barrier must follow.
METAL_FUNC void row_scales(
    threadgroup float* scales, const device float* ss, bool lives, constant NormArgs& norm, uint thread_index)
{
    float sum = 0.0f;
    if (lives) {
        for (uint tile = thread_index % SCALE_LANES; tile < norm.ss_tiles; tile += SCALE_LANES) {
            sum += ss[tile];
        }
    }
#pragma unroll
    for (uint lanes = 1; lanes < SCALE_LANES; lanes *= 2) {
        sum += simd_shuffle_xor(sum, lanes);
    }
    if (thread_index % SCALE_LANES == 0) {
        scales[scaled_row(thread_index)] = precise::rsqrt(sum / float(norm.hidden) + norm.rms_eps);
    }
}
