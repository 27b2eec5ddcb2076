// y = (W · xn) / rms(x); rows of W: for each query head its query and its gate, then keys, then values.
//
//   xn      bfloat [rows, hidden]
//   x_ss    f32 [rows, ss_stride]
//   W       matrix [2 q_heads HEAD_DIM + 2 kv_heads HEAD_DIM, hidden]
//   aq      f32 [rows, q_heads, HEAD_DIM]
//   gate    bfloat [rows, q_heads, HEAD_DIM]
//   ak, av  f32 [rows, kv_heads, HEAD_DIM]
//
// attn_in: a simdgroup owns SIMD_ROWS matrix rows for TOKENS rows of scratch, as in gdn_in.
#include "gemv.h"
#include "norm.h"

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void attn_in(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* xn [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device uint4* matrix [[buffer(4)]],
    device float* aq [[buffer(5)]],
    device bfloat* gate [[buffer(6)]],
    device float* ak [[buffer(7)]],
    device float* av [[buffer(8)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    const uint first = (tile.x * SIMDGROUPS + simdgroup) * SIMD_ROWS;
    if (first >= MATRIX_ROWS) {
        return;
    }
    const uint base = min(first, uint(MATRIX_ROWS - SIMD_ROWS));
    const uint row = base + lane_row(lane);
    RowWords words;
    load_words(matrix, row, lane_word(0, lane), words);
    wait_for_previous_kernel();
    Tokens tokens;
    if (!find_tokens(control, args.step, tile.y, tokens)) {
        return;
    }
    float parts[TOKENS];
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        parts[t] = rms_part(x_ss + tokens.row(t) * args.norm.ss_stride, args.norm, lane);
    }
    float sums[LANE_ROWS * TOKENS];
    multiply(matrix, row, lane_word(0, lane), words, bfloat_inputs(xn, tokens), sums);

    const uint out = base + result_row(lane);
    const bool stores = leads_result(lane) && out >= first;
    const uint q_width = args.q_heads * HEAD_DIM;
    const uint kv_width = args.kv_heads * HEAD_DIM;
    const uint head = out / (2 * HEAD_DIM);
    const uint in_head = out % (2 * HEAD_DIM);
    const uint in_keys = out - 2 * q_width;
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        const float y = sum_lanes(sums, t, lane) * rms_scale_of(parts[t], args.norm);
        if (!stores || !tokens.lives(t)) {
            continue;
        }
        const ulong token = tokens.row(t);
        if (out >= 2 * q_width) {
            if (in_keys < kv_width) {
                ak[token * kv_width + in_keys] = y;
            } else {
                av[token * kv_width + (in_keys - kv_width)] = y;
            }
        } else if (in_head < HEAD_DIM) {
            aq[token * q_width + head * HEAD_DIM + in_head] = y;
        } else {
            gate[token * q_width + head * HEAD_DIM + (in_head - HEAD_DIM)] = bfloat(y);
        }
    }
}
