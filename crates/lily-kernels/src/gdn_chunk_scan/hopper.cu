// The chunked delta rule from chunk to chunk for compute capability 9.0; formula and buffers in mod.rs. K_DIM and V_DIM
// 128, operands of the chunks in bfloat, state and sums in float.
//
// A block owns 32 value rows of one head through all chunks. Two warps own 16 rows each and carry their state,
// S [16, 128], in the registers of its sums: packed, these are the left factor of R^T = U^T - S W^T, and R^T, packed,
// that of S <- e^(G_C) S + (left R)^T K. So what runs from chunk to chunk passes through no memory. Two more warps get
// both left factors through shared memory and form the outputs, e^G S Q^T + R^T P^T, while the first two go on. Four
// warps bring the tiles of the next STAGES chunks; tokens that a short chunk does not have repeat its last one with
// left = 0.
#include "gdn.h"
#include "fragments.h"

constexpr uint CHUNK = 64;
constexpr uint VALUES = 32;
constexpr uint STAGES = 3;
constexpr uint ROW = 128 * 2 + 16;    // bytes of a row of W, Q, K: eight rows lie on different banks
constexpr uint P_ROW = CHUNK * 2 + 16;
constexpr uint U_ROW = VALUES * 2 + 16;
constexpr uint AT_W = 0;
constexpr uint AT_Q = AT_W + CHUNK * ROW;
constexpr uint AT_K = AT_Q + CHUNK * ROW;
constexpr uint AT_P = AT_K + CHUNK * ROW;
constexpr uint AT_U = AT_P + CHUNK * P_ROW;
constexpr uint AT_DECAY = AT_U + CHUNK * U_ROW;   // e^G; left = e^(G of the last token - G); e^(G of the last token)
constexpr uint STAGE = AT_DECAY + 2 * CHUNK * 4 + 16;
constexpr uint HANDOVER = 32 * 16 * (8 + 4);      // S and R of a warp, packed
constexpr uint AT_HANDOVER = STAGES * STAGE;
constexpr uint AT_BARRIERS = AT_HANDOVER + 4 * HANDOVER;
constexpr uint SHARED_BYTES = AT_BARRIERS + 8 * (2 * STAGES + 12);
static_assert(SHARED_BYTES == SHARED_MEMORY, "shared memory that the launch asks for");

struct Barriers {
    uint first;
    METAL_FUNC uint full(uint stage) const { return first + stage * 8; }
    METAL_FUNC uint empty(uint stage) const { return first + (STAGES + stage) * 8; }
    // Of a pair of warps, by parity of the chunk: S is there, R is there, both are read.
    METAL_FUNC uint state(uint warp, uint set) const { return first + (2 * STAGES + warp * 6 + set * 3) * 8; }
    METAL_FUNC uint remainders(uint warp, uint set) const { return state(warp, set) + 8; }
    METAL_FUNC uint taken(uint warp, uint set) const { return state(warp, set) + 16; }
};

METAL_FUNC void store_words(uint address, const uint (&words)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
        ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}
METAL_FUNC void load_words(uint (&words)[4], uint address) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(address) : "memory");
}
METAL_FUNC float2 load_floats(uint address) {
    float x, y;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
    return float2(x, y);
}

