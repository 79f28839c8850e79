// gemm.h   one description of every GEMM, and ref::gemm by the host's BLAS; cublas.h has gpu::gemm
//   out (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * out        all row-major, `ld` elements a row
//   a, b are floatX, or fp8 numbers that are multiplied by *scale_a, *scale_b; out is floatX or real. `batch`
//   GEMMs whose operands are `stride` elements apart.
//   With `bias` (n): added to every row of out; on CUDA only where fits_epilogue says so. Then, with `up`
//   (m, n), out = GELU of the sum, which is stored in `up`; with `gelu_of` (m, n): out = the result times
//   the slope of GELU there. `row_sums` (m) become op(a) summed over k: the gradient of a bias, in the
//   GEMM that makes its weight's. These are cuBLASLt's epilogues.
//   cost: 2*m*n*k*batch flops
#pragma once
#include <vector>
#include "device.h"
#include "vector_exp.h"

// ---- GELU of one value and its slope, for epilogues and gelu.cuh (tanh form; Hendrycks & Gimpel, 2016) ----

constexpr real gelu_scale = real(0.7978845608028654), gelu_cubic = real(0.044715);  // sqrt(2 / pi)

namespace ref {

// tanh by way of exp, which the compiler turns into vectors; tanh(u) = 1 - 2 / (1 + exp(2u))
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

#if HAS_KERNELS
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

// ---- GEMM ------------------------------------------------------------------------------------------------

template <class Out, class A = floatX, class B = floatX>
struct Gemm {
    Out* out;
    const A* a;
    const B* b;
    int m, n, k;
    bool transpose_a = false, transpose_b = false;
    real alpha = 1, beta = 0;
    long lda = 0, ldb = 0, ldc = 0;  // 0: packed
    int batch = 1;
    long stride_a = 0, stride_b = 0, stride_out = 0;
    const floatX* bias = nullptr;
    floatX* up = nullptr;             // rows of out's length, as are these
    const floatX* gelu_of = nullptr;
    Out* row_sums = nullptr;          // (m), set: op(a) summed over k; on CUDA where fits_epilogue says so
    const float *scale_a = nullptr, *scale_b = nullptr;  // of fp8 operands, on the device
};

constexpr size_t cublas_workspace = 32 << 20;  // bytes

// cuBLASLt has epilogues when rows are whole 16-byte vectors, and not in fp64
inline bool fits_epilogue(int n) { return n % 8 == 0 && sizeof(floatX) < 8; }

template <class Out, class A, class B>
Gemm<Out, A, B> packed(Gemm<Out, A, B> g) {  // leading dimensions that were not given
    if (!g.lda) g.lda = g.transpose_a ? g.m : g.k;
    if (!g.ldb) g.ldb = g.transpose_b ? g.k : g.n;
    if (!g.ldc) g.ldc = g.n;
    return g;
}

// CBLAS's own interface, declared here so that a CUDA build without its header compiles
extern "C" {
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc);
void cblas_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double* a, int lda,
                 const double* b, int ldb, double beta, double* c, int ldc);
}
constexpr int cblas_row_major = 101, cblas_as_is = 111;  // 112: transposed

namespace ref {

// a matrix of bf16 as real, for a BLAS that knows no bf16; one that is real already is taken as it lies
struct Widened {
    std::vector<real> copy;
    const real* data;
    template <class T>
    Widened(const T* x, long rows, long cols, long ld) {
        if constexpr (std::is_same_v<T, real>) {
            data = x;
        } else {
            copy.resize(rows ? (rows - 1) * ld + cols : 0);
            #pragma omp parallel for
            for (size_t i = 0; i < copy.size(); i++) copy[i] = real(float(x[i]));
            data = copy.data();
        }
    }
};

// the epilogue of a value, which is given unrounded
template <class Out, class A, class B>
Out finish(const Gemm<Out, A, B>& g, int r, int c, real x) {
    long at = (long)r * g.n + c;
    if (g.bias) x += real(g.bias[c]);
    if (g.gelu_of) return Out(x * gelu_slope(real(g.gelu_of[at])));
    if (!g.up) return Out(x);
    g.up[at] = floatX(x);
    return Out(gelu_of(real(g.up[at])));
}

template <class Out, class A, class B>
void sum_rows(const Gemm<Out, A, B>& g, const real* a) {
    #pragma omp parallel for
    for (int r = 0; r < g.m; r++) {
        real sum = 0;
        for (int k = 0; k < g.k; k++) sum += a[g.transpose_a ? k * g.lda + r : r * g.lda + k];
        g.row_sums[r] = Out(sum);
    }
}

// out (m, n), ldc elements a row = g.alpha * op(a) op(b) + beta * out
template <class Out, class A, class B>
void blas(const Gemm<Out, A, B>& g, real* out, long ldc, real beta, const real* a, const real* b) {
    int ta = cblas_as_is + g.transpose_a, tb = cblas_as_is + g.transpose_b;
    int lda = (int)g.lda, ldb = (int)g.ldb;
    if constexpr (sizeof(real) == 8)
        cblas_dgemm(cblas_row_major, ta, tb, g.m, g.n, g.k, g.alpha, a, lda, b, ldb, beta, out, (int)ldc);
    else
        cblas_sgemm(cblas_row_major, ta, tb, g.m, g.n, g.k, g.alpha, a, lda, b, ldb, beta, out, (int)ldc);
}

template <class Out, class A = floatX, class B = floatX>
void gemm(const Gemm<Out, A, B>& given, Stream) {
    Gemm<Out, A, B> g = packed(given);
    if (g.scale_a) g.alpha *= *g.scale_a * *g.scale_b;
    for (int i = 0; i < g.batch; i++) {
        Widened a(g.a + i * g.stride_a, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda);
        Widened b(g.b + i * g.stride_b, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb);
        Out* out = g.out + i * g.stride_out;
        if (g.row_sums) sum_rows(g, a.data);
        if constexpr (std::is_same_v<Out, real>) {
            blas(g, out, g.ldc, g.beta, a.data, b.data);
            if (!g.bias && !g.gelu_of) continue;
            #pragma omp parallel for
            for (int r = 0; r < g.m; r++)
                for (int c = 0; c < g.n; c++) out[r * g.ldc + c] = finish(g, r, c, out[r * g.ldc + c]);
        } else {
            std::vector<real> wide((size_t)g.m * g.n);
            blas(g, wide.data(), g.n, 0, a.data, b.data);
            for (int r = 0; r < g.m; r++)
                for (int c = 0; c < g.n; c++) {
                    real old = g.beta == 0 ? 0 : g.beta * real(out[r * g.ldc + c]);
                    out[r * g.ldc + c] = finish(g, r, c, wide[(size_t)r * g.n + c] + old);
                }
        }
    }
}

inline size_t gemm_workspace(bool) { return 0; }
inline std::string gemm_library() { return "CBLAS"; }

}  // namespace ref
