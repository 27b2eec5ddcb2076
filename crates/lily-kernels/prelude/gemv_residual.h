// A projection that ends a block: products of COLUMNS matrix rows by one threadgroup, then the residual epilogue.
// Constants: those of gemv.h and COLUMNS = ss_columns. SIMDGROUPS = COLUMNS / SIMD_ROWS * SPLITS, at least TOKENS.
#pragma once
#include "gemv.h"
#include "residual.h"

constant constexpr uint PARTIALS = SPLITS * TOKENS * COLUMNS;

// A lane's place in the columns of a tile.
struct ResidualLane {
    uint split;
    uint column;  // first column of the simdgroup
    uint row;     // first matrix row of the lane
    uint word;    // first word of the lane
};

METAL_FUNC ResidualLane residual_lane(uint tile_index, uint simdgroup, uint lane) {
    ResidualLane at;
    at.split = simdgroup % SPLITS;
    at.column = simdgroup / SPLITS * SIMD_ROWS;
    at.row = tile_index * COLUMNS + at.column + lane_row(lane);
    at.word = lane_word(at.split, lane);
    return at;
}

// `words` holds the words at the lane's place. Ends the columns of tile `tile_index`; `partials` [SPLITS, TOKENS, COLUMNS]. All threads call it.
template <typename Inputs>
METAL_FUNC void project_to_residual(
    const device uint4* matrix,
    const thread ResidualLane& at,
    thread RowWords& words,
    const thread Inputs& inputs,
    const thread Residual& residual,
    constant ResidualArgs& args,
    const thread Tokens& tokens,
    uint tile_index,
    threadgroup float* partials,
    uint simdgroup,
    uint lane)
{
    // Simdgroup t ends token t.
    const bool ends = simdgroup < TOKENS && tokens.lives(simdgroup);
    const uint token_row = tokens.row(ends ? simdgroup : 0);
    ResidualTile tile;
    if (ends) {
        tile = load_residual(residual, args, token_row, tile_index * COLUMNS, lane);
    }
    float sums[LANE_ROWS * TOKENS];
    multiply(matrix, at.row, at.word, words, inputs, sums);
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        const float sum = sum_lanes(sums, t, lane);
        if (leads_result(lane)) {
            partials[(at.split * TOKENS + t) * COLUMNS + at.column + result_row(lane)] = sum;
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
