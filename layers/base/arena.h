// arena.h   a range of memory handed out piece by piece; the same walk first measures and then places it
//   An Arena without a base only counts: run a walk once to learn the bytes, allocate, run it again to get
//   the pointers. So the memory table that is printed is exactly the memory that is taken. An Arena that only
//   counts may do so for another precision than this build's; its pointers are invalid addresses with a tag,
//   from which element_at() in base/operation.h recovers the planned type.
#pragma once
#include "device.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

// bytes after each piece that AddressSanitizer puts off limits
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t red_zone = 256;
inline void forbid(void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
#else
constexpr size_t red_zone = 0;
inline void forbid(void*, size_t) {}
#endif

// Base addresses of arenas that only count; no memory lies there. floatX and real may be the same type in
// this build but not in the planned one: the address range tells them apart
constexpr uintptr_t nowhere_x = 1UL << 60, nowhere_real = 2UL << 60, nowhere_else = 3UL << 60;
inline uintptr_t nowhere(const void* p) {  // one of the above, or 0 for actual memory
    uintptr_t part = (uintptr_t)p >> 60;
    return part >= 1 && part <= 3 ? part << 60 : 0;
}

struct Arena {
    const char* name;
    char* base = nullptr;
    size_t used = 0;
    Precision precision = {};
    static constexpr size_t alignment = 256;

    floatX* take_x(size_t count) { return (floatX*)bytes(count * precision.x, nowhere_x); }
    ::real* take_real(size_t count) { return (::real*)bytes(count * precision.real, nowhere_real); }
    template <class T>
    T* take(size_t count) {
        return (T*)bytes(count * sizeof(T), nowhere_else);
    }

private:
    void* bytes(size_t n, uintptr_t counted) {
        void* p = base ? base + used : (char*)counted + used;
        size_t whole = (n + alignment - 1) / alignment * alignment + red_zone;
        if (base) forbid((char*)p + n, whole - n);
        used += whole;
        return p;
    }
};

// runs walk(arena) twice: to measure, then to place in device memory. The caller frees arena.base.
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
