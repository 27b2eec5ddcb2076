// Fibers: stacks that one operating system thread switches between.
#pragma once
#include <stdint.h>

namespace lily_rt {

// Saves the registers and the stack pointer at `save`, goes on at `to`.
extern "C" void lily_switch(void** save, void* to);
// A new fiber's stack pointer, below `top`; it begins with `entry`, which never returns.
void* new_fiber(char* top, void (*entry)());

}  // namespace lily_rt
