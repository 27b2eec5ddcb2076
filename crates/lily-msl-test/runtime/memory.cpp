// Device memory: each allocation has 64 GiB of addresses for itself, and ends at an unmapped page. An index
// that strays faults and is reported.
#include <mutex>
#include <sys/mman.h>

#include "engine.h"

namespace lily_rt {

static const int SLOT_BITS = 36;
// 104 TiB of addresses, of the 128 TiB that a process has. The program itself lies in the 8 TiB of the hole, on
// x86-64 between 0x5555 and 0x5700 of the upper 16 bits; libraries and stacks lie above.
static const size_t SLOTS = 1664, HOLE = 1024, HOLE_SLOTS = 128;
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

// Where the memory of a slot begins. Neighbours lie 52 or 76 GiB apart: a 32-bit index that went below 0
// reaches 16, 32 or 64 GiB ahead for elements of 4, 8 and 16 bytes, and never another allocation.
static char* place_of(size_t slot) {
    const uintptr_t gib = 1ull << 30;
    return (char*)(base + ((uintptr_t)slot << SLOT_BITS) + (slot % 2 == 0 ? 24 : 36) * gib);
}

}  // namespace lily_rt

using namespace lily_rt;

// `bytes` of memory, 16-byte aligned; null if there is no slot or no memory left.
extern "C" void* lily_allocate(uint64_t bytes) {
    std::lock_guard<std::mutex> guard(slots_mutex);
    if (!place_slots()) return nullptr;
    for (size_t i = 0; i < SLOTS; i++) {
        if (i == HOLE) i += HOLE_SLOTS;
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
