// cublaslt.h   gpu::gemm: a GEMM by cuBLASLt or, in emulation, its stand-in (cublaslt_on_cpu.h)
//   cuBLASLt is column-major: it is asked for out^T (n, m) = op(b)^T op(a)^T.
//   The fastest of its algorithms is used (gemm_choice.h), of those that are deterministic: they reduce the
//   parts of a split sum in the type that they compute in, and in a fixed order.
#pragma once
#include <map>
#include <string>
#include <tuple>
#include "../base/gemm.h"
#include "../base/operation.h"
#include "autotune.h"
#if defined(DEVICE_CUDA)
#include <cublasLt.h>
#elif HAS_KERNELS
#include "../emulator/cublaslt_on_cpu.h"
#endif

#if HAS_KERNELS
namespace gpu {

// a refusal is an Error; a failure of the device, as while a graph is captured, a DeviceError
inline void check_cublas(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    for (auto of_device : {CUBLAS_STATUS_EXECUTION_FAILED, CUBLAS_STATUS_ALLOC_FAILED,
                           CUBLAS_STATUS_INTERNAL_ERROR})
        if (status == of_device) throw DeviceError(text("%s: %s", what, cublasLtGetStatusString(status)));
    fail("%s: %s", what, cublasLtGetStatusString(status));
}

template <class T>
constexpr cudaDataType_t cuda_type() {
    if constexpr (sizeof(T) == 1) return T::mantissa == 3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;  // see fp8.h
    else return sizeof(T) == 8 ? CUDA_R_64F : sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_16BF;
}

// its lowest set bit is the alignment, at most 256 bytes, of an operand in every GEMM of the batch
template <class T>
uint32_t address_bits(const T* p, long stride) {
    return (uint32_t)((uintptr_t)p | (uintptr_t)(stride * (long)sizeof(T)) | 256);
}

// A GEMM as cuBLASLt, whose matrices are column-major, describes it: A is the caller's b, B the caller's a; C
// also describes its result, D. For y = x w^T + residual: A = w (transposed), B = x, C = residual, D = y
struct MatmulDescriptor {
    cublasLtMatmulDesc_t gemm;
    cublasLtMatrixLayout_t A, B, C;
    uint32_t align;
    bool c_is_apart = false;  // from the result
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
            address_bits(g.a, g.stride_a) | address_bits(g.b, g.stride_b) | address_bits(g.out, g.stride_out);
        bits |= address_bits(g.bias, 0) | address_bits(g.gelu_aux_out, 0) | address_bits(g.gelu_aux_in, 0);
        bits |= address_bits(g.c, g.stride_out);
        c_is_apart = g.c != nullptr;
        align = bits & -bits;  // the coarsest alignment that all of them have: heads may start anywhere

        if (g.scale_a) {
            set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.scale_b);
            set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.scale_a);
            int8_t rough = cuda_type<Left>() == CUDA_R_8F_E4M3;  // forward GEMMs may accumulate in fewer bits
            set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, rough);
        }

        if (!std::is_same_v<Out, floatX> && (g.bias || g.gelu_aux_in))
            fail("an epilogue of a GEMM: its result, bias and GELU's input must have one type");
        if (g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
        if (g.gelu_aux_out || g.gelu_aux_in) {
            const void* aux = g.gelu_aux_out ? g.gelu_aux_out : g.gelu_aux_in;
            int64_t ld = g.n;
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld);
        }

        if (g.bias || g.gelu_aux_in)
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, g.gelu_aux_in ? CUBLASLT_EPILOGUE_DGELU
                                                   : g.gelu_aux_out ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
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
    std::map<Stream, void*> workspaces;  // a GEMM owns its workspace until it ends: one for each stream

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
        return cublasLtMatmul(handle, d.gemm, &g.alpha, g.b, d.A, g.a, d.B, &g.beta, g.c ? g.c : g.out, d.C,
                              g.out, d.C, &algo, workspace(s), cublas_workspace, s);
    }
};

