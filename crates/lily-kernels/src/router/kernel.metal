// logits = (W · (x ∘ post_norm)) / rms(x), f32 throughout: a rounded input could choose another expert.
//
//   x              f32 [rows, hidden]
//   x_ss           f32 [rows, ss_stride]
//   post_norm      f32 [hidden]
//   W              matrix [experts + 1, hidden]
//   router_logits  f32 [rows, experts + 1]
//
// router: a threadgroup owns SIMD_ROWS matrix rows for TOKENS rows of scratch; its SPLITS simdgroups share each row,
// because the matrix is small and the time is that of a few loads.
#include "gemv.h"
#include "norm.h"

// Rows of x times the norm's weight.
struct NormInputs {
    const device float4* rows[TOKENS];
    const device float4* norm;

    METAL_FUNC void load(uint t, uint block, thread float* values) const {
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            const float4 v = rows[t][block * 2 + i] * norm[block * 2 + i];
            values[4 * i] = v.x;
            values[4 * i + 1] = v.y;
            values[4 * i + 2] = v.z;
            values[4 * i + 3] = v.w;
        }
    }

    METAL_FUNC float factor(uint, uint) const { return 1.0f; }
};

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void router(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float4* x [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device float4* post_norm [[buffer(4)]],
    const device uint4* matrix [[buffer(5)]],
    device float* router_logits [[buffer(6)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float partials[SPLITS * TOKENS * SIMD_ROWS];
    const uint first = tile.x * SIMD_ROWS;
    const uint base = min(first, uint(MATRIX_ROWS - SIMD_ROWS));
    const uint row = base + lane_row(lane);
    const uint word = lane_word(simdgroup, lane);
    RowWords words;
    load_words(matrix, row, word, words);
    wait_for_previous_kernel();
    Tokens tokens;
    if (!find_tokens(control, args.step, tile.y, tokens)) {
        return;
    }
    NormInputs inputs;
    inputs.norm = post_norm;
    float parts[TOKENS];
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        inputs.rows[t] = x + ulong(tokens.row(t)) * (MATRIX_K / 4);
        parts[t] = rms_part(x_ss + tokens.row(t) * args.norm.ss_stride, args.norm, lane);
    }
    float sums[LANE_ROWS * TOKENS];
    multiply(matrix, row, word, words, inputs, sums);
#pragma unroll
    for (uint t = 0; t < TOKENS; t++) {
        const float sum = sum_lanes(sums, t, lane) * rms_scale_of(parts[t], args.norm);
        if (leads_result(lane)) {
            partials[(simdgroup * TOKENS + t) * SIMD_ROWS + result_row(lane)] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup > 0 || lane >= TOKENS * SIMD_ROWS) {
        return;
    }
    const uint t = lane / SIMD_ROWS;
    const uint out = base + lane % SIMD_ROWS;
    float sum = 0.0f;
#pragma unroll
    for (uint s = 0; s < SPLITS; s++) {
        sum += partials[s * TOKENS * SIMD_ROWS + lane];
    }
    if (out >= first && tokens.lives(t)) {
        router_logits[ulong(tokens.row(t)) * MATRIX_ROWS + out] = sum;
    }
}
