// End of the grouped expert block: x += Σ_slot moe_y[slot], slots in order, then the residual epilogue.
//
//   moe_y      f32 [rows, SLOTS, HIDDEN], route weights applied
//   x          f32 [rows, HIDDEN]
//   next_norm  f32 [HIDDEN]
//   xn         bfloat [rows, HIDDEN]
//   x_ss       f32 [rows, HIDDEN / 8], of it the first HIDDEN / SS_COLUMNS
//
// A threadgroup owns 256 columns of a row, a thread four of them: SS_COLUMNS / 4 neighbours share a partial sum.
#include "lily.h"

[[kernel, max_total_threads_per_threadgroup(64)]] void combine(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float4* moe_y [[buffer(2)]],
    device float4* x [[buffer(3)]],
    const device float4* next_norm [[buffer(4)]],
    device bfloat4* xn [[buffer(5)]],
    device float* x_ss [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]])
{
    const uint row = group.y;
    if (!row_lives(control, args.step, row)) {
        return;
    }
    const uint column = group.x * 64 + thread_index;  // of columns of four
    const bool inside = column < HIDDEN / 4;
    float4 sum = float4(0.0f);
    if (inside) {
        const uint at = row * (HIDDEN / 4) + column;
        const device float4* slots = moe_y + row * (SLOTS * HIDDEN / 4) + column;
        const float4 before = x[at];
        const float4 norm = next_norm[column];
        float4 own[SLOTS];
#pragma unroll
        for (uint slot = 0; slot < SLOTS; slot++) {
            own[slot] = slots[slot * (HIDDEN / 4)];
        }
        sum = own[0];
#pragma unroll
        for (uint slot = 1; slot < SLOTS; slot++) {
            sum = sum + own[slot];
        }
        sum = before + sum;
        x[at] = sum;
        xn[at] = bfloat4(sum * norm);
    }
    float squares = dot(sum, sum);
#pragma unroll
    for (uint lanes = 1; lanes < SS_COLUMNS / 4; lanes *= 2) {
        squares += simd_shuffle_xor(squares, lanes);
    }
    if (inside && thread_index % (SS_COLUMNS / 4) == 0) {
        x_ss[row * (HIDDEN / 8) + column / (SS_COLUMNS / 4)] = squares;
    }
}