// sums [16, 64] += left [16, 128] tileᵀ, tile [64, 128].
METAL_FUNC void multiply_rows(float (&sums)[8][4], const uint (&left)[8][4], uint tile, uint lane) {
    const uint at = tile + (lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 16;
#pragma unroll
    for (uint k = 0; k < 8; k++) {
#pragma unroll
        for (uint n = 0; n < 4; n++) {
            uint right[4];
            load_blocks(right, at + n * 16 * ROW + k * 32);
            multiply_block(sums[2 * n], left[k], right[0], right[1]);
            multiply_block(sums[2 * n + 1], left[k], right[2], right[3]);
        }
    }
}

// Brings the tiles: threads 128 to 255.
METAL_FUNC void bring(
    Barriers barriers, unsigned char* bytes, const bfloat* gq, const bfloat* gk, const bfloat* chunk_u,
    const bfloat* chunk_w, const float* chunk_g, const bfloat* chunk_p, uint rows, uint head, uint first, uint tid)
{
    const uint memory = shared_address(bytes);
    const uint key_head = head / HEADS_PER_KEY;
    const uint chunks = (rows + CHUNK - 1) / CHUNK;
    float g = 0.0f;
    float g_end = 0.0f;
    if (tid < CHUNK) {
        g = chunk_g[min(tid, rows - 1) * V_HEADS + head];
        g_end = chunk_g[(min(CHUNK, rows) - 1) * V_HEADS + head];
    }
    uint stage = 0;
    uint parity = 1;
    for (uint chunk = 0; chunk < chunks; chunk++) {
        const uint start = chunk * CHUNK;
        const uint last = min(start + CHUNK, rows) - 1;
        const uint to = memory + stage * STAGE;
        barrier_wait_alone(barriers.empty(stage), parity);
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            const uint row = i * 8 + tid / 16;
            const ulong token = min(start + row, last);
            const uint at = to + row * ROW + tid % 16 * 16;
            copy_async_16(at + AT_W, chunk_w + (token * V_HEADS + head) * K_DIM + tid % 16 * 8);
            copy_async_16(at + AT_Q, gq + (token * K_HEADS + key_head) * K_DIM + tid % 16 * 8);
            copy_async_16(at + AT_K, gk + (token * K_HEADS + key_head) * K_DIM + tid % 16 * 8);
        }
#pragma unroll
        for (uint i = 0; i < 4; i++) {
            const uint row = i * 16 + tid / 8;
            const ulong token = min(start + row, last);
            const bfloat* p = chunk_p + (token * V_HEADS + head) * CHUNK + tid % 8 * 8;
            copy_async_16(to + AT_P + row * P_ROW + tid % 8 * 16, p);
        }
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            const uint row = i * 32 + tid / 4;
            const ulong token = min(start + row, last);
            const bfloat* u = chunk_u + (token * V_HEADS + head) * V_DIM + first + tid % 4 * 8;
            copy_async_16(to + AT_U + row * U_ROW + tid % 4 * 16, u);
        }
        barrier_arrive_after_copies(barriers.full(stage));
        if (tid < CHUNK) {
            float* decays = (float*)(bytes + stage * STAGE + AT_DECAY);
            decays[tid] = precise::exp(g);
            decays[CHUNK + tid] = start + tid <= last ? precise::exp(g_end - g) : 0.0f;
            if (tid == 0) {
                decays[2 * CHUNK] = precise::exp(g_end);
            }
            if (start + CHUNK < rows) {
                g = chunk_g[min(start + CHUNK + tid, rows - 1) * V_HEADS + head];
                g_end = chunk_g[(min(start + 2 * CHUNK, rows) - 1) * V_HEADS + head];
            }
        }
        barrier_arrive(barriers.full(stage));
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
}

