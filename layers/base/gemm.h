// gemm.h   one description of every GEMM; ref::gemm uses the host's BLAS, gpu::gemm (the last third of this
//   file) cuBLASLt or, in emulation, its stand-in (cublaslt_on_cpu.h)
//   out (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * out        all row-major, `ld` elements a row
//   a, b are floatX, or fp8 numbers scaled by *scale_a, *scale_b; out is floatX or real. `batch` GEMMs, whose
//   operands are `stride` elements apart.
//   `bias` (n) is added to every row of out; on CUDA only where fits_epilogue allows it. With `up` (m, n) as
//   well, out = GELU of the sum, and the sum itself is stored in `up`; with `gelu_input` (m, n), out = the
//   result times GELU's derivative there. These are cuBLASLt's epilogues.
//   fast/gemm_choice.h picks the fastest of cuBLASLt's algorithms: only deterministic ones, which never round
//   partial sums to bf16.
//   cost: 2*m*n*k*batch flops
#pragma once
#include <algorithm>
#include <map>
#include <vector>
#include "device.h"
#include "../fast/fp8.h"
#include "gelu.h"
#include "host_blas.h"
#if defined(__CUDACC__)
#include <cublasLt.h>
#elif HAS_KERNELS
#include "../emulator/cublaslt_on_cpu.h"
#endif

// ---- GEMM ------------------------------------------------------------------------------------------------

template <class Out, class Left = floatX, class Right = floatX>
struct Gemm {
    Out* out;
    const Left* a;
    const Right* b;
    int m, n, k;
    bool transpose_a = false, transpose_b = false;
    real alpha = 1, beta = 0;
    long lda = 0, ldb = 0, ldc = 0;  // 0: packed
    int batch = 1;
    long stride_a = 0, stride_b = 0, stride_out = 0;
    const floatX* bias = nullptr;
    floatX* up = nullptr;             // (m, n), packed; so is gelu_input
    const floatX* gelu_input = nullptr;
    const float *scale_a = nullptr, *scale_b = nullptr;  // of fp8 operands, on the device
};

constexpr size_t cublas_workspace = 32 << 20;  // bytes, for each stream that multiplies

// cuBLASLt has epilogues only for rows of whole 16-byte vectors (of bf16: 8 values), and not in fp64
inline bool fits_epilogue(int n) { return n % 8 == 0 && sizeof(floatX) < 8; }

template <class Out, class Left, class Right>
Gemm<Out, Left, Right> with_strides(Gemm<Out, Left, Right> g) {  // leading dimensions, where none are given
    if (!g.lda) g.lda = g.transpose_a ? g.m : g.k;
    if (!g.ldb) g.ldb = g.transpose_b ? g.k : g.n;
    if (!g.ldc) g.ldc = g.n;
    return g;
}

