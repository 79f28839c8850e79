// gelu.cuh   y = 0.5 * x * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 * x^3)
//   (Hendrycks & Gimpel, 2016)
//   x, y, dy (N)
//   kept:  nothing (the block keeps x)
//   backward: dy becomes dx in place
//   talks: nobody          cost: 14*N flops, x read and y written once: memory bound
#pragma once
#include "base/device.h"
#include "base/vector_exp.h"

constexpr real gelu_scale = real(0.7978845608028654), gelu_cubic = real(0.044715);

namespace ref {

// tanh by way of exp, which the compiler turns into vectors; tanh(u) = 1 - 2 / (1 + exp(2u))
inline real gelu_tanh(real x) {
    real u = gelu_scale * (x + gelu_cubic * x * x * x);
    u = u > 15 ? 15 : u < -15 ? -15 : u;
    return 1 - 2 / (1 + vector_exp(2 * u));
}

inline void gelu_forward(floatX* y, const floatX* x, long N, Stream) {
    #pragma omp parallel for simd
    for (long i = 0; i < N; i++) y[i] = floatX(real(0.5) * real(x[i]) * (1 + gelu_tanh(real(x[i]))));
}

inline void gelu_backward(floatX* dy, const floatX* x, long N, Stream) {
    #pragma omp parallel for simd
    for (long i = 0; i < N; i++) {
        real v = real(x[i]), t = gelu_tanh(v);
        real slope = (1 - t * t) * gelu_scale * (1 + 3 * gelu_cubic * v * v);
        dy[i] = floatX(real(dy[i]) * real(0.5) * (1 + t + v * slope));
    }
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

__device__ inline floatX gelu_of(floatX x) {
    real v = real(x);
    return floatX(real(0.5) * v * (1 + tanh(gelu_scale * (v + gelu_cubic * v * v * v))));
}
__device__ inline floatX gelu_gradient(floatX dy, floatX x) {
    real v = real(x), t = tanh(gelu_scale * (v + gelu_cubic * v * v * v));
    real slope = (1 - t * t) * gelu_scale * (1 + 3 * gelu_cubic * v * v);
    return floatX(real(dy) * real(0.5) * (1 + t + v * slope));
}

// a thread 16 bytes
__global__ void gelu_forward_kernel(floatX* y, const floatX* x, long N) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * vec_size;
    if (i + vec_size <= N) {
        Vec<floatX> v = load16(x + i);
        UNROLL(unroll)
        for (int k = 0; k < vec_size; k++) v.at[k] = gelu_of(v.at[k]);
        store16(y + i, v);
    } else {
        for (; i < N; i++) y[i] = gelu_of(x[i]);
    }
}

__global__ void gelu_backward_kernel(floatX* dy, const floatX* x, long N) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * vec_size;
    if (i + vec_size <= N) {
        Vec<floatX> d = load16(dy + i), v = load16(x + i);
        UNROLL(unroll)
        for (int k = 0; k < vec_size; k++) d.at[k] = gelu_gradient(d.at[k], v.at[k]);
        store16(dy + i, d);
    } else {
        for (; i < N; i++) dy[i] = gelu_gradient(dy[i], x[i]);
    }
}

inline void gelu_forward(floatX* y, const floatX* x, long N, Stream s) {
    LAUNCH(gelu_forward_kernel, ceil_div(N, 256 * vec_size), 256, 0, s, y, x, N);
}
inline void gelu_backward(floatX* dy, const floatX* x, long N, Stream s) {
    LAUNCH(gelu_backward_kernel, ceil_div(N, 256 * vec_size), 256, 0, s, dy, x, N);
}

}  // namespace gpu
#endif
