// cublaslt_on_cpu.h   cuBLASLt for the emulated device: what gemm.h uses of it, under the same names
//   So that every line that describes, chooses and launches a GEMM runs without a GPU. Matrices are column
//   major, as there. It refuses what the library's documentation forbids, and what the library would not
//   notice but read wrongly; cublasLtGetStatusString then says why. Its algorithms:
//     0   sums over all of k
//     1   sums two halves of k in the workspace, and adds them: other bits
//     2   is offered, and refuses when it is called
//   An algorithm belongs to the problem that it was offered for.
#pragma once
#include <set>
#include <vector>
#include "fp8.h"

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
    CUBLAS_STATUS_INVALID_VALUE = 7,
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
    CUBLASLT_EPILOGUE_DGELU = 64 | 128,
    CUBLASLT_EPILOGUE_BGRADB = 512
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
};
struct EmulatedMatmulPreference {
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK, alignment[4] = {256, 256, 256, 256};
};
using cublasLtMatmulDesc_t = EmulatedMatmulDesc*;
using cublasLtMatrixLayout_t = EmulatedMatrixLayout*;
using cublasLtMatmulPreference_t = EmulatedMatmulPreference*;
using cublasLtHandle_t = int*;
struct cublasLtMatmulAlgo_t { uint64_t data[8]; };  // number, problem, alignment of A, B, C, D, workspace
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
};

