// Decode attention over few keys, in one launch: att = sigmoid(gate) o softmax(q K^T / sqrt(HEAD_DIM)) V, with q
// and the new key and value prepared as in attn_prepare. Right for any length.
//
//   aq, ak, av      f32 [rows, q_heads | kv_heads, HEAD_DIM]
//   q_norm, k_norm  f32 [HEAD_DIM]
//   k, v            bfloat [batch, kv_heads, capacity, HEAD_DIM]; the new row is written
//   gate, att       bfloat [rows, q_heads, HEAD_DIM]
//
// A threadgroup owns a query head; its simdgroups take turns at the keys. See packed_heads.h. Each prepares the
// new key and value; the first head of a KV group stores them, and no one reads them from the cache.
constant constexpr uint HEADS = 1;
#include "packed_heads.h"
#include "rotary.h"

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void attn_short(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float* aq [[buffer(2)]],
    const device float* ak [[buffer(3)]],
    const device float* av [[buffer(4)]],
    const device float* q_norm [[buffer(5)]],
    const device float* k_norm [[buffer(6)]],
    device uint4* k [[buffer(7)]],
    device uint4* v [[buffer(8)]],
    const device bfloat* gate [[buffer(9)]],
    device bfloat* att [[buffer(10)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float4 outs[MERGE_FLOATS / 4];
    threadgroup float4 stats[SIMDGROUPS];
    threadgroup uint4 prepared[3 * WORDS];  // query, key, value

    const uint row = tg.y;
    if (!row_lives(control, args.step, row)) {
        return;
    }
    const uint position = row_position(control, args.step, row);
    const uint kv_head = tg.x / GROUP;
    const uint head = row * args.prepared.q_heads + tg.x;
    const uint cache = row * args.prepared.kv_heads + kv_head;
    const float eps = args.prepared.rotary.rms_eps;

    threadgroup bfloat4* fours = (threadgroup bfloat4*)prepared;
    if (sg == 0) {
        prepare_head(aq + head * HEAD_DIM, q_norm, eps, position, fours, lane);
    }
    if (sg == 1) {
        prepare_head(ak + cache * HEAD_DIM, k_norm, eps, position, fours + HEAD_FOURS, lane);
    }
    if (sg == 2) {
        copy_head(av + cache * HEAD_DIM, fours + 2 * HEAD_FOURS, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float query[1][8];
    load_queries(query, (const threadgroup uint4*)prepared, 1, lane);
    const ulong first = ulong(cache) * args.prepared.capacity * WORDS;
    uint4 new_key = uint4(0);
    uint4 new_value = uint4(0);
    if (lane < WORDS) {
        new_key = prepared[WORDS + lane];
        new_value = prepared[2 * WORDS + lane];
        if (tg.x % GROUP == 0 && sg == 0) {
            k[first + position * WORDS + lane] = new_key;
        }
        if (tg.x % GROUP == 0 && sg == 1) {
            v[first + position * WORDS + lane] = new_value;
        }
    }
    Softmax softmax = softmax_start();
    attend(
        softmax, query, (const device uint4*)k + first, (const device uint4*)v + first, 0, position + 1, position,
        new_key, new_value, sg, lane);
    put_stats(softmax, stats, sg, lane);
    threadgroup float* out = (threadgroup float*)outs;
    put_outputs<0>(softmax, out, sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const Merged merged = merge_stats(stats, 0);
    for (uint d = tid; d < HEAD_DIM; d += THREADS) {
        const uint at = head * HEAD_DIM + d;
        att[at] = bfloat(merge_element(merged, out, 0, d) / merged.sum * sigmoid(float(gate[at])));
    }
}
