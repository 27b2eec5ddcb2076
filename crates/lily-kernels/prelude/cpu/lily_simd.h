// Barriers and simdgroup functions: every one is a rendezvous that checks who takes part and where.
#pragma once
#include "lily_math.h"

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
METAL_FUNC void threadgroup_barrier(mem_flags flags, LILY_PLACE) { ::lily_rt::barrier((uint)flags, place); }
METAL_FUNC void simdgroup_barrier(mem_flags flags, LILY_PLACE) { ::lily_rt::simd_barrier((uint)flags, place); }

METAL_FUNC uint lily_lane() { return ::lily_rt::current->lane; }

// Lays down a value, waits for all 32 lanes, reads the others'. Two sets of places, used in turn, spare
// a second wait: a lane that lays down its next value cannot overtake one that still reads.
template <typename T> struct lily_exchange {
    static_assert(sizeof(T) <= 32, "simd operations move at most 32 bytes");
    ::lily_rt::Simd* simd;
    uint generation;

    METAL_FUNC lily_exchange(T v, ::lily_rt::Op op, ::lily_rt::Place place) {
        ::lily_rt::Lane* lane = ::lily_rt::current;
        simd = lane->simd;
        generation = simd->generation;
        __builtin_memcpy(simd->exchange[generation & 1][lane->lane], &v, sizeof(T));
        ::lily_rt::meet(op, place);
    }

    METAL_FUNC T at(uint lane) const {
        T v;
        __builtin_memcpy(&v, simd->exchange[generation & 1][lane], sizeof(T));
        return v;
    }

    // In butterfly order, as GPUs do; computed by the first lane that asks.
    template <typename F> METAL_FUNC T reduce(F f) const {
        T r;
        if (simd->result_generation != generation + 1) {
            T v[32];
            for (uint i = 0; i < 32; i++) v[i] = at(i);
            for (uint d = 16; d > 0; d /= 2) {
                for (uint i = 0; i < d; i++) v[i] = f(v[i], v[i + d]);
            }
            __builtin_memcpy(simd->result, &v[0], sizeof(T));
            simd->result_generation = generation + 1;
        }
        __builtin_memcpy(&r, simd->result, sizeof(T));
        return r;
    }
};

// Structs and no lambdas: they are inlined at -O1.
#define LILY_REDUCTION(name, op, expression) \
    struct lily_##name { \
        template <typename T> METAL_FUNC T operator()(T a, T b) const { return expression; } \
    }; \
    template <typename T> METAL_FUNC T name(T v, LILY_PLACE) { \
        return lily_exchange<T>(v, ::lily_rt::op, place).reduce(lily_##name()); \
    }
LILY_REDUCTION(simd_sum, OP_SUM, a + b)
LILY_REDUCTION(simd_product, OP_PRODUCT, a * b)
LILY_REDUCTION(simd_min, OP_MIN, min(a, b))
LILY_REDUCTION(simd_max, OP_MAX, max(a, b))
LILY_REDUCTION(simd_and, OP_AND, a & b)
LILY_REDUCTION(simd_or, OP_OR, a | b)
LILY_REDUCTION(simd_xor, OP_XOR, a ^ b)

template <typename T> METAL_FUNC T simd_shuffle(T v, ushort i, LILY_PLACE) {
    const lily_exchange<T> x(v, ::lily_rt::OP_SHUFFLE, place);
    if (i >= 32) ::lily_rt::fail(place, "simd_shuffle from lane %u", (uint)i);
    return x.at(i);
}
template <typename T> METAL_FUNC T simd_shuffle_xor(T v, ushort mask, LILY_PLACE) {
    const lily_exchange<T> x(v, ::lily_rt::OP_SHUFFLE_XOR, place);
    if (mask >= 32) ::lily_rt::fail(place, "simd_shuffle_xor with mask %u", (uint)mask);
    return x.at(lily_lane() ^ mask);
}
template <typename T> METAL_FUNC T simd_shuffle_up(T v, ushort delta, LILY_PLACE) {
    const lily_exchange<T> x(v, ::lily_rt::OP_SHUFFLE_UP, place);
    return lily_lane() >= delta ? x.at(lily_lane() - delta) : v;
}
template <typename T> METAL_FUNC T simd_shuffle_down(T v, ushort delta, LILY_PLACE) {
    const lily_exchange<T> x(v, ::lily_rt::OP_SHUFFLE_DOWN, place);
    return lily_lane() + delta < 32 ? x.at(lily_lane() + delta) : v;
}
template <typename T> METAL_FUNC T simd_broadcast(T v, ushort lane, LILY_PLACE) {
    const lily_exchange<T> x(v, ::lily_rt::OP_BROADCAST, place);
    if (lane >= 32) ::lily_rt::fail(place, "simd_broadcast from lane %u", (uint)lane);
    return x.at(lane);
}
template <typename T> METAL_FUNC T simd_broadcast_first(T v, LILY_PLACE) {
    return lily_exchange<T>(v, ::lily_rt::OP_BROADCAST, place).at(0);
}
template <typename T> METAL_FUNC T simd_prefix_inclusive_sum(T v, LILY_PLACE) {
    const lily_exchange<T> x(v, ::lily_rt::OP_PREFIX_INCLUSIVE, place);
    T sum = x.at(0);
    for (uint i = 1; i <= lily_lane(); i++) sum = sum + x.at(i);
    return sum;
}
template <typename T> METAL_FUNC T simd_prefix_exclusive_sum(T v, LILY_PLACE) {
    const lily_exchange<T> x(v, ::lily_rt::OP_PREFIX_EXCLUSIVE, place);
    T sum = T(0);
    for (uint i = 0; i < lily_lane(); i++) sum = sum + x.at(i);
    return sum;
}
METAL_FUNC bool simd_all(bool b, LILY_PLACE) {
    return lily_exchange<uint>(b, ::lily_rt::OP_VOTE, place).reduce(lily_simd_and());
}
METAL_FUNC bool simd_any(bool b, LILY_PLACE) {
    return lily_exchange<uint>(b, ::lily_rt::OP_VOTE, place).reduce(lily_simd_or());
}

}  // namespace metal
