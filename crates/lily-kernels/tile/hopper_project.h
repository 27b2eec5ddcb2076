// Projections of a chunk's normed rows on compute capability 9.0. Constants: those of hopper_products.h.
#pragma once
#include "hopper_dense.h"
#include "hopper_scales.h"

// y = (x wᵀ) / rms(x) for `live` rows: gives two neighbouring columns of a row at a time to `columns`.
template <typename Columns>
METAL_FUNC void project_chunk(
    uint live, const uint4* xn, const float* x_ss, const NormArgs& norm, const uint4* weight, uchar* memory,
    const Columns& columns)
{
    __shared__ uint offsets[OFFSETS];
    __shared__ float scales[TILE_TOKENS];
    const uint thread_index = threadIdx.x;
    const uint first = blockIdx.x * TILE_TOKENS;
    if (first >= live) {
        return;
    }
    const uint rows = min(live - first, uint(TILE_TOKENS));
    find_scales(scales, x_ss, norm, rows, [=](uint row) { return first + row; }, thread_index);
    float sums[TILE_TOKENS / 2];
    multiply_dense(sums, xn, weight, memory, offsets, first, rows, thread_index);

    const uint output = blockIdx.y * TILE_OUTPUTS + thread_index / 32 * 16 + thread_index % 32 / 4 * 2;
    if (output >= OUTPUTS) {
        return;
    }
#pragma unroll
    for (uint i = 0; i < TILE_TOKENS / 4; i++) {
        const uint row = i / 2 * 8 + thread_index % 4 * 2 + i % 2;
        if (row < rows) {
            columns.store(first + row, output, float2(sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]) * scales[row]);
        }
    }
}
