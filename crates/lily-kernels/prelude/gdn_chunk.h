// What the kernels of the chunked delta rule share: 64 tokens a chunk, and strips of threadgroup memory, one for each
// simdgroup, through which it turns device memory into matrix blocks and back. Constant: CHUNK_BFLOAT, 1 where U, W and P
// are bfloats, 0 where they are floats.
#pragma once
#include "float.h"
#include "gdn.h"

#if CHUNK_BFLOAT
typedef bfloat ChunkFloat;
typedef bfloat4 ChunkFloat4;
#else
typedef float ChunkFloat;
typedef float4 ChunkFloat4;
#endif

constant constexpr uint CHUNK = 64;
constant constexpr uint STRIP_PITCH = 36;  // of 8 rows of up to 32 columns
constant constexpr uint STRIP = 8 * STRIP_PITCH;

// Stores sums [16, 32], four blocks side by side, as rows `row` to `row` + 15 of `to` [rows, pitch], from `column` on;
// T4 are four elements.
// Rows from `rows` on and columns from `columns` on do not exist.
template <typename T4>
METAL_FUNC void store_sums(
    thread const FloatSums* sums,
    device T4* to,
    ulong pitch,
    uint row,
    uint rows,
    uint column,
    uint columns,
    threadgroup float4* strip,
    uint lane)
{
    threadgroup float* floats = (threadgroup float*)strip;
#pragma unroll
    for (uint pair = 0; pair < 2; pair++) {
        store_rows(sums[2 * pair], floats, 16);
        store_rows(sums[2 * pair + 1], floats + 8, 16);
        simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            const uint at_row = row + i * 8 + lane / 4;
            const uint at_column = column + pair * 16 + lane % 4 * 4;
            if (at_row < rows && at_column < columns) {
                to[(at_row * pitch + at_column) / 4] = T4(strip[i * 32 + lane]);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
