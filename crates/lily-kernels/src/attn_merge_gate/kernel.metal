// Joins the blocks of decode attention: att = sigmoid(gate) o sum e^(m_s - m) o_s / sum e^(m_s - m) l_s.
//
//   part_o   f32 [batch, q_heads, part_stride, HEAD_DIM]
//   part_ml  f32 [batch, q_heads, part_stride, 2]: largest score m, sum l
//   gate     bfloat [rows, q_heads, HEAD_DIM]
//   att      bfloat [rows, q_heads, HEAD_DIM]
//
// A threadgroup of 256 threads owns 64 elements of a head: 16 lanes hold four each, and 16 such slots share the
// blocks, so that few loads follow one another. Blocks that are not in use hold anything and are not read.
#include "attention.h"

constant constexpr uint SLOTS = 16;

[[kernel, max_total_threads_per_threadgroup(256)]] void attn_merge_gate(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float* part_o [[buffer(2)]],
    const device float2* part_ml [[buffer(3)]],
    const device bfloat* gate [[buffer(4)]],
    device bfloat* att [[buffer(5)]],
    uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float4 outs[SLOTS * 16];
    threadgroup float sums[SLOTS];

    const uint row = tg.z;
    if (!row_lives(control, args.step, row)) {
        return;
    }
    const uint used = blocks(row_position(control, args.step, row) + 1, args.splits);
    const uint head = row * args.q_heads + tg.x;
    const device float2* ml = part_ml + head * args.part_stride;

    float most = LOWEST;
    for (uint block = lane; block < used; block += 32) {
        most = max(most, ml[block].x);
    }
    const float top = simd_max(most);

    const uint slot = tid / 16;
    const uint element = tg.y * 64 + tid % 16 * 4;
    const device float4* from = (const device float4*)part_o + ulong(head) * args.part_stride * (HEAD_DIM / 4) + element / 4;
    float4 out = float4(0.0f);
    float sum = 0.0f;
    if (element < HEAD_DIM) {
#pragma unroll 4
        for (uint block = slot; block < used; block += SLOTS) {
            const float4 own = from[block * (HEAD_DIM / 4)];
            const float2 stats = ml[block];
            const float factor = exp(stats.x - top);
            sum = fma(factor, stats.y, sum);
            out += own * factor;
        }
    }
    outs[tid] = out;
    if (tid % 16 == 0) {
        sums[slot] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint d = tg.y * 64 + tid;
    if (tid < 64 && d < HEAD_DIM) {
        const threadgroup float* column = (const threadgroup float*)outs + tid;
        float total = 0.0f;
        float o = 0.0f;
#pragma unroll
        for (uint s = 0; s < SLOTS; s++) {
            o += column[s * 64];
            total += sums[s];
        }
        const uint at = head * HEAD_DIM + d;
        att[at] = bfloat(o / total * sigmoid(float(gate[at])));
    }
}
