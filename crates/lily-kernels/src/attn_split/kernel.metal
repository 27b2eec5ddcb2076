// Decode attention over blocks of keys: for each block o = sum e^(s - m) v, its largest score m and sum l.
//
//   q        bfloat [rows, q_heads, HEAD_DIM]
//   k, v     bfloat [batch, kv_heads, capacity, HEAD_DIM]
//   part_o   f32 [batch, q_heads, part_stride, HEAD_DIM]
//   part_ml  f32 [batch, q_heads, part_stride, 2]
//
// A threadgroup owns a block of keys of one KV head, for HEADS of the GROUP query heads that share it; its
// simdgroups take turns at the keys. See packed_heads.h. Blocks beyond the length are not written.
#include "packed_heads.h"

constant constexpr uint BATCHES = (GROUP + HEADS - 1) / HEADS;

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void attn_split(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* q [[buffer(2)]],
    const device uint4* k [[buffer(3)]],
    const device uint4* v [[buffer(4)]],
    device float* part_o [[buffer(5)]],
    device float2* part_ml [[buffer(6)]],
    uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float4 outs[MERGE_FLOATS / 4];
    threadgroup float4 stats[SIMDGROUPS * HEADS];

    const uint row = tg.z;
    if (!row_lives(control, args.step, row)) {
        return;
    }
    const uint length = row_position(control, args.step, row) + 1;
    const uint size = block_keys(length, args.splits);
    const uint begin = tg.x * size;
    if (begin >= length) {
        return;
    }
    const uint end = min(begin + size, length);
    const uint kv_head = tg.y / BATCHES;
    const uint batch = tg.y % BATCHES * HEADS;
    const uint heads = min(uint(HEADS), GROUP - batch);
    const uint head = row * args.q_heads + kv_head * GROUP + batch;

    float queries[HEADS][8];
    load_queries(queries, q + head * WORDS, heads, lane);
    const uint cache = row_sequence(args.step, row) * args.kv_heads + kv_head;
    const ulong first = ulong(cache) * args.capacity * WORDS;
    Softmax softmax = softmax_start();
    attend(softmax, queries, k + first, v + first, begin, end, end, uint4(0), uint4(0), sg, lane);
    put_stats(softmax, stats, sg, lane);
    write_parts(
        softmax, stats, (threadgroup float*)outs, part_o, part_ml, head * args.part_stride + tg.x,
        args.part_stride, heads, tid, sg, lane);
}
