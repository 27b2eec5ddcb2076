// simdgroup_matrix on mma.
#pragma once
#include "lily_simd.h"

namespace metal {

// Lane l holds row l/4, columns 2(l%4) and +1: one quarter of an mma.m16n8k16 A operand,
// one half of a C operand and, of the transpose, one half of a B operand. `tr` says that
// the registers hold the transpose; it folds to a compile-time constant once the code is
// inlined and unrolled, so a transposed load used as a B operand costs nothing.
template <typename T, int C, int R> struct simdgroup_matrix;
template <typename T> struct lily_matrix16 {
    uint r;
    bool tr;
};
template <> struct simdgroup_matrix<bfloat, 8, 8> : lily_matrix16<bfloat> {};
template <> struct simdgroup_matrix<half, 8, 8> : lily_matrix16<half> {};
template <> struct simdgroup_matrix<float, 8, 8> {
    float e0, e1;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <typename T, int C, int R = C> METAL_FUNC simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
    simdgroup_matrix<T, C, R> m;
    if constexpr (lily_same<T, float>::value) {
        m.e0 = m.e1 = v;
    } else {
        m.r = v.b * 0x10001u;
        m.tr = false;
    }
    return m;
}
METAL_FUNC uint lily_movmatrix(uint r) {
    uint d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(r));
    return d;
}
template <typename T> METAL_FUNC uint lily_opA(const lily_matrix16<T>& m) {
    return m.tr ? lily_movmatrix(m.r) : m.r;
}
template <typename T> METAL_FUNC uint lily_opB(const lily_matrix16<T>& m) {
    return m.tr ? m.r : lily_movmatrix(m.r);
}

template <typename T>
METAL_FUNC void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* p, ulong ld = 8, ulong2 o = ulong2(0, 0),
                               bool tr = false) {
    const uint l = lily_lane();
    p += o.y * ld + o.x;
    if constexpr (lily_same<T, float>::value) {
        const uint r = l / 4, c = l % 4 * 2;
        if (tr) {
            d.e0 = p[c * ld + r];
            d.e1 = p[(c + 1) * ld + r];
        } else {
            const float2 v = *(const float2*)(p + r * ld + c);
            d.e0 = v.x;
            d.e1 = v.y;
        }  // ld even
    } else {
        d.r = *(const uint*)(p + (l / 4) * ld + l % 4 * 2);  // ld even
        d.tr = tr;
    }
}
template <typename T>
METAL_FUNC void simdgroup_store(const simdgroup_matrix<T, 8, 8>& s, T* p, ulong ld = 8, ulong2 o = ulong2(0, 0),
                                bool tr = false) {
    const uint l = lily_lane();
    p += o.y * ld + o.x;
    if constexpr (lily_same<T, float>::value) {
        const uint r = l / 4, c = l % 4 * 2;
        if (tr) {
            p[c * ld + r] = s.e0;
            p[(c + 1) * ld + r] = s.e1;
        } else
            *(float2*)(p + r * ld + c) = float2(s.e0, s.e1);
    } else {
        *(uint*)(p + (l / 4) * ld + l % 4 * 2) = s.tr == tr ? s.r : lily_movmatrix(s.r);
    }
}
template <typename T>
METAL_FUNC void lily_mma_16816(float& c0, float& c1, float& c2, float& c3, uint a0, uint a1, uint a2, uint a3,
                               uint b0, uint b1) {
    if constexpr (lily_same<T, bfloat>::value)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <typename T>
METAL_FUNC void lily_mma_1688(float& c0, float& c1, float& c2, float& c3, uint a0, uint a1, uint b0) {
    if constexpr (lily_same<T, bfloat>::value)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
            : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
            : "r"(a0), "r"(a1), "r"(b0));
    else
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
            : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
            : "r"(a0), "r"(a1), "r"(b0));
}
// One 8x8x8 product on its own fills half of the smaller tensor-core shape: correct, slow.
template <typename T>
METAL_FUNC void simdgroup_multiply_accumulate(simdgroup_float8x8& d, const simdgroup_matrix<T, 8, 8>& a,
                                              const simdgroup_matrix<T, 8, 8>& b, const simdgroup_float8x8& c) {
    float c0 = c.e0, c1 = c.e1;
    if constexpr (lily_same<T, float>::value) {  // no float tensor cores without tf32 rounding: shuffles
        const uint l = lily_lane(), row = l / 4 * 4, col = l % 4;
#pragma unroll
        for (uint k = 0; k < 8; k++) {
            const float av = __shfl_sync(LILY_ALL, k % 2 ? a.e1 : a.e0, row + k / 2);
            c0 += av * __shfl_sync(LILY_ALL, b.e0, k * 4 + col);
            c1 += av * __shfl_sync(LILY_ALL, b.e1, k * 4 + col);
        }
    } else {
        float c2 = 0.0f, c3 = 0.0f;
        lily_mma_1688<T>(c0, c1, c2, c3, lily_opA(a), 0u, lily_opB(b));
    }
    d.e0 = c0;
    d.e1 = c1;
}
template <typename T>
METAL_FUNC void simdgroup_multiply(simdgroup_float8x8& d, const simdgroup_matrix<T, 8, 8>& a,
                                   const simdgroup_matrix<T, 8, 8>& b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8>(0.0f));
}

}  // namespace metal
