// attn_split_prepare for compute capability 9.0; buffers in kernel.metal.
//
// Mapping as in hopper.cu of attn_split. The first tiles are on their way before the kernel waits for the projections:
// rows of earlier steps and the control block are older than the kernel before this one. Each block prepares its queries
// into shared memory; those that hold the new position prepare key and value too and put them into their tiles; one of
// them stores them. No one reads the new row of the cache.
#include "packed_keys.h"
#include "rotary.h"

constant constexpr uint BATCHES = (GROUP + HEADS - 1) / HEADS;

extern "C" __global__ void __launch_bounds__(THREADS, 2) attn_split_prepare(
    const __grid_constant__ Args args,
    const int* __restrict__ control,
    const float* __restrict__ aq,
    const float* __restrict__ ak,
    const float* __restrict__ av,
    const float* __restrict__ q_norm,
    const float* __restrict__ k_norm,
    uint4* k,
    uint4* v,
    float* __restrict__ part_o,
    float2* __restrict__ part_ml)
{
    extern __shared__ uint4 rings[];
    __shared__ float2 stats[WARPS * 8];
    __shared__ uint4 prepared[(HEADS + 2) * WORDS];  // queries, key, value
    const uint warp = threadIdx.x / 32;
    const uint lane = threadIdx.x % 32;

    const uint row = blockIdx.z;
    if (!row_lives(control, args.step, row)) {
        wait_for_previous_kernel();  // or the next kernel might overtake the one before this one
        return;
    }
    const uint position = row_position(control, args.step, row);
    const uint length = position + 1;
    const uint size = block_keys(length, args.splits);
    const uint begin = blockIdx.x * size;
    if (begin >= length) {
        return;
    }
    const uint end = min(begin + size, length);
    const bool newest = end == length;
    const uint kv_head = blockIdx.y / BATCHES;
    const uint batch = blockIdx.y % BATCHES * HEADS;
    const uint heads = min(uint(HEADS), GROUP - batch);
    const uint head = row * args.prepared.q_heads + kv_head * GROUP + batch;
    const float eps = args.prepared.rotary.rms_eps;
    const uint cache = row * args.prepared.kv_heads + kv_head;
    const ulong first = ulong(cache) * args.prepared.capacity * WORDS;

    Source source;
    source.keys = k + first;
    source.values = v + first;
    source.end = end;
    source.stored = newest ? position : end;
    source.ring = shared_address(rings) + warp * RING_BYTES;
    start_tiles(source, begin + warp * KEYS, lane);
    wait_for_previous_kernel();

    bfloat4* fours = (bfloat4*)prepared;
#pragma unroll
    for (uint i = 0; i < (HEADS + WARPS - 1) / WARPS; i++) {
        const uint h = i * WARPS + warp;
        if (h < heads) {
            prepare_head(aq + (head + h) * HEAD_DIM, q_norm, eps, position, fours + h * HEAD_FOURS, lane);
        }
    }
    if (newest) {
        const uint from = (row * args.prepared.kv_heads + kv_head) * HEAD_DIM;
        if (warp == 0) {
            prepare_head(ak + from, k_norm, eps, position, fours + HEADS * HEAD_FOURS, lane);
        }
        if (warp == 1) {
            copy_head(av + from, fours + (HEADS + 1) * HEAD_FOURS, lane);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    Queries queries;
    load_queries(queries, (const uint*)prepared, heads, lane);
    if (newest && batch == 0 && lane < WORDS) {
        if (warp == 0) {
            k[first + ulong(position) * WORDS + lane] = prepared[HEADS * WORDS + lane];
        }
        if (warp == 1) {
            v[first + ulong(position) * WORDS + lane] = prepared[(HEADS + 1) * WORDS + lane];
        }
    }
    Part part;
    attend(
        part, queries, source, begin, rings + warp * (RING_BYTES / 16), prepared + HEADS * WORDS, warp, lane);
    write_parts(
        part, stats, rings, part_o, part_ml, head * args.part_stride + blockIdx.x, args.part_stride, heads, warp, lane);
}
