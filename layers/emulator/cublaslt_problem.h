// cublaslt_problem.h   a GEMM as cuBLASLt describes it: what is allowed, and what it computes
#pragma once
#include <vector>
#include "../fast/fp8.h"
#include "../fast/host_blas.h"
#include "streams_on_cpu.h"

enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16BF = 14,
    CUDA_R_8F_E4M3 = 28,
    CUDA_R_8F_E5M2 = 29
};
enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_64F = 70 };
enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
    CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25
};
enum cublasLtMatrixLayoutAttribute_t {
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
};
enum cublasLtEpilogue_t : uint32_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 128 | 4,
    CUBLASLT_EPILOGUE_DGELU = 64 | 128
};
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
};
enum cublasLtReductionScheme_t : uint32_t {
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
    CUBLASLT_REDUCTION_SCHEME_MASK = 7
};

struct EmulatedMatmulDesc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
    const float *scale_a = nullptr, *scale_b = nullptr;
    int8_t fast = 0;
};
struct EmulatedMatrixLayout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
    int batch = 1;
    int64_t stride = 0;
    bool operator==(const EmulatedMatrixLayout&) const = default;
};
struct EmulatedMatmulPreference {
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK, alignment[4] = {256, 256, 256, 256};
};
using cublasLtMatmulDesc_t = EmulatedMatmulDesc*;
using cublasLtMatrixLayout_t = EmulatedMatrixLayout*;
using cublasLtMatmulPreference_t = EmulatedMatmulPreference*;
using cublasLtHandle_t = int*;
enum cublasLtMatmulAlgoConfigAttributes_t {
    CUBLASLT_ALGO_CONFIG_ID = 0,
    CUBLASLT_ALGO_CONFIG_TILE_ID = 1,
    CUBLASLT_ALGO_CONFIG_SPLITK_NUM = 2,
    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3,
    CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING = 4,
    CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION = 5,
    CUBLASLT_ALGO_CONFIG_STAGES_ID = 6,
    CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID = 7,
    CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID = 8
};
enum cublasLtMatmulAlgoCapAttributes_t { CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT = 4 };
// algorithm, problem, alignment of A, B, C, D, workspace bytes, alignment of the epilogue's operands
struct cublasLtMatmulAlgo_t { uint64_t data[8]; };
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
};

namespace emulated {
inline bool admits_apart = true;  // if not, no algorithm says that C may be apart from its result
inline bool refuses_first = false;  // whether the algorithm that refuses is the first of the list

inline size_t bytes_of(cudaDataType_t type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1;
}

inline double value_at(const void* p, cudaDataType_t type, int64_t i) {
    if (type == CUDA_R_64F) return ((const double*)p)[i];
    if (type == CUDA_R_32F) return ((const float*)p)[i];
    if (type == CUDA_R_16BF) return (float)((const bf16*)p)[i];
    return type == CUDA_R_8F_E4M3 ? (float)((const e4m3*)p)[i] : (float)((const e5m2*)p)[i];
}

inline void store_at(void* p, cudaDataType_t type, int64_t i, double x) {
    if (type == CUDA_R_64F) ((double*)p)[i] = x;
    else if (type == CUDA_R_32F) ((float*)p)[i] = (float)x;
    else ((bf16*)p)[i] = bf16((float)x);
}

// GELU by tanh (Hendrycks & Gimpel, 2016), and its slope, in double
inline double gelu_tanh(double x) { return std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }
inline double gelu_value(double x) { return 0.5 * x * (1 + gelu_tanh(x)); }
inline double gelu_derivative(double x) {
    double t = gelu_tanh(x);
    return 0.5 * (1 + t + x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x));
}

struct Problem {
    EmulatedMatmulDesc desc;
    EmulatedMatrixLayout A, B, C;

    bool has_aux() const { return desc.epilogue & 128; }
    bool has_bias() const { return desc.epilogue & CUBLASLT_EPILOGUE_BIAS; }
    int64_t m() const { return (int64_t)C.rows; }
    int64_t n() const { return (int64_t)C.cols; }
    int64_t k() const { return (int64_t)(desc.trans_a == CUBLAS_OP_N ? A.cols : A.rows); }
    bool is_fp8() const { return bytes_of(A.type) == 1 || bytes_of(B.type) == 1; }
    // the power of two, up to 256, to which the epilogue's operands are aligned
    uint64_t epilogue_alignment() const {
        uint64_t bits = (uint64_t)desc.bias | (uint64_t)desc.aux | 256;
        return bits & -bits;
    }

