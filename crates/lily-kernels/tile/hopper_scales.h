// 1 / rms of rows on compute capability 9.0. Constants: those of hopper_products.h, and SS_TILES, partial sums of
// squares of a row, a multiple of 4.
#pragma once
#include "hopper_products.h"

constant constexpr uint SS_WORDS = SS_TILES / 4;

// scales[i] = 1 / rms of row row_of(i), for i below `rows`, from partial sums of squares x_ss [.., norm.ss_stride]. Four
// threads share a row, and look at two rows at a time, so that their loads are on the way together. One warpgroup calls
// it; a barrier must follow.
template <typename Rows>
METAL_FUNC void find_scales(
    float* scales, const float* x_ss, const NormArgs& norm, uint rows, const Rows& row_of, uint thread_index)
{
    const uint first = thread_index % 128 / 4;
#pragma unroll 1
    for (uint base = 0; base < rows; base += 64) {
        float sums[2];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            const uint row = row_of(min(base + i * 32 + first, rows - 1));
            const float4* squares = (const float4*)(x_ss + ulong(row) * norm.ss_stride);
            sums[i] = 0.0f;
#pragma unroll
            for (uint word = 0; word < SS_WORDS; word += 4) {
                const uint own = word + thread_index % 4;
                const float4 four = squares[min(own, SS_WORDS - 1)];
                sums[i] += own < SS_WORDS ? (four.x + four.y) + (four.z + four.w) : 0.0f;
            }
        }
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            const uint row = base + i * 32 + first;
            float sum = sums[i] + __shfl_xor_sync(0xffffffffu, sums[i], 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (thread_index % 4 == 0 && row < rows) {
                scales[row] = precise::rsqrt(sum / float(norm.hidden) + norm.rms_eps);
            }
        }
    }
}
