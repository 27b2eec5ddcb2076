// attn_in for a chunk of tokens on compute capability 9.0; formula and buffers as in chunk.metal. Blocks take TILE_TOKENS
// tokens and TILE_OUTPUTS matrix rows in turn; see hopper_products.h.
#include "hopper_project.h"

// Writes two neighbouring columns of a token.
struct Columns {
    float* aq;
    bfloat* gate;
    float* ak;
    float* av;

    METAL_FUNC void store(uint token, uint output, float2 y) const {
        const uint kv = output - 2 * Q_WIDTH;
        if (output < 2 * Q_WIDTH) {
            const uint head = output / (2 * HEAD_DIM);
            const uint column = output % HEAD_DIM;
            const ulong at = ulong(token) * Q_WIDTH + head * HEAD_DIM + column;
            if (output / HEAD_DIM % 2 == 0) {
                *(float2*)(aq + at) = y;
            } else {
                *(bfloat2*)(gate + at) = bfloat2(y);
            }
        } else if (kv < KV_WIDTH) {
            *(float2*)(ak + ulong(token) * KV_WIDTH + kv) = y;
        } else {
            *(float2*)(av + ulong(token) * KV_WIDTH + kv - KV_WIDTH) = y;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attn_in_chunk(
    const __grid_constant__ Args args, const int* control, const uint4* xn, const float* x_ss, const uint4* weight,
    float* aq, bfloat* gate, float* ak, float* av)
{
    extern __shared__ __align__(1024) uchar memory[];
    wait_for_previous_kernel();
    project_chunk(chunk_rows(control, args.step), xn, x_ss, args.norm, weight, memory, Columns{aq, gate, ak, av});
}
