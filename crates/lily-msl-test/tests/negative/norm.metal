// RMSNorm of two rows, and a count of threads: the victim of most planted faults.
constant constexpr uint N = 512;
constant constexpr uint THREADS = 128;

METAL_FUNC float squares(float4 v, float sum) { return sum + dot(v, v); }
METAL_FUNC void scale_all(thread float4& v, float scale) { v = v * scale; }
METAL_FUNC float part(const threadgroup float* parts, uint i) { return parts[i]; }

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void norm(
    constant Args& args [[buffer(0)]],
    const device float4* x [[buffer(1)]],       // [2, N]
    device bfloat4* y [[buffer(2)]],            // [2, N]
    device atomic_uint* count [[buffer(3)]],    // [1]
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float parts[4];
    const device float4* own = x + row * (N / 4);
    float4 v = own[tid];
    float sum = simd_sum(squares(v, 0.0f));
    if (lane == 0) {
        parts[simd] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < args.parts; i++) {
        total += part(parts, i);
    }
    scale_all(v, precise::rsqrt(total / float(N) + args.eps));
    y[row * (N / 4) + tid] = bfloat4(v);
    atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
}
