// test_kernels_attention.h   gpu against ref: attention, cross-entropy, embedding, mma
#pragma once
#include <sys/mman.h>
#include "../attention.cuh"
#include "mma.h"
#include "../cross_entropy.cuh"
#include "../embedding.cuh"
#include "flash_dispatch.cuh"
#include "packed_attention.cuh"
#include "tokens_ahead.cuh"
#include "../test_adamw.h"
#include "../test_kernels.h"

#if HAS_KERNELS
void kernels_residual() {
    for (auto [N, C] : {std::pair{1, 1}, {7, 33}, {40, 128}}) {
        X x(random_values<floatX>(N * C, 1)), f(random_values<floatX>(N * C, 2)),
            b(random_values<floatX>(C, 3)), y(N * C);
        both_ways([&] { return ResidualForward{y, x, f, b, N, C}; });
        y.compare(text("residual %d x %d", N, C), rounding);
    }
}

void kernels_attention() {
    for (auto [B, T, NH, HS] : {std::tuple{1, 1, 1, 1}, {2, 17, 3, 5}, {1, 33, 2, 64}, {2, 70, 1, 33},
                                {1, 127, 2, 16}}) {
        AttentionShape a = {B, T, NH, HS};
        long n = B * T * a.ld_qkv(), m = B * T * a.ld_o(), s = (long)B * NH * T * T;
        X qkv(random_values<floatX>(n, 1)), o(m), p(s), dout(random_values<floatX>(m, 2)), dqkv(n), dp(s);
        std::string size = text(" B %d T %d NH %d HS %d", B, T, NH, HS);
        both_ways([&] { return AttentionForward{o, p, qkv, a}; });
        o.compare("attention o" + size, 2 * rounding);
        p.compare("attention p" + size, 2 * rounding);
        AttentionBackward{dqkv.ref(), dp.ref(), dout.ref(), p.ref(), qkv.ref(), a}.ref(nullptr);
        SumsOnTheWay db(a.ld_qkv());
        for (int again = 0; again < 2; again++) {
            AttentionBackward{dqkv.device, dp.device, dout.device, p.device, qkv.device, a,
                              db.out.device, db.scratch.device, db.accumulate}.gpu(nullptr);
            dqkv.compare("attention dqkv" + size, 4 * rounding);
            db.compare("attention, bias gradient" + size, dqkv.back());
        }
    }
}

