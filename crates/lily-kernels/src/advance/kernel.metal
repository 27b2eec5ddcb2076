// End of a prefill chunk that is not the last: position += count.
//
//   control  int [batch, 8], read and written
//
// One simdgroup, of which one lane works.
#include "lily.h"

[[kernel, max_total_threads_per_threadgroup(32)]] void advance(
    constant Args& args [[buffer(0)]],
    device int* control [[buffer(1)]],
    uint lane [[thread_index_in_simdgroup]])
{
    device int* words = control + args.step.sequence * CONTROL_WORDS;
    const int count = words[CONTROL_COUNT];
    if (lane > 0 || words[CONTROL_HALT] != 0 || count <= 0) {
        return;
    }
    const int position = words[CONTROL_POSITION];
    words[CONTROL_POSITION] = position > 0x7fffffff - count ? 0x7fffffff : position + count;
}
