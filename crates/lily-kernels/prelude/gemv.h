// Products of matrix rows with the inputs of a few tokens: the core of decode. Constants: those of affine.h and
//   LANE_ROWS    rows that a lane works on together, a power of two: as many 16-byte loads in flight
//   ROW_LANES    lanes that share a row, a power of two, at least LANE_ROWS; fewer than 32 for short rows
//   SPLITS       simdgroups that share a row
//   SIMDGROUPS   of a threadgroup
//   TOKENS       rows of scratch for which unpacked weights are used
// A lane takes 16 bytes of codes of each of its rows at a time. The order of every sum depends on ROW_LANES and
// SPLITS alone, so a token's result does not depend on the tokens beside it.
// A kernel loads its first weights before it looks at the control block: they are never written, so they may be read
// for a halted row too, and one memory latency hides the other.
#pragma once
#include "affine.h"

#ifdef MIN_BLOCKS  // CUDA: threadgroups that a multiprocessor has to hold; limits registers
#undef LILY_MIN_BLOCKS
#define LILY_MIN_BLOCKS MIN_BLOCKS
#endif

constant constexpr uint SIMD_ROWS = LANE_ROWS * 32 / ROW_LANES;      // rows of a simdgroup
constant constexpr uint RESULT_LANES = ROW_LANES / LANE_ROWS;        // lanes that end with the same result
constant constexpr uint STEP_WORDS = ROW_LANES * SPLITS;
constant constexpr uint STEPS = (ROW_WORDS + STEP_WORDS - 1) / STEP_WORDS;

// TOKENS rows of scratch from `first`; bit t of `live`: row first + t is computed.
struct Tokens {
    uint first;
    uint live;
    uint some;  // a row that is

    METAL_FUNC bool lives(uint t) const { return ((live >> t) & 1) != 0; }
    // Row t, or another one in place of a row that is not computed and may hold anything.
    METAL_FUNC uint row(uint t) const { return TOKENS == 1 || lives(t) ? first + t : some; }
};

// Finds the rows to compute; false if there are none.
METAL_FUNC bool find_tokens(const device int* control, constant StepArgs& step, uint tile, thread Tokens& tokens) {
    tokens.first = tile * TOKENS;
    tokens.live = 0;
    tokens.some = 0;
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        if (row_lives(control, step, tokens.first + t)) {
            tokens.live |= 1u << t;
            tokens.some = tokens.first + t;
        }
    }
    return tokens.live != 0;
}

// Inputs of bfloat rows of MATRIX_K elements.
struct BfloatInputs {
    const device uint4* rows[TOKENS];

    // Eight inputs of a token from column 8 * block.
    METAL_FUNC void load(uint t, uint block, thread float* values) const { unpack_bfloats(rows[t][block], values); }
    // Factor of the inputs that a 16-byte word of codes is multiplied with.
    METAL_FUNC float factor(uint, uint) const { return 1.0f; }
};

METAL_FUNC BfloatInputs bfloat_inputs(const device uint4* x, const thread Tokens& tokens) {
    BfloatInputs inputs;
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        inputs.rows[t] = x + ulong(tokens.row(t)) * (MATRIX_K / 8);
    }
    return inputs;
}

// 16 bytes of codes of each of a lane's rows, with their scales.
struct RowWords {
    uint4 codes[LANE_ROWS];
    uint pairs[LANE_ROWS];
};

// Loads word `word` of LANE_ROWS rows from `row`; a lane behind the end of the row takes the last word.
METAL_FUNC void load_words(const device uint4* matrix, uint row, uint word, thread RowWords& words) {
    const uint at = min(word, ROW_WORDS - 1);
    const device uint4* codes = matrix + (ulong(row) * ROW_WORDS + at);
#pragma unroll
    for (uint r = 0; r < LANE_ROWS; r++) {
        words.codes[r] = codes[r * ROW_WORDS];
    }
    if (BITS < 16) {
        const device uint* pairs = matrix_pairs(matrix) + (ulong(row) * ROW_GROUPS + at / GROUP_WORDS);
#pragma unroll
        for (uint r = 0; r < LANE_ROWS; r++) {
            words.pairs[r] = pairs[r * ROW_GROUPS];
        }
    }
}

