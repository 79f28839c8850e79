// test_cublaslt.h   cuBLASLt's stand-in refuses what is forbidden, and gpu::gemm computes with it
#pragma once
#include "../base/gemm.h"
#include "../base/test_gemm.h"
#include "../base/testing.h"

#if HAS_KERNELS && !defined(__CUDACC__)

// D (16, 24) = op(A) op(B), k = 32, column-major: a valid call until a test changes it
struct CublasCall {
    static constexpr int m = 16, n = 24, k = 32;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t A, B, C, D;
    cublasLtMatmulPreference_t preference;
    alignas(256) char a[4096] = {};
    alignas(256) char b[4096] = {};
    alignas(256) char c[4096] = {};
    alignas(256) char vectors[4096] = {};
    alignas(256) char workspace[8192] = {};
    const void *from_a = a, *from_b = b;
    void* to = c;
    float alpha = 1, beta = 0;
    const void *alpha_at = &alpha, *beta_at = &beta;
    void* work = workspace;
    size_t work_bytes = sizeof workspace;
    int way = 0, requested = 3;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    explicit CublasCall(cudaDataType_t type = CUDA_R_16BF, cudaDataType_t other = CUDA_R_16BF,
                        cudaDataType_t result = CUDA_R_16BF) {
        cublasLtCreate(&handle);
        cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        bool fp8 = emulated::bytes_of(type) == 1;
        cublasLtMatrixLayoutCreate(&A, type, fp8 ? k : m, fp8 ? m : k, fp8 ? k : m);
        cublasLtMatrixLayoutCreate(&B, other, k, n, k);
        for (auto* l : {&C, &D}) cublasLtMatrixLayoutCreate(l, result, m, n, m);
        cublasLtMatmulPreferenceCreate(&preference);
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(sizeof workspace));
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
        if (fp8) set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    }

    CublasCall(const CublasCall&) = delete;
    ~CublasCall() {
        for (auto l : {A, B, C, D}) cublasLtMatrixLayoutDestroy(l);
        cublasLtMatmulPreferenceDestroy(preference);
        cublasLtMatmulDescDestroy(desc);
        cublasLtDestroy(handle);
    }

    void keep(cublasStatus_t now) {
        if (status == CUBLAS_STATUS_SUCCESS) status = now;
    }

    template <class T>
    void set(cublasLtMatmulDescAttributes_t which, T value) {
        keep(cublasLtMatmulDescSetAttribute(desc, which, &value, sizeof value));
    }

    template <class T>
    void set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t which, T value) {
        keep(cublasLtMatrixLayoutSetAttribute(l, which, &value, sizeof value));
    }

    template <class T>
    void prefer(cublasLtMatmulPreferenceAttributes_t which, T value) {
        keep(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value));
    }

    void epilogue(uint32_t e, void* bias, void* aux, int64_t ld) {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, e);
        if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        if (aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
        if (ld) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld);
    }

    void batch(int count, int64_t stride) {
        for (auto l : {A, B, C, D}) {
            set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
            set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
        }
    }

    // why it was refused, or ""
    std::string run() {
        cublasLtMatmulHeuristicResult_t found[3] = {};
        int count = 0;
        if (status == CUBLAS_STATUS_SUCCESS)
            status = cublasLtMatmulAlgoGetHeuristic(handle, desc, A, B, C, D, preference, requested, found,
                                                    &count);
        if (status == CUBLAS_STATUS_SUCCESS && way >= count) return "not offered";
        if (status == CUBLAS_STATUS_SUCCESS) status = matmul(found[way].algo);
        return status == CUBLAS_STATUS_SUCCESS ? "" : cublasLtGetStatusString(status);
    }

    cublasStatus_t matmul(const cublasLtMatmulAlgo_t& algo) {
        status = cublasLtMatmul(handle, desc, alpha_at, from_a, A, from_b, B, beta_at, to, C, to, D, &algo,
                                work, work_bytes, nullptr);
        synchronize(nullptr);
        return status;
    }
};

