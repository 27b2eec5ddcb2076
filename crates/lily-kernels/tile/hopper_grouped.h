// The grouped products' items on compute capability 9.0: blocks share them out among themselves, so that none is
// started for nothing. Constants: those of hopper_products.h, ENTRY_ROWS of a full entry of the work list, TILES at most.
#pragma once
#include "grouped.h"
#include "hopper_products.h"

constant constexpr uint TILE_ENTRIES = TILE_TOKENS / ENTRY_ROWS;
constant constexpr uint LOOKS = 4;  // entries that a thread looks at together

// At most TILE_TOKENS sorted rows of one expert.
struct Tile {
    ushort expert;
    ushort rows;
    uint first;
};

// Lists the tiles of the work list in its order; gives their number. All threads call it; `counts` has LOOKS * WARPS.
METAL_FUNC uint list_tiles(Tile* tiles, uint* counts, const int* work, uint entries, uint thread_index) {
    const int4* list = (const int4*)work;
    const uint lane = thread_index % 32;
    uint total = 0;
    for (uint base = 0; base < entries; base += LOOKS * THREADS) {
        Tile own[LOOKS];
        uint starts[LOOKS];
#pragma unroll
        for (uint i = 0; i < LOOKS; i++) {
            const uint at = base + i * THREADS + thread_index;
            int4 entry = int4(0);
            if (at < entries) {
                entry = list[at];
            }
            own[i].expert = ushort(entry.x);
            own[i].first = uint(entry.y);
            uint rows = uint(entry.z);
#pragma unroll
            for (uint next = 1; next < TILE_ENTRIES; next++) {
                if (at + next < entries) {
                    const int4 more = list[at + next];
                    rows += more.z > 0 && more.x == entry.x ? uint(more.z) : 0;
                }
            }
            own[i].rows = ushort(rows);
            starts[i] = __ballot_sync(0xffffffffu, entry.z > 0 && uint(entry.w) % TILE_ENTRIES == 0);
            if (lane == 0) {
                counts[i * WARPS + thread_index / 32] = __popc(starts[i]);
            }
        }
        __syncthreads();
#pragma unroll
        for (uint i = 0; i < LOOKS; i++) {
            uint before = 0;
#pragma unroll
            for (uint warp = 0; warp < WARPS; warp++) {
                before = warp == thread_index / 32 ? total : before;
                total += counts[i * WARPS + warp];
            }
            if ((starts[i] >> lane & 1) != 0) {
                tiles[before + __popc(starts[i] & ((1u << lane) - 1))] = own[i];
            }
        }
        __syncthreads();
    }
    return total;
}

// Items in the order of the tiles, the matrix rows of a tile one after the other: neighbours share rows of x.
struct GroupedItems {
    const Tile* tiles;
    uint number;

    METAL_FUNC uint items() const { return number * OUTPUT_BLOCKS; }
    METAL_FUNC Item item(uint index) const {
        const Tile tile = tiles[index / OUTPUT_BLOCKS];
        const uint output = index % OUTPUT_BLOCKS * TILE_OUTPUTS;
        return Item{uint(tile.expert) * uint(OUTPUTS), output, tile.first, uint(tile.rows)};
    }
};

// Calls f<N>() with the lowest height of products for `rows` rows.
template <typename F> METAL_FUNC void with_height(uint rows, const F& f) {
    if (rows <= 32) {
        f.template operator()<32>();
    } else if (rows <= 64) {
        if constexpr (TILE_TOKENS >= 64) {
            f.template operator()<64>();
        }
    } else {
        if constexpr (TILE_TOKENS > 64) {
            f.template operator()<TILE_TOKENS>();
        }
    }
}
