// The part of the chunked delta rule that does not depend on the state; formula and buffers in mod.rs,
// helpers in gdn_chunk.h.
//
// A threadgroup of 4 simdgroups owns a chunk of 64 tokens of one value head: tg = (chunk, head). The
// products with keys come first, a simdgroup owns 16 tokens of them. Then T = (I + A)⁻¹ grows in the
// place of -A: blocks of 16 on the diagonal by substitution, the others as T_IJ = T_II Σ_K (-A_IK) T_KJ.
// Last, U = T diag(beta) V and W = T diag(beta e^G) K, a simdgroup owns 32 columns at a time. Tokens that a
// short chunk lacks repeat its last one with beta = 0. K_DIM a multiple of 32 up to 128, V_DIM of 16.
#include "gdn_chunk.h"

constant constexpr uint PITCH = CHUNK + 8;    // of T
constant constexpr uint K_PITCH = 40;         // of 32 columns of the keys
constant constexpr uint V_GROUPS = (V_DIM + 31) / 32;
constant constexpr uint GROUPS = V_GROUPS + K_PARTS;

// x <- the inverse of I - L in column `lane` of 16, L the strict lower part of a block of 16.
METAL_FUNC void invert_column(thread float* x, const threadgroup float* block, uint lane) {
#pragma unroll
    for (uint i = 0; i < 16; i++) {
        float sum = i == lane ? 1.0f : 0.0f;
#pragma unroll
        for (uint j = 0; j < i; j++) {
            sum = fma(block[i * PITCH + j], x[j], sum);
        }
        x[i] = sum;
    }
}

