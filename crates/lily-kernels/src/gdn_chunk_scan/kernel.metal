// The chunked delta rule from chunk to chunk; formula and buffers in mod.rs, helpers in gdn_chunk.h.
//
// A threadgroup of 4 simdgroups owns 32 value rows of one head, S [32, K_DIM], through all chunks: tg = (rows
// / 32, head). For R and the outputs a simdgroup owns 16 of the 64 tokens; for the new state it owns
// K_DIM / 4 columns, which stay in its registers. S and R are exchanged through threadgroup memory, 17 and
// 9 KB; what comes from device memory goes through a small strip of the simdgroup's own, so that two
// barriers a chunk are enough, and is asked for AHEAD strips early, the first ones of a chunk before the end
// of the last chunk. Tokens that a short chunk does not have repeat its last one, and count for nothing:
// their columns of P and their factors of K are zero. K_DIM a multiple of 32 up to 128, V_DIM of 16.
#include "gdn_chunk.h"

constant constexpr uint VALUES = 32;
constant constexpr uint S_PITCH = K_DIM + 8;
constant constexpr uint R_PITCH = STRIP_PITCH;
constant constexpr uint COLUMNS = K_DIM / 4;  // columns of the state that a simdgroup owns
constant constexpr uint COLUMN_QUARTS = COLUMNS / 4;
constant constexpr uint K_LOADS = (8 * COLUMN_QUARTS + 31) / 32;

// What a lane reads ahead of a chunk: 4 parts of U; the start of its half row of W and Q; values of G.
struct Ahead {
    ChunkFloat4 u[4];
    ChunkFloat4 w[AHEAD];
    bfloat4 q[AHEAD];
    float g;        // of the lane's row
    float g_left;   // of token `tid`
    float g_end;    // of the last token
};

METAL_FUNC void read_ahead(
    thread Ahead& ahead,
    const device bfloat4* gq,
    const device ChunkFloat4* chunk_u,
    const device ChunkFloat4* chunk_w,
    const device float* chunk_g,
    uint start,
    uint rows,
    uint head,
    uint first,
    uint tid)
{
    const uint last = min(start + CHUNK, rows) - 1;
    const uint row = min(start + tid / 2, last);
    ahead.g = chunk_g[row * V_HEADS + head];
    ahead.g_left = chunk_g[min(start + tid, last) * V_HEADS + head];
    ahead.g_end = chunk_g[last * V_HEADS + head];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint token = min(start + tid / 32 * 16 + i * 4 + tid % 32 / 8, last);
        const uint value = first + tid % 8 * 4;
        const ulong at = (ulong(token) * V_HEADS + head) * V_DIM + value;
        ahead.u[i] = value < V_DIM ? chunk_u[at / 4] : ChunkFloat4(float4(0.0f));
    }
    const device ChunkFloat4* w = chunk_w + (ulong(row) * V_HEADS + head) * (K_DIM / 4) + tid % 2;
    const device bfloat4* q = gq + (ulong(row) * K_HEADS + head / HEADS_PER_KEY) * (K_DIM / 4) + tid % 2;
#pragma unroll
    for (uint i = 0; i < AHEAD; i++) {
        ahead.w[i] = w[i * 2];
        ahead.q[i] = q[i * 2];
    }
}

// The simdgroup's columns of the keys of 8 tokens, from token `at` of the chunk on.
METAL_FUNC void read_keys(
    thread bfloat4* k, const device bfloat4* gk, uint start, uint at, uint tokens, uint key_head, uint sg, uint lane)
{
    if (at < tokens) {
#pragma unroll
        for (uint j = 0; j < K_LOADS; j++) {
            const uint quart = j * 32 + lane;
            const uint token = start + min(at + quart / COLUMN_QUARTS, tokens - 1);
            const ulong row = (ulong(token) * K_HEADS + key_head) * (K_DIM / 4);
            k[j] = gk[row + sg * COLUMN_QUARTS + quart % COLUMN_QUARTS];
        }
    }
}

