// Products of matrix tiles by Metal 4 tensor operations: the four simdgroups of a threadgroup multiply a whole tile
// of TILE_ROWS rows together, from operands in threadgroup memory. Only operations that leave the layout of
// the sums to the device are used.
#pragma once
#if TENSOR_OPERATIONS
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;

typedef tensor<threadgroup bfloat, dextents<int, 2>, tensor_inline> TileOperand;
typedef tensor<threadgroup float, dextents<int, 2>, tensor_inline> TileResult;

// A tile of `rows` rows of `columns` bfloats.
METAL_FUNC TileOperand tile_operand(threadgroup bfloat* at, uint columns, uint rows, uint pitch) {
    return TileOperand(at, dextents<int, 2>(int(columns), int(rows)), array<int, 2>{1, int(pitch)});
}

template <typename Sums>
METAL_FUNC void tile_clear(thread Sums& sums) {
#pragma unroll
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        sums[i] = 0.0f;
    }
}

// Writes a tile [TILE_ROWS, 64] to rows of `pitch` floats.
template <typename Sums>
METAL_FUNC void tile_store(thread Sums& sums, threadgroup float* to, uint pitch, uint) {
    TileResult result(to, dextents<int, 2>(64, TILE_ROWS), array<int, 2>{1, int(pitch)});
    sums.store(result);
}
#endif
