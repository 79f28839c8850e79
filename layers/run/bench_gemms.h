// bench_gemms.h   the 15 GEMMs of a step alone: what the autotuner chose, and the alternatives
//   One JSON line for each GEMM. Rates are those under load (bench_kernels.h), in TFLOP/s, times in µs:
//     "chosen", "of"       the choice's place in cuBLASLt's list, and the list's length
//     "tuned_us"           what it took when it was timed for the choice
//     "began", "ended"     when it was measured under load, in seconds since 1970
//     "us", "tflops"       under load;  "first_tflops": in the first 50 ms
//     "separate_us"        the GEMM without its epilogue, plus the kernels that do the epilogue's work; for
//                          down's dx also up's bias gradient, which with the epilogue takes another kernel
//     "best", "best_of", "best_us", "best_workspace"   the fastest of 64 candidates with 256 MiB, under load
//   Then, on a GPU, what three of them lose beside a kernel that holds 16 SMs, as a collective does:
//   "alone_us", "beside_us" and, with cuBLASLt's SM_COUNT_TARGET set to the SMs that are left, "told_us".
#pragma once
#include "../base/timed_event.h"
#include "bench_kernels.h"

#if HAS_KERNELS
// blocks that hold an SM each, with all of its shared memory, for so many nanoseconds
__global__ void hold_sms_kernel([[maybe_unused]] unsigned long long nanoseconds) {
#if defined(__CUDACC__)
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - began < nanoseconds);
#endif
}

class GemmsOfStep {
    static constexpr size_t room = 256 << 20;
    static constexpr int asked = 64, held_sms = 16;
    double load;  // seconds of a main measurement; the others take fractions of it
    BenchBuffers buffers;
    void* workspace;

    template <class T>
    T* values(long n) {
        return buffers.filled<T>(n, [](size_t i) { return real(uniform(3, purpose("bench"), i) - 0.5); });
    }

    template <class Out>
    cublasStatus_t multiply(const Gemm<Out>& g, const gpu::MatmulDescriptor& d,
                            const cublasLtMatmulAlgo_t& algo) {
        return cublasLtMatmul(gpu::Cublas::get().handle, d.gemm, &g.alpha, g.b, d.A, g.a, d.B, &g.beta, g.out,
                              d.C, g.out, d.C, &algo, workspace, room, nullptr);
    }

    // the fastest candidate: all in bursts of 10 ms, then the best four for longer. -1: none works
    template <class Out>
    std::pair<int, double> fastest(const Gemm<Out>& g, const gpu::MatmulDescriptor& d,
                                   const gpu::Candidates& all) {
        std::vector<std::pair<double, int>> order;
        for (int i = 0; i < all.count; i++) {
            auto run = [&] { return multiply(g, d, all.at[i].algo); };
            if (run() != CUBLAS_STATUS_SUCCESS) continue;
            order.push_back({sustained(load / 300, run), i});
        }
        std::sort(order.begin(), order.end());
        std::pair<int, double> best = {-1, INFINITY};
        for (size_t k = 0; k < std::min(order.size(), (size_t)4); k++) {
            int i = order[k].second;
            double took = sustained(load / 30, [&] { multiply(g, d, all.at[i].algo); });
            if (took < best.second) best = {i, took};
        }
        return best;
    }

public:
    explicit GemmsOfStep(double load) : load(load) { workspace = buffers.room(room); }
    GemmsOfStep(const GemmsOfStep&) = delete;

    // plain: without the epilogue, whose work `rest` does (nullptr: there is none)
    template <class Out, class Rest>
    void measure(const char* name, const Gemm<Out>& given, const Gemm<Out>& plain, bool has_epilogue,
                 Rest rest) {
        Gemm<Out> g = with_leading_dimensions(given);
        double flops = 2.0 * g.m * g.n * g.k * 1e-12, first = 0;
        gpu::MatmulDescriptor d(g);
        gpu::Candidates usual = gpu::candidates_of(d);
        printf("{\"gemm\": \"%s\", \"m\": %d, \"n\": %d, \"k\": %d, \"epilogue\": %s", name, g.m, g.n, g.k,
               has_epilogue ? "true" : "false");
        if (usual.count) {
            gpu::gemm(g, nullptr);  // makes the choice
            long began = time(nullptr);
            double took = sustained(load, [&] { gpu::gemm(g, nullptr); }, &first);
            Choice chosen = autotuner.measured[gpu::choice_key(g, d, usual)];
            printf(", \"chosen\": %d, \"of\": %d, \"tuned_us\": %.1f, \"us\": %.1f, \"tflops\": %.1f, "
                   "\"first_tflops\": %.1f, \"began\": %ld, \"ended\": %ld", chosen.number, usual.count,
                   chosen.microseconds, took * 1e6, flops / took, flops / first, began,
                   (long)time(nullptr));
        }
        if (has_epilogue) {
            gpu::gemm(plain, nullptr);
            double took = sustained(load / 6, [&] {
                gpu::gemm(plain, nullptr);
                rest();
            });
            printf(", \"separate_us\": %.1f", took * 1e6);
        }
        gpu::Candidates all = gpu::candidates_of(d, asked, room);
        auto [best, took] = fastest(g, d, all);
        if (best >= 0)
            printf(", \"best\": %d, \"best_of\": %d, \"best_us\": %.1f, \"best_workspace\": %zu", best,
                   all.count, took * 1e6, all.at[best].workspaceSize);
        printf("}\n");
        fflush(stdout);
    }

