// Groups (token, slot) pairs by expert, a stable counting sort, and lists tiles of TILE_ROWS sorted rows.
//
//   ids                  int [rows, SLOTS]; the experts of a row differ
//   row_token, row_slot  int [sorted rows]
//   work                 int [args.entries, 4]: expert, first sorted row, rows, number in the expert
//
// One threadgroup. Each of its SHARES simdgroups owns a contiguous share of the tokens and counts for itself how often
// each expert is chosen in it: a token's slots lie in different lanes and never meet in a counter. A scan over (expert,
// share) turns counts into places, and the same walk over the tokens fills these. The shared expert is one more expert,
// chosen by every token in its last slot. Nothing is placed by arrival.
#include "lily.h"

constant constexpr uint SLOTS = TOP_K + 1;
constant constexpr uint GROUPS = EXPERTS + 1;
constant constexpr uint THREADS = SHARES * 32;
constant constexpr uint GROUPS_PER_LANE = (GROUPS + 31) / 32;
constant constexpr uint AHEAD = 4;  // rows whose ids are fetched together

// Rows of one simdgroup.
struct Share {
    uint first;
    uint end;
};

METAL_FUNC Share share_of(uint rows, uint simdgroup) {
    const uint size = (rows + SHARES - 1) / SHARES;
    Share share;
    share.first = min(simdgroup * size, rows);
    share.end = min(share.first + size, rows);
    return share;
}

// Experts of rows `row` to `row + AHEAD` in the lane's slot; EXPERTS + 1 where there is none.
METAL_FUNC void fetch_experts(
    thread uint (&experts)[AHEAD], const device int* control, constant StepArgs& step, const device int* ids, uint row,
    uint end, uint lane)
{
#pragma unroll
    for (uint i = 0; i < AHEAD; i++) {
        const bool lives = row + i < end && (step.prefill != 0 || row_lives(control, step, row + i));
        experts[i] = GROUPS;
        if (lives && lane < TOP_K) {
            experts[i] = uint(ids[(row + i) * SLOTS + lane]);
        } else if (lives && lane == TOP_K) {
            experts[i] = EXPERTS;
        }
    }
}

[[kernel, max_total_threads_per_threadgroup(1024)]] void group_experts(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device int* ids [[buffer(2)]],
    device int* row_token [[buffer(3)]],
    device int* row_slot [[buffer(4)]],
    device int4* work [[buffer(5)]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup ushort counts[SHARES * GROUPS];  // [share][expert], then rows of the expert in earlier shares
    threadgroup uint first_row[GROUPS + 1];
    threadgroup uint first_entry[GROUPS + 1];

    for (uint i = thread_index; i < SHARES * GROUPS; i += THREADS) {
        counts[i] = 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    const uint rows = args.step.prefill != 0 ? chunk_rows(control, args.step) : args.step.rows;
    const Share share = share_of(rows, simdgroup);
    threadgroup ushort* own = counts + simdgroup * GROUPS;
    uint experts[AHEAD];
    for (uint row = share.first; row < share.end; row += AHEAD) {
        fetch_experts(experts, control, args.step, ids, row, share.end, lane);
#pragma unroll
        for (uint i = 0; i < AHEAD; i++) {
            if (experts[i] < GROUPS) {
                own[experts[i]] = ushort(own[experts[i]] + 1);
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint expert = thread_index; expert < GROUPS; expert += THREADS) {
        uint sum = 0;
        for (uint i = 0; i < SHARES; i++) {
            const uint count = counts[i * GROUPS + expert];
            counts[i * GROUPS + expert] = ushort(sum);
            sum += count;
        }
        first_row[expert] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (simdgroup == 0) {
        uint sums[GROUPS_PER_LANE];
        uint all = 0;
        uint tiles = 0;
#pragma unroll
        for (uint i = 0; i < GROUPS_PER_LANE; i++) {
            const uint expert = lane * GROUPS_PER_LANE + i;
            sums[i] = expert < GROUPS ? first_row[expert] : 0;
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

    for (uint row = share.first; row < share.end; row += AHEAD) {
        fetch_experts(experts, control, args.step, ids, row, share.end, lane);
#pragma unroll
        for (uint i = 0; i < AHEAD; i++) {
            if (experts[i] < GROUPS) {
                const uint before = own[experts[i]];
                own[experts[i]] = ushort(before + 1);
                const uint at = first_row[experts[i]] + before;
                row_token[at] = int(row + i);
                row_slot[at] = int(lane);
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    for (uint expert = simdgroup; expert < GROUPS; expert += SHARES) {
        const uint entry = first_entry[expert];
        const uint end = first_row[expert + 1];
        for (uint i = lane; i < first_entry[expert + 1] - entry; i += 32) {
            const uint row = first_row[expert] + i * TILE_ROWS;
            work[entry + i] = int4(int(expert), int(row), int(min(end - row, uint(TILE_ROWS))), int(i));
        }
    }
    for (uint i = first_entry[GROUPS] + thread_index; i < args.entries; i += THREADS) {
        work[i] = int4(0);
    }
}
