// Products of matrix tiles by simdgroup matrices, 8 x 8. Constants: TILE_ROWS, ROW_GROUPS.
#pragma once
#if !TENSOR_OPERATIONS
#include "matrix.h"

// A threadgroup of four simdgroups owns a tile [TILE_ROWS, 64]: ROW_GROUPS of them side by side along the rows, the
// others along the columns. A simdgroup owns whole blocks of 16 rows.
constant constexpr uint SUM_BLOCKS = TILE_ROWS / 16 / ROW_GROUPS;
constant constexpr uint SUM_COLUMNS = 16 * ROW_GROUPS;

// What a simdgroup owns.
struct TileSums {
    simdgroup_float8x8 at[SUM_BLOCKS][2][SUM_COLUMNS / 8];
};

METAL_FUNC uint sums_row(uint simdgroup) { return simdgroup % ROW_GROUPS * (SUM_BLOCKS * 16); }
METAL_FUNC uint sums_column(uint simdgroup) { return simdgroup / ROW_GROUPS * SUM_COLUMNS; }

METAL_FUNC void tile_clear(thread TileSums& sums) {
#pragma unroll
    for (uint block = 0; block < SUM_BLOCKS; block++) {
#pragma unroll
        for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint j = 0; j < SUM_COLUMNS / 8; j++) {
                sums.at[block][i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
    }
}

// sums += x wᵀ with x [TILE_ROWS, 64] and w [64, 64], rows of `pitch` bfloats. Blocks from row `rows` on are
// left out.
METAL_FUNC void tile_multiply(
    thread TileSums& sums, const threadgroup bfloat* x, const threadgroup bfloat* w, uint pitch, uint rows, uint simdgroup)
{
    const uint first = sums_row(simdgroup);
    x += first * pitch;
    w += sums_column(simdgroup) * pitch;
#pragma unroll
    for (uint k = 0; k < 64; k += 16) {
        simdgroup_bfloat8x8 b[2][SUM_COLUMNS / 8];
        simdgroup_tile_load_t(b, w + k, pitch);
#pragma unroll
        for (uint block = 0; block < SUM_BLOCKS; block++) {
            if (first + block * 16 < rows) {
                simdgroup_bfloat8x8 a[2][2];
                simdgroup_tile_load(a, x + block * 16 * pitch + k, pitch);
                simdgroup_tile_mma(sums.at[block], a, b);
            }
        }
    }
}

// Writes the tile to rows of `pitch` floats.
METAL_FUNC void tile_store(thread TileSums& sums, threadgroup float* to, uint pitch, uint simdgroup) {
    to += sums_row(simdgroup) * pitch + sums_column(simdgroup);
#pragma unroll
    for (uint block = 0; block < SUM_BLOCKS; block++) {
#pragma unroll
        for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint j = 0; j < SUM_COLUMNS / 8; j++) {
                simdgroup_store(sums.at[block][i][j], to + (block * 16 + i * 8) * pitch + j * 8, pitch);
            }
        }
    }
}
#endif
