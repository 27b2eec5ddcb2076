// Attention with heads of 256 by warpgroups of 64 rows: the places of tiles of keys and values, the products, softmax
// in their registers, and the way of the outputs to memory. Lane l of warp w has two rows, 16 w + l / 4 and 8 further
// on. Rows are (token, query head) pairs of one KV head.
#pragma once
#include "attention.h"
#include "warpgroup.h"

constant constexpr uint WORDS = 32;                  // 16-byte words of a row
constant constexpr uint TILE_ROWS = 128;             // of two warpgroups
constant constexpr uint TILE_KEYS = 80;
constant constexpr uint STAGES = 2;                  // places for tiles
constant constexpr uint QUERY_SLICE = 64 * 128;      // bytes of 64 columns: of a warpgroup's queries, of a tile
constant constexpr uint TILE_SLICE = TILE_KEYS * 128;
constant constexpr uint QUERY_BYTES = 4 * QUERY_SLICE;
constant constexpr uint TILE_BYTES = 4 * TILE_SLICE;
constant constexpr uint SUMS_AT = TILE_ROWS * 1024;  // of bases and sums, behind the outputs of a part
// Score of a key that a row does not see: below LOWEST once it is scaled, so that it has weight 0 even where the row
// sees no key of a part and the base is still LOWEST.
constant constexpr float MASKED = 4.0f * LOWEST / SCORE_SCALE;

// The pairs of a block, and where they are.
struct Pairs {
    uint first;
    uint end;  // of the chunk
    uint kv_head;
    uint kv_heads;

    // Row of q, gate and att.
    METAL_FUNC uint place(uint pair) const { return (pair / GROUP * kv_heads + kv_head) * GROUP + pair % GROUP; }
};

// Where the 16-byte word of a row lies within slices of `slice` bytes.
METAL_FUNC uint swizzled(uint row, uint word, uint slice) {
    return word / 8 * slice + row * 128 + (word % 8 ^ row % 8) * 16;
}

// The places of keys or of values, used in turn: a barrier each for tiles that have come and for places that are free.
struct Places {
    uint tiles;
    uint barriers;

    METAL_FUNC uint tile(uint index) const { return tiles + index % STAGES * TILE_BYTES; }
    METAL_FUNC uint full(uint index) const { return barriers + index % STAGES * 16; }
    METAL_FUNC uint free(uint index) const { return full(index) + 8; }

    METAL_FUNC void start() const {
        for (uint s = 0; s < STAGES; s++) {
            barrier_init(full(s), 128);
            barrier_init(free(s), 8);
        }
    }
    // Copies tile `index`, rows from `rows` on; zeros from row `end` on, which are not read.
    METAL_FUNC void copy(uint index, const uint4* rows, uint end, uint tid) const {
        barrier_wait_alone(free(index), index / STAGES % 2 ^ 1);
        const uint row = tid / WORDS;
#pragma unroll
        for (uint i = 0; i < TILE_KEYS / 4; i++) {
            copy_async_16(tile(index) + i / 2 * 1024 + swizzled(i % 2 * 4 + row, tid % WORDS, TILE_SLICE),
                          rows + i * 128 + tid, i * 4 + row < end);
        }
        barrier_arrive_after_copies(full(index));
    }
    METAL_FUNC void wait(uint index) const {
        barrier_wait_alone(full(index), index / STAGES % 2);
        fence_shared_for_products();
    }
    METAL_FUNC void release(uint index, uint lane) const {
        if (lane == 0) {
            barrier_arrive(free(index));
        }
    }
};

METAL_FUNC void start_scores(float (&scores)[TILE_KEYS / 2], uint queries, uint keys) {
    const ulong query = swizzled_operand(queries);
    const ulong key = swizzled_operand(keys);
    products_begin();
#pragma unroll
    for (uint s = 0; s < 16; s++) {
        product_start(scores, query + (s / 4 * QUERY_SLICE + s % 4 * 32) / 16,
                      key + (s / 4 * TILE_SLICE + s % 4 * 32) / 16, s > 0);
    }
    products_commit();
}

