// gemm.h   one call for every matrix product: gpu is cuBLASLt (in emulation the host's BLAS), ref the BLAS
//   out (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * out        all row-major, `ld` elements a row
//   a, b are floatX; out is floatX or real. `batch` products whose operands lie `stride` elements apart.
//   With `bias` (n): added to every row of out; on CUDA only where can_add_bias says so.
//   cost: 2*m*n*k*batch flops
#pragma once
#include <vector>
#include "device.h"

template <class Out>
struct Gemm {
    Out* out;
    const floatX *a, *b;
    int m, n, k;
    bool transpose_a = false, transpose_b = false;
    real alpha = 1, beta = 0;
    long lda = 0, ldb = 0, ldc = 0;  // 0: packed
    int batch = 1;
    long stride_a = 0, stride_b = 0, stride_out = 0;
    const floatX* bias = nullptr;
};

constexpr size_t cublas_workspace = 32 << 20;  // bytes

// cuBLASLt adds a bias in its epilogue when rows are whole 16-byte vectors, and not in fp64
inline bool can_add_bias(int n) { return n % 8 == 0 && sizeof(floatX) < 8; }

template <class Out>
Gemm<Out> packed(Gemm<Out> g) {  // leading dimensions that were not given
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

inline void blas(bool ta, bool tb, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                 int ldb, float beta, float* c, int ldc) {
    cblas_sgemm(cblas_row_major, cblas_as_is + ta, cblas_as_is + tb, m, n, k, alpha, a, lda, b, ldb, beta, c,
                ldc);
}
inline void blas(bool ta, bool tb, int m, int n, int k, double alpha, const double* a, int lda,
                 const double* b, int ldb, double beta, double* c, int ldc) {
    cblas_dgemm(cblas_row_major, cblas_as_is + ta, cblas_as_is + tb, m, n, k, alpha, a, lda, b, ldb, beta, c,
                ldc);
}

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
            for (size_t i = 0; i < copy.size(); i++) copy[i] = real(x[i]);
            data = copy.data();
        }
    }
};

template <class Out>
void gemm(const Gemm<Out>& given, Stream) {
    Gemm<Out> g = packed(given);
    for (int i = 0; i < g.batch; i++) {
        Widened a(g.a + i * g.stride_a, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda);
        Widened b(g.b + i * g.stride_b, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb);
        Out* out = g.out + i * g.stride_out;
        if constexpr (std::is_same_v<Out, real>) {
            blas(g.transpose_a, g.transpose_b, g.m, g.n, g.k, g.alpha, a.data, g.lda, b.data, g.ldb, g.beta,
                 out, g.ldc);
            #pragma omp parallel for if (g.bias)
            for (int r = 0; r < (g.bias ? g.m : 0); r++)
                for (int c = 0; c < g.n; c++) out[r * g.ldc + c] += real(g.bias[c]);
        } else {
            std::vector<real> wide((size_t)g.m * g.n);
            blas(g.transpose_a, g.transpose_b, g.m, g.n, g.k, g.alpha, a.data, g.lda, b.data, g.ldb, 0,
                 wide.data(), g.n);
            for (int r = 0; r < g.m; r++)
                for (int c = 0; c < g.n; c++) {
                    real old = g.beta == 0 ? 0 : g.beta * real(out[r * g.ldc + c]);
                    real bias = g.bias ? real(g.bias[c]) : 0;
                    out[r * g.ldc + c] = Out(wide[(size_t)r * g.n + c] + old + bias);
                }
        }
    }
}

inline size_t gemm_workspace(bool) { return 0; }

}  // namespace ref

#if defined(__CUDACC__)
#include <cublasLt.h>
#include <map>
#include <tuple>

namespace gpu {

struct Cublas {
    cublasLtHandle_t handle;
    void* workspace;
    using Shape = std::tuple<int, int, int, bool, bool, long, long, long, int, int, int>;
    std::map<Shape, cublasLtMatmulAlgo_t> chosen;

