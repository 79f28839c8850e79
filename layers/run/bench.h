// bench.h   benchmarks of a training step: against its GEMMs alone, by operation, against evaluation
#pragma once
#include "../inference/test_scoring.h"
#include "../plan/profile.h"
#include "metrics.h"
#include "setup.h"
#include "test_options.h"

// the GEMMs of a model's blocks and logits, forward and backward, run alone
class GemmBench {
    const ModelShape& shape;
    int N;
    floatX *a, *b, *c;
    real* sums;

    static floatX* upload(const std::vector<floatX>& x) {
        void* p = device_malloc(x.size() * sizeof(floatX), "bench");
        copy_to_device(p, x.data(), x.size() * sizeof(floatX), nullptr);
        synchronize(nullptr);  // before the caller frees `x`
        return (floatX*)p;
    }

public:
    GemmBench(const ModelShape& shape, int N) : shape(shape), N(N) {
        long C = shape.C, largest = std::max((long)shape.Vp, 4 * C);
        std::vector<floatX> values = random_values<floatX>(std::max(N, (int)C) * largest, 1);
        a = upload(values);
        b = upload(values);
        c = upload(std::vector<floatX>(values.size()));
        sums = (real*)device_malloc(largest * C * sizeof(real), "bench");
        set_zero(sums, largest * C * sizeof(real), nullptr);
    }

    GemmBench(const GemmBench&) = delete;
    ~GemmBench() {
        for (void* p : {(void*)a, (void*)b, (void*)c, (void*)sums}) device_free(p);
    }

    // FLOP/s
    double measure() {
        long C = shape.C;
        double flops = 0;

        synchronize(nullptr);
        double start = seconds();
        for (auto [in, out, times] : {std::tuple{C, 3 * C, shape.L}, {C, C, shape.L}, {C, 4 * C, shape.L},
                                      {4 * C, C, shape.L}, {C, (long)shape.Vp, 1}})
            for (int i = 0; i < times; i++) {
                compute(LinearForward{c, a, b, nullptr, N, (int)in, (int)out}, nullptr);
                compute(LinearBackward{c, sums, a, b, b, N, (int)in, (int)out, true}, nullptr);
                flops += 6.0 * N * (double)in * (double)out;
            }
        synchronize(nullptr);
        return flops / (seconds() - start);
    }
};

double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    size_t n = x.size();
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

double timed_step(Trial& trial, const std::vector<int>& samples) {
    synchronize(nullptr);
    double start = seconds();
    trial.train(samples, 1e-4);
    synchronize(nullptr);
    return seconds() - start;
}

// MB of the activation and scratch arenas, or of all others and the optimizer
double megabytes(const Trial& trial, bool activations) {
    double sum = activations ? 0 : (double)trial.optimizer.memory.bytes;
    for (auto& each : trial.model.memory) {
        bool is_one = !strcmp(each.name, "activations") || !strcmp(each.name, "scratch");
        if (is_one == activations) sum += (double)each.bytes;
    }
    return sum * 1e-6;
}

// Times a step of the 124M model, its GEMMs alone, and a step with materialised attention, interleaved so
// that all see the machine in the same state; ratios are medians over the rounds.
void bench_step() {
    Options o = options_of({"--model", "124M", "--sequence", "256"});
    ModelShape shape = model_shape(o, 0);
    constexpr int B = 4, rounds = 6;
    int N = B * shape.T;
    bool flash = uses_flash(o, {});
    GemmBench gemms(shape, N);
    Trial trial(o, shape, B, flash), materialised(o, shape, B);
    std::vector<int> samples = some_samples(B, shape.T, shape.V);
    double flops = flops_per_token(shape) * N;

    timed_step(trial, samples);
    timed_step(materialised, samples);
    gemms.measure();
    std::vector<double> took, rate, share, other;
    Profile profile({INFINITY, INFINITY});

    for (int i = 0; i < rounds; i++) {
        {
            Listening now(profile);
            took.push_back(timed_step(trial, samples));
        }
        profile.collect(nullptr, took.back());
        rate.push_back(gemms.measure());
        share.push_back(flops / took.back() / rate.back());
        other.push_back(timed_step(materialised, samples) / took.back());
    }

    double step = median(took), total = 0;
    for (double s : took) total += s;
    printf(
        "GPT-2 124M, B %d, T %d, %s on %s, %s attention: %.0f tokens/s (median of %d steps; fastest %.0f)\n",
        B, shape.T, PRECISION_NAME, device_name().c_str(), flash ? "flash" : "materialised", N / step, rounds,
        N / *std::min_element(took.begin(), took.end()));
    printf("%.1f GFLOP/s, %.1f %% of the same GEMMs run alone, interleaved (%.1f GFLOP/s)\n",
           flops / step * 1e-9, 100 * median(share), median(rate) * 1e-9);

    for (auto& [name, time] : profile.by_name())
        printf("  %-26s %8.1f ms %6.1f %%\n", name.c_str(), 1e3 * time, 100 * time * rounds / total);
    printf("memory: %.2f bytes a parameter, and %.1f MB of activations and scratch\n",
           1e6 * megabytes(trial, false) / (double)trial.model.table.count, megabytes(trial, true));
    if (flash)
        printf("materialised attention, interleaved: %.2f x the step, %.1f MB of activations and scratch\n",
               median(other), megabytes(materialised, true));
}

