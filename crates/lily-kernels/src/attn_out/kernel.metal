// x += W · att, then the residual epilogue.
//
//   att        bfloat [rows, q_width]
//   W          matrix [hidden, q_width]
//   x          f32 [rows, hidden]
//   next_norm  f32 [hidden]
//   xn         bfloat [rows, hidden]
//   x_ss       f32 [rows, ss_stride]
//
// attn_out: a threadgroup owns COLUMNS columns for TOKENS rows of scratch; SPLITS simdgroups share a matrix row.
#include "gemv_residual.h"

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void attn_out(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* att [[buffer(2)]],
    const device uint4* matrix [[buffer(3)]],
    device float* x [[buffer(4)]],
    const device float* next_norm [[buffer(5)]],
    device bfloat* xn [[buffer(6)]],
    device float* x_ss [[buffer(7)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float partials[PARTIALS];
    const ResidualLane at = residual_lane(tile.x, simdgroup, lane);
    RowWords words;
    load_words(matrix, at.row, at.word, words);
    wait_for_previous_kernel();
    Tokens tokens;
    if (!find_tokens(control, args.step, tile.y, tokens)) {
        return;
    }
    Residual residual;
    residual.x = x;
    residual.next_norm = next_norm;
    residual.xn = xn;
    residual.x_ss = x_ss;
    const BfloatInputs inputs = bfloat_inputs(att, tokens);
    project_to_residual(
        matrix, at, words, inputs, residual, args.residual, tokens, tile.x, partials, simdgroup, lane);
}
