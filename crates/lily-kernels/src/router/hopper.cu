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
// with ones, then adds scale (codes part) + (bias + 128 scale) (ones part) in float.
//
// A block owns 16 ROW_WARPS tokens and OUTPUT_TILE matrix rows; COLUMN_WARPS warps share the columns of the same tokens
// and add up their parts at the end. A warp needs no other one until then: inputs come through a ring of shared memory
// of its own, codes a step ahead into its registers. Of a group, lane t of four holds columns 16t to 16t + 15 of both
// factors; the order of the summed index is free. The last block begins early enough to be whole.
#include "lily.h"
#include "fragments.h"

constexpr uint OUTPUT_TILE = 72;
constexpr uint BLOCKS = OUTPUT_TILE / 8;
constexpr uint WARPS = ROW_WARPS * COLUMN_WARPS;
constexpr uint GROUPS = INPUT_WIDTH / 64;
constexpr uint STEPS = GROUPS / COLUMN_WARPS;
constexpr uint STAGES = 4;
constexpr uint PART = 16 * 4 + 16;          // bytes of 16 columns: two rows of four lie on different banks
constexpr uint ROW = 4 * PART;              // of the inputs of a group
constexpr uint STAGE = 16 * ROW;
constexpr uint SUM_PITCH = OUTPUT_TILE + 4;
constexpr uint AT_PAIRS = WARPS * STAGES * STAGE;
constexpr uint AT_NORM = AT_PAIRS + GROUPS * OUTPUT_TILE * 8;
constexpr uint AT_SCALES = AT_NORM + GROUPS * ROW;
constexpr uint OPERANDS = AT_SCALES + 16 * ROW_WARPS * 4;
constexpr uint PARTS = WARPS * 16 * SUM_PITCH * 4;  // where everything else was
static_assert(GROUPS % COLUMN_WARPS == 0, "warps have as many groups");
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
    float2* pairs = (float2*)(bytes + AT_PAIRS);  // scale, bias + 128 scale: [GROUPS, OUTPUT_TILE]
    unsigned char* norm = bytes + AT_NORM;        // as a row of inputs for each group
    float* scales = (float*)(bytes + AT_SCALES);
    const uint tid = threadIdx.x;
    const uint warp = __shfl_sync(0xffffffffu, tid / 32, 0);
    const uint lane = tid % 32;
    const uint first_group = warp / ROW_WARPS * STEPS;
    const uint first_output = min(blockIdx.x * OUTPUT_TILE, OUTPUTS < OUTPUT_TILE ? 0u : OUTPUTS - OUTPUT_TILE);
    const uint first = blockIdx.y * (16 * ROW_WARPS);

    // 1. What no kernel writes: codes of the first step, scales, the norm.
    const uint4* own_codes = weight + first_group * 4 + lane % 4;
    if (OUTPUTS >= OUTPUT_TILE) {
        own_codes += (first_output + lane / 4) * (INPUT_WIDTH / 16);
    }
    const auto code_word = [&](uint n, uint step) {
        const uint row = OUTPUTS >= OUTPUT_TILE ? n * 8 : min(n * 8 + lane / 4, uint(OUTPUTS - 1));
        return own_codes[row * (INPUT_WIDTH / 16) + step * 4];
    };
    uint4 codes[BLOCKS];
#pragma unroll
    for (uint n = 0; n < BLOCKS; n++) {
        codes[n] = code_word(n, 0);
    }
    const uint* all_pairs = (const uint*)(weight + OUTPUTS * (INPUT_WIDTH / 16));
#pragma unroll 4
    for (uint i = tid; i < GROUPS * OUTPUT_TILE; i += WARPS * 32) {
        const uint row = min(first_output + i / GROUPS, uint(OUTPUTS - 1));
        const uint pair = all_pairs[row * GROUPS + i % GROUPS];
        const float2 both = float2(low_bfloat(pair), fma(128.0f, low_bfloat(pair), high_bfloat(pair)));
        pairs[i % GROUPS * OUTPUT_TILE + i / GROUPS] = both;
    }
#pragma unroll 4
    for (uint i = tid; i < INPUT_WIDTH / 4; i += WARPS * 32) {
        *(float4*)(norm + i / 4 * PART + i % 4 * 16) = ((const float4*)post_norm)[i];
    }
    wait_for_previous_kernel();
    const uint live = chunk_rows(control, args.step);
    if (first >= live) {
        return;
    }
    const uint rows = min(live - first, uint(16 * ROW_WARPS));

    // 2. The warp's ring of inputs; 1 / rms of the rows.
    const uint ring = shared_address(bytes) + warp * STAGES * STAGE;
    const uint first_row = warp % ROW_WARPS * 16;
    const float4* own_inputs = x + first_group * 16 + lane % 16;
    uint offsets[8];
