// Work list of the grouped products; crate::routing in Rust.
#pragma once
#include "lily.h"

// Whether the step computes anything, and so whether somebody has written the work list. Whole simdgroups call it.
METAL_FUNC bool any_row_lives(const device int* control, constant StepArgs& step, uint lane) {
    if (step.prefill != 0) {
        return chunk_rows(control, step) != 0;
    }
    bool lives = false;
    for (uint row = lane; row < step.rows; row += 32) {
        lives = lives || row_lives(control, step, row);
    }
    return simd_any(lives);
}

// Rows of one expert that stand together in the sorted order. None: the entry is not used.
struct WorkEntry {
    uint expert;
    uint first;
    uint rows;
};

METAL_FUNC WorkEntry work_entry(const device int* work, uint at) {
    WorkEntry entry;
    entry.expert = uint(work[at * 4]);
    entry.first = uint(work[at * 4 + 1]);
    entry.rows = uint(work[at * 4 + 2]);
    return entry;
}
