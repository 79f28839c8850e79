// matmul.cuh   y = x w^T + b: a linear layer, alone or with GELU behind or before it
//   x (N, C)   w (OC, C)   b (OC) or nullptr   y (N, OC)   dw (OC, C), db (OC) real
//   kept:  nothing (the block keeps x)
//   backward: dx is set; dw and db are set or, with `accumulate`, added to, dw by the GEMM itself
//   gpu: GELU and the bias's gradient are made in a GEMM's epilogue or in kernels of their own: see
//   base/autotune.h
//   communicates: nothing    cost: 2*N*C*OC flops forward, twice that backward: compute bound
#pragma once
#include "base/cublas.h"
#include "column_sum.cuh"
#include "gelu.cuh"

inline int64_t linear_flops = 0;  // of linear layers since it was set to 0; a plan is held against it

// the GEMMs of a linear layer
inline Gemm<floatX> forward_gemm(floatX* y, const floatX* x, const floatX* w, int N, int C, int OC) {
    linear_flops += 2L * N * C * OC;
    return {.out = y, .a = x, .b = w, .m = N, .n = OC, .k = C, .transpose_b = true};
}
inline Gemm<floatX> input_gemm(floatX* dx, const floatX* dy, const floatX* w, int N, int C, int OC) {
    linear_flops += 2L * N * C * OC;
    return {.out = dx, .a = dy, .b = w, .m = N, .n = C, .k = OC};
}
inline Gemm<real> weight_gemm(real* dw, const floatX* dy, const floatX* x, int N, int C, int OC,
                                 bool accumulate) {
    linear_flops += 2L * N * C * OC;
    return {
        .out = dw, .a = dy, .b = x, .m = OC, .n = C, .k = N, .transpose_a = true, .beta = real(accumulate)};
}

namespace ref {

inline void matmul_forward(floatX* y, const floatX* x, const floatX* w, const floatX* b, int N, int C, int OC,
                           Stream s) {
    Gemm<floatX> fused_gemm = forward_gemm(y, x, w, N, C, OC);
    fused_gemm.bias = b;
    gemm(fused_gemm, s);
}

// y = gelu(up), up = x w^T + b
inline void matmul_gelu_forward(floatX* y, floatX* up, const floatX* x, const floatX* w, const floatX* b,
                                int N, int C, int OC, Stream s) {
    matmul_forward(up, x, w, b, N, C, OC, s);
    gelu_forward(y, up, (long)N * OC, s);
}

// scratch: column_sum_scratch(OC) values
inline void matmul_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                            const floatX* w, real* scratch, int N, int C, int OC, bool accumulate, Stream s) {
    if (db) column_sum(db, dy, scratch, N, OC, accumulate, s);
    gemm(weight_gemm(dw, dy, x, N, C, OC, accumulate), s);
    if (dx) gemm(input_gemm(dx, dy, w, N, C, OC), s);
}

// of a layer whose input is gelu(up): dup (N, C) becomes the gradient of up, db_up (C) its column sums
inline void matmul_gelu_input_backward(floatX* dup, real* db_up, const floatX* dy, const floatX* up,
                                       const floatX* w, real* scratch, int N, int C, int OC, bool accumulate,
                                       Stream s) {
    gemm(input_gemm(dup, dy, w, N, C, OC), s);
    gelu_backward(dup, db_up, up, scratch, N, C, accumulate, s);
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

__global__ void add_bias_kernel(floatX* y, const floatX* b, long N, int OC) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N * OC) y[i] = floatX(real(y[i]) + real(b[i % OC]));
}

// the bias in the GEMM's epilogue where that is possible
inline void gemm_with_bias(Gemm<floatX> g, const floatX* b, Stream s) {
    bool fused = b && fits_epilogue(g.n);
    if (fused) g.bias = b;
    gemm(g, s);
    long N = g.m;
    int OC = g.n;
    if (b && !fused) LAUNCH(add_bias_kernel, ceil_div(N * OC, 256), 256, 0, s, g.out, b, N, OC);
}

inline void matmul_forward(floatX* y, const floatX* x, const floatX* w, const floatX* b, int N, int C, int OC,
                           Stream s) {
    gemm_with_bias(forward_gemm(y, x, w, N, C, OC), b, s);
}

// in the GEMM's epilogue, or in a kernel of its own, which is always possible: whichever is faster
template <class Out, class Run>
bool fuses(const char* what, const Gemm<Out>& fused_gemm, bool fits, int N, int C, int OC, Stream s,
           Run run) {
    static AutotuneCache<std::tuple<int, int, int>, bool> chosen;  // one for each `run`
    return chosen.get({N, C, OC}, [&] {
        if (!fits || !can_compute(fused_gemm)) return false;
        std::string key = text("%s " PRECISION_NAME " %d x %d x %d", what, N, C, OC);
        return autotuner.choose(key, 2, 0, s, [&](int way) {
            run(way == 1);
            return true;
        }) == 1;
    });
}

inline void matmul_gelu_forward(floatX* y, floatX* up, const floatX* x, const floatX* w, const floatX* b,
                                int N, int C, int OC, Stream s) {
    Gemm<floatX> unfused = forward_gemm(up, x, w, N, C, OC), fused_gemm = unfused;
    fused_gemm.out = y;
    fused_gemm.bias = b;
    fused_gemm.up = up;
    auto run = [&](bool fused) {
        if (fused) return gemm(fused_gemm, s);
        gemm_with_bias(unfused, b, s);
        gelu_forward(y, up, (long)N * OC, s);
    };
    run(fuses("GELU", fused_gemm, fits_epilogue(OC), N, C, OC, s, run));
}

inline void matmul_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                            const floatX* w, real* scratch, int N, int C, int OC, bool accumulate, Stream s) {
    Gemm<real> unfused = weight_gemm(dw, dy, x, N, C, OC, accumulate), fused_gemm = unfused;
    fused_gemm.row_sums = accumulate ? scratch : db;
    auto run = [&](bool fused) {
        gemm(fused ? fused_gemm : unfused, s);
        if (!fused) column_sum(db, dy, scratch, N, OC, accumulate, s);
        else if (accumulate)
            LAUNCH(column_sum_finish_kernel, ceil_div(OC, 128), 128, 0, s, db, scratch, 1, OC, accumulate);
    };
    if (db) run(fuses("bias gradient", fused_gemm, fits_epilogue(OC) && fits_epilogue(C), N, C, OC, s, run));
    else gemm(unfused, s);
    if (dx) gemm(input_gemm(dx, dy, w, N, C, OC), s);
}

inline void matmul_gelu_input_backward(floatX* dup, real* db_up, const floatX* dy, const floatX* up,
                                       const floatX* w, real* scratch, int N, int C, int OC, bool accumulate,
                                       Stream s) {
    Gemm<floatX> unfused = input_gemm(dup, dy, w, N, C, OC), fused_gemm = unfused;
    fused_gemm.gelu_of = up;
    auto run = [&](bool fused) {
        gemm(fused ? fused_gemm : unfused, s);
        if (fused) column_sum(db_up, dup, scratch, N, C, accumulate, s);
        else gelu_backward(dup, db_up, up, scratch, N, C, accumulate, s);
    };
    run(fuses("GELU backward", fused_gemm, fits_epilogue(C), N, C, OC, s, run));
}

}  // namespace gpu
#endif
