// bench_kernels.h   benchmarks of each kernel alone: GB/s against a device copy, or TFLOP/s
#pragma once
#include "bench.h"
#include "../test_kernels.h"

#if HAS_KERNELS
// Calls measure(name, bytes that must be moved, matmul FLOPs, call) for every kernel. Sizes: on a GPU those
// of a step of the 124M model, in emulation small ones; if watched, 124M's channels with fewer rows.
template <class Measure>
void run_every_kernel(Measure measure) {
    bool small = host_is_device;
    int B = !small ? 32 : is_watched ? 2 : 1, T = !small ? 1024 : is_watched ? 128 : 64;
    int C = small && !is_watched ? 128 : 768, V = !small ? 50257 : is_watched ? 5000 : 300;
    int Vp = (V + 127) / 128 * 128, N = B * T;
    long n = (long)N * C, wide = 4 * n, parameters = !small ? 124000000 : is_watched ? 1004800 : 20096;
    double x = sizeof(floatX), r = sizeof(real), A = x * (double)n;
    std::vector<void*> buffers;
    auto room = [&](size_t bytes) {
        buffers.push_back(device_malloc(bytes, "bench"));
        set_zero(buffers.back(), bytes, nullptr);
        return buffers.back();
    };
    // random values: on zeros a GPU draws less power and would measure too fast
    auto fill = [&](auto* p, long count, auto value) {
        std::vector<std::remove_pointer_t<decltype(p)>> some(std::min(count, 1L << 20));
        for (size_t i = 0; i < some.size(); i++) some[i] = std::remove_pointer_t<decltype(p)>(value(i));
        copy_to_device(p, some.data(), some.size() * sizeof *p, nullptr);
        for (long done = (long)some.size(); done < count; done *= 2)
            copy_on_device(p + done, p, std::min(done, count - done) * sizeof *p, nullptr);
        synchronize(nullptr);
        return p;
    };
    auto xs = [&](long count) {  // in [-1, 1)
        return fill((floatX*)room((size_t)count * sizeof(floatX)), count,
                    [](size_t i) { return (real)(2 * uniform(1, purpose("bench"), i) - 1); });
    };
    auto rs = [&](long count) {  // in [0, 1): non-negative, like v and rstd
        return fill((real*)room((size_t)count * sizeof(real)), count,
                    [](size_t i) { return (real)uniform(2, purpose("bench"), i); });
    };
    auto ints = [&](const std::vector<int>& values) {
        int* p = (int*)room(values.size() * sizeof(int));
        copy_to_device(p, values.data(), values.size() * sizeof(int), nullptr);
        synchronize(nullptr);
        return p;
    };
    TimingChoices here;  // use the algorithms that training would choose
    floatX *a = xs(wide), *b = xs(wide), *c = xs(wide), *w = xs(4L * C * C), *bias = xs(4 * C), *o = xs(n);
    NormStats stats = {rs(N), rs(N)};
    real *dw = rs(4L * C * C), *db = rs(4 * C);
    real* scratch = rs(std::max(layernorm_scratch(C), column_sum_scratch(4 * C)));
    struct {
        const char* name;
        int m, n, k;
    } products[] = {{"product, square", small ? 128 : 8192, small ? 128 : 8192, small ? 128 : 8192},
                    {"product qkv", N, 3 * C, C},
                    {"product out", N, C, C},
                    {"product up", N, 4 * C, C},
                    {"product down", N, C, 4 * C}};
    long largest = 1;
    for (auto& p : products) largest = std::max({largest, (long)p.m * p.n, (long)p.m * p.k, (long)p.n * p.k});
    floatX *pa = xs(largest), *pb = xs(largest), *pc = xs(largest);
    for (auto& p : products)
        measure(p.name, 0, 2.0 * p.m * p.n * p.k,
                [&] { gpu::matmul_forward(pc, pa, pb, nullptr, p.m, p.k, p.n, nullptr); });
    // after the GEMMs, when the device has warmed up
    measure("device copy", 2 * x * (double)wide, 0,
            [&] { copy_on_device(a, b, wide * sizeof(floatX), nullptr); });
    measure("weight gradient of up", 0, 2.0 * N * 4 * C * C, [&] {
        gpu::matmul_backward(nullptr, dw, nullptr, a, o, w, scratch, N, C, 4 * C, true, nullptr);
    });
    measure("layer norm", 2 * A, 0,
            [&] { gpu::layernorm_forward(o, stats, a, w, bias, N, C, nullptr); });
    measure("residual and layer norm", 4 * A, 0, [&] {
        gpu::residual_layernorm_forward(b, o, stats, a, c, bias, w, bias, N, C, nullptr);
    });
    measure("layer norm backward", 4 * A, 0, [&] {
        gpu::layernorm_backward(o, {dw, db, db + C}, a, b, w, stats, scratch, N, C, true, nullptr);
    });
    measure("residual", 3 * A, 0, [&] { gpu::residual_forward(o, a, b, bias, N, C, nullptr); });
    measure("gelu", 8 * A, 0, [&] { gpu::gelu_forward(b, a, wide, nullptr); });
    measure("gelu backward", 12 * A, 0,
            [&] { gpu::gelu_backward(b, a, wide, nullptr); });
    measure("bias gradient of up", 4 * A, 0,
            [&] { gpu::column_sum(db, a, scratch, N, 4 * C, true, nullptr); });
    struct { int NH, HS, T; } heads[] = {{C / 64, 64, T}, {small ? 1 : 16, 128, small ? 64 : 2048}};
    for (auto& h : heads) {
        AttentionShape shape = {std::max(1, N / h.T), h.T, h.NH, h.HS};
        if (sizeof(floatX) != 2 || !flash_head_size(h.HS)) continue;
        long rows = (long)shape.B * h.T;
        floatX *qkv = xs(rows * shape.row()), *dqkv = xs(rows * shape.row()), *out = xs(rows * shape.out()),
               *dout = xs(rows * shape.out());
        real* lse = rs(rows * h.NH);
        FlashScratch flash = {rs(flash_query_terms(shape.B, h.NH, h.T)),
                              rs(flash_dq(shape.B, h.NH, h.T, shape.HS)),
                              (int*)room(flash_turns(shape.B, h.NH, h.T) * sizeof(int))};
        double flops =
            (double)shape.B * h.NH * h.T * h.T * h.HS;  // of one matmul over the causal half
        measure(text("attention, head size %d, T %d", h.HS, h.T), 0, 2 * flops, [&] {
            gpu::flash_attention_sm80_forward(out, lse, qkv, shape, nullptr);
        });
        measure(text("attention backward, head size %d, T %d", h.HS, h.T), 0, 5 * flops, [&] {
            gpu::flash_attention_sm80_backward(dqkv, flash, dout, out, lse, qkv, shape, nullptr);
        });
        if (!device_is_hopper() || !gpu::hopper_head_size(h.HS) || is_watched) continue;  // unknown there
        measure(text("attention of sm_90a, head size %d, T %d", h.HS, h.T), 0, 2 * flops, [&] {
            gpu::flash_attention_hopper_forward(out, lse, qkv, shape, nullptr);
        });
        measure(text("attention backward of sm_90a, head size %d, T %d", h.HS, h.T), 0, 5 * flops, [&] {
            gpu::flash_attention_hopper_backward(dqkv, flash, dout, out, lse, qkv, shape, nullptr);
        });
    }
    std::vector<int> some(N);
    for (int i = 0; i < N; i++) some[i] = (int)(hash_of(i) % V);
    std::vector<int> rows_of(N), starts(N + 1);
    sort_tokens(rows_of.data(), starts.data(), some.data(), N, V);
    int* tokens = ints(some);
    const int *sorted_rows = ints(rows_of), *run_starts = ints(starts);
    floatX *wte = xs((long)Vp * C), *wpe = xs((long)T * C), *logits = xs((long)N * Vp);
    real *dwte = rs((long)Vp * C), *dwpe = rs((long)T * C), *losses = rs(N), *most = rs(N), *sums = rs(2 * N);
    measure("embedding", 2 * A, 0, [&] { gpu::embedding_forward(o, tokens, wte, 0, Vp, N, C, nullptr); });
    measure("positions", 2 * A, 0, [&] { gpu::position_forward(o, wpe, nullptr, 0, N, T, C, nullptr); });
    measure("embedding backward", A + 2 * r * (double)n, 0,
            [&] { gpu::embedding_backward(dwte, tokens, sorted_rows, run_starts, o, 0, Vp, N, C, nullptr); });
    measure("positions backward", A, 0, [&] { gpu::position_backward(dwpe, o, 0, N, T, C, true, nullptr); });
    measure("cross entropy", 2 * x * (double)N * Vp, 0, [&] {
        gpu::cross_entropy(losses, nullptr, logits, most, sums, tokens, real(1e-4), true, N, {V, Vp, 0},
                           nullptr);
    });
    if (sizeof(floatX) == 2) {
        uint8_t *q = (uint8_t*)room(wide), *q_t = (uint8_t*)room(wide);
        Fp8Scratch f = {(uint8_t*)room(wide),
                        (uint8_t*)room(wide),
                        (uint8_t*)room(wide),
                        (Fp8Scale*)room(2 * sizeof(Fp8Scale)),
                        (float*)room(fp8_parts * sizeof(float)),
                        {w, (e4m3*)room(4L * C * C), (e4m3*)room(4L * C * C),
                         (Fp8Scale*)room(sizeof(Fp8Scale)), 4L * C * C}};
        double rounded = 4.0 * C * C;
        measure("weights to fp8, once a step", (2 * x + 2) * rounded, 0,
                [&] { fp8::round_weight(w, f, C, 4 * C, nullptr); });
        measure("rounding to fp8, and transposed", (2 * x + 2) * (double)wide, 0, [&] {
            gpu::fp8_round((e5m2*)q, (e5m2*)q_t, f.scales, f.parts, a, N, 4 * C, nullptr);
        });
        if (device_has_fp8())
            measure("up in fp8, rounding of x included", 0, 2.0 * N * 4 * C * C,
                    [&] { fp8::matmul_forward(b, o, w, bias, f, N, C, 4 * C, nullptr); });
    }
    floatX* weights = xs(parameters);
    Low* low_bits = master_is_parameter ? nullptr : (Low*)room(parameters * sizeof(Low));
    real *m = rs(parameters), *v = rs(parameters), *g = rs(parameters);
    std::vector<uint8_t> of(parameters / flag_span, flag_decay | flag_in_norm);
    uint8_t* flags = (uint8_t*)room(of.size());
    auto put = [&](const auto& value) {
        auto* p = (std::decay_t<decltype(value)>*)room(sizeof value);
        copy_to_device(p, &value, sizeof value, nullptr);
        synchronize(nullptr);
        return p;
    };
    copy_to_device(flags, of.data(), of.size(), nullptr);
    synchronize(nullptr);
    HyperParameters* hyper = put(HyperParameters{real(1e-4), real(0.9), real(0.95), real(1e-8), real(0.1),
                                                 real(0.1), real(0.05), 1});
    Clip* clip = put(Clip{1, 1, 1, 1});
    StateCheck* state_check = put(StateCheck{});
    Slice* slice = put(Slice{0, parameters, 0, 0, square_sum_cut(parameters)});
    auto measure_adamw = [&](const char* name, auto state, size_t moment_bytes) {
        measure(name, (double)parameters * adamw_bytes({}, low_bits ? sizeof(Low) : 0, moment_bytes), 0, [=] {
            gpu::adamw(state, g, flags, hyper, clip, state_check, parameters, nullptr);
        });
    };
    constexpr bool halves = !master_is_parameter;
    bf16 *short_m = (bf16*)m, *short_v = (bf16*)v;
    measure_adamw("AdamW", AdamWState<real, halves>{weights, low_bits, m, v}, sizeof(real));
    measure_adamw("AdamW, moments of bf16", AdamWState<bf16, halves>{weights, low_bits, short_m, short_v},
                  sizeof(bf16));
    double* square = (double*)room(8 * (square_sum_parts + 1));
    measure("gradient norm", (double)parameters * r, 0,
            [&] { gpu::square_sums(square, square + 1, g, flags, slice, 1, nullptr); });
    for (void* p : buffers) device_free(p);
}

// one JSON line per kernel: GB/s, also relative to a device copy, or TFLOP/s
void bench_kernels() {
    int repeats = host_is_device ? 1 : 20;
    double copy_rate = 0;
    run_every_kernel([&](const std::string& name, double least, double flops, auto run) {
        run();
        synchronize(nullptr);
        double best = INFINITY;
        for (int i = 0; i < 3; i++) {
            double start = seconds();
            for (int k = 0; k < repeats; k++) run();
            synchronize(nullptr);
            best = std::min(best, (seconds() - start) / repeats);
        }
        if (name == "device copy") copy_rate = least / best;
        printf("{\"kernel\": \"%s\", \"microseconds\": %.2f", name.c_str(), best * 1e6);
        if (least > 0)
            printf(", \"gb_per_s\": %.1f, \"of_floor\": %.3f", least / best * 1e-9, least / best / copy_rate);
        if (flops > 0) printf(", \"tflop_per_s\": %.4g", flops / best * 1e-12);
        printf("}\n");
        fflush(stdout);
    });
}
#endif
