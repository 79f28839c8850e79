// cublaslt_on_cpu.h   cuBLASLt for the emulated device: the part that layers/fast uses, under the same names
//   With it, every line that describes, chooses and launches a GEMM is executed without a GPU. Matrices are
//   column-major, as in cuBLASLt. It refuses what the library's documentation forbids, and what the library
//   would silently misread; cublasLtGetStatusString then says why. Its algorithms:
//     0   sums over all of k
//     1   sums the two halves of k in the workspace, then adds them: rounded differently
//     2   is offered, but refuses when it is called
//   An algorithm is valid only for the problem that it was offered for, a workspace only for one stream: two
//   GEMMs in it at once would overwrite each other's sums.
#pragma once
#include <map>
#include <set>
#include "cublaslt_problem.h"

namespace emulated {

inline std::string cublas_reason;             // of the last refused call
inline std::set<const void*> cublas_objects;  // live handles, descriptors, layouts and preferences

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

// sets an attribute to a value, which must have the attribute's size
template <class T>
cublasStatus_t set_attribute(T& to, const void* value, size_t bytes) {
    if (!value || bytes != sizeof(T))
        return forbidden(text("an attribute of %zu bytes, expected %zu", bytes, sizeof(T)));
    memcpy(&to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t copy_attribute(const T& from, void* value, size_t bytes) {
    if (!value || bytes != sizeof(T))
        return forbidden(text("an attribute of %zu bytes, expected %zu", bytes, sizeof(T)));
    memcpy(value, &from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

inline std::map<const void*, cudaStream_t> workspace_streams;  // the stream that uses each workspace

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
    if (*C != *D) return emulated::forbidden("C and D differ");
    // cublaslt.h's rule, not the library's: partial sums are never rounded to bf16; results are repeatable
    if (wanted->reductions & ~CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        return emulated::forbidden("reductions that round, or come in any order");
    if (std::string why = p.unsupported(wanted->alignment); !why.empty())
        return emulated::refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);

    for (uint64_t i = 0; i < 3 && *returned < requested; i++) {
        uint64_t way = emulated::refuses_first ? (i + 2) % 3 : i;
        uint64_t bytes = way == 1 ? 2 * p.C.rows * p.C.cols * sizeof(real) : 0;
        bool may_split = wanted->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && p.k() > 1;
        if (way == 1 && !may_split) continue;
        if (bytes > wanted->workspace) continue;
        const uint32_t* a = wanted->alignment;
        uint64_t own = p.epilogue_alignment();
        results[(*returned)++] = {{{way, p.signature(), a[0], a[1], a[2], a[3], bytes, own}}, bytes,
                                  CUBLAS_STATUS_SUCCESS, 1};
    }
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                           cublasLtMatmulAlgoConfigAttributes_t which,
                                                           void* value, size_t bytes, size_t* written) {
    if (which != CUBLASLT_ALGO_CONFIG_ID && which != CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
        return emulated::refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a setting that these algorithms do not have");
    int32_t number = (int32_t)algo->data[0];
    if (which == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) number = number == 1 ? 2 : 1;
    *written = sizeof number;
    return emulated::copy_attribute(number, value, bytes);
}

inline cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                        cublasLtMatmulAlgoCapAttributes_t which, void* value,
                                                        size_t bytes, size_t* written) {
    if (which != CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT)
        return emulated::forbidden("a capability that is not known");
    int32_t is_able = emulated::admits_apart && algo->data[0] != 2;
    *written = sizeof is_able;
    return emulated::copy_attribute(is_able, value, bytes);
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void* alpha,
                                     const void* A, cublasLtMatrixLayout_t a, const void* B,
                                     cublasLtMatrixLayout_t b, const void* beta, const void* C,
                                     cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t out,
                                     const cublasLtMatmulAlgo_t* algo, void* workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
    for (const void* object : {(void*)handle, (void*)d, (void*)a, (void*)b, (void*)c, (void*)out})
        if (!emulated::lives(object)) return emulated::forbidden("an object that does not live");
    if (!alpha || !beta || !A || !B || !C || !D || !algo) return emulated::forbidden("a pointer is missing");

    emulated::Problem p = {*d, *a, *b, *c};
    if (std::string bad = p.check(); !bad.empty()) return emulated::forbidden(bad);
    if (*c != *out) return emulated::forbidden("C and D differ");
    if (algo->data[1] != p.signature())
        return emulated::refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an algorithm of another problem");

    const void* operands[] = {A, B, C, D};
    const EmulatedMatrixLayout* layouts[] = {a, b, c, out};
    for (int i = 0; i < 4; i++)
        if (((uintptr_t)operands[i] | (layouts[i]->batch - 1) * layouts[i]->stride *
             (int64_t)emulated::bytes_of(layouts[i]->type)) % algo->data[2 + i])
            return emulated::forbidden(text("operand %c is not aligned to the %llu bytes that were promised",
                                            "ABCD"[i], (unsigned long long)algo->data[2 + i]));

    if (p.epilogue_alignment() < algo->data[7])
        return emulated::forbidden("an operand of the epilogue is less aligned than the algorithm requires");
    if (algo->data[6] > workspace_bytes || (algo->data[6] && !workspace))
        return emulated::forbidden("the workspace is smaller than the algorithm's");
    if ((uintptr_t)workspace % 16) return emulated::forbidden("the workspace is not aligned to 16 bytes");
    if (workspace && emulated::workspace_streams.try_emplace(workspace, stream).first->second != stream)
        return emulated::forbidden("a workspace that another stream multiplies in");

    auto end = [](const void* x, const EmulatedMatrixLayout& l) {
        int64_t last = (l.batch - 1) * l.stride + (int64_t)(l.cols - 1) * l.ld + (int64_t)l.rows;
        return (const char*)x + last * (int64_t)emulated::bytes_of(l.type);
    };
    auto overlaps = [&](const void* x, const EmulatedMatrixLayout& l) {
        return (const char*)x < end(D, p.C) && (const char*)D < end(x, l);
    };
    if (overlaps(A, p.A) || overlaps(B, p.B)) return emulated::forbidden("D lies over A or B");
    if (C != D && overlaps(C, p.C)) return emulated::forbidden("D lies over a part of C");

    if (algo->data[0] == 2) return emulated::refuse(CUBLAS_STATUS_NOT_SUPPORTED, "this algorithm refuses");

    bool wide = p.desc.scale == CUDA_R_64F;
    double factor = wide ? *(const double*)alpha : *(const float*)alpha;
    double keeps = wide ? *(const double*)beta : *(const float*)beta;
    emulated::Operands given = {A, B, C, D, factor, keeps};
    int way = (int)algo->data[0];
    emulated::enqueue(stream, [=] { multiply(p, given, way, (real*)workspace); });
    return CUBLAS_STATUS_SUCCESS;
}