namespace ref {

template <class T>
real to_real(T x) {
    if constexpr (std::is_same_v<T, real>) return x;
    else return float(x);
}

// a bf16 or fp8 matrix converted to real, for a BLAS that has no such type; a real one is used in place
struct Widened {
    std::vector<real> copy;
    const real* data;
    template <class T>
    Widened(const T* x, long rows, long cols, long ld) {
        if constexpr (std::is_same_v<T, real>) {
            data = x;
        } else {
            copy.resize(rows ? (rows - 1) * ld + cols : 0);
            real* to = copy.data();
            #pragma omp parallel for simd
            for (long i = 0; i < (long)copy.size(); i++) to[i] = to_real(x[i]);
            data = to;
        }
    }
};

// row r of out = GELU of row r of up
template <class Out, class Left, class Right>
void gelu_row(const Gemm<Out, Left, Right>& g, long r) {
    Out* out = g.out + r * g.ldc;
    const floatX* up = g.up + r * g.n;
    #pragma omp simd
    for (long c = 0; c < g.n; c++) out[c] = Out(gelu_of(real(up[c])));
}

// applies the epilogue to row r of a GEMM's result (n), which is not rounded yet
template <class Out, class Left, class Right>
void finish_row(const Gemm<Out, Left, Right>& g, long r, real* x) {
    Out* out = g.out + r * g.ldc;
    long n = g.n;
    if (g.bias) {
        const floatX* bias = g.bias;
        #pragma omp simd
        for (long c = 0; c < n; c++) x[c] += real(bias[c]);
    }

    if (g.gelu_input) {
        const floatX* at = g.gelu_input + r * n;
        #pragma omp simd
        for (long c = 0; c < n; c++) out[c] = Out(x[c] * gelu_slope(real(at[c])));
    } else if (g.up) {
        floatX* up = g.up + r * n;
        #pragma omp simd
        for (long c = 0; c < n; c++) up[c] = floatX(x[c]);
        gelu_row(g, r);
    } else {
        #pragma omp simd
        for (long c = 0; c < n; c++) out[c] = Out(x[c]);
    }
}

// out (m, n), ldc elements a row = g.alpha * op(a) op(b) + beta * out + bias by oneDNN, if it can
template <class To, class Out, class Left, class Right>
bool try_bf16(const Gemm<Out, Left, Right>& g, To* out, long ldc, real beta, const floatX* bias = nullptr) {
    if constexpr (std::is_same_v<Left, bf16> && std::is_same_v<Right, bf16>)
        return multiply_bf16({out, g.a, g.b, bias, g.m, g.n, g.k, g.transpose_a, g.transpose_b,
                              sizeof(To) == 4, g.lda, g.ldb, ldc, (float)g.alpha, (float)beta});
    return false;
}

// the same without a bias, by oneDNN or CBLAS
template <class Out, class Left, class Right>
void multiply(const Gemm<Out, Left, Right>& g, real* out, long ldc, real beta) {
    if (try_bf16(g, out, ldc, beta)) return;
    Widened a(g.a, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda);
    Widened b(g.b, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb);
    int ta = cblas_as_is + g.transpose_a, tb = cblas_as_is + g.transpose_b;
    int lda = (int)g.lda, ldb = (int)g.ldb;
    if constexpr (sizeof(real) == 8)
        cblas_dgemm(cblas_row_major, ta, tb, g.m, g.n, g.k, g.alpha, a.data, lda, b.data, ldb, beta, out,
                    (int)ldc);
    else
        cblas_sgemm(cblas_row_major, ta, tb, g.m, g.n, g.k, g.alpha, a.data, lda, b.data, ldb, beta, out,
                    (int)ldc);
}

template <class Out, class Left, class Right>
void gemm_of_batch(const Gemm<Out, Left, Right>& g) {
    if constexpr (std::is_same_v<Out, real>) {
        multiply(g, g.out, g.ldc, g.beta);
        if (!g.bias && !g.gelu_input) return;
        #pragma omp parallel for
        for (long r = 0; r < g.m; r++) finish_row(g, r, g.out + r * g.ldc);
    } else {
        bool is_rounded = !g.gelu_input && (!g.bias || (g.alpha == 1 && g.beta == 0)) &&
            try_bf16(g, g.up ? g.up : g.out, g.up ? g.n : g.ldc, g.beta, g.bias);
        if (is_rounded) {
            long rows = g.up ? g.m : 0;
            #pragma omp parallel for
            for (long r = 0; r < rows; r++) gelu_row(g, r);
            return;
        }

        thread_local std::vector<real> unrounded;
        if (unrounded.size() < (size_t)g.m * g.n) unrounded.resize((size_t)g.m * g.n);
        real* wide = unrounded.data();
        multiply(g, wide, g.n, 0);
        #pragma omp parallel for
        for (long r = 0; r < g.m; r++) {
            real* x = wide + r * g.n;
            for (long c = 0; g.beta != 0 && c < g.n; c++) x[c] += g.beta * real(g.out[r * g.ldc + c]);
            finish_row(g, r, x);
        }
    }
}

template <class Out, class Left = floatX, class Right = floatX>
void gemm(const Gemm<Out, Left, Right>& given, Stream) {
    Gemm<Out, Left, Right> g = with_strides(given);
    if (g.scale_a) g.alpha *= *g.scale_a * *g.scale_b;
    for (int i = 0; i < g.batch; i++) {
        gemm_of_batch(g);
        g.a += g.stride_a;
        g.b += g.stride_b;
        g.out += g.stride_out;
    }
}

inline size_t gemm_workspace() { return 0; }
inline void take_gemm_workspace(Stream) {}
inline std::string gemm_library() { return sizeof(floatX) == 2 && has_bf16_gemm() ? "oneDNN" : "CBLAS"; }

}  // namespace ref

// ---- cuBLASLt, which is column-major: it is asked for out^T (n, m) = op(b)^T op(a)^T ----------------------

#if HAS_KERNELS
namespace gpu {

inline void check_cublas(cublasStatus_t status, const char* what) {
    if (status != CUBLAS_STATUS_SUCCESS) fail("%s: %s", what, cublasLtGetStatusString(status));
}

template <class T>
constexpr cudaDataType_t cuda_type() {
    if (std::is_same_v<T, e4m3>) return CUDA_R_8F_E4M3;
    if (std::is_same_v<T, e5m2>) return CUDA_R_8F_E5M2;
    return sizeof(T) == 8 ? CUDA_R_64F : sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_16BF;
}

// its lowest set bit is the alignment, at most 256 bytes, of an operand in every GEMM of the batch
template <class T>
uint32_t alignment(const T* p, long stride) {
    return (uint32_t)((uintptr_t)p | (uintptr_t)(stride * (long)sizeof(T)) | 256);
}

// a GEMM as cuBLASLt describes it: A is the caller's b, B the caller's a
struct MatmulDescriptor {
    cublasLtMatmulDesc_t gemm;
    cublasLtMatrixLayout_t A, B, C;
    uint32_t align;
    bool fp64 = sizeof(real) == 8;

