// bench_kernels.h   benchmarks of each kernel alone: GB/s against a device copy, or TFLOP/s
#pragma once
#include "bench.h"
#include "../fast/packed_attention.cuh"
#include "../test_kernels.h"

#if HAS_KERNELS
// device memory that lives as long as this
class BenchBuffers {
    std::vector<void*> buffers;

public:
    BenchBuffers() = default;
    BenchBuffers(const BenchBuffers&) = delete;
    ~BenchBuffers() {
        for (void* p : buffers) device_free(p);
    }

    void* room(size_t bytes) {
        buffers.push_back(device_malloc(bytes, "bench"));
        set_zero(buffers.back(), bytes, nullptr);
        return buffers.back();
    }

    // random values: on zeros a GPU draws less power and would measure too fast
    template <class T, class Value>
    T* filled(long count, Value value) {
        T* p = (T*)room((size_t)count * sizeof(T));
        std::vector<T> some((size_t)std::min(count, 1L << 20));
        for (size_t i = 0; i < some.size(); i++) some[i] = T(value(i));
        copy_to_device(p, some.data(), some.size() * sizeof *p, nullptr);
        for (long done = (long)some.size(); done < count; done *= 2)
            copy_on_device(p + done, p, (size_t)std::min(done, count - done) * sizeof *p, nullptr);
        synchronize(nullptr);
        return p;
    }
};

// Calls measure(name, bytes that must be moved, matmul FLOPs, call) for every kernel. Sizes: on a GPU, those
// of a step of the 124M model with 64 sequences of 1024 tokens; emulated, small ones; under SANITIZE=thread,
// 124M's channels with fewer rows.
template <class Measure>
struct KernelBench {
    Measure measure;
    static constexpr bool small = host_is_device;
    int B = !small ? 64 : is_watched ? 2 : 1, T = !small ? 1024 : is_watched ? 128 : 64, N = B * T;
    int C = small && !is_watched ? 128 : 768, V = !small ? 50257 : is_watched ? 5000 : 300;
    int Vp = (V + 127) / 128 * 128;
    long parameters = !small ? 124000000 : is_watched ? 1004800 : 20096;
    long n = (long)N * C, wide = 4 * n;
    double x = sizeof(floatX), r = sizeof(real), A = x * (double)n;  // bytes of a value, and of (N, C)
    BenchBuffers buffers;
    floatX *a, *b, *c, *w, *bias, *o;
    NormStats stats;
    real *dw, *db, *scratch;

    explicit KernelBench(Measure measure) : measure(measure) {
        for (floatX** rows : {&a, &b, &c}) *rows = xs(wide);
        w = xs(4L * C * C);
        bias = xs(4 * C);
        o = xs(n);
        stats = {rs(N), rs(N)};
        dw = rs(4L * C * C);
        db = rs(4 * C);
        scratch = rs(std::max(ln_scratch(C), column_sum_scratch(4 * C)));
    }
    KernelBench(const KernelBench&) = delete;

    void all() {
        TimingChoices here;  // use the algorithms that training would choose
        gemms();
        rows();
        attention({B, T, C / 64, 64});
        int longer = small ? 64 : 2048;
        attention({std::max(1, N / longer), longer, small ? 1 : 16, 128});
        embedding_and_loss();
        if (sizeof(floatX) == 2) eight_bits();
        optimizer();
    }

private:
    // ---- buffers -----------------------------------------------------------------------------------------

    void* room(size_t bytes) { return buffers.room(bytes); }
    floatX* xs(long count) {  // in [-1, 1)
        return buffers.filled<floatX>(
            count, [](size_t i) { return (real)(2 * uniform(1, purpose("bench"), i) - 1); });
    }

    real* rs(long count) {  // in [0, 1): non-negative, like v and rstd
        return buffers.filled<real>(count, [](size_t i) { return (real)uniform(2, purpose("bench"), i); });
    }

    template <class T>
    T* put(const T* values, size_t count) {
        T* p = (T*)room(count * sizeof(T));
        copy_to_device(p, values, count * sizeof(T), nullptr);
        synchronize(nullptr);
        return p;
    }

