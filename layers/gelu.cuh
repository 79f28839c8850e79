// gelu.cuh   y = 0.5 * x * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 * x^3)
//   x, y, dy (N, C)   db (C) real
//   kept:  nothing (the block keeps x)
//   backward: dy becomes dx in place; db, the gradient of the bias in x, is dx's column sums, set or, with
//             `accumulate`, added to, in the same pass; scratch: column_sum_scratch(C) values
//   communicates: nothing    cost: 14*N*C flops, x read and y written once: memory bound
#pragma once
#include "base/gemm.h"
#include "column_sum.cuh"

namespace ref {

inline void gelu_forward(floatX* y, const floatX* x, long n, Stream) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) y[i] = floatX(gelu_of(real(x[i])));
}

inline void gelu_backward(floatX* dy, real* db, const floatX* x, real* scratch, int N, int C, bool accumulate,
                          Stream s) {
    #pragma omp parallel for simd
    for (long i = 0; i < (long)N * C; i++) dy[i] = floatX(real(dy[i]) * gelu_slope(real(x[i])));
    column_sum(db, dy, scratch, N, C, accumulate, s);
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

// a thread 16 bytes
__global__ void gelu_forward_kernel(floatX* y, const floatX* x, long n) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * vec_size;
    if (i + vec_size <= n) {
        Vec<floatX> v = load16(x + i);
        UNROLL(unroll)
        for (int k = 0; k < vec_size; k++) v.at[k] = floatX(gelu_of(real(v.at[k])));
        store16(y + i, v);
    } else {
        for (; i < n; i++) y[i] = floatX(gelu_of(real(x[i])));
    }
}

__global__ void gelu_backward_kernel(real* parts, floatX* dy, const floatX* x, int N, int C) {
    column_sum_part<vec_size>(parts, [=](real (&sum)[vec_size], int n, int c) {
        Vec<floatX> d = load_row(dy + (long)n * C, c, C), v = load_row(x + (long)n * C, c, C);
        UNROLL(unroll)
        for (int k = 0; k < vec_size; k++) {
            d.at[k] = floatX(real(d.at[k]) * gelu_slope(real(v.at[k])));
            sum[k] += real(d.at[k]);
        }
        store_row(dy + (long)n * C, c, C, d);
    }, N, C);
}

inline void gelu_forward(floatX* y, const floatX* x, long n, Stream s) {
    LAUNCH(gelu_forward_kernel, ceil_div(n, 256 * vec_size), 256, 0, s, y, x, n);
}
inline void gelu_backward(floatX* dy, real* db, const floatX* x, real* scratch, int N, int C, bool accumulate,
                          Stream s) {
    int parts = column_sum_cut(N);
    LAUNCH(gelu_backward_kernel, column_blocks<vec_size>(C, parts), dim3(column_lanes, column_rows), 0, s,
           scratch, dy, x, N, C);
    LAUNCH(column_sum_finish_kernel, ceil_div(C, 128), 128, 0, s, db, scratch, parts, C, accumulate);
}

}  // namespace gpu
#endif