    static Cublas& get() {
        static Cublas cublas;
        return cublas;
    }
    Cublas() {
        check(cublasLtCreate(&handle), "cublasLtCreate");
        workspace = device_malloc(cublas_workspace, "cuBLASLt workspace");
    }
    // the library's first choice for out = C (already in its column-major terms)
    cublasLtMatmulAlgo_t choose(cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t A,
                                cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C, uint32_t align) {
        cublasLtMatmulPreference_t preference;
        cublasLtMatmulHeuristicResult_t best;
        int count = 0;
        check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
        auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
            check(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value),
                  "a preference");
        };
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, cublas_workspace);
        uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // parts of a sum are never rounded to bf16
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums);
        for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) set(which, align);
        cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(handle, product, A, B, C, C, preference, 1, &best, &count);
        if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic");
        cublasLtMatmulPreferenceDestroy(preference);
        if (!count)
            fail("cuBLASLt has no algorithm for a product in " PRECISION_NAME " aligned to %u bytes: choose "
                                                                              "sizes that are multiples of 8",
                                                                              align);
        return best.algo;
    }
    static void check(cublasStatus_t status, const char* what) {
        if (status != CUBLAS_STATUS_SUCCESS) fail("%s: %s", what, cublasLtGetStatusString(status));
    }
};

template <class T>
constexpr cudaDataType_t cuda_type() {
    return sizeof(T) == 8 ? CUDA_R_64F : sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_16BF;
}

// bits that say to which power of two, up to 256, an operand and all its batch mates are aligned
template <class T>
uint32_t alignment(const T* p, long stride) {
    return (uint32_t)((uintptr_t)p | (uintptr_t)(stride * (long)sizeof(T)) | 256);
}

// cuBLASLt is column-major: it is asked for out^T (n, m) = op(b)^T * op(a)^T
template <class Out>
void gemm(const Gemm<Out>& given, Stream stream) {
    Gemm<Out> g = packed(given);
    Cublas& cublas = Cublas::get();
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t A, B, C;
    bool fp64 = sizeof(real) == 8;
    Cublas::check(cublasLtMatmulDescCreate(&product, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                           fp64 ? CUDA_R_64F : CUDA_R_32F), "cublasLtMatmulDescCreate");
    cublasOperation_t op_b = g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_a = g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b);
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a);
    auto layout = [&](cublasLtMatrixLayout_t* l, cudaDataType_t type, long rows, long cols, long ld,
                      long stride) {
        Cublas::check(cublasLtMatrixLayoutCreate(l, type, rows, cols, ld), "cublasLtMatrixLayoutCreate");
        cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &g.batch, sizeof g.batch);
        int64_t offset = stride;
        cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                                         sizeof offset);
    };
    layout(&B, cuda_type<floatX>(), g.transpose_b ? g.k : g.n, g.transpose_b ? g.n : g.k, g.ldb, g.stride_b);
    layout(&A, cuda_type<floatX>(), g.transpose_a ? g.m : g.k, g.transpose_a ? g.k : g.m, g.lda, g.stride_a);
    layout(&C, cuda_type<Out>(), g.n, g.m, g.ldc, g.stride_out);

    if (g.bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias, sizeof g.bias);
    }
    uint32_t align = alignment(g.a, g.stride_a) | alignment(g.b, g.stride_b) | alignment(g.out, g.stride_out);
    align = align & -align;  // the coarsest that all three keep: heads may start anywhere
    Cublas::Shape shape = {g.m, g.n, g.k, g.transpose_a, g.transpose_b, g.lda, g.ldb, g.ldc, g.batch,
                           (int)sizeof(Out) * 4 + 2 * (g.bias != nullptr) + (g.beta != 0), (int)align};
    auto found = cublas.chosen.find(shape);
    if (found == cublas.chosen.end())
        found = cublas.chosen.emplace(shape, cublas.choose(product, B, A, C, align)).first;
    Cublas::check(cublasLtMatmul(cublas.handle, product, &g.alpha, g.b, B, g.a, A, &g.beta, g.out, C, g.out,
                                 C, &found->second, cublas.workspace, cublas_workspace, stream),
                                 "cublasLtMatmul");
    cublasLtMatrixLayoutDestroy(A), cublasLtMatrixLayoutDestroy(B), cublasLtMatrixLayoutDestroy(C);
    cublasLtMatmulDescDestroy(product);
}

// bytes that products take beside their operands; taken now if they were not before
inline size_t gemm_workspace(bool take) {
    if (take) Cublas::get();
    return cublas_workspace;
}

}  // namespace gpu
#elif HAS_KERNELS
namespace gpu {
template <class Out>
void gemm(const Gemm<Out>& g, Stream s) {
    emulated::give(s, [g] { ref::gemm(g, nullptr); });
}
using ref::gemm_workspace;
}
#endif
