// c [16, 8] = a [16, K] x b [8, K] transposed, by two simdgroups through threadgroup memory.
constant constexpr uint K = 32;

[[kernel, max_total_threads_per_threadgroup(64)]] void product(
    constant Args& args [[buffer(0)]],
    const device bfloat* a [[buffer(1)]],
    const device bfloat* b [[buffer(2)]],
    device float* c [[buffer(3)]],
    uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]])
{
    threadgroup bfloat rows[16 * 8];
    threadgroup bfloat columns[8 * 8];
    simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(args.eps);
    for (uint k = 0; k < K; k += 8) {
#pragma unroll
        for (uint i = tid; i < 128; i += 64) {
            rows[i] = a[i / 8 * K + k + i % 8];
        }
        columns[tid] = b[tid / 8 * K + k + tid % 8];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_bfloat8x8 left;
        simdgroup_bfloat8x8 right;
        simdgroup_load(left, rows + simd * 64, 8);
        simdgroup_load(right, columns, 8, ulong2(0), true);
        simdgroup_multiply_accumulate(sum, left, right, sum);
        threadgroup_barrier(mem_flags::mem_threadgroup);  // before the next step stores
    }
    simdgroup_store(sum, c + simd * 64, 8);
}
