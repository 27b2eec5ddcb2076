// grouped_gate_up on compute capability 9.0; formula and buffers as in kernel.metal. Blocks take tiles of TILE_TOKENS
// sorted rows of one expert and TILE_OUTPUTS matrix rows in turn; see hopper_products.h.
#include "hopper_grouped.h"
#include "hopper_scales.h"

struct TokenItems : GroupedItems {
    static constexpr bool FOLLOW = false;
    const int* row_token;

    METAL_FUNC uint row(const Item& item, uint i) const { return uint(row_token[item.first + i]) * (INPUT_WIDTH * 2); }
};

struct GateUp {
    TokenItems items;
    const float* x_ss;
    const NormArgs& norm;
    float* scales;  // [2, TILE_TOKENS]
    bfloat* hs;
    uint thread_index;

    METAL_FUNC void prepare(const Item& item, uint number) const {
        float* to = scales + number % 2 * TILE_TOKENS;
        find_scales(
            to, x_ss, norm, item.rows, [&](uint row) { return items.row_token[item.first + row]; }, thread_index);
    }

    template <typename Copies, typename Between>
    METAL_FUNC void compute(
        const Item& item, uint number, Copies& copies, RingPlace& place, const Between& between) const
    {
        with_height(item.rows, [&]<uint N>() {
            float sums[N / 2];
            multiply_item<N>(sums, copies, place, between, thread_index);
            const float* own = scales + number % 2 * TILE_TOKENS;
            const uint column = item.output / 2 + thread_index / 32 * 8 + thread_index % 32 / 4;
            bfloat* to = hs + ulong(item.first) * (OUTPUTS / 2) + column;
#pragma unroll
            for (uint i = 0; i < N / 4; i++) {
                const uint row = i / 2 * 8 + thread_index % 4 * 2 + i % 2;
                if (row < item.rows && column < OUTPUTS / 2) {
                    const float gate = sums[i / 2 * 4 + i % 2] * own[row];
                    const float up = sums[i / 2 * 4 + i % 2 + 2] * own[row];
                    to[row * (OUTPUTS / 2)] = bfloat(silu(gate) * up);
                }
            }
        });
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) grouped_gate_up(
    const __grid_constant__ Args args, const int* control, const uint4* xn, const float* x_ss, const int* work,
    const int* row_token, const uint4* gate_up, bfloat* hs)
{
    extern __shared__ __align__(1024) uchar memory[];
    __shared__ ulong barriers[2 * STAGES];
    __shared__ Tile tiles[TILES];
    __shared__ uint counts[LOOKS * WARPS];
    __shared__ float scales[2 * TILE_TOKENS];

    wait_for_previous_kernel();
    if (!any_row_lives(control, args.step, threadIdx.x % 32)) {
        return;
    }
    const uint number = list_tiles(tiles, counts, work, args.entries, threadIdx.x);
    const GateUp kernel{{{tiles, number}, row_token}, x_ss, args.norm, scales, hs, threadIdx.x};
    compute_items(kernel, Ring{shared_address(memory), shared_address(barriers)}, gate_up, xn, threadIdx.x);
}
