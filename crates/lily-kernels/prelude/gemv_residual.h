// A projection that ends a block: products of COLUMNS matrix rows by one threadgroup, then the residual epilogue.
// Constants: those of gemv.h and COLUMNS = ss_columns. SIMDGROUPS = COLUMNS / SIMD_ROWS * SPLITS, at least TOKENS.
#pragma once
#include "gemv.h"
#include "residual.h"

constant constexpr uint PARTIALS = SPLITS * TOKENS * COLUMNS;

// Ends the columns of tile `tile_index`; `partials` [SPLITS, TOKENS, COLUMNS]. All threads call it.
template <typename Inputs>
METAL_FUNC void project_to_residual(
    const device uint4* matrix,
    const thread Inputs& inputs,
    const thread Residual& residual,
    constant ResidualArgs& args,
    const thread Tokens& tokens,
    uint tile_index,
    threadgroup float* partials,
    uint simdgroup,
    uint lane)
{
    const uint split = simdgroup % SPLITS;
    const uint column = simdgroup / SPLITS * SIMD_ROWS;
    const uint first = tile_index * COLUMNS;
    const uint row = first + column + lane_row(lane);
    RowWords words;
    load_words(matrix, row, lane_word(split, lane), words);
    // Simdgroup t ends token t.
    const bool ends = simdgroup < TOKENS && tokens.lives(simdgroup);
    const uint token_row = tokens.row(ends ? simdgroup : 0);
    const ResidualTile tile = load_residual(residual, args, token_row, first, lane);
    float sums[LANE_ROWS * TOKENS];
    multiply(matrix, row, lane_word(split, lane), words, inputs, sums);
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        const float sum = sum_lanes(sums, t, lane);
        if (leads_result(lane)) {
            partials[(split * TOKENS + t) * COLUMNS + column + result_row(lane)] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!ends) {
        return;
    }
    float results[2];
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        results[i] = 0.0f;
        if (lane + i * 32 < COLUMNS) {
#pragma unroll
            for (uint s = 0; s < SPLITS; s++) {
                results[i] += partials[(s * TOKENS + simdgroup) * COLUMNS + lane + i * 32];
            }
        }
    }
    add_to_residual(residual, args, token_row, tile_index, tile, results, lane);
}
