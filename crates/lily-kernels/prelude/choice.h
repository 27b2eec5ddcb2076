// The end of a step: a chosen token becomes its sequence's next input.
#pragma once
#include "lily.h"

constant constexpr uint STOP_IDS = 8;  // lily_plan::control
constant constexpr int HALT_ENDED = 1;
constant constexpr int HALT_NON_FINITE = 2;
constant constexpr int LARGEST = 0x7fffffff;
constant constexpr int INFINITE = 0x7f800000;

// Bits of a float as an integer of the same order; both zeros are equal, a NaN is above everything. Fast arithmetic
// may assume that there is no NaN and no infinity, and these must be seen.
METAL_FUNC int order_of(int bits) {
    const int magnitude = bits & LARGEST;
    return magnitude > INFINITE ? LARGEST : bits < 0 ? -magnitude : magnitude;
}

METAL_FUNC int saturating_add(int value, int added) { return value > LARGEST - added ? LARGEST : value + added; }

// Whether a token is chosen for the sequence with these control words.
METAL_FUNC bool choice_lives(constant ChoiceArgs& args, const device int* words) {
    return words[CONTROL_HALT] == 0 && (args.step.prefill == 0 || words[CONTROL_COUNT] > 0);
}

// Position of the token that is chosen.
METAL_FUNC int choice_position(constant ChoiceArgs& args, const device int* words) {
    return saturating_add(words[CONTROL_POSITION], args.step.prefill != 0 ? words[CONTROL_COUNT] : 1);
}

// Hands out a token; by one thread, after everybody has read the control words. `largest` is the order of the largest
// candidate: if that is not finite, nothing is chosen.
METAL_FUNC void finish_choice(
    constant ChoiceArgs& args,
    device int* words,
    const device int* stop_ids,
    device int* output,
    uint sequence,
    int largest,
    int id)
{
    if (largest >= INFINITE || largest <= -INFINITE) {
        words[CONTROL_HALT] = HALT_NON_FINITE;
        return;
    }
    const int was = words[CONTROL_PRODUCED];
    const int produced = saturating_add(was, 1);
    const int position = choice_position(args, words);
    bool ends = produced >= words[CONTROL_LIMIT] || position >= int(args.capacity);
    for (uint i = 0; i < STOP_IDS; i++) {
        ends = ends || stop_ids[sequence * STOP_IDS + i] == id;
    }
    output[sequence * args.ring + uint(max(was, 0)) % args.ring] = id;
    words[CONTROL_TOKEN] = id;
    words[CONTROL_PRODUCED] = produced;
    words[CONTROL_POSITION] = position;
    if (ends) {
        words[CONTROL_HALT] = HALT_ENDED;
    }
}