#pragma unroll
    for (uint i = 0; i < 8; i++) {
        offsets[i] = (first + min(first_row + i * 2 + lane / 16, rows - 1)) * (INPUT_WIDTH / 4);
    }
    const auto bring = [&](uint step) {
        if (step < STEPS) {
            const uint to = ring + step % STAGES * STAGE + lane / 16 * ROW + lane % 16 / 4 * PART + lane % 4 * 16;
#pragma unroll
            for (uint i = 0; i < 8; i++) {
                copy_async_16(to + i * 2 * ROW, own_inputs + offsets[i] + step * 16);
            }
        }
        copy_async_commit();
    };
#pragma unroll
    for (uint step = 0; step < STAGES - 1; step++) {
        bring(step);
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
    const uint row = first_row + lane / 4;
    const float scale[2] = {scales[min(row, rows - 1)], scales[min(row + 8, rows - 1)]};

    float sums[BLOCKS][4] = {};
    for (uint step = 0; step < STEPS; step++) {
        // 3. Inputs as halfs. Row 8 of the lane lies 8 rows behind its first one.
        copy_async_wait<STAGES - 2>();
        __syncwarp();
        const unsigned char* inputs = bytes + (warp * STAGES + step % STAGES) * STAGE + lane / 4 * ROW + lane % 4 * PART;
        const unsigned char* own_norm = norm + (first_group + step) * ROW + lane % 4 * PART;
        uint high[4][4];
        uint low[4][4];
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            const float4 n = *(const float4*)(own_norm + k * 16);
#pragma unroll
            for (uint half = 0; half < 2; half++) {
                const float4 v = *(const float4*)(inputs + half * 8 * ROW + k * 16) * n * scale[half];
                split_pair(high[k][half], low[k][half], v.x, v.y);
                split_pair(high[k][2 + half], low[k][2 + half], v.z, v.w);
            }
        }
        bring(step + STAGES - 1);

        // 4. Sums of the inputs.
        float ones[4] = {};
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            multiply_halfs(ones, low[k], 0x3c003c00u, 0x3c003c00u);
        }
#pragma unroll
        for (uint k = 0; k < 4; k++) {
            multiply_halfs(ones, high[k], 0x3c003c00u, 0x3c003c00u);
        }

        // 5. The products with codes, of which the next step's are asked for.
        const float2* own_pairs = pairs + (first_group + step) * OUTPUT_TILE + lane % 4 * 2;
        const uint next = min(step + 1, STEPS - 1);
#pragma unroll
        for (uint n = 0; n < BLOCKS; n++) {
            float products[4] = {};
            uint right[8];
#pragma unroll
            for (uint k = 0; k < 4; k++) {
                right[2 * k] = code_pair(codes[n][k], 0);
                right[2 * k + 1] = code_pair(codes[n][k], 1);
            }
            codes[n] = code_word(n, next);
#pragma unroll
            for (uint k = 0; k < 4; k++) {
                multiply_halfs(products, low[k], right[2 * k], right[2 * k + 1]);
            }
#pragma unroll
            for (uint k = 0; k < 4; k++) {
                multiply_halfs(products, high[k], right[2 * k], right[2 * k + 1]);
            }
            const float4 pair = *(const float4*)(own_pairs + n * 8);
            sums[n][0] = fma(pair.x, products[0], fma(pair.y, ones[0], sums[n][0]));
            sums[n][1] = fma(pair.z, products[1], fma(pair.w, ones[1], sums[n][1]));
            sums[n][2] = fma(pair.x, products[2], fma(pair.y, ones[2], sums[n][2]));
            sums[n][3] = fma(pair.z, products[3], fma(pair.w, ones[3], sums[n][3]));
        }
    }

    // 6. The warps' parts, in their order.
    __syncthreads();
    float* parts = (float*)bytes + warp * 16 * SUM_PITCH;
#pragma unroll
    for (uint n = 0; n < BLOCKS; n++) {
        float* to = parts + lane / 4 * SUM_PITCH + n * 8 + lane % 4 * 2;
        *(float2*)to = float2(sums[n][0], sums[n][1]);
        *(float2*)(to + 8 * SUM_PITCH) = float2(sums[n][2], sums[n][3]);
    }
    __syncthreads();
    for (uint i = tid; i < rows * OUTPUT_TILE; i += WARPS * 32) {
        const uint token = i / OUTPUT_TILE;
        const uint output = i % OUTPUT_TILE;
        float sum = 0.0f;
#pragma unroll
        for (uint part = 0; part < COLUMN_WARPS; part++) {
            sum += ((const float*)bytes)[(part * ROW_WARPS * 16 + token) * SUM_PITCH + output];
        }
        if (first_output + output >= blockIdx.x * OUTPUT_TILE && first_output + output < OUTPUTS) {
            router_logits[(first + token) * OUTPUTS + first_output + output] = sum;
        }
    }
}
