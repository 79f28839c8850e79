// rng.h   counter-based random numbers (Philox4x32-10; Salmon et al., SC'11)
//   A value is a function of (seed, purpose, index) alone, never of the rank or of earlier draws: every
//   layout starts from the same weights, and a resumed run draws what the uninterrupted one would have.
#pragma once
#include <stdint.h>
#include <string_view>

struct Philox { uint32_t x[4]; };

inline Philox philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t x0 = (uint32_t)counter_low, x1 = (uint32_t)(counter_low >> 32);
    uint32_t x2 = (uint32_t)counter_high, x3 = (uint32_t)(counter_high >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x0, b = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(b >> 32) ^ x1 ^ k0, y2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)b;
        x3 = (uint32_t)a;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{x0, x1, x2, x3}};
}

// a number's purpose as a key: FNV-1a of a name ("h.3.attn.c_attn.weight", "sample", …)
constexpr uint64_t purpose(std::string_view name) {
    uint64_t h = 0xCBF29CE484222325ull;
    for (char c : name) h = (h ^ (unsigned char)c) * 0x100000001B3ull;
    return h;
}
