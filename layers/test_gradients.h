// test_gradients.h   ref against finite differences, in fp64
#pragma once
#include "attention.cuh"
#include "base/testing.h"
#include "cross_entropy.cuh"
#include "embedding.cuh"
#include "fast/flash_attention.cuh"
#include "layernorm.cuh"

// analytic gradients of sum(weights * output) against central differences, h = 1e-5: the truncation error is
// of order h^2 = 1e-10, the rounding error 1e-16 / 1e-5 = 1e-11 of the sum
template <class Forward>
void differences(const std::string& what, std::vector<floatX>& input, const std::vector<double>& gradient,
                 Forward forward) {
    std::vector<double> numeric(input.size());
    const double h = 1e-5;
    for (size_t i = 0; i < input.size(); i++) {
        floatX old = input[i];
        input[i] = floatX((double)old + h);
        double above = forward();
        input[i] = floatX((double)old - h);
        double below = forward();
        input[i] = old;
        numeric[i] = (above - below) / (2 * h);
    }

    close(what, gradient, numeric, 1e-7);
}

double dot(const std::vector<floatX>& a, const std::vector<floatX>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += (double)real(a[i]) * (double)real(b[i]);
    return sum;
}

// what `ranks` tensor-parallel ranks would do, one after the other: the three steps with the reductions
// between
void cross_entropy_over(int ranks, std::vector<real>& losses, std::vector<floatX>& logits,
                        const std::vector<int>& targets, real dloss, int N,
                        VocabularyShard whole) {
    int V = whole.valid, Vp = whole.size;
    int Vp_r = Vp / ranks;
    std::vector<real> largest(N, -INFINITY), part(N), sums(2 * N, 0), part_sums(2 * N), ignored(N, 0);
    std::vector<std::vector<floatX>> own(ranks, std::vector<floatX>(N * Vp_r));
    auto share = [&](int r) { return VocabularyShard{std::clamp(V - r * Vp_r, 0, Vp_r), Vp_r, r * Vp_r}; };
    for (int i = 0; i < N * Vp; i++) own[i % Vp / Vp_r][i / Vp * Vp_r + i % Vp_r] = logits[i];
    for (int r = 0; r < ranks; r++) {
        CrossEntropyMax{part.data(), own[r].data(), N, share(r)}.ref(nullptr);
        for (int n = 0; n < N; n++) largest[n] = std::max(largest[n], part[n]);
    }
    for (int r = 0; r < ranks; r++) {
        CrossEntropySum{part_sums.data(), largest.data(), own[r].data(), targets.data(), N,
                        share(r)}.ref(nullptr);
        for (int n = 0; n < 2 * N; n++) sums[n] += part_sums[n];
    }
    for (int r = 0; r < ranks; r++)
        CrossEntropyFinish{r ? ignored.data() : losses.data(), own[r].data(), largest.data(), sums.data(),
                           targets.data(), dloss, N, share(r)}.ref(nullptr);
    for (int i = 0; i < N * Vp; i++) logits[i] = own[i % Vp / Vp_r][i / Vp * Vp_r + i % Vp_r];
}

