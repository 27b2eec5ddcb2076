// mpp::tensor_ops::matmul2d: every thread computes the results it holds straight from the operands, so no
// data moves between lanes. Needs C++20 for its template argument of class type.
#pragma once
#include "metal_tensor"

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed;
    mode kind;
    constexpr matmul2d_descriptor(int m_, int n_, int k_ = metal::dynamic_extent, bool tl = false, bool tr = false,
                                  bool relaxed_ = false, mode kind_ = mode::multiply)
        : m(m_), n(n_), k(k_), transpose_left(tl), transpose_right(tr), relaxed(relaxed_), kind(kind_) {}
};

template <matmul2d_descriptor D, typename Scope> struct matmul2d {
    template <typename A, typename B, typename T>
    METAL_FUNC metal::cooperative_tensor<T, D.m, D.n, Scope::n> get_destination_cooperative_tensor() const {
        return {};
    }
    template <typename A, typename B, typename T>
    METAL_FUNC void run(A a, B b, metal::cooperative_tensor<T, D.m, D.n, Scope::n>& c, LILY_PLACE) const {
        metal::lily_uniform(a.p, (ulong)a.str[1], ::lily_rt::OP_TENSOR, place);
        metal::lily_uniform(b.p, (ulong)b.str[1], ::lily_rt::OP_TENSOR, place);
        const bool adds = D.kind == matmul2d_descriptor::mode::multiply_accumulate;
        const int k = D.k == metal::dynamic_extent ? a.ext[D.transpose_left ? 1 : 0] : D.k;
        for (int i = 0; i < c.get_capacity(); i++) {
            if (!c.is_valid_element(i)) continue;
            const metal::array<int, 2> at = c.get_multidimensional_index(i);
            float s = adds ? (float)c[i] : 0.0f;
            for (int x = 0; x < k; x++) {
                s += (D.transpose_left ? a.get(at[1], x) : a.get(x, at[1])) *
                     (D.transpose_right ? b.get(x, at[0]) : b.get(at[0], x));
            }
            c[i] = (T)s;
        }
    }
};

}  // namespace tensor_ops
}  // namespace mpp
