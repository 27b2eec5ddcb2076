// The rule by which a token is drawn, in whole numbers: lily_kernels::draw, rule.rs, which explains it. The two give the
// same bits.
#pragma once

// Words of a row of the sampling buffer.
constant constexpr uint DRAW_WORDS = 8;
constant constexpr uint DRAW_SCALE = 0;
constant constexpr uint DRAW_TOP_K = 1;
constant constexpr uint DRAW_TOP_P = 2;
constant constexpr uint DRAW_MIN_P = 3;
constant constexpr uint DRAW_SEED_LOW = 4;
constant constexpr uint DRAW_SEED_HIGH = 5;
constant constexpr uint DRAW_MOST = 64;  // candidates

METAL_FUNC ulong draw_mix(ulong z) {
    z += 0x9e3779b97f4a7c15ul;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
    return z ^ (z >> 31);
}

// The random number of the token at a position.
METAL_FUNC ulong draw_random(const device uint* rule, int position) {
    const ulong seed = ulong(rule[DRAW_SEED_HIGH]) << 32 | ulong(rule[DRAW_SEED_LOW]);
    return draw_mix(draw_mix(seed) ^ ulong(uint(max(position, 0))));
}

// 2^40 exp(-below / temperature).
METAL_FUNC ulong draw_weight(float below, float scale) {
    const float steps = below * scale;
    if (as_type<uint>(steps) >= 0x4e800000u) {
        return 0;
    }
    const uint octaves = uint(steps);
    const uint one = 1u << 31;
    const ulong x = (ulong((octaves & 0xffffffu) << 7) * 0xb17217f7ul) >> 32;
    uint power = one;
#pragma unroll
    for (uint i = 12; i > 0; i--) {
        power = one - uint((x * ulong(power)) >> 31) / i;
    }
    return (ulong(power) << 9) >> (octaves >> 24);
}

// a b / 2^64
METAL_FUNC ulong draw_multiply_high(ulong a, ulong b) {
    const ulong low = 0xfffffffful;
    const ulong cross = (a >> 32) * (b & low) + (((a & low) * (b & low)) >> 32);
    const ulong other = (a & low) * (b >> 32) + (cross & low);
    return (a >> 32) * (b >> 32) + (cross >> 32) + (other >> 32);
}

// a b / 2^32; all of a for the largest fraction.
METAL_FUNC ulong draw_multiply_fraction(ulong a, uint b) {
    return b == 0xffffffffu ? a : (a >> 32) * ulong(b) + (((a & 0xfffffffful) * ulong(b)) >> 32);
}
