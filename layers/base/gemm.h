// gemm.h   one description of every GEMM; ref::gemm uses the host's BLAS, gpu::gemm cuBLASLt or, in
//   emulation, its stand-in (cublaslt_on_cpu.h)
//   out (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * c          all row-major, `ld` elements a row
//   a, b are floatX, or fp8 numbers scaled by *scale_a, *scale_b; out is floatX or real. `batch` GEMMs, whose
//   operands are `stride` elements apart.
//   `bias` (n) is added to every row of out; on CUDA only where fits_epilogue allows it. With gelu_aux_out
//   (m, n) as well, the sum is stored there, and out = GELU of it; with gelu_aux_in (m, n), which that was in
//   forward, out = the result times GELU's derivative there. These are cuBLASLt's epilogues.
//   cost: 2*m*n*k*batch flops
#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include "device.h"

// ---- GEMM ------------------------------------------------------------------------------------------------

template <class Out, class Left = floatX, class Right = floatX>
struct Gemm {
    Out* out;
    const Left* a;
    const Right* b;
    int m, n, k;
    bool transpose_a = false, transpose_b = false;
    real alpha = 1, beta = 0;
    const Out* c = nullptr;          // as out; nullptr: out itself
    long lda = 0, ldb = 0, ldc = 0;  // 0: packed
    int batch = 1;
    long stride_a = 0, stride_b = 0, stride_out = 0;
    const floatX* bias = nullptr;
    floatX* gelu_aux_out = nullptr;  // (m, n), packed
    const floatX* gelu_aux_in = nullptr;
    const float *scale_a = nullptr, *scale_b = nullptr;  // of fp8 operands, on the device
};

constexpr size_t cublas_workspace = 32 << 20;  // bytes, for each stream that runs GEMMs

// cuBLASLt has epilogues only for rows of a multiple of 8 values, and none in fp64
inline bool fits_epilogue(int n) { return n % 8 == 0 && sizeof(floatX) < 8; }

template <class Out, class Left, class Right>
Gemm<Out, Left, Right> with_leading_dimensions(Gemm<Out, Left, Right> g) {  // where none are given
    if (!g.lda) g.lda = g.transpose_a ? g.m : g.k;
    if (!g.ldb) g.ldb = g.transpose_b ? g.k : g.n;
    if (!g.ldc) g.ldc = g.n;
    return g;
}

// ---- who computes it: fast/host_gemm.h, fast/cublaslt.h ---------------------------------------------------

namespace ref {
template <class Out, class Left = floatX, class Right = floatX>
void gemm(const Gemm<Out, Left, Right>&, Stream);
size_t gemm_workspace();            // bytes, for each stream that runs GEMMs
void take_gemm_workspace(Stream);   // before the first GEMM, not in the middle of a step
std::string gemm_library();
}  // namespace ref

namespace gpu {
template <class Out, class Left = floatX, class Right = floatX>
void gemm(const Gemm<Out, Left, Right>&, Stream);
size_t gemm_workspace();
void take_gemm_workspace(Stream);
std::string gemm_library();
// whether run(true), by an epilogue, is faster than run(false), with a kernel for its work: timed at the
// start, or the choice of the checkpoint or cache; `by_default` where there is none. In a step this looks
// the choice up, and does not call `run`
bool fused_is_faster(const char* what, const Gemm<floatX>& fused_gemm, Stream,
                     const std::function<void(bool)>& run, bool by_default = false);
}  // namespace gpu

// ---- GELU of one value and its slope, by tanh (Hendrycks & Gimpel, 2016) ----------------------------------

constexpr real gelu_scale = real(0.7978845608028654), gelu_cubic = real(0.044715);  // sqrt(2 / pi)

namespace ref {

// tanh by way of exp, which the compiler can vectorise; tanh(u) = 1 - 2 / (1 + exp(2u))
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

#if KERNELS_HERE
namespace gpu {

// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u): for bf16, accurate to 2^-8 only, by two approximate instructions
__device__ inline real gelu_half(real x) {
    real u = gelu_scale * (x + gelu_cubic * x * x * x);
    if constexpr (sizeof(floatX) == 2) return reciprocal_of(1 + exp2_of(-2 * log2_e * float(u)));
    else return (1 + tanh(u)) / 2;
}
__device__ inline real gelu_of(real x) { return x * gelu_half(x); }
__device__ inline real gelu_slope(real x) {
    real h = gelu_half(x);  // which grows by 2 h (1 - h) du
    return h + 2 * x * h * (1 - h) * gelu_scale * (1 + 3 * gelu_cubic * x * x);
}

}  // namespace gpu
#endif
