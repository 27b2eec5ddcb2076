// attn_split for compute capability 9.0; buffers in kernel.metal.
//
// A block of threads owns a block of keys of one KV head, for HEADS of the GROUP query heads that share it; its warps
// take turns at tiles of 16 keys. See packed_keys.h. Blocks beyond the length are not written.
#include "packed_keys.h"

constant constexpr uint BATCHES = (GROUP + HEADS - 1) / HEADS;

extern "C" __global__ void __launch_bounds__(THREADS, 2) attn_split(
    const __grid_constant__ Args args,
    const int* __restrict__ control,
    const uint4* __restrict__ q,
    const uint4* __restrict__ k,
    const uint4* __restrict__ v,
    float* __restrict__ part_o,
    float2* __restrict__ part_ml)
{
    extern __shared__ uint4 rings[];
    __shared__ float2 stats[WARPS * 8];
    const uint warp = threadIdx.x / 32;
    const uint lane = threadIdx.x % 32;

    wait_for_previous_kernel();
    const uint row = blockIdx.z;
    if (!row_lives(control, args.step, row)) {
        return;
    }
    const uint length = row_position(control, args.step, row) + 1;
    const uint size = block_keys(length, args.splits);
    const uint begin = blockIdx.x * size;
    if (begin >= length) {
        return;
    }
    const uint kv_head = blockIdx.y / BATCHES;
    const uint batch = blockIdx.y % BATCHES * HEADS;
    const uint heads = min(uint(HEADS), GROUP - batch);
    const uint head = row * args.q_heads + kv_head * GROUP + batch;
    const uint cache = row_sequence(args.step, row) * args.kv_heads + kv_head;
    const ulong first = ulong(cache) * args.capacity * WORDS;

    Source source;
    source.keys = k + first;
    source.values = v + first;
    source.end = min(begin + size, length);
    source.stored = source.end;
    source.ring = shared_address(rings) + warp * RING_BYTES;
    start_tiles(source, begin + warp * KEYS, lane);
    Queries queries;
    load_queries(queries, (const uint*)(q + head * WORDS), heads, lane);
    Part part;
    attend(part, queries, source, begin, rings + warp * (RING_BYTES / 16), rings, warp, lane);
    write_parts(
        part, stats, rings, part_o, part_ml, head * args.part_stride + blockIdx.x, args.part_stride, heads, warp, lane);
}
