// One tile of a matrix product, y [TILE_ROWS, 64] = x wᵀ: bfloat inputs, packed weights that are rounded to bfloat,
// float sums. 128 threads. Constants:
//
//   BITS                format of the matrix
//   INPUT_WIDTH         its columns, a multiple of 64
//   OUTPUTS             its rows; those of one expert
//   MATRIX_ROWS         its rows; those of all experts
//   TILE_ROWS           16, 32 or 64
//   ROW_GROUPS          simdgroups along the rows of the tile, 1 or 2
//   STAGES              pairs of operand tiles in threadgroup memory, 1 or 2
//   TENSOR_OPERATIONS   form of the product, 0 or 1
//
// In a step of 64 columns a thread brings 8 inputs for every 16 rows of the tile, and 32 weights of one row. It loads
// those of the next step before this one is multiplied, and unpacks them after it: into the same tiles behind a
// second barrier, or with two stages into the other ones.
#pragma once
#include "lily.h"
#include "dequantise.h"
#include "mma.h"
#include "tensor.h"

constant constexpr uint TILE_COLUMNS = 64;
constant constexpr uint TILE_STEP = 64;
// With 16 bytes more than the columns need, eight rows lie on different banks.
constant constexpr uint PITCH_WORDS = TILE_STEP / 8 + 1;
constant constexpr uint RESULT_PITCH = TILE_COLUMNS + 4;
constant constexpr uint STAGE_WORDS = (TILE_ROWS + TILE_COLUMNS) * PITCH_WORDS;
constant constexpr uint TILE_MEMORY = STAGES * STAGE_WORDS;  // 16-byte words; the results use them again
constant constexpr uint INPUT_WORDS = TILE_ROWS / 16;        // 16-byte words of inputs that a thread brings

static_assert(TILE_ROWS * RESULT_PITCH * 4 <= TILE_MEMORY * 16, "the results fit where the operands were");
static_assert(TILE_MEMORY * 16 + TILE_ROWS * 4 <= 32768, "threadgroup memory");

// Row of the tile that word `word` of a thread belongs to.
METAL_FUNC uint input_row(uint word, uint thread_index) { return word * 16 + thread_index / 8; }

// Word of a thread in row `row` of x.
METAL_FUNC uint input_word(uint row, uint thread_index) { return row * (INPUT_WIDTH / 8) + thread_index % 8; }

// What a thread brings in a step.
struct Operands {
    uint4 inputs[INPUT_WORDS];
    PackedWeights weights;
};

METAL_FUNC void store_operands(threadgroup uint4* stage, thread const Operands& operands, uint thread_index) {
#pragma unroll
    for (uint i = 0; i < INPUT_WORDS; i++) {
        stage[input_row(i, thread_index) * PITCH_WORDS + thread_index % 8] = operands.inputs[i];
    }
    unpack_bfloat(operands.weights, stage + (TILE_ROWS + thread_index / 2) * PITCH_WORDS + thread_index % 2 * 4);
}

// Multiplies and leaves the results in `memory` as floats, rows of RESULT_PITCH, behind a barrier.
//
// input_words[i]   what the thread brings of x in the first step: any valid row for rows that do not live
// rows             rows that live; results of the others mean nothing
// matrix_row       first row of the expert's matrix
// output           first row of the tile in it; rows behind the last mean nothing
METAL_FUNC void multiply_tile(
    threadgroup uint4* memory, const device uint4* x, thread const uint (&input_words)[INPUT_WORDS], uint rows,
    const device uint4* weight, uint matrix_row, uint output, uint thread_index, uint simdgroup)
{
    matrix_row += min(output + thread_index / 2, uint(OUTPUTS - 1));
    const device uint4* codes = weight + matrix_row * (INPUT_WIDTH * BITS / 128) + thread_index % 2 * PACKED_WORDS;
    const device uint* pairs = (const device uint*)weight + MATRIX_ROWS * (INPUT_WIDTH * BITS / 32)
        + matrix_row * (INPUT_WIDTH / 64);

#if TENSOR_OPERATIONS
    constexpr auto descriptor = matmul2d_descriptor(
        TILE_ROWS, TILE_COLUMNS, TILE_STEP, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroups<4>> product;
    auto sums = product.get_destination_cooperative_tensor<TileOperand, TileOperand, float>();
#else
    TileSums sums;
#endif
    tile_clear(sums);

    Operands operands;
#pragma unroll
    for (uint i = 0; i < INPUT_WORDS; i++) {
        operands.inputs[i] = x[input_words[i]];
    }
    load_packed(operands.weights, codes, pairs);
    store_operands(memory, operands, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint step = 0; step < INPUT_WIDTH / TILE_STEP; step++) {
        const bool more = step + 1 < INPUT_WIDTH / TILE_STEP;
        if (more) {
#pragma unroll
            for (uint i = 0; i < INPUT_WORDS; i++) {
                operands.inputs[i] = x[input_words[i] + (step + 1) * 8];
            }
            load_packed(operands.weights, codes + (step + 1) * (2 * PACKED_WORDS), pairs + step + 1);
        }
        threadgroup uint4* stage = memory + step % STAGES * STAGE_WORDS;
#if TENSOR_OPERATIONS
        TileOperand a = tile_operand((threadgroup bfloat*)stage, 64, TILE_ROWS, PITCH_WORDS * 8);
        TileOperand b = tile_operand(
            (threadgroup bfloat*)(stage + TILE_ROWS * PITCH_WORDS), 64, TILE_COLUMNS, PITCH_WORDS * 8);
        product.run(a, b, sums);
#else
        const threadgroup bfloat* a = (const threadgroup bfloat*)stage;
        const threadgroup bfloat* b = (const threadgroup bfloat*)(stage + TILE_ROWS * PITCH_WORDS);
        tile_multiply(sums, a, b, PITCH_WORDS * 8, rows, simdgroup);
#endif
        if (STAGES == 1) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (more) {
            store_operands(memory + (step + 1) % STAGES * STAGE_WORDS, operands, thread_index);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    tile_store(sums, (threadgroup float*)memory, RESULT_PITCH, simdgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Writes the thread's column of the results, times each row's scale, to `to`, its place in the tile's first row.
template <typename T>
METAL_FUNC void store_column(
    device T* to, uint stride, const threadgroup uint4* memory, const threadgroup float* scales, uint rows, uint thread_index)
{
    const threadgroup float* results = (const threadgroup float*)memory + thread_index % TILE_COLUMNS;
    for (uint row = thread_index / TILE_COLUMNS; row < rows; row += 2) {
        to[row * stride] = T(results[row * RESULT_PITCH] * scales[row]);
    }
}
