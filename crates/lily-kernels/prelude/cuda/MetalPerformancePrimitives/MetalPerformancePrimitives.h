// mpp::tensor_ops::matmul2d on mma.m16n8k16: bfloat or half in, float out.
#pragma once
#include "metal_tensor"

namespace mpp {
namespace tensor_ops {
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool tl, tr, relaxed;
    mode md;
    METAL_FUNC constexpr matmul2d_descriptor(int m_, int n_, int k_ = metal::dynamic_extent, bool tl_ = false,
                                             bool tr_ = false, bool rel = false, mode md_ = mode::multiply)
        : m(m_), n(n_), k(k_), tl(tl_), tr(tr_), relaxed(rel), md(md_) {}
};
template <matmul2d_descriptor D, typename Scope> struct matmul2d {
    template <typename A, typename B, typename T>
    METAL_FUNC metal::cooperative_tensor<T, D.m, D.n, Scope::n> get_destination_cooperative_tensor() const {
        return {};
    }
    // Two neighbours along K (rows past the extent read as zero; K must be a multiple of 16).
    template <typename TE> static METAL_FUNC uint pair(const TE& t, int row, int k) {
        return row < t.ext[1] ? *(const uint*)(t.p + row * t.str[1] + k) : 0u;
    }
    // The same of a K x N operand, where they lie in two rows.
    template <typename TE> static METAL_FUNC uint pair_of_columns(const TE& t, int column, int k) {
        const ushort* at = (const ushort*)(t.p + k * t.str[1] + column);
        return column < t.ext[0] ? at[0] | (uint)at[t.str[1]] << 16 : 0u;
    }
    template <typename TE> static METAL_FUNC uint pair_of_right(const TE& t, int n, int k) {
        return D.tr ? pair(t, n, k) : pair_of_columns(t, n, k);
    }
    template <typename A, typename B>
    METAL_FUNC void run(A a, B b, metal::cooperative_tensor<float, D.m, D.n, Scope::n>& c) const {
        static_assert(!D.tl, "the CUDA mapping takes row-major A");
        typedef metal::cooperative_tensor<float, D.m, D.n, Scope::n> C;
        const int l = (int)metal::lily_lane(), r = l / 4, kc = l % 4 * 2;
        const int k = D.k == metal::dynamic_extent ? a.ext[0] : D.k;
        if (D.md == matmul2d_descriptor::mode::multiply)
#pragma unroll
            for (int i = 0; i < C::CAP; i++) c.e[i] = 0.0f;
#pragma unroll
        for (int x = 0; x < k; x += 16) {
            uint av[C::TM][4];
#pragma unroll
            for (int i = 0; i < C::TM; i++)
#pragma unroll
                for (int q = 0; q < 4; q++)
                    av[i][q] = pair(a, C::row0() + i * 16 + q % 2 * 8 + r, x + q / 2 * 8 + kc);
#pragma unroll
            for (int j = 0; j < C::TN; j++) {
                const int n = C::col0() + j * 8 + r;
                const uint b0 = pair_of_right(b, n, x + kc), b1 = pair_of_right(b, n, x + 8 + kc);
#pragma unroll
                for (int i = 0; i < C::TM; i++) {
                    float* f = c.e + (i * C::TN + j) * 4;
                    metal::lily_mma_16816<typename A::elem>(f[0], f[1], f[2], f[3], av[i][0], av[i][1], av[i][2],
                                                            av[i][3], b0, b1);
                }
            }
        }
    }
};
}  // namespace tensor_ops
}  // namespace mpp
