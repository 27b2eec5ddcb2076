// Matrix products of floats with float accuracy, by one simdgroup: blocks 16 x 8 times 8 x 8. Blocks
// come from threadgroup memory with an even pitch. All 32 lanes call every function.
#pragma once
#ifdef __METAL_CUDA__
// mma.m16n8k8 with 11-bit inputs: a float is a high and a low part, and a product is high high + high low +
// low high. With g = lane / 4 and t = lane % 4, a lane holds columns 2t and 2t + 1 of rows g and g + 8 of
// the left block and of the sums, and rows 2t and 2t + 1 of column g of the right one: the order of the summed
// index is free, as long as both factors have the same.
struct FloatLeft { uint high[4]; uint low[4]; };
struct FloatRight { uint high[2]; uint low[2]; };
struct FloatSums { float e[4]; };

METAL_FUNC uint tile_lane() {
    uint lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

METAL_FUNC void split(thread uint& high, thread uint& low, float x) {
    high = as_type<uint>(x) & 0xffffe000u;
    low = as_type<uint>(x - as_type<float>(high));
}

METAL_FUNC void load_rows(thread FloatLeft& left, const threadgroup float* from, uint pitch) {
    const threadgroup float* at = from + tile_lane() / 4 * pitch + tile_lane() % 4 * 2;
    const float2 upper = *(const threadgroup float2*)at;
    const float2 lower = *(const threadgroup float2*)(at + 8 * pitch);
    split(left.high[0], left.low[0], upper.x);
    split(left.high[1], left.low[1], lower.x);
    split(left.high[2], left.low[2], upper.y);
    split(left.high[3], left.low[3], lower.y);
}

METAL_FUNC void load_columns(thread FloatLeft& left, const threadgroup float* from, uint pitch) {
    const threadgroup float* at = from + tile_lane() % 4 * 2 * pitch + tile_lane() / 4;
    split(left.high[0], left.low[0], at[0]);
    split(left.high[1], left.low[1], at[8]);
    split(left.high[2], left.low[2], at[pitch]);
    split(left.high[3], left.low[3], at[pitch + 8]);
}

METAL_FUNC void load_rows(thread FloatRight& right, const threadgroup float* from, uint pitch) {
    const threadgroup float* at = from + tile_lane() % 4 * 2 * pitch + tile_lane() / 4;
    split(right.high[0], right.low[0], at[0]);
    split(right.high[1], right.low[1], at[pitch]);
}

METAL_FUNC void load_columns(thread FloatRight& right, const threadgroup float* from, uint pitch) {
    const float2 both = *(const threadgroup float2*)(from + tile_lane() / 4 * pitch + tile_lane() % 4 * 2);
    split(right.high[0], right.low[0], both.x);
    split(right.high[1], right.low[1], both.y);
}

METAL_FUNC void clear(thread FloatSums& sums) { sums.e[0] = sums.e[1] = sums.e[2] = sums.e[3] = 0.0f; }

METAL_FUNC void load_rows(thread FloatSums& sums, const threadgroup float* from, uint pitch) {
    const threadgroup float* at = from + tile_lane() / 4 * pitch + tile_lane() % 4 * 2;
    const float2 upper = *(const threadgroup float2*)at;
    const float2 lower = *(const threadgroup float2*)(at + 8 * pitch);
    sums.e[0] = upper.x;
    sums.e[1] = upper.y;
    sums.e[2] = lower.x;
    sums.e[3] = lower.y;
}

METAL_FUNC void store_rows(thread const FloatSums& sums, threadgroup float* to, uint pitch) {
    threadgroup float* at = to + tile_lane() / 4 * pitch + tile_lane() % 4 * 2;
    *(threadgroup float2*)at = float2(sums.e[0], sums.e[1]);
    *(threadgroup float2*)(at + 8 * pitch) = float2(sums.e[2], sums.e[3]);
}

METAL_FUNC void scale(thread FloatSums& sums, float factor) {
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        sums.e[i] *= factor;
    }
}

METAL_FUNC void multiply_parts(thread FloatSums& sums, thread const uint (&left)[4], thread const uint (&right)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums.e[0]), "+f"(sums.e[1]), "+f"(sums.e[2]), "+f"(sums.e[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

METAL_FUNC void multiply(thread FloatSums& sums, thread const FloatLeft& left, thread const FloatRight& right) {
    multiply_parts(sums, left.low, right.high);
    multiply_parts(sums, left.high, right.low);
    multiply_parts(sums, left.high, right.high);
}

METAL_FUNC void multiply_short(thread FloatSums& sums, thread const FloatLeft& left, thread const FloatRight& right) {
    multiply_parts(sums, left.high, right.high);
}
#else
#include <metal_simdgroup_matrix>

struct FloatLeft { simdgroup_float8x8 part[2]; };   // 16 x 8
struct FloatRight { simdgroup_float8x8 part; };     // 8 x 8
struct FloatSums { simdgroup_float8x8 part[2]; };   // 16 x 8

// left[i][s] = from[i * pitch + s].
METAL_FUNC void load_rows(thread FloatLeft& left, const threadgroup float* from, uint pitch) {
    simdgroup_load(left.part[0], from, pitch);
    simdgroup_load(left.part[1], from + 8 * pitch, pitch);
}

// left[i][s] = from[s * pitch + i].
METAL_FUNC void load_columns(thread FloatLeft& left, const threadgroup float* from, uint pitch) {
    simdgroup_load(left.part[0], from, pitch, ulong2(0, 0), true);
    simdgroup_load(left.part[1], from + 8, pitch, ulong2(0, 0), true);
}

// right[s][j] = from[s * pitch + j].
METAL_FUNC void load_rows(thread FloatRight& right, const threadgroup float* from, uint pitch) {
    simdgroup_load(right.part, from, pitch);
}

// right[s][j] = from[j * pitch + s].
METAL_FUNC void load_columns(thread FloatRight& right, const threadgroup float* from, uint pitch) {
    simdgroup_load(right.part, from, pitch, ulong2(0, 0), true);
}

METAL_FUNC void clear(thread FloatSums& sums) {
    sums.part[0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    sums.part[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

METAL_FUNC void load_rows(thread FloatSums& sums, const threadgroup float* from, uint pitch) {
    simdgroup_load(sums.part[0], from, pitch);
    simdgroup_load(sums.part[1], from + 8 * pitch, pitch);
}

METAL_FUNC void store_rows(thread const FloatSums& sums, threadgroup float* to, uint pitch) {
    simdgroup_store(sums.part[0], to, pitch);
    simdgroup_store(sums.part[1], to + 8 * pitch, pitch);
}

// sums *= factor, as a product with a diagonal matrix: lanes do not know which elements they hold.
METAL_FUNC void scale(thread FloatSums& sums, float factor) {
    const simdgroup_float8x8 diagonal = simdgroup_float8x8(factor);
    simdgroup_multiply(sums.part[0], diagonal, sums.part[0]);
    simdgroup_multiply(sums.part[1], diagonal, sums.part[1]);
}

// sums += left right.
METAL_FUNC void multiply(thread FloatSums& sums, thread const FloatLeft& left, thread const FloatRight& right) {
    simdgroup_multiply_accumulate(sums.part[0], left.part[0], right.part, sums.part[0]);
    simdgroup_multiply_accumulate(sums.part[1], left.part[1], right.part, sums.part[1]);
}

// The same for factors that bfloat holds exactly.
METAL_FUNC void multiply_short(thread FloatSums& sums, thread const FloatLeft& left, thread const FloatRight& right) {
    multiply(sums, left, right);
}
#endif
