// Projections of a chunk's normed rows on compute capability 9.0. Constants: those of hopper_products.h.
#pragma once
#include "hopper_dense.h"
#include "hopper_scales.h"

// y = (x wᵀ) / rms(x): gives two neighbouring columns of a row at a time to `columns`.
template <typename Columns> struct Projection {
    DenseItems items;
    const float* x_ss;
    const NormArgs& norm;
    float* scales;  // [2, TILE_TOKENS]
    Columns columns;
    uint thread_index;

    METAL_FUNC void prepare(const Item& item, uint number) const {
        float* to = scales + number % 2 * TILE_TOKENS;
        find_scales(to, x_ss, norm, item.rows, [&](uint row) { return item.first + row; }, thread_index);
    }

    template <typename Copies, typename Between>
    METAL_FUNC void compute(
        const Item& item, uint number, Copies& copies, RingPlace& place, const Between& between) const
    {
        float sums[TILE_TOKENS / 2];
        multiply_item<TILE_TOKENS>(sums, copies, place, between, thread_index);
        const uint output = item.output + thread_index / 32 * 16 + thread_index % 32 / 4 * 2;
        if (output >= OUTPUTS) {
            return;
        }
        const float* own = scales + number % 2 * TILE_TOKENS;
#pragma unroll
        for (uint i = 0; i < TILE_TOKENS / 4; i++) {
            const uint row = i / 2 * 8 + thread_index % 4 * 2 + i % 2;
            if (row < item.rows) {
                const float2 both = float2(sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]);
                columns.store(item.first + row, output, both * own[row]);
            }
        }
    }
};

// Projects `live` rows; `memory` has STAGES of them.
template <typename Columns>
METAL_FUNC void project_chunk(
    uint live, const uint4* xn, const float* x_ss, const NormArgs& norm, const uint4* weight, uchar* memory,
    const Columns& columns)
{
    __shared__ ulong barriers[2 * STAGES];
    __shared__ float scales[2 * TILE_TOKENS];
    if (live == 0) {
        return;
    }
    const Projection<Columns> projection{DenseItems(live), x_ss, norm, scales, columns, threadIdx.x};
    const Ring ring{shared_address(memory), shared_address(barriers)};
    compute_items(projection, ring, weight, xn, threadIdx.x);
}