// profiles a step of a model (124M by default) on random tokens
void print_profile(const std::vector<std::string>& words) {
    Options o = options_of(words);
    if (!o.has("model")) o.model = "124M";
    if (!o.sequence && host_is_device) o.sequence = 256;
    ModelShape shape = model_shape(o, 0);
    int B = o.micro_batch ? o.micro_batch : host_is_device ? 4 : 16;
    Profile profile(measure_ceilings());
    Trial trial(o, shape, B, uses_flash(o, {}));
    std::vector<int> samples = some_samples(B, shape.T, shape.V);

    for (int i = 0; i < 7; i++) {
        std::optional<TimingChoices> choosing;  // as a run does before its first step
        if (i == 0) choosing.emplace();
        std::optional<Listening> now;
        if (i >= 2) now.emplace(profile);
        double took = timed_step(trial, samples);
        now.reset();
        if (i >= 2) profile.collect(nullptr, took);
    }
    printf("%s, B %d, T %d, %s on %s\n%s", o.model.c_str(), B, shape.T, PRECISION_NAME, device_name().c_str(),
           profile.print().c_str());
}

// evaluation against training on the same model, and shared contexts against separate ones, interleaved
void bench_evaluate() {
    Options o = options_of({"--model", "124M", "--sequence", "256"});
    ModelShape shape = model_shape(o, 0);
    int B = 4;
    Trial trial(o, shape, B, uses_flash(o, {}));
    Model& m = trial.model;
    std::vector<int> samples = some_samples(B, shape.T, shape.V);

    auto train = [&] { return timed_step(trial, samples); };
    auto evaluate = [&](const EvalFile& file, const ScoreBatches& plan) {
        double start = seconds();
        score_all(trial, file, plan);
        return seconds() - start;
    };

    // tokens of a context and of each of its four continuations: about as in the public task files
    struct {
        const char* name;
        int context, continuation;
    } kinds[] = {{"HellaSwag", 70, 22}, {"RACE-h", 230, 9}};

    for (auto& kind : kinds) {
        std::vector<std::vector<std::pair<std::vector<int>, std::vector<int>>>> documents(16);
        for (size_t d = 0; d < documents.size(); d++) {
            auto some = [&](int n, uint64_t salt) {
                std::vector<int> tokens(n);
                for (int i = 0; i < n; i++) tokens[i] = (int)(hash_of(salt * 4096 + i) % shape.V);
                return tokens;
            };
            for (int c = 0; c < 4; c++)
                documents[d].push_back({some(kind.context, 9 * d), some(kind.continuation, 9 * d + 1 + c)});
        }

        EvalFile file = requests_of(documents, shape.V);
        ScoreBatches shared(file, shape.T, m.max_rows(), m.max_rows(), 1),
            alone(file, shape.T, m.max_rows(), m.max_rows(), 1, false);

        double step = INFINITY, together = INFINITY, apart = INFINITY;
        for (int i = 0; i < 4; i++) {
            step = std::min(step, train());
            together = std::min(together, evaluate(file, shared));
            apart = std::min(apart, evaluate(file, alone));
        }

        double trained = m.max_rows() / step, scored = (double)alone.rows / apart,
               of_shared = (double)shared.rows / together;
        printf(
            "%-10s 4 choices of %d tokens after %d: training %.0f tokens/s; evaluation %.0f, %.2f x; with "
            "contexts shared %.0f, %.2f x\n",
            kind.name, kind.continuation, kind.context, trained, scored, scored / trained, of_shared,
            of_shared / trained);
        printf(
            "%-10s documents with shared contexts %.2f x as fast as each choice alone (%.2f s and %.2f s)\n",
            "", apart / together, together, apart);
    }
}
