// Matrix products of a chunk on compute capability 9.0: y = w xᵀ by warpgroup products, packed 4-bit weights as the
// first operand in registers, rows of x as the second in shared memory. Constants:
//
//   INPUT_WIDTH   columns of the matrix, a multiple of 256
//   OUTPUTS       its rows, a multiple of 64; those of one expert
//   MATRIX_ROWS   its rows; those of all experts
//   WARPGROUPS    of a block; each owns 64 matrix rows
//   TILE_TOKENS   rows of x that a block owns, 32, 64, 96 or 128
//   PIPELINED     1: a warp unpacks weights while its last products run; 0: other warps do
//   STAGES        of shared memory, at least 3; each has 128 columns of x
//
// A warp owns 16 matrix rows: lane 4g + c works on rows 2g and 2g + 1, which are rows g and g + 8 of the operand. In
// each step of 16 columns it needs byte c of the words 2s and 2s + 1 of these rows' codes. The four lanes of a quad
// load 64 bytes of a row together and then exchange bytes, so that codes go from memory to registers once.
#pragma once
#include "lily.h"
#include "hopper.h"

constant constexpr uint THREADS = WARPGROUPS * 128;
constant constexpr uint TILE_OUTPUTS = WARPGROUPS * 64;
constant constexpr uint STEP_COLUMNS = 128;
constant constexpr uint CODE_WORDS = INPUT_WIDTH / 32;  // 16-byte words of a matrix row
constant constexpr uint STEPS = INPUT_WIDTH / STEP_COLUMNS;
// Of a stage: codes of a step, scales and biases of two.
constant constexpr uint WEIGHT_BYTES = THREADS * 32 + TILE_OUTPUTS * 16;
constant constexpr uint STAGE_BYTES = (TILE_TOKENS * STEP_COLUMNS * 2 + WEIGHT_BYTES + 1023) / 1024 * 1024;

// Rows of x that threads look up, more than TILE_TOKENS where their number is no divisor.
constant constexpr uint OFFSETS = (TILE_TOKENS + THREADS / 16 - 1) / (THREADS / 16) * (THREADS / 16);

static_assert(INPUT_WIDTH % 256 == 0 && OUTPUTS % 64 == 0 && STAGES >= 3, "shapes");

METAL_FUNC uint select_bytes(uint a, uint b, uint selector) { return __byte_perm(a, b, selector); }

// Where the block's matrix rows lie, as a thread copies them: the 32 bytes of codes in each step that it works on
// itself, and for the first TILE_OUTPUTS threads the scales and biases of one row.
struct WeightRows {
    const uint4* codes;
    const uint4* pairs;

    METAL_FUNC WeightRows(const uint4* weight, uint matrix_row, uint output, uint thread_index) {
        const uint own = inside(output + thread_index / 32 * 16 + thread_index % 32 / 4 * 2);
        codes = weight + ulong(matrix_row + own) * CODE_WORDS + thread_index % 4;
        const uint row = inside(output + thread_index % TILE_OUTPUTS);
        pairs = weight + ulong(MATRIX_ROWS) * CODE_WORDS + ulong(matrix_row + row) * (INPUT_WIDTH / 256);
    }

    // A warpgroup behind the last matrix row works on the first ones, and nobody wants its results.
    METAL_FUNC static uint inside(uint row) { return row < OUTPUTS ? row : row % 64; }

    // Starts the copy of a step to a stage's part for weights: codes by thread, and in even steps scales and biases by row
    // for two steps.
    METAL_FUNC void copy(uint to, uint step, uint thread_index) const {
        const bool inside = step < STEPS;
        to += thread_index * 16;
        copy_streamed_16(to, codes + step * 4, inside);
        copy_streamed_16(to + THREADS * 16, codes + step * 4 + CODE_WORDS, inside);
        copy_streamed_16(to + THREADS * 32, pairs + step / 2, inside && step % 2 == 0 && thread_index < TILE_OUTPUTS);
    }
};

// Selectors of the exchange in a quad.
struct QuadSelectors {
    uint keep_words;
    uint give_words;
    uint keep_bytes;
    uint give_bytes;
    bool odd;