template <class Change>
void refuses_call(const std::string& want, CublasCall& call, Change change) {
    change(call);
    std::string why = call.run();
    check(why.find(want) != why.npos, text("cuBLASLt: says '%s', expected '%s'", why.c_str(), want.c_str()));
}

inline void cublaslt_refuses() {
    using Call = CublasCall;
    auto refuses = [](const char* want, auto change) {
        CublasCall call;
        refuses_call(want, call, change);
    };

    for (int way : {0, 1}) {
        CublasCall call;
        call.way = way;
        check(call.run().empty(), text("cuBLASLt: algorithm %d does what is allowed", way));
    }

    // sizes, leading dimensions, batches
    refuses("A: leading dimension", [](Call& c) { c.A->ld = c.m - 1; });
    refuses("B: leading dimension", [](Call& c) { c.B->ld = 1; });
    refuses("C: leading dimension", [](Call& c) { c.C->ld = c.D->ld = 8; });
    refuses("A is empty", [](Call& c) { c.A->rows = 0; });
    refuses("other rows than D", [](Call& c) { c.A->rows = 8; });
    refuses("other columns than D", [](Call& c) { c.B->cols = 8; });
    refuses("other columns than op(B) rows", [](Call& c) { c.A->cols = 8; });
    refuses("other rows than D", [](Call& c) { c.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T); });
    refuses("other columns than D", [](Call& c) { c.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T); });
    refuses("A: a batch of 2, D's is 1", [](Call& c) { c.set(c.A, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 2); });
    refuses("a batch of 0", [](Call& c) { c.batch(0, 0); });
    refuses("lie over each other", [](Call& c) { c.batch(2, 0); });
    refuses("C and D differ", [](Call& c) { c.D->ld = 32; });

    // attributes
    refuses("an attribute of 8 bytes, expected 4", [](Call& c) { c.set(CUBLASLT_MATMUL_DESC_TRANSA, 1L); });
    refuses("an attribute of 4 bytes, expected 8",
            [](Call& c) { c.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8); });
    refuses("an attribute of 8 bytes, expected 4",
            [](Call& c) { c.set(c.A, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1L); });
    refuses("an attribute of 4 bytes, expected 8",
            [](Call& c) { c.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1); });
    refuses("not known", [](Call& c) { c.set((cublasLtMatmulDescAttributes_t)99, 1); });
    refuses("an alignment to no power of 2",
            [](Call& c) { c.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 24u); });

    refuses("reductions that round", [](Call& c) {
        c.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_MASK);
    });
    refuses("no algorithm is asked for", [](Call& c) { c.requested = 0; });

    // epilogues
    refuses("no pointer to it", [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_BIAS, nullptr, nullptr, 0); });
    refuses("no epilogue that reads it", [](Call& c) { c.epilogue(1, c.vectors, nullptr, 0); });
    refuses("no pointer to it", [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_DGELU, nullptr, nullptr, 16); });
    refuses("no epilogue for it", [](Call& c) { c.epilogue(1, nullptr, c.vectors, 16); });
    refuses("leading dimension is too small",
            [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, c.vectors, c.vectors, 8); });
    refuses("expected a multiple of 8",
            [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_DGELU, nullptr, c.vectors, 17); });
    refuses("leading dimension is too small",
            [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_DGELU, nullptr, c.vectors, 0); });
    refuses("not aligned to 16 bytes",
            [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_DGELU, nullptr, c.vectors + 2, 16); });

    refuses("without a stride", [](Call& c) {
        c.batch(2, 512);
        c.epilogue(CUBLASLT_EPILOGUE_DGELU, nullptr, c.vectors, 16);
    });

    refuses("no whole vectors", [](Call& c) {
        c.A->rows = c.C->rows = c.D->rows = 12;
        c.epilogue(CUBLASLT_EPILOGUE_BIAS, c.vectors, nullptr, 0);
    });
    refuses("is not known here",
            [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_BIAS | 512, c.vectors, nullptr, 0); });
    refuses("not fp8", [](Call& c) { c.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &c.alpha); });

    // the call
    refuses("not aligned to the 256 bytes", [](Call& c) { c.from_a = c.a + 16; });
    refuses("operand B is not aligned", [](Call& c) {
        c.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 16u);
        c.from_b = c.b + 2;
    });

    refuses("a pointer is missing", [](Call& c) { c.beta_at = nullptr; });
    refuses("a pointer is missing", [](Call& c) { c.from_b = nullptr; });
    refuses("smaller than the algorithm's", [](Call& c) {
        c.way = 1;
        c.work_bytes = 64;
    });

    refuses("smaller than the algorithm's", [](Call& c) {
        c.way = 1;
        c.work = nullptr;
    });
    refuses("workspace is not aligned", [](Call& c) { c.work = c.workspace + 4; });
    refuses("D lies over A or B", [](Call& c) { c.to = c.a; });
    refuses("this algorithm refuses", [](Call& c) { c.way = 2; });
    refuses("not offered", [](Call& c) {  // no workspace, no split sum
        c.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(0));
        c.way = 2;
    });

    // types
    auto refuses_types = [](const char* want, cudaDataType_t a, cudaDataType_t b, cudaDataType_t c,
                            auto change) {
        CublasCall call(a, b, c);
        refuses_call(want, call, change);
    };

    auto nothing = [](Call&) {};
    auto e4 = CUDA_R_8F_E4M3, e5 = CUDA_R_8F_E5M2, half = CUDA_R_16BF, single = CUDA_R_32F;
    for (auto [a, b, c] : {std::tuple{e4, e4, half}, {e4, e5, single}, {half, half, single},
                           {single, single, single}}) {
        CublasCall call(a, b, c);
        std::string why = call.run();
        check(why.empty(), text("cuBLASLt: types %d, %d, %d are allowed: %s", a, b, c, why.c_str()));
    }

    refuses_types("fp32 result", e4, e4, single,
                  [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_BIAS, c.vectors, nullptr, 0); });
    refuses_types("no kernel together", half, single, half, nothing);
    refuses_types("does not take", CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, nothing);
    refuses_types("e5m2 times e5m2", e5, e5, half, nothing);
    refuses_types("beside another", e4, half, half, nothing);
    refuses_types("multiples of 16", e4, e5, half, [](Call& c) { c.A->rows = c.B->rows = 24; });
    refuses_types("aligned to 16 bytes", e4, e5, half,
                  [](Call& c) { c.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 8u); });
    refuses_types("scale that is not aligned", e4, e5, half, [](Call& c) {
        c.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, (const float*)c.vectors + 1);
    });
    refuses_types("fp8 has not", e4, e5, half,
                  [](Call& c) { c.epilogue(CUBLASLT_EPILOGUE_DGELU, nullptr, c.vectors, 16); });

    refuses_types("A transposed, B not", e4, e5, half, [](Call& c) {
        c.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
        std::swap(c.A->rows, c.A->cols);
        c.A->ld = c.m;
    });

    cublasLtMatmulDesc_t d;
    check(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_64F) == CUBLAS_STATUS_INVALID_VALUE,
          "cuBLASLt: a scale of another type than the computation's");
}

