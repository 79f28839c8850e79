// host_gemm.h   ref::gemm: GEMMs and their epilogues on the host, by CBLAS or, in bf16, oneDNN
#pragma once
#include <string>
#include <vector>
#include "../base/gemm.h"
#include "fp8.h"
#include "host_blas.h"

namespace ref {

template <class T>
real to_real(T x) {
    if constexpr (std::is_same_v<T, real>) return x;
    else return float(x);
}

// a bf16 or fp8 matrix converted to real, for a BLAS that has no such type; a real one is used in place
struct Widened {
    std::vector<real> copy;
    const real* data;
    template <class T>
    Widened(const T* x, long rows, long cols, long ld) {
        if constexpr (std::is_same_v<T, real>) {
            data = x;
        } else {
            copy.resize(rows ? (rows - 1) * ld + cols : 0);
            real* to = copy.data();
            #pragma omp parallel for simd
            for (long i = 0; i < (long)copy.size(); i++) to[i] = to_real(x[i]);
            data = to;
        }
    }
};

// row r of out = GELU of row r of up
template <class Out, class Left, class Right>
void gelu_row(const Gemm<Out, Left, Right>& g, long r) {
    Out* out = g.out + r * g.ldc;
    const floatX* up = g.gelu_aux_out + r * g.n;
    #pragma omp simd
    for (long c = 0; c < g.n; c++) out[c] = Out(gelu_of(real(up[c])));
}

// applies the epilogue to row r of a GEMM's result (n), which is not rounded yet
template <class Out, class Left, class Right>
void finish_row(const Gemm<Out, Left, Right>& g, long r, real* x) {
    Out* out = g.out + r * g.ldc;
    long n = g.n;
    if (g.bias) {
        const floatX* bias = g.bias;
        #pragma omp simd
        for (long c = 0; c < n; c++) x[c] += real(bias[c]);
    }

    if (g.gelu_aux_in) {
        const floatX* at = g.gelu_aux_in + r * n;
        #pragma omp simd
        for (long c = 0; c < n; c++) out[c] = Out(x[c] * gelu_slope(real(at[c])));
    } else if (g.gelu_aux_out) {
        floatX* up = g.gelu_aux_out + r * n;
        #pragma omp simd
        for (long c = 0; c < n; c++) up[c] = floatX(x[c]);
        gelu_row(g, r);
    } else {
        #pragma omp simd
        for (long c = 0; c < n; c++) out[c] = Out(x[c]);
    }
}

// out (m, n), ldc elements a row = g.alpha * op(a) op(b) + beta * out + bias by oneDNN, if it can
template <class To, class Out, class Left, class Right>
bool try_bf16(const Gemm<Out, Left, Right>& g, To* out, long ldc, real beta, const floatX* bias = nullptr) {
    if constexpr (std::is_same_v<Left, bf16> && std::is_same_v<Right, bf16>)
        return multiply_bf16({out, g.a, g.b, bias, g.m, g.n, g.k, g.transpose_a, g.transpose_b,
                              sizeof(To) == 4, g.lda, g.ldb, ldc, (float)g.alpha, (float)beta});
    return false;
}

// the same without a bias, by oneDNN or CBLAS
template <class Out, class Left, class Right>
void multiply(const Gemm<Out, Left, Right>& g, real* out, long ldc, real beta) {
    if (try_bf16(g, out, ldc, beta)) return;
    Widened a(g.a, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda);
    Widened b(g.b, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb);
    int ta = cblas_as_is + g.transpose_a, tb = cblas_as_is + g.transpose_b;
    int lda = (int)g.lda, ldb = (int)g.ldb;
    if constexpr (sizeof(real) == 8)
        cblas_dgemm(cblas_row_major, ta, tb, g.m, g.n, g.k, g.alpha, a.data, lda, b.data, ldb, beta, out,
                    (int)ldc);
    else
        cblas_sgemm(cblas_row_major, ta, tb, g.m, g.n, g.k, g.alpha, a.data, lda, b.data, ldb, beta, out,
                    (int)ldc);
}

template <class Out, class Left, class Right>
void gemm_of_batch(const Gemm<Out, Left, Right>& g) {
    if constexpr (std::is_same_v<Out, real>) {
        if (g.c) {
            #pragma omp parallel for
            for (long r = 0; r < g.m; r++) std::copy_n(g.c + r * g.ldc, g.n, g.out + r * g.ldc);
        }
        multiply(g, g.out, g.ldc, g.beta);
        if (!g.bias && !g.gelu_aux_in) return;
        #pragma omp parallel for
        for (long r = 0; r < g.m; r++) finish_row(g, r, g.out + r * g.ldc);
    } else {
        bool keeps_input = g.gelu_aux_out;
        bool is_rounded = !g.gelu_aux_in && !g.c && (!g.bias || (g.alpha == 1 && g.beta == 0)) &&
            try_bf16(g, keeps_input ? g.gelu_aux_out : g.out, keeps_input ? g.n : g.ldc, g.beta, g.bias);
        if (is_rounded) {
            long rows = keeps_input ? g.m : 0;
            #pragma omp parallel for
            for (long r = 0; r < rows; r++) gelu_row(g, r);
            return;
        }

        thread_local std::vector<real> unrounded;
        if (unrounded.size() < (size_t)g.m * g.n) unrounded.resize((size_t)g.m * g.n);
        real* wide = unrounded.data();
        multiply(g, wide, g.n, 0);
        const Out* base = g.c ? g.c : g.out;
        #pragma omp parallel for
        for (long r = 0; r < g.m; r++) {
            real* x = wide + r * g.n;
            for (long c = 0; g.beta != 0 && c < g.n; c++) x[c] += g.beta * real(base[r * g.ldc + c]);
            finish_row(g, r, x);
        }
    }
}

template <class Out, class Left, class Right>
void gemm(const Gemm<Out, Left, Right>& given, Stream) {
    Gemm<Out, Left, Right> g = with_leading_dimensions(given);
    if (g.scale_a) g.alpha *= *g.scale_a * *g.scale_b;
    for (int i = 0; i < g.batch; i++) {
        gemm_of_batch(g);
        g.a += g.stride_a;
        g.b += g.stride_b;
        g.out += g.stride_out;
        if (g.c) g.c += g.stride_out;
    }
}

size_t gemm_workspace() { return 0; }
void take_gemm_workspace(Stream) {}
std::string gemm_library() { return sizeof(floatX) == 2 && has_bf16_gemm() ? "oneDNN" : "CBLAS"; }

}  // namespace ref
