// gdn_in for a chunk of tokens on compute capability 9.0; formula and buffers as in chunk.metal. Blocks take TILE_TOKENS
// tokens and TILE_OUTPUTS matrix rows in turn; see hopper_products.h.
#include "hopper_project.h"

// Writes two neighbouring columns of a token.
struct Columns {
    float* qkv;
    bfloat* z;
    float* ba;

    METAL_FUNC void store(uint token, uint output, float2 y) const {
        if (output < CONV_CHANNELS) {
            *(float2*)(qkv + ulong(token) * CONV_CHANNELS + output) = y;
        } else if (output < CONV_CHANNELS + V_WIDTH) {
            *(bfloat2*)(z + ulong(token) * V_WIDTH + output - CONV_CHANNELS) = bfloat2(y);
        } else {
            *(float2*)(ba + token * GATES + output - CONV_CHANNELS - V_WIDTH) = y;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gdn_in_chunk(
    const __grid_constant__ Args args, const int* control, const uint4* xn, const float* x_ss, const uint4* weight,
    float* qkv, bfloat* z, float* ba)
{
    extern __shared__ __align__(1024) uchar memory[];
    wait_for_previous_kernel();
    project_chunk(chunk_rows(control, args.step), xn, x_ss, args.norm, weight, memory, Columns{qkv, z, ba});
}
