// grouped_gate_up on compute capability 9.0; formula and buffers as in kernel.metal. Blocks take tiles of TILE_TOKENS
// sorted rows of one expert and TILE_OUTPUTS matrix rows in turn, the matrix rows of a tile one after the other.
#include "hopper_grouped.h"
#include "hopper_scales.h"

constant constexpr uint OUT_COLUMNS = TILE_OUTPUTS / 2;
constant constexpr uint OUT_PITCH = OUT_COLUMNS + 8;  // bfloats
static_assert(TILE_TOKENS * OUT_PITCH * 2 <= STAGES * STAGE_BYTES, "the results fit where the inputs were");

template <uint N>
METAL_FUNC void compute_tile(
    const WeightRows& weights, const Tile& tile, uint block, uchar* memory,
    const uchar* xn, const uint* offsets, const float* scales, bfloat* hs, uint thread_index)
{
    float sums[N / 2];
    multiply_rows<N>(sums, weights, shared_address(memory), xn, offsets, tile.rows, thread_index);
    __syncthreads();
    bfloat* results = (bfloat*)memory;
    const uint column = thread_index / 32 * 8 + thread_index % 32 / 4;
#pragma unroll
    for (uint i = 0; i < N / 4; i++) {
        const uint row = i / 2 * 8 + thread_index % 4 * 2 + i % 2;
        const float scale = scales[row];
        const float gate = sums[i / 2 * 4 + i % 2] * scale;
        const float up = sums[i / 2 * 4 + i % 2 + 2] * scale;
        results[row * OUT_PITCH + column] = bfloat(silu(gate) * up);
    }
    __syncthreads();
    constexpr uint WORDS = OUT_COLUMNS / 8;
    uint4* to = (uint4*)hs + ulong(tile.first) * (OUTPUTS / 16) + block * WORDS;
    for (uint i = thread_index; i < tile.rows * WORDS; i += THREADS) {
        to[i / WORDS * (OUTPUTS / 16) + i % WORDS] = *(const uint4*)(results + i / WORDS * OUT_PITCH + i % WORDS * 8);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) grouped_gate_up(
    const __grid_constant__ Args args, const int* control, const uchar* xn, const float* x_ss, const int* work,
    const int* row_token, const uint4* gate_up, bfloat* hs)
{
    extern __shared__ __align__(1024) uchar memory[];
    __shared__ Tile tiles[TILES];
    __shared__ uint counts[LOOKS * WARPS];
    __shared__ uint offsets[OFFSETS];
    __shared__ float scales[TILE_TOKENS];

    wait_for_previous_kernel();
    const uint thread_index = threadIdx.x;
    if (!any_row_lives(control, args.step, thread_index % 32)) {
        return;
    }
    const uint items = list_tiles(tiles, counts, work, args.entries, thread_index) * OUTPUT_BLOCKS;
    for (uint item = blockIdx.x; item < items; item += gridDim.x) {
        const Tile tile = tiles[item / OUTPUT_BLOCKS];
        const uint block = item % OUTPUT_BLOCKS;
        const WeightRows weights(
            gate_up, tile.expert * OUTPUTS, block * TILE_OUTPUTS, thread_index);
        __syncthreads();  // nobody reads the last tile's memory any more
        if (thread_index < tile.rows) {
            offsets[thread_index] = uint(row_token[tile.first + thread_index]) * (INPUT_WIDTH * 2);
        }
        find_scales(
            scales, x_ss, args.norm, tile.rows, [&](uint row) { return row_token[tile.first + row]; }, thread_index);
        __syncthreads();
        if (tile.rows <= 32) {
            compute_tile<32>(weights, tile, block, memory, xn, offsets, scales, hs, thread_index);
        } else if (tile.rows <= 64) {
            if constexpr (TILE_TOKENS >= 64) {
                compute_tile<64>(weights, tile, block, memory, xn, offsets, scales, hs, thread_index);
            }
        } else {
            if constexpr (TILE_TOKENS > 64) {
                compute_tile<TILE_TOKENS>(weights, tile, block, memory, xn, offsets, scales, hs, thread_index);
            }
        }
    }
}
