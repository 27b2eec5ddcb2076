// Convolution, norms and gates of a prefill chunk for compute capability 9.0; formula and buffers in mod.rs. K_DIM and
// V_DIM 128, four taps.
//
// A warp owns 16 tokens of one query, key or value head, a lane four channels of it: rows are read in 16-byte words,
// eight in flight, the window stays in registers, and a head's length is a sum over the warp. The first block of each row
// of the grid forms the gates too.
#include "gdn.h"

constexpr uint TOKENS = 16;
constexpr uint BATCH = 8;
constexpr uint WARPS = 4;
constexpr uint OLD = 3;
constexpr uint HEADS = 2 * K_HEADS + V_HEADS;

METAL_FUNC float4 convolve_four(const float4* x, const float4 (&taps)[4]) {
    float4 y;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        y[i] = silu(fma(x[3][i], taps[i].w, fma(x[2][i], taps[i].z, fma(x[1][i], taps[i].y, x[0][i] * taps[i].x))));
    }
    return y;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) gdn_conv(
    const __grid_constant__ Args args,
    const int* control,
    const float* __restrict__ qkv,
    const float* __restrict__ conv,
    const float* __restrict__ ba,
    const float4* __restrict__ conv1d,
    const float* __restrict__ a_log,
    const float* __restrict__ dt_bias,
    bfloat* __restrict__ gq,
    bfloat* __restrict__ gk,
    bfloat* __restrict__ gv,
    float* __restrict__ beta,
    float* __restrict__ log_decay)
{
    const uint lane = threadIdx.x % 32;
    const uint head = blockIdx.x * WARPS + __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    const uint channel = min(head, HEADS - 1) * 128 + lane * 4;
    float4 taps[4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        taps[i] = conv1d[channel + i];
    }
    wait_for_previous_kernel();
    const uint rows = chunk_rows(control, args.step);
    const uint first = blockIdx.y * TOKENS;
    if (first >= rows) {
        return;
    }
    const uint end = min(first + TOKENS, rows);

    // 1. Gates.
    if (blockIdx.x == 0) {
        for (uint i = threadIdx.x; i < (end - first) * V_HEADS; i += WARPS * 32) {
            const uint row = first + i / V_HEADS;
            const uint v_head = i % V_HEADS;
            const float* b = ba + row * (2 * V_HEADS);
            beta[row * V_HEADS + v_head] = sigmoid(b[v_head]);
            log_decay[row * V_HEADS + v_head] = log_decay_of(b[V_HEADS + v_head], a_log[v_head], dt_bias[v_head]);
        }
    }
    if (head >= HEADS) {
        return;
    }

    // 2. Columns before the first token: of the chunk, of the ring, or zero before the start.
    const uint position = row_position(control, args.step, 0);
    float4 x[OLD + BATCH];
#pragma unroll
    for (uint j = 0; j < OLD; j++) {
        const uint back = OLD - j;
        x[j] = float4(0.0f);
        if (first >= back) {
            x[j] = *(const float4*)(qkv + ulong(first - back) * CHANNELS + channel);
        } else if (position + first >= back) {
            const ulong column = column_at(args.gdn, args.step.sequence, position + first - back);
            x[j] = *(const float4*)(conv + column + channel);
        }
    }

    // 3. Tokens.
    const bool normed = head < 2 * K_HEADS;
    const float factor = head < K_HEADS ? QUERY_SCALE : 1.0f;
    bfloat* out = gq + channel;
    uint pitch = K_CHANNEL;
    if (head >= 2 * K_HEADS) {
        out = gv + channel - V_CHANNEL;
        pitch = V_HEADS * V_DIM;
    } else if (head >= K_HEADS) {
        out = gk + channel - K_CHANNEL;
    }
    for (uint start = first; start < end; start += BATCH) {
#pragma unroll
        for (uint t = 0; t < BATCH; t++) {
            x[OLD + t] = *(const float4*)(qkv + ulong(min(start + t, end - 1)) * CHANNELS + channel);
        }
#pragma unroll
        for (uint t = 0; t < BATCH; t++) {
            float4 y = convolve_four(x + t, taps);
            if (normed) {
                y = y * (precise::rsqrt(simd_sum(dot(y, y)) + L2_EPS) * factor);
            }
            if (start + t < end) {
                *(bfloat4*)(out + ulong(start + t) * pitch) = bfloat4(y);
            }
        }
#pragma unroll
        for (uint j = 0; j < OLD; j++) {
            x[j] = x[BATCH + j];
        }
    }
}
