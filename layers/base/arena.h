// arena.h   a range of memory handed out piece by piece; the same walk first measures, then places
//   An Arena without a base only counts: run a walk once to learn the bytes, allocate, run it again to get
//   the pointers. It may do so for another precision than this build's; its pointers are invalid addresses
//   with a tag (nowhere(), activity.h).
#pragma once
#include "activity.h"
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

// a range of memory, handed out piece by piece
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
