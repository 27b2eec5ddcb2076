// Choice of experts: ids and route of every token from its router logits; see routing.h.
//
//   router_logits  f32 [rows, EXPERTS + 1]
//   ids            int [rows, TOP_K + 1], the last is the shared expert, index EXPERTS
//   route          f32 [rows, TOP_K + 1]
//
// A threadgroup of one simdgroup owns a row.
#include "routing.h"

[[kernel, max_total_threads_per_threadgroup(32)]] void topk(
    constant Args& args [[buffer(0)]],
    const device int* control [[buffer(1)]],
    const device float* router_logits [[buffer(2)]],
    device int* ids [[buffer(3)]],
    device float* route [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]])
{
    if (!row_lives(control, args.step, row)) {
        return;
    }
    const Choice choice = choose_experts(router_logits + row * LOGITS, lane);
    if (lane < SLOTS) {
        ids[row * SLOTS + lane] = choice.expert;
        route[row * SLOTS + lane] = choice.weight;
    }
}
