// x = E[id], not rounded, then xn = x ∘ next_norm and the sums of squares of each ss_columns columns.
//
//   E          matrix [vocab, hidden]
//   x          f32 [rows, hidden]
//   next_norm  f32 [hidden]
//   xn         bfloat [rows, hidden]
//   x_ss       f32 [rows, ss_stride]
//   prompt     int [rows], prefill: the ids; decode has them in the control block
//
// embed and embed_chunk: a simdgroup owns 256 columns of a row, a lane 8 of them.
#include "affine.h"

METAL_FUNC void embed_columns(
    constant Args& args,
    int id,
    uint row,
    uint column,
    const device uint4* matrix,
    device float4* x,
    const device float* next_norm,
    device uint4* xn,
    device float* x_ss)
{
    const bool owned = column < MATRIX_K;
    const uint last = uint(MATRIX_ROWS - 1);
    float values[8];
    float squares = 0.0f;
    if (owned) {
        load_weights(matrix, min(uint(max(id, 0)), last), column, values);
        const ulong at = ulong(row) * MATRIX_K + column;
        float normed[8];
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            squares = fma(values[i], values[i], squares);
            normed[i] = values[i] * next_norm[column + i];
        }
        x[at / 4] = float4(values[0], values[1], values[2], values[3]);
        x[at / 4 + 1] = float4(values[4], values[5], values[6], values[7]);
        xn[at / 8] = uint4(
            bfloat_pair(normed[0], normed[1]),
            bfloat_pair(normed[2], normed[3]),
            bfloat_pair(normed[4], normed[5]),
            bfloat_pair(normed[6], normed[7]));
    }
    // ss_columns is 8 or 64: the columns of 1 or 8 lanes.
    const uint columns = args.residual.ss_columns;
    for (uint distance = 4; distance > 0; distance /= 2) {
        const float other = simd_shuffle_xor(squares, ushort(distance));
        squares += columns == 64 ? other : 0.0f;
    }
    if (owned && column % columns == 0) {
        x_ss[row * args.residual.ss_stride + column / columns] = squares;
    }
}

[[kernel, max_total_threads_per_threadgroup(32)]] void embed(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* matrix [[buffer(2)]],
    device float4* x [[buffer(3)]],
    const device float* next_norm [[buffer(4)]],
    device uint4* xn [[buffer(5)]],
    device float* x_ss [[buffer(6)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]])
{
    const uint row = tile.y;
    if (!row_lives(control, args.step, row)) {
        return;
    }
    const int id = control[row_sequence(args.step, row) * CONTROL_WORDS + CONTROL_TOKEN];
    embed_columns(args, id, row, tile.x * 256 + lane * 8, matrix, x, next_norm, xn, x_ss);
}

[[kernel, max_total_threads_per_threadgroup(32)]] void embed_chunk(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* matrix [[buffer(2)]],
    device float4* x [[buffer(3)]],
    const device float* next_norm [[buffer(4)]],
    device uint4* xn [[buffer(5)]],
    device float* x_ss [[buffer(6)]],
    const device int* prompt [[buffer(7)]],
    uint3 tile [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]])
{
    const uint row = tile.y;
    if (!row_lives(control, args.step, row)) {
        return;
    }
    embed_columns(args, prompt[row], row, tile.x * 256 + lane * 8, matrix, x, next_norm, xn, x_ss);
}
