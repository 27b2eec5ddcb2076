//! Small reads that do not wait: a copy on the GPU into a slot, behind the step it belongs to.

use lily_kernels::gpu::Source;

/// The function that copies up to 64 bytes, one a thread.
const TEXT: &str = "\
#include <metal_stdlib>
using namespace metal;
struct Args { uint bytes; };
#line 1 \"fetch/kernel.metal\"
[[kernel, max_total_threads_per_threadgroup(64)]] void fetch_bytes(
    constant Args& args [[buffer(0)]],
    const device uchar* from [[buffer(1)]],
    device uchar* to [[buffer(2)]],
    uint tid [[thread_index_in_threadgroup]])
{
    if (tid < args.bytes) {
        to[tid] = from[tid];
    }
}
";

/// Threads of the copy: one for each byte of the largest read.
pub(crate) const THREADS: u32 = lily_plan::FETCH_BYTES as u32;

/// Its complete source.
pub(crate) fn source() -> Source {
    Source::metal(TEXT, "fetch_bytes")
}
