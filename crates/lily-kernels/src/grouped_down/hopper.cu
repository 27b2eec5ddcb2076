// grouped_down on compute capability 9.0; formula and buffers as in kernel.metal. Blocks take tiles of TILE_TOKENS
// sorted rows of one expert and TILE_OUTPUTS matrix rows in turn, the matrix rows of a tile one after the other.
#include "hopper_grouped.h"

template <uint N>
METAL_FUNC void compute_tile(
    const WeightRows& weights, const Tile& tile, uint output, uchar* memory,
    const uchar* hs, const uint* offsets, const uint* places, const float* factors, float* moe_y, uint thread_index)
{
    float sums[N / 2];
    multiply_rows<N>(sums, weights, shared_address(memory), hs, offsets, tile.rows, thread_index);
    output += thread_index / 32 * 16 + thread_index % 32 / 4 * 2;
    if (output >= OUTPUTS) {
        return;
    }
#pragma unroll
    for (uint i = 0; i < N / 4; i++) {
        const uint row = i / 2 * 8 + thread_index % 4 * 2 + i % 2;
        if (row < tile.rows) {
            const float2 both = float2(sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]) * factors[row];
            *(float2*)(moe_y + ulong(places[row]) * OUTPUTS + output) = both;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) grouped_down(
    const __grid_constant__ Args args, const int* control, const uchar* hs, const int* work, const int* row_token,
    const int* row_slot, const float* route, const uint4* down, float* moe_y)
{
    extern __shared__ __align__(1024) uchar memory[];
    __shared__ Tile tiles[TILES];
    __shared__ uint counts[LOOKS * WARPS];
    __shared__ uint offsets[OFFSETS];
    __shared__ uint places[TILE_TOKENS];
    __shared__ float factors[TILE_TOKENS];

    wait_for_previous_kernel();
    const uint thread_index = threadIdx.x;
    if (!any_row_lives(control, args.step, thread_index % 32)) {
        return;
    }
    const uint items = list_tiles(tiles, counts, work, args.entries, thread_index) * OUTPUT_BLOCKS;
    for (uint item = blockIdx.x; item < items; item += gridDim.x) {
        const Tile tile = tiles[item / OUTPUT_BLOCKS];
        const uint output = item % OUTPUT_BLOCKS * TILE_OUTPUTS;
        const WeightRows weights(down, tile.expert * OUTPUTS, output, thread_index);
        __syncthreads();  // nobody reads the last tile's memory any more
        if (thread_index < tile.rows) {
            const uint row = tile.first + thread_index;
            const uint place = uint(row_token[row]) * SLOTS + uint(row_slot[row]);
            offsets[thread_index] = row * (INPUT_WIDTH * 2);
            places[thread_index] = place;
            factors[thread_index] = route[place];
        }
        __syncthreads();
        if (tile.rows <= 32) {
            compute_tile<32>(weights, tile, output, memory, hs, offsets, places, factors, moe_y, thread_index);
        } else if (tile.rows <= 64) {
            if constexpr (TILE_TOKENS >= 64) {
                compute_tile<64>(
                    weights, tile, output, memory, hs, offsets, places, factors, moe_y, thread_index);
            }
        } else {
            if constexpr (TILE_TOKENS > 64) {
                compute_tile<TILE_TOKENS>(
                    weights, tile, output, memory, hs, offsets, places, factors, moe_y, thread_index);
            }
        }
    }
}
