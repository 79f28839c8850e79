// random.h   uniform and normal random numbers, functions of seed, purpose and index alone: initial weights,
//   sampled text. (The order of samples: data/loader.h; stochastic rounding: adamw.cuh)
#pragma once
#include <math.h>
#include "numbers.h"

// uniform in [0, 1), 53 bits
inline double uniform(uint64_t seed, uint64_t what, uint64_t index) {
    Philox r = philox(seed, what, index);
    return (r.x[0] * 4294967296.0 + r.x[1]) / 18446744073709551616.0 * (1.0 - 0x1p-53);
}

// normals of mean 0 for the elements first … first + n - 1 (Box–Muller; four share one Philox block)
template <class T>
void normals(T* out, uint64_t seed, uint64_t what, uint64_t first, long n, double std) {
    if (n == 0) return;
    #pragma omp parallel for if (n > 1 << 12)
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
