// router for a chunk of tokens and an 8-bit matrix, for compute capability 9.0: logits = ((x ∘ post_norm) / rms(x)) wᵀ.
//
//   x              f32 [rows, INPUT_WIDTH]
//   x_ss           f32 [rows, norm.ss_stride]
//   post_norm      f32 [INPUT_WIDTH]
//   weight         matrix [OUTPUTS, INPUT_WIDTH], 8 bit
//   router_logits  f32 [rows, OUTPUTS]
//
// A rounded input may choose another expert, so nothing is rounded that counts: a normalised input is the sum of two
// halfs, 22 bits, and a code less 128 is a half. For every group of 64 columns a warp multiplies both with the codes and
// both with ones, then adds scale (codes part) + (bias + 128 scale) (ones part) in float.
//
// A block owns 16 ROW_WARPS tokens and COLUMNS matrix rows; ROW_WARPS warps, 16 tokens each, share a tile of codes, and
// COLUMN_WARPS sets of them share the input columns and add up their parts at the end. Of 32 columns lane t of four
// holds columns 8t to 8t + 7, so that both factors are read in 16-byte words; the order of the summed index is free.
#include "lily.h"
#include "fragments.h"

constexpr uint COLUMNS = 72;
constexpr uint BLOCKS = COLUMNS / 8;
constexpr uint WARPS = ROW_WARPS * COLUMN_WARPS;
constexpr uint GROUPS = INPUT_WIDTH / 64;
constexpr uint STEPS = GROUPS / COLUMN_WARPS;
constexpr uint SET_THREADS = ROW_WARPS * 32;
constexpr uint HALF_TILE = COLUMNS * 64 + 16;  // bytes of the codes of 32 columns, as halfs
constexpr uint TILE = 2 * HALF_TILE;
constexpr uint CODE_WORDS = COLUMNS * 4;       // 16-byte words of codes of a tile
constexpr uint OWN_WORDS = (CODE_WORDS + SET_THREADS - 1) / SET_THREADS;
constexpr uint SUM_PITCH = COLUMNS + 4;
constexpr uint AT_PAIRS = COLUMN_WARPS * 2 * TILE;
constexpr uint AT_NORM = AT_PAIRS + GROUPS * COLUMNS * 4;
constexpr uint AT_SCALES = AT_NORM + INPUT_WIDTH * 4;
constexpr uint OPERANDS = AT_SCALES + 16 * ROW_WARPS * 4;
constexpr uint PARTS = WARPS * 16 * SUM_PITCH * 4;  // where everything else was
static_assert(GROUPS % COLUMN_WARPS == 0, "sets have as many groups");
static_assert((OPERANDS > PARTS ? OPERANDS : PARTS) == SHARED_MEMORY, "shared memory that the launch asks for");

// sums += left right, halfs.
METAL_FUNC void multiply_halfs(float (&sums)[4], const uint (&left)[4], uint right_0, uint right_1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_0), "r"(right_1));
}

// Two values as the sum of two pairs of halfs.
METAL_FUNC void split_pair(uint& high, uint& low, float x, float y) {
    asm("{\n.reg .b16 a, b;\n.reg .f32 p, q;\n"
        "cvt.rn.satfinite.f16x2.f32 %0, %3, %2;\n"
        "mov.b32 {a, b}, %0;\n"
        "cvt.f32.f16 p, a;\ncvt.f32.f16 q, b;\n"
        "sub.f32 p, %2, p;\nsub.f32 q, %3, q;\n"
        "cvt.rn.f16x2.f32 %1, q, p;\n}"
        : "=&r"(high), "=r"(low) : "f"(x), "f"(y));
}

// Codes 2 `pair` and 2 `pair` + 1 of four, less 128, as halfs: 1024 + code is a half with the code as its last bits.
METAL_FUNC uint code_pair(uint codes, uint pair) {
    const uint raised = __byte_perm(codes, 0x64646464u, pair == 0 ? 0x4140 : 0x4342);
    uint halfs;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(halfs) : "r"(raised), "r"(0x64806480u));
    return halfs;
}

