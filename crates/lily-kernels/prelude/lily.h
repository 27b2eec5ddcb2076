// Words that every kernel uses: the control block, rows of a step, conversions.
#pragma once

// Where kernels overlap at their borders, the point from which on a kernel may read what the one before it wrote.
// A kernel without this word waits at its start.
#ifndef wait_for_previous_kernel
#define wait_for_previous_kernel()
#endif

// Words of a sequence's row in the control block, all int; lily_plan::control.
constant constexpr uint CONTROL_WORDS = 8;
constant constexpr uint CONTROL_TOKEN = 0;
constant constexpr uint CONTROL_POSITION = 1;
constant constexpr uint CONTROL_COUNT = 2;
constant constexpr uint CONTROL_HALT = 3;
constant constexpr uint CONTROL_PRODUCED = 4;
constant constexpr uint CONTROL_LIMIT = 5;

// Sequence of a row of scratch.
METAL_FUNC uint row_sequence(constant StepArgs& step, uint row) {
    return step.prefill != 0 ? step.sequence : row;
}

// Whether a row of scratch is computed: in decode its sequence is not halted, in prefill it is
// one of the chunk's tokens.
METAL_FUNC bool row_lives(const device int* control, constant StepArgs& step, uint row) {
    const device int* words = control + row_sequence(step, row) * CONTROL_WORDS;
    return row < step.rows && words[CONTROL_HALT] == 0 && (step.prefill == 0 || int(row) < words[CONTROL_COUNT]);
}

// Rows of a prefill chunk that are computed: 0 if it is halted.
METAL_FUNC uint chunk_rows(const device int* control, constant StepArgs& step) {
    const device int* words = control + step.sequence * CONTROL_WORDS;
    return words[CONTROL_HALT] == 0 ? min(uint(max(words[CONTROL_COUNT], 0)), step.rows) : 0;
}

// Position of the token in a row of scratch.
METAL_FUNC uint row_position(const device int* control, constant StepArgs& step, uint row) {
    const uint base = uint(max(control[row_sequence(step, row) * CONTROL_WORDS + CONTROL_POSITION], 0));
    return step.prefill != 0 ? base + row : base;
}

// The two bfloats of a word.
METAL_FUNC float low_bfloat(uint word) { return as_type<float>(word << 16); }
METAL_FUNC float high_bfloat(uint word) { return as_type<float>(word & 0xffff0000u); }
// The eight bfloats of a 16-byte word.
METAL_FUNC void unpack_bfloats(uint4 word, thread float* values) {
    values[0] = low_bfloat(word.x);
    values[1] = high_bfloat(word.x);
    values[2] = low_bfloat(word.y);
    values[3] = high_bfloat(word.y);
    values[4] = low_bfloat(word.z);
    values[5] = high_bfloat(word.z);
    values[6] = low_bfloat(word.w);
    values[7] = high_bfloat(word.w);
}
METAL_FUNC uint bfloat_pair(float low, float high) { return as_type<uint>(bfloat2(float2(low, high))); }

METAL_FUNC float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
METAL_FUNC float silu(float x) { return x / (1.0f + exp(-x)); }