    // a hash of what an algorithm depends on
    uint64_t signature() const {
        uint64_t h = 1;
        for (uint64_t x : {(uint64_t)desc.compute, (uint64_t)desc.trans_a, (uint64_t)desc.trans_b,
                           (uint64_t)desc.epilogue, (uint64_t)A.type, (uint64_t)B.type, (uint64_t)C.type,
                           A.rows, A.cols, (uint64_t)A.ld, B.rows, B.cols, (uint64_t)B.ld, C.rows, C.cols,
                           (uint64_t)C.ld, (uint64_t)A.batch, (uint64_t)desc.fast})
            h = mix(h ^ x);
        return h;
    }

    // "", or what is wrong with it
    std::string check_layout(const EmulatedMatrixLayout& l, const char* name) const {
        if (!l.rows || !l.cols) return text("%s is empty", name);
        if (l.ld < (int64_t)l.rows)
            return text("%s: leading dimension %lld, needs %lld", name, (long long)l.ld, (long long)l.rows);
        if (l.batch < 1) return text("%s: a batch of %d", name, l.batch);
        if (l.batch != C.batch) return text("%s: a batch of %d, D's is %d", name, l.batch, C.batch);
        return "";
    }

    std::string check() const {
        for (auto& [l, name] : {std::pair{&A, "A"}, {&B, "B"}, {&C, "C"}})
            if (std::string bad = check_layout(*l, name); !bad.empty()) return bad;
        bool ta = desc.trans_a != CUBLAS_OP_N, tb = desc.trans_b != CUBLAS_OP_N;
        if ((ta ? A.cols : A.rows) != C.rows) return "op(A) has other rows than D";
        if ((tb ? B.rows : B.cols) != C.cols) return "op(B) has other columns than D";
        if ((ta ? A.rows : A.cols) != (tb ? B.cols : B.rows))
            return "op(A) has other columns than op(B) rows";
        bool beside = C.stride >= m() && (C.batch - 1) * C.stride + m() <= C.ld;  // like heads within a row
        if (C.batch > 1 && !beside && C.stride < C.ld * (n() - 1) + m())
            return "the batch's results lie over each other";
        return check_epilogue();
    }

    std::string check_epilogue() const {
        bool known = false;
        for (uint32_t e : {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                           CUBLASLT_EPILOGUE_DGELU})
            known |= desc.epilogue == e;
        if (!known) return text("epilogue %u is not known here", desc.epilogue);
        if (has_bias() && !desc.bias) return "an epilogue with a bias, and no pointer to it";
        if (!has_bias() && desc.bias) return "a pointer to a bias, and no epilogue that reads it";
        if (has_aux() && !desc.aux) return "an epilogue with an auxiliary matrix, and no pointer to it";
        if (!has_aux() && desc.aux) return "a pointer to an auxiliary matrix, and no epilogue for it";

        if (has_aux() && desc.aux_ld % 8)
            return text("the auxiliary matrix: leading dimension %lld, expected a multiple of 8",
                        (long long)desc.aux_ld);
        if (has_aux() && desc.aux_ld < m()) return "the auxiliary matrix: its leading dimension is too small";
        if (has_aux() && (uintptr_t)desc.aux % 16) return "the auxiliary matrix is not aligned to 16 bytes";
        if (has_aux() && C.batch > 1) return "an auxiliary matrix of a batch, without a stride";

        if ((desc.scale_a || desc.scale_b) && !is_fp8()) return "scales of operands that are not fp8";
        // not in the documentation: cuBLASLt 13.1 on an H200 offers algorithms, and each refuses to run
        if (((uintptr_t)desc.scale_a | (uintptr_t)desc.scale_b) % 16)
            return "a scale that is not aligned to 16 bytes";
        return "";
    }

    // "", or why no algorithm supports it
    std::string unsupported(const uint32_t* alignment) const {
        bool wide = desc.compute == CUBLAS_COMPUTE_64F, plain = desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
        auto is = [&](cudaDataType_t a, cudaDataType_t b, cudaDataType_t c) {
            return A.type == a && B.type == b && C.type == c;
        };
        if (wide != is(CUDA_R_64F, CUDA_R_64F, CUDA_R_64F))
            return "types that this computation does not take";
        if (wide) return plain ? "" : "an epilogue in fp64";
        // not in the documentation, but what fits_epilogue in gemm.h checks for
        if (!plain && m() * (int64_t)bytes_of(C.type) % 16)
            return "an epilogue of rows that are no whole vectors";
        if (!is_fp8())
            return is(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F) || is(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF) ||
                    is(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F)
                ? "" : "types that have no kernel together";

        if (bytes_of(A.type) != 1 || bytes_of(B.type) != 1) return "an fp8 operand beside another";
        if (A.type == CUDA_R_8F_E5M2 && B.type == CUDA_R_8F_E5M2) return "e5m2 times e5m2";
        if (bytes_of(C.type) == 1) return "a result in fp8 is not known here";
        if (C.type == CUDA_R_32F && !plain) return "a bias beside fp8 operands and an fp32 result";
        if (desc.trans_a != CUBLAS_OP_T || desc.trans_b != CUBLAS_OP_N)
            return "fp8 requires A transposed, B not";
        if (desc.epilogue == CUBLASLT_EPILOGUE_DGELU) return "an epilogue that fp8 has not";
        if (A.ld % 16 || B.ld % 16 || C.ld * (int64_t)bytes_of(C.type) % 16 || k() % 16 || m() % 16)
            return "fp8 requires sizes that are multiples of 16";

        for (int i = 0; i < 4; i++)
            if (alignment[i] % 16) return "fp8 requires operands aligned to 16 bytes";
        return "";
    }
};

