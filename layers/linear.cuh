// linear.cuh   y = x w^T + b: linear layers, alone or with GELU after or before them; GELU
//   x (N, C)   w (OC, C)   b (OC) or nullptr   y (N, OC)   dw (OC, C), db (OC) real
//   GELU: y = 0.5 * x * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 * x^3)
//   kept:  nothing (the block keeps x, and the input of GELU)
//   backward: sets dx; sets dw and db or, with `accumulate`, adds to them: to dw in the GEMM itself, to db,
//             if it is wanted here (see the table in model/block.h), by column_sum (residual.cuh). GELU's dy
//             becomes dx in place. scratch: column_sum_scratch(OC) values
//   gpu: GELU is computed in a GEMM's epilogue or in a kernel of its own, whichever is faster: see
//   fast/autotune.h. The bias gradient has its own kernel: cuBLASLt's epilogue for it slows the GEMM by more
//   (H100, 124M: 537 us for 497, and 619 for 578). With --fp8 the GEMMs are those of fp8_linear.cuh
//   communicates: nothing    cost: 2*N*C*OC flops forward, twice that backward: compute bound; GELU 14*N*C
//                            flops, reads and writes once: memory bound
#pragma once
#include "fast/fp8_linear.cuh"
#include "residual.cuh"

// ---- the operations --------------------------------------------------------------------------------------

struct LinearScratch {
    real* sums = nullptr;  // column_sum_scratch(OC) values or more: layer norms use it as well
    Fp8Scratch fp8 = {};   // only with --fp8; otherwise null, and the GEMMs are in floatX
    bool in_fp8() const { return fp8.x; }  // false: skip what fp8:: and `rounds` say below
    LinearScratch without_fp8() const { return {sums}; }
};

// rounding a tensor to fp8: it is read to find its largest value, then read again
inline Work rounding_work(const LinearScratch& scratch, double n, int copies) {
    return scratch.in_fp8() ? moves(2 * n, 0, n * copies) : Work{};
}

struct LinearForward {
    floatX* y;
    const floatX *x, *w, *b;
    int N, C, OC;
    LinearScratch scratch = {};

    static constexpr const char* name = "linear_forward";
    std::vector<Tensor> tensors() const {
        return {reads("x", x, N, C), reads("w", w, OC, C), reads("b", b, OC), writes("y", y, N, OC)};
    }
    std::vector<Work> works() const {
        return {rounding_work(scratch, (double)N * C, 1), product(y, N, OC, C, false, scratch.in_fp8())};
    }
    void execute(Stream) const;
    void ref(Stream) const;
    void gpu(Stream) const;
};

// y = gelu(up), up = x w^T + b
struct LinearGeluForward {
    floatX *y, *up;
    const floatX *x, *w, *b;
    int N, C, OC;
    LinearScratch scratch = {};

    static constexpr const char* name = "linear_gelu_forward";
    std::vector<Tensor> tensors() const {
        return {reads("x", x, N, C), reads("w", w, OC, C), reads("b", b, OC), writes("up", up, N, OC),
                writes("y", y, N, OC)};
    }
    std::vector<Work> works() const {
        return {rounding_work(scratch, (double)N * C, 1), product(up, N, OC, C, false, scratch.in_fp8()),
                moves(2.0 * N * OC)};
    }
    void execute(Stream) const;
    void ref(Stream) const;
    void gpu(Stream) const;
};

// dx, db: nullptr if not wanted
struct LinearBackward {
    floatX* dx;
    real *dw, *db;
    const floatX *dy, *x, *w;
    LinearScratch scratch;
    int N, C, OC;
    bool accumulate;

    static constexpr const char* name = "linear_backward";
    std::vector<Tensor> tensors() const {
        return {reads("dy", dy, N, OC), reads("x", x, N, C), reads("w", w, OC, C),
                sums_to("dw", dw, accumulate, OC, C), sums_to("db", db, accumulate, OC),
                writes("dx", dx, N, C)};
    }
    std::vector<Work> works() const {
        bool rounds = scratch.in_fp8();
        return {db ? moves((double)N * OC) : Work{}, rounding_work(scratch, (double)N * C, 1),
                rounding_work(scratch, (double)N * OC, 2), product(dw, OC, C, N, accumulate, rounds),
                product(dx, N, C, OC, false, rounds)};
    }
    void execute(Stream) const;
    void ref(Stream) const;
    void gpu(Stream) const;
};

// for a layer whose input is x = gelu(up): d_up (N, C) becomes the gradient of up
struct LinearOfGeluBackward {
    floatX* d_up;
    real* dw;
    const floatX *dy, *x, *up, *w;
    LinearScratch scratch;
    int N, C, OC;
    bool accumulate;

    LinearBackward of_weight() const {
        return {.dx = nullptr, .dw = dw, .db = nullptr, .dy = dy, .x = x, .w = w, .scratch = scratch, .N = N,
                .C = C, .OC = OC, .accumulate = accumulate};
    }

