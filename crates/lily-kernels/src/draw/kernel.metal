// Random choice: a token drawn from the largest logits of a row becomes its sequence's next token.
//
//   control     int [batch, 8], read and written
//   best_value  f32 [batch, GROUPS], as bits: the largest logit of every HEAD_ROWS ids
//   logits      f32 [logit_rows, vocab], as bits
//   sampling    uint [batch, 8]: the rule, draw.h
//   stop_ids    int [batch, 8], padded with -1
//   output      int [batch, ring]
//
// A threadgroup owns a row of candidates; a prefill chunk has row 0 alone. It finds the groups with the largest bests,
// loads their logits, finds the largest of these, sorts them by counting, and its first simdgroup draws. What is among
// the largest is found by halving the range of keys until few enough lie above the border, a barrier for each step:
// about five for the groups and two for the logits, where the values are spread; never more than 64. Only whole
// numbers are compared. Up to 64 candidates; groups of a multiple of 32 ids.
#include "choice.h"
#include "draw.h"

constant constexpr uint SIMDGROUPS = THREADS / 32;
constant constexpr uint GROUP_KEYS = (GROUPS + THREADS - 1) / THREADS;
constant constexpr uint LOGIT_KEYS = (MOST_GROUPS * HEAD_ROWS + THREADS - 1) / THREADS;
constant constexpr uint MOST_KEYS = 128;  // keys that are sorted; above DRAW_MOST, so that the search ends early

// A value and its index as a number: larger for a larger value, and for a lower index on ties. Never 0.
METAL_FUNC ulong key_of(int order, uint index) {
    return ulong(uint(order) ^ 0x80000000u) << 32 | ulong(~index);
}

// Not above any key of this order, and above all of lower ones.
METAL_FUNC ulong first_key(int order) { return ulong(uint(order) ^ 0x80000000u) << 32; }

METAL_FUNC float key_value(ulong key) {
    const int order = int(uint(key >> 32) ^ 0x80000000u);
    return as_type<float>(order < 0 ? 0x80000000u | uint(-order) : uint(order));
}

METAL_FUNC uint key_index(ulong key) { return ~uint(key); }

template <uint N> METAL_FUNC uint count_own(thread ulong (&keys)[N], ulong border) {
    uint count = 0;
#pragma unroll
    for (uint i = 0; i < N; i++) {
        count += keys[i] >= border ? 1 : 0;
    }
    return count;
}