[[kernel, max_total_threads_per_threadgroup(128)]] void gdn_chunk_scan(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device bfloat4* gq [[buffer(2)]],
    const device bfloat4* gk [[buffer(3)]],
    const device ChunkFloat4* chunk_u [[buffer(4)]],
    const device ChunkFloat4* chunk_w [[buffer(5)]],
    const device float* chunk_g [[buffer(6)]],
    const device ChunkFloat4* chunk_p [[buffer(7)]],
    const device float* qkv [[buffer(8)]],
    device float* state [[buffer(9)]],
    device float* core [[buffer(10)]],
    device float* conv [[buffer(11)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float4 s_quarts[VALUES * S_PITCH / 4];
    threadgroup float4 r_quarts[CHUNK * R_PITCH / 4];
    threadgroup float4 strips[4 * STRIP / 4];
    threadgroup float left[CHUNK];  // e^(G of the last token - G)
    const uint rows = chunk_rows(control, args.step);
    if (rows == 0) {
        return;
    }
    threadgroup float* s = (threadgroup float*)s_quarts;
    threadgroup float* r = (threadgroup float*)r_quarts;
    threadgroup float4* strip_quarts = strips + sg * (STRIP / 4);
    threadgroup float* strip = (threadgroup float*)strip_quarts;
    const uint sequence = args.step.sequence;
    const uint position = row_position(control, args.step, 0);
    const uint head = tg.y;
    const uint key_head = head / HEADS_PER_KEY;
    const uint first = tg.x * VALUES;

    // 1. The old state, zero before position 0.
    const device float4* old = (const device float4*)(state + state_at(args.gdn, sequence, position, head));
    for (uint i = tid; i < VALUES * K_DIM / 4; i += 128) {
        const uint v = i / (K_DIM / 4);
        const uint quart = i % (K_DIM / 4);
        const bool exists = position != 0 && first + v < V_DIM;
        s_quarts[v * (S_PITCH / 4) + quart] = exists ? old[(first + v) * (K_DIM / 4) + quart] : float4(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    FloatSums own[2][K_PARTS];  // value rows by 16, the simdgroup's columns by 8
#pragma unroll
    for (uint m = 0; m < 2; m++) {
#pragma unroll
        for (uint n = 0; n < K_PARTS; n++) {
            load_rows(own[m][n], s + m * 16 * S_PITCH + sg * COLUMNS + n * 8, S_PITCH);
        }
    }

    Ahead ahead;
    read_ahead(ahead, gq, chunk_u, chunk_w, chunk_g, 0, rows, head, first, tid);
    for (uint start = 0; start < rows; start += CHUNK) {
        const uint tokens = min(CHUNK, rows - start);
        // A lane fills half a row of its simdgroup's 16 tokens in strips of 8 columns.
        const uint half_row = lane % 2;
        const uint row = start + min(tid / 2, tokens - 1);
        const float decay = precise::exp(ahead.g);
        const float end_decay = precise::exp(ahead.g_end);
        if (tid < CHUNK) {
            left[tid] = tid < tokens ? precise::exp(ahead.g_end - ahead.g_left) : 0.0f;
        }
        const device ChunkFloat4* p = chunk_p + (ulong(row) * V_HEADS + head) * (CHUNK / 4) + half_row;
        ChunkFloat4 next_p[AHEAD];
#pragma unroll
        for (uint i = 0; i < AHEAD; i++) {
            next_p[i] = p[i * 2];
        }

        // 2. R = U - W Sᵀ and e^G Q Sᵀ for 16 tokens. U enters as the first sums.
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            r_quarts[(sg * 16 + i * 4 + lane / 8) * (R_PITCH / 4) + lane % 8] = float4(ahead.u[i]);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        FloatSums sums_r[4];
        FloatSums sums_o[4];
#pragma unroll
        for (uint n = 0; n < 4; n++) {
            load_rows(sums_r[n], r + sg * 16 * R_PITCH + n * 8, R_PITCH);
            clear(sums_o[n]);
        }
        const device ChunkFloat4* w = chunk_w + (ulong(row) * V_HEADS + head) * (K_DIM / 4) + half_row;
        const device bfloat4* q = gq + (ulong(row) * K_HEADS + key_head) * (K_DIM / 4) + half_row;
        for (uint base = 0; base < K_DIM; base += 8 * AHEAD) {
#pragma unroll
            for (uint i = 0; i < AHEAD; i++) {
                const uint at = base + i * 8;
                strip_quarts[lane] = float4(ahead.w[i]) * -1.0f;
                strip_quarts[32 + lane] = float4(ahead.q[i]) * decay;
                simdgroup_barrier(mem_flags::mem_threadgroup);
                const uint later = at + 8 * AHEAD;
                if (later < K_DIM) {
                    ahead.w[i] = w[later / 4];
                    ahead.q[i] = q[later / 4];
                }
                FloatLeft left_w;
                FloatLeft left_q;
                load_rows(left_w, strip, 8);
                load_rows(left_q, strip + 128, 8);
#pragma unroll
                for (uint n = 0; n < 4; n++) {
                    FloatRight old_s;
                    load_columns(old_s, s + n * 8 * S_PITCH + at, S_PITCH);
                    multiply(sums_r[n], left_w, old_s);
                    multiply(sums_o[n], left_q, old_s);
                }
                simdgroup_barrier(mem_flags::mem_threadgroup);
            }
        }
#pragma unroll
        for (uint n = 0; n < 4; n++) {
            store_rows(sums_r[n], r + sg * 16 * R_PITCH + n * 8, R_PITCH);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // 3. Outputs += P R; P is zero right of the diagonal.
        const uint columns = min(sg * 16 + 16, tokens);
        for (uint base = 0; base < columns; base += 8 * AHEAD) {
#pragma unroll
            for (uint i = 0; i < AHEAD; i++) {
                const uint at = base + i * 8;
                if (at < columns) {
                    const uint column = at + half_row * 4;
                    float4 part = float4(next_p[i]);
                    part.x = column < tokens ? part.x : 0.0f;
                    part.y = column + 1 < tokens ? part.y : 0.0f;
                    part.z = column + 2 < tokens ? part.z : 0.0f;
                    part.w = column + 3 < tokens ? part.w : 0.0f;
                    strip_quarts[lane] = part;
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                    const uint later = at + 8 * AHEAD;
                    if (later < columns) {
                        next_p[i] = p[later / 4];
                    }
                    FloatLeft left_p;
                    load_rows(left_p, strip, 8);
#pragma unroll
                    for (uint n = 0; n < 4; n++) {
                        FloatRight right;
                        load_rows(right, r + at * R_PITCH + n * 8, R_PITCH);
                        multiply(sums_o[n], left_p, right);
                    }
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                }
            }
        }
        device float4* chunk_core = (device float4*)(core + (ulong(start) * V_HEADS + head) * V_DIM);
        store_sums(sums_o, chunk_core, V_HEADS * V_DIM, sg * 16, tokens, first, V_DIM, strip_quarts, lane);

        // 4. S <- e^(G of the last token) S + Rᵀ (left K), the simdgroup's columns; the next chunk's first reads.
        if (start + CHUNK < rows) {
            read_ahead(ahead, gq, chunk_u, chunk_w, chunk_g, start + CHUNK, rows, head, first, tid);
        }
        bfloat4 next_k[AHEAD][K_LOADS];
#pragma unroll
        for (uint i = 0; i < AHEAD; i++) {
            read_keys(next_k[i], gk, start, i * 8, tokens, key_head, sg, lane);
        }
#pragma unroll
        for (uint m = 0; m < 2; m++) {
#pragma unroll
            for (uint n = 0; n < K_PARTS; n++) {
                scale(own[m][n], end_decay);
            }
        }
        for (uint base = 0; base < tokens; base += 8 * AHEAD) {
#pragma unroll
            for (uint i = 0; i < AHEAD; i++) {
                const uint at = base + i * 8;
                if (at < tokens) {
#pragma unroll
                    for (uint j = 0; j < K_LOADS; j++) {
                        const uint quart = j * 32 + lane;
                        const uint token = quart / COLUMN_QUARTS;
                        if (token < 8) {
                            strip_quarts[token * (R_PITCH / 4) + quart % COLUMN_QUARTS] =
                                float4(next_k[i][j]) * left[at + token];
                        }
                    }
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                    read_keys(next_k[i], gk, start, at + 8 * AHEAD, tokens, key_head, sg, lane);
                    FloatLeft left_r[2];
                    load_columns(left_r[0], r + at * R_PITCH, R_PITCH);
                    load_columns(left_r[1], r + at * R_PITCH + 16, R_PITCH);
#pragma unroll
                    for (uint n = 0; n < K_PARTS; n++) {
                        FloatRight right;
                        load_rows(right, strip + n * 8, R_PITCH);
                        multiply(own[0][n], left_r[0], right);
                        multiply(own[1][n], left_r[1], right);
                    }
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                }
            }
        }
#pragma unroll
        for (uint m = 0; m < 2; m++) {
#pragma unroll
            for (uint n = 0; n < K_PARTS; n++) {
                store_rows(own[m][n], s + m * 16 * S_PITCH + sg * COLUMNS + n * 8, S_PITCH);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // 5. The new state and the columns of the convolution.
    device float4* next = (device float4*)(state + state_at(args.gdn, sequence, position + rows, head));
    for (uint i = tid; i < VALUES * K_DIM / 4; i += 128) {
        const uint v = i / (K_DIM / 4);
        const uint quart = i % (K_DIM / 4);
        if (first + v < V_DIM) {
            next[(first + v) * (K_DIM / 4) + quart] = s_quarts[v * (S_PITCH / 4) + quart];
        }
    }
    const uint thread_index = (tg.y * groups.x + tg.x) * 128 + tid;
    const uint threads = groups.x * groups.y * 128;
    store_columns(args.gdn, qkv, conv, sequence, position, rows, args.kept_columns, thread_index, threads);
}