// an algorithm belongs to one problem, an object is destroyed once
inline void cublaslt_objects() {
    CublasCall first, other;
    cublasLtMatmulHeuristicResult_t found;
    int count;
    cublasLtMatmulAlgoGetHeuristic(first.handle, first.desc, first.A, first.B, first.C, first.D,
                                   first.preference, 1, &found, &count);
    other.epilogue(CUBLASLT_EPILOGUE_BIAS, other.vectors, nullptr, 0);
    check(other.matmul(found.algo) == CUBLAS_STATUS_NOT_SUPPORTED,
          "cuBLASLt: an algorithm of another problem");
    CublasCall biased;
    biased.epilogue(CUBLASLT_EPILOGUE_BIAS, biased.vectors, nullptr, 0);
    cublasLtMatmulAlgoGetHeuristic(biased.handle, biased.desc, biased.A, biased.B, biased.C, biased.D,
                                   biased.preference, 1, &found, &count);
    biased.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void*)(biased.vectors + 32));
    check(biased.matmul(found.algo) == CUBLAS_STATUS_INVALID_VALUE, "cuBLASLt: a bias that lies elsewhere");
    cublasLtMatrixLayout_t gone;
    cublasLtMatrixLayoutCreate(&gone, CUDA_R_32F, 8, 8, 8);
    cublasLtMatrixLayoutDestroy(gone);
    check(cublasLtMatrixLayoutDestroy(gone) == CUBLAS_STATUS_INVALID_VALUE, "cuBLASLt: destroyed twice");
    std::swap(gone, first.A);
    check(first.run() == "an object that does not live", "cuBLASLt: a layout that was destroyed");
    std::swap(gone, first.A);
}