// Carries the state of 16 value rows, `state` and `next` their first elements before and after: warps 0 and 1.
METAL_FUNC void carry(
    Barriers barriers, uint memory, const float* state, float* next, bool exists, uint rows, uint warp, uint lane)
{
    const uint element = lane / 4 * K_DIM + lane % 4 * 2;
    float s[16][4];
#pragma unroll
    for (uint n = 0; n < 16; n++) {
        float2 upper = float2(0.0f);
        float2 lower = float2(0.0f);
        if (exists) {
            upper = *(const float2*)(state + element + n * 8);
            lower = *(const float2*)(state + element + 8 * K_DIM + n * 8);
        }
        s[n][0] = upper.x;
        s[n][1] = upper.y;
        s[n][2] = lower.x;
        s[n][3] = lower.y;
    }
    const uint chunks = (rows + CHUNK - 1) / CHUNK;
    uint stage = 0;
    uint parity = 0;
    for (uint chunk = 0; chunk < chunks; chunk++) {
        const uint set = chunk % 2;
        const uint from = memory + stage * STAGE;
        const uint handover = memory + AT_HANDOVER + (set * 2 + warp) * HANDOVER + lane * 16;
        uint packed[8][4];
#pragma unroll
        for (uint k = 0; k < 8; k++) {
            pack_sums(packed[k], s[2 * k], s[2 * k + 1]);
        }
        barrier_wait_alone(barriers.taken(warp, set), chunk / 2 % 2 ^ 1);
#pragma unroll
        for (uint k = 0; k < 8; k++) {
            store_words(handover + k * 512, packed[k]);
        }
        barrier_arrive(barriers.state(warp, set));

        // Rᵀ = Uᵀ - S Wᵀ
        barrier_wait_alone(barriers.full(stage), parity);
        float r[8][4] = {};
        multiply_rows(r, packed, from + AT_W, lane);
        const uint at_u = from + AT_U + (lane / 16 * 8 + lane % 8) * U_ROW + warp * 32 + lane / 8 % 2 * 16;
        const uint at_left = from + AT_DECAY + CHUNK * 4 + lane % 4 * 8;
        uint weighted[4][4];
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            uint u[4];  // tokens by 8, value rows by 8 within
            load_blocks_transposed(u, at_u + k * 16 * U_ROW);
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                float(&sums)[4] = r[2 * k + i];
                sums[0] = low_bfloat(u[2 * i]) - sums[0];
                sums[1] = high_bfloat(u[2 * i]) - sums[1];
                sums[2] = low_bfloat(u[2 * i + 1]) - sums[2];
                sums[3] = high_bfloat(u[2 * i + 1]) - sums[3];
            }
            uint plain[4];
            pack_sums(plain, r[2 * k], r[2 * k + 1]);
            store_words(handover + (8 + k) * 512, plain);
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                const float2 left = load_floats(at_left + (2 * k + i) * 32);
                weighted[k][2 * i] = pack_pair(r[2 * k + i][0] * left.x, r[2 * k + i][1] * left.y);
                weighted[k][2 * i + 1] = pack_pair(r[2 * k + i][2] * left.x, r[2 * k + i][3] * left.y);
            }
        }
        barrier_arrive(barriers.remainders(warp, set));

        // S <- e^(G_C) S + (left R)ᵀ K
        const float end = load_floats(from + AT_DECAY + 2 * CHUNK * 4).x;
#pragma unroll
        for (uint n = 0; n < 16; n++) {
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                s[n][i] *= end;
            }
        }
        const uint at_k = from + AT_K + lane % 16 * ROW + lane / 16 * 16;
#pragma unroll
        for (uint k = 0; k < 4; k++) {
#pragma unroll
            for (uint n = 0; n < 8; n++) {
                uint right[4];
                load_blocks_transposed(right, at_k + k * 16 * ROW + n * 32);
                multiply_block(s[2 * n], weighted[k], right[0], right[1]);
                multiply_block(s[2 * n + 1], weighted[k], right[2], right[3]);
            }
        }
        barrier_arrive(barriers.empty(stage));
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
#pragma unroll
    for (uint n = 0; n < 16; n++) {
        *(float2*)(next + element + n * 8) = float2(s[n][0], s[n][1]);
        *(float2*)(next + element + 8 * K_DIM + n * 8) = float2(s[n][2], s[n][3]);
    }
}

// Forms the outputs of 16 value rows, `core` those of the first token: warps 2 and 3.
METAL_FUNC void put_out(Barriers barriers, uint memory, float* core, uint rows, uint warp, uint lane) {
    const uint chunks = (rows + CHUNK - 1) / CHUNK;
    uint stage = 0;
    uint parity = 0;
    for (uint chunk = 0; chunk < chunks; chunk++) {
        const uint set = chunk % 2;
        const uint tokens = min(CHUNK, rows - chunk * CHUNK);
        const uint from = memory + stage * STAGE;
        const uint handover = memory + AT_HANDOVER + (set * 2 + warp) * HANDOVER + lane * 16;
        barrier_wait_alone(barriers.state(warp, set), chunk / 2 % 2);
        uint packed[8][4];
#pragma unroll
        for (uint k = 0; k < 8; k++) {
            load_words(packed[k], handover + k * 512);
        }
        barrier_wait_alone(barriers.full(stage), parity);
        float o[8][4] = {};
        multiply_rows(o, packed, from + AT_Q, lane);
        const uint at_decay = from + AT_DECAY + lane % 4 * 8;
#pragma unroll
        for (uint n = 0; n < 8; n++) {
            const float2 decay = load_floats(at_decay + n * 32);
            o[n][0] *= decay.x;
            o[n][1] *= decay.y;
            o[n][2] *= decay.x;
            o[n][3] *= decay.y;
        }
        barrier_wait_alone(barriers.remainders(warp, set), chunk / 2 % 2);
        uint left[4][4];
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            load_words(left[k], handover + (8 + k) * 512);
        }
        barrier_arrive(barriers.taken(warp, set));
        const uint at_p = from + AT_P + (lane / 16 * 8 + lane % 8) * P_ROW + lane / 8 % 2 * 16;
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            // Columns of P that a short chunk does not have are not there.
            const uint column = k * 16 + lane % 4 * 2;
            uint keep[2];
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                const uint at = column + i * 8;
                keep[i] = (at < tokens ? 0xffffu : 0) | (at + 1 < tokens ? 0xffff0000u : 0);
            }
