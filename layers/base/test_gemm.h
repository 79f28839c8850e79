// test_gemm.h   GEMMs beside plain loops in fp64: ref's, by CBLAS and, where it is linked, oneDNN; and the
//   emulated device's, by cuBLASLt's stand-in (test_cublaslt.h)
#pragma once
#include "gemm.h"
#include "testing.h"

// what gemm.h promises of a packed GEMM, one number after the other
template <class Out>
void gemm_in_loops(const Gemm<Out>& g) {
    using ref::to_real;
    for (int i = 0; i < g.batch; i++) {
        const floatX *a = g.a + i * g.stride_a, *b = g.b + i * g.stride_b;
        auto a_of = [&](int r, int k) -> double {
            return to_real(a[g.transpose_a ? k * g.lda + r : r * g.lda + k]);
        };
        auto b_of = [&](int k, int c) -> double {
            return to_real(b[g.transpose_b ? c * g.ldb + k : k * g.ldb + c]);
        };
        for (int r = 0; r < g.m; r++) {
            for (int c = 0; c < g.n; c++) {
                double sum = 0;
                for (int k = 0; k < g.k; k++) sum += a_of(r, k) * b_of(k, c);
                long to = i * g.stride_out + r * g.ldc + c;
                Out& out = g.out[to];
                sum *= g.alpha;
                if (g.beta != 0) sum += g.beta * (double)to_real(g.c ? g.c[to] : out);
                if (g.bias) sum += to_real(g.bias[c]);
                long at = (long)r * g.n + c;
                if (g.gelu_aux_in) sum *= ref::gelu_slope(to_real(g.gelu_aux_in[at]));
                if (g.gelu_aux_out) {
                    g.gelu_aux_out[at] = floatX(real(sum));
                    sum = ref::gelu_of(to_real(g.gelu_aux_out[at]));
                }
                out = Out(real(sum));
            }
        }
    }
}

// multiply(g) computes it; operands begin `off` and 2 * off values after an aligned address
template <class Out, class Multiply>
void gemm_is_loops(const std::string& what, Gemm<Out> g, Multiply multiply, int off = 0) {
    g = with_leading_dimensions(g);
    auto operand = [&](long rows, long ld, long stride, int seed) {
        return random_values<floatX>(2 * off + rows * ld + (g.batch - 1) * stride, seed);
    };
    auto a = operand(g.transpose_a ? g.k : g.m, g.lda, g.stride_a, 1);
    auto b = operand(g.transpose_b ? g.n : g.k, g.ldb, g.stride_b, 2);
    auto bias = operand(1, g.n, 0, 3), before = operand(g.m, g.n, 0, 4);
    long results = g.m * g.ldc + (g.batch - 1) * g.stride_out;
    auto old = random_values<Out>(results, 5), elsewhere = random_values<Out>(results, 6);
    std::vector<Out> outs[2] = {old, old};
    std::vector<floatX> ups[2] = {before, before};

    for (int way : {0, 1}) {
        Gemm<Out> one = g;
        one.a = a.data() + off;
        one.b = b.data() + 2 * off;
        one.out = outs[way].data();
        if (g.c) one.c = elsewhere.data();
        if (g.bias) one.bias = bias.data();
        if (g.gelu_aux_out) one.gelu_aux_out = ups[way].data();
        if (g.gelu_aux_in) one.gelu_aux_in = before.data();
        way == 0 ? multiply(one) : gemm_in_loops(one);
    }

    std::string name = text("a GEMM, %s, %d x %d x %d", what.c_str(), g.m, g.n, g.k);
    // operands are exact: what differs are sums of up to 300 terms in fp32, and the result's rounding
    double tolerance = sizeof(Out) == 2 ? 2 * std::ldexp(1, -8) : sizeof(Out) == 4 ? 1e-5 : 1e-12;
    close(name, outs[0], outs[1], tolerance);
    if (g.gelu_aux_out) close(name + ", GELU's input", ups[0], ups[1], tolerance);
}

// results of type Out; those that an epilogue makes are floatX
template <class Out, class Multiply>
void gemms_of(Multiply multiply, bool has_all_epilogues) {
    floatX here{};  // stands for an operand that gemm_is_loops makes
    Out there{};
    for (auto [m, n, k] : {std::array{1, 1, 1}, {3, 5, 7}, {33, 17, 300}, {64, 128, 96}}) {
        const Gemm<Out> plain = {.out = nullptr, .a = nullptr, .b = nullptr, .m = m, .n = n, .k = k};

        for (bool ta : {false, true})
            for (bool tb : {false, true}) {
                Gemm<Out> g = plain;
                g.transpose_a = ta;
                g.transpose_b = tb;
                std::string which = text("transposed %d %d", ta, tb);
                gemm_is_loops(which, g, multiply);
                g.beta = 1;
                gemm_is_loops(which + ", added", g, multiply);
                g.alpha = real(0.125);
                gemm_is_loops(which + ", scaled and added", g, multiply);
                g.c = &there;
                gemm_is_loops(which + ", scaled, added to other values", g, multiply);
                g.lda = g.ldb = 310;
                g.ldc = 131;
                g.batch = 3;
                g.stride_a = g.stride_b = 310 * 310 + 3;
                g.stride_out = 70 * 131;
                gemm_is_loops(which + ", of a batch", g, multiply);
            }

        auto with = [&](const char* what, auto change) {
            Gemm<Out> g = plain;
            change(g);
            bool possible = std::is_same_v<Out, floatX> && fits_epilogue(n);  // in cuBLASLt
            if (has_all_epilogues || possible) gemm_is_loops(what, g, multiply);
        };
        with("GELU's slope", [&](auto& g) { g.gelu_aux_in = &here; });
        with("bias", [&](auto& g) {
            g.transpose_b = true;
            g.bias = &here;
        });
        with("bias, added to other values", [&](auto& g) {
            g.transpose_b = true;
            g.beta = 1;
            g.c = &there;
            g.bias = &here;
        });
        with("GELU", [&](auto& g) {
            g.transpose_b = true;
            g.bias = g.gelu_aux_out = &here;
        });
    }
}

inline void test_gemm() {
    auto multiply = [](const auto& g) { ref::gemm(g, nullptr); };
    gemms_of<floatX>(multiply, true);
    if (sizeof(floatX) == 2) gemms_of<real>(multiply, true);
}