    METAL_FUNC explicit QuadSelectors(uint lane) {
        const bool upper = lane % 4 >= 2;
        odd = lane % 2 != 0;
        keep_words = upper ? 0x7632 : 0x5410;
        give_words = upper ? 0x5410 : 0x7632;
        // Bytes of the lower lane's words first.
        const uint even_bytes = upper ? 0x2064 : 0x6420;
        keep_bytes = even_bytes + (odd ? 0x1111 : 0);
        give_bytes = even_bytes + (odd ? 0 : 0x1111);
    }
};

// Bytes of one matrix row in a step: [i] has byte c of words 2i, 2i + 1 in its low half, and of words 2i + 8 and 2i + 9
// in its high half.
struct RowBytes {
    uint at[4];

    // Nothing is made of them before this point.
    METAL_FUNC void settle() { asm volatile("" : "+r"(at[0]), "+r"(at[1]), "+r"(at[2]), "+r"(at[3])::"memory"); }

    METAL_FUNC void exchange(uint4 words, const QuadSelectors& quad) {
        const uint2 pairs[2] = {uint2(words.x, words.y), uint2(words.z, words.w)};
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            const uint own = select_bytes(pairs[i].x, pairs[i].y, quad.keep_words);
            const uint given = select_bytes(pairs[i].x, pairs[i].y, quad.give_words);
            const uint others = __shfl_xor_sync(0xffffffffu, given, 2);
            const uint kept = select_bytes(own, others, quad.keep_bytes);
            const uint got = __shfl_xor_sync(0xffffffffu, select_bytes(own, others, quad.give_bytes), 1);
            at[i] = quad.odd ? got : kept;
            at[2 + i] = quad.odd ? kept : got;
        }
    }
};

// Two weights from the codes of byte `byte`; `shifted` is `bytes >> 4`. A code in the last bits of 128 is exact, and so
// is what is left when 128 is taken away; the product with scale and bias is rounded once.
METAL_FUNC uint unpack_pair(uint bytes, uint shifted, uint byte, uint scale, uint bias) {
    const uint both = select_bytes(bytes, shifted, byte * 0x0011 + (byte + 4) * 0x1100);
    uint weights;
    asm("{ .reg .b32 codes;\n"
        "lop3.b32 codes, %1, 0x000f000f, %2, 0xea;\n"  // (both & 0x000f000f) | 0x43004300
        "sub.rn.bf16x2 codes, codes, %2;\n"
        "fma.rn.bf16x2 %0, codes, %3, %4; }"
        : "=r"(weights) : "r"(both), "r"(0x43004300u), "r"(scale), "r"(bias));
    return weights;
}

// First operands of four products, 64 columns.
struct Weights {
    uint at[4][4];

    // Of both rows of the lane; `part` says which half of the step.
    METAL_FUNC void unpack(const RowBytes (&rows)[2], const uint (&pairs)[2], uint part) {
#pragma unroll
        for (uint row = 0; row < 2; row++) {
            const uint pair = pairs[row];
            const uint scale = select_bytes(pair, pair, 0x1010);
            const uint bias = select_bytes(pair, pair, 0x3232);
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                const uint bytes = rows[row].at[i];
                at[i][row] = unpack_pair(bytes, bytes >> 4, part * 2, scale, bias);
                at[i][row + 2] = unpack_pair(bytes, bytes >> 4, part * 2 + 1, scale, bias);
            }
        }
    }

    // They are in registers from here on: the compiler moves no part of the work behind products_begin.
    METAL_FUNC void settle() {
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            asm volatile("" : "+r"(at[i][0]), "+r"(at[i][1]), "+r"(at[i][2]), "+r"(at[i][3])::"memory");
        }
    }
};

