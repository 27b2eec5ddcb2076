// Choice of experts by one simdgroup. Constants: EXPERTS, TOP_K.
#pragma once
#include "lily.h"

constant constexpr uint SLOTS = TOP_K + 1;                       // the chosen experts and the shared one
constant constexpr uint LOGITS = EXPERTS + 1;                    // the last is the shared expert's
constant constexpr uint EXPERTS_PER_LANE = (EXPERTS + 31) / 32;  // lane l looks at experts l, l + 32, ...

// What lane `slot` knows after the choice: the expert of that slot and its weight.
struct Choice {
    int expert;
    float weight;
};

// A logit as the choice sees it: NaN counts as lowest, infinities as the largest finite values. Told
// from the bits, because fast arithmetic may assume that neither exists.
METAL_FUNC float rankable(float logit) {
    const uint bits = as_type<uint>(logit);
    if ((bits & 0x7fffffffu) < 0x7f800000u) {
        return logit;
    }
    return bits == 0x7f800000u ? FLT_MAX : -FLT_MAX;
}

// Softmax over all routed experts, the TOP_K most probable ones (ties to the lowest index) with weights
// p / sum of the chosen p; in the last slot the shared expert with weight sigmoid(its logit). The
// whole simdgroup calls it; `logits` is [LOGITS].
METAL_FUNC Choice choose_experts(const device float* logits, uint lane) {
    float own[EXPERTS_PER_LANE];
#pragma unroll
    for (uint i = 0; i < EXPERTS_PER_LANE; i++) {
        const uint expert = i * 32 + lane;
        own[i] = expert < EXPERTS ? rankable(logits[expert]) : -FLT_MAX;
    }
    uint taken = 0;  // bit i: own[i] is chosen
    Choice choice;
    choice.expert = EXPERTS;
    choice.weight = 0.0f;
    float largest = 0.0f;
    float sum = 0.0f;
    for (uint slot = 0; slot < TOP_K; slot++) {
        float best = -FLT_MAX;
        uint at = 0xffffffffu;
#pragma unroll
        for (uint i = 0; i < EXPERTS_PER_LANE; i++) {
            const uint expert = i * 32 + lane;
            const bool free = ((taken >> i) & 1) == 0 && expert < EXPERTS;
            if (free && (at == 0xffffffffu || own[i] > best)) {
                best = own[i];
                at = expert;
            }
        }
        const float value = simd_max(best);
        const uint expert = simd_min(best == value ? at : 0xffffffffu);
        if (expert == at) {
            taken |= 1u << (at / 32);
        }
        if (slot == 0) {
            largest = value;
        }
        const float weight = exp(value - largest);
        sum += weight;
        if (lane == slot) {
            choice.expert = int(expert);
            choice.weight = weight;
        }
    }
    choice.weight = lane == TOP_K ? sigmoid(logits[EXPERTS]) : choice.weight / sum;
    return choice;
}
