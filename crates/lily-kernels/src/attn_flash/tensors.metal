// The attention of kernel.metal by Metal 4 tensor operations; formula and buffers are there.
//
// A threadgroup of four simdgroups owns 32 rows, (token, query head of the group) pairs of one KV head, and multiplies
// them together with tiles of 64 keys. Queries stay in threadgroup memory. Keys come in slices of 64 columns, values
// in slices of 16 rows, through one stage; a thread asks for its words of the next slice before this one is
// multiplied. The scores take the stage's place, where a row belongs to four lanes: softmax in f32, weights rounded
// to bfloat. Outputs stay in the operation's registers, in a layout that only the device knows: an element asks for
// its row, and rows are scaled where one of them has to be. 31 KB of threadgroup memory. Tiles with the most keys run
// first. Constants: HEAD_DIM (a multiple of 64 up to 256), GROUP, SCORE_SCALE (log2(e) / sqrt(HEAD_DIM)).
#include "attention.h"
#include "tensor.h"

constant constexpr uint TILE_KEYS = 64;
constant constexpr uint WORDS = HEAD_DIM / 8;           // 16-byte words of a row
constant constexpr uint PITCH_WORDS = WORDS + 1;        // rows lie on different banks
constant constexpr uint SLICE_WORDS = 9;                // pitch of a slice of keys, and of the weights
constant constexpr uint SCORE_PITCH = TILE_KEYS + 4;
constant constexpr uint KEY_SLICES = HEAD_DIM / 64;
constant constexpr uint VALUE_ROWS = 16;
constant constexpr uint VALUE_SLICES = TILE_KEYS / VALUE_ROWS;
constant constexpr uint VALUE_LOADS = VALUE_ROWS * WORDS / 128;
constant constexpr uint STAGE_WORDS = TILE_KEYS * SLICE_WORDS;
constant constexpr uint NOWHERE = 0xffffffffu;

static_assert(VALUE_ROWS * PITCH_WORDS <= STAGE_WORDS, "a slice of values fits");
static_assert(TILE_ROWS * SCORE_PITCH * 4 <= STAGE_WORDS * 16, "the scores fit where the slices were");

// A thread's words of a slice of keys or values.
struct SliceWords {
    uint4 at[4];
};

// Columns 64 slice ... of 64 rows; zeros from row `end` on, which are not read.
METAL_FUNC SliceWords load_keys(const device uint4* rows, uint slice, uint end, uint tid) {
    SliceWords words;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint row = i * 16 + tid / 8;
        words.at[i] = row < end ? rows[row * WORDS + slice * 8 + tid % 8] : uint4(0);
    }
    return words;
}

METAL_FUNC void store_keys(threadgroup uint4* stage, thread const SliceWords& words, uint tid) {
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        stage[(i * 16 + tid / 8) * SLICE_WORDS + tid % 8] = words.at[i];
    }
}

// Rows VALUE_ROWS slice ... of 64; zeros from row `end` on, which are not read.
METAL_FUNC SliceWords load_values(const device uint4* rows, uint slice, uint end, uint tid) {
    SliceWords words;
#pragma unroll
    for (uint i = 0; i < VALUE_LOADS; i++) {
        const uint at = slice * (VALUE_ROWS * WORDS) + i * 128 + tid;
        words.at[i] = at < min(end, TILE_KEYS) * WORDS ? rows[at] : uint4(0);
    }
    return words;
}

METAL_FUNC void store_values(threadgroup uint4* stage, thread const SliceWords& words, uint tid) {
#pragma unroll
    for (uint i = 0; i < VALUE_LOADS; i++) {
        const uint at = i * 128 + tid;
        stage[at / WORDS * PITCH_WORDS + at % WORDS] = words.at[i];
    }
}