METAL_FUNC void start_outputs(float (&outputs)[128], const uint (&weights)[TILE_KEYS / 16][4], uint values) {
    const ulong value = swizzled_rows_operand(values, TILE_SLICE);
    products_begin();
#pragma unroll
    for (uint s = 0; s < TILE_KEYS / 16; s++) {
        product_start(outputs, weights[s], value + s * (2048 / 16));
    }
    products_commit();
}

METAL_FUNC void round_weights(uint (&weights)[TILE_KEYS / 16][4], const float (&scores)[TILE_KEYS / 2]) {
#pragma unroll
    for (uint i = 0; i < TILE_KEYS / 4; i++) {
        weights[i / 4][i % 4] = bfloat_pair(scores[2 * i], scores[2 * i + 1]);
    }
}

// Softmax so far of a lane's rows: the base of their exponentials, its own part of their sums, and what the outputs are
// to be multiplied with if the base has moved in any row of the warp.
struct Softmax {
    float base[2];
    float sum[2];
    float factor[2];
    bool moved;

    METAL_FUNC void start() {
#pragma unroll
        for (uint r = 0; r < 2; r++) {
            base[r] = LOWEST;
            sum[r] = 0.0f;
            factor[r] = 1.0f;
        }
    }

    // Whole sum of row `r`.
    METAL_FUNC float total(uint r) const {
        const float two = sum[r] + simd_shuffle_xor(sum[r], ushort(1));
        return two + simd_shuffle_xor(two, ushort(2));
    }

    // Scores of the keys from `start` on become weights. Row `r` sees the keys before visible[r].
    template <int N> METAL_FUNC void weigh(float (&scores)[N], uint start, const uint (&visible)[2], uint lane) {
        if (start + 2 * N > min(visible[0], visible[1])) {
#pragma unroll
            for (uint i = 0; i < N; i++) {
                if (start + i / 4 * 8 + lane % 4 * 2 + i % 2 >= visible[i / 2 % 2]) {
                    scores[i] = MASKED;
                }
            }
        }
        float most[2] = {MASKED, MASKED};
#pragma unroll
        for (uint i = 0; i < N; i++) {
            most[i / 2 % 2] = max(most[i / 2 % 2], scores[i]);
        }
#pragma unroll
        for (uint r = 0; r < 2; r++) {
            most[r] *= SCORE_SCALE;
        }
        moved = simd_any(most[0] - base[0] > SLACK || most[1] - base[1] > SLACK);
        if (moved) {
#pragma unroll
            for (uint r = 0; r < 2; r++) {
                most[r] = max(most[r], simd_shuffle_xor(most[r], ushort(1)));
                most[r] = max(most[r], simd_shuffle_xor(most[r], ushort(2)));
                const float to = max(base[r], most[r]);
                factor[r] = exp2(base[r] - to);
                base[r] = to;
                sum[r] *= factor[r];
            }
        }
#pragma unroll
        for (uint i = 0; i < N; i++) {
            scores[i] = exp2(scores[i] * SCORE_SCALE - base[i / 2 % 2]);
            sum[i / 2 % 2] += scores[i];
        }
    }
};

// Where a 16-byte word of a row of outputs lies in shared memory: in other banks than those of the next three rows.
METAL_FUNC uint output_word(uint row, uint word) { return word ^ row % 4 * 2; }

METAL_FUNC uint4 gated_word(float4 low, float4 high, uint4 gate) {
    float open[8];
    unpack_bfloats(gate, open);
    return uint4(bfloat_pair(low.x * sigmoid(open[0]), low.y * sigmoid(open[1])),
                 bfloat_pair(low.z * sigmoid(open[2]), low.w * sigmoid(open[3])),
                 bfloat_pair(high.x * sigmoid(open[4]), high.y * sigmoid(open[5])),
                 bfloat_pair(high.z * sigmoid(open[6]), high.w * sigmoid(open[7])));
}

