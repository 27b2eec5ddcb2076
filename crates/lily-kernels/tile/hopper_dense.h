// Items of products with the rows of a chunk on compute capability 9.0. Constants: those of hopper_products.h.
#pragma once
#include "hopper_products.h"

// Rows of x vary fastest, so that few weights are in use at a time.
struct DenseItems {
    static constexpr bool FOLLOW = true;
    uint live;  // rows of x
    uint tiles;

    METAL_FUNC explicit DenseItems(uint live) : live(live), tiles((live + TILE_TOKENS - 1) / TILE_TOKENS) {}
    METAL_FUNC uint items() const { return tiles * OUTPUT_BLOCKS; }
    METAL_FUNC Item item(uint index) const {
        const uint first = index % tiles * TILE_TOKENS;
        return Item{0, index / tiles * TILE_OUTPUTS, first, min(live - first, uint(TILE_TOKENS))};
    }
    METAL_FUNC uint row(const Item& item, uint i) const { return (item.first + i) * (INPUT_WIDTH * 2); }
};
