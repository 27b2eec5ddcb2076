// The reader's half of RMSNorm; crate::norm in Rust. Constants: SS_LANE_TILES, partial sums of a lane.
#pragma once
#include "lily.h"

// This lane's part of the sum of squares of a residual row, from its partial sums `ss` [norm.ss_tiles]. Called
// before a product, its loads overlap with those of the product; rms_scale_of ends it behind the product.
METAL_FUNC float rms_part(const device float* ss, constant NormArgs& norm, uint lane) {
    float part = 0.0f;
#pragma unroll
    for (uint i = 0; i < SS_LANE_TILES; i++) {
        const uint tile = lane + i * 32;
        const float squares = ss[min(tile, norm.ss_tiles - 1)];
        part += tile < norm.ss_tiles ? squares : 0.0f;
    }
    return part;
}

// 1 / rms of the row from the parts of all lanes. The whole simdgroup calls it; every lane gets the same bits, in
// every threadgroup.
METAL_FUNC float rms_scale_of(float part, constant NormArgs& norm) {
    return precise::rsqrt(simd_sum(part) / float(norm.hidden) + norm.rms_eps);
}
