// fp8.h   8-bit floating-point numbers (OCP 8-bit floating point, 2023): a sign, then
//   e4m3   4 bits of exponent (bias 7), 3 of mantissa: up to 448, for weights and activations
//   e5m2   5 bits of exponent (bias 15), 2 of mantissa: up to 57344, for gradients
//   Rounded to nearest even; larger values saturate.
#pragma once
#include <stdint.h>
#include <cmath>
#include "../base/device.h"
#if defined(DEVICE_CUDA)
#include <cuda_fp8.h>
#endif

template <int MANTISSA, int BIAS, int LARGEST>
struct Fp8 {
    uint8_t bits;
    static constexpr int mantissa = MANTISSA;
    static constexpr float largest = LARGEST;

    HOST_DEVICE static Fp8 of(float x) {
#if defined(__CUDA_ARCH__)
        return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, MANTISSA == 3 ? __NV_E4M3 : __NV_E5M2)};
#else
        uint8_t sign = std::signbit(x) ? 0x80 : 0;
        if (x != x) return {(uint8_t)(sign | 0x7F)};
        float a = std::abs(x);
        if (a > largest) a = largest;
        int e = a > 0 ? std::ilogb(a) : -BIAS;
        if (e < 1 - BIAS) e = 1 - BIAS;                             // smaller numbers are subnormal
        int q = (int)std::nearbyint(std::ldexp(a, MANTISSA - e));   // in units of the last place
        return {(uint8_t)(sign | (q + ((e + BIAS - 1) << MANTISSA)))};  // a carry goes into the exponent
#endif
    }

    explicit operator float() const {
        int e = (bits & 0x7F) >> MANTISSA, q = bits & ((1 << MANTISSA) - 1);
        bool all_ones = e == 0x7F >> MANTISSA, not_finite = MANTISSA == 3 ? (bits & 0x7F) == 0x7F : all_ones;
        float a = e ? std::ldexp((float)(q + (1 << MANTISSA)), e - BIAS - MANTISSA)
                    : std::ldexp((float)q, 1 - BIAS - MANTISSA);
        if (not_finite) a = q == 0 ? INFINITY : NAN;
        return bits & 0x80 ? -a : a;
    }
};
using e4m3 = Fp8<3, 7, 448>;
using e5m2 = Fp8<2, 15, 57344>;
