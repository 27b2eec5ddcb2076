// The delta rule token by token over a short prefill chunk; formula and buffers in mod.rs, helpers in gdn.h.
//
// A threadgroup of 4 simdgroups owns 16 value rows of one head: tg = (rows / 16, head). 8 lanes share a
// row of the state and hold it in registers over all tokens: lane `sub` has float4 number sub, sub + 8,
// ... Queries, keys, values and gates of up to STAGE tokens are staged together, so that no load of
// device memory stands between two tokens. K_DIM a multiple of 32 up to 256, V_DIM of 16.
#include "gdn.h"

constant constexpr uint ROWS = 16;
constant constexpr uint STAGE = K_DIM > 128 ? 16 : 32;
constant constexpr uint QUARTS = K_DIM / 4;

[[kernel, max_total_threads_per_threadgroup(128)]] void gdn_scan(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device bfloat4* gq [[buffer(2)]],
    const device bfloat4* gk [[buffer(3)]],
    const device bfloat* gv [[buffer(4)]],
    const device float* beta [[buffer(5)]],
    const device float* log_decay [[buffer(6)]],
    const device float* qkv [[buffer(7)]],
    device float* state [[buffer(8)]],
    device float* core [[buffer(9)]],
    device float* conv [[buffer(10)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup bfloat4 staged_q[STAGE * QUARTS];
    threadgroup bfloat4 staged_k[STAGE * QUARTS];
    threadgroup bfloat staged_v[STAGE * ROWS];
    threadgroup float staged_gates[2 * STAGE];
    const uint rows = chunk_rows(control, args.step);
    if (rows == 0) {
        return;
    }
    const uint sequence = args.step.sequence;
    const uint position = row_position(control, args.step, 0);
    const uint head = tg.y;
    const uint key_head = head / HEADS_PER_KEY;
    const uint first = tg.x * ROWS;
    const uint sub = lane % 8;
    const uint row = sg * 4 + lane / 8;

    const uint in_head = (first + row) * K_DIM;
    float4 s[K_PARTS];
    if (position == 0) {
#pragma unroll
        for (uint j = 0; j < K_PARTS; j++) {
            s[j] = float4(0.0f);
        }
    } else {
        const device float4* old =
            (const device float4*)(state + state_at(args.gdn, sequence, position, head) + in_head);
#pragma unroll
        for (uint j = 0; j < K_PARTS; j++) {
            s[j] = old[j * 8 + sub];
        }
    }

    for (uint start = 0; start < rows; start += STAGE) {
        const uint count = min(STAGE, rows - start);
        if (start > 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        for (uint i = tid; i < count * QUARTS; i += 128) {
            const uint from = ((start + i / QUARTS) * K_HEADS + key_head) * QUARTS + i % QUARTS;
            staged_q[i] = gq[from];
            staged_k[i] = gk[from];
        }
        for (uint i = tid; i < count * ROWS; i += 128) {
            staged_v[i] = gv[((start + i / ROWS) * V_HEADS + head) * V_DIM + first + i % ROWS];
        }
        if (tid < count) {
            const uint at = (start + tid) * V_HEADS + head;
            staged_gates[2 * tid] = precise::exp(log_decay[at]);
            staged_gates[2 * tid + 1] = beta[at];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint t = 0; t < count; t++) {
            float4 q[K_PARTS];
            float4 k[K_PARTS];
#pragma unroll
            for (uint j = 0; j < K_PARTS; j++) {
                q[j] = float4(staged_q[t * QUARTS + j * 8 + sub]);
                k[j] = float4(staged_k[t * QUARTS + j * 8 + sub]);
            }
            const float v = float(staged_v[t * ROWS + row]);
            const float o = delta_token(s, q, k, v, staged_gates[2 * t], staged_gates[2 * t + 1]);
            if (sub == 0) {
                core[(ulong(start + t) * V_HEADS + head) * V_DIM + first + row] = o;
            }
            if (args.every_token != 0 || start + t + 1 == rows) {
                device float4* next = (device float4*)(
                    state + state_at(args.gdn, sequence, position + start + t + 1, head) + in_head);
#pragma unroll
                for (uint j = 0; j < K_PARTS; j++) {
                    next[j * 8 + sub] = s[j];
                }
            }
        }
    }
    const uint thread_index = (tg.y * groups.x + tg.x) * 128 + tid;
    const uint threads = groups.x * groups.y * 128;
    store_columns(args.gdn, qkv, conv, sequence, position, rows, args.kept_columns, thread_index, threads);
}
