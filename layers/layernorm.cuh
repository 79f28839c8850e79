// layernorm.cuh   y = (x - mean) * rstd * w + b, over the C values of each row; eps 1e-5
//   x, y, dx, dy (N, C)   w, b (C)   dw, db (C) real   mean, rstd (N) real
//   kept:  mean, rstd (the block keeps x)
//   backward: dx is added to (the residual flows there too); dw, db are added to
//   talks: nobody          cost: 8*N*C flops, x and y read or written once each: memory bound
#pragma once
#include "base/device.h"

constexpr real layernorm_epsilon = real(1e-5);

namespace ref {

inline void layernorm_forward(floatX* y, real* mean, real* rstd, const floatX* x, const floatX* w,
                              const floatX* b, int N, int C, Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX* xn = x + (long)n * C;
        real sum = 0, square = 0;
        #pragma omp simd reduction(+ : sum)
        for (int c = 0; c < C; c++) sum += real(xn[c]);
        real m = sum / C;
        #pragma omp simd reduction(+ : square)
        for (int c = 0; c < C; c++) square += (real(xn[c]) - m) * (real(xn[c]) - m);
        real r = 1 / std::sqrt(square / C + layernorm_epsilon);
        floatX* yn = y + (long)n * C;
        #pragma omp simd
        for (int c = 0; c < C; c++) yn[c] = floatX((real(xn[c]) - m) * r * real(w[c]) + real(b[c]));
        mean[n] = m, rstd[n] = r;
    }
}

// with xhat = (x - mean) * rstd and g = dy * w:  dx += rstd * (g - mean(g) - xhat * mean(g * xhat))
inline void layernorm_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                               const floatX* w, const real* mean, const real* rstd, real*, int N, int C,
                               Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX *xn = x + (long)n * C, *dyn = dy + (long)n * C;
        floatX* dxn = dx + (long)n * C;
        real m = mean[n], r = rstd[n], g_sum = 0, gx_sum = 0;
        #pragma omp simd reduction(+ : g_sum, gx_sum)
        for (int c = 0; c < C; c++) {
            real g = real(dyn[c]) * real(w[c]);
            g_sum += g;
            gx_sum += g * (real(xn[c]) - m) * r;
        }
        g_sum /= C, gx_sum /= C;
        #pragma omp simd
        for (int c = 0; c < C; c++) {
            real g = real(dyn[c]) * real(w[c]), xhat = (real(xn[c]) - m) * r;
            dxn[c] = floatX(real(dxn[c]) + r * (g - g_sum - xhat * gx_sum));
        }
    }
    // columns a thread sums, row after row: the order does not depend on the threads
    constexpr int strip = 64;
    #pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += strip) {
        real w_sum[strip] = {}, b_sum[strip] = {};
        int cs = C - c0 < strip ? C - c0 : strip;
        for (int n = 0; n < N; n++) {
            const floatX *xn = x + (long)n * C + c0, *dyn = dy + (long)n * C + c0;
            real m = mean[n], r = rstd[n];
            #pragma omp simd
            for (int c = 0; c < cs; c++) {
                w_sum[c] += real(dyn[c]) * (real(xn[c]) - m) * r;
                b_sum[c] += real(dyn[c]);
            }
        }
        for (int c = 0; c < cs; c++) dw[c0 + c] += w_sum[c], db[c0 + c] += b_sum[c];
    }
}

}  // namespace ref

#if HAS_KERNELS
#include "column_sum.cuh"
namespace gpu {

// a warp a row; the row's C values lie over the lanes
__global__ void layernorm_forward_kernel(floatX* y, real* mean, real* rstd, const floatX* x, const floatX* w,
                                         const floatX* b, int N, int C) {
    int lane = threadIdx.x % 32, n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (n >= N) return;
    x += (long)n * C, y += (long)n * C;
    real sum = 0, square = 0;
    for (int c = lane; c < C; c += 32) sum += real(x[c]);
    real m = warp_sum(sum) / C;
    for (int c = lane; c < C; c += 32) square += (real(x[c]) - m) * (real(x[c]) - m);
    real r = 1 / sqrt(warp_sum(square) / C + layernorm_epsilon);
    for (int c = lane; c < C; c += 32) y[c] = floatX((real(x[c]) - m) * r * real(w[c]) + real(b[c]));
    if (lane == 0) mean[n] = m, rstd[n] = r;
}

__global__ void layernorm_backward_kernel(floatX* dx, const floatX* dy, const floatX* x, const floatX* w,
                                          const real* mean, const real* rstd, int N, int C) {
    int lane = threadIdx.x % 32, n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (n >= N) return;
    x += (long)n * C, dx += (long)n * C, dy += (long)n * C;
    real m = mean[n], r = rstd[n], g_sum = 0, gx_sum = 0;
    for (int c = lane; c < C; c += 32) {
        real g = real(dy[c]) * real(w[c]);
        g_sum += g;
        gx_sum += g * (real(x[c]) - m) * r;
    }
    g_sum = warp_sum(g_sum) / C, gx_sum = warp_sum(gx_sum) / C;
    for (int c = lane; c < C; c += 32) {
        real g = real(dy[c]) * real(w[c]), xhat = (real(x[c]) - m) * r;
        dx[c] = floatX(real(dx[c]) + r * (g - g_sum - xhat * gx_sum));
    }
}

constexpr int layernorm_block = 128;

inline void layernorm_forward(floatX* y, real* mean, real* rstd, const floatX* x, const floatX* w,
                              const floatX* b, int N, int C, Stream s) {
    LAUNCH(layernorm_forward_kernel, ceil_div(N, layernorm_block / 32), layernorm_block, 0, s, y, mean, rstd,
           x, w, b, N, C);
}

// scratch: column_sum_scratch(C) values
inline void layernorm_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                               const floatX* w, const real* mean, const real* rstd, real* scratch, int N,
                               int C, Stream s) {
    LAUNCH(layernorm_backward_kernel, ceil_div(N, layernorm_block / 32), layernorm_block, 0, s, dx, dy, x, w,
           mean, rstd, N, C);
    column_sum(db, dy, scratch, N, C, s);
    column_sum_normalised(dw, dy, x, mean, rstd, scratch, N, C, s);
}

}  // namespace gpu
#endif
