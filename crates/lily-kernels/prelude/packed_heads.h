// Decode attention of HEADS query heads over keys of the KV head that they share: every key and value is
// read once. Constants: HEAD_DIM (a multiple of 8 up to 256), HEADS (a power of two up to 8), THREADS,
// SCORE_SCALE (log2(e) / sqrt(HEAD_DIM)).
//
// Lane l holds elements 8 l ... 8 l + 7 of queries, outputs, and of a key and its value, one 16-byte word
// each. A simdgroup takes KEYS keys at a time; their HEADS * KEYS scores are summed over the lanes such that each
// ends in its own lanes: 31 shuffles for 32 scores, and one exponential for a lane instead of 32.
#pragma once
#include "attention.h"

constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint WORDS = HEAD_DIM / 8;
constant constexpr uint KEYS = 4;
constant constexpr uint SCORES = HEADS * KEYS;
constant constexpr uint SAME = 32 / SCORES;                       // lanes with the same score
constant constexpr uint MERGE_HEADS = HEADS * SIMDGROUPS > 16 ? 16 / SIMDGROUPS : HEADS;  // at once, in up to 16 KiB
constant constexpr uint MERGE_FLOATS = SIMDGROUPS * MERGE_HEADS * HEAD_DIM;

// Lane l is in charge of the score of head l / SAME / KEYS and key l / SAME % KEYS of the step.
struct Softmax {
    float out[HEADS][8];  // sum of 2^(score - base) value
    float base;           // of the lane's head, the same in all of its lanes
    float top;            // largest score that this lane has met
    float sum;            // of 2^(score - base) that this lane has met
};

METAL_FUNC Softmax softmax_start() {
    Softmax softmax;
#pragma unroll
    for (uint h = 0; h < HEADS; h++) {
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            softmax.out[h][i] = 0.0f;
        }
    }
    softmax.base = LOWEST;
    softmax.top = LOWEST;
    softmax.sum = 0.0f;
    return softmax;
}

// One halving of the sums: lanes keep COUNT of them and give away as many.
template <uint COUNT>
METAL_FUNC void halve(thread float (&s)[SCORES], uint lane) {
    const bool upper = (lane & (COUNT * SAME)) != 0;
#pragma unroll
    for (uint i = 0; i + COUNT < SCORES && i < COUNT; i++) {
        const float keep = upper ? s[i + COUNT] : s[i];
        const float give = upper ? s[i] : s[i + COUNT];
        s[i] = keep + simd_shuffle_xor(give, ushort(COUNT * SAME & 31));
    }
}

// The lane's words of the keys or values of a step.
struct Rows {
    uint4 word[KEYS];
};

// Rows at, at + 1, ...; zeros from row `end` on, which are not read.
METAL_FUNC Rows load_rows(const device uint4* from, uint at, uint end, uint lane) {
    Rows rows;
    if (at + KEYS <= end) {  // no condition for each load
        from += at * WORDS + (lane < WORDS ? lane : 0);
#pragma unroll
        for (uint u = 0; u < KEYS; u++) {
            rows.word[u] = from[u * WORDS];
        }
        return rows;
    }
#pragma unroll
    for (uint u = 0; u < KEYS; u++) {
        rows.word[u] = at + u < end && lane < WORDS ? from[(at + u) * WORDS + lane] : uint4(0);
    }
    return rows;
}

// The score of the lane's head and key.
METAL_FUNC float score_keys(thread const float (&q)[HEADS][8], thread const Rows& keys, uint lane) {
    float s[SCORES];
#pragma unroll
    for (uint u = 0; u < KEYS; u++) {
        float key[8];
        unpack_bfloats(keys.word[u], key);
#pragma unroll
        for (uint h = 0; h < HEADS; h++) {
            float sum = q[h][0] * key[0];
#pragma unroll
            for (uint i = 1; i < 8; i++) {
                sum = fma(q[h][i], key[i], sum);
            }
            s[h * KEYS + u] = sum;
        }
    }
    halve<16>(s, lane);
    halve<8>(s, lane);
    halve<4>(s, lane);
    halve<2>(s, lane);
    halve<1>(s, lane);
    float sum = s[0];
#pragma unroll
    for (uint bit = SAME / 2; bit > 0; bit /= 2) {
        sum += simd_shuffle_xor(sum, ushort(bit));
    }
    return sum;
}