METAL_FUNC void sync_set(uint set) {
    if (ROW_WARPS == 1) {
        __syncwarp();
    } else {
        asm volatile("bar.sync %0, %1;" ::"r"(set + 1), "r"(SET_THREADS) : "memory");
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) router_chunk(
    const __grid_constant__ Args args,
    const int* control,
    const float4* __restrict__ x,
    const float* __restrict__ x_ss,
    const float* __restrict__ post_norm,
    const uint4* __restrict__ weight,
    float* __restrict__ router_logits)
{
    extern __shared__ uint4 shared_words[];
    unsigned char* bytes = (unsigned char*)shared_words;
    uint* pairs = (uint*)(bytes + AT_PAIRS);  // [GROUPS, COLUMNS]
    float* norm = (float*)(bytes + AT_NORM);
    float* scales = (float*)(bytes + AT_SCALES);
    const uint tid = threadIdx.x;
    const uint warp = __shfl_sync(0xffffffffu, tid / 32, 0);
    const uint lane = tid % 32;
    const uint set = warp / ROW_WARPS;
    const uint set_tid = tid - set * SET_THREADS;
    const uint first_column = blockIdx.x * COLUMNS;
    const uint first = blockIdx.y * (16 * ROW_WARPS);

    // 1. What no kernel writes: codes of the first step, scales, the norm.
    uint4 codes[OWN_WORDS];
    const uint4* own_codes[OWN_WORDS];
#pragma unroll
    for (uint i = 0; i < OWN_WORDS; i++) {
        const uint word = i * SET_THREADS + set_tid;
        const uint row = min(first_column + word / 4, uint(OUTPUTS - 1));
        own_codes[i] = weight + row * (INPUT_WIDTH / 16) + set * STEPS * 4 + word % 4;
        codes[i] = *own_codes[i];
    }
    const uint* all_pairs = (const uint*)(weight + OUTPUTS * (INPUT_WIDTH / 16));
    for (uint i = tid; i < GROUPS * COLUMNS; i += WARPS * 32) {
        const uint row = min(first_column + i / GROUPS, uint(OUTPUTS - 1));
        pairs[i % GROUPS * COLUMNS + i / GROUPS] = all_pairs[row * GROUPS + i % GROUPS];
    }
    for (uint i = tid; i < INPUT_WIDTH; i += WARPS * 32) {
        norm[i] = post_norm[i];
    }
    wait_for_previous_kernel();
    const uint live = chunk_rows(control, args.step);
    if (first >= live) {
        return;
    }
    const uint rows = min(live - first, uint(16 * ROW_WARPS));

    // 2. The warp's inputs of the first step; 1 / rms of the rows.
    const uint row = warp % ROW_WARPS * 16 + lane / 4;
    const float4* upper = x + (first + min(row, rows - 1)) * (INPUT_WIDTH / 4) + set * STEPS * 16 + lane % 4 * 2;
    const float4* lower = x + (first + min(row + 8, rows - 1)) * (INPUT_WIDTH / 4) + set * STEPS * 16 + lane % 4 * 2;
    float4 inputs[2][2][2];  // columns by 32, upper and lower row, quarts
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        inputs[i / 2][0][i % 2] = upper[i / 2 * 8 + i % 2];
        inputs[i / 2][1][i % 2] = lower[i / 2 * 8 + i % 2];
    }
    for (uint i = warp; i < rows; i += WARPS) {
        const float* ss = x_ss + ulong(first + i) * args.norm.ss_stride;
        float sum = 0.0f;
        for (uint tile = lane; tile < args.norm.ss_tiles; tile += 32) {
            sum += ss[tile];
        }
        sum = simd_sum(sum);
        if (lane == 0) {
            scales[i] = precise::rsqrt(sum / float(args.norm.hidden) + args.norm.rms_eps);
        }
    }
    __syncthreads();
    const float scale[2] = {scales[min(row, rows - 1)], scales[min(row + 8, rows - 1)]};

    float sums[BLOCKS][4] = {};
    for (uint step = 0; step < STEPS; step++) {
        // 3. The set's codes as halfs; the next step's are asked for.
        unsigned char* tile = bytes + (set * 2 + step % 2) * TILE;
#pragma unroll
        for (uint i = 0; i < OWN_WORDS; i++) {
            const uint word = i * SET_THREADS + set_tid;
            if (word < CODE_WORDS) {
                uint4* to = (uint4*)(tile + word % 4 / 2 * HALF_TILE + word / 4 * 64 + word % 2 * 32);
                const uint4 c = codes[i];
                to[0] = uint4(code_pair(c.x, 0), code_pair(c.x, 1), code_pair(c.y, 0), code_pair(c.y, 1));
                to[1] = uint4(code_pair(c.z, 0), code_pair(c.z, 1), code_pair(c.w, 0), code_pair(c.w, 1));
            }
        }
        sync_set(set);
        // 4. Inputs as halfs.
        uint high[2][2][4];
        uint low[2][2][4];
#pragma unroll
        for (uint b = 0; b < 2; b++) {
#pragma unroll
            for (uint quart = 0; quart < 2; quart++) {
                const float4 n = *(const float4*)(norm + (set * STEPS + step) * 64 + b * 32 + lane % 4 * 8 + quart * 4);
#pragma unroll
                for (uint half = 0; half < 2; half++) {
                    const float4 v = inputs[b][half][quart] * n * scale[half];
                    split_pair(high[b][quart][half], low[b][quart][half], v.x, v.y);
                    split_pair(high[b][quart][2 + half], low[b][quart][2 + half], v.z, v.w);
                }
            }
        }
        if (step + 1 < STEPS) {
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                inputs[i / 2][0][i % 2] = upper[(step + 1) * 16 + i / 2 * 8 + i % 2];
                inputs[i / 2][1][i % 2] = lower[(step + 1) * 16 + i / 2 * 8 + i % 2];
            }
#pragma unroll
            for (uint i = 0; i < OWN_WORDS; i++) {
                codes[i] = own_codes[i][(step + 1) * 4];
            }
        }
        // 5. Sums of the inputs, then of the products with codes.
        float ones[4] = {};
#pragma unroll
        for (uint b = 0; b < 2; b++) {
#pragma unroll
            for (uint quart = 0; quart < 2; quart++) {
                multiply_halfs(ones, low[b][quart], 0x3c003c00u, 0x3c003c00u);
            }
        }
#pragma unroll
        for (uint b = 0; b < 2; b++) {
#pragma unroll
            for (uint quart = 0; quart < 2; quart++) {
                multiply_halfs(ones, high[b][quart], 0x3c003c00u, 0x3c003c00u);
            }
        }
        const uint* group_pairs = pairs + (set * STEPS + step) * COLUMNS + lane % 4 * 2;
#pragma unroll
        for (uint n = 0; n < BLOCKS; n++) {
            float coarse[4] = {};
            float fine[4] = {};
#pragma unroll
            for (uint b = 0; b < 2; b++) {
                const uint4 right = *(const uint4*)(tile + b * HALF_TILE + (n * 8 + lane / 4) * 64 + lane % 4 * 16);
                multiply_halfs(coarse, high[b][0], right.x, right.y);
                multiply_halfs(fine, low[b][0], right.x, right.y);
                multiply_halfs(coarse, high[b][1], right.z, right.w);
                multiply_halfs(fine, low[b][1], right.z, right.w);
            }
            const uint2 pair = *(const uint2*)(group_pairs + n * 8);
            const float step_0 = low_bfloat(pair.x);
            const float step_1 = low_bfloat(pair.y);
            const float rest_0 = fma(128.0f, step_0, high_bfloat(pair.x));
            const float rest_1 = fma(128.0f, step_1, high_bfloat(pair.y));
            sums[n][0] += fma(rest_0, ones[0], step_0 * (coarse[0] + fine[0]));
            sums[n][1] += fma(rest_1, ones[1], step_1 * (coarse[1] + fine[1]));
            sums[n][2] += fma(rest_0, ones[2], step_0 * (coarse[2] + fine[2]));
            sums[n][3] += fma(rest_1, ones[3], step_1 * (coarse[3] + fine[3]));
        }
    }

    // 6. The sets' parts, in their order.
    __syncthreads();
    float* parts = (float*)bytes + warp * 16 * SUM_PITCH;
#pragma unroll
    for (uint n = 0; n < BLOCKS; n++) {
        float* to = parts + lane / 4 * SUM_PITCH + n * 8 + lane % 4 * 2;
        *(float2*)to = float2(sums[n][0], sums[n][1]);
        *(float2*)(to + 8 * SUM_PITCH) = float2(sums[n][2], sums[n][3]);
    }
    __syncthreads();
    const uint columns = min(COLUMNS, OUTPUTS - first_column);
    for (uint i = tid; i < rows * COLUMNS; i += WARPS * 32) {
        const uint token = i / COLUMNS;
        const uint column = i % COLUMNS;
        float sum = 0.0f;
#pragma unroll
        for (uint part = 0; part < COLUMN_WARPS; part++) {
            sum += ((const float*)bytes)[(part * ROW_WARPS * 16 + token) * SUM_PITCH + column];
        }
        if (column < columns) {
            router_logits[(first + token) * OUTPUTS + first_column + column] = sum;
        }
    }
}
