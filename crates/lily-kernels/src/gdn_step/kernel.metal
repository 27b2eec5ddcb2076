// One decode step of the Gated DeltaNet; formula and buffers in mod.rs, helpers in gdn.h.
//
// A threadgroup of 4 simdgroups owns 16 value rows of one head of one sequence: tg = (rows / 16, head,
// sequence). It convolves the head's K_DIM query and key channels and its 16 value channels, one
// a thread, then 8 lanes share each row of the state: lane `sub` has float4 number sub, sub + 8, ...
// The state is asked for before the convolution and comes while that runs.
// K_DIM a multiple of 32, V_DIM of 16.
#include "gdn.h"

constant constexpr uint ROWS = 16;
constant constexpr uint ITEMS = 2 * K_DIM + ROWS;  // channels: query, key, value
constant constexpr uint ROUNDS = (ITEMS + 127) / 128;

[[kernel, max_total_threads_per_threadgroup(128)]] void gdn_step(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float* conv [[buffer(2)]],
    const device bfloat* z [[buffer(3)]],
    const device float* ba [[buffer(4)]],
    const device float* conv1d [[buffer(5)]],
    const device float* a_log [[buffer(6)]],
    const device float* dt_bias [[buffer(7)]],
    const device float* norm [[buffer(8)]],
    device float* state [[buffer(9)]],
    device bfloat* og [[buffer(10)]],
    device float* o_ss [[buffer(11)]],
    uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float4 staged[ROUNDS * 32];
    threadgroup float sums[ROUNDS * 4];
    threadgroup float o_sums[4];
    const uint sequence = tg.z;
    if (!row_lives(control, args.step, sequence)) {
        return;
    }
    const uint position = row_position(control, args.step, sequence);
    const uint head = tg.y;
    const uint key_head = head / HEADS_PER_KEY;
    const uint first = tg.x * ROWS;
    const uint sub = lane % 8;
    const uint row = sg * 4 + lane / 8;

    // 1. The old state, zero before position 0.
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
    const uint at = (sequence * V_HEADS + head) * V_DIM + first + row;
    const float gate = silu(float(z[at]));
    const float weight = norm[first + row];
    const float beta = sigmoid(ba[sequence * 2 * V_HEADS + head]);
    const float alpha =
        precise::exp(log_decay_of(ba[(sequence * 2 + 1) * V_HEADS + head], a_log[head], dt_bias[head]));

    // 2. Convolution, and sums of squares of 32 channels each.
    ulong columns[CONV_WIDTH];
    const uint newest = position % args.gdn.conv_slots;
#pragma unroll
    for (uint j = 0; j < CONV_WIDTH; j++) {
        const uint back = CONV_WIDTH - 1 - j;
        const uint slot = newest >= back ? newest - back : newest + args.gdn.conv_slots - back;
        columns[j] = ulong(sequence * args.gdn.conv_slots + slot) * CHANNELS;
    }
    threadgroup float* channels = (threadgroup float*)staged;
#pragma unroll
    for (uint i = 0; i < ROUNDS; i++) {
        const uint item = i * 128 + tid;
        float y = 0.0f;
        if (item < ITEMS) {
            uint channel = V_CHANNEL + head * V_DIM + first + item - 2 * K_DIM;
            if (item < K_DIM) {
                channel = key_head * K_DIM + item;
            } else if (item < 2 * K_DIM) {
                channel = K_CHANNEL + key_head * K_DIM + item - K_DIM;
            }
            float taps[CONV_WIDTH];
            float x[CONV_WIDTH];
            load_taps(taps, conv1d, channel);
#pragma unroll
            for (uint j = 0; j < CONV_WIDTH; j++) {
                x[j] = position + j + 1 >= CONV_WIDTH ? conv[columns[j] + channel] : 0.0f;
            }
            y = convolve(x, taps);
            channels[item] = y;
        }
        const float sum = simd_sum(y * y);
        if (lane == 0) {
            sums[i * 4 + sg] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // 3. Norms; rounding as prefill stores q, k and v.
    const float q_scale = l2_scale(sums) * QUERY_SCALE;
    const float k_scale = l2_scale(sums + K_PARTS);
    const bool to_bfloat = args.gdn.act_bf16 != 0;
    float4 q[K_PARTS];
    float4 k[K_PARTS];
#pragma unroll
    for (uint j = 0; j < K_PARTS; j++) {
        q[j] = staged[j * 8 + sub] * q_scale;
        k[j] = staged[K_DIM / 4 + j * 8 + sub] * k_scale;
        if (to_bfloat) {
            q[j] = float4(bfloat4(q[j]));
            k[j] = float4(bfloat4(k[j]));
        }
    }
    float v = channels[2 * K_DIM + row];
    v = to_bfloat ? float(bfloat(v)) : v;

    // 4. Delta rule, the new state, and the gated output.
    const float o = delta_token(s, q, k, v, alpha, beta);
    device float4* next = (device float4*)(state + state_at(args.gdn, sequence, position + 1, head) + in_head);
#pragma unroll
    for (uint j = 0; j < K_PARTS; j++) {
        next[j * 8 + sub] = s[j];
    }
    if (sub == 0) {
        og[at] = bfloat(o * weight * gate);
    }
    const float sum = simd_sum(sub == 0 ? o * o : 0.0f);
    if (lane == 0) {
        o_sums[sg] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
        o_ss[(sequence * V_HEADS + head) * args.o_ss_slices + tg.x] =
            (o_sums[0] + o_sums[1]) + (o_sums[2] + o_sums[3]);
    }
}
