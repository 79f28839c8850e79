// gelu.h   GELU of one value and its slope, by tanh (Hendrycks & Gimpel, 2016)
//   For linear.cuh and the epilogues of gemm.h.
#pragma once
#include "device.h"

constexpr real gelu_scale = real(0.7978845608028654), gelu_cubic = real(0.044715);  // sqrt(2 / pi)

namespace ref {

// tanh by way of exp, which the compiler can vectorise; tanh(u) = 1 - 2 / (1 + exp(2u))
inline real gelu_tanh(real x) {
    real u = gelu_scale * (x + gelu_cubic * x * x * x);
    u = u > 15 ? 15 : u < -15 ? -15 : u;
    return 1 - 2 / (1 + vector_exp(2 * u));
}

inline real gelu_of(real x) { return real(0.5) * x * (1 + gelu_tanh(x)); }
inline real gelu_slope(real x) {
    real t = gelu_tanh(x);
    return real(0.5) * (1 + t + x * (1 - t * t) * gelu_scale * (1 + 3 * gelu_cubic * x * x));
}

}  // namespace ref

#if KERNELS_HERE
namespace gpu {

__device__ inline real gelu_of(real x) {
    return real(0.5) * x * (1 + tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
}
__device__ inline real gelu_slope(real x) {
    real t = tanh(gelu_scale * (x + gelu_cubic * x * x * x));
    return real(0.5) * (1 + t + x * (1 - t * t) * gelu_scale * (1 + 3 * gelu_cubic * x * x));
}

}  // namespace gpu
#endif
