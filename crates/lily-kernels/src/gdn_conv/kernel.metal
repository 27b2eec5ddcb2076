// Convolution, norms and gates of a prefill chunk; formula and buffers in mod.rs, helpers in gdn.h.
//
// A threadgroup owns 32 tokens of the query and key channels of one key head, or of two value heads:
// tg = (key head, then pairs of value heads; tokens / 32). A thread owns a channel, keeps its window
// in registers and asks for 8 tokens at a time, so that a token is read once but for the window at
// the start. K_DIM a multiple of 32, V_DIM of 16.
#include "gdn.h"

constant constexpr uint TOKENS = 32;
constant constexpr uint BATCH = 8;
constant constexpr uint OLD = CONV_WIDTH - 1;
constant constexpr uint SIMDGROUPS = THREADS / 32;

[[kernel, max_total_threads_per_threadgroup(512)]] void gdn_conv(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float* qkv [[buffer(2)]],
    const device float* conv [[buffer(3)]],
    const device float* ba [[buffer(4)]],
    const device float* conv1d [[buffer(5)]],
    const device float* a_log [[buffer(6)]],
    const device float* dt_bias [[buffer(7)]],
    device bfloat* gq [[buffer(8)]],
    device bfloat* gk [[buffer(9)]],
    device bfloat* gv [[buffer(10)]],
    device float* beta [[buffer(11)]],
    device float* log_decay [[buffer(12)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float sums[2 * BATCH * SIMDGROUPS];
    const uint rows = chunk_rows(control, args.step);
    const uint first = tg.y * TOKENS;
    if (first >= rows) {
        return;
    }
    const uint end = min(first + TOKENS, rows);
    const uint position = row_position(control, args.step, 0);

    // 1. The thread's channel and where its results go.
    const bool keys = tg.x < K_HEADS;
    uint width = 2 * K_DIM;
    uint channel = tg.x * K_DIM + tid;
    uint pitch = K_HEADS * K_DIM;
    device bfloat* out = gq + channel;
    if (!keys) {
        const uint offset = (tg.x - K_HEADS) * 2 * V_DIM;
        width = min(uint(2 * V_DIM), V_HEADS * V_DIM - offset);
        channel = V_CHANNEL + offset + tid;
        pitch = V_HEADS * V_DIM;
        out = gv + offset + tid;
    } else if (tid >= K_DIM) {
        channel = K_CHANNEL + tg.x * K_DIM + tid - K_DIM;
        out = gk + channel - K_CHANNEL;
    }
    const bool active = tid < width;

    // 2. Gates of two value heads.
    if (!keys) {
        const uint head = (tg.x - K_HEADS) * 2 + tid % 2;
        for (uint row = first + tid / 2; row < end; row += THREADS / 2) {
            if (head < V_HEADS) {
                const device float* b = ba + ulong(row) * 2 * V_HEADS;
                beta[row * V_HEADS + head] = sigmoid(b[head]);
                log_decay[row * V_HEADS + head] = log_decay_of(b[V_HEADS + head], a_log[head], dt_bias[head]);
            }
        }
    }

    // 3. Columns before the first token: of the chunk, of the ring, or zero before the start.
    float taps[CONV_WIDTH];
    float x[OLD + BATCH];
    if (active) {
        load_taps(taps, conv1d, channel);
#pragma unroll
        for (uint j = 0; j < OLD; j++) {
            const uint back = OLD - j;
            x[j] = 0.0f;
            if (first >= back) {
                x[j] = qkv[ulong(first - back) * CHANNELS + channel];
            } else if (position + first >= back) {
                x[j] = conv[column_at(args.gdn, args.step.sequence, position + first - back) + channel];
            }
        }
    }

    // 4. Tokens in batches: results of one batch wait for the sums of squares of their heads.
    uint set = 0;
    for (uint start = first; start < end; start += BATCH) {
        float y[BATCH];
        if (active) {
#pragma unroll
            for (uint t = 0; t < BATCH; t++) {
                x[OLD + t] = start + t < end ? qkv[ulong(start + t) * CHANNELS + channel] : 0.0f;
            }
        }
#pragma unroll
        for (uint t = 0; t < BATCH; t++) {
            y[t] = active ? convolve(x + t, taps) : 0.0f;
        }
        if (active) {
#pragma unroll
            for (uint j = 0; j < OLD; j++) {
                x[j] = x[BATCH + j];
            }
        }
        if (keys) {
#pragma unroll
            for (uint t = 0; t < BATCH; t++) {
                const float sum = simd_sum(y[t] * y[t]);
                if (lane == 0) {
                    sums[set + t * SIMDGROUPS + sg] = sum;
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (active) {
#pragma unroll
                for (uint t = 0; t < BATCH; t++) {
                    const threadgroup float* parts = sums + set + t * SIMDGROUPS;
                    y[t] *= tid < K_DIM ? l2_scale(parts) * QUERY_SCALE : l2_scale(parts + K_PARTS);
                }
            }
            // Two sets of sums, so that one barrier a batch is enough.
            set = BATCH * SIMDGROUPS - set;
        }
        if (active) {
#pragma unroll
            for (uint t = 0; t < BATCH; t++) {
                if (start + t < end) {
                    out[ulong(start + t) * pitch] = bfloat(y[t]);
                }
            }
        }
    }
}