    template <class T>
    T* put(const std::vector<T>& values) { return put(values.data(), values.size()); }

    template <class T>
    T* put(const T& value) { return put(&value, 1); }

    // ---- kernels -----------------------------------------------------------------------------------------

    void gemms() {
        struct { const char* name; int m, n, k; bool adds = false; } all[] = {
            {"GEMM, square", small ? 128 : 8192, small ? 128 : 8192, small ? 128 : 8192},
            {"GEMM qkv", N, 3 * C, C},
            {"GEMM out", N, C, C},
            {"GEMM up", N, 4 * C, C},
            {"GEMM down", N, C, 4 * C},
            {"GEMM out, on the residual", N, C, C, true},
            {"GEMM down, on the residual", N, C, 4 * C, true}};
        long largest = 1;
        for (auto& p : all) largest = std::max({largest, (long)p.m * p.n, (long)p.m * p.k, (long)p.n * p.k});
        floatX *out = xs(largest), *left = xs(largest), *right = xs(largest);
        for (auto& p : all)
            measure(p.name, 0, 2.0 * p.m * p.n * p.k, [&] {
                LinearForward{out, left, right, p.adds ? bias : nullptr, p.m, p.k, p.n,
                              p.adds ? o : nullptr}.gpu(nullptr);
            });
    }

    // one value in, one out, and sums over rows and columns
    void rows() {
        // after the GEMMs, when the device has warmed up
        measure("device copy", 2 * x * (double)wide, 0,
                [&] { copy_on_device(a, b, wide * sizeof(floatX), nullptr); });
        measure("weight gradient of up", 0, 2.0 * N * 4 * C * C, [&] {
            gpu::gemm(weight_gemm(dw, a, o, N, C, 4 * C, true), nullptr);
        });
        measure("layer norm", 2 * A, 0,
                [&] { LayerNormForward{o, stats, a, w, bias, N, C}.gpu(nullptr); });
        measure("residual and layer norm", 4 * A, 0, [&] {
            LayerNormForward{o, stats, nullptr, w, bias, N, C, b, a, c, bias}.gpu(nullptr);
        });
        measure("layer norm backward", 4 * A, 0, [&] {
            LayerNormBackward{o, dw, db, a, b, w, stats, scratch, N, C, true}.gpu(nullptr);
        });
        measure("residual", 3 * A, 0, [&] { ResidualForward{o, a, b, bias, N, C}.gpu(nullptr); });
        measure("gelu", 8 * A, 0, [&] { GeluForward{b, a, N, 4 * C}.gpu(nullptr); });
        measure("gelu backward, with bias", 12 * A, 0,
                [&] { gpu::gelu_backward(b, db, a, scratch, N, 4 * C, true, nullptr); });
        measure("bias gradient of up", 4 * A, 0,
                [&] { gpu::column_sum(db, a, scratch, N, 4 * C, true, nullptr); });
    }

