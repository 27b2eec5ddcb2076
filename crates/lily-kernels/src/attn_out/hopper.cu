// attn_out for a chunk of tokens on compute capability 9.0; formula and buffers as in chunk.metal. Blocks take TILE_TOKENS
// tokens and TILE_OUTPUTS columns in turn; see hopper_products.h.
#include "hopper_residual.h"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attn_out_chunk(
    const __grid_constant__ Args args, const int* control, const uint4* att, const uint4* weight, float* x,
    const float* next_norm, bfloat* xn, float* x_ss)
{
    extern __shared__ __align__(1024) uchar memory[];
    wait_for_previous_kernel();
    project_chunk_to_residual(
        chunk_rows(control, args.step), att, weight, memory, args.residual, x, next_norm, xn, x_ss);
}
