// matmul.cuh   y = x w^T + b: a linear layer, alone or with GELU behind or before it
//   x (N, C)   w (OC, C)   b (OC) or nullptr   y (N, OC)   dw (OC, C), db (OC) real
//   kept:  nothing (the block keeps x)
//   backward: dx is set; dw and db are set or, with `add`, added to, dw by the product itself
//   gpu: GELU and the bias's gradient are made in a product's epilogue or apart: see tuning.h
//   talks: nobody          cost: 2*N*C*OC flops forward, twice that backward: compute bound
#pragma once
#include "base/gemm.h"
#include "base/tuning.h"
#include "column_sum.cuh"
#include "gelu.cuh"

inline int64_t linear_flops = 0;  // of linear layers since it was set to 0; a plan is held against it

// how the products of a linear layer are asked for
inline Gemm<floatX> forward_product(floatX* y, const floatX* x, const floatX* w, int N, int C, int OC) {
    linear_flops += 2L * N * C * OC;
    return {.out = y, .a = x, .b = w, .m = N, .n = OC, .k = C, .transpose_b = true};
}
inline Gemm<floatX> input_product(floatX* dx, const floatX* dy, const floatX* w, int N, int C, int OC) {
    linear_flops += 2L * N * C * OC;
    return {.out = dx, .a = dy, .b = w, .m = N, .n = C, .k = OC};
}
inline Gemm<real> weight_product(real* dw, const floatX* dy, const floatX* x, int N, int C, int OC,
                                 bool add) {
    linear_flops += 2L * N * C * OC;
    return {.out = dw, .a = dy, .b = x, .m = OC, .n = C, .k = N, .transpose_a = true, .beta = real(add)};
}

namespace ref {

inline void matmul_forward(floatX* y, const floatX* x, const floatX* w, const floatX* b, int N, int C, int OC,
                           Stream s) {
    Gemm<floatX> product = forward_product(y, x, w, N, C, OC);
    product.bias = b;
    gemm(product, s);
}

// y = gelu(up), up = x w^T + b
inline void matmul_gelu_forward(floatX* y, floatX* up, const floatX* x, const floatX* w, const floatX* b,
                                int N, int C, int OC, Stream s) {
    matmul_forward(up, x, w, b, N, C, OC, s);
    gelu_forward(y, up, (long)N * OC, s);
}

// scratch: column_sum_scratch(OC) values
inline void matmul_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                            const floatX* w, real* scratch, int N, int C, int OC, bool add, Stream s) {
    if (db) column_sum(db, dy, scratch, N, OC, add, s);
    gemm(weight_product(dw, dy, x, N, C, OC, add), s);
    if (dx) gemm(input_product(dx, dy, w, N, C, OC), s);
}

// of a layer whose input is x = gelu(up): dup (N, C) becomes the gradient of up, db_up (C) its column sums
inline void matmul_gelu_backward(floatX* dup, real* db_up, real* dw, const floatX* dy, const floatX* x,
                                 const floatX* up, const floatX* w, real* scratch, int N, int C, int OC,
                                 bool add, Stream s) {
    matmul_backward(dup, dw, nullptr, dy, x, w, scratch, N, C, OC, add, s);
    gelu_backward(dup, db_up, up, scratch, N, C, add, s);
}

}  // namespace ref

#if HAS_KERNELS
namespace gpu {

__global__ void add_bias_kernel(floatX* y, const floatX* b, long N, int OC) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N * OC) y[i] = floatX(real(y[i]) + real(b[i % OC]));
}

// the bias in the product's epilogue where that is possible
inline void add_bias(Gemm<floatX> product, const floatX* b, Stream s) {
    bool fused = b && fits_epilogue(product.n);
    if (fused) product.bias = b;
    gemm(product, s);
    long N = product.m;
    int OC = product.n;
    if (b && !fused) LAUNCH(add_bias_kernel, ceil_div(N * OC, 256), 256, 0, s, product.out, b, N, OC);
}

inline void matmul_forward(floatX* y, const floatX* x, const floatX* w, const floatX* b, int N, int C, int OC,
                           Stream s) {
    add_bias(forward_product(y, x, w, N, C, OC), b, s);
}

// in the product's epilogue, or in a pass of its own, which is always possible: whichever is faster
template <class Out, class Run>
bool fuses(const char* what, const Gemm<Out>& product, bool fits, int N, int C, int OC, Stream s, Run run) {
    static Remembered<std::tuple<int, int, int>, bool> chosen;  // one for each `run`
    return chosen.get({N, C, OC}, [&] {
        if (!fits || !can_multiply(product)) return false;
        std::string key = text("%s " PRECISION_NAME " %d x %d x %d", what, N, C, OC);
        return tuning.choose(key, 2, 0, s, [&](int way) {
            run(way == 1);
            return true;
        }) == 1;
    });
}

inline void matmul_gelu_forward(floatX* y, floatX* up, const floatX* x, const floatX* w, const floatX* b,
                                int N, int C, int OC, Stream s) {
    Gemm<floatX> plain = forward_product(up, x, w, N, C, OC), product = plain;
    product.out = y;
    product.bias = b;
    product.up = up;
    auto run = [&](bool fused) {
        if (fused) return gemm(product, s);
        add_bias(plain, b, s);
        gelu_forward(y, up, (long)N * OC, s);
    };
    run(fuses("GELU", product, fits_epilogue(OC), N, C, OC, s, run));
}

inline void matmul_backward(floatX* dx, real* dw, real* db, const floatX* dy, const floatX* x,
                            const floatX* w, real* scratch, int N, int C, int OC, bool add, Stream s) {
    Gemm<real> plain = weight_product(dw, dy, x, N, C, OC, add), product = plain;
    product.row_sums = add ? scratch : db;
    auto run = [&](bool fused) {
        gemm(fused ? product : plain, s);
        if (!fused) column_sum(db, dy, scratch, N, OC, add, s);
        else if (add) LAUNCH(column_sum_finish_kernel, ceil_div(OC, 128), 128, 0, s, db, scratch, 1, OC, add);
    };
    if (db) run(fuses("bias gradient", product, fits_epilogue(OC) && fits_epilogue(C), N, C, OC, s, run));
    else gemm(plain, s);
    if (dx) gemm(input_product(dx, dy, w, N, C, OC), s);
}

inline void matmul_gelu_backward(floatX* dup, real* db_up, real* dw, const floatX* dy, const floatX* x,
                                 const floatX* up, const floatX* w, real* scratch, int N, int C, int OC,
                                 bool add, Stream s) {
    matmul_backward(nullptr, dw, nullptr, dy, x, w, scratch, N, C, OC, add, s);
    Gemm<floatX> plain = input_product(dup, dy, w, N, C, OC), product = plain;
    product.gelu_of = up;
    auto run = [&](bool fused) {
        gemm(fused ? product : plain, s);
        if (fused) column_sum(db_up, dup, scratch, N, C, add, s);
        else gelu_backward(dup, db_up, up, scratch, N, C, add, s);
    };
    run(fuses("GELU backward", product, fits_epilogue(C), N, C, OC, s, run));
}

}  // namespace gpu
#endif
