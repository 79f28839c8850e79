// residual.cuh   y = x + f + b: the stream x takes up a branch f and the bias that belongs to it
//   x, f, y (N, C)   b (C)
//   The bias is added here, not in the branch's product: over tensor-parallel ranks that product is a partial
//   sum, and the bias must be added once.
//   backward: dx = df = dy, nothing to compute; db is a column_sum
//   talks: nobody          cost: x, f read and y written once: memory bound
#pragma once
#include "base/device.h"

namespace ref {

inline void residual_forward(floatX* y, const floatX* x, const floatX* f, const floatX* b, int N, int C,
                             Stream) {
    #pragma omp parallel for
    for (int n = 0; n < N; n++) {
        long row = (long)n * C;
        #pragma omp simd
        for (int c = 0; c < C; c++) y[row + c] = floatX(real(x[row + c]) + real(f[row + c]) + real(b[c]));
    }
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

// a thread 16 bytes, where rows are whole vectors
__global__ void residual_forward_kernel(floatX* y, const floatX* x, const floatX* f, const floatX* b, long N,
                                        int C) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * vec_size;
    if (C % vec_size == 0 && i < N * C) {
        Vec<floatX> xs = load16(x + i), fs = load16(f + i), bs = load16(b + i % C);
        UNROLL(unroll)
        for (int k = 0; k < vec_size; k++)
            xs.at[k] = floatX(real(xs.at[k]) + real(fs.at[k]) + real(bs.at[k]));
        store16(y + i, xs);
    } else {
        long end = i + vec_size < N * C ? i + vec_size : N * C;
        for (; i < end; i++) y[i] = floatX(real(x[i]) + real(f[i]) + real(b[i % C]));
    }
}

inline void residual_forward(floatX* y, const floatX* x, const floatX* f, const floatX* b, int N, int C,
                             Stream s) {
    LAUNCH(residual_forward_kernel, ceil_div((long)N * C, 256 * vec_size), 256, 0, s, y, x, f, b, N, C);
}

}  // namespace gpu
#endif