// sizes that do not fit the tiles of 64 keys and 32, 64 or 128 queries
void kernels_flash_attention() {
    if (sizeof(floatX) != 2) return;
    // roundings are independent: the rms of a few of them stays below 2^-8
    auto alike = [](const std::string& what, const std::vector<floatX>& got,
                    const std::vector<floatX>& want) {
        double off = rms_off(got, want);
        check(off < std::ldexp(1, -8), text("%s: off by %.2e in the mean", what.c_str(), off));
    };

    struct Size { int B, T, NH, HS; };
    std::vector<Size> sizes = {{1, 1, 1, 64},   {2, 17, 2, 64},  {1, 127, 3, 64},  {1, 200, 1, 64},
                               {2, 65, 2, 80},  {1, 96, 1, 96},  {1, 130, 2, 128}, {1, 64, 1, 128},
                               {2, 70, 1, 160}, {1, 129, 1, 160}};

    // long ones take seconds in emulation: only in one order of threads
    static int orders = 0;
    if (host_is_device && !is_watched && orders++ == 0) {
        sizes.push_back({1, 1000, 1, 64});
        if (!is_sanitized) sizes.push_back({1, 2048, 1, 128});  // half a minute there
    }
    if (!host_is_device) sizes.insert(sizes.end(), {{2, 1000, 3, 64}, {1, 2048, 4, 128}, {1, 2048, 2, 160}});

    auto check_size = [&](int B, int T, int NH, int HS) {
        AttentionShape a = {B, T, NH, HS};
        long n = B * T * a.ld_qkv(), m = B * T * a.ld_o(), rows = (long)B * NH * T;
        X qkv(random_values<floatX>(n, 1)), o(m), dout(random_values<floatX>(m, 2)), dqkv(n);
        R lse(rows), terms(flash_query_terms(B, NH, T)), dq(flash_dq(B, NH, T, HS));
        Both<int> turns(flash_turns(B, NH, T));
        std::string size = text(" B %d T %d NH %d HS %d", B, T, NH, HS);
        both_ways([&] { return FlashForward{o, lse, qkv, a}; });
        // p is rounded before it is divided by its sum here, after it in ref, and o is rounded: 2^-8 each
        close_by_position("flash attention o" + size, o.back(), o.host, a, 1, 2 * rounding);
        lse.compare("flash attention lse" + size, 1e-5);
        X whole(m), p(rows * T);  // and ref agrees with materialised attention
        AttentionForward{whole.ref(), p.ref(), qkv.ref(), a}.ref(nullptr);
        // which also rounds the scores, some of them above 2
        close_by_position("flash attention is attention" + size, o.host, whole.host, a, 1, 4 * rounding);
        alike("flash attention o" + size, o.back(), o.host);
        FlashBackward{dqkv.ref(), {}, dout.ref(), o.ref(), lse.ref(), qkv.ref(), a}.ref(nullptr);
        R parts(flash_dqkv_sums(a));
        FlashScratch scratch = {terms.device, dq.device, turns.device, parts.device};
        SumsOnTheWay db(a.ld_qkv());
        std::vector<floatX> first;
        for (int again = 0; again < 2; again++) {
            FlashBackward{dqkv.device, scratch, dout.device, o.device, lse.device, qkv.device, a,
                          db.out.device, db.scratch.device, db.accumulate}.gpu(nullptr);
            // p and ds are rounded, ds after a difference of two sums that round differently: twice 2^-8 each
            close_by_position("flash attention dqkv" + size, dqkv.back(), dqkv.host, a, 3, 4 * rounding);
            std::vector<floatX> back = dqkv.back();
            db.compare("flash attention, bias gradient" + size, back);
            alike("flash attention dqkv" + size, back, dqkv.host);
            if (again)
                check(!memcmp(back.data(), first.data(), n * sizeof(floatX)), "bit for bit again" + size);
            first = back;
        }
    };

    for (auto [B, T, NH, HS] : sizes) check_size(B, T, NH, HS);
#if defined(DEVICE_EMULATED)
    size_t most = emulated::largest_shared;
    for (size_t other : {99 << 10, 163 << 10}) {  // an RTX 4090's, an A100's
        emulated::largest_shared = other;
        check_size(2, 70, 1, 128);
        check_size(1, 130, 1, 96);
    }
    emulated::largest_shared = most;

    // more heads than grid.y has room for; nothing is executed
    emulated::executes = false;
    std::string error;
    try {
        FlashForward{(floatX*)nullptr, nullptr, (const floatX*)nullptr, {1100, 64, 64, 64}}.gpu(nullptr);
        synchronize(nullptr);
    } catch (const Error& e) {
        error = e.what();
    }

    check(error.empty(), "flash attention of 70,400 heads: " + error);
    emulated::executes = true;
#endif
    refuses("expected 64, 80, 96, 128 or 160", [] {
        FlashForward{(floatX*)nullptr, nullptr, (const floatX*)nullptr, {1, 1, 1, 32}}.gpu(nullptr);
    });
}