[[kernel, max_total_threads_per_threadgroup(128)]] void gdn_chunk_prepare(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device bfloat4* gq [[buffer(2)]],
    const device bfloat4* gk [[buffer(3)]],
    const device bfloat4* gv [[buffer(4)]],
    const device float* beta [[buffer(5)]],
    const device float* log_decay [[buffer(6)]],
    device ChunkFloat* chunk_u [[buffer(7)]],
    device ChunkFloat* chunk_w [[buffer(8)]],
    device float* chunk_g [[buffer(9)]],
    device ChunkFloat* chunk_p [[buffer(10)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float4 t_quarts[CHUNK * PITCH / 4];  // keys, then Q Kᵀ, then -A, then T
    threadgroup float4 strips[4 * STRIP / 4];
    threadgroup float g_high[CHUNK];         // G as two sums: of the decays cut to multiples of 1 / 256, exact,
    threadgroup float g_low[CHUNK];          // and of the small rest
    threadgroup float strength[CHUNK];       // beta
    threadgroup float key_strength[CHUNK];   // beta e^G
    const uint rows = chunk_rows(control, args.step);
    const uint start = tg.x * CHUNK;
    if (start >= rows) {
        return;
    }
    threadgroup float* t = (threadgroup float*)t_quarts;
    threadgroup float4* strip_quarts = strips + sg * (STRIP / 4);
    threadgroup float* strip = (threadgroup float*)strip_quarts;
    const uint tokens = min(CHUNK, rows - start);
    const uint head = tg.y;
    const uint key_head = head / HEADS_PER_KEY;

    // 1. G and the factors of rows; tokens that do not exist have beta = 0.
    if (sg == 0) {
        float high = 0.0f;
        float low = 0.0f;
#pragma unroll
        for (uint part = 0; part < CHUNK; part += 32) {
            const uint i = part + lane;
            const ulong at = ulong(start + i) * V_HEADS + head;
            const bool exists = i < tokens;
            const float decay = exists ? log_decay[at] : 0.0f;
            const float b = exists ? beta[at] : 0.0f;
            const float cut = floor(decay * 256.0f) * (1.0f / 256.0f);
            const float sum_high = high + simd_prefix_inclusive_sum(cut);
            const float sum_low = low + simd_prefix_inclusive_sum(decay - cut);
            g_high[i] = sum_high;
            g_low[i] = sum_low;
            strength[i] = b;
            key_strength[i] = b * precise::exp(sum_high + sum_low);
            if (exists) {
                chunk_g[at] = sum_high + sum_low;
            }
            high = simd_broadcast(sum_high, 31);
            low = simd_broadcast(sum_low, 31);
        }
    }

    // 2. K Kᵀ and Q Kᵀ, 32 columns of the keys at a time; only up to the diagonal.
    FloatSums kk[8];
    FloatSums qk[8];
#pragma unroll
    for (uint n = 0; n < 8; n++) {
        clear(kk[n]);
        clear(qk[n]);
    }
    // A lane fills half a row of its simdgroup's queries in strips of 8 columns.
    const uint last = rows - 1;
    const uint token = min(start + sg * 16 + lane / 2, last);
    const device bfloat4* q = gq + (ulong(token) * K_HEADS + key_head) * (K_DIM / 4) + lane % 2;
    bfloat4 next_q[4];
    bfloat4 next_k[4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint key = min(start + i * 16 + tid / 8, last);
        next_q[i] = q[i * 2];
        next_k[i] = gk[(ulong(key) * K_HEADS + key_head) * (K_DIM / 4) + tid % 8];
    }
    for (uint slice = 0; slice < K_DIM; slice += 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float4 own_q[4];
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            t_quarts[(i * 16 + tid / 8) * (K_PITCH / 4) + tid % 8] = float4(next_k[i]);
            own_q[i] = float4(next_q[i]);
        }
        if (slice + 32 < K_DIM) {
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                const uint key = min(start + i * 16 + tid / 8, last);
                next_q[i] = q[slice / 4 + 8 + i * 2];
                next_k[i] = gk[(ulong(key) * K_HEADS + key_head) * (K_DIM / 4) + slice / 4 + 8 + tid % 8];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            const uint at = i * 8;
            strip_quarts[lane] = own_q[i];
            simdgroup_barrier(mem_flags::mem_threadgroup);
            FloatLeft left_k;
            FloatLeft left_q;
            load_rows(left_k, t + sg * 16 * K_PITCH + at, K_PITCH);
            load_rows(left_q, strip, 8);
#pragma unroll
            for (uint n = 0; n < 8; n++) {
                if (n < 2 * sg + 2) {
                    FloatRight right;
                    load_columns(right, t + n * 8 * K_PITCH + at, K_PITCH);
                    multiply_short(kk[n], left_k, right);
                    multiply_short(qk[n], left_q, right);
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // 3. P = (Q Kᵀ) ∘ D, the simdgroup's rows.
    threadgroup float* own = t + sg * 16 * PITCH;
#pragma unroll
    for (uint n = 0; n < 8; n++) {
        if (n < 2 * sg + 2) {
            store_rows(qk[n], own + n * 8, PITCH);
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint n = lane; n < 16 * CHUNK; n += 32) {
        const uint i = sg * 16 + n / CHUNK;
        const uint j = n % CHUNK;
        if (i < tokens && j < tokens) {
            const float decay = precise::exp((g_high[i] - g_high[j]) + (g_low[i] - g_low[j]));
            const float product = j <= i ? decay * t[i * PITCH + j] : 0.0f;
            chunk_p[(ulong(start + i) * V_HEADS + head) * CHUNK + j] = ChunkFloat(product);
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);

    // 4. -A, then the diagonal blocks of T; both are lower triangular.
#pragma unroll
    for (uint n = 0; n < 8; n++) {
        if (n < 2 * sg + 2) {
            store_rows(kk[n], own + n * 8, PITCH);
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint n = lane; n < 16 * CHUNK; n += 32) {
        const uint i = sg * 16 + n / CHUNK;
        const uint j = n % CHUNK;
        if (j < i) {
            const float decay = precise::exp((g_high[i] - g_high[j]) + (g_low[i] - g_low[j]));
            t[i * PITCH + j] *= -strength[i] * decay;
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float x[16];
    if (lane < 16) {
        invert_column(x, own + sg * 16, lane);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < 16) {
#pragma unroll
        for (uint i = 0; i < 16; i++) {
            own[sg * 16 + i * PITCH + lane] = x[i];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // 5. The blocks below the diagonal, one row of blocks after the other.
    for (uint block = 1; block < 4; block++) {
        threadgroup float* block_row = t + block * 16 * PITCH;
        FloatSums sums[2];
        clear(sums[0]);
        clear(sums[1]);
        if (sg < block) {
            for (uint at = sg * 16; at < block * 16; at += 8) {
                FloatLeft left;
                load_rows(left, block_row + at, PITCH);
#pragma unroll
                for (uint n = 0; n < 2; n++) {
                    FloatRight right;
                    load_rows(right, t + at * PITCH + sg * 16 + n * 8, PITCH);
                    multiply(sums[n], left, right);
                }
            }
            store_rows(sums[0], strip, 16);
            store_rows(sums[1], strip + 8, 16);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            clear(sums[0]);
            clear(sums[1]);
#pragma unroll
            for (uint at = 0; at < 16; at += 8) {
                FloatLeft left;
                load_rows(left, block_row + block * 16 + at, PITCH);
#pragma unroll
                for (uint n = 0; n < 2; n++) {
                    FloatRight right;
                    load_rows(right, strip + at * 16 + n * 8, 16);
                    multiply(sums[n], left, right);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg < block) {
            store_rows(sums[0], block_row + sg * 16, PITCH);
            store_rows(sums[1], block_row + sg * 16 + 8, PITCH);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // 6. U and W, 32 columns at a time.
    for (uint group = sg; group < GROUPS; group += 4) {
        const bool is_v = group < V_GROUPS;
        const uint first = (is_v ? group : group - V_GROUPS) * 32;
        const uint width = is_v ? V_DIM : K_DIM;
        const device bfloat4* from = is_v ? gv : gk;
        const ulong from_row = is_v ? ulong(start) * V_HEADS + head : ulong(start) * K_HEADS + key_head;
        const uint from_heads = is_v ? V_HEADS : K_HEADS;
        device ChunkFloat4* to = (device ChunkFloat4*)(is_v ? chunk_u : chunk_w)
            + (ulong(start) * V_HEADS + head) * width / 4;
        FloatSums sums[4][4];  // tokens by 16, columns by 8
#pragma unroll
        for (uint m = 0; m < 4; m++) {
#pragma unroll
            for (uint n = 0; n < 4; n++) {
                clear(sums[m][n]);
            }
        }
        const uint column = min(first + lane % 8 * 4, width - 4);
        const device bfloat4* lane_from = from + (from_row * width + column) / 4;
        const ulong from_pitch = from_heads * width / 4;
        bfloat4 next[2];
#pragma unroll
        for (uint part = 0; part < 2; part++) {
            next[part] = lane_from[min(part * 4 + lane / 8, tokens - 1) * from_pitch];
        }
        for (uint at = 0; at < tokens; at += 8) {
#pragma unroll
            for (uint part = 0; part < 2; part++) {
                const uint j = part * 4 + lane / 8;
                const float factor = is_v ? strength[at + j] : key_strength[at + j];
                strip_quarts[j * (STRIP_PITCH / 4) + lane % 8] = float4(next[part]) * factor;
                next[part] = lane_from[min(at + 8 + j, tokens - 1) * from_pitch];
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            FloatRight right[4];
#pragma unroll
            for (uint n = 0; n < 4; n++) {
                load_rows(right[n], strip + n * 8, STRIP_PITCH);
            }
#pragma unroll
            for (uint m = 0; m < 4; m++) {
                if (at < m * 16 + 16) {
                    FloatLeft left;
                    load_rows(left, t + m * 16 * PITCH + at, PITCH);
#pragma unroll
                    for (uint n = 0; n < 4; n++) {
                        multiply(sums[m][n], left, right[n]);
                    }
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
#pragma unroll
        for (uint m = 0; m < 4; m++) {
            store_sums(sums[m], to, V_HEADS * width, m * 16, tokens, first, width, strip_quarts, lane);
        }
    }
}
