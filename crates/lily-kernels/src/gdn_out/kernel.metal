// x += W · og, then the residual epilogue. In decode every head of og is first divided by its rms.
//
//   og         bfloat [rows, V_HEADS, V_DIM]
//   W          matrix [hidden, V_HEADS V_DIM]
//   x          f32 [rows, hidden]
//   next_norm  f32 [hidden]
//   xn         bfloat [rows, hidden]
//   x_ss       f32 [rows, ss_stride]
//   o_ss       f32 [batch, V_HEADS, O_SS_SLICES], decode
//
// gdn_out and gdn_out_normed (prefill, og complete): a threadgroup owns COLUMNS columns for TOKENS rows of scratch;
// SPLITS simdgroups share a matrix row. The 16 bytes of codes of a lane lie in one head, so the head's factor
// joins the group's scale.
#include "gemv_residual.h"

// Inputs with a factor for each head.
struct HeadInputs {
    BfloatInputs og;
    const device float* o_ss[TOKENS];
    float rms_eps;

    METAL_FUNC void load(uint t, uint block, thread float* values) const { og.load(t, block, values); }

    METAL_FUNC float factor(uint t, uint word) const {
        const device float* slices = o_ss[t] + word * WORD_WEIGHTS / V_DIM * O_SS_SLICES;
        float sum = 0.0f;
#pragma unroll
        for (uint i = 0; i < O_SS_SLICES; i++) {
            sum += slices[i];
        }
        return precise::rsqrt(sum / float(V_DIM) + rms_eps);
    }
};

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void gdn_out(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* og [[buffer(2)]],
    const device uint4* matrix [[buffer(3)]],
    device float* x [[buffer(4)]],
    const device float* next_norm [[buffer(5)]],
    device bfloat* xn [[buffer(6)]],
    device float* x_ss [[buffer(7)]],
    const device float* o_ss [[buffer(8)]],
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
    HeadInputs inputs;
    inputs.og = bfloat_inputs(og, tokens);
    inputs.rms_eps = args.rms_eps;
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        inputs.o_ss[t] = o_ss + tokens.row(t) * (V_HEADS * O_SS_SLICES);
    }
    project_to_residual(
        matrix, at, words, inputs, residual, args.residual, tokens, tile.x, partials, simdgroup, lane);
}

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void gdn_out_normed(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* og [[buffer(2)]],
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
    const BfloatInputs inputs = bfloat_inputs(og, tokens);
    project_to_residual(
        matrix, at, words, inputs, residual, args.residual, tokens, tile.x, partials, simdgroup, lane);
}
