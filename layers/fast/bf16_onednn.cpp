// bf16_onednn.cpp   host_blas.h's GEMM of bf16 numbers by oneDNN (2.6 or later; Debian's libdnnl-dev), on
//   processors that multiply bf16 themselves: AVX-512 BF16 and AMX
//   Primitives are kept by shape, in each thread: making one takes longer than a small GEMM.
#include <string.h>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <unordered_map>
#include "host_blas.h"

namespace {

using dnnl::memory;
constexpr size_t most_primitives = 4096;  // of a thread; inference meets ever new shapes
using Shape = std::tuple<int, int, int, bool, bool, bool, bool, long, long, long, float, float>;

struct Matmul {
    memory::desc a, b, bias, out;
    dnnl::matmul primitive;
    bool is_fast = false;  // oneDNN has more for it than its reference loops
};

// (rows, cols), ld elements a row; a transposed matrix is stored as (cols, rows)
memory::desc matrix(long rows, long cols, long ld, bool is_transposed, memory::data_type type) {
    auto strides = is_transposed ? memory::dims{1, ld} : memory::dims{ld, 1};
    return memory::desc({rows, cols}, type, strides);
}

Matmul make(const Bf16Gemm& g, const dnnl::engine& processor) try {
    auto bf16 = memory::data_type::bf16, type = g.out_is_fp32 ? memory::data_type::f32 : bf16;
    Matmul made{matrix(g.m, g.k, g.lda, g.transpose_a, bf16), matrix(g.k, g.n, g.ldb, g.transpose_b, bf16),
                g.bias ? matrix(1, g.n, g.n, false, bf16) : memory::desc(),
                matrix(g.m, g.n, g.ldc, false, type), {}, false};
    // alpha * (product + beta / alpha * out): only a sum that comes first has a fast implementation
    dnnl::post_ops after;
    dnnl::primitive_attr attributes;
    if (g.beta != 0) after.append_sum(g.beta / g.alpha);
    auto scaled = dnnl::algorithm::eltwise_linear;
#if DNNL_VERSION_MAJOR >= 3
    if (g.alpha != 1) after.append_eltwise(scaled, g.alpha, 0);
    attributes.set_post_ops(after);
    dnnl::matmul::primitive_desc chosen(processor, made.a, made.b, made.bias, made.out, attributes);
#else
    if (g.alpha != 1) after.append_eltwise(1, scaled, g.alpha, 0);
    attributes.set_post_ops(after);
    dnnl::matmul::primitive_desc chosen({made.a, made.b, made.bias, made.out}, attributes, processor);
#endif
    made.is_fast = strncmp(chosen.impl_info_str(), "ref", 3) != 0;
    made.primitive = dnnl::matmul(chosen);
    return made;
} catch (const dnnl::error&) {  // no primitive for this shape
    return {};
}

}  // namespace

bool has_bf16_gemm() {
    int wanted = (int)dnnl::cpu_isa::avx512_core_bf16;  // an ISA's value has the bits of all it includes
    return ((int)dnnl::get_effective_cpu_isa() & wanted) == wanted;
}

bool multiply_bf16(const Bf16Gemm& g) {
    static const bool is_supported = has_bf16_gemm();
    if (!is_supported || !g.m || !g.n || !g.k) return false;
    static const dnnl::engine processor(dnnl::engine::kind::cpu, 0);
    thread_local dnnl::stream stream(processor);
    thread_local std::map<Shape, Matmul> made;

    Shape shape{g.m, g.n, g.k, g.transpose_a, g.transpose_b, g.out_is_fp32, g.bias != nullptr, g.lda, g.ldb,
                g.ldc, g.alpha, g.beta};
    auto found = made.find(shape);
    if (found == made.end()) {
        if (made.size() == most_primitives) made.clear();
        found = made.emplace(shape, make(g, processor)).first;
    }

    const Matmul& matmul = found->second;
    if (!matmul.is_fast) return false;

    auto at = [&](const memory::desc& desc, const void* x) {
        return memory(desc, processor, const_cast<void*>(x));
    };
    std::unordered_map<int, memory> operands{{DNNL_ARG_SRC, at(matmul.a, g.a)},
                                             {DNNL_ARG_WEIGHTS, at(matmul.b, g.b)},
                                             {DNNL_ARG_DST, at(matmul.out, g.out)}};

    if (g.bias) operands[DNNL_ARG_BIAS] = at(matmul.bias, g.bias);
    matmul.primitive.execute(stream, operands);
    stream.wait();
    return true;
}