    static constexpr const char* name = "linear_of_gelu_backward";
    std::vector<Tensor> tensors() const {
        return {reads("dy", dy, N, OC), reads("x", x, N, C), reads("up", up, N, C), reads("w", w, OC, C),
                sums_to("dw", dw, accumulate, OC, C), writes("d_up", d_up, N, C)};
    }
    std::vector<Work> works() const {
        bool rounds = scratch.in_fp8();
        return {rounding_work(scratch, (double)N * C, 1), rounding_work(scratch, (double)N * OC, 2),
                product(dw, OC, C, N, accumulate, rounds), product(d_up, N, C, OC, false, rounds),
                moves(3.0 * N * C)};
    }
    void execute(Stream) const;
    void ref(Stream) const;
    void gpu(Stream) const;
};

struct GeluForward {
    floatX* y;
    const floatX* x;
    int N, C;

    static constexpr const char* name = "gelu_forward";
    std::vector<Tensor> tensors() const { return {reads("x", x, N, C), writes("y", y, N, C)}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// --fp8: w (OC, C) and its transpose in fp8, which the GEMMs read until w changes
struct RoundWeight {
    const floatX* w;
    LinearScratch scratch;
    int C, OC;

    static constexpr const char* name = "round_weight";
    std::vector<Tensor> tensors() const {
        const Fp8Weights& copies = scratch.fp8.weights;
        return {reads("w", w, OC, C), writes("w in 8 bits", copies.copy(w), OC, C),
                writes("transposed", copies.transpose(w), C, OC)};
    }
    std::vector<Work> works() const { return {rounding_work(scratch, (double)C * OC, 2)}; }
    void execute(Stream s) const { fp8::round_weight(w, scratch.fp8, C, OC, s); }
};

// ---- their GEMMs -----------------------------------------------------------------------------------------

// These describe a GEMM, which gemm() computes, and count its FLOPs: each run compares them with its plan,
// which goes by works()
inline int64_t linear_flops = 0;  // since it was last reset

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

// ---- ref -------------------------------------------------------------------------------------------------

namespace ref {

inline void gelu_forward(floatX* y, const floatX* x, long n, Stream) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) y[i] = floatX(gelu_of(real(x[i])));
}

inline void gelu_backward(floatX* dy, const floatX* x, long n, Stream) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) dy[i] = floatX(real(dy[i]) * gelu_slope(real(x[i])));
}

}  // namespace ref

inline void LinearForward::ref(Stream s) const {
    Gemm<floatX> fused_gemm = forward_gemm(y, x, w, N, C, OC);
    fused_gemm.bias = b;
    ref::gemm(fused_gemm, s);
}

inline void LinearGeluForward::ref(Stream s) const {
    LinearForward{.y = up, .x = x, .w = w, .b = b, .N = N, .C = C, .OC = OC}.ref(s);
    ref::gelu_forward(y, up, (long)N * OC, s);
}

inline void LinearBackward::ref(Stream s) const {
    if (db) ref::column_sum(db, dy, scratch.sums, N, OC, accumulate, s);
    ref::gemm(weight_gemm(dw, dy, x, N, C, OC, accumulate), s);
    if (dx) ref::gemm(input_gemm(dx, dy, w, N, C, OC), s);
}

inline void LinearOfGeluBackward::ref(Stream s) const {
    of_weight().ref(s);
    ref::gemm(input_gemm(d_up, dy, w, N, C, OC), s);
    ref::gelu_backward(d_up, up, (long)N * C, s);
}

inline void GeluForward::ref(Stream s) const { ref::gelu_forward(y, x, (long)N * C, s); }

#if HAS_KERNELS
namespace gpu {

// ---- GELU -------------------------------------------------------------------------------------------------

// 16 bytes per thread
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

__global__ void gelu_backward_kernel(floatX* dy, const floatX* x, long n) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * vec_size;
    if (i + vec_size <= n) {
        Vec<floatX> d = load16(dy + i), v = load16(x + i);
        UNROLL(unroll)
        for (int k = 0; k < vec_size; k++) d.at[k] = floatX(real(d.at[k]) * gelu_slope(real(v.at[k])));
        store16(dy + i, d);
    } else {
        for (; i < n; i++) dy[i] = floatX(real(dy[i]) * gelu_slope(real(x[i])));
    }
}

inline void gelu_forward(floatX* y, const floatX* x, long n, Stream s) {
    LAUNCH(gelu_forward_kernel, ceil_div(n, 256 * vec_size), 256, 0, s, y, x, n);
}
inline void gelu_backward(floatX* dy, const floatX* x, long n, Stream s) {
    LAUNCH(gelu_backward_kernel, ceil_div(n, 256 * vec_size), 256, 0, s, dy, x, n);
}

// ---- GEMMs with bias or GELU ------------------------------------------------------------------------------

