// logits = (W · xn) / rms(x), and the best id of every HEAD_ROWS matrix rows.
//
//   xn          bfloat [rows, hidden]
//   x_ss        f32 [rows, ss_stride]
//   W           matrix [vocab, hidden]
//   logits      f32 [logit_rows, vocab]
//   best_value  f32 [batch, ⌈vocab / HEAD_ROWS⌉], as bits
//   best_id     int, the same shape
//
// head (with candidates) and head_all (without): a threadgroup owns HEAD_ROWS matrix rows for TOKENS rows of scratch,
// a simdgroup SIMD_ROWS of them. Simdgroup t then stores the logits of token t and looks for its candidate: by
// integers that order like the floats, because fast arithmetic may assume that there is no NaN or infinity.
#include "gemv.h"
#include "norm.h"

constant constexpr uint GROUPS = (MATRIX_ROWS + HEAD_ROWS - 1) / HEAD_ROWS;
constant constexpr uint LANE_LOGITS = HEAD_ROWS / 32;

// The rows of scratch of a launch; false if nothing is computed.
METAL_FUNC bool head_tokens(constant Args& args, const device int* control, uint tile, thread Tokens& tokens) {
    if (args.last_row == 0) {
        return find_tokens(control, args.step, tile, tokens);
    }
    const uint rows = chunk_rows(control, args.step);
    tokens.first = rows > 0 ? rows - 1 : 0;
    tokens.some = tokens.first;
    tokens.live = rows > 0 ? 1 : 0;
    return rows > 0;
}

// Products of the threadgroup's rows, to results [TOKENS, HEAD_ROWS] in threadgroup memory. Finds the rows of
// scratch; false if nothing is computed.
METAL_FUNC bool head_products(
    constant Args& args,
    const device int* control,
    const device uint4* xn,
    const device float* x_ss,
    const device uint4* matrix,
    uint2 tile,
    thread Tokens& tokens,
    threadgroup float* results,
    uint simdgroup,
    uint lane)
{
    const uint first = tile.x * HEAD_ROWS + simdgroup * SIMD_ROWS;
    const uint base = min(first, uint(MATRIX_ROWS - SIMD_ROWS));
    const uint row = base + lane_row(lane);
    RowWords words;
    load_words(matrix, row, lane_word(0, lane), words);
    wait_for_previous_kernel();
    if (!head_tokens(args, control, tile.y, tokens)) {
        return false;
    }
    float parts[TOKENS];
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        parts[t] = rms_part(x_ss + ulong(tokens.row(t)) * args.norm.ss_stride, args.norm, lane);
    }
    float sums[LANE_ROWS * TOKENS];
    multiply(matrix, row, lane_word(0, lane), words, bfloat_inputs(xn, tokens), sums);
    const uint out = base + result_row(lane);
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        const float logit = sum_lanes(sums, t, lane) * rms_scale_of(parts[t], args.norm);
        if (leads_result(lane) && out >= first) {
            results[t * HEAD_ROWS + (out - tile.x * HEAD_ROWS)] = logit;
        }
    }
    return true;
}

// Bits of a float as an integer of the same order; both zeros are equal.
METAL_FUNC int order_of(int bits) { return bits < 0 ? -(bits & 0x7fffffff) : bits; }

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void head(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* xn [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device uint4* matrix [[buffer(4)]],
    device float* logits [[buffer(5)]],
    device int* best_value [[buffer(6)]],
    device int* best_id [[buffer(7)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float results[TOKENS * HEAD_ROWS];
    const uint group = tile.x;
    Tokens tokens;
    const uint2 place = uint2(tile.x, tile.y);
    if (!head_products(args, control, xn, x_ss, matrix, place, tokens, results, simdgroup, lane)) {
        return;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup >= TOKENS || !tokens.lives(simdgroup)) {
        return;
    }
    const uint token = args.last_row != 0 ? 0 : tokens.row(simdgroup);
    const int lowest = order_of(int(0xff800000u));  // minus infinity
    int best = lowest;
    uint best_at = 0xffffffffu;
    uint nan_at = 0xffffffffu;
#pragma unroll
    for (uint i = 0; i < LANE_LOGITS; i++) {
        const uint id = group * HEAD_ROWS + i * 32 + lane;
        if (id < MATRIX_ROWS) {
            const float logit = results[simdgroup * HEAD_ROWS + i * 32 + lane];
            logits[ulong(token) * MATRIX_ROWS + id] = logit;
            const int bits = as_type<int>(logit);
            const int order = order_of(bits);
            if (id < args.vocab_used) {
                if ((bits & 0x7fffffff) > 0x7f800000) {
                    nan_at = min(nan_at, id);
                } else if (order > best) {
                    best = order;
                    best_at = id;
                }
            }
        }
    }
    const int largest = simd_max(best);
    const uint nan_id = simd_min(nan_at);
    const uint id = simd_min(best == largest ? best_at : 0xffffffffu);
    if (lane == 0) {
        const bool none = id == 0xffffffffu;
        const int value = largest < 0 ? int(0x80000000u | uint(-largest)) : largest;
        best_value[token * GROUPS + group] = nan_id != 0xffffffffu ? 0x7fc00000 : value;
        best_id[token * GROUPS + group] = int(nan_id != 0xffffffffu ? nan_id : none ? group * HEAD_ROWS : id);
    }
}

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void head_all(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* xn [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device uint4* matrix [[buffer(4)]],
    device float* logits [[buffer(5)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float results[TOKENS * HEAD_ROWS];
    const uint group = tile.x;
    Tokens tokens;
    const uint2 place = uint2(tile.x, tile.y);
    if (!head_products(args, control, xn, x_ss, matrix, place, tokens, results, simdgroup, lane)) {
        return;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup >= TOKENS || !tokens.lives(simdgroup)) {
        return;
    }
    const ulong token = args.last_row != 0 ? 0 : tokens.row(simdgroup);
    for (uint i = lane; i < HEAD_ROWS; i += 32) {
        const uint id = group * HEAD_ROWS + i;
        if (id < MATRIX_ROWS) {
            logits[token * MATRIX_ROWS + id] = results[simdgroup * HEAD_ROWS + i];
        }
    }
}
