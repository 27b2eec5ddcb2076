// Device memory: each allocation has 32 GiB of addresses for itself, and ends at an unmapped page. An index
// that strays faults and is reported.
#include <mutex>
#include <sys/mman.h>

#include "engine.h"

namespace lily_rt {

static const int SLOT_BITS = 35;
static const size_t SLOTS = 2048;  // 64 TiB of addresses, half of what a process has
static const uintptr_t FIRST_BASE = 0x100000000000, LAST_BASE = 0x3fffffffffff;
static uintptr_t base = FIRST_BASE;
static Slot slots[SLOTS];
static std::mutex slots_mutex;

Slot* slot_of(uintptr_t address) {
    if (address < base) return nullptr;
    const uintptr_t i = (address - base) >> SLOT_BITS;
    return i < SLOTS && slots[i].used ? &slots[i] : nullptr;
}

static void* map(void* at, size_t bytes, int protection, int flags) {
    return mmap(at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

static size_t pages(uint64_t bytes) {
    return bytes == 0 ? PAGE : (bytes + PAGE - 1) / PAGE * PAGE;
}

// Finds addresses that nothing else has, another copy of this runtime for one.
static bool place_slots() {
    static bool placed = false;
    while (!placed && base <= LAST_BASE) {
        if (map((void*)base, PAGE, PROT_NONE, MAP_FIXED_NOREPLACE) == (void*)base) {
            munmap((void*)base, PAGE);
            placed = true;
        } else {
            base += (uintptr_t)1 << (SLOT_BITS + 2);
        }
    }
    return placed;
}

// Where the memory of a slot begins. A 32-bit index that went below 0 reaches 8, 16, 32 or 64 GiB ahead, for
// elements of 2, 4, 8 and 16 bytes. No two allocations lie so far apart, or up to 4 GiB more or less.
static char* place_of(size_t slot) {
    static const uintptr_t PLACES[4] = {2, 8, 20, 14};
    const uintptr_t gib = 1ull << 30;
    return (char*)(base + ((uintptr_t)slot << SLOT_BITS) + PLACES[slot % 4] * gib);
}

}  // namespace lily_rt

using namespace lily_rt;

// `bytes` of memory, 16-byte aligned; null if there is no slot or no memory left.
extern "C" void* lily_allocate(uint64_t bytes) {
    std::lock_guard<std::mutex> guard(slots_mutex);
    if (!place_slots()) return nullptr;
    for (size_t i = 0; i < SLOTS; i++) {
        Slot& slot = slots[i];
        if (slot.used) continue;
        char* first = (char*)(base + ((uintptr_t)i << SLOT_BITS));
        const size_t room = (size_t)1 << SLOT_BITS;
        if (!slot.data && map(first, room, PROT_NONE, MAP_FIXED_NOREPLACE) != first) return nullptr;
        const size_t mapped = pages(bytes);
        if (map(place_of(i), mapped, PROT_READ | PROT_WRITE, MAP_FIXED) == MAP_FAILED) return nullptr;
        slot.data = place_of(i) + mapped - (bytes + 15) / 16 * 16;  // the end meets the unmapped page
        slot.bytes = bytes;
        slot.shadow = nullptr;
        slot.used = true;
        return slot.data;
    }
    return nullptr;
}

extern "C" void lily_free(void* data) {
    std::lock_guard<std::mutex> guard(slots_mutex);
    Slot* slot = slot_of((uintptr_t)data);
    if (!slot) return;
    map(place_of(slot - slots), pages(slot->bytes), PROT_NONE, MAP_FIXED);
    if (slot->shadow) munmap(slot->shadow, slot->bytes * sizeof(DeviceCell));
    slot->shadow = nullptr;
    slot->used = false;
}