namespace emulated {

inline std::string cublas_reason;             // of the last refusal
inline std::set<const void*> cublas_objects;  // handles, descriptors, layouts and preferences that live

inline cublasStatus_t refuse(cublasStatus_t status, const std::string& why) {
    cublas_reason = why;
    return status;
}
inline cublasStatus_t forbidden(const std::string& why) { return refuse(CUBLAS_STATUS_INVALID_VALUE, why); }
inline bool lives(const void* object) { return cublas_objects.count(object) > 0; }

template <class T, class... Values>
cublasStatus_t create(T** object, Values... values) {
    *object = new T{values...};
    cublas_objects.insert(*object);
    return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t destroy(T* object) {
    if (!cublas_objects.erase(object)) return forbidden("destroyed twice, or never created");
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}
// an attribute's value, which must have the attribute's size
template <class T>
cublasStatus_t set_attribute(T& to, const void* value, size_t bytes) {
    if (!value || bytes != sizeof(T))
        return forbidden(text("an attribute of %zu bytes, wants %zu", bytes, sizeof(T)));
    memcpy(&to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

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
    bool has_bias() const { return desc.epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB); }
    int64_t m() const { return (int64_t)C.rows; }
    int64_t n() const { return (int64_t)C.cols; }
    int64_t k() const { return (int64_t)(desc.trans_a == CUBLAS_OP_N ? A.cols : A.rows); }
    bool is_fp8() const { return bytes_of(A.type) == 1 || bytes_of(B.type) == 1; }
    // of what an algorithm depends on
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
            return text("%s: leading dimension %lld, wants %lld", name, (long long)l.ld, (long long)l.rows);
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
        int64_t size = C.ld * (n() - 1) + m();
        if (C.batch > 1 && C.stride < m()) return "the batch's results lie over each other";
        if (C.batch > 1 && C.stride < C.ld && C.stride * C.batch > C.ld)
            return "the batch's results lie over each other";
        if (C.batch > 1 && C.stride >= C.ld && C.stride < size && C.stride % C.ld == 0)
            return "the batch's results lie over each other";
        return check_epilogue();
    }
    std::string check_epilogue() const {
        bool known = false;
        for (uint32_t e : {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                           CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB})
            known |= desc.epilogue == e;
        if (!known) return text("epilogue %u is not known here", desc.epilogue);
        if (has_bias() && !desc.bias) return "an epilogue with a bias, and no pointer to it";
        if (!has_bias() && desc.bias) return "a pointer to a bias, and no epilogue that reads it";
        if (has_aux() && !desc.aux) return "an epilogue with an auxiliary matrix, and no pointer to it";
        if (!has_aux() && desc.aux) return "a pointer to an auxiliary matrix, and no epilogue for it";
        if (has_aux() && desc.aux_ld % 8)
            return text("the auxiliary matrix: leading dimension %lld, wants a multiple of 8",
                        (long long)desc.aux_ld);
        if (has_aux() && desc.aux_ld < m()) return "the auxiliary matrix: its leading dimension is too small";
        if (has_aux() && (uintptr_t)desc.aux % 16) return "the auxiliary matrix is not aligned to 16 bytes";
        if (has_aux() && C.batch > 1) return "an auxiliary matrix of a batch, without a stride";
        if ((desc.scale_a || desc.scale_b) && !is_fp8()) return "scales of operands that are not fp8";
        return "";
    }
    // "", or why no algorithm can do it
    std::string unsupported(const uint32_t* alignment) const {
        bool wide = desc.compute == CUBLAS_COMPUTE_64F;
        auto is = [&](cudaDataType_t a, cudaDataType_t b, cudaDataType_t c) {
            return A.type == a && B.type == b && C.type == c;
        };
        if (wide != is(CUDA_R_64F, CUDA_R_64F, CUDA_R_64F))
            return "types that this computation does not take";
        if (wide) return desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? "" : "an epilogue in fp64";
        if (!is_fp8())
            return is(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F) || is(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF) ||
                    is(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F)
                ? "" : "types that have no kernel together";
        if (bytes_of(A.type) != 1 || bytes_of(B.type) != 1) return "an fp8 operand beside another";
        if (A.type == CUDA_R_8F_E5M2 && B.type == CUDA_R_8F_E5M2) return "e5m2 times e5m2";
        if (bytes_of(C.type) == 1) return "a result in fp8 is not known here";
        if (desc.trans_a != CUBLAS_OP_T || desc.trans_b != CUBLAS_OP_N)
            return "fp8 wants A transposed, B not";
        if (desc.epilogue == CUBLASLT_EPILOGUE_BGRADB || desc.epilogue == CUBLASLT_EPILOGUE_DGELU)
            return "an epilogue that fp8 has not";
        if (A.ld % 16 || B.ld % 16 || C.ld * (int64_t)bytes_of(C.type) % 16 || k() % 16 || m() % 16)
            return "fp8 wants sizes that are multiples of 16";
        for (int i = 0; i < 4; i++)
            if (alignment[i] % 16) return "fp8 wants operands aligned to 16 bytes";
        return "";
    }
};

struct Operands {
    const void *A, *B, *C;
    void* D;
    double alpha, beta;
};

// in the stream's turn
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
        for (int64_t r = 0; r < m; r++)
            for (int64_t x = 0; x < k; x++) a[r * k + x] = (real)value_at(A, p.A.type, at(p.A, ta, r, x));
        for (int64_t x = 0; x < k; x++)
            for (int64_t c = 0; c < n; c++) b[x * n + c] = (real)value_at(B, p.B.type, at(p.B, tb, x, c));
        auto product = [&](real* to, int64_t first, int64_t last) {  // over [first, last) of k
            std::fill(to, to + m * n, real(0));
            for (int64_t r = 0; r < m; r++)
                for (int64_t x = first; x < last; x++) {
                    real factor = a[r * k + x], *row = to + r * n;
                    const real* other = &b[x * n];
                    for (int64_t c = 0; c < n; c++) row[c] += factor * other[c];
                }
        };
        if (way == 0) {
            product(whole.data(), 0, k);
        } else {
            product(workspace, 0, k / 2);
            product(workspace + m * n, k / 2, k);
            for (int64_t i = 0; i < m * n; i++) whole[i] = workspace[i] + workspace[m * n + i];
        }
        if (p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            for (int64_t c = 0; c < n; c++) {
                real sum = 0;
                for (int64_t x = 0; x < k; x++) sum += b[x * n + c];
                store_at(p.desc.bias, p.C.type, c, sum);
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

inline const char* cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "success" : emulated::cublas_reason.c_str();
}
inline size_t cublasLtGetVersion() { return 0; }
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return emulated::create(handle); }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return emulated::destroy(handle); }

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
    if (scale != (compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F))
        return emulated::forbidden("a scale of another type than the computation's");
    return emulated::create(d, compute, scale);
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return emulated::destroy(d); }
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                                     cublasLtMatmulDescAttributes_t which, const void* value,
                                                     size_t bytes) {
    using emulated::set_attribute;
    if (!emulated::lives(d)) return emulated::forbidden("a descriptor that does not live");
    switch (which) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return set_attribute(d->trans_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return set_attribute(d->trans_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return set_attribute(d->epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set_attribute(d->bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set_attribute(d->aux, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set_attribute(d->aux_ld, value, bytes);
        case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return set_attribute(d->scale_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return set_attribute(d->scale_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return set_attribute(d->fast, value, bytes);
    }
    return emulated::forbidden("an attribute of a GEMM that is not known");
}

inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType_t type,
                                                 uint64_t rows, uint64_t cols, int64_t ld) {
    return emulated::create(l, type, rows, cols, ld);
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return emulated::destroy(l); }
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                       cublasLtMatrixLayoutAttribute_t which,
                                                       const void* value, size_t bytes) {
    if (!emulated::lives(l)) return emulated::forbidden("a layout that does not live");
    if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return emulated::set_attribute(l->batch, value, bytes);
    if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        return emulated::set_attribute(l->stride, value, bytes);
    return emulated::forbidden("an attribute of a layout that is not known");
}

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
    return emulated::create(p);
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    return emulated::destroy(p);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                           cublasLtMatmulPreferenceAttributes_t which,
                                                           const void* value, size_t bytes) {
    if (!emulated::lives(p)) return emulated::forbidden("a preference that does not live");
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return emulated::set_attribute(p->workspace, value, bytes);
    if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return emulated::set_attribute(p->reductions, value, bytes);
    int operand = which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (operand < 0 || operand > 3)
        return emulated::forbidden("an attribute of a preference that is not known");
    uint32_t alignment = 0;
    cublasStatus_t status = emulated::set_attribute(alignment, value, bytes);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (!alignment || alignment & (alignment - 1))
        return emulated::forbidden("an alignment to no power of 2");
    p->alignment[operand] = alignment;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
                                                     cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                                     cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                                     cublasLtMatmulPreference_t wanted, int requested,
                                                     cublasLtMatmulHeuristicResult_t* results,
                                                     int* returned) {
    *returned = 0;
    for (const void* object :
         {(void*)handle, (void*)d, (void*)A, (void*)B, (void*)C, (void*)D, (void*)wanted})
        if (!emulated::lives(object)) return emulated::forbidden("an object that does not live");
    if (requested < 1) return emulated::forbidden("no algorithm is asked for");
    emulated::Problem p = {*d, *A, *B, *C};
    if (std::string bad = p.check(); !bad.empty()) return emulated::forbidden(bad);
    if (C != D && memcmp(C, D, sizeof *C)) return emulated::forbidden("C and D differ");
    if (std::string why = p.unsupported(wanted->alignment); !why.empty())
        return emulated::refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
    for (uint64_t way = 0; way < 3 && *returned < requested; way++) {
        uint64_t bytes = way == 1 ? 2 * p.C.rows * p.C.cols * sizeof(real) : 0;
        bool may_split = wanted->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && p.k() > 1;
        if (way == 1 && !may_split) continue;
        if (bytes > wanted->workspace) continue;
        const uint32_t* a = wanted->alignment;
        results[(*returned)++] = {{{way, p.signature(), a[0], a[1], a[2], a[3], bytes, 0}}, bytes,
                                  CUBLAS_STATUS_SUCCESS, 1};
    }
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void* alpha,
                                     const void* A, cublasLtMatrixLayout_t a, const void* B,
                                     cublasLtMatrixLayout_t b, const void* beta, const void* C,
                                     cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t out,
                                     const cublasLtMatmulAlgo_t* algo, void* workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
    for (const void* object : {(void*)handle, (void*)d, (void*)a, (void*)b, (void*)c, (void*)out})
        if (!emulated::lives(object)) return emulated::forbidden("an object that does not live");
    if (!alpha || !beta || !A || !B || !D || !algo) return emulated::forbidden("a pointer is missing");
    emulated::Problem p = {*d, *a, *b, *c};
    if (std::string bad = p.check(); !bad.empty()) return emulated::forbidden(bad);
    if (memcmp(c, out, sizeof *c)) return emulated::forbidden("C and D differ");
    if (algo->data[1] != p.signature())
        return emulated::refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an algorithm of another problem");
    const void* operands[] = {A, B, C, D};
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)operands[i] % algo->data[2 + i])
            return emulated::forbidden(text("operand %c is not aligned to the %llu bytes that were promised",
                                            "ABCD"[i], (unsigned long long)algo->data[2 + i]));
    if (algo->data[6] > workspace_bytes || (algo->data[6] && !workspace))
        return emulated::forbidden("the workspace is smaller than the algorithm's");
    if ((uintptr_t)workspace % 16) return emulated::forbidden("the workspace is not aligned to 16 bytes");
    auto end = [](const void* x, const EmulatedMatrixLayout& l) {
        int64_t last = (l.batch - 1) * l.stride + (int64_t)(l.cols - 1) * l.ld + (int64_t)l.rows;
        return (const char*)x + last * (int64_t)emulated::bytes_of(l.type);
    };
    auto overlaps = [&](const void* x, const EmulatedMatrixLayout& l) {
        return (const char*)x < end(D, p.C) && (const char*)D < end(x, l);
    };
    if (overlaps(A, p.A) || overlaps(B, p.B)) return emulated::forbidden("D lies over A or B");
    if (algo->data[0] == 2) return emulated::refuse(CUBLAS_STATUS_NOT_SUPPORTED, "this algorithm refuses");
    bool wide = p.desc.scale == CUDA_R_64F;
    double factor = wide ? *(const double*)alpha : *(const float*)alpha;
    double keeps = wide ? *(const double*)beta : *(const float*)beta;
    emulated::Operands given = {A, B, C, D, factor, keeps};
    int way = (int)algo->data[0];
    emulated::enqueue(stream, [=] { multiply(p, given, way, (real*)workspace); });
    return CUBLAS_STATUS_SUCCESS;
}
