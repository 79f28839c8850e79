// gemm_choice.h   which of cuBLASLt's algorithms a GEMM runs: the fastest, timed once (autotune.h)
//   A choice is remembered by its place in the list of candidates. Its key holds a hash of that list, so that
//   it can never mean another algorithm. Looked up in cublaslt.h.
#pragma once
#include <algorithm>
#include <string>
#include <vector>
#include "cublaslt.h"

#if HAS_KERNELS
constexpr int cublas_candidates = 24;  // asked for

namespace gpu {

// cuBLASLt's candidates for a GEMM, the most promising first
struct Candidates {
    static constexpr int most = 64;
    cublasLtMatmulHeuristicResult_t at[most];  // no vector of them: nvcc 13.0 ends with an internal error
    int count = 0;

    // which algorithms they are, in which order, by every setting that an algorithm has
    uint64_t hash() const {
        struct {
            cublasLtMatmulAlgoConfigAttributes_t attribute;
            size_t bytes;
        } settings[] = {{CUBLASLT_ALGO_CONFIG_ID, 4}, {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                        {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4}, {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                        {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4}, {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                        {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4}, {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                        {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
        std::vector<uint32_t> values;
        for (int i = 0; i < count; i++)
            for (auto& setting : settings) {
                uint32_t value = 0;  // stays 0 if this algorithm has no such setting
                size_t written = 0;
                cublasLtMatmulAlgoConfigGetAttribute(&at[i].algo, setting.attribute, &value,
                                                     setting.bytes, &written);
                values.push_back(value);
            }
        return checksum(values.data(), values.size() * sizeof values[0]);
    }
};

// none if the library has none
inline Candidates candidates_of(const MatmulDescriptor& d, int asked = cublas_candidates,
                                size_t workspace_bytes = cublas_workspace) {
    cublasLtMatmulPreference_t preference;
    Candidates found;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");

    auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
        check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value),
                     "a preference");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // partial sums are never rounded to bf16
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums);

    for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) set(which, d.align);

    asked = std::min(asked, Candidates::most);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(Cublas::get().handle, d.gemm, d.A, d.B, d.C, d.C,
                                                           preference, asked, found.at, &found.count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS) found.count = 0;

    auto keep_first = [&](auto good) {
        return (int)(std::stable_partition(found.at, found.at + found.count, good) - found.at);
    };
    found.count = keep_first([](auto& result) { return result.state == CUBLAS_STATUS_SUCCESS; });
    if (!d.c_is_apart) return found;
    int apart = keep_first([&](auto& result) {
        int32_t may_be_apart = 1;
        size_t written = 0;
        cublasLtMatmulAlgoCapGetAttribute(&result.algo, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT,
                                          &may_be_apart, sizeof may_be_apart, &written);
        return may_be_apart != 0;
    });
    if (apart) found.count = apart;  // where none says that it can, find_algorithm tries them
    return found;
}

// what a choice is remembered by: everything that the list of candidates depends on, and the list
template <class Out, class Left, class Right>
std::string choice_key(const Gemm<Out, Left, Right>& g, const MatmulDescriptor& d, const Candidates& all) {
    return text("GEMM " PRECISION_NAME
                " %d x %d x %d %c%c %ld %ld %ld batch %d strides %ld %ld %ld kind %d align %u "
                "list %016llx",
                g.m, g.n, g.k, g.transpose_a ? 't' : 'n', g.transpose_b ? 't' : 'n', g.lda, g.ldb, g.ldc,
                g.batch, g.stride_a, g.stride_b, g.stride_out, kind_of(g), d.align,
                (unsigned long long)all.hash());
}

template <class Out, class Left, class Right>
cublasLtMatmulAlgo_t find_algorithm(const Gemm<Out, Left, Right>& g, const MatmulDescriptor& d, Stream s) {
    Candidates all = candidates_of(d);
    if (!all.count)
        fail("cuBLASLt has no algorithm for a GEMM in " PRECISION_NAME " aligned to %u bytes: choose "
             "sizes that are multiples of 8", d.align);
    auto computes = [&](int way) {
        return Cublas::get().multiply(g, d, all.at[way].algo, s) == CUBLAS_STATUS_SUCCESS;
    };
    // untimed, with C apart from the result, which a library may refuse: the first that it does not
    int by_default = d.c_is_apart && !autotuner.on ? -1 : 0;
    int best = autotuner.choose(choice_key(g, d, all), all.count, by_default, s, computes);
    if (best < 0)
        for (best = 0; best + 1 < all.count && !computes(best);) best++;
    return all.at[best].algo;
}

template <class Out>
bool can_compute(const Gemm<Out>& g) {
    MatmulDescriptor d(with_leading_dimensions(g));
    return candidates_of(d).count > 0;
}

}  // namespace gpu
#endif
