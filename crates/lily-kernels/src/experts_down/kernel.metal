// x += Σ_slot route[slot] (W[expert] · h[slot]), slots in order, then the residual epilogue.
//
//   h          bfloat [rows, TOP_K + 1, inner]
//   routing    ids int [rows, TOP_K + 1]; fused: router logits f32 [rows, EXPERTS + 1]
//   W          matrix [EXPERTS + 1, HIDDEN, inner]
//   x          f32 [rows, HIDDEN]
//   next_norm  f32 [HIDDEN]
//   xn         bfloat [rows, HIDDEN]
//   x_ss       f32 [rows, ss_stride]
//   route      f32 [rows, TOP_K + 1], not in the fused form
//
// A threadgroup owns SIMD_ROWS = 8 columns of one row. A simdgroup multiplies a slot's 8 matrix rows; rows are short, so
// ROW_LANES lanes share one and all of them are in flight at once.
#include "gemv.h"
#include "residual.h"
#include "routing.h"

// All threads call it; `ids`, `route` and `products` [SLOTS, SIMD_ROWS] are threadgroup memory, the first
// two filled: with valid ids, also for a halted row.
METAL_FUNC void down(
    constant Args& args,
    const device int* control,
    const device uint4* h,
    const device uint4* matrix,
    const thread Residual& residual,
    uint token,
    uint tile_index,
    const threadgroup int* ids,
    const threadgroup float* route,
    threadgroup float* products,
    uint simdgroup,
    uint lane)
{
    const uint first = tile_index * SIMD_ROWS;
    const uint word = lane_word(0, lane);
    RowWords words;
    load_words(matrix, uint(ids[simdgroup]) * HIDDEN + first + lane_row(lane), word, words);
    if (!row_lives(control, args.step, token)) {
        return;
    }
    ResidualTile tile;
    if (simdgroup == 0) {
        tile = load_residual(residual, args.residual, token, first, lane);
    }
    for (uint slot = simdgroup; slot < SLOTS; slot += SIMDGROUPS) {
        const uint row = uint(ids[slot]) * HIDDEN + first + lane_row(lane);
        if (slot != simdgroup) {
            load_words(matrix, row, word, words);
        }
        BfloatInputs inputs;
        inputs.rows[0] = h + (token * SLOTS + slot) * (MATRIX_K / 8);
        float sums[LANE_ROWS];
        multiply(matrix, row, word, words, inputs, sums);
        const float sum = sum_lanes(sums, 0, lane);
        if (leads_result(lane)) {
            products[slot * SIMD_ROWS + result_row(lane)] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup > 0) {
        return;
    }
    float results[2];
    results[0] = 0.0f;
    results[1] = 0.0f;
    if (lane < SIMD_ROWS) {
        for (uint slot = 0; slot < SLOTS; slot++) {
            results[0] = fma(route[slot], products[slot * SIMD_ROWS + lane], results[0]);
        }
    }
    add_to_residual(residual, args.residual, token, tile_index, tile, results, lane);
}

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void experts_down(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* h [[buffer(2)]],
    const device int* ids [[buffer(3)]],
    const device uint4* matrix [[buffer(4)]],
    device float* x [[buffer(5)]],
    const device float* next_norm [[buffer(6)]],
    device bfloat* xn [[buffer(7)]],
    device float* x_ss [[buffer(8)]],
    const device float* route [[buffer(9)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup int chosen[SLOTS];
    threadgroup float weights[SLOTS];
    threadgroup float products[SLOTS * SIMD_ROWS];
    const uint token = tile.y;
    if (thread_index < SLOTS) {
        chosen[thread_index] = int(min(uint(ids[token * SLOTS + thread_index]), uint(EXPERTS)));
        weights[thread_index] = route[token * SLOTS + thread_index];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Residual residual;
    residual.x = x;
    residual.next_norm = next_norm;
    residual.xn = xn;
    residual.x_ss = x_ss;
    down(args, control, h, matrix, residual, token, tile.x, chosen, weights, products, simdgroup, lane);
}

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void experts_down_fused(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* h [[buffer(2)]],
    const device float* router_logits [[buffer(3)]],
    const device uint4* matrix [[buffer(4)]],
    device float* x [[buffer(5)]],
    const device float* next_norm [[buffer(6)]],
    device bfloat* xn [[buffer(7)]],
    device float* x_ss [[buffer(8)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup int chosen[SLOTS];
    threadgroup float weights[SLOTS];
    threadgroup float products[SLOTS * SIMD_ROWS];
    const uint token = tile.y;
    if (simdgroup == 0) {
        const Choice choice = choose_experts(router_logits + token * LOGITS, lane);
        if (lane < SLOTS) {
            chosen[lane] = choice.expert;
            weights[lane] = choice.weight;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Residual residual;
    residual.x = x;
    residual.next_norm = next_norm;
    residual.xn = xn;
    residual.x_ss = x_ss;
    down(args, control, h, matrix, residual, token, tile.x, chosen, weights, products, simdgroup, lane);
}