struct Operands {
    const void *A, *B, *C;
    void* D;
    double alpha, beta;
};

// to (rows, cols), row-major = the elements at index at(r, c)
template <class At>
void read_values(const void* from, cudaDataType_t type, int64_t rows, int64_t cols, real* to, At at) {
    auto read = [&](auto* p) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) to[r * cols + c] = (real)p[at(r, c)];
    };
    if (type == CUDA_R_64F) read((const double*)from);
    else if (type == CUDA_R_32F) read((const float*)from);
    else if (type == CUDA_R_16BF) read((const bf16*)from);
    else if (type == CUDA_R_8F_E4M3) read((const e4m3*)from);
    else read((const e5m2*)from);
}

// out (m, n) = a (m, k) b (k, n), over [first, last) of k
inline void multiply_range(real* out, const real* a, const real* b, int64_t m, int64_t n, int64_t k,
                           int64_t first, int64_t last) {
    int M = (int)m, N = (int)n, K = (int)(last - first);
    if constexpr (sizeof(real) == 8)
        cblas_dgemm(cblas_row_major, cblas_as_is, cblas_as_is, M, N, K, 1, (const double*)a + first, (int)k,
                    (const double*)b + first * n, N, 0, (double*)out, N);
    else
        cblas_sgemm(cblas_row_major, cblas_as_is, cblas_as_is, M, N, K, 1, (const float*)a + first, (int)k,
                    (const float*)b + first * n, N, 0, (float*)out, N);
}

// called when the stream reaches it
inline void multiply(const Problem& p, const Operands& given, int way, real* workspace) {
    auto [A, B, C, D, alpha, beta] = given;
    int64_t m = p.m(), n = p.n(), k = p.k();
    if (p.desc.scale_a) alpha *= *p.desc.scale_a;
    if (p.desc.scale_b) alpha *= *p.desc.scale_b;
    std::vector<real> a((size_t)(m * k)), b((size_t)(k * n)), whole((size_t)(m * n));

    for (int g = 0; g < p.C.batch; g++) {
        auto at = [&](const EmulatedMatrixLayout& l, bool t, int64_t r, int64_t c) {
            return g * l.stride + (t ? c + r * l.ld : r + c * l.ld);
        };
        bool ta = p.desc.trans_a != CUBLAS_OP_N, tb = p.desc.trans_b != CUBLAS_OP_N;
        read_values(A, p.A.type, m, k, a.data(), [&](int64_t r, int64_t x) { return at(p.A, ta, r, x); });
        read_values(B, p.B.type, k, n, b.data(), [&](int64_t x, int64_t c) { return at(p.B, tb, x, c); });

        if (way == 0) {
            multiply_range(whole.data(), a.data(), b.data(), m, n, k, 0, k);
        } else {
            multiply_range(workspace, a.data(), b.data(), m, n, k, 0, k / 2);
            multiply_range(workspace + m * n, a.data(), b.data(), m, n, k, k / 2, k);
            watch::write(workspace, 2 * m * n * sizeof(real));  // by the BLAS, whose accesses are not watched
            for (int64_t i = 0; i < m * n; i++) whole[i] = workspace[i] + workspace[m * n + i];
        }

        for (int64_t r = 0; r < m; r++)
            for (int64_t c = 0; c < n; c++) {
                int64_t to = at(p.C, false, r, c), aux = r + c * p.desc.aux_ld;
                double x = alpha * whole[r * n + c];
                if (beta != 0) x += beta * value_at(C, p.C.type, to);
                if (p.desc.epilogue & CUBLASLT_EPILOGUE_BIAS) x += value_at(p.desc.bias, p.C.type, r);
                if (p.desc.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                    store_at(p.desc.aux, p.C.type, aux, x);
                    x = gelu_value(x);
                } else if (p.desc.epilogue == CUBLASLT_EPILOGUE_DGELU) {
                    x *= gelu_derivative(value_at(p.desc.aux, p.C.type, aux));
                }
                store_at(D, p.C.type, to, x);
            }
    }
}

}  // namespace emulated
