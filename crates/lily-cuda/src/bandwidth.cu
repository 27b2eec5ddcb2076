// Reads memory as fast as the GPU can: `vectors` of 16 bytes. Every thread has READS of them in flight; a block takes
// pieces of READS * blockDim.x vectors, one grid apart. What was read is folded into one word, and written only if that
// is a number that the caller's memory does not give: so no read can be left out.

extern "C" __global__ void read_memory(
    const unsigned long long vectors,
    const uint4* memory,
    unsigned* out)
{
    const unsigned long long piece = (unsigned long long)READS * blockDim.x;
    unsigned fold = 0;
    for (unsigned long long at = blockIdx.x * piece + threadIdx.x; at < vectors; at += gridDim.x * piece) {
        uint4 values[READS];
#pragma unroll
        for (int i = 0; i < READS; ++i) {
            const unsigned long long from = at + (unsigned long long)i * blockDim.x;
            values[i] = from < vectors ? __ldcs(memory + from) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < READS; ++i) {
            fold ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
        }
    }
    if (fold == 0x5eed5eed) {
        out[0] = fold;
    }
}