    template <class Out, class Left, class Right>
    explicit MatmulDescriptor(const Gemm<Out, Left, Right>& g) {
        check_cublas(cublasLtMatmulDescCreate(&gemm, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                              fp64 ? CUDA_R_64F : CUDA_R_32F), "cublasLtMatmulDescCreate");

        set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        layout(A, cuda_type<Right>(), g.transpose_b ? g.k : g.n, g.transpose_b ? g.n : g.k, g.ldb, g.batch,
               g.stride_b);
        layout(B, cuda_type<Left>(), g.transpose_a ? g.m : g.k, g.transpose_a ? g.k : g.m, g.lda, g.batch,
               g.stride_a);
        layout(C, cuda_type<Out>(), g.n, g.m, g.ldc, g.batch, g.stride_out);

        uint32_t bits =
            alignment(g.a, g.stride_a) | alignment(g.b, g.stride_b) | alignment(g.out, g.stride_out);
        bits |= alignment(g.bias, 0) | alignment(g.up, 0) | alignment(g.gelu_input, 0);
        align = bits & -bits;  // the coarsest alignment that all of them have: heads may start anywhere

        if (g.scale_a) {
            set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.scale_b);
            set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.scale_a);
            int8_t rough = std::is_same_v<Left, e4m3>;  // forward GEMMs may accumulate in fewer bits
            set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, rough);
        }

        if (g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
        if (g.up || g.gelu_input) {
            const void* aux = g.up ? g.up : g.gelu_input;
            int64_t ld = g.n;
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld);
        }

        if (g.bias || g.gelu_input)
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, g.gelu_input ? CUBLASLT_EPILOGUE_DGELU
                                                   : g.up ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                                          : CUBLASLT_EPILOGUE_BIAS);
    }

    MatmulDescriptor(const MatmulDescriptor&) = delete;
    ~MatmulDescriptor() {
        for (auto layout : {A, B, C}) cublasLtMatrixLayoutDestroy(layout);
        cublasLtMatmulDescDestroy(gemm);
    }

private:
    template <class T>
    void set(cublasLtMatmulDescAttributes_t which, const T& value) {
        check_cublas(cublasLtMatmulDescSetAttribute(gemm, which, &value, sizeof value), "a GEMM");
    }

    void layout(cublasLtMatrixLayout_t& l, cudaDataType_t type, long rows, long cols, long ld, int batch,
                long stride) {
        check_cublas(cublasLtMatrixLayoutCreate(&l, type, rows, cols, ld), "cublasLtMatrixLayoutCreate");
        int64_t offset = stride;
        check_cublas(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                      sizeof batch), "a layout");
        check_cublas(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                                                      sizeof offset), "a layout");
    }
};

struct Cublas {
    cublasLtHandle_t handle;
    std::map<Stream, void*> workspaces;  // a GEMM has its workspace until it ends: one for each stream

    static Cublas& get() {
        static Cublas& cublas = *new Cublas;  // never destroyed: when a program ends, its device may be gone
        return cublas;
    }

    Cublas() { check_cublas(cublasLtCreate(&handle), "cublasLtCreate"); }

    void* workspace(Stream s) {
        void*& own = workspaces[s];
        if (!own) own = device_malloc(cublas_workspace, "cuBLASLt workspace");
        return own;
    }

    template <class Out, class Left, class Right>
    cublasStatus_t multiply(const Gemm<Out, Left, Right>& g, const MatmulDescriptor& d,
                            const cublasLtMatmulAlgo_t& algo, Stream s) {
        return cublasLtMatmul(handle, d.gemm, &g.alpha, g.b, d.A, g.a, d.B, &g.beta, g.out, d.C, g.out,
                              d.C, &algo, workspace(s), cublas_workspace, s);
    }
};

// the fastest of its algorithms for this GEMM; in a step this looks up an answer
template <class Out, class Left, class Right>
const cublasLtMatmulAlgo_t& choose_algorithm(const Gemm<Out, Left, Right>&, const MatmulDescriptor&, Stream);
// whether it has any
template <class Out>
bool can_compute(const Gemm<Out>&);

template <class Out, class Left = floatX, class Right = floatX>
void gemm(const Gemm<Out, Left, Right>& given, Stream s) {
    Gemm<Out, Left, Right> g = with_strides(given);
    MatmulDescriptor d(g);
    check_cublas(Cublas::get().multiply(g, d, choose_algorithm(g, d, s), s), "cublasLtMatmul");
}

// bytes that the GEMMs of a stream take besides their operands; taken when it first multiplies, or here
inline size_t gemm_workspace() { return cublas_workspace; }
inline void take_gemm_workspace(Stream s) { Cublas::get().workspace(s); }

inline std::string gemm_library() { return text("cuBLASLt %zu", cublasLtGetVersion()); }

}  // namespace gpu
#endif
#include "../fast/gemm_choice.h"
