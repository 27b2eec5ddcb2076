// router for a chunk of tokens: logits = ((x ∘ post_norm) wᵀ) / rms(x), in float throughout.
//
//   x              f32 [rows, INPUT_WIDTH]
//   x_ss           f32 [rows, norm.ss_stride]
//   post_norm      f32 [INPUT_WIDTH]
//   weight         matrix [OUTPUTS, INPUT_WIDTH]
//   router_logits  f32 [rows, OUTPUTS]
//
// A threadgroup owns 32 tokens and 64 matrix rows, a thread tokens t, t + 8, ... and matrix rows r, r + 16, ..., 4 x 4
// of them. Plain multiply-adds: a rounded input may choose another expert. In a step of 64 columns both operands
// pass through threadgroup memory as float; the next step's are fetched before this one is multiplied.
#include "dequantise.h"
#include "row_scales.h"

constant constexpr uint OUTPUT_TILE = 64;
constant constexpr uint STEP_WORDS = 16;  // float4s of a row in a step
constant constexpr uint PITCH = STEP_WORDS + 1;  // eight rows lie on different banks

[[kernel, max_total_threads_per_threadgroup(128)]] void router_chunk(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float4* x [[buffer(2)]],
    const device float* x_ss [[buffer(3)]],
    const device float4* post_norm [[buffer(4)]],
    const device uint4* weight [[buffer(5)]],
    device float* router_logits [[buffer(6)]],
    uint2 tile [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]])
{
    threadgroup float4 inputs[TILE_ROWS * PITCH];
    threadgroup float4 matrix[OUTPUT_TILE * PITCH];
    threadgroup float scales[TILE_ROWS];

    const uint first = tile.y * TILE_ROWS;
    const uint live = chunk_rows(control, args.step);
    if (first >= live) {
        return;
    }
    const uint rows = min(live - first, uint(TILE_ROWS));
    const uint scaled = scaled_row(thread_index);
    row_scales(scales, x_ss + (first + scaled) * args.norm.ss_stride, scaled < rows, args.norm, thread_index);

    // What the thread brings: a float4 of every eighth token, and half of a matrix row's group.
    const uint word = thread_index % STEP_WORDS;
    uint at[4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        at[i] = (first + min(i * 8 + thread_index / STEP_WORDS, rows - 1)) * (INPUT_WIDTH / 4) + word;
    }
    const uint matrix_row = min(tile.x * OUTPUT_TILE + thread_index / 2, uint(OUTPUTS - 1));
    const device uint4* codes = weight + matrix_row * (INPUT_WIDTH * BITS / 128) + thread_index % 2 * PACKED_WORDS;
    const device uint* pairs = (const device uint*)weight + OUTPUTS * (INPUT_WIDTH * BITS / 32)
        + matrix_row * (INPUT_WIDTH / 64);
    float4 fetched[4];
    float4 norm = post_norm[word];
    PackedWeights weights;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        fetched[i] = x[at[i]];
    }
    load_packed(weights, codes, pairs);

    const uint token = thread_index / 16;
    const uint column = thread_index % 16;
    float sums[4][4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            sums[i][j] = 0.0f;
        }
    }
    for (uint step = 0; step < INPUT_WIDTH / 64; step++) {
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            inputs[(i * 8 + thread_index / STEP_WORDS) * PITCH + word] = fetched[i] * norm;
        }
        unpack_float(weights, matrix + thread_index / 2 * PITCH + thread_index % 2 * (STEP_WORDS / 2));
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (step + 1 < INPUT_WIDTH / 64) {
            norm = post_norm[(step + 1) * STEP_WORDS + word];
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                fetched[i] = x[at[i] + (step + 1) * STEP_WORDS];
            }
            load_packed(weights, codes + (step + 1) * (2 * PACKED_WORDS), pairs + step + 1);
        }
        for (uint k = 0; k < STEP_WORDS; k++) {
            float4 a[4];
            float4 b[4];
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                a[i] = inputs[(token + i * 8) * PITCH + k];
                b[i] = matrix[(column + i * 16) * PITCH + k];
            }
#pragma unroll
            for (uint i = 0; i < 4; i++) {
#pragma unroll
                for (uint j = 0; j < 4; j++) {
                    sums[i][j] = fma(a[i].x, b[j].x, sums[i][j]);
                    sums[i][j] = fma(a[i].y, b[j].y, sums[i][j]);
                    sums[i][j] = fma(a[i].z, b[j].z, sums[i][j]);
                    sums[i][j] = fma(a[i].w, b[j].w, sums[i][j]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint row = token + i * 8;
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            const uint output = tile.x * OUTPUT_TILE + column + j * 16;
            if (row < rows && output < OUTPUTS) {
                router_logits[(first + row) * OUTPUTS + output] = sums[i][j] * scales[row];
            }
        }
    }
}