__global__ void add_bias_kernel(floatX* y, const floatX* b, long N, int OC) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N * OC) y[i] = floatX(real(y[i]) + real(b[i % OC]));
}

// with the bias in the GEMM's epilogue where that is possible
inline void gemm_with_bias(Gemm<floatX> g, const floatX* b, Stream s) {
    bool fused = b && fits_epilogue(g.n);
    if (fused) g.bias = b;
    gemm(g, s);
    long N = g.m;
    int OC = g.n;
    if (b && !fused) LAUNCH(add_bias_kernel, ceil_div(N * OC, 256), 256, 0, s, g.out, b, N, OC);
}

// Whether to use the GEMM's epilogue, if possible, or a separate kernel, always possible: whichever is
// faster. Timed before the first step, in tune() (setup.h), and only then is `run` called here; in a step
// this looks up an answer
template <class Run>
bool fuses(const char* what, const Gemm<floatX>& fused_gemm, int N, int C, int OC, Stream s, Run run) {
    static AutotuneCache<std::tuple<int, int, int>, bool> chosen;  // one per type of `run`
    return chosen.get({N, C, OC}, [&] {
        if (!fits_epilogue(fused_gemm.n) || !can_compute(fused_gemm)) return false;
        std::string key = text("%s " PRECISION_NAME " %d x %d x %d", what, N, C, OC);
        return autotuner.choose(key, 2, 0, s, [&](int way) {
            try {
                run(way == 1);
            } catch (const Error&) {
                return false;
            }
            return true;
        }) == 1;
    });
}

}  // namespace gpu

inline void LinearForward::gpu(Stream s) const {
    gpu::gemm_with_bias(forward_gemm(y, x, w, N, C, OC), b, s);
}

inline void LinearGeluForward::gpu(Stream s) const {
    Gemm<floatX> unfused = forward_gemm(up, x, w, N, C, OC), fused_gemm = unfused;
    fused_gemm.out = y;
    fused_gemm.bias = b;
    fused_gemm.up = up;
    auto run = [&](bool fused) {
        if (fused) return gpu::gemm(fused_gemm, s);
        gpu::gemm_with_bias(unfused, b, s);
        gpu::gelu_forward(y, up, (long)N * OC, s);
    };
    bool fused = gpu::fuses("GELU", fused_gemm, N, C, OC, s, run);
    run(fused);
}

inline void LinearBackward::gpu(Stream s) const {
    if (dx) gpu::gemm(input_gemm(dx, dy, w, N, C, OC), s);
    gpu::gemm(weight_gemm(dw, dy, x, N, C, OC, accumulate), s);
    if (db) gpu::column_sum(db, dy, scratch.sums, N, OC, accumulate, s);
}

inline void LinearOfGeluBackward::gpu(Stream s) const {
    of_weight().gpu(s);
    Gemm<floatX> unfused = input_gemm(d_up, dy, w, N, C, OC), fused_gemm = unfused;
    fused_gemm.gelu_input = up;
    auto run = [&](bool fused) {
        gpu::gemm(fused ? fused_gemm : unfused, s);
        if (!fused) gpu::gelu_backward(d_up, up, (long)N * C, s);
    };
    bool fused = gpu::fuses("GELU backward", fused_gemm, N, C, OC, s, run);
    run(fused);
}

inline void GeluForward::gpu(Stream s) const { gpu::gelu_forward(y, x, (long)N * C, s); }
#endif

// ---- in floatX or, with --fp8, in 8 bits -----------------------------------------------------------------

inline void LinearForward::execute(Stream s) const {
    if (!scratch.in_fp8()) return compute(*this, s);
    linear_flops += 2L * N * C * OC;
    fp8::matmul_forward(y, x, w, b, scratch.fp8, N, C, OC, s);
}

inline void LinearGeluForward::execute(Stream s) const {
    if (!scratch.in_fp8()) return compute(*this, s);
    linear_flops += 2L * N * C * OC;
    fp8::matmul_forward(up, x, w, b, scratch.fp8, N, C, OC, s);
    dev::gelu_forward(y, up, (long)N * OC, s);
}

inline void LinearBackward::execute(Stream s) const {
    if (!scratch.in_fp8()) return compute(*this, s);
    linear_flops += 4L * N * C * OC;
    if (db) dev::column_sum(db, dy, scratch.sums, N, OC, accumulate, s);
    fp8::matmul_backward(dx, dw, dy, x, w, scratch.fp8, N, C, OC, accumulate, s);
}

inline void LinearOfGeluBackward::execute(Stream s) const {
    if (!scratch.in_fp8()) return compute(*this, s);
    linear_flops += 4L * N * C * OC;
    fp8::matmul_backward(d_up, dw, dy, x, w, scratch.fp8, N, C, OC, accumulate, s);
    dev::gelu_backward(d_up, up, (long)N * C, s);
}
