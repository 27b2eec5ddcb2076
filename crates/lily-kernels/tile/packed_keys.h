// Decode attention of up to eight query heads over keys of the KV head that they share, as products of matrices: for
// CUDA texts. Constants: HEAD_DIM (a multiple of 16 up to 256), THREADS, SCORE_SCALE (log2(e) / sqrt(HEAD_DIM)).
//
// A warp takes 16 keys at a time: scores' = K Q' is a tile of 16 keys and 8 heads, and so the eight heads fill the
// smaller side of an mma; outputs' = V' weights' has 16 elements by 8 heads. Weights go into the product as a bfloat
// and a second one with what the first lost. Keys and values come through a ring of three tiles in shared memory that
// is the warp's own, two of them on their way while the third is used.
#pragma once
#include "attention.h"
#include "fragments.h"

constant constexpr uint WARPS = THREADS / 32;
constant constexpr uint WORDS = HEAD_DIM / 8;       // 16-byte words of a row
constant constexpr uint STEPS = HEAD_DIM / 16;      // products along a row
constant constexpr uint KEYS = 16;                  // of a tile
constant constexpr uint PITCH = WORDS + 1;          // words between rows of a tile: eight rows share no bank
constant constexpr uint TILE_BYTES = KEYS * PITCH * 16;
constant constexpr uint RING_BYTES = 3 * TILE_BYTES;
constant constexpr uint OUT_PITCH = HEAD_DIM + 4;   // floats between heads in shared memory
constant constexpr uint CHAINS = STEPS < 4 ? STEPS : 4;

static_assert(8 * OUT_PITCH * 4 <= RING_BYTES, "a warp's outputs fit into its ring");

// Queries as right operands: heads lane / 4, elements 16 s + 2 (lane % 4) and + 8.
struct Queries {
    uint low[STEPS];
    uint high[STEPS];
};

// `words`: bfloat pairs [8, HEAD_DIM / 2] in device or shared memory; heads from `heads` on are zero and not read.
METAL_FUNC void load_queries(Queries& queries, const uint* words, uint heads, uint lane) {
    const bool valid = lane / 4 < heads;
    words += lane / 4 * (HEAD_DIM / 2) + lane % 4;
#pragma unroll
    for (uint s = 0; s < STEPS; s++) {
        queries.low[s] = valid ? words[8 * s] : 0;
        queries.high[s] = valid ? words[8 * s + 4] : 0;
    }
}

// Where a warp's tiles come from and go to.
struct Source {
    const uint4* keys;
    const uint4* values;
    uint end;      // of the keys
    uint stored;   // rows from here on are not in the cache yet
    uint ring;     // shared address
};

// Starts the copy of 16 rows from row `at` to a shared address; zeros from row `stored` on. Nothing, if the warp has
// no more keys.
METAL_FUNC void copy_tile(const Source& source, const uint4* from, uint at, uint to, uint lane) {
    if (at < source.end) {
#pragma unroll
        for (uint i = 0; i < KEYS * WORDS; i += 32) {
            const uint key = (i + lane) / WORDS;
            const uint word = (i + lane) % WORDS;
            const bool valid = at + key < source.stored;
            const uint row = valid ? at + key : 0;
            copy_async_16(to + (key * PITCH + word) * 16, from + ulong(row) * WORDS + word, valid);
        }
    }
    copy_async_commit();
}

// Starts the copies of the warp's first tiles, from key `at`.
METAL_FUNC void start_tiles(const Source& source, uint at, uint lane) {
    copy_tile(source, source.keys, at, source.ring, lane);
    copy_tile(source, source.values, at, source.ring + TILE_BYTES, lane);
}

// What a warp knows about its keys: lane l is in charge of heads 2 (l % 4) and + 1, and of elements 16 s + l / 4 and
// + 8 of them.
struct Part {
    float out[STEPS][4];  // sum of 2^(score - base) value: element l / 4 of both heads, then element + 8
    float base[2];        // largest score
    float sum[2];         // of 2^(score - base) over the keys that this lane has met
};

METAL_FUNC float most_of_column(float x) {
    x = max(x, simd_shuffle_xor(x, 4));
    x = max(x, simd_shuffle_xor(x, 8));
    return max(x, simd_shuffle_xor(x, 16));
}
METAL_FUNC float sum_of_column(float x) {
    x += simd_shuffle_xor(x, 4);
    x += simd_shuffle_xor(x, 8);
    return x + simd_shuffle_xor(x, 16);
}

