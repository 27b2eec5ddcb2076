// Weights of a matrix in registers: half a group, 32 of one row, as they lie in memory; see matrix.rs.
// Constant: BITS, 4 or 8 for codes, 16 for plain bfloat values.
#pragma once
#include "lily.h"

constant constexpr uint PACKED_WORDS = BITS / 4;  // 16-byte words that hold 32 weights

struct PackedWeights {
    uint4 words[PACKED_WORDS];
    uint pair;  // bfloat scale, bfloat bias; not used when BITS is 16
};

METAL_FUNC void load_packed(thread PackedWeights& weights, const device uint4* words, const device uint* pair) {
#pragma unroll
    for (uint i = 0; i < PACKED_WORDS; i++) {
        weights.words[i] = words[i];
    }
    if (BITS != 16) {
        weights.pair = *pair;
    }
}

#if BITS != 16
// 1 + code / 2^BITS for the code at bit `at` of a word: the code becomes the top of a float's mantissa, which
// takes two integer operations and no conversion.
METAL_FUNC float code_fraction(uint word, uint at) {
    const uint top = 23 - BITS;
    const uint bits = at <= top ? word << (top - at) : word >> (at - top);
    return as_type<float>((bits & (((1u << BITS) - 1) << top)) | 0x3f800000u);
}

// Code `i` of the 32, as above.
METAL_FUNC float code_fraction(thread const PackedWeights& weights, uint i) {
    return code_fraction(weights.words[i * BITS / 128][i * BITS / 32 % 4], i * BITS % 32);
}
#endif

// Writes the weights as bfloat, 64 bytes.
METAL_FUNC void unpack_bfloat(thread const PackedWeights& weights, threadgroup uint4* to) {
#if BITS == 16
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        to[i] = weights.words[i];
    }
#else
    // scale * code + bias = range * (1 + code / 2^BITS) + (bias - range)
    const float range = low_bfloat(weights.pair) * float(1u << BITS);
    const float rest = high_bfloat(weights.pair) - range;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        uint4 word;
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            const uint code = i * 8 + j * 2;
            const float low = fma(code_fraction(weights, code), range, rest);
            word[j] = bfloat_pair(low, fma(code_fraction(weights, code + 1), range, rest));
        }
        to[i] = word;
    }
#endif
}

// Writes the weights as float, 128 bytes, each rounded once.
METAL_FUNC void unpack_float(thread const PackedWeights& weights, threadgroup float4* to) {
#pragma unroll
    for (uint i = 0; i < 8; i++) {
#if BITS == 16
        const uint low = weights.words[i / 2][i % 2 * 2];
        const uint high = weights.words[i / 2][i % 2 * 2 + 1];
        to[i] = float4(low_bfloat(low), high_bfloat(low), low_bfloat(high), high_bfloat(high));
#else
        const float range = low_bfloat(weights.pair) * float(1u << BITS);
        const float bias = high_bfloat(weights.pair);
        float4 out;
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            out[j] = fma(code_fraction(weights, i * 4 + j) - 1.0f, range, bias);
        }
        to[i] = out;
#endif
    }
}
