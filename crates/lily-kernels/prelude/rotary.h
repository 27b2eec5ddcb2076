// Norm and rotary of a head; crate::attention::RotaryArgs in Rust. Constants: HEAD_DIM, ROTARY_DIM,
// ROTARY_TURNS (frequencies in turns per position, as 64-bit fractions: high word, low word).
#pragma once
#include "lily.h"

constant constexpr uint ROTARY_HALF = ROTARY_DIM / 2;
constant constexpr uint TURNS[ROTARY_DIM] = ROTARY_TURNS;
constant constexpr uint HEAD_FOURS = HEAD_DIM / 4;

// Cosine and sine of the angle of a pair. Whole turns fall off the integer product, so the angle is as
// exact at position 2^32 as at 1: both results are within 2e-7. The series are those of Taylor on an
// eighth of a turn; their next terms are below 2e-9.
METAL_FUNC float2 rotary_factors(uint pair, uint position) {
    const uint turn = TURNS[2 * pair] * position + mulhi(TURNS[2 * pair + 1], position);
    const uint quarter = (turn + 0x20000000u) >> 30;
    const float x = float(as_type<int>(turn - (quarter << 30))) * 1.4629180792671596e-9f;  // 2 pi / 2^32
    const float y = x * x;
    const float s = x + x * y * fma(y, fma(y, fma(y, 2.7557319e-6f, -1.9841270e-4f), 8.3333333e-3f), -0.16666667f);
    const float c = fma(
        y, fma(y, fma(y, fma(y, fma(y, -2.7557319e-7f, 2.4801587e-5f), -1.3888889e-3f), 4.1666667e-2f), -0.5f), 1.0f);
    const float cosine = (quarter & 1) != 0 ? s : c;
    const float sine = (quarter & 1) != 0 ? c : s;
    return float2(((quarter + 1) & 2) != 0 ? -cosine : cosine, (quarter & 2) != 0 ? -sine : sine);
}

// `to` = rotary(rms(x) ∘ weight), rounded. x and weight are [HEAD_DIM], `to` points to bfloat4 in device or
// threadgroup memory. The whole simdgroup calls it.
template <typename To>
METAL_FUNC void prepare_head(
    const device float* x, const device float* weight, float rms_eps, uint position, To to, uint lane) {
    float sum = 0.0f;
#pragma unroll
    for (uint four = lane; four < HEAD_FOURS; four += 32) {
        const float4 own = ((const device float4*)x)[four];
        sum += dot(own, own);
    }
    const float scale = precise::rsqrt(simd_sum(sum) / float(HEAD_DIM) + rms_eps);
#pragma unroll
    for (uint four = lane; four < HEAD_FOURS; four += 32) {
        float4 own = ((const device float4*)x)[four] * scale * ((const device float4*)weight)[four];
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            const uint element = 4 * four + i;
            if (element < ROTARY_DIM) {
                const bool low = element < ROTARY_HALF;
                const uint pair = low ? element : element - ROTARY_HALF;
                const uint partner = low ? element + ROTARY_HALF : pair;
                const float other = x[partner] * scale * weight[partner];
                const float2 factors = rotary_factors(pair, position);
                own[i] = fma(own[i], factors.x, (low ? -other : other) * factors.y);
            }
        }
        to[four] = bfloat4(own);
    }
}

// `to` = x, rounded.
template <typename To>
METAL_FUNC void copy_head(const device float* x, To to, uint lane) {
#pragma unroll
    for (uint four = lane; four < HEAD_FOURS; four += 32) {
        to[four] = bfloat4(((const device float4*)x)[four]);
    }
}
