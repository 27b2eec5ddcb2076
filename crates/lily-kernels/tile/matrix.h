// Blocks of 8 x 8 simdgroup matrices. These are the bodies for Metal and the test device; a prelude that defines
// MSL_TARGET_HAS_TILE_MMA supplies its own, which work on pairs of matrices.
#pragma once
#include <metal_simdgroup_matrix>

#ifndef MSL_TARGET_HAS_TILE_MMA
// to[i][j] = the matrix at row 8i, column 8j of `from`, whose rows are 16-byte aligned.
template <typename T, int R, int C>
METAL_FUNC void simdgroup_tile_load(
    thread simdgroup_matrix<T, 8, 8> (&to)[R][C], const threadgroup T* from, uint pitch)
{
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int j = 0; j < C; j++) {
            simdgroup_load(to[i][j], from + i * 8 * pitch + j * 8, pitch);
        }
    }
}

// to[i][j] = the transpose of the matrix at row 8j, column 8i of `from`.
template <typename T, int R, int C>
METAL_FUNC void simdgroup_tile_load_t(
    thread simdgroup_matrix<T, 8, 8> (&to)[R][C], const threadgroup T* from, uint pitch)
{
#pragma unroll
    for (int j = 0; j < C; j++) {
#pragma unroll
        for (int i = 0; i < R; i++) {
            simdgroup_load(to[i][j], from + j * 8 * pitch + i * 8, pitch, ulong2(0), true);
        }
    }
}

// sums[i][j] += sum over s of a[i][s] b[s][j].
template <typename T, int R, int C, int S>
METAL_FUNC void simdgroup_tile_mma(
    thread simdgroup_matrix<float, 8, 8> (&sums)[R][C],
    thread simdgroup_matrix<T, 8, 8> (&a)[R][S],
    thread simdgroup_matrix<T, 8, 8> (&b)[S][C])
{
#pragma unroll
    for (int s = 0; s < S; s++) {
#pragma unroll
        for (int i = 0; i < R; i++) {
#pragma unroll
            for (int j = 0; j < C; j++) {
                simdgroup_multiply_accumulate(sums[i][j], a[i][s], b[s][j], sums[i][j]);
            }
        }
    }
}
#endif
