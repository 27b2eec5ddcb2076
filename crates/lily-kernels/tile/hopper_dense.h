// Projections of a chunk's rows on compute capability 9.0. A block owns TILE_TOKENS rows and TILE_OUTPUTS matrix rows, the
// rows of x vary fastest in the grid, so that few weights are in use at a time. Constants: those of hopper_products.h.
#pragma once
#include "hopper_products.h"

// Multiplies the block's tile of x, of which `rows` rows from `first` on live.
METAL_FUNC void multiply_dense(
    float (&sums)[TILE_TOKENS / 2], const uint4* x, const uint4* weight, uchar* memory, uint* offsets, uint first,
    uint rows, uint thread_index)
{
    for (uint i = thread_index; i < OFFSETS; i += THREADS) {
        offsets[i] = (first + i) * (INPUT_WIDTH * 2);
    }
    const WeightRows weights(weight, 0, blockIdx.y * TILE_OUTPUTS, thread_index);
    __syncthreads();
    multiply_rows<TILE_TOKENS>(sums, weights, shared_address(memory), (const uchar*)x, offsets, rows, thread_index);
}
