// Causal attention of a prefill chunk, with the gate: att = sigmoid(gate) o softmax(q K^T / sqrt(HEAD_DIM)) V.
//
//   q, gate, att  bfloat [rows, q_heads, HEAD_DIM]
//   k, v          bfloat [batch, kv_heads, capacity, HEAD_DIM]
//
// Rows of a tile are (token, query head of the group) pairs of one KV head, so that short chunks fill tiles. A
// simdgroup owns 8 * ROW_TILES rows: queries and outputs stay in its registers as matrices. Keys and values come
// in tiles of 32, one at a time through threadgroup memory. Scores pass through memory of the simdgroup's own,
// where a row belongs to ROW_LANES lanes: softmax in f32, weights rounded to bfloat for the product with the values.
// Tiles with the most keys run first. Constants: HEAD_DIM (a multiple of 16 up to 256), GROUP, ROW_TILES
// (1 or 2), SCORE_SCALE (log2(e) / sqrt(HEAD_DIM)).
#include "attention.h"
#include "matrix.h"

constant constexpr uint TILE_KEYS = 32;
constant constexpr uint WORDS = HEAD_DIM / 8;             // 16-byte words of a row
constant constexpr uint PITCH = HEAD_DIM + 8;             // bfloats; rows lie on different banks
constant constexpr uint PITCH_WORDS = PITCH / 8;
constant constexpr uint ROWS = 8 * ROW_TILES;             // of a simdgroup
constant constexpr uint TILE_ROWS = 4 * ROWS;
constant constexpr uint ROW_LANES = 32 / ROWS;
constant constexpr uint FOURS = TILE_KEYS / 4 / ROW_LANES;  // a lane's groups of 4 scores
constant constexpr uint OWN_PITCH = 40;                   // floats of scores or outputs, bfloats of weights
constant constexpr uint STEPS = HEAD_DIM / 16;
constant constexpr uint COLUMNS = HEAD_DIM % 32 == 0 ? 32 : 16;  // of outputs, handled at once
constant constexpr uint SLICES = HEAD_DIM / COLUMNS;
constant constexpr uint NOWHERE = 0xffffffffu;
constant constexpr bool KEYS_EARLY = ROW_TILES == 1;      // with two, registers do not suffice to load them early
constant constexpr uint LOADS = (TILE_KEYS * WORDS + 127) / 128;

struct Outputs {
    simdgroup_float8x8 at[SLICES][ROW_TILES][COLUMNS / 8];
};

// A thread's words of a tile.
struct TileWords {
    uint4 at[LOADS];
};

// 32 rows of the cache from `rows` on; zeros from row `end` on, which are not read.
METAL_FUNC TileWords load_tile(const device uint4* rows, uint end, uint tid) {
    TileWords words;
    if (KEYS_EARLY && end >= TILE_KEYS && LOADS * 128 == TILE_KEYS * WORDS) {  // no condition for each load
#pragma unroll
        for (uint i = 0; i < LOADS; i++) {
            words.at[i] = rows[i * 128 + tid];
        }
        return words;
    }
#pragma unroll
    for (uint i = 0; i < LOADS; i++) {
        const uint at = i * 128 + tid;
        words.at[i] = at < min(end, TILE_KEYS) * WORDS ? rows[at] : uint4(0);
    }
    return words;
}

METAL_FUNC void store_tile(threadgroup uint4* tile, thread const TileWords& words, uint tid) {
#pragma unroll
    for (uint i = 0; i < LOADS; i++) {
        const uint at = i * 128 + tid;
        if (at < TILE_KEYS * WORDS) {
            tile[at / WORDS * PITCH_WORDS + at % WORDS] = words.at[i];
        }
    }
}