#pragma unroll
            for (uint n = k; n < 4; n++) {
                uint right[4];
                load_blocks(right, at_p + n * 16 * P_ROW + k * 32);
                multiply_block(o[2 * n], left[k], right[0] & keep[0], right[1] & keep[1]);
                multiply_block(o[2 * n + 1], left[k], right[2] & keep[0], right[3] & keep[1]);
            }
        }
        barrier_arrive(barriers.empty(stage));
        float* to = core + ulong(chunk * CHUNK + lane % 4 * 2) * (V_HEADS * V_DIM) + lane / 4;
#pragma unroll
        for (uint n = 0; n < 8; n++) {
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                if (n * 8 + lane % 4 * 2 + i < tokens) {
                    to[(n * 8 + i) * (V_HEADS * V_DIM)] = o[n][i];
                    to[(n * 8 + i) * (V_HEADS * V_DIM) + 8] = o[n][2 + i];
                }
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) gdn_chunk_scan(
    const __grid_constant__ Args args,
    const int* control,
    const bfloat* __restrict__ gq,
    const bfloat* __restrict__ gk,
    const bfloat* __restrict__ chunk_u,
    const bfloat* __restrict__ chunk_w,
    const float* __restrict__ chunk_g,
    const bfloat* __restrict__ chunk_p,
    const float* __restrict__ qkv,
    float* state,
    float* __restrict__ core,
    float* __restrict__ conv)
{
    extern __shared__ uint4 shared_words[];
    const uint memory = shared_address(shared_words);
    const uint tid = threadIdx.x;
    const uint warp = __shfl_sync(0xffffffffu, tid / 32, 0);
    const uint lane = tid % 32;
    Barriers barriers;
    barriers.first = memory + AT_BARRIERS;
    if (tid == 0) {
        for (uint i = 0; i < STAGES; i++) {
            barrier_init(barriers.full(i), 256);
            barrier_init(barriers.empty(i), 128);
        }
        for (uint i = 0; i < 12; i++) {
            barrier_init(barriers.state(0, 0) + i * 8, 32);
        }
    }
    __syncthreads();
    wait_for_previous_kernel();
    const uint rows = chunk_rows(control, args.step);
    if (rows == 0) {
        return;
    }
    const uint sequence = args.step.sequence;
    const uint position = row_position(control, args.step, 0);
    const uint head = blockIdx.y;
    const uint first = blockIdx.x * VALUES;
    if (warp >= 4) {
        unsigned char* bytes = (unsigned char*)shared_words;
        bring(barriers, bytes, gq, gk, chunk_u, chunk_w, chunk_g, chunk_p, rows, head, first, tid - 128);
        const uint index = (blockIdx.y * gridDim.x + blockIdx.x) * 128 + tid - 128;
        store_columns(
            args.gdn, qkv, conv, sequence, position, rows, args.kept_columns, index, gridDim.x * gridDim.y * 128);
    } else if (warp >= 2) {
        float* to = core + head * V_DIM + first + (warp - 2) * 16;
        put_out(barriers, memory, to, rows, warp - 2, lane);
    } else {
        const uint own = (first + warp * 16) * K_DIM;
        const float* from = state + state_at(args.gdn, sequence, position, head) + own;
        float* to = state + state_at(args.gdn, sequence, position + rows, head) + own;
        carry(barriers, memory, from, to, position != 0, rows, warp, lane);
    }
}
