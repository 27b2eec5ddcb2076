// Blocks of simdgroup matrices: pairs of 8 x 8 tiles make one m16n8k16.
#pragma once
#include "lily_matrix.h"

namespace metal {

// tile_ops.h: pairs of tiles make one m16n8k16.
#ifndef MSL_NO_TILE_MMA
#define MSL_TARGET_HAS_TILE_MMA 1
template <typename T, int TM, int TN, int TK>
METAL_FUNC void simdgroup_tile_mma(simdgroup_matrix<float, 8, 8> (&acc)[TM][TN],
                                   simdgroup_matrix<T, 8, 8> (&a)[TM][TK],
                                   simdgroup_matrix<T, 8, 8> (&b)[TK][TN]) {
    static_assert(TM % 2 == 0 && TK % 2 == 0, "tiles come in pairs along M and K");
#pragma unroll
    for (int s = 0; s < TK; s += 2)
#pragma unroll
        for (int j = 0; j < TN; j++) {
            const uint b0 = lily_opB(b[s][j]), b1 = lily_opB(b[s + 1][j]);
#pragma unroll
            for (int i = 0; i < TM; i += 2)
                lily_mma_16816<T>(acc[i][j].e0, acc[i][j].e1, acc[i + 1][j].e0, acc[i + 1][j].e1,
                                  lily_opA(a[i][s]), lily_opA(a[i + 1][s]), lily_opA(a[i][s + 1]),
                                  lily_opA(a[i + 1][s + 1]), b0, b1);
        }
}
METAL_FUNC void lily_ldmatrix4(uint& r0, uint& r1, uint& r2, uint& r3, const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"((uint)__cvta_generic_to_shared(p))
                 : "memory");
}
// d[i][j] = rows 8i, columns 8j of the R x C tiles at p in threadgroup memory (rows 16-byte aligned).
template <typename T, int R, int C>
METAL_FUNC void simdgroup_tile_load(simdgroup_matrix<T, 8, 8> (&d)[R][C], const T* p, uint ld) {
    static_assert(R % 2 == 0 && C % 2 == 0, "2x2 tiles at a time");
    const uint l = lily_lane();
#pragma unroll
    for (int i = 0; i < R; i += 2)
#pragma unroll
        for (int j = 0; j < C; j += 2) {
            lily_ldmatrix4(d[i][j].r, d[i + 1][j].r, d[i][j + 1].r, d[i + 1][j + 1].r,
                           p + (i * 8 + l % 16) * ld + j * 8 + l / 16 * 8);
            d[i][j].tr = d[i + 1][j].tr = d[i][j + 1].tr = d[i + 1][j + 1].tr = false;
        }
}
// The same for the transpose: d[i][j] = transpose of rows 8j, columns 8i.
template <typename T, int R, int C>
METAL_FUNC void simdgroup_tile_load_t(simdgroup_matrix<T, 8, 8> (&d)[R][C], const T* p, uint ld) {
    static_assert(R % 2 == 0 && C % 2 == 0, "2x2 tiles at a time");
    const uint l = lily_lane();
#pragma unroll
    for (int j = 0; j < C; j += 2)
#pragma unroll
        for (int i = 0; i < R; i += 2) {
            lily_ldmatrix4(d[i][j].r, d[i][j + 1].r, d[i + 1][j].r, d[i + 1][j + 1].r,
                           p + (j * 8 + l % 16) * ld + i * 8 + l / 16 * 8);
            d[i][j].tr = d[i + 1][j].tr = d[i][j + 1].tr = d[i + 1][j + 1].tr = true;
        }
}
#endif

}  // namespace metal
