// simdgroup_matrix: 8 x 8, two elements in each lane, where Apple's GPUs have them. Kernels must not rely
// on the layout.
#pragma once
#include "lily_atomic.h"
#include "lily_simd.h"

namespace metal {

template <typename T, int C, int R> struct simdgroup_matrix {
    static_assert(C == 8 && R == 8, "only 8x8");
    T e[2];

    simdgroup_matrix() = default;
    METAL_FUNC explicit simdgroup_matrix(T diagonal) {
        e[0] = row() == col() ? diagonal : T(0);
        e[1] = row() == col() + 1 ? diagonal : T(0);
    }
    METAL_FUNC static uint row() { return ((lily_lane() / 4) & 4) + (lily_lane() / 2) % 4; }
    METAL_FUNC static uint col() { return ((lily_lane() / 4) & 2) * 2 + (lily_lane() % 2) * 2; }
    static constexpr uint lane_of(uint r, uint c) { return (r / 4) * 16 + (c / 4) * 8 + (r % 4) * 2 + (c % 4) / 2; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int C, int R = C> METAL_FUNC simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
    simdgroup_matrix<T, C, R> m;
    m.e[0] = m.e[1] = v;
    return m;
}

// Operands of a load or a store must be the same in all lanes.
struct lily_operand {
    const void* p;
    ulong pitch;
};
template <typename P> METAL_FUNC void lily_uniform(P p, ulong pitch, ::lily_rt::Op op, ::lily_rt::Place place) {
    const lily_exchange<lily_operand> x(lily_operand{(const void*)p, pitch}, op, place);
    if (x.at(0).p != (const void*)p || x.at(0).pitch != pitch) {
        ::lily_rt::fail(place, "operands of a matrix load or store differ between lanes");
    }
}

#define LILY_MATRIX_MEMORY(space) \
    template <typename T> \
    METAL_FUNC void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const space T* p, ulong pitch = 8, \
                                   ulong2 origin = ulong2{0, 0}, bool transposed = false, LILY_PLACE) { \
        p += origin.y * pitch + origin.x; \
        lily_uniform(p, pitch * 2 + transposed, ::lily_rt::OP_MATRIX_LOAD, place); \
        const uint r = d.row(), c = d.col(); \
        for (uint i = 0; i < 2; i++) d.e[i] = transposed ? p[(c + i) * pitch + r] : p[r * pitch + c + i]; \
    } \
    template <typename T> \
    METAL_FUNC void simdgroup_store(simdgroup_matrix<T, 8, 8> s, space T* p, ulong pitch = 8, \
                                    ulong2 origin = ulong2{0, 0}, bool transposed = false, LILY_PLACE) { \
        p += origin.y * pitch + origin.x; \
        lily_uniform(p, pitch * 2 + transposed, ::lily_rt::OP_MATRIX_STORE, place); \
        const uint r = s.row(), c = s.col(); \
        for (uint i = 0; i < 2; i++) p[transposed ? (c + i) * pitch + r : r * pitch + c + i] = s.e[i]; \
    }
LILY_SPACES(LILY_MATRIX_MEMORY)

template <typename A, typename B> struct lily_factors {
    A a[2];
    B b[2];
    float c[2];
};

template <typename D, typename A, typename B, typename C>
METAL_FUNC void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                              simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, LILY_PLACE) {
    typedef simdgroup_matrix<D, 8, 8> M;
    typedef lily_factors<A, B> F;
    const F own{{a.e[0], a.e[1]}, {b.e[0], b.e[1]}, {(float)c.e[0], (float)c.e[1]}};
    const lily_exchange<F> x(own, ::lily_rt::OP_MULTIPLY, place);
    float* r = (float*)x.simd->result;
    if (x.simd->result_generation != x.generation + 1) {  // the first lane to go on does the whole product
        float fa[8][8], fb[8][8];
        for (uint i = 0; i < 8; i++) {
            for (uint j = 0; j < 8; j += 2) {
                const F v = x.at(M::lane_of(i, j));
                for (uint k = 0; k < 2; k++) {
                    fa[i][j + k] = (float)v.a[k];
                    fb[i][j + k] = (float)v.b[k];
                    r[i * 8 + j + k] = v.c[k];
                }
            }
        }
        for (uint i = 0; i < 8; i++) {
            for (uint k = 0; k < 8; k++) {
                for (uint j = 0; j < 8; j++) r[i * 8 + j] += fa[i][k] * fb[k][j];
            }
        }
        x.simd->result_generation = x.generation + 1;
    }
    d.e[0] = (D)r[M::row() * 8 + M::col()];
    d.e[1] = (D)r[M::row() * 8 + M::col() + 1];
}

template <typename D, typename A, typename B>
METAL_FUNC void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, LILY_PLACE) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8>(D(0)), place);
}

}  // namespace metal