// Takes KEYS values with their scores.
METAL_FUNC void take_values(thread Softmax& softmax, float score, thread const Rows& values) {
    softmax.top = max(softmax.top, score);
    if (simd_any(score - softmax.base > SLACK)) {
        float base = max(softmax.base, score);
#pragma unroll
        for (uint bit = SAME; bit < SAME * KEYS; bit *= 2) {
            base = max(base, simd_shuffle_xor(base, ushort(bit)));
        }
        const float shrink = exp2(softmax.base - base);
        softmax.base = base;
        softmax.sum *= shrink;
#pragma unroll
        for (uint h = 0; h < HEADS; h++) {
            const float factor = simd_shuffle(shrink, ushort(h * KEYS * SAME));
#pragma unroll
            for (uint i = 0; i < 8; i++) {
                softmax.out[h][i] *= factor;
            }
        }
    }
    const float weight = exp2(score - softmax.base);
    softmax.sum += weight;
#pragma unroll
    for (uint u = 0; u < KEYS; u++) {
        float value[8];
        unpack_bfloats(values.word[u], value);
#pragma unroll
        for (uint h = 0; h < HEADS; h++) {
            const float factor = simd_shuffle(weight, ushort((h * KEYS + u) * SAME));
#pragma unroll
            for (uint i = 0; i < 8; i++) {
                softmax.out[h][i] = fma(factor, value[i], softmax.out[h][i]);
            }
        }
    }
}

// The simdgroup's share of keys begin ... end of a KV head. Rows from `stored` on, if there is one, are not
// in the cache yet: its words are new_key and new_value.
METAL_FUNC void attend(
    thread Softmax& softmax, thread const float (&q)[HEADS][8], const device uint4* keys,
    const device uint4* values, uint begin, uint end, uint stored, uint4 new_key, uint4 new_value, uint sg,
    uint lane) {
    Rows key = load_rows(keys, begin + sg * KEYS, stored, lane);
    for (uint at = begin + sg * KEYS; at < end; at += SIMDGROUPS * KEYS) {
        Rows value = load_rows(values, at, stored, lane);
        if (stored < at + KEYS) {
#pragma unroll
            for (uint u = 0; u < KEYS; u++) {
                if (at + u == stored) {
                    key.word[u] = new_key;
                    value.word[u] = new_value;
                }
            }
        }
        const float score = score_keys(q, key, lane);
        key = load_rows(keys, at + SIMDGROUPS * KEYS, stored, lane);  // for the next step
        const bool valid = at + lane / SAME % KEYS < end;
        take_values(softmax, valid ? score : LOWEST, value);
    }
}

// Queries from a row of words [HEADS][WORDS] in device or threadgroup memory, with the scale of the scores;
// heads from `heads` on are zero.
template <typename Words>
METAL_FUNC void load_queries(thread float (&q)[HEADS][8], Words words, uint heads, uint lane) {
#pragma unroll
    for (uint h = 0; h < HEADS; h++) {
        unpack_bfloats(h < heads && lane < WORDS ? words[h * WORDS + lane] : uint4(0), q[h]);
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            q[h][i] *= SCORE_SCALE;
        }
    }
}

// Puts base, largest score and sum of every head of the simdgroup to stats [SIMDGROUPS][HEADS].
METAL_FUNC void put_stats(thread const Softmax& softmax, threadgroup float4* stats, uint sg, uint lane) {
    float top = softmax.top;
    float sum = softmax.sum;
#pragma unroll
    for (uint bit = SAME; bit < SAME * KEYS; bit *= 2) {
        top = max(top, simd_shuffle_xor(top, ushort(bit)));
        sum += simd_shuffle_xor(sum, ushort(bit));
    }
    if (lane % (SAME * KEYS) == 0) {
        stats[sg * HEADS + lane / (SAME * KEYS)] = float4(softmax.base, top, sum, 0.0f);
    }
}

