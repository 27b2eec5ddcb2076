// The residual epilogue on the results of a matrix product, a tile of 64 columns; crate::residual in Rust.
#pragma once
#include "gemm.h"

// x += results, xn = x ∘ next_norm, and the sums of squares of 64 columns, or of 8. A simdgroup owns a row at a
// time, a lane two columns. `row` and `column` are the tile's first ones.
METAL_FUNC void add_tile(
    const threadgroup uint4* memory, uint row, uint rows, uint column, constant ResidualArgs& residual, device float* x,
    const device float* next_norm, device bfloat* xn, device float* x_ss, uint simdgroup, uint lane)
{
    const threadgroup float* results = (const threadgroup float*)memory + lane * 2;
    const uint own = column + lane * 2;
    const bool inside = own < residual.hidden;
    const float2 norm = inside ? *(const device float2*)(next_norm + own) : float2(0.0f);
    for (uint i = simdgroup; i < rows; i += 4) {
        const uint at = (row + i) * residual.hidden + own;
        float2 sum = float2(0.0f);
        if (inside) {
            sum = *(const device float2*)(x + at) + *(const threadgroup float2*)(results + i * RESULT_PITCH);
            *(device float2*)(x + at) = sum;
            *(device bfloat2*)(xn + at) = bfloat2(sum * norm);
        }
        const float squares = dot(sum, sum);
        device float* ss = x_ss + (row + i) * residual.ss_stride;
        if (residual.ss_columns == TILE_COLUMNS) {
            const float all = simd_sum(squares);
            if (lane == 0) {
                ss[column / TILE_COLUMNS] = all;
            }
        } else {
            float all = squares + simd_shuffle_xor(squares, 1);
            all += simd_shuffle_xor(all, 2);
            if (inside && lane % 4 == 0) {
                ss[own / 8] = all;
            }
        }
    }
}
