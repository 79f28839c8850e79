// vector_exp.h   exp in plain arithmetic, so that the compiler can vectorise a loop over it
//   x = n ln 2 + r with |r| <= ln 2 / 2;  exp(x) = 2^n exp(r), exp(r) by its series to r^6, whose remainder
//   is below r^7/7! = 1.2e-7: within 2 units in the last place of fp32. Clamped to [-87, 88].
//   In fp64 it is std::exp.
#pragma once
#include <string.h>
#include <cmath>

inline float vector_exp(float x) {
    x = x < -87 ? -87 : x > 88 ? 88 : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounded to the nearest integer
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;    // ln 2 in two parts, the first exact in 16 bits
    float p = 1 + r * (1 + r * (1.0f / 2 + r * (1.0f / 6 +
                                                r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    int bits = ((int)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

inline double vector_exp(double x) { return std::exp(x); }