    template <class Out>
    void measure(const char* name, const Gemm<Out>& g) { measure(name, g, g, false, [] {}); }

#if defined(__CUDACC__)
    // beside a kernel that holds some SMs; told: SM_COUNT_TARGET is what is left
    template <class Out>
    void measure_beside(const char* name, const Gemm<Out>& given) {
        Gemm<Out> g = with_leading_dimensions(given);
        Stream other = make_stream(true);
        size_t shared = largest_shared();
        allow_shared(hold_sms_kernel, shared);
        double took[3];
        for (int way : {0, 1, 2}) {  // alone, beside, told
            gpu::MatmulDescriptor d(g);
            int32_t target = multiprocessors() - held_sms;
            if (way == 2)
                gpu::check_cublas(cublasLtMatmulDescSetAttribute(d.gemm, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                                                 &target, sizeof target), "SM_COUNT_TARGET");
            gpu::Candidates all = gpu::candidates_of(d, 8, room);
            auto run = [&] { multiply(g, d, all.at[0].algo); };
            double about = sustained(load / 15, run);
            int times = std::max(4, (int)(load / 15 / about));
            auto held = (unsigned long long)(4e9 * times * about);  // longer than the GEMMs could take
            if (way) LAUNCH(hold_sms_kernel, held_sms, 32, shared, other, held);
            TimedEvent begin, end;
            begin.record(nullptr);
            for (int i = 0; i < times; i++) run();
            end.record(nullptr);
            synchronize(nullptr);
            took[way] = end.since(begin) / times;
            synchronize(other);
        }
        destroy_stream(other);
        printf("{\"gemm\": \"%s\", \"alone_us\": %.1f, \"beside_us\": %.1f, \"told_us\": %.1f}\n", name,
               took[0] * 1e6, took[1] * 1e6, took[2] * 1e6);
        fflush(stdout);
    }
#else
    template <class Out>
    void measure_beside(const char*, const Gemm<Out>&) {}
#endif

    // N rows, C channels, Vp columns of logits; each GEMM as a step runs it
    void all(int N, int C, int Vp) {
        TimingChoices here;
        long wide = std::max(4L * C, (long)Vp);
        floatX *x = values<floatX>(N * 4L * C), *up = values<floatX>(N * 4L * C);
        floatX* y = values<floatX>(N * wide);
        floatX *w = values<floatX>(C * wide), *bias = values<floatX>(wide);
        real *dw = values<real>(C * wide), *sums = values<real>(4 * C + column_sum_scratch(4 * C));

        struct { const char* name; int in, out; bool has_bias; } layers[] = {
            {"qkv", C, 3 * C, true}, {"out", C, C, false}, {"up", C, 4 * C, true}, {"down", 4 * C, C, false},
            {"logits", C, Vp, false}};
        for (auto& l : layers) {
            std::string name = l.name;
            bool is_up = name == "up", is_down = name == "down";
            Gemm<floatX> forward = forward_gemm(y, x, w, N, l.in, l.out), fused = forward;
            if (l.has_bias) fused.bias = bias;
            if (is_up) fused.gelu_aux_out = up;
            measure((name + ", forward").c_str(), fused, forward, l.has_bias, [&] {
                LAUNCH(gpu::add_bias_kernel, N, 128, 0, nullptr, y, bias, l.out);
                if (is_up) GeluForward{up, y, N, l.out}.gpu(nullptr);
            });

            Gemm<floatX> input = input_gemm(x, y, w, N, l.in, l.out), of_gelu = input;
            if (is_down) of_gelu.gelu_aux_in = up;
            measure((name + ", dx").c_str(), of_gelu, input, is_down, [&] {
                gpu::gelu_backward(x, sums, up, sums + l.in, N, l.in, false, nullptr);
            });

            Gemm<real> weight = weight_gemm(dw, y, x, N, l.in, l.out, false);
            measure((name + ", dw").c_str(), weight, weight, false, [] {});
        }
        measure_beside("qkv, forward", forward_gemm(y, x, w, N, C, 3 * C));
        measure_beside("up, dx", input_gemm(x, y, w, N, C, 4 * C));
        measure_beside("up, dw", weight_gemm(dw, y, x, N, C, 4 * C, false));
    }
};

// of a model's step (124M by default); --micro-batch and other options of train_gpt may follow
void bench_gemms(const std::vector<std::string>& words) {
    Options o = options_of(words);
    if (!o.has("model")) o.model = "124M";
    ModelShape shape = model_shape(o, 0);
    int B = o.micro_batch ? o.micro_batch : host_is_device ? 1 : 64;
    double load = host_is_device ? 0 : 2;
    GemmsOfStep(load).all(B * shape.T, shape.C, shape.Vp);
}
#endif
