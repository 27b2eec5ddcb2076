// What all attention kernels share; crate::attention in Rust.
#pragma once
#include "lily.h"

// Stands for minus infinity, which fast arithmetic may assume not to exist. What has met no key yet gets
// weight 0 once it is merged with something that has.
constant constexpr float LOWEST = -1.0e30f;

// Scores are kept times log2(e). The exponentials are taken from a base that follows the largest score
// only when that exceeds it by this much, since moving it costs a pass over the outputs: weights reach
// 2^SLACK, and f32 sums lose nothing by it.
constant constexpr float SLACK = 8.0f;

// Keys of one block when `length` keys are cut into at most `splits` blocks.
METAL_FUNC uint block_keys(uint length, uint splits) {
    const uint unit = 32 * splits;
    return 32 * ((max(length, 1u) + unit - 1) / unit);
}

// Blocks in use.
METAL_FUNC uint blocks(uint length, uint splits) {
    const uint keys = block_keys(length, splits);
    return (length + keys - 1) / keys;
}
