// A weight matrix in device memory; crate::gpu::matrix in Rust. Codes of BITS bits (16: bfloat values), row
// after row, then for every 64 weights of a row one word: scale in the low half, bias in the high half.
// Constants: BITS (4, 8, 16), MATRIX_K (weights of a row, a multiple of 64), MATRIX_ROWS (of all experts).
#pragma once
#include "lily.h"

constant constexpr uint WORD_WEIGHTS = 128 / BITS;                // weights in 16 bytes
constant constexpr uint WORD_BLOCKS = WORD_WEIGHTS / 8;           // blocks of 8 weights in 16 bytes
constant constexpr uint ROW_WORDS = MATRIX_K / WORD_WEIGHTS;      // 16-byte words of a row
constant constexpr uint ROW_GROUPS = MATRIX_K / 64;               // scales of a row
constant constexpr uint GROUP_WORDS = 64 / WORD_WEIGHTS;          // 16-byte words that share a scale

// The (scale, bias) words, [MATRIX_ROWS, ROW_GROUPS]. There are none with 16 bits.
METAL_FUNC const device uint* matrix_pairs(const device uint4* matrix) {
    return (const device uint*)(matrix + ulong(MATRIX_ROWS) * ROW_WORDS);
}

// The bits under the mask as a float, without a conversion: 2^23 + bits is exact for bits below 2^23.
METAL_FUNC float masked(uint bits, uint mask) { return as_type<float>((bits & mask) | 0x4b000000u) - 8388608.0f; }

// Codes (16 bits: weights) of block `block` of a word, each times the power of two that it stands at.
// scale_block takes the powers out, from the codes or from what they are multiplied with.
METAL_FUNC void unpack_block(uint4 word, uint block, thread float* codes) {
#if BITS == 4
    const uint low = word[block];
    const uint high = low >> 20;
    codes[0] = masked(low, 0x0000fu);
    codes[1] = masked(low, 0x000f0u);
    codes[2] = masked(low, 0x00f00u);
    codes[3] = masked(low, 0x0f000u);
    codes[4] = masked(low, 0xf0000u);
    codes[5] = masked(high, 0x0000fu);
    codes[6] = masked(high, 0x000f0u);
    codes[7] = masked(high, 0x00f00u);
#elif BITS == 8
#pragma unroll
    for (uint half_block = 0; half_block < 2; half_block++) {
        const uint low = word[2 * block + half_block];
        const uint high = low >> 16;
        codes[4 * half_block] = masked(low, 0x00ffu);
        codes[4 * half_block + 1] = masked(low, 0xff00u);
        codes[4 * half_block + 2] = masked(high, 0x00ffu);
        codes[4 * half_block + 3] = masked(high, 0xff00u);
    }
#else
    unpack_bfloats(word, codes);
#endif
}

// Multiplies by the inverse powers; exact.
METAL_FUNC void scale_block(thread float* values) {
#if BITS == 4
    values[1] *= 0.0625f;
    values[2] *= 0.00390625f;
    values[3] *= 0.000244140625f;
    values[4] *= 0.0000152587890625f;
    values[6] *= 0.0625f;
    values[7] *= 0.00390625f;
#elif BITS == 8
    values[1] *= 0.00390625f;
    values[3] *= 0.00390625f;
    values[5] *= 0.00390625f;
    values[7] *= 0.00390625f;
#endif
}

// Eight weights of a row from `column`, a multiple of 8.
METAL_FUNC void load_weights(const device uint4* matrix, uint row, uint column, thread float* weights) {
    const device uint* codes = (const device uint*)matrix + (ulong(row) * (4 * ROW_WORDS) + column * BITS / 32);
    uint4 word = uint4(0u);
#pragma unroll
    for (uint i = 0; i < BITS / 4; i++) {
        word[i] = codes[i];
    }
    unpack_block(word, 0, weights);
    scale_block(weights);
    if (BITS < 16) {
        const uint pair = matrix_pairs(matrix)[ulong(row) * ROW_GROUPS + column / 64];
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            weights[i] = fma(low_bfloat(pair), weights[i], high_bfloat(pair));
        }
    }
}
