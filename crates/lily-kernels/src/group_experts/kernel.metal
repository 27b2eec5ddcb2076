// Groups (token, slot) pairs by expert, a stable counting sort, and lists tiles of TILE_ROWS sorted rows.
//
//   ids                  int [rows, SLOTS]; the experts of a row differ
//   row_token, row_slot  int [sorted rows]
//   work                 int [args.entries, 4]: expert, first sorted row, rows, number in the expert
//
// A threadgroup places the pairs of 64 rows. It counts all pairs for itself, those of the rows before its own and the
// others, so that no threadgroup waits for another; a scan over the experts turns counts into places. Which of its own
// rows chose an expert is a mask of 64 bits, since a row chooses it once: a row's place is the number of bits below its
// own. The shared expert is one more expert, chosen by every row in its last slot. Counters and masks are integers:
// nothing depends on the order of arrival. The work list is shared out by experts.
#include "lily.h"

constant constexpr uint SLOTS = TOP_K + 1;
constant constexpr uint GROUPS = EXPERTS + 1;
constant constexpr uint THREADS = 1024;
constant constexpr uint OWN_ROWS = 64;
constant constexpr uint GROUPS_PER_LANE = (GROUPS + 31) / 32;
constant constexpr uint AHEAD = 4;  // pairs of a thread that are fetched together
constant constexpr uint NO_EXPERT = GROUPS;

// Expert of a pair; NO_EXPERT if its row does not live.
METAL_FUNC uint expert_of(
    const device int* control, constant StepArgs& step, const device int* ids, uint rows, uint row, uint slot)
{
    if (row >= rows || (step.prefill == 0 && !row_lives(control, step, row))) {
        return NO_EXPERT;
    }
    return slot < TOP_K ? uint(ids[row * SLOTS + slot]) : uint(EXPERTS);
}

METAL_FUNC void add(threadgroup atomic_uint* counter) {
    atomic_fetch_add_explicit(counter, 1u, memory_order_relaxed);
}

[[kernel, max_total_threads_per_threadgroup(1024)]] void group_experts(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device int* ids [[buffer(2)]],
    device int* row_token [[buffer(3)]],
    device int* row_slot [[buffer(4)]],
    device int4* work [[buffer(5)]],
    uint tile [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup atomic_uint before[GROUPS];      // pairs of the rows before the own ones
    threadgroup atomic_uint others[GROUPS];
    threadgroup atomic_uint masks[2 * GROUPS];   // own rows, the lower 32 and the upper 32
    threadgroup uint first_row[GROUPS + 1];
    threadgroup uint first_entry[GROUPS + 1];

    const uint rows = args.step.prefill != 0 ? chunk_rows(control, args.step) : args.step.rows;
    const uint first = tile * OWN_ROWS;
    if (first >= rows) {
        return;
    }
    for (uint i = thread_index; i < GROUPS; i += THREADS) {
        atomic_store_explicit(before + i, 0u, memory_order_relaxed);
        atomic_store_explicit(others + i, 0u, memory_order_relaxed);
        atomic_store_explicit(masks + i, 0u, memory_order_relaxed);
        atomic_store_explicit(masks + GROUPS + i, 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint start = thread_index; start < rows * SLOTS; start += AHEAD * THREADS) {
        uint experts[AHEAD];
#pragma unroll
        for (uint i = 0; i < AHEAD; i++) {
            const uint pair = start + i * THREADS;
            experts[i] = expert_of(control, args.step, ids, rows, pair / SLOTS, pair % SLOTS);
        }
#pragma unroll
        for (uint i = 0; i < AHEAD; i++) {
            const uint row = (start + i * THREADS) / SLOTS;
            if (experts[i] < GROUPS) {
                if (row < first) {
                    add(before + experts[i]);
                } else {
                    add(others + experts[i]);
                    if (row < first + OWN_ROWS) {
                        const uint own = row - first;
                        threadgroup atomic_uint* mask = masks + own / 32 * GROUPS + experts[i];
                        atomic_fetch_or_explicit(mask, 1u << own % 32, memory_order_relaxed);
                    }
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (simdgroup == 0) {
        uint sums[GROUPS_PER_LANE];
        uint all = 0;
        uint tiles = 0;
#pragma unroll
        for (uint i = 0; i < GROUPS_PER_LANE; i++) {
            const uint expert = lane * GROUPS_PER_LANE + i;
            sums[i] = 0;
            if (expert < GROUPS) {
                sums[i] = atomic_load_explicit(before + expert, memory_order_relaxed)
                    + atomic_load_explicit(others + expert, memory_order_relaxed);
            }
            all += sums[i];
            tiles += (sums[i] + TILE_ROWS - 1) / TILE_ROWS;
        }
        uint row = simd_prefix_exclusive_sum(all);
        uint entry = simd_prefix_exclusive_sum(tiles);
#pragma unroll
        for (uint i = 0; i < GROUPS_PER_LANE; i++) {
            const uint expert = lane * GROUPS_PER_LANE + i;
            if (expert < GROUPS) {
                first_row[expert] = row;
                first_entry[expert] = entry;
            }
            row += sums[i];
            entry += (sums[i] + TILE_ROWS - 1) / TILE_ROWS;
        }
        if (lane == 31) {
            first_row[GROUPS] = row;
            first_entry[GROUPS] = entry;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (first_row[GROUPS] == 0) {
        return;
    }

    for (uint pair = thread_index; pair < OWN_ROWS * SLOTS; pair += THREADS) {
        const uint own = pair / SLOTS;
        const uint expert = expert_of(control, args.step, ids, rows, first + own, pair % SLOTS);
        if (expert < GROUPS) {
            const uint lower = atomic_load_explicit(masks + expert, memory_order_relaxed);
            const uint upper = atomic_load_explicit(masks + GROUPS + expert, memory_order_relaxed);
            const uint below = (1u << own % 32) - 1;
            const uint earlier = own < 32 ? popcount(lower & below) : popcount(lower) + popcount(upper & below);
            const uint at = first_row[expert] + atomic_load_explicit(before + expert, memory_order_relaxed) + earlier;
            row_token[at] = int(first + own);
            row_slot[at] = int(pair % SLOTS);
        }
    }
    const uint tiles = (rows + OWN_ROWS - 1) / OWN_ROWS;
    for (uint expert = tile * (THREADS / 32) + simdgroup; expert < GROUPS; expert += tiles * (THREADS / 32)) {
        const uint entry = first_entry[expert];
        const uint end = first_row[expert + 1];
        for (uint i = lane; i < first_entry[expert + 1] - entry; i += 32) {
            const uint row = first_row[expert] + i * TILE_ROWS;
            work[entry + i] = int4(int(expert), int(row), int(min(end - row, uint(TILE_ROWS))), int(i));
        }
    }
    for (uint i = first_entry[GROUPS] + tile * THREADS + thread_index; i < args.entries; i += tiles * THREADS) {
        work[i] = int4(0);
    }
}
