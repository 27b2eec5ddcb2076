// y = (W · xn) / rms(x); rows of W: convolution channels, z, b, a.
//
//   xn    bfloat [rows, hidden]
//   x_ss  f32 [rows, ss_stride]
//   W     matrix [conv_channels + v_width + 2 v_heads, hidden]
//   qkv   f32: decode the ring [batch, conv_slots, conv_channels], prefill [rows, conv_channels]
//   z     bfloat [rows, v_width]
//   ba    f32 [rows, 2 v_heads]
//
// gdn_in: a simdgroup owns SIMD_ROWS matrix rows for TOKENS rows of scratch. The last simdgroup starts early
// enough to have them all, and leaves the rows of its neighbour alone.
#include "gemv.h"
#include "norm.h"

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void gdn_in(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* xn [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device uint4* matrix [[buffer(4)]],
    device float* qkv [[buffer(5)]],
    device bfloat* z [[buffer(6)]],
    device float* ba [[buffer(7)]],
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
    const uint channels = args.conv_channels;
    const uint gates = 2 * args.v_heads;
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        const float y = sum_lanes(sums, t, lane) * rms_scale_of(parts[t], args.norm);
        if (!stores || !tokens.lives(t)) {
            continue;
        }
        const uint token = tokens.row(t);
        if (out < channels) {
            const uint slot = row_position(control, args.step, token) % args.conv_slots;
            const uint column = args.step.prefill != 0 ? token : token * args.conv_slots + slot;
            qkv[ulong(column) * channels + out] = y;
        } else if (out < channels + args.v_width) {
            z[ulong(token) * args.v_width + (out - channels)] = bfloat(y);
        } else {
            ba[token * gates + (out - channels - args.v_width)] = y;
        }
    }
}
