// Gated norm of a prefill chunk: og = core / rms(core) * norm * silu(z), the rms over each value head.
//
//   core  f32 [rows, V_HEADS, V_DIM]      norm  f32 [V_DIM]
//   z     bfloat [rows, V_HEADS * V_DIM]  og    the same
//
// A threadgroup owns one head of 8 tokens, a simdgroup one of them; a lane has 4 values of every 128.
#include "lily.h"

constant constexpr uint QUARTS = V_DIM / 4;
constant constexpr uint PARTS = (QUARTS + 31) / 32;

[[kernel, max_total_threads_per_threadgroup(256)]] void gdn_gate(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float4* core [[buffer(2)]],
    const device bfloat4* z [[buffer(3)]],
    const device float4* norm [[buffer(4)]],
    device bfloat4* og [[buffer(5)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    const uint row = tg.y * 8 + sg;
    if (row >= chunk_rows(control, args.step)) {
        return;
    }
    const ulong first = (ulong(row) * V_HEADS + tg.x) * QUARTS;
    float4 o[PARTS];
    float sum = 0.0f;
#pragma unroll
    for (uint j = 0; j < PARTS; j++) {
        const uint i = j * 32 + lane;
        o[j] = i < QUARTS ? core[first + i] : float4(0.0f);
        sum += dot(o[j], o[j]);
    }
    const float scale = precise::rsqrt(simd_sum(sum) / float(V_DIM) + args.rms_eps);
#pragma unroll
    for (uint j = 0; j < PARTS; j++) {
        const uint i = j * 32 + lane;
        if (i < QUARTS) {
            const float4 gate = float4(z[first + i]);
            const float4 gated = float4(silu(gate.x), silu(gate.y), silu(gate.z), silu(gate.w));
            og[first + i] = bfloat4(o[j] * scale * norm[i] * gated);
        }
    }
}
