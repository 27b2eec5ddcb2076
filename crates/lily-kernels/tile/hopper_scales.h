// 1 / rms of rows on compute capability 9.0.
#pragma once
#include "hopper_products.h"

// scales[i] = 1 / rms of row row_of(i), for i below `rows`, from partial sums of squares x_ss [.., norm.ss_stride]. Four
// threads share a row. One warpgroup calls it; a barrier must follow.
template <typename Rows>
METAL_FUNC void find_scales(
    float* scales, const float* x_ss, const NormArgs& norm, uint rows, const Rows& row_of, uint thread_index)
{
    for (uint base = 0; base < rows; base += 32) {
        const uint row = base + thread_index % 128 / 4;
        float sum = 0.0f;
        if (row < rows) {
            const float* ss = x_ss + ulong(row_of(row)) * norm.ss_stride;
#pragma unroll 8
            for (uint i = thread_index % 4; i < norm.ss_tiles; i += 4) {
                sum += ss[i];
            }
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (row < rows && thread_index % 4 == 0) {
            scales[row] = precise::rsqrt(sum / float(norm.hidden) + norm.rms_eps);
        }
    }
}