    void attention(const AttentionShape& shape) {
        if (sizeof(floatX) != 2 || !has_flash_kernels(shape.HS)) return;
        long rows = (long)shape.B * shape.T;
        floatX *qkv = xs(rows * shape.ld_qkv()), *dqkv = xs(rows * shape.ld_qkv());
        floatX *out = xs(rows * shape.ld_o()), *dout = xs(rows * shape.ld_o());
        real* lse = rs(rows * shape.NH);
        FlashScratch flash = {rs(flash_query_terms(shape.B, shape.NH, shape.T)),
                              rs(flash_dq(shape.B, shape.NH, shape.T, shape.HS)),
                              (int*)room(flash_turns(shape.B, shape.NH, shape.T) * sizeof(int)),
                              rs(flash_dqkv_sums(shape))};

        // FLOPs of one matmul over the causal half: forward has two, backward five
        double flops = (double)shape.B * shape.NH * shape.T * shape.T * shape.HS;
        std::string size = text("head size %d, T %d", shape.HS, shape.T);
        measure("attention, " + size, 0, 2 * flops, [&] {
            FlashForward{out, lse, qkv, shape}.compute_with(false, nullptr);
        });
        measure("attention backward, " + size, 0, 5 * flops, [&] {
            FlashBackward{dqkv, flash, dout, out, lse, qkv, shape}.compute_with(false, nullptr);
        });

        std::vector<Tile> list;  // of as many segments as sequences
        for (int own = 0; own < rows; own += shape.T)
            for (int t = 0; t < shape.T; t += segment_rows)
                list.push_back({own + t, std::min(segment_rows, shape.T - t), own + t, own, 0, 0});
        const Tile* tiles = put(list);
        measure("attention of packed batches, " + size, 0, 2 * flops, [&] {
            AttentionShape all = {1, (int)rows, shape.NH, shape.HS};
            PackedAttention{out, qkv, tiles, (int)list.size(), all}.gpu(nullptr);
        });
        if (!device_is_hopper() || !gpu::has_hopper_kernels(shape.HS) || is_watched) return;  // unknown there
        measure("attention of sm_90a, " + size, 0, 2 * flops, [&] {
            FlashForward{out, lse, qkv, shape}.compute_with(true, nullptr);
        });
        measure("attention backward of sm_90a, " + size, 0, 5 * flops, [&] {
            FlashBackward{dqkv, flash, dout, out, lse, qkv, shape}.compute_with(true, nullptr);
        });
    }

    void embedding_and_loss() {
        std::vector<int> some(N), sorted(N), starts(N + 1);
        for (int i = 0; i < N; i++) some[i] = (int)(hash_of(i) % V);
        sort_tokens(sorted.data(), starts.data(), some.data(), N, V);
        const int *tokens = put(some), *sorted_rows = put(sorted), *run_starts = put(starts);

        floatX *wte = xs((long)Vp * C), *wpe = xs((long)T * C);
        real *dwte = rs((long)Vp * C), *dwpe = rs((long)T * C);
        measure("embedding", 2 * A, 0,
                [&] { EmbeddingForward{o, tokens, wte, N, C, {V, Vp, 0}, wpe, nullptr, T}.gpu(nullptr); });
        measure("embedding backward", A + 2 * r * (double)n, 0, [&] {
            EmbeddingBackward{dwte, tokens, sorted_rows, run_starts, o, N, C, {V, Vp, 0}}.gpu(nullptr);
        });
        measure("positions backward", A, 0,
                [&] { PositionBackward{dwpe, o, 0, N, T, C, true}.gpu(nullptr); });

        floatX* logits = xs((long)N * Vp);
        real *losses = rs(N), *largest = rs(N), *sums = rs(2 * N);
        measure("cross entropy", 2 * x * (double)N * Vp, 0, [&] {
            CrossEntropy{losses, logits, largest, sums, tokens, real(1e-4), N, {V, Vp, 0}}.gpu(nullptr);
        });
    }

    void eight_bits() {
        auto bytes = [&](long count) { return (uint8_t*)room(count); };
        auto scales = [&](long count) { return (Fp8Scale*)room(count * sizeof(Fp8Scale)); };
        uint8_t *q = bytes(wide), *q_t = bytes(wide);
        long weights = 4L * C * C;
        Fp8Scratch f = {bytes(wide), bytes(wide), bytes(wide), scales(1), scales(1),
                        (float*)room(most_fp8_parts(4 * C) * sizeof(float)),
                        {w, (e4m3*)room(weights), (e4m3*)room(weights), scales(1), weights}};
        Fp8Input kept = {(e4m3*)room(wide), scales(1)};
        measure("weights to fp8, once a step", (2 * x + 2) * (double)weights, 0,
                [&] { fp8::round_weight(w, f, C, 4 * C, nullptr); });
        measure("rounding to fp8, and transposed", (2 * x + 2) * (double)wide, 0, [&] {
            fp8::round((e5m2*)q, (e5m2*)q_t, f.dy_scale, a, f, N, 4 * C, nullptr);
        });
        measure("GELU and rounding", (2 * x + 2) * (double)wide, 0,
                [&] { fp8::round_input<true>(a, kept, f, N, 4 * C, nullptr); });
        measure("gelu backward, with bias and scale", 12 * A, 0, [&] {
            gpu::fp8_gelu_backward(b, db, a, scratch, N, 4 * C, true,
                                   {f.d_up_scale, f.parts, e5m2::largest}, nullptr);
        });
        if (device_has_fp8())
            measure("up in fp8, rounding of x included", 0, 2.0 * N * 4 * C * C, [&] {
                fp8::round_input(o, kept, f, N, C, nullptr);
                fp8::matmul_forward(b, w, bias, kept, f, N, C, 4 * C, nullptr);
            });
    }