// Starts the copy of step `step` of the rows of x into a stage of two parts [N, 64], swizzled. Rows from `rows` on are
// left as they are: what they hold meets only their own results.
template <uint N>
METAL_FUNC void copy_inputs(
    uint stage, const uchar* x, const uint* offsets, uint rows, uint step, uint thread_index)
{
    constexpr uint AT_ONCE = THREADS / 16;
    const uint word = thread_index % 16;
    const uint first = thread_index / 16;
    const uint to = stage + word / 8 * (N * 128) + first * 128 + (word ^ first) % 8 * 16;
    rows = step < STEPS ? rows : 0;
    x += step * (STEP_COLUMNS * 2) + word * 16;
#pragma unroll
    for (uint i = 0; i < (N + AT_ONCE - 1) / AT_ONCE; i++) {
        const uint row = i * AT_ONCE + first;
        copy_streamed_16(to + i * AT_ONCE * 128, x + offsets[row], row < rows);
    }
}

// sums = w xᵀ for 64 matrix rows of a warpgroup and N rows of x. sums[4i + 2r + j] is that of the lane's matrix row r
// and of row 8i + 2c + j of x.
//
//   stages   address of shared memory, a multiple of 1,024
//   offsets  byte of x at which each row begins, in shared memory; OFFSETS of them can be read
template <uint N>
METAL_FUNC void multiply_rows(
    float (&sums)[N / 2], const WeightRows& weights, uint stages, const uchar* x, const uint* offsets, uint rows,
    uint thread_index)
{
    constexpr uint INPUTS = N * STEP_COLUMNS * 2;
    constexpr uint BYTES = (INPUTS + WEIGHT_BYTES + 1023) / 1024 * 1024;
    const QuadSelectors quad(thread_index % 32);
#pragma unroll
    for (uint i = 0; i < N / 2; i++) {
        sums[i] = 0.0f;
        asm volatile("" : "+f"(sums[i])::"memory");
    }
#pragma unroll
    for (uint i = 0; i < STAGES - 2; i++) {
        weights.copy(stages + i * BYTES + INPUTS, i, thread_index);
        copy_inputs<N>(stages + i * BYTES, x, offsets, rows, i, thread_index);
        copy_async_commit();
    }
    const uint own_codes = thread_index * 16;
    const uint own_pairs = THREADS * 32 + (thread_index / 32 * 16 + thread_index % 32 / 4 * 2) * 16;
    Weights operands[1 + PIPELINED];
    uint now = stages;
    uint before = stages + (STAGES - 1) * BYTES;
    uint filled = stages + (STAGES - 2) * BYTES;
#pragma unroll 1
    for (uint step = 0; step < STEPS; step++) {
        copy_async_wait<STAGES - 3>();
        fence_shared_for_products();
        __syncthreads();
        // The stage of two steps ago: all warps have waited for its products.
        weights.copy(filled + INPUTS, step + STAGES - 2, thread_index);
        copy_inputs<N>(filled, x, offsets, rows, step + STAGES - 2, thread_index);
        copy_async_commit();

        RowBytes bytes[2];
        bytes[0].exchange(load_shared_16(now + INPUTS + own_codes), quad);
        bytes[1].exchange(load_shared_16(now + INPUTS + own_codes + THREADS * 16), quad);
        const uint pair_stage = (step % 2 != 0 ? before + 8 : now) + INPUTS + own_pairs;
        const uint2 first = load_shared_8(pair_stage);
        const uint2 second = load_shared_8(pair_stage + 16);
        const uint inputs = swizzled_operand_low(now);
#pragma unroll
        for (uint part = 0; part < 2; part++) {
            const uint pairs[2] = {part == 0 ? first.x : first.y, part == 0 ? second.x : second.y};
            if (PIPELINED != 0) {
                products_wait<1>();
            }
            bytes[0].settle();
            bytes[1].settle();
            operands[part * PIPELINED].unpack(bytes, pairs, part);
            operands[part * PIPELINED].settle();
            products_begin();
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                multiply_accumulate<N>(sums, operands[part * PIPELINED].at[i], inputs + part * (N * 8) + i * 2);
            }
            products_commit();
            if (PIPELINED == 0) {
                products_wait<0>();
            }
        }
        before = now;
        now = now + BYTES == stages + STAGES * BYTES ? stages : now + BYTES;
        filled = filled + BYTES == stages + STAGES * BYTES ? stages : filled + BYTES;
    }
    products_wait<0>();
#pragma unroll
    for (uint i = 0; i < N / 2; i++) {
        asm volatile("" : "+f"(sums[i])::"memory");
    }
}
