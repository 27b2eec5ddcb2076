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

// Rows of one expert that stand together in the sorted order. None: the threadgroup has nothing to do.
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

// The rows of tile `at`. Constants: TILE_ROWS, and ENTRY_ROWS, of a full entry of the list. Lower tiles are parts
// of an entry; a higher one takes an expert's entries 2n and 2n + 1, and leaves nothing to the second's threadgroup.
METAL_FUNC WorkEntry tile_entry(const device int* work, uint at, uint entries) {
    constexpr uint parts = TILE_ROWS < ENTRY_ROWS ? ENTRY_ROWS / TILE_ROWS : 1;
    WorkEntry entry = work_entry(work, at / parts);
    if (TILE_ROWS < ENTRY_ROWS) {
        const uint skip = at % parts * TILE_ROWS;
        entry.first += skip;
        entry.rows = entry.rows > skip ? min(entry.rows - skip, uint(TILE_ROWS)) : 0;
    } else if (TILE_ROWS > ENTRY_ROWS) {
        if (work[at * 4 + 3] % 2 != 0) {
            entry.rows = 0;
        } else if (entry.rows == ENTRY_ROWS && at + 1 < entries) {
            const WorkEntry next = work_entry(work, at + 1);
            entry.rows += next.expert == entry.expert ? next.rows : 0;
        }
    }
    return entry;
}
