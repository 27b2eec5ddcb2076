// The residual epilogue of a chunk on compute capability 9.0: x += in wᵀ, then as in residual_tile.h. Constants: those
// of hopper_products.h.
#pragma once
#include "hopper_dense.h"

// The sums of squares are those of 64 columns: the matrix rows of one warpgroup.
struct ResidualProjection {
    DenseItems items;
    float* x;                // [rows, OUTPUTS]
    const float* next_norm;
    bfloat* xn;
    float* x_ss;
    uint ss_stride;
    float* squares;          // [WARPS, TILE_TOKENS]
    uint thread_index;

    METAL_FUNC void prepare(const Item&, uint) const {}

    // Row of x in the tile that the lane's sums `i / 2 * 4 + i % 2` and the second next one belong to.
    METAL_FUNC uint row_of(uint i) const { return i / 2 * 8 + thread_index % 4 * 2 + i % 2; }

    template <typename Copies, typename Between>
    METAL_FUNC void compute(const Item& item, uint, Copies& copies, RingPlace& place, const Between& between) const {
        float sums[TILE_TOKENS / 2];
        multiply_item<TILE_TOKENS>(sums, copies, place, between, thread_index);
        const uint warpgroup = thread_index / 128;
        const uint column = item.output + warpgroup * 64;
        if (column >= OUTPUTS) {
            return;
        }
        const uint output = item.output + thread_index / 32 * 16 + thread_index % 32 / 4 * 2;
        const float2 norm = *(const float2*)(next_norm + output);
        float* own = squares + thread_index / 32 * TILE_TOKENS;
        // Four rows at a time: their loads are on the way together.
#pragma unroll
        for (uint i = 0; i < TILE_TOKENS / 4; i += 4) {
            float2 sum[4];
#pragma unroll
            for (uint j = 0; j < 4; j++) {
                const uint row = min(row_of(i + j), item.rows - 1);
                sum[j] = *(const float2*)(x + ulong(item.first + row) * OUTPUTS + output);
            }
#pragma unroll
            for (uint j = 0; j < 4; j++) {
                const uint row = row_of(i + j);
                const uint at = (i + j) / 2 * 4 + j % 2;
                sum[j] = sum[j] + float2(sums[at], sums[at + 2]);
                if (row < item.rows) {
                    const ulong to = ulong(item.first + row) * OUTPUTS + output;
                    *(float2*)(x + to) = sum[j];
                    *(bfloat2*)(xn + to) = bfloat2(sum[j] * norm);
                }
                float square = dot(sum[j], sum[j]);
                square += __shfl_xor_sync(0xffffffffu, square, 4);
                square += __shfl_xor_sync(0xffffffffu, square, 8);
                square += __shfl_xor_sync(0xffffffffu, square, 16);
                if (thread_index % 32 < 4) {
                    own[row] = square;
                }
            }
        }
        warpgroup_barrier(1 + warpgroup);
        const float* all = squares + warpgroup * (4 * TILE_TOKENS);
        for (uint row = thread_index % 128; row < item.rows; row += 128) {
            x_ss[ulong(item.first + row) * ss_stride + column / 64] =
                (all[row] + all[TILE_TOKENS + row]) + (all[2 * TILE_TOKENS + row] + all[3 * TILE_TOKENS + row]);
        }
    }
};

// Adds the products of `live` rows of `in` to x, and derives xn and the sums of squares; `memory` has STAGES of them.
METAL_FUNC void project_chunk_to_residual(
    uint live, const uint4* in, const uint4* weight, uchar* memory, const ResidualArgs& residual, float* x,
    const float* next_norm, bfloat* xn, float* x_ss)
{
    __shared__ ulong barriers[2 * STAGES];
    __shared__ float squares[WARPS * TILE_TOKENS];
    if (live == 0) {
        return;
    }
    const ResidualProjection projection{
        DenseItems(live), x, next_norm, xn, x_ss, residual.ss_stride, squares, threadIdx.x};
    const Ring ring{shared_address(memory), shared_address(barriers)};
    compute_items(projection, ring, weight, in, threadIdx.x);
}
