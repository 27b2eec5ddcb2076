// Matrix products of a chunk on compute capability 9.0: y = w xᵀ by warpgroup products, packed 4-bit weights as the
// first operand in registers, rows of x as the second in shared memory. Constants:
//
//   INPUT_WIDTH   columns of the matrix, a multiple of 256
//   OUTPUTS       its rows, a multiple of 64; those of one expert
//   MATRIX_ROWS   its rows; those of all experts
//   WARPGROUPS    of a block; each owns 64 matrix rows
//   TILE_TOKENS   rows of x that a block multiplies with at most: 32, 64, 96 or 128
//   STAGES        of shared memory, at least 3; each has 128 columns of weights and of x
//
// A block works on one item after the other: TILE_OUTPUTS matrix rows and up to TILE_TOKENS rows of x. Copies run
// STAGES - 2 steps ahead, over the borders of items too. Barriers in shared memory tell when a stage has arrived and
// when it is free again, so that warpgroups need not be in step: one unpacks weights while another's products run.
//
// A warp owns 16 matrix rows: lane 4g + c works on rows 2g and 2g + 1, which are rows g and g + 8 of the operand. In
// each 16 columns it needs byte c of the words 2s and 2s + 1 of these rows' codes. The four lanes of a quad load 64
// bytes of a row together and then exchange bytes, so that a code comes out of shared memory once.
#pragma once
#include "lily.h"
#include "hopper.h"

constant constexpr uint THREADS = WARPGROUPS * 128;
constant constexpr uint WARPS = WARPGROUPS * 4;
constant constexpr uint TILE_OUTPUTS = WARPGROUPS * 64;
constant constexpr uint STEP_COLUMNS = 128;
constant constexpr uint STEPS = INPUT_WIDTH / STEP_COLUMNS;
constant constexpr uint CODE_WORDS = INPUT_WIDTH / 32;  // 16-byte words of a matrix row
constant constexpr uint OUTPUT_BLOCKS = (OUTPUTS + TILE_OUTPUTS - 1) / TILE_OUTPUTS;

// A stage: rows of x in two parts of 64 columns, swizzled; codes by thread; scales and biases by row, of two steps.
constant constexpr uint PART_BYTES = TILE_TOKENS * 128;
constant constexpr uint CODES_AT = 2 * PART_BYTES;
constant constexpr uint PAIRS_AT = CODES_AT + THREADS * 32;
constant constexpr uint STAGE_BYTES = (PAIRS_AT + TILE_OUTPUTS * 16 + 1023) / 1024 * 1024;

