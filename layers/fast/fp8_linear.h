// fp8_linear.h   --fp8: linear layers in 8 bits, as operations beside those of linear.cuh
//   A layer's input x is rounded where it is read or, for the layer behind GELU, where it is made; backward
//   reads the rounded x that forward has left, never x itself.
//   How tensors are rounded: fp8_round.cuh; the GEMMs: fp8_linear.cuh
#pragma once
#include "../linear.cuh"
#include "fp8.h"

// ---- memory ----------------------------------------------------------------------------------------------

// parts of a tensor with rows of up to C values, whose largest values are found in parallel: gelu_backward's
// blocks (linear.cuh) take at least 32 columns, in at most 32 parts of the rows
constexpr int fp8_parts = 1024;
constexpr long most_fp8_parts(long C) { return C > fp8_parts ? C + 31 : fp8_parts + 31; }

// cuBLASLt reads `inverse` through a pointer, which must be aligned to 16 bytes
struct alignas(16) Fp8Scale { float inverse, scale; };

// weight matrices in fp8, at the same offsets as among the parameters
struct Fp8Weights {
    const floatX* parameters;  // the first parameter that has copies here
    e4m3 *copies, *transposed;
    Fp8Scale* scales;
    long spacing;  // elements per scale: at most those of the smallest matrix, so that each has its own scale

    e4m3* copy(const floatX* w) const { return copies + (w - parameters); }
    e4m3* transpose(const floatX* w) const { return transposed + (w - parameters); }
    Fp8Scale* scale(const floatX* w) const { return scales + (w - parameters) / spacing; }
};

// of a linear layer's input x (N, C), from forward to backward
struct Fp8Input {
    e4m3* transposed = nullptr;  // (C, N)
    Fp8Scale* scale = nullptr;
};

// x: N * C, dy, dy_t: N * OC numbers, for one product; parts: most_fp8_parts
struct Fp8Scratch {
    uint8_t *x, *dy, *dy_t;
    Fp8Scale *dy_scale, *d_up_scale;  // the latter: set by GELU's backward, for the layer before it
    float* parts;
    Fp8Weights weights;
};

// ---- the operations --------------------------------------------------------------------------------------

// rounding n values to fp8, in two copies: they are read twice, first to find the largest, or once if the
// scale is known
inline Work rounding_work(double n, bool is_scaled = false) { return moves(is_scaled ? n : 2 * n, 0, 2 * n); }

// w (OC, C) and its transpose in fp8, which the GEMMs read until w changes
struct RoundWeight {
    const floatX* w;
    Fp8Scratch fp8;
    int C, OC;

    static constexpr const char* name = "round_weight";
    std::vector<TensorAccess> tensors() const {
        return {reads("w", w, OC, C), writes("w in 8 bits", fp8.weights.copy(w), OC, C),
                writes("transposed", fp8.weights.transpose(w), C, OC)};
    }
    std::vector<Work> works() const { return {rounding_work((double)C * OC)}; }
    void execute(Stream) const;
};

// what a linear layer in 8 bits has beside its operands
struct Fp8Inputs {
    Fp8Input x;                 // forward sets it, backward reads it
    Fp8Input y = {};            // of LinearGeluForward, which makes y in 8 bits only: the next layer's x
    bool x_is_rounded = false;  // forward: x is set already, by the layer before
    bool dy_is_scaled = false;  // backward: dy's scale is d_up_scale, set by the operation that made dy
};

// an operation of linear.cuh, computed in 8 bits
template <class Layer>
struct InFp8 {
    Layer layer;
    Fp8Scratch fp8;
    Fp8Inputs in;

    static constexpr const char* name = Layer::name;
    std::vector<TensorAccess> tensors() const;
    std::vector<Work> works() const;
    void execute(Stream s) const;
};

// defined in fp8_linear.cuh
template <> void InFp8<LinearForward>::execute(Stream) const;
template <> void InFp8<LinearGeluForward>::execute(Stream) const;
template <> void InFp8<LinearBackward>::execute(Stream) const;
template <> void InFp8<LinearOfGeluBackward>::execute(Stream) const;

inline Work in_fp8(Work work) {
    work.fp8 = true;
    return work;
}

template <>
inline std::vector<TensorAccess> InFp8<LinearForward>::tensors() const {
    auto [y, x, w, b, N, C, OC, residual] = layer;  // without a residual: see execute()
    return {reads("x", in.x_is_rounded ? nullptr : x, N, C),
            reads("x in 8 bits", in.x_is_rounded ? fp8.x : nullptr, N, C), reads("w", w, OC, C),
            reads("b", b, OC), writes("y", y, N, OC),
            writes("x in 8 bits", in.x_is_rounded ? nullptr : in.x.transposed, C, N)};
}
template <>
inline std::vector<Work> InFp8<LinearForward>::works() const {
    return {in.x_is_rounded ? Work{} : rounding_work((double)layer.N * layer.C), in_fp8(layer.works()[0])};
}

template <>
inline std::vector<TensorAccess> InFp8<LinearGeluForward>::tensors() const {
    auto [y, up, x, w, b, N, C, OC] = layer;
    return {reads("x", x, N, C), reads("w", w, OC, C), reads("b", b, OC), writes("up", up, N, OC),
            writes("x in 8 bits", in.x.transposed, C, N), writes("y in 8 bits", fp8.x, N, OC),
            writes("transposed", in.y.transposed, OC, N)};
}
template <>
inline std::vector<Work> InFp8<LinearGeluForward>::works() const {
    return {rounding_work((double)layer.N * layer.C), in_fp8(layer.works()[0]),
            rounding_work((double)layer.N * layer.OC)};
}

template <>
inline std::vector<TensorAccess> InFp8<LinearBackward>::tensors() const {
    auto [dx, dw, dy, x, w, N, C, OC, accumulate, largest_dy] = layer;
    return {reads("dy", dy, N, OC), reads("x in 8 bits", in.x.transposed, C, N), reads("w", w, OC, C),
            sums_to("dw", dw, accumulate, OC, C), writes("dx", dx, N, C)};
}
template <>
inline std::vector<Work> InFp8<LinearBackward>::works() const {
    std::vector<Work> gemms = layer.works();
    bool is_scaled = in.dy_is_scaled || layer.largest_dy > 0;
    return {rounding_work((double)layer.N * layer.OC, is_scaled), in_fp8(gemms[0]), in_fp8(gemms[1])};
}

template <>
inline std::vector<TensorAccess> InFp8<LinearOfGeluBackward>::tensors() const {
    auto [d_up, dw, d_up_bias, dy, x, up, w, scratch, N, C, OC, accumulate] = layer;
    return {reads("dy", dy, N, OC), reads("x in 8 bits", in.x.transposed, C, N), reads("up", up, N, C),
            reads("w", w, OC, C), sums_to("dw", dw, accumulate, OC, C),
            sums_to("d_up_bias", d_up_bias, accumulate, C), writes("d_up", d_up, N, C)};
}
template <>
inline std::vector<Work> InFp8<LinearOfGeluBackward>::works() const {
    std::vector<Work> works = layer.works();
    return {rounding_work((double)layer.N * layer.OC), in_fp8(works[0]), in_fp8(works[1]), works[2]};
}