// Keys of the threadgroup at or above a border. A barrier lies between two uses of the same `counts`.
template <uint N> METAL_FUNC uint count_keys(
    thread ulong (&keys)[N], ulong border, threadgroup uint* counts, uint simdgroup, uint lane)
{
    const uint count = simd_sum(count_own(keys, border));
    if (lane == 0) {
        counts[simdgroup] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_sum(lane < SIMDGROUPS ? counts[lane] : 0u);
}

// A border with at least `wanted` and at most `most` keys at or above it. At least `wanted` lie above `low`, fewer above
// `high`. Keys differ, so there is one for every number.
template <uint N> METAL_FUNC ulong find_border(
    thread ulong (&keys)[N], uint wanted, uint most, ulong low, ulong high, threadgroup uint* counts, uint simdgroup,
    uint lane)
{
    uint turn = 0;
    uint above = count_keys(keys, low, counts, simdgroup, lane);
    while (above > most) {
        const ulong middle = low + (high - low) / 2;
        turn ^= 32;
        const uint count = count_keys(keys, middle, counts + turn, simdgroup, lane);
        if (count >= wanted) {
            low = middle;
            above = count;
        } else {
            high = middle;
        }
    }
    return low;
}

// Place of a thread's first key at or above the border among all such keys; `total` is their number.
template <uint N> METAL_FUNC uint place_keys(
    thread ulong (&keys)[N], ulong border, threadgroup uint* counts, uint simdgroup, uint lane, thread uint& total)
{
    const uint count = count_own(keys, border);
    const uint before = simd_prefix_exclusive_sum(count);
    if (lane == 31) {
        counts[simdgroup] = before + count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint of_simdgroup = lane < SIMDGROUPS ? counts[lane] : 0;
    total = simd_sum(of_simdgroup);
    return before + simd_sum(lane < simdgroup ? of_simdgroup : 0u);
}

// Draws one of `wanted` sorted candidates, by one simdgroup; lanes own two each.
METAL_FUNC uint draw_candidate(
    threadgroup ulong* sorted, uint wanted, const device uint* rule, int position, threadgroup ulong* weights,
    threadgroup ulong* sums, uint lane)
{
    const float top = key_value(sorted[0]);
    const float scale = as_type<float>(rule[DRAW_SCALE]);
    ulong own[2];
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        const uint at = i * 32 + lane;
        own[i] = at < wanted ? draw_weight(top - key_value(sorted[at]), scale) : 0;
        weights[at] = own[i];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    ulong total = 0;
    ulong until[2] = {0, 0};  // sums of the weights up to the lane's own
    for (uint i = 0; i < wanted; i++) {
        const ulong weight = weights[i];
        total += weight;
        until[0] += i <= lane ? weight : 0;
        until[1] += i <= lane + 32 ? weight : 0;
    }
    const ulong enough = draw_multiply_fraction(total, rule[DRAW_TOP_P]);
    const ulong least = draw_multiply_fraction(weights[0], rule[DRAW_MIN_P]);
    uint by_top_p = 0;
    uint by_min_p = 0;
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        const uint at = i * 32 + lane;
        sums[at] = until[i];
        by_top_p += at < wanted && until[i] < enough ? 1 : 0;
        by_min_p += at < wanted && own[i] >= least ? 1 : 0;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // Weights fall, so what remains is a prefix.
    const uint remaining = min(min(simd_sum(by_top_p) + 1, simd_sum(by_min_p)), wanted);
    const ulong target = draw_multiply_high(sums[remaining - 1], draw_random(rule, position));
    uint drawn = 0;
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        drawn += i * 32 + lane < remaining && until[i] <= target ? 1 : 0;
    }
    return simd_sum(drawn);
}

[[kernel, max_total_threads_per_threadgroup(THREADS)]] void draw(
    constant Args& args [[buffer(0)]],
    device int* control [[buffer(1)]],
    const device int* best_value [[buffer(2)]],
    const device int* logits [[buffer(3)]],
    const device uint* sampling [[buffer(4)]],
    const device int* stop_ids [[buffer(5)]],
    device int* output [[buffer(6)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup int orders[64];
    threadgroup uint counts[96];
    threadgroup uint groups[MOST_GROUPS];
    threadgroup ulong candidates[MOST_KEYS];
    threadgroup ulong sorted[DRAW_MOST];
    threadgroup ulong weights[DRAW_MOST];
    threadgroup ulong sums[DRAW_MOST];
    const uint sequence = row_sequence(args.choice.step, row);
    device int* words = control + sequence * CONTROL_WORDS;
    if (!choice_lives(args.choice, words)) {
        return;
    }
    const device uint* rule = sampling + sequence * DRAW_WORDS;
    const uint top_k = clamp(rule[DRAW_TOP_K], 1u, DRAW_MOST);
    const int position = choice_position(args.choice, words);

    ulong group_keys[GROUP_KEYS];
    int largest = -LARGEST;
    int smallest = LARGEST;
#pragma unroll
    for (uint i = 0; i < GROUP_KEYS; i++) {
        const uint group = i * THREADS + thread_index;
        group_keys[i] = 0;
        if (group < GROUPS) {
            const int order = order_of(best_value[row * GROUPS + group]);
            group_keys[i] = key_of(order, group);
            largest = max(largest, order);
            smallest = min(smallest, order);
        }
    }
    largest = simd_max(largest);
    smallest = simd_min(smallest);
    if (lane == 0) {
        orders[simdgroup] = largest;
        orders[32 + simdgroup] = smallest;
    }
    // Everybody has read the control words before one thread writes them.
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    largest = simd_max(lane < SIMDGROUPS ? orders[lane] : -LARGEST);
    smallest = simd_min(lane < SIMDGROUPS ? orders[32 + lane] : LARGEST);
    if (largest >= INFINITE || largest <= -INFINITE) {
        if (thread_index == 0) {
            words[CONTROL_HALT] = HALT_NON_FINITE;
        }
        return;
    }

    const ulong high = first_key(largest + 1);
    ulong border = find_border(
        group_keys, min(top_k, uint(GROUPS)), MOST_GROUPS, first_key(smallest), high, counts, simdgroup, lane);
    uint found = 0;
    uint place = place_keys(group_keys, border, counts + 64, simdgroup, lane, found);
#pragma unroll
    for (uint i = 0; i < GROUP_KEYS; i++) {
        if (group_keys[i] >= border) {
            groups[place++] = key_index(group_keys[i]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    ulong logit_keys[LOGIT_KEYS];
#pragma unroll
    for (uint i = 0; i < LOGIT_KEYS; i++) {
        const uint at = i * THREADS + thread_index;
        logit_keys[i] = 0;
        if (at / HEAD_ROWS < found) {
            const uint id = groups[at / HEAD_ROWS] * HEAD_ROWS + at % HEAD_ROWS;
            if (id < args.vocab_used) {
                logit_keys[i] = key_of(order_of(logits[ulong(row) * args.vocab + id]), id);
            }
        }
    }
    // Every best above the border is one of these logits.
    const uint wanted = min(top_k, args.vocab_used);
    const ulong low = wanted > GROUPS ? 1 : border >> 32 << 32;
    border = find_border(logit_keys, wanted, MOST_KEYS, low, high, counts, simdgroup, lane);
    place = place_keys(logit_keys, border, counts + 64, simdgroup, lane, found);
#pragma unroll
    for (uint i = 0; i < LOGIT_KEYS; i++) {
        if (logit_keys[i] >= border) {
            candidates[place++] = logit_keys[i];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint i = thread_index; i < found; i += THREADS) {
        const ulong key = candidates[i];
        uint rank = 0;
        for (uint other = 0; other < found; other++) {
            rank += candidates[other] > key ? 1 : 0;
        }
        if (rank < wanted) {
            sorted[rank] = key;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup > 0) {
        return;
    }
    const uint drawn = draw_candidate(sorted, wanted, rule, position, weights, sums, lane);
    if (lane == 0) {
        finish_choice(args.choice, words, stop_ids, output, sequence, largest, int(key_index(sorted[drawn])));
    }
}