// scores and logits of which exp alone would overflow
void kernels_large_exponents() {
    AttentionShape a = {1, 70, 2, 64};
    long n = a.T * a.ld_qkv(), m = a.T * a.ld_o(), rows = a.NH * a.T;
    X qkv(random_values<floatX>(n, 1, 15)), o(m), whole(m), p(rows * a.T);
    R lse(rows);
    if (sizeof(floatX) == 2) {  // elsewhere there is no flash kernel
        both_ways([&] { return FlashForward{o, lse, qkv, a}; });
        // scores of some 200 are sums that differ by 1e-4
        lse.compare("flash attention lse of large scores", 1e-5);
        o.compare("flash attention of large scores", 2 * rounding);
        real most = *std::max_element(lse.host.begin(), lse.host.end());
        check(most > 200, text("scores up to %g", most));
    }
    both_ways([&] { return AttentionForward{whole, p, qkv, a}; });
    double off = rms_off(whole.back(), whole.host);  // a score of bf16 may be rounded otherwise, by one
    check(off < (sizeof(floatX) == 2 ? 0.1 : 1e-3), text("attention of large scores: off by %g", off));

    int N = 9, V = 257;
    X logits(random_values<floatX>(N * V, 3, 200));
    std::vector<int> t(N);
    for (int i = 0; i < N; i++) t[i] = i * 31 % V;
    Both<int> targets(t);
    R losses(N), largest(N), sums(2 * N);
    std::vector<double> want(N);
    for (int i = 0; i < N; i++) {
        double sum = 0, most = -INFINITY;
        for (int c = 0; c < V; c++) most = std::max(most, (double)real(logits.host[i * V + c]));
        for (int c = 0; c < V; c++) sum += std::exp((double)real(logits.host[i * V + c]) - most);
        want[i] = std::log(sum) + most - (double)real(logits.host[i * V + t[i]]);
    }
    VocabularyShard v = {V, V, 0};
    std::vector<floatX> before = logits.host;
    for (bool at_once : {false, true}) {
        logits.host = before;
        logits.upload();
        both_ways([&] { return CrossEntropyMax{largest, logits, N, v}; });
        both_ways([&] { return CrossEntropySum{sums, largest, logits, targets, N, v}; });
        if (at_once)
            both_ways([&] {
                return CrossEntropy{losses, logits, largest, sums, targets, real(1), N, v};
            });
        else
            both_ways([&] {
                return CrossEntropyFinish{losses, logits, largest, sums, targets, real(1), N, v};
            });
        close("losses of large logits, ref", losses.host, want, 1e-6);
        close("losses of large logits", losses.back(), want, 1e-6);
        logits.compare("their gradient", std::max(rounding, 2e-4));
    }
}