// Puts the outputs of heads FIRST ... FIRST + MERGE_HEADS - 1 to outs [SIMDGROUPS][MERGE_HEADS][HEAD_DIM].
template <uint FIRST>
METAL_FUNC void put_outputs(thread const Softmax& softmax, threadgroup float* outs, uint sg, uint lane) {
    if (lane < WORDS) {
#pragma unroll
        for (uint h = 0; h < MERGE_HEADS; h++) {
            threadgroup float4* to = (threadgroup float4*)(outs + (sg * MERGE_HEADS + h) * HEAD_DIM) + 2 * lane;
            const thread float* from = softmax.out[FIRST + h < HEADS ? FIRST + h : 0];
            to[0] = float4(from[0], from[1], from[2], from[3]);
            to[1] = float4(from[4], from[5], from[6], from[7]);
        }
    }
}

// A head over all simdgroups.
struct Merged {
    float factor[SIMDGROUPS];  // of each one's output
    float top;                 // largest score
    float sum;                 // of 2^(score - top)
};

METAL_FUNC Merged merge_stats(const threadgroup float4* stats, uint head) {
    Merged merged;
    merged.top = LOWEST;
#pragma unroll
    for (uint s = 0; s < SIMDGROUPS; s++) {
        merged.top = max(merged.top, stats[s * HEADS + head].y);
    }
    merged.sum = 0.0f;
#pragma unroll
    for (uint s = 0; s < SIMDGROUPS; s++) {
        const float4 own = stats[s * HEADS + head];
        merged.factor[s] = exp2(own.x - merged.top);
        merged.sum = fma(merged.factor[s], own.z, merged.sum);
    }
    return merged;
}

// Element d of head `at` of those in `outs`.
METAL_FUNC float merge_element(thread const Merged& merged, const threadgroup float* outs, uint at, uint d) {
    float out = 0.0f;
#pragma unroll
    for (uint s = 0; s < SIMDGROUPS; s++) {
        out = fma(merged.factor[s], outs[(s * MERGE_HEADS + at) * HEAD_DIM + d], out);
    }
    return out;
}

// The outputs of MERGE_HEADS heads of a block, from all simdgroups.
template <uint FIRST>
METAL_FUNC void write_part(
    thread const Softmax& softmax, const threadgroup float4* stats, threadgroup float* outs, device float* part_o,
    device float2* part_ml, uint at, uint stride, uint heads, uint tid, uint sg, uint lane) {
    if (FIRST >= HEADS) {
        return;
    }
    if (FIRST > 0) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    put_outputs<FIRST>(softmax, outs, sg, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint h = 0; h < MERGE_HEADS; h++) {
        if (FIRST + h < heads) {
            const Merged merged = merge_stats(stats, FIRST + h);
            const uint part = at + (FIRST + h) * stride;
            for (uint d = tid; d < HEAD_DIM; d += THREADS) {
                part_o[ulong(part) * HEAD_DIM + d] = merge_element(merged, outs, h, d);
            }
            if (tid == 0) {
                part_ml[part] = float2(merged.top * M_LN2_F, merged.sum);
            }
        }
    }
}

// The partial result of a block: head h of `heads` goes to index at + h * stride. `stats` has been put. All
// threads call it.
METAL_FUNC void write_parts(
    thread const Softmax& softmax, const threadgroup float4* stats, threadgroup float* outs, device float* part_o,
    device float2* part_ml, uint at, uint stride, uint heads, uint tid, uint sg, uint lane) {
    write_part<0>(softmax, stats, outs, part_o, part_ml, at, stride, heads, tid, sg, lane);
    write_part<MERGE_HEADS>(softmax, stats, outs, part_o, part_ml, at, stride, heads, tid, sg, lane);
    write_part<2 * MERGE_HEADS>(softmax, stats, outs, part_o, part_ml, at, stride, heads, tid, sg, lane);
    write_part<3 * MERGE_HEADS>(softmax, stats, outs, part_o, part_ml, at, stride, heads, tid, sg, lane);
}
