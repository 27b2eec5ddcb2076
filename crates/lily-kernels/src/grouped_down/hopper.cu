// grouped_down on compute capability 9.0; formula and buffers as in kernel.metal. Blocks take tiles of TILE_TOKENS
// sorted rows of one expert and TILE_OUTPUTS matrix rows in turn; see hopper_products.h.
#include "hopper_grouped.h"

struct SortedItems : GroupedItems {
    static constexpr bool FOLLOW = true;
    METAL_FUNC uint row(const Item& item, uint i) const { return (item.first + i) * (INPUT_WIDTH * 2); }
};

struct Down {
    SortedItems items;
    const int* row_token;
    const int* row_slot;
    const float* route;
    uint* places;    // [2, TILE_TOKENS]
    float* factors;  // [2, TILE_TOKENS]
    float* moe_y;
    uint thread_index;

    METAL_FUNC void prepare(const Item& item, uint number) const {
        const uint row = thread_index % 128;
        if (row < item.rows) {
            const uint at = number % 2 * TILE_TOKENS + row;
            places[at] = uint(row_token[item.first + row]) * SLOTS + uint(row_slot[item.first + row]);
            factors[at] = route[places[at]];
        }
    }

    template <typename Copies, typename Between>
    METAL_FUNC void compute(
        const Item& item, uint number, Copies& copies, RingPlace& place, const Between& between) const
    {
        with_height(item.rows, [&]<uint N>() {
            float sums[N / 2];
            multiply_item<N>(sums, copies, place, between, thread_index);
            const uint output = item.output + thread_index / 32 * 16 + thread_index % 32 / 4 * 2;
#pragma unroll
            for (uint i = 0; i < N / 4; i++) {
                const uint row = i / 2 * 8 + thread_index % 4 * 2 + i % 2;
                if (row < item.rows && output < OUTPUTS) {
                    const uint at = number % 2 * TILE_TOKENS + row;
                    const float2 both = float2(sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]) * factors[at];
                    *(float2*)(moe_y + ulong(places[at]) * OUTPUTS + output) = both;
                }
            }
        });
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) grouped_down(
    const __grid_constant__ Args args, const int* control, const uint4* hs, const int* work, const int* row_token,
    const int* row_slot, const float* route, const uint4* down, float* moe_y)
{
    extern __shared__ __align__(1024) uchar memory[];
    __shared__ ulong barriers[2 * STAGES];
    __shared__ Tile tiles[TILES];
    __shared__ uint counts[LOOKS * WARPS];
    __shared__ uint places[2 * TILE_TOKENS];
    __shared__ float factors[2 * TILE_TOKENS];

    wait_for_previous_kernel();
    if (!any_row_lives(control, args.step, threadIdx.x % 32)) {
        return;
    }
    const uint number = list_tiles(tiles, counts, work, args.entries, threadIdx.x);
    const Down kernel{{{tiles, number}}, row_token, row_slot, route, places, factors, moe_y, threadIdx.x};
    compute_items(kernel, Ring{shared_address(memory), shared_address(barriers)}, down, hs, threadIdx.x);
}