// Rows of x that all threads copy at once, and those of one thread.
constant constexpr uint ROWS_AT_ONCE = THREADS / 16;
constant constexpr uint OWN_ROWS = (TILE_TOKENS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;

static_assert(INPUT_WIDTH % 256 == 0 && OUTPUTS % 64 == 0 && STAGES >= 3, "shapes");

// What a block multiplies in one go: `rows` rows of x with TILE_OUTPUTS matrix rows from `output` on, of the matrix
// whose first row is `matrix_row`.
struct Item {
    uint matrix_row;
    uint output;
    uint first;  // of the rows, as the kernel counts them
    uint rows;
};

METAL_FUNC uint select_bytes(uint a, uint b, uint selector) { return __byte_perm(a, b, selector); }

// A warpgroup behind the last matrix row works on the first ones, and nobody wants its results.
METAL_FUNC uint row_inside(uint row) { return row < OUTPUTS ? row : row % 64; }

// Place in the ring of stages.
struct RingPlace {
    uint stage;
    uint parity;

    METAL_FUNC uint after() const { return stage + 1 == STAGES ? 0 : stage + 1; }
    METAL_FUNC void next() {
        stage++;
        if (stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Ring {
    uint stages;    // address in shared memory, a multiple of 1,024
    uint barriers;  // 2 STAGES of them: stage s has arrived, stage s is free

    METAL_FUNC uint arrived(uint stage) const { return barriers + stage * 8; }
    METAL_FUNC uint free(uint stage) const { return barriers + (STAGES + stage) * 8; }

    // All threads call it.
    METAL_FUNC void init(uint thread_index) const {
        if (thread_index < STAGES) {
            barrier_init(arrived(thread_index), WARPS);
            barrier_init(free(thread_index), WARPS);
        }
        __syncthreads();
    }
};

// Copies the steps of all items of a block, one after the other. `Work` knows them: items() of them,
// item(i), and row(item, i), the byte of x at which its row i begins; FOLLOW says that rows lie one behind the other.
template <typename Work> struct Copies {
    const Work& work;
    Ring ring;
    RingPlace place;
    uint index;
    uint step;
    uint rows;
    const uint4* weight;
    const uint4* codes;
    const uint4* pairs;
    const uchar* x;
    uint own_rows[Work::FOLLOW ? 1 : OWN_ROWS];

    METAL_FUNC Copies(const Work& work, Ring ring, const uint4* weight, const uchar* x, uint thread_index)
        : work(work), ring(ring), place{0, 0}, index(blockIdx.x), weight(weight), x(x + thread_index % 16 * 16)
    {
        open(thread_index);
    }

    METAL_FUNC void open(uint thread_index) {
        step = 0;
        if (index >= work.items()) {
            return;
        }
        const Item item = work.item(index);
        rows = item.rows;
        const uint own = row_inside(item.output + thread_index / 32 * 16 + thread_index % 32 / 4 * 2);
        codes = weight + ulong(item.matrix_row + own) * CODE_WORDS + thread_index % 4;
        const uint row = item.matrix_row + row_inside(item.output + thread_index / 32 * 16 + thread_index % 16);
        pairs = weight + ulong(MATRIX_ROWS) * CODE_WORDS + ulong(row) * (INPUT_WIDTH / 256);
#pragma unroll
        for (uint i = 0; i < (Work::FOLLOW ? 1 : OWN_ROWS); i++) {
            const uint row = i * ROWS_AT_ONCE + thread_index / 16;
            own_rows[i] = work.row(item, Work::FOLLOW ? row : min(row, rows - 1));
        }
    }

    // Starts the copies of one step, if there is one left. Rows from `rows` on are left as they are: what they hold
    // meets only their own results.
    METAL_FUNC void next(uint thread_index) {
        if (index >= work.items()) {
            copy_async_commit();
            return;
        }
        barrier_wait(ring.free(place.stage), place.parity ^ 1);
        const uint stage = ring.stages + place.stage * STAGE_BYTES;
        const uint own = stage + CODES_AT + thread_index * 16;
        copy_streamed_16(own, codes + step * 4, true);
        copy_streamed_16(own + THREADS * 16, codes + step * 4 + CODE_WORDS, true);
        // A warp copies those of its own matrix rows, as its codes: only the rows of x are other warps'.
        const uint own_pairs = stage + PAIRS_AT + (thread_index / 32 * 16 + thread_index % 16) * 16;
        copy_streamed_16(own_pairs, pairs + step / 2, step % 2 == 0 && thread_index % 32 < 16);
        const uint word = thread_index % 16;
        const uint first = thread_index / 16;
        const uint to = stage + word / 8 * PART_BYTES + first * 128 + (word ^ first) % 8 * 16;
#pragma unroll
        for (uint i = 0; i < OWN_ROWS; i++) {
            const uint row = Work::FOLLOW ? own_rows[0] + i * (ROWS_AT_ONCE * INPUT_WIDTH * 2) : own_rows[i];
            const uchar* from = x + step * (STEP_COLUMNS * 2) + row;
            copy_streamed_16(to + i * (ROWS_AT_ONCE * 128), from, i * ROWS_AT_ONCE + first < rows);
        }
        copy_async_commit();
        place.next();
        step++;
        if (step == STEPS) {
            index += gridDim.x;
            open(thread_index);
        }
    }

    // Waits for the warp's copies of the step behind the one that is computed, and tells the other warps: half a step
    // before they need it, so that nobody waits for the slowest warp.
    METAL_FUNC void announce(uint stage, uint thread_index) const {
        copy_async_wait<STAGES - 3>();
        fence_shared_for_products();
        __syncwarp();
        if (thread_index % 32 == 0) {
            barrier_arrive(ring.arrived(stage));
        }
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

// sums = w xᵀ for an item's 64 matrix rows of a warpgroup and N rows of x. sums[4i + 2r + j] is that of the lane's
// matrix row r and of row 8i + 2c + j of x. `between` is called with the number of each step before its products.
template <uint N, typename Copies, typename Between>
METAL_FUNC void multiply_item(
    float (&sums)[N / 2], Copies& copies, RingPlace& place, const Between& between, uint thread_index)
{
    const QuadSelectors quad(thread_index % 32);
    const Ring ring = copies.ring;
    const uint own_pairs = PAIRS_AT + (thread_index / 32 * 16 + thread_index % 32 / 4 * 2) * 16;
#pragma unroll
    for (uint i = 0; i < N / 2; i++) {
        sums[i] = 0.0f;
        asm volatile("" : "+f"(sums[i])::"memory");
    }
    uint4 pairs[2] = {uint4(0u), uint4(0u)};
#pragma unroll 1
    for (uint step = 0; step < STEPS; step++) {
        copies.next(thread_index);
        between(step);
        const uint stage = ring.stages + place.stage * STAGE_BYTES;
        barrier_wait(ring.arrived(place.stage), place.parity);
        RowBytes bytes[2];
        bytes[0].exchange(load_shared_16(stage + CODES_AT + thread_index * 16), quad);
        bytes[1].exchange(load_shared_16(stage + CODES_AT + THREADS * 16 + thread_index * 16), quad);
        load_shared_16_if(pairs[0], stage + own_pairs, step % 2 == 0);
        load_shared_16_if(pairs[1], stage + own_pairs + 16, step % 2 == 0);
        const uint inputs = swizzled_operand_low(stage);
#pragma unroll
        for (uint part = 0; part < 2; part++) {
            const uint own[2] = {part == 0 ? pairs[0].x : pairs[0].y, part == 0 ? pairs[1].x : pairs[1].y};
            Weights weights;
            bytes[0].settle();
            bytes[1].settle();
            weights.unpack(bytes, own, part);
            weights.settle();
            products_begin();
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                multiply_accumulate<N>(sums, weights.at[i], inputs + part * (PART_BYTES / 16) + i * 2);
            }
            products_commit();
            if (part == 0) {
                copies.announce(place.after(), thread_index);
            }
            products_wait<0>();
        }
#pragma unroll
        for (uint row = 0; row < 2; row++) {
            pairs[row].x = pairs[row].z;
            pairs[row].y = pairs[row].w;
        }
        // Free: what the next step needs of its scales and biases is in registers, in all lanes.
        __syncwarp();
        if (thread_index % 32 == 0) {
            barrier_arrive(ring.free(place.stage));
        }
        place.next();
    }
#pragma unroll
    for (uint i = 0; i < N / 2; i++) {
        asm volatile("" : "+f"(sums[i])::"memory");
    }
}

// Computes all items of the block, one after the other. `Kernel` has
//   items                   as Copies wants it
//   prepare(item, number)   puts what the epilogue needs into shared memory; one warpgroup calls it
//   compute(item, number, copies, place, between)   multiply_item and the epilogue
// Both know what was put there by number % 2.
// The next item is prepared while this one is computed, each by another warpgroup.
template <typename Kernel>
METAL_FUNC void compute_items(const Kernel& kernel, Ring ring, const uint4* weight, const void* x, uint thread_index) {
    ring.init(thread_index);
    Copies copies(kernel.items, ring, weight, (const uchar*)x, thread_index);
#pragma unroll 1
    for (uint i = 0; i < STAGES - 2; i++) {
        copies.next(thread_index);
    }
    copies.announce(0, thread_index);
    const uint warpgroup = thread_index / 128;
    RingPlace place{0, 0};
    uint number = 0;
    if (warpgroup == 0 && blockIdx.x < kernel.items.items()) {
        kernel.prepare(kernel.items.item(blockIdx.x), 0);
    }
#pragma unroll 1
    for (uint index = blockIdx.x; index < kernel.items.items(); index += gridDim.x) {
        // What was prepared can be read, and what the item before had can be overwritten.
        __syncthreads();
        auto between = [&](uint step) {
            if (step == 1 && warpgroup == number % WARPGROUPS && index + gridDim.x < kernel.items.items()) {
                kernel.prepare(kernel.items.item(index + gridDim.x), number + 1);
            }
        };
        kernel.compute(kernel.items.item(index), number, copies, place, between);
        number++;
    }
}