template <int C>
METAL_FUNC void clear(thread simdgroup_float8x8 (&matrices)[ROW_TILES][C]) {
#pragma unroll
    for (uint i = 0; i < ROW_TILES; i++) {
#pragma unroll
        for (int j = 0; j < C; j++) {
            matrices[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
}

// Leaves matrices of scores or outputs as rows in the simdgroup's own memory.
template <int C>
METAL_FUNC void store_rows(thread simdgroup_float8x8 (&matrices)[ROW_TILES][C], threadgroup float* own) {
#pragma unroll
    for (uint i = 0; i < ROW_TILES; i++) {
#pragma unroll
        for (int j = 0; j < C; j++) {
            simdgroup_store(matrices[i][j], own + i * 8 * OWN_PITCH + j * 8, OWN_PITCH);
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Multiplies each row of the outputs with its lanes' factor, by way of the simdgroup's own memory.
METAL_FUNC void scale_rows(thread Outputs& outputs, threadgroup float* own, float factor, uint lane) {
    threadgroup float4* row = (threadgroup float4*)(own + lane / ROW_LANES * OWN_PITCH);
#pragma unroll
    for (uint s = 0; s < SLICES; s++) {
        store_rows(outputs.at[s], own);
#pragma unroll
        for (uint c = lane % ROW_LANES; c < COLUMNS / 4; c += ROW_LANES) {
            row[c] = row[c] * factor;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (uint i = 0; i < ROW_TILES; i++) {
#pragma unroll
            for (uint j = 0; j < COLUMNS / 8; j++) {
                simdgroup_load(outputs.at[s][i][j], own + i * 8 * OWN_PITCH + j * 8, OWN_PITCH);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

[[kernel, max_total_threads_per_threadgroup(128)]] void attn_flash(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device uint4* q [[buffer(2)]],
    const device bfloat* gate [[buffer(3)]],
    const device uint4* k [[buffer(4)]],
    const device uint4* v [[buffer(5)]],
    device bfloat* att [[buffer(6)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup uint4 tile[TILE_KEYS * PITCH_WORDS];
    threadgroup float4 scratch[TILE_ROWS * OWN_PITCH / 4];
    // Of each row: its place in q, gate and att, and how many keys it sees. Registers are scarcer than this.
    threadgroup uint places[TILE_ROWS];
    threadgroup uint sees[TILE_ROWS];

    const uint count = chunk_rows(control, args.step);
    const uint tiles = (args.step.rows * GROUP + TILE_ROWS - 1) / TILE_ROWS;
    const uint first = (tiles - 1 - tg.y) * TILE_ROWS;
    if (first >= count * GROUP) {
        return;
    }
    const uint kv_head = tg.x;
    const uint base_position = row_position(control, args.step, 0);
    const uint end = base_position + min((first + TILE_ROWS - 1) / GROUP, count - 1) + 1;
    const ulong cache = ulong(args.step.sequence * args.kv_heads + kv_head) * args.capacity * WORDS;
    const device uint4* keys = k + cache;
    const device uint4* values = v + cache;
    const threadgroup bfloat* tile_rows = (const threadgroup bfloat*)tile;
    threadgroup float* own = (threadgroup float*)scratch + sg * ROWS * OWN_PITCH;

    // Queries come through the tile, 32 rows at a time; rows behind the chunk are zeros.
    simdgroup_bfloat8x8 query[STEPS][ROW_TILES][2];
#pragma unroll
    for (uint round = 0; round < ROW_TILES; round++) {
        for (uint at = tid; at < 32 * WORDS; at += 128) {
            const uint pair = first + round * 32 + at / WORDS;
            const uint row = (pair / GROUP * args.kv_heads + kv_head) * GROUP + pair % GROUP;
            tile[at / WORDS * PITCH_WORDS + at % WORDS] =
                pair < count * GROUP ? q[row * WORDS + at % WORDS] : uint4(0);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg * ROWS / 32 == round) {
#pragma unroll
            for (uint s = 0; s < STEPS; s++) {
                simdgroup_tile_load(query[s], tile_rows + sg * ROWS % 32 * PITCH + s * 16, PITCH);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    Outputs outputs;
#pragma unroll
    for (uint s = 0; s < SLICES; s++) {
        clear(outputs.at[s]);
    }

    // A lane's row and its softmax so far.
    const uint row = sg * ROWS + lane / ROW_LANES;
    const uint part = lane % ROW_LANES;
    if (part == 0) {
        const uint pair = first + row;
        const uint place = (pair / GROUP * args.kv_heads + kv_head) * GROUP + pair % GROUP;
        places[row] = pair < count * GROUP ? place : NOWHERE;
        sees[row] = base_position + pair / GROUP + 1;
    }
    float base = LOWEST;
    float sum = 0.0f;

    TileWords words;
    if (KEYS_EARLY) {
        words = load_tile(keys, end, tid);
    }
    for (uint start = 0; start < end; start += TILE_KEYS) {
        if (!KEYS_EARLY) {
            words = load_tile(keys + start * WORDS, end - start, tid);
        }
        store_tile(tile, words, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        words = load_tile(values + start * WORDS, end - start, tid);

        simdgroup_float8x8 products[ROW_TILES][TILE_KEYS / 8];
        clear(products);
#pragma unroll
        for (uint s = 0; s < STEPS; s++) {
            simdgroup_bfloat8x8 key[2][TILE_KEYS / 8];
            simdgroup_tile_load_t(key, tile_rows + s * 16, PITCH);
            simdgroup_tile_mma(products, query[s], key);
        }
        store_rows(products, own);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        store_tile(tile, words, tid);
        if (KEYS_EARLY && start + TILE_KEYS < end) {
            words = load_tile(keys + (start + TILE_KEYS) * WORDS, end - start - TILE_KEYS, tid);
        }

        const uint visible = sees[row];
        float score[FOURS][4];
        float most = LOWEST;
        const threadgroup float4* scores = (const threadgroup float4*)(own + lane / ROW_LANES * OWN_PITCH);
#pragma unroll
        for (uint f = 0; f < FOURS; f++) {
            const uint four = f * ROW_LANES + part;
            const float4 all = scores[four];
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                score[f][i] = start + four * 4 + i < visible ? all[i] * SCORE_SCALE : LOWEST;
                most = max(most, score[f][i]);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (simd_any(most - base > SLACK)) {
#pragma unroll
            for (uint bit = 1; bit < ROW_LANES; bit *= 2) {
                most = max(most, simd_shuffle_xor(most, ushort(bit)));
            }
            const float to = max(base, most);
            const float factor = exp2(base - to);
            base = to;
            sum *= factor;
            if (start > 0) {
                scale_rows(outputs, own, factor, lane);
            }
        }
        threadgroup bfloat4* weights = (threadgroup bfloat4*)own + lane / ROW_LANES * (OWN_PITCH / 4);
#pragma unroll
        for (uint f = 0; f < FOURS; f++) {
            float4 weight;
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                weight[i] = exp2(score[f][i] - base);
                sum += weight[i];
            }
            weights[f * ROW_LANES + part] = bfloat4(weight);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);  // of weights to the simdgroup, too

        simdgroup_bfloat8x8 weight[2][ROW_TILES][2];
#pragma unroll
        for (uint s = 0; s < 2; s++) {
            simdgroup_tile_load(weight[s], (const threadgroup bfloat*)own + s * 16, OWN_PITCH);
        }
#pragma unroll
        for (uint c = 0; c < SLICES; c++) {
#pragma unroll
            for (uint s = 0; s < 2; s++) {
                simdgroup_bfloat8x8 value[2][COLUMNS / 8];
                simdgroup_tile_load(value, tile_rows + s * 16 * PITCH + c * COLUMNS, PITCH);
                simdgroup_tile_mma(outputs.at[c], weight[s], value);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

#pragma unroll
    for (uint bit = 1; bit < ROW_LANES; bit *= 2) {
        sum += simd_shuffle_xor(sum, ushort(bit));
    }
    const float scale = 1.0f / sum;
    const uint place = places[row];
    const device bfloat4* gates = (const device bfloat4*)gate + place * (HEAD_DIM / 4);
    device bfloat4* to = (device bfloat4*)att + place * (HEAD_DIM / 4);
    const threadgroup float4* outs = (const threadgroup float4*)(own + lane / ROW_LANES * OWN_PITCH);
#pragma unroll
    for (uint c = 0; c < SLICES; c++) {
        store_rows(outputs.at[c], own);
        if (place != NOWHERE) {
#pragma unroll
            for (uint at = part; at < COLUMNS / 4; at += ROW_LANES) {
                const float4 open = float4(gates[c * (COLUMNS / 4) + at]);
                float4 out = outs[at] * scale;
#pragma unroll
                for (uint i = 0; i < 4; i++) {
                    out[i] *= sigmoid(open[i]);
                }
                to[c * (COLUMNS / 4) + at] = bfloat4(out);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