    void optimizer() {
        floatX* weights = xs(parameters);
        uint16_t* low_bits = master_is_parameter ? nullptr : (uint16_t*)room(parameters * sizeof(uint16_t));
        real *m = rs(parameters), *v = rs(parameters), *g = rs(parameters);
        uint8_t* flags = put(std::vector<uint8_t>(parameters / flag_span, flag_decay | flag_in_norm));
        HyperParameters* hyper = put(HyperParameters{real(1e-4), real(0.9), real(0.95), real(1e-8),
                                                     real(0.1), real(0.1), real(0.05), 1});
        UpdateDecision* decision = put(UpdateDecision{1, 1, 1});
        StateCheck* state_check = put(StateCheck{});

        auto measure_adamw = [&](const char* name, auto state) {
            AdamW<decltype(state)> update = {state, g, flags, hyper, decision, state_check, parameters};
            measure(name, tensor_bytes(update.tensors()), 0, [=] { update.gpu(nullptr); });
        };
        constexpr bool halves = !master_is_parameter;
        bf16 *short_m = (bf16*)m, *short_v = (bf16*)v;
        measure_adamw("AdamW", AdamWState<real, halves>{weights, low_bits, m, v});
        measure_adamw("AdamW, moments of bf16",
                      AdamWState<bf16, halves>{weights, low_bits, short_m, short_v});

        Slice* slice = put(Slice{0, parameters, 0, 0, square_sum_part_count(parameters)});
        double* square = (double*)room(8 * (square_sum_parts + 1));
        measure("gradient norm", (double)parameters * r, 0,
                [&] { SquareSums{square, square + 1, g, flags, slice, 1}.gpu(nullptr); });
    }
};

// Seconds per call when repeated for at least `least` seconds: a GPU needs about one second to settle at the
// clock rate that its power limit allows under this load. `first`, if given: the same, in the first 50 ms
template <class Run>
double sustained(double least, Run run, double* first = nullptr) {
    run();
    synchronize(nullptr);
    double start = seconds(), took = 0;
    long burst = 1, calls = 0;
    do {
        for (long k = 0; k < burst; k++) run();
        synchronize(nullptr);
        calls += burst;
        took = seconds() - start;
        if (first && (took < 0.05 || calls == burst)) *first = took / (double)calls;
        burst = std::max(1L, (long)(0.01 * (double)calls / took));  // the host waits every 10 ms
    } while (took < least);
    return took / (double)calls;
}

// one JSON line per kernel, each repeated for a second: GB/s, also relative to a device copy, or TFLOP/s
void bench_kernels() {
    double copy_rate = 0;
    auto measure = [&](const std::string& name, double least, double flops, auto run) {
        double best = sustained(host_is_device ? 0 : 1, run);
        if (name == "device copy") copy_rate = least / best;
        printf("{\"kernel\": \"%s\", \"microseconds\": %.2f", name.c_str(), best * 1e6);
        if (least > 0)
            printf(", \"gb_per_s\": %.1f, \"of_floor\": %.3f", least / best * 1e-9, least / best / copy_rate);
        if (flops > 0) printf(", \"tflop_per_s\": %.4g", flops / best * 1e-12);
        printf("}\n");
        fflush(stdout);
    };
    KernelBench(measure).all();
}
#endif
