// attn_prepare as the prologue of attn_split; same results, bit for bit.
//
//   aq, ak, av      f32 [rows, q_heads | kv_heads, HEAD_DIM]
//   q_norm, k_norm  f32 [HEAD_DIM]
//   k, v            bfloat [batch, kv_heads, capacity, HEAD_DIM]; the new row is written
//   part_o          f32 [batch, q_heads, part_stride, HEAD_DIM]
//   part_ml         f32 [batch, q_heads, part_stride, 2]
//
// Mapping as in attn_split. Each threadgroup prepares its queries into threadgroup memory, a simdgroup for each
// head. Those whose block holds the new position prepare key and value too and use them from there; one of them
// stores them. No one reads the new row of the cache.
#include "packed_heads.h"
#include "rotary.h"

constant constexpr uint BATCHES = (GROUP + HEADS - 1) / HEADS;

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void attn_split_prepare(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float* aq [[buffer(2)]],
    const device float* ak [[buffer(3)]],
    const device float* av [[buffer(4)]],
    const device float* q_norm [[buffer(5)]],
    const device float* k_norm [[buffer(6)]],
    device uint4* k [[buffer(7)]],
    device uint4* v [[buffer(8)]],
    device float* part_o [[buffer(9)]],
    device float2* part_ml [[buffer(10)]],
    uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float4 outs[MERGE_FLOATS / 4];
    threadgroup float4 stats[SIMDGROUPS * HEADS];
    threadgroup uint4 prepared[(HEADS + 2) * WORDS];  // queries, key, value

    const uint row = tg.z;
    if (!row_lives(control, args.step, row)) {
        return;
    }
    const uint position = row_position(control, args.step, row);
    const uint length = position + 1;
    const uint size = block_keys(length, args.splits);
    const uint begin = tg.x * size;
    if (begin >= length) {
        return;
    }
    const uint end = min(begin + size, length);
    const bool newest = end == length;
    const uint kv_head = tg.y / BATCHES;
    const uint batch = tg.y % BATCHES * HEADS;
    const uint heads = min(uint(HEADS), GROUP - batch);
    const uint head = row * args.prepared.q_heads + kv_head * GROUP + batch;
    const float eps = args.prepared.rotary.rms_eps;

    threadgroup bfloat4* fours = (threadgroup bfloat4*)prepared;
    for (uint h = sg; h < heads; h += SIMDGROUPS) {
        prepare_head(aq + (head + h) * HEAD_DIM, q_norm, eps, position, fours + h * HEAD_FOURS, lane);
    }
    if (newest) {
        const uint from = (row * args.prepared.kv_heads + kv_head) * HEAD_DIM;
        if (sg == 0) {
            prepare_head(ak + from, k_norm, eps, position, fours + HEADS * HEAD_FOURS, lane);
        }
        if (sg == 1) {
            copy_head(av + from, fours + (HEADS + 1) * HEAD_FOURS, lane);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float queries[HEADS][8];
    load_queries(queries, (const threadgroup uint4*)prepared, heads, lane);
    const uint cache = row * args.prepared.kv_heads + kv_head;
    const ulong first = ulong(cache) * args.prepared.capacity * WORDS;
    uint4 new_key = uint4(0);
    uint4 new_value = uint4(0);
    if (newest && lane < WORDS) {
        new_key = prepared[HEADS * WORDS + lane];
        new_value = prepared[(HEADS + 1) * WORDS + lane];
        if (batch == 0 && sg == 0) {
            k[first + position * WORDS + lane] = new_key;
        }
        if (batch == 0 && sg == 1) {
            v[first + position * WORDS + lane] = new_value;
        }
    }
    Softmax softmax = softmax_start();
    attend(
        softmax, queries, (const device uint4*)k + first, (const device uint4*)v + first, begin, end,
        newest ? position : end, new_key, new_value, sg, lane);
    put_stats(softmax, stats, sg, lane);
    write_parts(
        softmax, stats, (threadgroup float*)outs, part_o, part_ml, head * args.part_stride + tg.x,
        args.part_stride, heads, tid, sg, lane);
}
