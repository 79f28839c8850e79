// fp8_linear.cuh   the GEMMs of linear.cuh in fp8, for --fp8: what fp8_round.cuh has rounded
//   Sums are fp32, in forward with FAST_ACCUM's fewer bits (cublaslt.h); y, dx are floatX; dw, db real. All
//   sizes are multiples of 16. An fp8 GEMM has the summed dimension last in both operands, so backward uses
//   transposed copies.
//   communicates: nothing    cost: that of linear.cuh at twice the rate
#pragma once
#include "fp8_round.cuh"

#if REF_HERE || KERNELS_HERE
namespace fp8 {

template <bool GELU = false, class T8>
void round(T8* q, T8* q_t, Fp8Scale* scale, const floatX* x, const Fp8Scratch& f, int N, int C, Stream s) {
    dev::fp8_find_scale<GELU>({scale, f.parts, T8::largest}, x, (long)N * C, s);
    dev::fp8_round<GELU>(q, q_t, scale, x, N, C, s);
}

static void round_weight(const floatX* w, const Fp8Scratch& f, int C, int OC, Stream s) {
    round(f.weights.copy(w), f.weights.transpose(w), f.weights.scale(w), w, f, OC, C, s);
}

// a layer's input, x (N, C) or GELU of it, -> f.x, and what is kept of it
template <bool GELU = false>
void round_input(const floatX* x, const Fp8Input& kept, const Fp8Scratch& f, int N, int C, Stream s) {
    round<GELU>((e4m3*)f.x, kept.transposed, kept.scale, x, f, N, C, s);
}

// after round_input
static void matmul_forward(floatX* y, const floatX* w, const floatX* b, const Fp8Input& kept,
                           const Fp8Scratch& f, int N, int C, int OC, Stream s) {
    dev::gemm(Gemm<floatX, e4m3, e4m3>{.out = y, .a = (e4m3*)f.x, .b = f.weights.copy(w), .m = N, .n = OC,
                                       .k = C, .transpose_b = true, .bias = b,
                                       .scale_a = &kept.scale->inverse,
                                       .scale_b = &f.weights.scale(w)->inverse}, s);
}

// largest_dy: a bound of |dy|, from which its scale follows; 0: none is known
static void matmul_backward(floatX* dx, real* dw, const floatX* dy, float largest_dy, const Fp8Inputs& in,
                            const floatX* w, const Fp8Scratch& f, int N, int C, int OC, bool accumulate,
                            Stream s) {
    e5m2 *q = (e5m2*)f.dy, *q_t = (e5m2*)f.dy_t;
    Fp8Scale* scale = in.dy_is_scaled ? f.d_up_scale : f.dy_scale;
    if (largest_dy > 0) dev::fp8_set_scale(scale, fp8_scale(largest_dy, e5m2::largest), s);
    if (in.dy_is_scaled || largest_dy > 0) dev::fp8_round(q, q_t, scale, dy, N, OC, s);
    else round(q, q_t, scale, dy, f, N, OC, s);

    dev::gemm(Gemm<real, e5m2, e4m3>{.out = dw, .a = q_t, .b = in.x.transposed, .m = OC, .n = C, .k = N,
                                     .transpose_b = true, .beta = real(accumulate),
                                     .scale_a = &scale->inverse, .scale_b = &in.x.scale->inverse}, s);
    dev::gemm(Gemm<floatX, e5m2, e4m3>{.out = dx, .a = q, .b = f.weights.transpose(w), .m = N, .n = C,
                                       .k = OC, .transpose_b = true, .scale_a = &scale->inverse,
                                       .scale_b = &f.weights.scale(w)->inverse}, s);
}

}  // namespace fp8

// ---- the operations --------------------------------------------------------------------------------------

void RoundWeight::execute(Stream s) const { ::fp8::round_weight(w, fp8, C, OC, s); }

template <>
void InFp8<LinearForward>::execute(Stream s) const {
    auto [y, x, w, b, N, C, OC, residual] = layer;
    if (residual) fail("a linear layer in fp8 adds no residual: this is a bug");
    if (!in.x_is_rounded) ::fp8::round_input(x, in.x, fp8, N, C, s);
    ::fp8::matmul_forward(y, w, b, in.x, fp8, N, C, OC, s);
}

template <>
void InFp8<LinearGeluForward>::execute(Stream s) const {
    auto [y, up, x, w, b, N, C, OC] = layer;
    ::fp8::round_input(x, in.x, fp8, N, C, s);
    ::fp8::matmul_forward(up, w, b, in.x, fp8, N, C, OC, s);
    ::fp8::round_input<true>(up, in.y, fp8, N, OC, s);  // GELU of up
}

template <>
void InFp8<LinearBackward>::execute(Stream s) const {
    auto [dx, dw, dy, x, w, N, C, OC, accumulate, largest_dy] = layer;
    ::fp8::matmul_backward(dx, dw, dy, largest_dy, in, w, fp8, N, C, OC, accumulate, s);
}

template <>
void InFp8<LinearOfGeluBackward>::execute(Stream s) const {
    auto [d_up, dw, d_up_bias, dy, x, up, w, column_scratch, N, C, OC, accumulate] = layer;
    ::fp8::matmul_backward(d_up, dw, dy, 0, in, w, fp8, N, C, OC, accumulate, s);
    dev::fp8_gelu_backward(d_up, d_up_bias, up, column_scratch, N, C, accumulate,
                           {fp8.d_up_scale, fp8.parts, e5m2::largest}, s);
}

// ---- as the model calls them (model/activations.h) -------------------------------------------------------

void round_weight(const floatX* w, int OC, int C, const Fp8Scratch& fp8, Stream s,
                  std::source_location where) {
    compute(RoundWeight{.w = w, .fp8 = fp8, .C = C, .OC = OC}, s, where);
}

template <class Layer>
void compute_in_fp8(const Layer& layer, const Fp8Inputs& in, const Fp8Scratch& fp8, Stream s,
                    std::source_location where) {
    compute(InFp8<Layer>{layer, fp8, in}, s, where);
}
using Where = std::source_location;
template void compute_in_fp8(const LinearForward&, const Fp8Inputs&, const Fp8Scratch&, Stream, Where);
template void compute_in_fp8(const LinearGeluForward&, const Fp8Inputs&, const Fp8Scratch&, Stream, Where);
template void compute_in_fp8(const LinearBackward&, const Fp8Inputs&, const Fp8Scratch&, Stream, Where);
template void compute_in_fp8(const LinearOfGeluBackward&, const Fp8Inputs&, const Fp8Scratch&, Stream, Where);
#endif
