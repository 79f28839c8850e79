// matmul.cuh   y = x w^T + b: a linear layer
//   x (N, C)   w (OC, C)   b (OC) or nullptr   y (N, OC)   dw (OC, C), db (OC) real
//   kept:  nothing (the block keeps x)
//   backward: dx is set; dw and db are added to, by the product itself
//   talks: nobody          cost: 2*N*C*OC flops forward, twice that backward: compute bound
#pragma once
#include "base/gemm.h"
#include "column_sum.cuh"

inline int64_t linear_flops = 0;  // of linear layers since it was set to 0; a plan is held against it

namespace ref {

inline void matmul_forward(floatX* y, const floatX* x, const floatX* w, const floatX* b, int N, int C, int OC,
                           Stream s) {
    linear_flops += 2L * N * C * OC;
    gemm<floatX>({.out = y, .a = x, .b = w, .m = N, .n = OC, .k = C, .transpose_b = true, .bias = b}, s);
}

inline void matmul_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                            const floatX* w, real* scratch, int N, int C, int OC, Stream s) {
    linear_flops += (dx ? 4L : 2L) * N * C * OC;
    if (db) column_sum(db, dy, scratch, N, OC, s);
    gemm<real>({.out = dw, .a = dy, .b = x, .m = OC, .n = C, .k = N, .transpose_a = true, .beta = 1}, s);
    if (dx) gemm<floatX>({.out = dx, .a = dy, .b = w, .m = N, .n = C, .k = OC}, s);
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

__global__ void add_bias_kernel(floatX* y, const floatX* b, long N, int OC) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N * OC) y[i] = floatX(real(y[i]) + real(b[i % OC]));
}

inline void matmul_forward(floatX* y, const floatX* x, const floatX* w, const floatX* b, int N, int C, int OC,
                           Stream s) {
    linear_flops += 2L * N * C * OC;
    bool fused = b && can_add_bias(OC);
    gemm<floatX>({.out = y, .a = x, .b = w, .m = N, .n = OC, .k = C, .transpose_b = true,
                  .bias = fused ? b : nullptr}, s);
    if (b && !fused) LAUNCH(add_bias_kernel, ceil_div((long)N * OC, 256), 256, 0, s, y, b, N, OC);
}

// scratch: column_sum_scratch(OC) values
inline void matmul_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                            const floatX* w, real* scratch, int N, int C, int OC, Stream s) {
    linear_flops += (dx ? 4L : 2L) * N * C * OC;
    if (db) column_sum(db, dy, scratch, N, OC, s);
    gemm<real>({.out = dw, .a = dy, .b = x, .m = OC, .n = C, .k = N, .transpose_a = true, .beta = 1}, s);
    if (dx) gemm<floatX>({.out = dx, .a = dy, .b = w, .m = N, .n = C, .k = OC}, s);
}

}  // namespace gpu
#endif
