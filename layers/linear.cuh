// linear.cuh   y = x w^T + b: linear layers, alone, on top of a residual, or with GELU after or before them
//   x (N, C)   w (OC, C)   b (OC) or nullptr   y, residual (N, OC)   dw (OC, C), db real
//   GELU: y = 0.5 * x * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 * x^3)
//   kept:  nothing (the block keeps x, and the input of GELU)
//   backward: sets dx; sets dw or, with `accumulate`, adds to it in the GEMM itself. Where db is computed:
//             list in model/block.h; up's is here, where GELU's slope is applied
//   gpu: GELU, and a bias with a residual, are in a GEMM's epilogue or a kernel apart, whichever was faster
//   when timed at the start (fused_is_faster(), base/gemm.h); untimed, the bias is in the epilogue and GELU
//   is not. With --fp8: other operations, fast/fp8_linear.h
//   communicates: nothing    cost: 2*N*C*OC flops forward, twice that backward: compute bound; GELU 14*N*C
//                            flops, reads and writes once: memory bound
#pragma once
#include "base/gemm.h"
#include "base/operation.h"
#include "column_sums.cuh"

// ---- their GEMMs, as they are computed and as works() counts them ----------------------------------------

// base/gemm.h: out (m, n) = a b + beta c + bias, where c is only read; with gelu_aux_in, times GELU's slope

// y = x w^T, + residual if there is one
inline Gemm<floatX> forward_gemm(floatX* y, const floatX* x, const floatX* w, int N, int C, int OC,
                                 const floatX* residual = nullptr) {
    return {.out = y, .a = x, .b = w, .m = N, .n = OC, .k = C, .transpose_b = true,
            .beta = real(residual != nullptr), .c = residual};
}

// dx = dy w
inline Gemm<floatX> input_gemm(floatX* dx, const floatX* dy, const floatX* w, int N, int C, int OC) {
    return {.out = dx, .a = dy, .b = w, .m = N, .n = C, .k = OC};
}

// dw = dy^T x, or added to it
inline Gemm<real> weight_gemm(real* dw, const floatX* dy, const floatX* x, int N, int C, int OC,
                              bool accumulate) {
    return {
        .out = dw, .a = dy, .b = x, .m = OC, .n = C, .k = N, .transpose_a = true, .beta = real(accumulate)};
}

template <class Out>
Work work_of(const Gemm<Out>& g) {
    double m = g.m, n = g.n, k = g.k, out = m * n * (g.beta != 0 ? 2 : 1);
    bool is_x = element_at(g.out) == Element::X;
    return {.kind = Work::Linear, .gemm = {g.m, g.n, g.k}, .x = m * k + k * n + (is_x ? out : 0),
            .reals = is_x ? 0 : out};
}

// ---- the operations --------------------------------------------------------------------------------------

struct LinearForward {
    floatX* y;
    const floatX *x, *w, *b;
    int N, C, OC;
    const floatX* residual = nullptr;  // added in the GEMM; the bias there too, or by a kernel after