// ---- choices, made by timing before the first step, which looks them up ----------------------------------

// types, epilogue, whether beta is not 0, and whether C is apart from the result
template <class Out, class Left, class Right>
int kind_of(const Gemm<Out, Left, Right>& g) {
    return (int)sizeof(Out) * 8 + 4 * (g.gelu_aux_in != nullptr) + 2 * (g.gelu_aux_out != nullptr) +
        (g.bias != nullptr) + 128 * (g.beta != 0) + 256 * (sizeof(Left) == 1) +
        512 * (cuda_type<Left>() == CUDA_R_8F_E5M2) + 1024 * (g.c != nullptr);
}

template <class Out, class Left, class Right>
cublasLtMatmulAlgo_t find_algorithm(const Gemm<Out, Left, Right>&, const MatmulDescriptor&, Stream);
// whether cuBLASLt lists an algorithm for this GEMM; nothing is computed
template <class Out>
bool can_compute(const Gemm<Out>&);

using ShapeOfGemm = std::tuple<int, int, int, bool, bool, long, long, long, int, long, long, long, int, int>;
inline AutotuneCache<ShapeOfGemm, cublasLtMatmulAlgo_t> chosen_algorithms;

// the fastest algorithm for this GEMM
template <class Out, class Left, class Right>
const cublasLtMatmulAlgo_t& choose_algorithm(const Gemm<Out, Left, Right>& g, const MatmulDescriptor& d,
                                             Stream s) {
    ShapeOfGemm shape = {g.m, g.n, g.k, g.transpose_a, g.transpose_b, g.lda, g.ldb, g.ldc, g.batch,
                         g.stride_a, g.stride_b, g.stride_out, kind_of(g), (int)d.align};
    return chosen_algorithms.get(shape, [&] { return find_algorithm(g, d, s); });
}

// Whether to use the GEMM's epilogue, if possible, or a separate kernel, always possible: whichever is
// faster. Timed before the first step, in tune() (run/setup.h): only then is `run` called here
bool fused_is_faster(const char* what, const Gemm<floatX>& fused_gemm, Stream s,
                     const std::function<void(bool)>& run, bool by_default) {
    static AutotuneCache<std::tuple<const char*, int, int, int>, bool> chosen;
    int m = fused_gemm.m, n = fused_gemm.n, k = fused_gemm.k;
    return chosen.get({what, m, n, k}, [&] {
        if (!fits_epilogue(n) || !can_compute(fused_gemm)) return false;
        std::string key = text("%s " PRECISION_NAME " %d x %d x %d", what, m, n, k);
        return autotuner.choose(key, 2, by_default, s, [&](int way) {
            try {
                run(way == 1);
            } catch (const Error&) {
                return false;
            } catch (const DeviceError&) {  // of cuBLASLt, at an epilogue that it cannot do after all
                return false;
            }
            return true;
        }) == 1;
    });
}

// ---- gemm ------------------------------------------------------------------------------------------------

template <class Out, class Left, class Right>
void gemm(const Gemm<Out, Left, Right>& given, Stream s) {
    Gemm<Out, Left, Right> g = with_leading_dimensions(given);
    MatmulDescriptor d(g);
    // materialised attention is a single operation, but up to 4 B GEMMs: they would fill the launch queue
    if (after_operation) after_operation(s);
    check_cublas(Cublas::get().multiply(g, d, choose_algorithm(g, d, s), s), "cublasLtMatmul");
}

// bytes that the GEMMs of a stream take besides their operands; taken when it first multiplies, or here
size_t gemm_workspace() { return cublas_workspace; }
void take_gemm_workspace(Stream s) { Cublas::get().workspace(s); }

std::string gemm_library() { return text("cuBLASLt %zu", cublasLtGetVersion()); }

}  // namespace gpu
#endif
#include "gemm_choice.h"
