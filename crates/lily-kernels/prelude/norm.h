// The reader's half of RMSNorm; crate::norm in Rust.
#pragma once
#include "lily.h"

// 1 / rms of a residual row from its partial sums of squares, `ss` [norm.ss_tiles]. The whole simdgroup
// calls it; every lane gets the same bits, in every threadgroup.
METAL_FUNC float rms_scale(const device float* ss, constant NormArgs& norm, uint lane) {
    float sum = 0.0f;
    for (uint tile = lane; tile < norm.ss_tiles; tile += 32) {
        sum += ss[tile];
    }
    return precise::rsqrt(simd_sum(sum) / float(norm.hidden) + norm.rms_eps);
}
