// cublas.h   gpu::gemm: cuBLASLt, in emulation the host's BLAS
//   cuBLASLt is column-major: it is asked for out^T (n, m) = op(b)^T op(a)^T.
//   Of the algorithms that its heuristics name for a GEMM, autotune.h finds the fastest, taken from then on.
//   Only those that sum in one order take part, and never in bf16.
#pragma once
#include "autotune.h"
#include "gemm.h"
#if defined(__CUDACC__)
#include <cublasLt.h>
#include <map>
#include <tuple>
#include "fp8.h"

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

// bits that say to which power of two, up to 256, an operand and all its batch mates are aligned
template <class T>
uint32_t alignment(const T* p, long stride) {
    return (uint32_t)((uintptr_t)p | (uintptr_t)(stride * (long)sizeof(T)) | 256);
}

// a GEMM as cuBLASLt describes it: A is the caller's b, B the caller's a
struct Described {
    cublasLtMatmulDesc_t gemm;
    cublasLtMatrixLayout_t A, B, C;
    uint32_t align;
    bool fp64 = sizeof(real) == 8;

    template <class Out, class Left, class Right>
    explicit Described(const Gemm<Out, Left, Right>& g) {
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
        align = bits & -bits;  // the coarsest that all three keep: heads may start anywhere
        if (g.scale_a) {
            set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.scale_b);
            set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.scale_a);
            int8_t rough = std::is_same_v<Left, e4m3>;  // sums of forward GEMMs may be kept in fewer bits
            set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, rough);
        }
        if (g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
        if (g.up || g.gelu_of) {
            const void* aux = g.up ? g.up : g.gelu_of;
            int64_t ld = g.n;
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld);
        }
        if (g.row_sums) {
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.row_sums);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB);
        }
        if (g.bias || g.gelu_of)
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, g.gelu_of ? CUBLASLT_EPILOGUE_DGELU
                                                   : g.up ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                                          : CUBLASLT_EPILOGUE_BIAS);
    }
    Described(const Described&) = delete;
    ~Described() {
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

struct Candidates {
    cublasLtMatmulHeuristicResult_t at[24];
    int count = 0;
};

struct Cublas {
    cublasLtHandle_t handle;
    void* workspace;
    using Shape = std::tuple<int, int, int, bool, bool, long, long, long, int, int, int>;
    AutotuneCache<Shape, cublasLtMatmulAlgo_t> chosen;

    static Cublas& get() {
        static Cublas cublas;
        return cublas;
    }
    Cublas() {
        check_cublas(cublasLtCreate(&handle), "cublasLtCreate");
        workspace = device_malloc(cublas_workspace, "cuBLASLt workspace");
    }

    // the library's choices, the likeliest first; none where it has none
    Candidates candidates(const Described& d, int most = 24) {
        cublasLtMatmulPreference_t preference;
        Candidates found;
        check_cublas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
        auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
            check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value),
                         "a preference");
        };
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, cublas_workspace);
        uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // parts of a sum are never rounded to bf16
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums);
        for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) set(which, d.align);
        cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, d.gemm, d.A, d.B, d.C, d.C,
                                                               preference, most, found.at, &found.count);
        cublasLtMatmulPreferenceDestroy(preference);
        if (status != CUBLAS_STATUS_SUCCESS) found.count = 0;
        return found;
    }

    template <class Out, class Left, class Right>
    cublasStatus_t multiply(const Gemm<Out, Left, Right>& g, const Described& d,
                            const cublasLtMatmulAlgo_t& algo, Stream s) {
        return cublasLtMatmul(handle, d.gemm, &g.alpha, g.b, d.A, g.a, d.B, &g.beta, g.out, d.C, g.out,
                              d.C, &algo, workspace, cublas_workspace, s);
    }

    template <class Out, class Left, class Right>
    const cublasLtMatmulAlgo_t& choose(const Gemm<Out, Left, Right>& g, const Described& d, Stream s) {
        int kind = (int)sizeof(Out) * 8 + 4 * (g.gelu_of != nullptr) + 2 * (g.up != nullptr) +
            (g.bias != nullptr) + 128 * (g.beta != 0) + 256 * (sizeof(Left) == 1) +
            512 * std::is_same_v<Left, e5m2> + 1024 * (g.row_sums != nullptr);
        Shape shape = {g.m, g.n, g.k, g.transpose_a, g.transpose_b, g.lda, g.ldb, g.ldc, g.batch, kind,
                       (int)d.align};
        return chosen.get(shape, [&] { return time_algorithms(g, d, kind, s); });
    }

private:
    template <class Out, class Left, class Right>
    cublasLtMatmulAlgo_t time_algorithms(const Gemm<Out, Left, Right>& g, const Described& d, int kind,
                                         Stream s) {
        Candidates all = candidates(d);
        if (!all.count)
            fail("cuBLASLt has no algorithm for a GEMM in " PRECISION_NAME " aligned to %u bytes: choose "
                 "sizes that are multiples of 8", d.align);
        std::string key = text("GEMM " PRECISION_NAME
                               " %d x %d x %d %c%c %ld %ld %ld batch %d kind %d "
                               "align %u",
                               g.m, g.n, g.k, g.transpose_a ? 't' : 'n', g.transpose_b ? 't' : 'n', g.lda,
                               g.ldb, g.ldc, g.batch, kind, d.align);
        int best = autotuner.choose(key, all.count, 0, s, [&](int way) {
            return multiply(g, d, all.at[way].algo, s) == CUBLAS_STATUS_SUCCESS;
        });
        return all.at[best].algo;
    }
};

template <class Out, class Left = floatX, class Right = floatX>
void gemm(const Gemm<Out, Left, Right>& given, Stream s) {
    Gemm<Out, Left, Right> g = packed(given);
    Described d(g);
    Cublas& cublas = Cublas::get();
    check_cublas(cublas.multiply(g, d, cublas.choose(g, d, s), s), "cublasLtMatmul");
}

template <class Out>
bool can_compute(const Gemm<Out>& g) {
    Described d(packed(g));
    return Cublas::get().candidates(d, 1).count > 0;
}

// bytes that GEMMs take beside their operands; taken now if they were not before
inline size_t gemm_workspace(bool take) {
    if (take) Cublas::get();
    return cublas_workspace;
}

inline std::string gemm_library() { return text("cuBLASLt %zu", cublasLtGetVersion()); }

}  // namespace gpu
#elif HAS_KERNELS
namespace gpu {
template <class Out, class A = floatX, class B = floatX>
void gemm(const Gemm<Out, A, B>& g, Stream s) {
    emulated::enqueue(s, [g] { ref::gemm(g, nullptr); });
}
template <class Out>
bool can_compute(const Gemm<Out>&) {
    return true;
}
using ref::gemm_library;
using ref::gemm_workspace;
}  // namespace gpu
#endif
