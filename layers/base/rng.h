// rng.h   counter-based random numbers (Philox4x32-10; Salmon et al., SC'11)
//   A value is a function of (seed, purpose, index) alone, never of the rank or of earlier draws: every
//   layout starts from the same weights, and a resumed run draws what the uninterrupted one would have.
#pragma once
#include <math.h>
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

// uniform in [0, 1), 53 bits
inline double uniform(uint64_t seed, uint64_t what, uint64_t index) {
    Philox r = philox(seed, what, index);
    return (r.x[0] * 4294967296.0 + r.x[1]) / 18446744073709551616.0 * (1.0 - 0x1p-53);
}

// normals of mean 0 for the elements first … first + n - 1 (Box–Muller; four share one Philox block)
template <class T>
void normals(T* out, uint64_t seed, uint64_t what, uint64_t first, long n, double std) {
    if (n == 0) return;
    #pragma omp parallel for
    for (long block = (long)(first / 4); block <= (long)((first + n - 1) / 4); block++) {
        Philox r = philox(seed, what, block);
        for (int pair = 0; pair < 2; pair++) {
            double radius = sqrt(-2 * log((r.x[2 * pair] + 1.0) / 4294967296.0));
            double angle = 2 * M_PI * (r.x[2 * pair + 1] / 4294967296.0);
            double value[2] = {radius * cos(angle), radius * sin(angle)};
            for (int i = 0; i < 2; i++) {
                long at = 4 * block + 2 * pair + i - (long)first;
                if (at >= 0 && at < n) out[at] = T(value[i] * std);
            }
        }
    }
}