// Finishes the rows of a warp from `row` of the block on. They pass through the warp's 8 KB of shared memory at `own`,
// half of the columns at a time, so that 16 lanes have 128 columns of one row.
METAL_FUNC void store_outputs(const float (&outputs)[128], const Softmax& softmax, uint own, const uint4* gate,
                              uint4* att, const Pairs& pairs, uint row, uint lane) {
    const float scale[2] = {1.0f / softmax.total(0), 1.0f / softmax.total(1)};
#pragma unroll
    for (uint half = 0; half < 2; half++) {
#pragma unroll
        for (uint i = 0; i < 32; i++) {
            const uint to = i % 2 * 8 + lane / 4;
            const uint at = half * 64 + 2 * i;
            shared_store(own + to * 512 + output_word(to, i / 2 * 2 + lane % 4 / 2) * 16 + lane % 2 * 8,
                         outputs[at] * scale[i % 2], outputs[at + 1] * scale[i % 2]);
        }
        __syncwarp();
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            const uint from = 2 * i + lane / 16;
            const uint pair = pairs.first + row + from;
            if (pair < pairs.end) {
                const uint words = own + from * 512 + output_word(from, lane % 16 * 2) * 16;
                const uint at = pairs.place(pair) * WORDS + half * 16 + lane % 16;
                att[at] = gated_word(shared_load(words), shared_load(words + 16), gate[at]);
            }
        }
        __syncwarp();
    }
}

// Finishes the rows of a cluster whose blocks have met `parts` parts of the keys. Each block leaves outputs, bases and
// sums in its shared memory at `own`; each finishes some rows, a warp one at a time. Parts are added in their order.
METAL_FUNC void merge_outputs(const float (&outputs)[128], const Softmax& softmax, uint own, const uint4* gate,
                              uint4* att, const Pairs& pairs, uint part, uint parts, uint warp, uint lane) {
#pragma unroll
    for (uint r = 0; r < 2; r++) {
        const float total = softmax.total(r);
        if (lane % 4 == 0) {
            shared_store(own + SUMS_AT + (warp * 16 + r * 8 + lane / 4) * 8, softmax.base[r], total);
        }
    }
#pragma unroll
    for (uint i = 0; i < 64; i++) {
        const uint row = warp * 16 + i % 2 * 8 + lane / 4;
        shared_store(own + row * 1024 + output_word(row, i / 2 * 2 + lane % 4 / 2) * 16 + lane % 2 * 8, outputs[2 * i],
                     outputs[2 * i + 1]);
    }
    cluster_meet();
    for (uint row = part * 8 + warp; row < TILE_ROWS && pairs.first + row < pairs.end; row += parts * 8) {
        float base = LOWEST;
        for (uint p = 0; p < parts; p++) {
            base = max(base, cluster_load_2(cluster_address(own + SUMS_AT + row * 8, p)).x);
        }
        float4 low = float4(0.0f);
        float4 high = float4(0.0f);
        float sum = 0.0f;
        for (uint p = 0; p < parts; p++) {
            const float2 theirs = cluster_load_2(cluster_address(own + SUMS_AT + row * 8, p));
            const float factor = exp2(theirs.x - base);
            const uint words = cluster_address(own + row * 1024 + output_word(row, lane * 2) * 16, p);
            sum += theirs.y * factor;
            low = low + cluster_load_4(words) * factor;
            high = high + cluster_load_4(words + 16) * factor;
        }
        const uint at = pairs.place(pairs.first + row) * WORDS + lane;
        att[at] = gated_word(low * (1.0f / sum), high * (1.0f / sum), gate[at]);
    }
    cluster_meet();  // nobody ends while others read its memory
}