[[kernel, max_total_threads_per_threadgroup(128)]] void attn_flash_tensors(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* q [[buffer(2)]],
    const device bfloat* gate [[buffer(3)]],
    const device uint4* k [[buffer(4)]],
    const device uint4* v [[buffer(5)]],
    device bfloat* att [[buffer(6)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup uint4 queries[TILE_ROWS * PITCH_WORDS];
    threadgroup uint4 stage[STAGE_WORDS];
    threadgroup uint4 weight_words[TILE_ROWS * SLICE_WORDS];
    threadgroup float factors[TILE_ROWS];  // that the outputs of a row are to be multiplied with
    threadgroup uint moved[4];             // whether a simdgroup has a factor other than 1
    // Of each row: its place in q, gate and att.
    threadgroup uint places[TILE_ROWS];

    const uint count = chunk_rows(control, args.step);
    const uint tiles = (args.step.rows * GROUP + TILE_ROWS - 1) / TILE_ROWS;
    const uint first = (tiles - 1 - tg.y) * TILE_ROWS;
    if (first >= count * GROUP) {
        return;
    }
    const uint kv_head = tg.x;
    const uint base_position = row_position(control, args.step, 0);
    const uint end = base_position + min((first + TILE_ROWS - 1) / GROUP, count - 1) + 1;
    const ulong cache = ulong(args.step.sequence * args.kv_heads + kv_head) * args.capacity * WORDS;
    const device uint4* keys = k + cache;
    const device uint4* values = v + cache;

    SliceWords words = load_keys(keys, 0, end, tid);
    // Rows behind the chunk are zeros.
    for (uint at = tid; at < TILE_ROWS * WORDS; at += 128) {
        const uint pair = first + at / WORDS;
        const uint place = (pair / GROUP * args.kv_heads + kv_head) * GROUP + pair % GROUP;
        queries[at / WORDS * PITCH_WORDS + at % WORDS] =
            pair < count * GROUP ? q[place * WORDS + at % WORDS] : uint4(0);
        if (at % WORDS == 0) {
            places[at / WORDS] = pair < count * GROUP ? place : NOWHERE;
        }
    }

    constexpr auto score_descriptor = matmul2d_descriptor(
        TILE_ROWS, TILE_KEYS, 64, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    constexpr auto output_descriptor = matmul2d_descriptor(
        TILE_ROWS, HEAD_DIM, VALUE_ROWS, false, false, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<score_descriptor, execution_simdgroups<4>> score_product;
    matmul2d<output_descriptor, execution_simdgroups<4>> output_product;
    auto outputs = output_product.get_destination_cooperative_tensor<TileOperand, TileOperand, float>();
    tile_clear(outputs);

    // A lane's row and its softmax so far.
    const uint row = tid / 4;
    const uint part = tid % 4;
    const uint visible = base_position + (first + row) / GROUP + 1;
    float base = LOWEST;
    float sum = 0.0f;

    for (uint start = 0; start < end; start += TILE_KEYS) {
        auto products = score_product.get_destination_cooperative_tensor<TileOperand, TileOperand, float>();
        tile_clear(products);
        for (uint slice = 0; slice < KEY_SLICES; slice++) {
            store_keys(stage, words, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (slice + 1 < KEY_SLICES) {
                words = load_keys(keys + start * WORDS, slice + 1, end - start, tid);
            } else {
                words = load_values(values + start * WORDS, 0, end - start, tid);
            }
            TileOperand query = tile_operand(
                (threadgroup bfloat*)(queries + slice * 8), 64, TILE_ROWS, PITCH_WORDS * 8);
            TileOperand key = tile_operand((threadgroup bfloat*)stage, 64, TILE_KEYS, SLICE_WORDS * 8);
            score_product.run(query, key, products);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        tile_store(products, (threadgroup float*)stage, SCORE_PITCH, sg);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        float score[4][4];
        float most = LOWEST;
        const threadgroup float4* scores = (const threadgroup float4*)stage + row * (SCORE_PITCH / 4);
#pragma unroll
        for (uint f = 0; f < 4; f++) {
            const uint four = f * 4 + part;
            const float4 all = scores[four];
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                score[f][i] = start + four * 4 + i < visible ? all[i] * SCORE_SCALE : LOWEST;
                most = max(most, score[f][i]);
            }
        }
        const bool moves = simd_any(most - base > SLACK);
        float factor = 1.0f;
        if (moves) {
            most = max(most, simd_shuffle_xor(most, ushort(1)));
            most = max(most, simd_shuffle_xor(most, ushort(2)));
            const float to = max(base, most);
            factor = exp2(base - to);
            base = to;
            sum *= factor;
        }
        if (part == 0) {
            factors[row] = factor;
        }
        if (lane == 0) {
            moved[sg] = moves;
        }
        threadgroup bfloat4* weights = (threadgroup bfloat4*)weight_words + row * (SLICE_WORDS * 2);
#pragma unroll
        for (uint f = 0; f < 4; f++) {
            float4 weight;
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                weight[i] = exp2(score[f][i] - base);
                sum += weight[i];
            }
            weights[f * 4 + part] = bfloat4(weight);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        if (start > 0 && (moved[0] | moved[1] | moved[2] | moved[3]) != 0) {
#pragma unroll
            for (ushort i = 0; i < outputs.get_capacity(); i++) {
                if (outputs.is_valid_element(i)) {
                    outputs[i] *= factors[outputs.get_multidimensional_index(i)[1]];
                }
            }
        }
        for (uint slice = 0; slice < VALUE_SLICES; slice++) {
            store_values(stage, words, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (slice + 1 < VALUE_SLICES) {
                words = load_values(values + start * WORDS, slice + 1, end - start, tid);
            } else if (start + TILE_KEYS < end) {
                words = load_keys(keys + (start + TILE_KEYS) * WORDS, 0, end - start - TILE_KEYS, tid);
            }
            TileOperand weight = tile_operand(
                (threadgroup bfloat*)(weight_words + slice * (VALUE_ROWS / 8)), VALUE_ROWS, TILE_ROWS, SLICE_WORDS * 8);
            TileOperand value = tile_operand((threadgroup bfloat*)stage, HEAD_DIM, VALUE_ROWS, PITCH_WORDS * 8);
            output_product.run(weight, value, outputs);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
    }

    sum += simd_shuffle_xor(sum, ushort(1));
    sum += simd_shuffle_xor(sum, ushort(2));
    if (part == 0) {
        factors[row] = 1.0f / sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (ushort i = 0; i < outputs.get_capacity(); i++) {
        const auto at = outputs.get_multidimensional_index(i);
        if (outputs.is_valid_element(i) && places[at[1]] != NOWHERE) {
            const uint to = places[at[1]] * HEAD_DIM + at[0];
            att[to] = bfloat(outputs[i] * factors[at[1]] * sigmoid(float(gate[to])));
        }
    }
}
