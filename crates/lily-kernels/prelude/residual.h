// The residual epilogue; crate::residual in Rust: x += result on owned columns, then xn = x ∘ w_next and the sum
// of squares of the new x for each tile of columns.
#pragma once
#include "lily.h"

// The four buffers.
struct Residual {
    device float* x;                // [rows, hidden]
    const device float* next_norm;  // [hidden]
    device bfloat* xn;              // [rows, hidden]
    device float* x_ss;             // [rows, ss_stride]
};

// Up to 64 columns of a row that a simdgroup ends: lane l has columns l and l + 32 of them.
struct ResidualTile {
    ulong at;         // of the lane's first element in x
    float x[2];       // before the launch
    float weight[2];  // of the next norm
};

// Loads what the epilogue needs; called early, the values arrive while the product runs.
METAL_FUNC ResidualTile load_residual(
    const thread Residual& residual, constant ResidualArgs& args, uint row, uint first, uint lane)
{
    ResidualTile tile;
    tile.at = ulong(row) * args.hidden + first + lane;
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        const bool owned = lane + i * 32 < args.ss_columns;
        tile.x[i] = owned ? residual.x[tile.at + i * 32] : 0.0f;
        tile.weight[i] = owned ? residual.next_norm[first + lane + i * 32] : 0.0f;
    }
    return tile;
}

// Adds `results` (those of columns lane and lane + 32) and stores. The columns are one tile of ss_columns,
// number `tile_index` of the row. The whole simdgroup calls it.
METAL_FUNC void add_to_residual(
    const thread Residual& residual,
    constant ResidualArgs& args,
    uint row,
    uint tile_index,
    const thread ResidualTile& tile,
    const thread float* results,
    uint lane)
{
    float squares = 0.0f;
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        if (lane + i * 32 < args.ss_columns) {
            const float x = tile.x[i] + results[i];
            residual.x[tile.at + i * 32] = x;
            residual.xn[tile.at + i * 32] = bfloat(x * tile.weight[i]);
            squares = fma(x, x, squares);
        }
    }
    squares = simd_sum(squares);
    if (lane == 0) {
        residual.x_ss[ulong(row) * args.ss_stride + tile_index] = squares;
    }
}
