// Matrix products of bfloats by one warp, for CUDA texts: blocks 16 x 16 times 16 x 8 with float sums, and how they come
// from shared memory. With g = lane / 4 and t = lane % 4 a lane holds of the left block columns 2t, 2t + 1 of rows g and
// g + 8, then columns 2t + 8, 2t + 9 of both; of the right block rows 2t, 2t + 1, then 2t + 8, 2t + 9 of column g; of the
// sums columns 2t, 2t + 1 of row g, then of row g + 8. So two neighbouring blocks of sums, packed, are a left block.
#pragma once
#include "hopper.h"

// sums += left right.
METAL_FUNC void multiply_block(float (&sums)[4], const uint (&left)[4], uint right_0, uint right_1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_0), "r"(right_1));
}

// Four blocks of 8 x 8, a lane's address is that of row lane % 8 of block lane / 8; a lane gets two neighbours of row g.
METAL_FUNC void load_blocks(uint (&blocks)[4], uint address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3]) : "r"(address) : "memory");
}
// The same, transposed: two neighbours of column g.
METAL_FUNC void load_blocks_transposed(uint (&blocks)[4], uint address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3]) : "r"(address) : "memory");
}

// The two rounded, `low` in the low half.
METAL_FUNC uint pack_pair(float low, float high) {
    uint pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
// Two neighbouring blocks of sums as a left block.
METAL_FUNC void pack_sums(uint (&left)[4], const float (&first)[4], const float (&second)[4]) {
    left[0] = pack_pair(first[0], first[1]);
    left[1] = pack_pair(first[2], first[3]);
    left[2] = pack_pair(second[0], second[1]);
    left[3] = pack_pair(second[2], second[3]);
}