    static constexpr const char* name = "linear_forward";
    std::vector<TensorAccess> tensors() const {
        return {reads("x", x, N, C), reads("w", w, OC, C), reads("b", b, OC),
                reads("residual", residual, N, OC), writes("y", y, N, OC)};
    }
    std::vector<Work> works() const { return {work_of(forward_gemm(y, x, w, N, C, OC, residual))}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// y = gelu(up), up = x w^T + b
struct LinearGeluForward {
    floatX *y, *up;
    const floatX *x, *w, *b;
    int N, C, OC;

    static constexpr const char* name = "linear_gelu_forward";
    std::vector<TensorAccess> tensors() const {
        return {reads("x", x, N, C), reads("w", w, OC, C), reads("b", b, OC), writes("up", up, N, OC),
                writes("y", y, N, OC)};
    }
    std::vector<Work> works() const {
        return {work_of(forward_gemm(up, x, w, N, C, OC)), moves(2.0 * N * OC)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// two independent GEMMs
struct LinearBackward {
    floatX* dx;
    real* dw;
    const floatX *dy, *x, *w;
    int N, C, OC;
    bool accumulate;
    float largest_dy = 0;  // for --fp8: a bound of |dy|; 0: none is known

    static constexpr const char* name = "linear_backward";
    std::vector<TensorAccess> tensors() const {
        return {reads("dy", dy, N, OC), reads("x", x, N, C), reads("w", w, OC, C),
                sums_to("dw", dw, accumulate, OC, C), writes("dx", dx, N, C)};
    }
    std::vector<Work> works() const {
        return {work_of(weight_gemm(dw, dy, x, N, C, OC, accumulate)),
                work_of(input_gemm(dx, dy, w, N, C, OC))};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// of the MLP's second layer, y = x w^T with x = gelu(up), where C is the model's 4C: d_up (N, C) becomes the
// gradient of up, and d_up_bias (C) its column sums, the gradient of the first layer's bias
struct LinearOfGeluBackward {
    floatX* d_up;
    real *dw, *d_up_bias;
    const floatX *dy, *x, *up, *w;
    real* column_scratch;  // column_sum_scratch(C)
    int N, C, OC;
    bool accumulate;

    static constexpr const char* name = "linear_of_gelu_backward";
    std::vector<TensorAccess> tensors() const {
        return {reads("dy", dy, N, OC), reads("x", x, N, C), reads("up", up, N, C), reads("w", w, OC, C),
                sums_to("dw", dw, accumulate, OC, C), sums_to("d_up_bias", d_up_bias, accumulate, C),
                writes("d_up", d_up, N, C)};
    }
    std::vector<Work> works() const {
        return {work_of(weight_gemm(dw, dy, x, N, C, OC, accumulate)),
                work_of(input_gemm(d_up, dy, w, N, C, OC)), moves(3.0 * N * C)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

struct GeluForward {
    floatX* y;
    const floatX* x;
    int N, C;

    static constexpr const char* name = "gelu_forward";
    std::vector<TensorAccess> tensors() const { return {reads("x", x, N, C), writes("y", y, N, C)}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
namespace ref {

// dy (N, C) becomes dx, db its column sums
inline void gelu_backward(floatX* dy, real* db, const floatX* x, real* sums, int N, int C, bool accumulate,
                          Stream s) {
    #pragma omp parallel for simd
    for (long i = 0; i < (long)N * C; i++) dy[i] = floatX(real(dy[i]) * gelu_slope(real(x[i])));
    ref::column_sum(db, dy, sums, N, C, accumulate, s);
}

}  // namespace ref

void LinearForward::ref(Stream s) const {
    Gemm<floatX> g = forward_gemm(y, x, w, N, C, OC, residual);
    g.bias = b;
    ref::gemm(g, s);
}

void LinearGeluForward::ref(Stream s) const {
    LinearForward{.y = up, .x = x, .w = w, .b = b, .N = N, .C = C, .OC = OC}.ref(s);
    GeluForward{y, up, N, OC}.ref(s);
}

void LinearBackward::ref(Stream s) const {
    ref::gemm(weight_gemm(dw, dy, x, N, C, OC, accumulate), s);
    ref::gemm(input_gemm(dx, dy, w, N, C, OC), s);
}

void LinearOfGeluBackward::ref(Stream s) const {
    ref::gemm(weight_gemm(dw, dy, x, N, C, OC, accumulate), s);
    ref::gemm(input_gemm(d_up, dy, w, N, C, OC), s);
    ref::gelu_backward(d_up, d_up_bias, up, column_scratch, N, C, accumulate, s);
}

void GeluForward::ref(Stream) const {
    #pragma omp parallel for simd
    for (long i = 0; i < (long)N * C; i++) y[i] = floatX(ref::gelu_of(real(x[i])));
}
#endif

#if KERNELS_HERE
namespace gpu {

// ---- GELU -------------------------------------------------------------------------------------------------

// 16 bytes per thread; the last has fewer, if n is not a multiple of them
__global__ void gelu_forward_kernel(floatX* y, const floatX* x, long n) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * vec_size;
    int left = n - i < vec_size ? (int)(n - i) : vec_size;
    if (left <= 0) return;
    auto xs = to_reals(load_row(x + i, 0, left));
    for (int k = 0; k < vec_size; k++) xs.at[k] = gelu_of(xs.at[k]);
    store_row(y + i, 0, left, rounded(xs));
}

// a thread's share of a row, from column c: dy becomes dx, and is added to `sum`
__device__ inline Vec<floatX> gelu_backward_vector(floatX* dy, const floatX* x, real (&sum)[vec_size], int c,
                                                   int C) {
    auto ds = to_reals(load_row(dy, c, C)), xs = to_reals(load_row(x, c, C));
    for (int k = 0; k < vec_size; k++) ds.at[k] *= gelu_slope(xs.at[k]);
    Vec<floatX> d = rounded(ds);
    ds = to_reals(d);
    for (int k = 0; k < vec_size; k++) sum[k] += ds.at[k];
    store_row(dy, c, C, d);
    return d;
}

// sums: the parts of dx's column sums
__global__ void gelu_backward_kernel(floatX* dy, real* sums, const floatX* x, int N, int C) {
    sum_columns_of_block<vec_size>(sums, [&](real (&sum)[vec_size], int n, int c) {
        gelu_backward_vector(dy + (long)n * C, x + (long)n * C, sum, c, C);
    }, N, C);
}

inline void gelu_backward(floatX* dy, real* db, const floatX* x, real* sums, int N, int C, bool accumulate,
                          Stream s) {
    int parts = column_parts(N);
    LAUNCH(gelu_backward_kernel, column_blocks<vec_size>(C, parts), dim3(column_lanes, column_rows), 0, s, dy,
           sums, x, N, C);
    column_sum_finish(db, nullptr, sums, parts, C, accumulate, s);
}

// ---- GEMMs with bias or GELU ------------------------------------------------------------------------------

// a row per block
__global__ void add_bias_kernel(floatX* y, const floatX* b, int OC) {
    floatX* row = y + (long)blockIdx.x * OC;
    for (int c = (int)threadIdx.x * vec_size; c < OC; c += (int)blockDim.x * vec_size) {
        Vec<floatX> v = load_row(row, c, OC), bias = load_row(b, c, OC);
        #pragma unroll
        for (int k = 0; k < vec_size; k++) v.at[k] = floatX(real(v.at[k]) + real(bias.at[k]));
        store_row(row, c, OC, v);
    }
}

}  // namespace gpu

// the bias is in the GEMM's epilogue where there is one; with a residual, only if that was faster
void LinearForward::gpu(Stream s) const {
    Gemm<floatX> plain = forward_gemm(y, x, w, N, C, OC, residual), fused_gemm = plain;
    fused_gemm.bias = b;
    auto run = [&](bool fused) {
        gpu::gemm(fused ? fused_gemm : plain, s);
        if (b && !fused) LAUNCH(gpu::add_bias_kernel, N, 128, 0, s, y, b, OC);
    };
    bool fits = b && fits_epilogue(OC);
    auto is_faster = [&] {
        return gpu::fused_is_faster("bias and residual", fused_gemm, s, run, /*by_default=*/true);
    };
    run(fits && (!residual || is_faster()));
}

void LinearGeluForward::gpu(Stream s) const {
    Gemm<floatX> fused_gemm = forward_gemm(y, x, w, N, C, OC);
    fused_gemm.bias = b;
    fused_gemm.gelu_aux_out = up;
    auto run = [&](bool fused) {
        if (fused) return gpu::gemm(fused_gemm, s);
        LinearForward{.y = up, .x = x, .w = w, .b = b, .N = N, .C = C, .OC = OC}.gpu(s);
        GeluForward{y, up, N, OC}.gpu(s);
    };
    run(gpu::fused_is_faster("GELU", fused_gemm, s, run));
}

void LinearBackward::gpu(Stream s) const {
    gpu::gemm(weight_gemm(dw, dy, x, N, C, OC, accumulate), s);
    gpu::gemm(input_gemm(dx, dy, w, N, C, OC), s);
}

void LinearOfGeluBackward::gpu(Stream s) const {
    gpu::gemm(weight_gemm(dw, dy, x, N, C, OC, accumulate), s);
    Gemm<floatX> unfused = input_gemm(d_up, dy, w, N, C, OC), fused_gemm = unfused;
    fused_gemm.gelu_aux_in = up;
    auto run = [&](bool fused) {
        gpu::gemm(fused ? fused_gemm : unfused, s);
        if (fused) gpu::column_sum(d_up_bias, d_up, column_scratch, N, C, accumulate, s);
        else gpu::gelu_backward(d_up, d_up_bias, up, column_scratch, N, C, accumulate, s);
    };
    run(gpu::fused_is_faster("GELU backward with sums", fused_gemm, s, run));
}

void GeluForward::gpu(Stream s) const {
    LAUNCH(gpu::gelu_forward_kernel, ceil_div((long)N * C, 256 * vec_size), 256, 0, s, y, x, (long)N * C);
}
#endif
