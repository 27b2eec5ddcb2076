// Norm and rotary: q = rotary(rms(aq) ∘ q_norm), the same for k; v as projected. One rounding, at the end.
//
//   aq, ak, av      f32 [rows, q_heads | kv_heads, HEAD_DIM]
//   q_norm, k_norm  f32 [HEAD_DIM]
//   q               bfloat [rows, q_heads, HEAD_DIM]
//   k, v            bfloat [batch, kv_heads, capacity, HEAD_DIM]; row of the token's position
//
// A simdgroup owns a head of one token: query heads, then key heads, then value heads. Lanes hold four
// elements at a time; those that are rotated read their partner again, which lies in the same cache lines.
#include "rotary.h"

[[kernel, max_total_threads_per_threadgroup(128)]] void attn_prepare(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float* aq [[buffer(2)]],
    const device float* ak [[buffer(3)]],
    const device float* av [[buffer(4)]],
    const device float* q_norm [[buffer(5)]],
    const device float* k_norm [[buffer(6)]],
    device bfloat* q [[buffer(7)]],
    device bfloat* k [[buffer(8)]],
    device bfloat* v [[buffer(9)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    const uint row = tg.y;
    uint head = tg.x * 4 + sg;
    if (head >= args.q_heads + 2 * args.kv_heads || !row_lives(control, args.step, row)) {
        return;
    }
    const uint position = row_position(control, args.step, row);
    const float eps = args.rotary.rms_eps;
    if (head < args.q_heads) {
        const uint at = (row * args.q_heads + head) * HEAD_DIM;
        prepare_head(aq + at, q_norm, eps, position, (device bfloat4*)(q + at), lane);
        return;
    }
    head -= args.q_heads;
    const bool value = head >= args.kv_heads;
    head -= value ? args.kv_heads : 0;
    const uint from = (row * args.kv_heads + head) * HEAD_DIM;
    const uint cache = row_sequence(args.step, row) * args.kv_heads + head;
    const ulong to = (ulong(cache) * args.capacity + position) * HEAD_DIM;
    if (value) {
        copy_head(av + from, (device bfloat4*)(v + to), lane);
    } else {
        prepare_head(ak + from, k_norm, eps, position, (device bfloat4*)(k + to), lane);
    }
}