// Adds the products of one word of each row to sums [LANE_ROWS, TOKENS].
template <typename Inputs>
METAL_FUNC void add_words(const thread RowWords& words, const thread Inputs& inputs, uint word, thread float* sums) {
    float dots[LANE_ROWS * TOKENS];
    float totals[TOKENS];
#pragma unroll
    for (uint i = 0; i < LANE_ROWS * TOKENS; i++) {
        dots[i] = 0.0f;
    }
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        totals[t] = 0.0f;
    }
#pragma unroll
    for (uint block = 0; block < WORD_BLOCKS; block++) {
        float x[TOKENS * 8];
#pragma unroll
        for (uint t = 0; t < TOKENS; t++) {
            inputs.load(t, word * WORD_BLOCKS + block, x + t * 8);
            if (BITS < 16) {
                float total = x[t * 8];
#pragma unroll
                for (uint i = 1; i < 8; i++) {
                    total += x[t * 8 + i];
                }
                totals[t] += total;
            }
            scale_block(x + t * 8);
        }
#pragma unroll
        for (uint r = 0; r < LANE_ROWS; r++) {
            float codes[8];
            unpack_block(words.codes[r], block, codes);
#pragma unroll
            for (uint t = 0; t < TOKENS; t++) {
#pragma unroll
                for (uint i = 0; i < 8; i++) {
                    dots[r * TOKENS + t] = fma(codes[i], x[t * 8 + i], dots[r * TOKENS + t]);
                }
            }
        }
    }
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        const float factor = inputs.factor(t, word);
#pragma unroll
        for (uint r = 0; r < LANE_ROWS; r++) {
            float dot = dots[r * TOKENS + t];
            if (BITS < 16) {
                dot = fma(low_bfloat(words.pairs[r]), dot, high_bfloat(words.pairs[r]) * totals[t]);
            }
            sums[r * TOKENS + t] = fma(factor, dot, sums[r * TOKENS + t]);
        }
    }
}

// This lane's share of the products, sums [LANE_ROWS, TOKENS]. `words` holds what load_words gave for
// `row` and `first`, the lane's first row and word: loaded early, it arrives while a prologue runs.
template <typename Inputs>
METAL_FUNC void multiply(
    const device uint4* matrix,
    uint row,
    uint first,
    thread RowWords& words,
    const thread Inputs& inputs,
    thread float* sums)
{
#pragma unroll
    for (uint i = 0; i < LANE_ROWS * TOKENS; i++) {
        sums[i] = 0.0f;
    }
#pragma unroll
    for (uint step = 0; step < STEPS; step++) {
        const uint word = first + step * STEP_WORDS;
        RowWords next = words;
        if (step + 1 < STEPS) {
            load_words(matrix, row, word + STEP_WORDS, next);
        }
        if (word < ROW_WORDS) {
            add_words(words, inputs, word, sums);
        }
        words = next;
    }
}

// First row of a lane among the SIMD_ROWS of its simdgroup.
METAL_FUNC uint lane_row(uint lane) { return lane / ROW_LANES * LANE_ROWS; }
// First word of a lane.
METAL_FUNC uint lane_word(uint split, uint lane) { return split * ROW_LANES + lane % ROW_LANES; }
// The row, among the SIMD_ROWS of the simdgroup, whose result sum_lanes gives to a lane.
METAL_FUNC uint result_row(uint lane) { return lane / RESULT_LANES; }
// Whether a lane is the first of those with the same result.
METAL_FUNC bool leads_result(uint lane) { return lane % RESULT_LANES == 0; }

// Adds up the shares of the lanes for one token. Each level of the tree halves the rows that a lane carries.
METAL_FUNC float sum_lanes(const thread float* sums, uint t, uint lane) {
    float own[LANE_ROWS];
#pragma unroll
    for (uint r = 0; r < LANE_ROWS; r++) {
        own[r] = sums[r * TOKENS + t];
    }
#pragma unroll
    for (uint level = 1; level <= 5; level++) {
        const uint distance = ROW_LANES >> level;
        const uint half_rows = LANE_ROWS >> level;
        const bool upper = (lane & distance) != 0;
        if (half_rows > 0) {
#pragma unroll
            for (uint r = 0; r < half_rows; r++) {
                const float keep = upper ? own[r + half_rows] : own[r];
                const float give = upper ? own[r] : own[r + half_rows];
                own[r] = keep + simd_shuffle_xor(give, ushort(distance));
            }
        } else if (distance > 0) {
            own[0] += simd_shuffle_xor(own[0], ushort(distance));
        }
    }
    return own[0];
}