// each algorithm computes the same product, all objects are destroyed, and one that refuses is never chosen
inline void cublaslt_gemm() {
    int m = 24, n = 40, k = 56;
    std::vector<floatX> a = random_values<floatX>(m * k, 1), b = random_values<floatX>(n * k, 2), out(m * n),
                        want(m * n);
    Gemm<floatX> g = {.out = out.data(), .a = a.data(), .b = b.data(), .m = m, .n = n, .k = k,
                      .transpose_b = true};
    gpu::gemm(g, nullptr);
    synchronize(nullptr);
    size_t living = emulated::cublas_objects.size();
    g.out = want.data();
    ref::gemm(g, nullptr);
    close("a GEMM by cuBLASLt", out, want, rounding);
    g.out = out.data();

    for (int way : {0, 1}) {
        std::fill(out.begin(), out.end(), floatX(-1));
        Gemm<floatX> given = with_leading_dimensions(g);
        gpu::MatmulDescriptor d(given);
        auto all = gpu::candidates_of(d);
        check(all.count == 3, text("cuBLASLt offers %d algorithms, expected 3", all.count));
        gpu::check_cublas(gpu::Cublas::get().multiply(given, d, all.at[way].algo, nullptr), "a GEMM");
        synchronize(nullptr);
        close(text("a GEMM by cuBLASLt's algorithm %d", way), out, want, rounding);
    }

    gpu::chosen_algorithms.map.clear();
    {
        TimingChoices here;
        gpu::gemm(g, nullptr);
        synchronize(nullptr);
    }

    for (auto& [key, choice] : autotuner.measured)
        check(choice.number != 2 || key.rfind("GEMM", 0) != 0,
              "an algorithm that refuses was chosen: " + key);
    autotuner.measured.clear();
    autotuner.generation++;
    check(emulated::cublas_objects.size() == living, "cuBLASLt: what was created for a GEMM is destroyed");
}

// a choice is remembered for its list of candidates: asking for fewer, less workspace or another order make
// another list, in which the same place may hold another algorithm
inline void cublaslt_choice_names_its_list() {
    std::vector<floatX> x(64 * 64);
    floatX* p = x.data();
    Gemm<floatX> g = with_leading_dimensions(
        Gemm<floatX>{.out = p, .a = p, .b = p, .m = 64, .n = 64, .k = 64});
    gpu::MatmulDescriptor d(g);
    auto usual = gpu::candidates_of(d), fewer = gpu::candidates_of(d, 2);
    auto little_room = gpu::candidates_of(d, cublas_candidates, 16), other_order = usual;
    std::swap(other_order.at[0], other_order.at[1]);
    check(usual.count == 3 && fewer.count == 2 && little_room.count == 2, "lists of candidates differ");

    std::string key = gpu::choice_key(g, d, usual);
    check(key == gpu::choice_key(g, d, gpu::candidates_of(d)), "the same list, the same key: " + key);
    for (auto* other : {&fewer, &little_room, &other_order})
        check(key != gpu::choice_key(g, d, *other), "another list, another key: " + key);
    g.stride_out = 4096;
    check(key != gpu::choice_key(g, d, usual), "another stride, another key");
    g.c = p;
    check(gpu::candidates_of(gpu::MatmulDescriptor(g)).count == 2, "the third needs C in its result's place");
    emulated::admits_apart = false;
    check(gpu::candidates_of(gpu::MatmulDescriptor(g)).count == 3, "if none admits C apart, all are tried");
    emulated::admits_apart = true;
}

