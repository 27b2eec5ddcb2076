// Causal attention of a prefill chunk, with the gate: att = sigmoid(gate) o softmax(q K^T / sqrt(256)) V. The form for
// compute capability 9.0 and heads of 256.
//
//   q, gate, att  bfloat [rows, q_heads, 256]
//   k, v          bfloat [batch, kv_heads, capacity, 256]
//
// A block owns 128 (token, query head of the group) pairs of one KV head: two warpgroups multiply 64 each, outputs and
// weights in registers, queries in shared memory. A third warpgroup copies tiles of 80 keys and values, two places for
// each. The scores of the next tile are started before the product of this one's weights with its values, so that
// softmax runs beside that product. Softmax in f32, weights rounded to bfloat. Where there are too few pairs for the
// chip, a cluster of SPLITS blocks shares them and each takes a part of the keys, if they are many. Blocks with the
// most keys run first. Constants: GROUP, SPLITS (1 to 8), SCORE_SCALE (log2(e) / sqrt(256)).
#include "flash.h"

constant constexpr uint PART_TILES = 4;  // a part of the keys has no fewer
constant constexpr uint KEYS_AT = 2 * QUERY_BYTES;
constant constexpr uint VALUES_AT = KEYS_AT + STAGES * TILE_BYTES;
constant constexpr uint BARRIERS_AT = VALUES_AT + STAGES * TILE_BYTES;

#if SPLITS > 1
#define CLUSTER __cluster_dims__(1, 1, SPLITS)
#else
#define CLUSTER
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(384, 1) attn_flash_hopper(
    const __grid_constant__ Args args,
    const int* __restrict__ control,
    const uint4* __restrict__ q,
    const uint4* __restrict__ gate,
    const uint4* __restrict__ k,
    const uint4* __restrict__ v,
    uint4* __restrict__ att)
{
    extern __shared__ uint4 arena[];
    const uint memory = (shared_address(arena) + 1023) & ~1023u;
    const Places keys = {memory + KEYS_AT, memory + BARRIERS_AT};
    const Places values = {memory + VALUES_AT, memory + BARRIERS_AT + STAGES * 16};
    const uint warp = lily_simdgroup_index_in_threadgroup().x;
    const uint warpgroup = warp / 4;
    const uint tid = threadIdx.x % 128;

    if (threadIdx.x == 0) {
        keys.start();
        values.start();
    }
    __syncthreads();
    wait_for_previous_kernel();
    const uint count = chunk_rows(control, args.step);
    const Pairs pairs = {(gridDim.y - 1 - blockIdx.y) * TILE_ROWS, count * GROUP, blockIdx.x, args.kv_heads};
    if (pairs.first >= pairs.end) {
        return;
    }
    const uint base_position = row_position(control, args.step, 0);
    const uint end = base_position + min((pairs.first + TILE_ROWS - 1) / GROUP, count - 1) + 1;
    const uint all_tiles = (end + TILE_KEYS - 1) / TILE_KEYS;
    const uint part_tiles = SPLITS == 1 ? all_tiles : max((all_tiles + SPLITS - 1) / SPLITS, PART_TILES);
    const uint parts = (all_tiles + part_tiles - 1) / part_tiles;
    if (blockIdx.z >= parts) {
        return;
    }
    const uint first_key = blockIdx.z * part_tiles * TILE_KEYS;
    const uint tiles = min(part_tiles, all_tiles - blockIdx.z * part_tiles);

    if (warpgroup == 2) {
        registers_shrink<24>();
        const ulong head = args.step.sequence * args.kv_heads + pairs.kv_head;
        const ulong cache = (head * args.capacity + first_key) * WORDS;
        for (uint tile = 0; tile <= tiles; tile++) {
            const uint at = tile * TILE_KEYS;
            if (tile < tiles) {
                keys.copy(tile, k + cache + at * WORDS, end - first_key - at, tid);
            }
            if (tile > 0) {
                const uint before = at - TILE_KEYS;
                values.copy(tile - 1, v + cache + before * WORDS, end - first_key - before, tid);
            }
        }
        copy_async_wait<0>();
        return;
    }
    registers_grow<240>();
    const uint lane = threadIdx.x % 32;
    const uint queries = memory + warpgroup * QUERY_BYTES;
    for (uint i = 0; i < 16; i++) {
        const uint row = i * 4 + tid / WORDS;
        const uint pair = pairs.first + warpgroup * 64 + row;
        const bool valid = pair < pairs.end;
        copy_async_16(queries + swizzled(row, tid % WORDS, QUERY_SLICE),
                      q + pairs.place(valid ? pair : pairs.first) * WORDS + tid % WORDS, valid);
    }
    copy_async_commit();
    copy_async_wait<0>();
    fence_shared_for_products();
    threads_meet(1 + warpgroup, 128);

    const uint row = pairs.first + warp * 16 + lane / 4;
    const uint visible[2] = {base_position + row / GROUP + 1, base_position + (row + 8) / GROUP + 1};
    float outputs[128];
#pragma unroll
    for (uint i = 0; i < 128; i++) {
        outputs[i] = 0.0f;
    }
    float scores[TILE_KEYS / 2];
    uint weights[TILE_KEYS / 16][4];
    Softmax softmax;
    softmax.start();

    keys.wait(0);
    start_scores(scores, queries, keys.tile(0));
    products_wait<0>();
    pin(scores);
    keys.release(0, lane);
    softmax.weigh(scores, first_key, visible, lane);
    round_weights(weights, scores);
    for (uint tile = 1; tile < tiles; tile++) {
        keys.wait(tile);
        start_scores(scores, queries, keys.tile(tile));
        values.wait(tile - 1);
        start_outputs(outputs, weights, values.tile(tile - 1));
        products_wait<1>();
        pin(scores);
        keys.release(tile, lane);
        softmax.weigh(scores, first_key + tile * TILE_KEYS, visible, lane);
        products_wait<0>();
        pin(outputs);
        pin(scores);
        values.release(tile - 1, lane);
        if (softmax.moved) {
#pragma unroll
            for (uint i = 0; i < 128; i++) {
                outputs[i] *= softmax.factor[i / 2 % 2];
            }
        }
        round_weights(weights, scores);
    }
    values.wait(tiles - 1);
    start_outputs(outputs, weights, values.tile(tiles - 1));
    products_wait<0>();
    pin(outputs);
    if (SPLITS > 1 && parts > 1) {
        threads_meet(3, 256);  // nobody reads the tiles any more
        merge_outputs(outputs, softmax, memory, gate, att, pairs, blockIdx.z, parts, warp, lane);
        return;
    }
    threads_meet(1 + warpgroup, 128);  // nobody reads the warpgroup's queries any more
    store_outputs(outputs, softmax, memory + warp * 16 * 512, gate, att, pairs, warp * 16, lane);
}