void test_gradients() {
    if (sizeof(floatX) != 8) return;  // only fp64 has the digits
    using X = std::vector<floatX>;
    using R = std::vector<real>;
    {
        int N = 3, C = 7;
        X x = random_values<floatX>(N * C, 1), w = random_values<floatX>(C, 2),
            b = random_values<floatX>(C, 3);
        X y(N * C), r = random_values<floatX>(N * C, 4), dx(N * C, floatX(0));
        R mean(N), rstd(N), dw(C, 0), db(C, 0);
        auto forward = [&] {
            LayerNormForward{y.data(), {mean.data(), rstd.data()}, x.data(), w.data(), b.data(), N,
                             C}.ref(nullptr);
            return dot(y, r);
        };
        forward();
        LayerNormBackward{dx.data(), dw.data(), db.data(), r.data(), x.data(), w.data(),
                          {mean.data(), rstd.data()}, nullptr, N, C, false}.ref(nullptr);
        differences("layernorm dx", x, wide(dx), forward);
        differences("layernorm dw", w, wide(dw), forward);
        differences("layernorm db", b, wide(db), forward);
    }

    {
        X x = random_values<floatX>(50, 5, 2), y(50), r = random_values<floatX>(50, 6), d = r;
        auto forward = [&] {
            GeluForward{y.data(), x.data(), 10, 5}.ref(nullptr);
            return dot(y, r);
        };
        R sums(5, 0), wanted(5, 0);
        ref::gelu_backward(d.data(), sums.data(), x.data(), nullptr, 10, 5, false, nullptr);
        differences("gelu dx", x, wide(d), forward);
        for (int i = 0; i < 50; i++) wanted[i % 5] += real(d[i]);
        check(sums == wanted, "the sums of gelu's dx");
    }

    {
        int N = 4, C = 5, OC = 3;
        X x = random_values<floatX>(N * C, 7), w = random_values<floatX>(OC * C, 8),
            b = random_values<floatX>(OC, 9);
        X y(N * OC), r = random_values<floatX>(N * OC, 10), dx(N * C);
        R dw(OC * C, 0), db(OC, 0);
        auto forward = [&] {
            LinearForward{y.data(), x.data(), w.data(), b.data(), N, C, OC}.ref(nullptr);
            return dot(y, r);
        };
        LinearBackward{dx.data(), dw.data(), r.data(), x.data(), w.data(), N, C, OC, false}.ref(nullptr);
        ref::column_sum(db.data(), r.data(), nullptr, N, OC, false, nullptr);
        differences("matmul dx", x, wide(dx), forward);
        differences("matmul dw", w, wide(dw), forward);
        differences("matmul db", b, wide(db), forward);
    }

    for (int T : {1, 5, 67}) {  // 67: more than one tile of rows
        AttentionShape a = {2, T, 2, 3};
        long n = a.B * T * a.ld_qkv(), m = a.B * T * a.ld_o(), s = (long)a.B * a.NH * T * T;
        X qkv = random_values<floatX>(n, 11), o(m), p(s), r = random_values<floatX>(m, 12), d(n), dp(s);
        auto forward = [&] {
            AttentionForward{o.data(), p.data(), qkv.data(), a}.ref(nullptr);
            return dot(o, r);
        };
        forward();
        AttentionBackward{d.data(), dp.data(), r.data(), p.data(), qkv.data(), a}.ref(nullptr);
        differences(text("attention dqkv, T %d", T), qkv, wide(d), forward);
    }

    for (int T : {1, 5, 67}) {  // the same by tiles, and not a value of T x T
        AttentionShape a = {2, T, 2, 3};
        long n = a.B * T * a.ld_qkv(), m = a.B * T * a.ld_o(), rows = (long)a.B * a.NH * T;
        X qkv = random_values<floatX>(n, 11), o(m), whole(m), p(rows * T), r = random_values<floatX>(m, 12),
          d(n);
        R lse(rows);
        auto forward = [&] {
            FlashForward{o.data(), lse.data(), qkv.data(), a}.ref(nullptr);
            return dot(o, r);
        };
        forward();
        AttentionForward{whole.data(), p.data(), qkv.data(), a}.ref(nullptr);
        double most = 0;
        for (long i = 0; i < m; i++) most = std::max(most, std::abs((double)o[i] - (double)whole[i]));
        check(most < 1e-14, text("flash attention is attention, T %d: %g", T, most));
        FlashBackward{d.data(), {}, r.data(), o.data(), lse.data(), qkv.data(), a}.ref(nullptr);
        differences(text("flash attention dqkv, T %d", T), qkv, wide(d), forward);
    }

    for (int ranks : {1, 2}) {  // of the vocabulary
        int N = 3, V = 5, Vp = 8;
        X logits = random_values<floatX>(N * Vp, 13), work;
        for (int second : {0, -1}) {  // -1: a row that does not count
            std::vector<int> targets = {4, second, 2};
            R losses(N);
            auto forward = [&] {
                work = logits;
                std::fill(losses.begin(), losses.end(), 0);
                cross_entropy_over(ranks, losses, work, targets, 0.25, N, {V, Vp, 0});
                return 0.25 * (losses[0] + losses[1] + losses[2]);
            };
            forward();
            check((losses[1] == 0) == (second < 0), "which rows count");
            differences(text("cross entropy dlogits over %d ranks, target %d", ranks, second), logits,
                        wide(X(work)), forward);
        }
    }

    {
        int N = 6, T = 3, C = 4, V = 5;
        X wte = random_values<floatX>(V * C, 14), wpe = random_values<floatX>(T * C, 15), x(N * C);
        X r = random_values<floatX>(N * C, 16);
        std::vector<int> tokens = {1, 1, 4, 0, 1, 4};
        R dwte(V * C, 0), dwpe(T * C, 0);
        auto forward = [&] {
            EmbeddingForward{x.data(), tokens.data(), wte.data(), N, C, {V, V, 0}, wpe.data(), nullptr,
                             T}.ref(nullptr);
            return dot(x, r);
        };
        std::vector<int> rows(N), starts(N + 1);
        sort_tokens(rows.data(), starts.data(), tokens.data(), N, V);
        check(rows == std::vector{3, 0, 1, 4, 2, 5} && starts == std::vector{0, 1, 4, 6, 6, 6, 6},
              "tokens sorted");
        EmbeddingBackward{dwte.data(), tokens.data(), rows.data(), starts.data(), r.data(), N, C,
                          {V, V, 0}}.ref(nullptr);
        PositionBackward{dwpe.data(), r.data(), 0, N, T, C, false}.ref(nullptr);
        differences("embedding dwte", wte, wide(dwte), forward);
        differences("embedding dwpe", wpe, wide(dwpe), forward);
    }
}
