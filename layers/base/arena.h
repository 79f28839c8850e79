// arena.h   a range of memory handed out piece by piece; the same walk measures it and places it
//   An Arena without a base only counts: run a walk once to learn the bytes, allocate, run it again to get
//   the pointers. So the memory table that is printed is exactly the memory that is taken.
#pragma once
#include "device.h"

struct Arena {
    const char* name;
    char* base = nullptr;
    size_t used = 0;
    static constexpr size_t alignment = 256;

    template <class T>
    T* take(size_t count) {
        T* p = base ? (T*)(base + used) : nullptr;
        used += (count * sizeof(T) + alignment - 1) / alignment * alignment;
        return p;
    }
};

// walk(arena) twice: measured, then placed in device memory. The caller frees arena.base.
template <class Walk>
Arena allocate(const char* name, Walk walk) {
    Arena arena = {name};
    walk(arena);
    size_t measured = arena.used;
    arena.base = (char*)device_malloc(measured ? measured : 1, name);
    arena.used = 0;
    walk(arena);
    if (arena.used != measured)
        fail("%s: %zu bytes were measured, %zu placed: a defect of this program", name, measured, arena.used);
    return arena;
}