// a row of logits that begins beyond 2^31 elements, as of 64 sequences of 1024: only its block is run
void kernels_far_rows() {
#if defined(DEVICE_EMULATED)
    constexpr int V = 65536, last = 32768, N = last + 1;
    size_t bytes = (size_t)N * V * sizeof(floatX);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;  // of which one row takes memory
    floatX* logits = (floatX*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (logits == MAP_FAILED) return check(false, "room for addresses of 2^31 logits");
    std::vector<floatX> row = random_values<floatX>(V, 1, 3);
    std::vector<int> targets(N, 77);
    std::vector<real> losses(N), largest(N), sums(2 * N);
    double sum = 0;
    for (floatX x : row) sum += std::exp((double)real(x));
    double want = std::log(sum) - (double)real(row[77]);
    VocabularyShard v = {V, V, 0};
    emulated::first_block = last;
    for (bool at_once : {false, true}) {
        std::copy(row.begin(), row.end(), logits + (long)last * V);
        losses[last] = 0;
        CrossEntropy all = {losses.data(), logits, largest.data(), sums.data(), targets.data(), real(1), N,
                            v};
        if (at_once) all.gpu(nullptr);
        else {
            all.largest_of_rows().gpu(nullptr);
            all.sums_of_rows().gpu(nullptr);
            all.finish().gpu(nullptr);
        }
        synchronize(nullptr);
        close("the loss of a far row", std::vector<real>{losses[last]}, std::vector<double>{want}, 1e-5);
        double gradient = (double)real(logits[(long)last * V + 77]);
        check(std::abs(gradient - (std::exp(-want) - 1)) < 0.01, text("its gradient is %g", gradient));
    }
    emulated::first_block = 0;
    munmap(logits, bytes);
#endif
}

void kernels_cross_entropy() {
    for (auto [N, V, Vp, first] : {std::tuple{1, 2, 2, 0}, {3, 11, 16, 0}, {17, 257, 257, 0},
                                   {5, 257, 384, 100}, {4, 1000, 1024, 0}, {2, 50257, 50304, 0},
                                   {2, 60000, 60000, 0}, {3, 0, 8, 8}}) {
        X logits(random_values<floatX>(N * Vp, 1, 3));
        std::vector<int> t(N);
        for (int n = 0; n < N; n++) t[n] = n % 3 == 2 ? -1 : n * 7919 % (first ? 1000 : std::max(V, 1));
        Both<int> targets(t);
        R losses(random_values<real>(N, 2)), ahead(N), largest(N), sums(2 * N);
        VocabularyShard v = {V, Vp, first};

        std::string size = text(" N %d V %d Vp %d from %d", N, V, Vp, first);
        // ref may sum sequentially: V roundings, whose sum grows like sqrt(V); 4 times that, to be safe
        double summed = 4 * std::sqrt(V) * std::numeric_limits<real>::epsilon();

        both_ways([&] { return CrossEntropyMax{largest, logits, N, v}; });
        if (V == 0) {  // a rank that holds only padding: -inf, until the others' largest comes
            check(largest.back() == largest.host && std::isinf(largest.host[0]),
                  "no column, no largest logit");
            std::fill(largest.host.begin(), largest.host.end(), real(1));
            largest.upload();
        }
        largest.compare("largest" + size, 0);

        both_ways([&] { return CrossEntropySum{sums, largest, logits, targets, N, v}; });
        sums.compare("sums" + size, sums_tolerance + summed);
        if (V == 0) std::fill(sums.host.begin(), sums.host.end(), real(2));
        sums.upload();

        // equal logits before and behind the target, a larger one, and not a number
        std::vector<floatX> tied = logits.host;
        for (int n = 0; n < N && V > 4; n++) {
            int target = t[n] - first;
            if (target < 0 || target >= V) continue;
            tied[n * Vp + target] = floatX(20);
            if (target > 0 && n % 4 == 1) tied[n * Vp + target - 1] = floatX(20);
            if (target < V - 1 && n % 4 != 1) tied[n * Vp + target + 1] = floatX(n % 4 == 3 ? 21 : 20);
            if (n % 8 == 4) tied[n * Vp + (target + 1) % V] = floatX(NAN);
        }
        std::vector<real> its(N, 1);  // the targets' logits, those of other ranks too
        for (int n = 0; n < N; n++)
            if (t[n] >= first && t[n] < first + V) its[n] = real(tied[n * Vp + t[n] - first]);
        X tied_logits(tied);
        R target_logits(its);
        bool is_whole = !first && V > 0;
        auto count_ahead = [&](bool by_itself) {
            both_ways([&] {
                real* of_targets = by_itself ? nullptr : (real*)target_logits;
                return TokensAhead{ahead, tied_logits, of_targets, targets, N, v};
            });
            ahead.compare("tokens ahead" + size, 0);
        };
        if (is_whole) count_ahead(true);
        std::vector<real> alone = ahead.host;
        count_ahead(false);
        check(!is_whole || alone == ahead.host, "tokens ahead, of one rank" + size);
        for (int n = 0; n < N; n++) {
            long expected = t[n] < 0;
            real target_logit = its[n];
            for (int c = 0; c < V && t[n] >= 0; c++) {
                real logit = real(tied[n * Vp + c]);
                expected += first + c != t[n] && (std::isnan(logit) || logit > target_logit ||
                                                  (logit == target_logit && first + c < t[n]));
            }
            check(ahead.host[n] == real(expected), text("tokens ahead, row %d", n) + size);
        }

        X whole(logits.host);
        R whole_losses(losses.host);
        for (bool want : {false, true}) {
            real dloss(want ? 0.1 : 0);
            both_ways([&] {
                return CrossEntropyFinish{losses, logits, largest, sums, targets, dloss, N, v};
            });
            losses.compare("losses" + size, sums_tolerance + summed);
            logits.compare((want ? "dlogits" : "logits without gradient") + size,
                           want ? rounding + summed : 0);

            if (V == 0 || first) continue;
            CrossEntropy{whole_losses.device, whole.device, largest.device, sums.device, targets.device,
                         dloss, N, v}.gpu(nullptr);  // all at once
            whole_losses.host = losses.host;
            whole.host = logits.host;
            whole_losses.compare("losses at once" + size, sums_tolerance + summed);
            whole.compare((want ? "dlogits at once" : "logits kept") + size, want ? rounding + summed : 0);
        }
    }
}

void kernels_embedding() {
    for (auto [N, T, C, V] : {std::tuple{1, 1, 1, 2}, {18, 9, 33, 5}, {18, 9, 12, 5}, {150, 50, 600, 11},
                              {260, 130, 16, 300}, {127, 127, 136, 3}, {2048, 1000, 24, 40}}) {
        std::vector<int> t(N);
        for (int n = 0; n < N; n++) t[n] = (n * n + n / 3) % V;
        Both<int> tokens(t), rows_of(N), starts(N + 1);
        sort_tokens(rows_of.ref(), starts.ref(), t.data(), N, V);
        rows_of.upload();
        starts.upload();
        for (int n = 0; n < N; n++) {
            t.resize(n + 1);
            t[n] = (n * 5 + 2) % (T + 3);
        }
        Both<int> positions(t);
        X wte(random_values<floatX>(V * C, 1)), wpe(random_values<floatX>((T + 3) * C, 2)), x(N * C);
        X dx(random_values<floatX>(N * C, 3));
        R dwte(random_values<real>(V * C, 4)), dwpe(random_values<real>((T + 3) * C, 5));
        std::string size = text(" N %d T %d C %d V %d", N, T, C, V);
        // whole, and a rank's share
        for (auto [first, tokens_held, offset] : {std::tuple{0, V, 0}, {V / 2, V - V / 2, T / 2}}) {
            VocabularyShard v = {tokens_held, tokens_held, first};
            both_ways([&] { return EmbeddingForward{x, tokens, wte, N, C, v}; });
            x.compare("embedding x" + size, 0);
            for (bool listed : {false, true}) {
                both_ways([&] {
                    return EmbeddingForward{x, tokens, wte, N, C, v, wpe,
                                            listed ? (int*)positions : nullptr, T};
                });
                x.compare("embedding and position x" + size, 0);
            }
            both_ways([&] { return EmbeddingBackward{dwte, tokens, rows_of, starts, dx, N, C, v}; });
            both_ways([&] { return PositionBackward{dwpe, dx, offset, N, T, C, offset > 0}; });
            dwte.compare("embedding dwte" + size, sums_tolerance);
            dwpe.compare("embedding dwpe" + size, sums_tolerance);
        }
    }
}

// D (16, 8) = A (16, 16) B (16, 8), both row-major in shared memory, so that B comes in by transposed loads
__global__ void mma_kernel(float* D, const bf16* A, const bf16* B) {
    SHARED(uint4, shared, 32 + 16);  // 16 bytes each: a row of A is two of them, a row of B is one
    bf16 *a = (bf16*)shared, *b = a + 16 * 16;
    int lane = threadIdx.x;
    for (int i = lane; i < 16 * 16; i += 32) a[i] = A[i];
    for (int i = lane; i < 16 * 8; i += 32) b[i] = B[i];
    __syncwarp();
    uint32_t ra[4], rb[4];
    ldmatrix_x4<false>(ra, a + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x4<true>(rb, b + lane % 16 * 8);
    float d[4] = {0, 0, 0, 0};
    uint32_t pair[2] = {rb[0], rb[1]};
    mma_16x8x16(d, ra, pair);
    for (int i = 0; i < 4; i++) D[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

void kernels_mma() {
    Both<bf16> A(random_values<bf16>(256, 1)), B(random_values<bf16>(128, 2));
    Both<float> D(128);
    for (int i = 0; i < 128; i++) {
        double sum = 0;
        for (int k = 0; k < 16; k++)
            sum += (double)(float)A.host[i / 8 * 16 + k] * (double)(float)B.host[k * 8 + i % 8];
        D.host[i] = (float)sum;
    }

    LAUNCH(mma_kernel, 1, 32, 0, nullptr, D.device, A.device, B.device);
    D.compare("mma and ldmatrix against a plain product", 1e-5);  // 16 exact products, summed in fp32
}

void test_kernels() {
    in_several_orders([] {
        kernels_layernorm();
        kernels_gelu();
        kernels_matmul();
        kernels_residual();
        kernels_attention();
        kernels_flash_attention();
        kernels_large_exponents();
        kernels_far_rows();
        kernels_cross_entropy();
        kernels_embedding();
        kernels_adamw();
        kernels_mma();
        kernels_fp8();
        kernels_tuning();
    });
}
#endif