// two streams that multiply at once: the stand-in refuses a workspace that another stream uses
inline void cublaslt_streams() {
    int m = 24, n = 40, k = 56;
    std::vector<floatX> a = random_values<floatX>(m * k, 1), b = random_values<floatX>(n * k, 2), outs[2];
    Stream streams[2] = {make_stream(), make_stream()};
    gpu::Cublas& cublas = gpu::Cublas::get();
    for (int i : {0, 1}) {
        outs[i].resize(m * n);
        auto g = with_leading_dimensions(Gemm<floatX>{.out = outs[i].data(), .a = a.data(), .b = b.data(),
                                                      .m = m, .n = n, .k = k, .transpose_b = true});
        gpu::MatmulDescriptor d(g);
        cublasStatus_t status = cublas.multiply(g, d, gpu::candidates_of(d).at[1].algo, streams[i]);
        check(status == CUBLAS_STATUS_SUCCESS, text("a GEMM on stream %d: %s", i,
                                                    cublasLtGetStatusString(status)));
    }
    for (Stream s : streams) {
        synchronize(s);
        destroy_stream(s);
    }
    check(!memcmp(outs[0].data(), outs[1].data(), m * n * sizeof(floatX)), "GEMMs on two streams agree");
    CublasCall call;
    call.way = 1;
    call.work = cublas.workspace(nullptr);
    call.work_bytes = cublas_workspace;
    check(call.run().empty(), "a workspace in its own stream");
    emulated::workspace_streams[call.work] = streams[0];
    check(call.run().find("another stream") != std::string::npos, "a workspace of another stream is refused");
    emulated::workspace_streams[call.work] = nullptr;
}

// an untimed GEMM with C apart from its result, where the first algorithm of the list refuses it
inline void cublaslt_untimed_apart() {
    int m = 24, n = 40, k = 88;
    std::vector<floatX> a = random_values<floatX>(m * k, 1), b = random_values<floatX>(n * k, 2);
    std::vector<floatX> c = random_values<floatX>(m * n, 3), apart(m * n), in_place = c;
    Gemm<floatX> g = {.out = in_place.data(), .a = a.data(), .b = b.data(), .m = m, .n = n, .k = k,
                      .transpose_b = true, .beta = 1};
    gpu::gemm(g, nullptr);
    emulated::admits_apart = false;
    emulated::refuses_first = true;
    g.out = apart.data();
    g.c = c.data();
    gpu::gemm(g, nullptr);
    synchronize(nullptr);
    emulated::admits_apart = true;
    emulated::refuses_first = false;
    check(!memcmp(apart.data(), in_place.data(), m * n * sizeof(floatX)), "C apart, after a refusal");
}

// every form of GEMM and each epilogue (a layer would silently do without one for which cuBLASLt has no
// algorithm); and operands at other addresses, which must not get an algorithm for aligned ones
inline void cublaslt_gemms() {
    auto multiply = [](const auto& g) {
        gpu::gemm(g, nullptr);
        synchronize(nullptr);
    };
    gemms_of<floatX>(multiply, false);
    if (sizeof(floatX) == 2) gemms_of<real>(multiply, false);
    real result = 0;
    floatX bias{};
    Gemm<real> mixed = {.out = &result, .a = &bias, .b = &bias, .m = 1, .n = 1, .k = 1, .bias = &bias};
    if (sizeof(floatX) == 2) refuses("must have one type", [&] { multiply(mixed); });
    Gemm<floatX> plain = {.out = nullptr, .a = nullptr, .b = nullptr, .m = 24, .n = 40, .k = 48,
                          .transpose_b = true, .lda = 56, .ldb = 56};
    for (int off : {1, 2}) gemm_is_loops(text("operands %d values further", off), plain, multiply, off);
}

inline void test_cublaslt() {
    cublaslt_refuses();
    cublaslt_objects();
    cublaslt_gemm();
    cublaslt_choice_names_its_list();
    cublaslt_streams();
    cublaslt_untimed_apart();
    cublaslt_gemms();
}
#endif
