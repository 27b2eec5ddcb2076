// The part of the chunked delta rule that does not depend on the state, for compute capability 9.0; formula and buffers
// in mod.rs. K_DIM and V_DIM 128, operands and results in bfloat.
//
// A block of 4 warps owns a chunk of 64 tokens of one value head. K Kᵀ and Q Kᵀ have exact products, a warp owns 16
// rows; they become P and L = -A in its registers. T = (I - L)⁻¹ grows in the place of L with float accuracy: blocks of 16
// on the diagonal by substitution, then twice the block left of two solved ones, T_BA = T_BB L_BA T_AA. Last,
// U = (T diag(beta)) V and W = (T diag(beta e^G)) K, a warp owns 64 columns of one of them and leaves its results where
// their factor was. Tokens that a short chunk does not have repeat its last one with beta = 0.
#include "gdn_chunk.h"
#include "fragments.h"

constexpr uint PITCH = CHUNK + 8;    // of T
constexpr uint M_PITCH = 40;         // of products on their way to T
constexpr uint ROW = 128 * 2 + 16;   // bytes of a row of K, Q, V: eight rows lie on different banks
constexpr uint AT_K = 0;
constexpr uint AT_V = AT_K + CHUNK * ROW;
constexpr uint AT_Q = AT_V + CHUNK * ROW;  // then P, a warp's in the place of its queries; then products
constexpr uint AT_T = AT_Q + CHUNK * ROW;
constexpr uint AT_SMALL = AT_T + CHUNK * PITCH * 4;
constexpr uint SHARED_BYTES = AT_SMALL + 4 * CHUNK * 4;
static_assert(SHARED_BYTES == SHARED_MEMORY, "shared memory that the launch asks for");

// x <- column `lane` of the inverse of I - L, L the strict lower part of a block of 16.
METAL_FUNC void invert_column(float (&x)[16], const float* block, uint lane) {
#pragma unroll
    for (uint i = 0; i < 16; i++) {
        float row[16];
#pragma unroll
        for (uint j = 0; j < i; j += 4) {
            const float4 quart = *(const float4*)(block + i * PITCH + j);
            row[j] = quart.x;
            row[j + 1] = quart.y;
            row[j + 2] = quart.z;
            row[j + 3] = quart.w;
        }
        float sum = i == lane ? 1.0f : 0.0f;
#pragma unroll
        for (uint j = 0; j < i; j++) {
            sum = fma(row[j], x[j], sum);
        }
        x[i] = sum;
    }
}

