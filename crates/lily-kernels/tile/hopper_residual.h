// The residual epilogue of a chunk on compute capability 9.0: x += in wᵀ, then as in residual_tile.h. Constants: those of
// hopper_products.h.
#pragma once
#include "hopper_dense.h"

// Adds the products of `live` rows of `in` to x [rows, OUTPUTS], and derives xn and the sums of squares of 64 columns,
// which are the matrix rows of one warpgroup.
METAL_FUNC void project_chunk_to_residual(
    uint live, const uint4* in, const uint4* weight, uchar* memory, const ResidualArgs& residual, float* x,
    const float* next_norm, bfloat* xn, float* x_ss)
{
    __shared__ uint offsets[OFFSETS];
    const uint thread_index = threadIdx.x;
    const uint first = blockIdx.x * TILE_TOKENS;
    if (first >= live) {
        return;
    }
    const uint rows = min(live - first, uint(TILE_TOKENS));
    float sums[TILE_TOKENS / 2];
    multiply_dense(sums, in, weight, memory, offsets, first, rows, thread_index);

    const uint output = blockIdx.y * TILE_OUTPUTS + thread_index / 32 * 16 + thread_index % 32 / 4 * 2;
    const bool inside = output < OUTPUTS;
    float2 norm = float2(0.0f);
    if (inside) {
        norm = *(const float2*)(next_norm + output);
    }
    __syncthreads();  // nobody reads inputs any more
    float* squares = (float*)memory;  // [warps, TILE_TOKENS]
#pragma unroll
    for (uint i = 0; i < TILE_TOKENS / 4; i++) {
        const uint row = i / 2 * 8 + thread_index % 4 * 2 + i % 2;
        float2 sum = float2(0.0f);
        if (inside && row < rows) {
            const ulong at = ulong(first + row) * OUTPUTS + output;
            sum = *(const float2*)(x + at) + float2(sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]);
            *(float2*)(x + at) = sum;
            *(bfloat2*)(xn + at) = bfloat2(sum * norm);
        }
        float square = dot(sum, sum);
        square += __shfl_xor_sync(0xffffffffu, square, 4);
        square += __shfl_xor_sync(0xffffffffu, square, 8);
        square += __shfl_xor_sync(0xffffffffu, square, 16);
        if (thread_index % 32 < 4) {
            squares[thread_index / 32 * TILE_TOKENS + row] = square;
        }
    }
    __syncthreads();
    for (uint i = thread_index; i < WARPGROUPS * TILE_TOKENS; i += THREADS) {
        const uint row = i % TILE_TOKENS;
        const uint column = blockIdx.y * WARPGROUPS + i / TILE_TOKENS;
        if (row < rows && column * 64 < OUTPUTS) {
            const float* of = squares + i / TILE_TOKENS * (4 * TILE_TOKENS) + row;
            x_ss[ulong(first + row) * residual.ss_stride + column] =
                (of[0] + of[TILE_TOKENS]) + (of[2 * TILE_TOKENS] + of[3 * TILE_TOKENS]);
        }
    }
}