// Puts row `row` of a tile in shared memory that is not in the cache yet.
METAL_FUNC void put_row(uint4* tile, uint row, const uint4* words, uint lane) {
    if (lane < WORDS) {
        tile[row * PITCH + lane] = words[lane];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// The warp's share of keys `begin` to source.end; start_tiles has been called for its first one. `ring` is the ring, `fresh`
// the words of the key and of the value of row source.stored, if there is one.
METAL_FUNC void attend(
    Part& part, const Queries& queries, const Source& source, uint begin, uint4* ring, const uint4* fresh, uint warp,
    uint lane) {
#pragma unroll
    for (uint s = 0; s < STEPS; s++) {
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            part.out[s][i] = 0.0f;
        }
    }
    part.base[0] = part.base[1] = LOWEST;
    part.sum[0] = part.sum[1] = 0.0f;
    // A lane's row in ldmatrix: eight lanes for each of four tiles of 8 x 8.
    const uint key_word = (lane % 16 * PITCH + lane / 16) * 16;
    const uint value_word = ((lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2) * 16;
    uint here = 0;  // slot of the tile in use, in bytes
    for (uint at = begin + warp * KEYS; at < source.end; at += WARPS * KEYS) {
        const uint next = at + WARPS * KEYS;
        const bool fresh_here = source.stored - at < KEYS && source.stored < source.end;
        copy_async_wait<1>();
        simdgroup_barrier(mem_flags::mem_threadgroup);
        uint free = here == 0 ? 2 * TILE_BYTES : here - TILE_BYTES;
        copy_tile(source, source.keys, next, source.ring + free, lane);
        if (fresh_here) {
            put_row(ring + here / 16, source.stored - at, fresh, lane);
        }
        float scores[CHAINS][4] = {};
#pragma unroll
        for (uint s = 0; s < STEPS; s++) {
            uint a[4];
            load_blocks(a, source.ring + here + key_word + s * 32);
            multiply_block(scores[s % CHAINS], a, queries.low[s], queries.high[s]);
        }
        float w[4];
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            float score = scores[0][i];
#pragma unroll
            for (uint c = 1; c < CHAINS; c++) {
                score += scores[c][i];
            }
            w[i] = at + lane / 4 + i / 2 * 8 < source.end ? score * SCORE_SCALE : LOWEST;
        }
        float base[2];
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            base[h] = max(part.base[h], most_of_column(max(w[h], w[h + 2])));
        }
        if (simd_any(base[0] > part.base[0] || base[1] > part.base[1])) {
#pragma unroll
            for (uint h = 0; h < 2; h++) {
                const float shrink = exp2(part.base[h] - base[h]);
                part.base[h] = base[h];
                part.sum[h] *= shrink;
#pragma unroll
                for (uint s = 0; s < STEPS; s++) {
                    part.out[s][h] *= shrink;
                    part.out[s][h + 2] *= shrink;
                }
            }
        }
        uint first[2];
        uint rest[2];
#pragma unroll
        for (uint r = 0; r < 2; r++) {
            const float w0 = exp2(w[2 * r] - base[0]);
            const float w1 = exp2(w[2 * r + 1] - base[1]);
            part.sum[0] += w0;
            part.sum[1] += w1;
            const uint pair = bfloat_pair(w0, w1);
            first[r] = lily_movmatrix(pair);
            rest[r] = lily_movmatrix(bfloat_pair(w0 - low_bfloat(pair), w1 - high_bfloat(pair)));
        }

        here = here == 2 * TILE_BYTES ? 0 : here + TILE_BYTES;
        copy_async_wait<1>();
        simdgroup_barrier(mem_flags::mem_threadgroup);
        free = here == 0 ? 2 * TILE_BYTES : here - TILE_BYTES;
        copy_tile(source, source.values, next, source.ring + free, lane);
        if (fresh_here) {
            put_row(ring + here / 16, source.stored - at, fresh + WORDS, lane);
        }
#pragma unroll
        for (uint s = 0; s < STEPS; s++) {
            uint a[4];
            load_blocks_transposed(a, source.ring + here + value_word + s * 32);
            multiply_block(part.out[s], a, first[0], first[1]);
            multiply_block(part.out[s], a, rest[0], rest[1]);
        }
        here = here == 2 * TILE_BYTES ? 0 : here + TILE_BYTES;
    }
    copy_async_wait<0>();
    simdgroup_barrier(mem_flags::mem_threadgroup);
    part.sum[0] = sum_of_column(part.sum[0]);
    part.sum[1] = sum_of_column(part.sum[1]);
}

// Joins the warps' parts and stores those of `heads` heads: head h at index at + h * stride. `ring` are the rings of all
// warps, `stats` [WARPS, 8] is shared memory. All threads call it.
METAL_FUNC void write_parts(
    const Part& part, float2* stats, uint4* ring, float* part_o, float2* part_ml, uint at, uint stride, uint heads,
    uint warp, uint lane) {
    float* own = (float*)ring + warp * (RING_BYTES / 4);
#pragma unroll
    for (uint h = 0; h < 2; h++) {
        const uint head = lane % 4 * 2 + h;
        if (lane < 4) {
            stats[warp * 8 + head] = float2(part.base[h], part.sum[h]);
        }
#pragma unroll
        for (uint s = 0; s < STEPS; s++) {
            own[head * OUT_PITCH + 16 * s + lane / 4] = part.out[s][h];
            own[head * OUT_PITCH + 16 * s + lane / 4 + 8] = part.out[s][h + 2];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = threadIdx.x; i < heads * (HEAD_DIM / 4); i += THREADS) {
        const uint head = i / (HEAD_DIM / 4);
        const uint four = i % (HEAD_DIM / 4);
        float top = LOWEST;
#pragma unroll
        for (uint w = 0; w < WARPS; w++) {
            top = max(top, stats[w * 8 + head].x);
        }
        float4 out = float4(0.0f);
        float sum = 0.0f;
#pragma unroll
        for (uint w = 0; w < WARPS; w++) {
            const float2 own_stats = stats[w * 8 + head];
            const float factor = exp2(own_stats.x - top);
            sum = fma(factor, own_stats.y, sum);
            const float4* from = (const float4*)((const float*)ring + w * (RING_BYTES / 4) + head * OUT_PITCH);
            out = fma(float4(factor), from[four], out);
        }
        const uint to = at + head * stride;
        ((float4*)part_o)[ulong(to) * (HEAD_DIM / 4) + four] = out;
        if (four == 0) {
            part_ml[to] = float2(top * M_LN2_F, sum);
        }
    }
}