// sums [16, 16] += left [16, 8 steps] right [8 steps, 16].
METAL_FUNC void multiply_floats(
    FloatSums (&sums)[2], const float* left, uint left_pitch, const float* right, uint right_pitch, uint steps)
{
    for (uint k = 0; k < steps; k++) {
        FloatLeft l;
        load_rows(l, left + k * 8, left_pitch);
#pragma unroll
        for (uint n = 0; n < 2; n++) {
            FloatRight r;
            load_rows(r, right + k * 8 * right_pitch + n * 8, right_pitch);
            multiply(sums[n], l, r);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 3) gdn_chunk_prepare(
    const __grid_constant__ Args args,
    const int* control,
    const bfloat* __restrict__ gq,
    const bfloat* __restrict__ gk,
    const bfloat* __restrict__ gv,
    const float* __restrict__ beta,
    const float* __restrict__ log_decay,
    bfloat* __restrict__ chunk_u,
    bfloat* __restrict__ chunk_w,
    float* __restrict__ chunk_g,
    bfloat* __restrict__ chunk_p)
{
    extern __shared__ uint4 shared_words[];
    unsigned char* bytes = (unsigned char*)shared_words;
    const uint memory = shared_address(shared_words);
    float* t = (float*)(bytes + AT_T);
    float* g_high = (float*)(bytes + AT_SMALL);  // G as two sums: of the decays cut to multiples of 1 / 256, exact,
    float* g_low = g_high + CHUNK;               // and of the small rest
    float* strength = g_low + CHUNK;             // beta
    float* key_strength = strength + CHUNK;      // beta e^G
    const uint tid = threadIdx.x;
    const uint sg = __shfl_sync(0xffffffffu, tid / 32, 0);
    const uint lane = tid % 32;
    wait_for_previous_kernel();
    const uint rows = chunk_rows(control, args.step);
    const uint start = blockIdx.x * CHUNK;
    if (start >= rows) {
        return;
    }
    const uint tokens = min(CHUNK, rows - start);
    const uint head = blockIdx.y;
    const uint key_head = head / HEADS_PER_KEY;

    // 1. Everything is asked for; meanwhile G and the factors of rows.
#pragma unroll
    for (uint i = 0; i < 8; i++) {
        const uint row = i * 8 + tid / 16;
        const ulong at = (ulong(start + min(row, tokens - 1)) * K_HEADS + key_head) * K_DIM + tid % 16 * 8;
        const uint to = memory + row * ROW + tid % 16 * 16;
        copy_async_16(to + AT_K, gk + at);
        copy_async_16(to + AT_Q, gq + at);
    }
    copy_async_commit();
#pragma unroll
    for (uint i = 0; i < 8; i++) {
        const uint row = i * 8 + tid / 16;
        const ulong at = (ulong(start + min(row, tokens - 1)) * V_HEADS + head) * V_DIM + tid % 16 * 8;
        copy_async_16(memory + AT_V + row * ROW + tid % 16 * 16, gv + at);
    }
    copy_async_commit();
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
    copy_async_wait<1>();
    __syncthreads();

    // 2. K Kᵀ and Q Kᵀ up to the diagonal, the warp's 16 rows.
    float kk[8][4] = {};
    float qk[8][4] = {};
    {
        const uint at_left = memory + (sg * 16 + lane % 16) * ROW + lane / 16 * 16;
        const uint at_right = memory + AT_K + (lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 16;
#pragma unroll
        for (uint k = 0; k < 8; k++) {
            uint left_k[4];
            uint left_q[4];
            load_blocks(left_k, at_left + AT_K + k * 32);
            load_blocks(left_q, at_left + AT_Q + k * 32);
#pragma unroll
            for (uint n = 0; n < 4; n++) {
                if (n <= sg) {
                    uint right[4];
                    load_blocks(right, at_right + n * 16 * ROW + k * 32);
                    multiply_block(kk[2 * n], left_k, right[0], right[1]);
                    multiply_block(kk[2 * n + 1], left_k, right[2], right[3]);
                    multiply_block(qk[2 * n], left_q, right[0], right[1]);
                    multiply_block(qk[2 * n + 1], left_q, right[2], right[3]);
                }
            }
        }
    }

    // 3. P and L. P goes out by whole rows, through the place of the warp's queries.
    __syncwarp();
#pragma unroll
    for (uint half = 0; half < 2; half++) {
        const uint i = sg * 16 + half * 8 + lane / 4;
        const float high = g_high[i];
        const float low = g_low[i];
        const float own_strength = -strength[i];
        uint* p = (uint*)(bytes + AT_Q + i * ROW) + lane % 4;
        float* l = t + i * PITCH + lane % 4 * 2;
#pragma unroll
        for (uint n = 0; n < 8; n++) {
            float decayed[2] = {};
            float factor[2] = {};
            if (n / 2 <= sg) {
#pragma unroll
                for (uint e = 0; e < 2; e++) {
                    const uint j = n * 8 + lane % 4 * 2 + e;
                    const float decay = precise::exp(min((high - g_high[j]) + (low - g_low[j]), 0.0f));
                    decayed[e] = j <= i ? decay * qk[n][half * 2 + e] : 0.0f;
                    factor[e] = j < i ? own_strength * decay * kk[n][half * 2 + e] : 0.0f;
                }
                *(float2*)(l + n * 8) = float2(factor[0], factor[1]);
            }
            p[n * 4] = pack_pair(decayed[0], decayed[1]);
        }
    }
    __syncwarp();
#pragma unroll
    for (uint pass = 0; pass < 4; pass++) {
        const uint i = sg * 16 + pass * 4 + lane / 8;
        const uint j = lane % 8 * 8;
        if (i < tokens && j < tokens) {
            const uint4* from = (const uint4*)(bytes + AT_Q + i * ROW) + lane % 8;
            bfloat* to = chunk_p + (ulong(start + i) * V_HEADS + head) * CHUNK + j;
            if (j + 8 <= tokens) {
                *(uint4*)to = *from;
            } else {
                for (uint e = 0; e < tokens - j; e++) {
                    to[e] = ((const bfloat*)from)[e];
                }
            }
        }
    }

    // 4. The diagonal blocks of T.
    float* own = t + sg * 16 * (PITCH + 1);
    float x[16];
    if (lane < 16) {
        invert_column(x, own, lane);
    }
    __syncwarp();
    if (lane < 16) {
#pragma unroll
        for (uint i = 0; i < 16; i++) {
            own[i * PITCH + lane] = x[i];
        }
    }
    __syncthreads();

    // 5. Two blocks of 16 beside the diagonal, half of one by each warp; then the one of 32, a quarter by each.
    float* products = (float*)(bytes + AT_Q);
    {
        float* corner = t + sg / 2 * 32 * (PITCH + 1);
        float* product = products + sg * 16 * 8;
        FloatSums sums;
        clear(sums);
#pragma unroll
        for (uint k = 0; k < 2; k++) {
            FloatLeft left;
            FloatRight right;
            load_rows(left, corner + 16 * PITCH + k * 8, PITCH);
            load_rows(right, corner + k * 8 * PITCH + sg % 2 * 8, PITCH);
            multiply(sums, left, right);
        }
        store_rows(sums, product, 8);
        __syncwarp();
        clear(sums);
#pragma unroll
        for (uint k = 0; k < 2; k++) {
            FloatLeft left;
            FloatRight right;
            load_rows(left, corner + 16 * (PITCH + 1) + k * 8, PITCH);
            load_rows(right, product + k * 8 * 8, 8);
            multiply(sums, left, right);
        }
        __syncthreads();
        store_rows(sums, corner + 16 * PITCH + sg % 2 * 8, PITCH);
        __syncthreads();
    }
    {
        const uint row = sg / 2 * 16;
        const uint column = sg % 2 * 16;
        float* lower = t + 32 * PITCH;
        FloatSums sums[2];
        clear(sums[0]);
        clear(sums[1]);
        // Rows of T above `column` are zero there.
        multiply_floats(
            sums, lower + row * PITCH + column, PITCH, t + column * (PITCH + 1), PITCH, 4 - column / 8);
        store_rows(sums[0], products + row * M_PITCH + column, M_PITCH);
        store_rows(sums[1], products + row * M_PITCH + column + 8, M_PITCH);
        copy_async_wait<0>();
        __syncthreads();
        clear(sums[0]);
        clear(sums[1]);
        multiply_floats(sums, lower + row * PITCH + 32, PITCH, products + column, M_PITCH, row / 8 + 2);
        store_rows(sums[0], lower + row * PITCH + column, PITCH);
        store_rows(sums[1], lower + row * PITCH + column + 8, PITCH);
        __syncthreads();
    }

    // 6. U and W.
    const float* factors = sg < 2 ? strength : key_strength;
    uint left[4][4][4];  // rows by 16, columns by 16 up to the diagonal
#pragma unroll
    for (uint k = 0; k < 4; k++) {
        const float2 first = *(const float2*)(factors + k * 16 + lane % 4 * 2);
        const float2 second = *(const float2*)(factors + k * 16 + lane % 4 * 2 + 8);
#pragma unroll
        for (uint m = k; m < 4; m++) {
            const float* at = t + (m * 16 + lane / 4) * PITCH + k * 16 + lane % 4 * 2;
            const float2 a = *(const float2*)at;
            const float2 b = *(const float2*)(at + 8 * PITCH);
            const float2 c = *(const float2*)(at + 8);
            const float2 d = *(const float2*)(at + 8 * PITCH + 8);
            left[m][k][0] = pack_pair(a.x * first.x, a.y * first.y);
            left[m][k][1] = pack_pair(b.x * first.x, b.y * first.y);
            left[m][k][2] = pack_pair(c.x * second.x, c.y * second.y);
            left[m][k][3] = pack_pair(d.x * second.x, d.y * second.y);
        }
    }
    const uint place = (sg < 2 ? AT_V : AT_K) + sg % 2 * 128;
    const uint at_right = memory + place + lane % 16 * ROW + lane / 16 * 16;
    unsigned char* results = bytes + place + lane / 4 * ROW + lane % 4 * 4;
#pragma unroll
    for (uint n = 0; n < 4; n++) {
        float sums[4][2][4] = {};
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            uint right[4];
            load_blocks_transposed(right, at_right + k * 16 * ROW + n * 32);
#pragma unroll
            for (uint m = k; m < 4; m++) {
                multiply_block(sums[m][0], left[m][k], right[0], right[1]);
                multiply_block(sums[m][1], left[m][k], right[2], right[3]);
            }
        }
        __syncwarp();
#pragma unroll
        for (uint m = 0; m < 4; m++) {
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                unsigned char* to = results + m * 16 * ROW + n * 32 + i * 16;
                *(uint*)to = pack_pair(sums[m][i][0], sums[m][i][1]);
                *(uint*)(to + 8 * ROW) = pack_pair(sums[m][i][2], sums[m][i][3]);
            }
        }
    }
    __syncwarp();
    bfloat* to = (sg < 2 ? chunk_u : chunk_w) + (ulong(start) * V_HEADS + head) * 128 + sg % 2 * 64 + lane % 8 * 8;
#pragma unroll
    for (uint pass = 0; pass < 16; pass++) {
        const uint i = pass * 4 + lane / 8;
        if (i < tokens) {
            *(uint4*)(to + ulong(i) * (V_HEADS * 128)) = *(const uint4*)(bytes + place + i * ROW + lane % 8 * 16);
        }
    }
}
