// Gated DeltaNet: rings, convolution, gates, delta rule; crate::gdn in Rust. Constants: K_HEADS,
// V_HEADS, K_DIM, V_DIM, CONV_WIDTH, L2_EPS, QUERY_SCALE = 1 / sqrt(K_DIM).
#pragma once
#include "lily.h"

constant constexpr uint K_CHANNEL = K_HEADS * K_DIM;  // first channel of the keys
constant constexpr uint V_CHANNEL = 2 * K_CHANNEL;    // and of the values
constant constexpr uint CHANNELS = V_CHANNEL + V_HEADS * V_DIM;
constant constexpr uint HEADS_PER_KEY = V_HEADS / K_HEADS;
constant constexpr uint K_PARTS = K_DIM / 32;  // float4 that each of 8 lanes holds of a row of the state

// First element of a value head's state before `position`, [V_DIM, K_DIM].
METAL_FUNC ulong state_at(constant GdnArgs& gdn, uint sequence, uint position, uint head) {
    const uint slot = sequence * gdn.state_slots + position % gdn.state_slots;
    return (ulong(slot) * V_HEADS + head) * (V_DIM * K_DIM);
}

// First element of the convolution column of `position`.
METAL_FUNC ulong column_at(constant GdnArgs& gdn, uint sequence, uint position) {
    return ulong(sequence * gdn.conv_slots + position % gdn.conv_slots) * CHANNELS;
}

// Convolution and SiLU of one channel; `x` are the inputs of its window, the oldest first.
METAL_FUNC float convolve(thread const float* x, thread const float (&taps)[CONV_WIDTH]) {
    float sum = x[0] * taps[0];
#pragma unroll
    for (uint j = 1; j < CONV_WIDTH; j++) {
        sum = fma(x[j], taps[j], sum);
    }
    return silu(sum);
}

// Taps of a channel.
METAL_FUNC void load_taps(thread float (&taps)[CONV_WIDTH], const device float* conv1d, uint channel) {
#if CONV_WIDTH == 4
    const float4 all = ((const device float4*)conv1d)[channel];
    taps[0] = all.x;
    taps[1] = all.y;
    taps[2] = all.z;
    taps[3] = all.w;
#else
#pragma unroll
    for (uint j = 0; j < CONV_WIDTH; j++) {
        taps[j] = conv1d[channel * CONV_WIDTH + j];
    }
#endif
}

// What makes a query or key a unit vector, from the sums of squares of its K_DIM / 32 parts.
METAL_FUNC float l2_scale(const threadgroup float* sums) {
    float sum = sums[0];
#pragma unroll
    for (uint i = 1; i < K_PARTS; i++) {
        sum += sums[i];
    }
    return precise::rsqrt(sum + L2_EPS);
}

// log(1 + e) for e in 0..1, as 2 atanh(e / (2 + e)): small e keep their digits, which (1 + e) would lose.
METAL_FUNC float log_one_plus(float e) {
    const float s = e / (2.0f + e);
    const float s2 = s * s;
    float sum = 1.0f / 15.0f;
    sum = fma(sum, s2, 1.0f / 13.0f);
    sum = fma(sum, s2, 1.0f / 11.0f);
    sum = fma(sum, s2, 1.0f / 9.0f);
    sum = fma(sum, s2, 1.0f / 7.0f);
    sum = fma(sum, s2, 1.0f / 5.0f);
    sum = fma(sum, s2, 1.0f / 3.0f);
    return 2.0f * fma(sum * s2, s, s);
}

// log alpha = -exp(A_log) softplus(a + dt_bias).
METAL_FUNC float log_decay_of(float a, float a_log, float dt_bias) {
    const float x = a + dt_bias;
    return -precise::exp(a_log) * (max(x, 0.0f) + log_one_plus(precise::exp(-abs(x))));
}

// Sum over the 8 lanes that share a row of the state.
METAL_FUNC float sum_of_eight(float x) {
    x += simd_shuffle_xor(x, 1);
    x += simd_shuffle_xor(x, 2);
    x += simd_shuffle_xor(x, 4);
    return x;
}

METAL_FUNC float sum_of_parts(float4 x) { return (x.x + x.y) + (x.z + x.w); }

// The delta rule for one token and one row of the state, which 8 lanes share:
// S <- alpha S; r = beta (v - S k); S <- S + r k; the result is S q = (alpha S) q + r (k q).
METAL_FUNC float delta_token(
    thread float4* s,
    thread const float4* q,
    thread const float4* k,
    float v,
    float alpha,
    float beta)
{
    float4 sk = float4(0.0f);
    float4 sq = float4(0.0f);
    float4 kq = float4(0.0f);
#pragma unroll
    for (uint j = 0; j < K_PARTS; j++) {
        s[j] = s[j] * alpha;
        sk = fma(s[j], k[j], sk);
        sq = fma(s[j], q[j], sq);
        kq = fma(k[j], q[j], kq);
    }
    const float r = beta * (v - sum_of_eight(sum_of_parts(sk)));
    const float o = fma(r, sum_of_eight(sum_of_parts(kq)), sum_of_eight(sum_of_parts(sq)));
#pragma unroll
    for (uint j = 0; j < K_PARTS; j++) {
        s[j] = fma(float4(r), k[j], s[j]);
    }
    return o;
}

// Copies the last `kept` of `rows` rows of a chunk that starts at `position` into the convolution ring.
// `thread_index` of `threads` threads.
METAL_FUNC void store_columns(
    constant GdnArgs& gdn,
    const device float* qkv,
    device float* conv,
    uint sequence,
    uint position,
    uint rows,
    uint kept,
    uint thread_index,
    uint threads)
{
    for (uint row = rows - min(rows, kept); row < rows; row++) {
        const device float4* from = (const device float4*)(qkv + ulong(row) * CHANNELS);
        device float4* to = (device float4*)(conv + column_at(gdn, sequence, position + row));
        for (uint i = thread_index; i < CHANNELS / 4; i += threads) {
            to[i] = from[i];
        }
    }
}
