// test_gpt.cu   the checks, in reading order; run from the repository's root
//   ./test_gpt            all chapters          ./test_gpt gelu program    only these
//   ./test_gpt bench      speed of a training step beside the BLAS's own
//   ./test_gpt profile    where its time goes, against the floor; options of train_gpt may follow
//   ./test_gpt bench-evaluate      evaluation beside training, shared contexts beside each alone
//   ./test_gpt bench-kernels       each kernel beside what the memory, or the products, give
//   mpirun -n 4 ./test_gpt ranks      what ranks say to each other
//   A CPU build proves ref (in fp64 against finite differences and PyTorch); a build with kernels, emulated
//   or on a GPU, proves gpu against ref. The last line is `N passed, N failed`.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <filesystem>
#include <thread>
#include "data/sha256.h"
#include "data/tasks.h"
#include "layers/base/mma.h"
#include "layers/flash_attention.cuh"
#include "layers/model/generate.h"
#include "layers/model/replicas.h"
#include "layers/model/task_report.h"
#include "plan/advice.h"
#include "plan/hosts.h"
#include "plan/trace.h"
namespace fs = std::filesystem;

// ---- what a check is -------------------------------------------------------------------------------------

int passed = 0, failed = 0;
const char* chapter = "";
std::string programs;  // the folder of ./train_gpt and the tools
std::string scratch_folder;

void check(bool good, const std::string& what) {
    (good ? passed : failed)++;
    if (!good) printf("FAILED  %s: %s\n", chapter, what.c_str());
}

// the call throws an Error whose message contains `part`
template <class Call>
void refuses(const std::string& part, Call call) {
    try {
        call();
    } catch (const std::exception& e) {
        return check(std::string(e.what()).find(part) != std::string::npos,
                     "says \"" + std::string(e.what()) + "\", wants \"" + part + "\"");
    }
    check(false, "accepted what should say \"" + part + "\"");
}

uint32_t hash_of(uint64_t i) { return philox(11, 22, i).x[0]; }

template <class T>
std::vector<T> random_values(size_t n, uint64_t what, double deviation = 1) {
    std::vector<T> x(n);
    normals(x.data(), 42, what, 0, (long)n, deviation);
    return x;
}

template <class T>
std::vector<double> wide(const std::vector<T>& x) {
    std::vector<double> out(x.size());
    for (size_t i = 0; i < x.size(); i++) out[i] = (double)real(x[i]);
    return out;
}
inline std::vector<double> wide(const std::vector<double>& x) { return x; }

// |got - want| <= tolerance * (|want| + root mean square of want), element by element; NaN never passes
template <class A, class B>
void close(const std::string& what, const std::vector<A>& got_, const std::vector<B>& want_,
           double tolerance) {
    std::vector<double> got = wide(got_), want = wide(want_);
    double square = 0, worst = 0;
    for (double w : want) square += w * w;
    double rms = std::sqrt(square / std::max((size_t)1, want.size()));
    size_t at = 0;
    bool good = got.size() == want.size();
    for (size_t i = 0; good && i < got.size(); i++) {
        double error = std::abs(got[i] - want[i]) / (std::abs(want[i]) + rms + 1e-300);
        if (!(error <= worst)) {
            worst = error;
            at = i;
        }
    }
    if (!(worst <= tolerance)) good = false;
    check(good, good ? what : text("%s: element %zu of %zu is %.9g, wants %.9g: off by %.2e, at most %.2e",
                                   what.c_str(), at, got.size(), at < got.size() ? got[at] : 0,
                                   at < want.size() ? want[at] : 0, worst, tolerance));
}

// rounding of a result: bf16 keeps 8 bits, so 2^-8 for the store and as much again for rounded intermediates
// and inputs that were rounded on the way (scores, probabilities); fp32 sums of up to 1000 terms in two
// different orders differ by about sqrt(1000) * 2^-24 = 2e-6, and a cancellation in layer norm costs another
// factor 5
const double rounding = sizeof(floatX) == 2 ? 2 * std::ldexp(1, -7) : sizeof(floatX) == 4 ? 1e-5 : 1e-12;
const double sums_tolerance = sizeof(real) == 4 ? 2e-5 : 1e-12;  // of results kept in real

// ---- rng, options, JSON ----------------------------------------------------------------------------------

void test_rng() {
    // known answers of Random123's philox4x32-10
    auto is = [](Philox p, std::array<uint32_t, 4> want) { check(std::equal(p.x, p.x + 4, want.begin()),
                                                                 "philox known answer"); };
    is(philox(0, 0, 0), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    is(philox(~0ull, ~0ull, ~0ull), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    is(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
    size_t n = 100000;
    auto x = random_values<double>(n, 7);
    double mean = 0, square = 0;
    for (double v : x) {
        mean += v / n;
        square += v * v / n;
    }
    check(std::abs(mean) < 5 / std::sqrt(n) && std::abs(square - 1) < 5 * std::sqrt(2.0 / n),
          "normals have mean 0, variance 1");
    std::vector<double> part(1001);
    normals(part.data(), 42, 7, 4321, 1001, 1);
    check(std::equal(part.begin(), part.end(), x.begin() + 4321),
          "normals are a function of the element's index");
    double u = uniform(1, 2, 3);
    check(u >= 0 && u < 1 && u == uniform(1, 2, 3) && u != uniform(1, 2, 4),
          "uniform is a function of its index");
}

Options options_of(std::vector<std::string> words) {
    std::vector<char*> argv = {(char*)"train_gpt"};
    for (auto& w : words) argv.push_back(w.data());
    return parse_options((int)argv.size(), argv.data());
}

void write_file(const std::string& path, std::string_view contents) {
    FileWriter file(path);
    file.write(contents);
    file.finish();
}

void test_options() {
    Options o = options_of({"--train", "a", "b", "--until-tokens", "270e9", "--learning-rate", "5e-5"});
    check(o.train.size() == 2 && o.until_tokens == 270000000000 && o.learning_rate == 5e-5, "values");
    refuses("did you mean --hidden", [] { options_of({"--hiden", "3"}); });
    refuses("did you mean 124M", [] { find_preset("123M"); });
    refuses("wants one", [] { options_of({"--layers"}); });
    refuses("want a whole number", [] { options_of({"--layers", "2.5"}); });
    refuses("want a whole number from 1", [] { options_of({"--layers", "0"}); });
    refuses("too large", [] { options_of({"--layers", "3e9"}); });
    refuses("options begin with --", [] { options_of({"layers"}); });
    refuses("choose --heads 6 or 8", [] { Options p = options_of({"--heads", "7", "--hidden", "96"});
                                         model_shape(p, 0); });
    std::string path = scratch_folder + "/run.conf";
    write_file(path, "# a run\nlayers 7   # few\nhidden 64\n\ntrain x y\n");
    o = options_of({"--config", path, "--layers", "9"});
    check(o.layers == 9 && o.hidden == 64 && o.train.size() == 2,
          "the command line wins over the config file");
    write_file(path, "layers 7\nhiddn 64\n");
    refuses("line 2: unknown option --hiddn", [&] { options_of({"--config", path}); });
    refuses("cannot be read", [] { options_of({"--config", "/nowhere"}); });
    refuses("is not a regular file", [] { options_of({"--config", "/tmp"}); });
    refuses("has an empty value", [] { options_of({"--resume", ""}); });
    refuses("run.conf line 1: --layers x: want a whole",
            [&] {
                write_file(path, "layers x\n");
                options_of({"--config", path});
            });
    refuses("line 2: layers stands here a second", [&] {
        write_file(path, "layers 1\nlayers 2\n");
        options_of({"--config", path});
    });
    refuses("too large, at most 10000", [] { Options p = options_of({"--layers", "20000000"});
                                            model_shape(p, 0); });
    struct { const char* name; long count; } counts[] =
        {{"124M", 124475904}, {"1558M", 1557686400}, {"530B", 529600819200}};
    for (auto& c : counts) {
        Options p = options_of({"--model", c.name});
        ModelShape m = model_shape(p, 0);
        long L = m.L, C = m.C;
        long formula = L * (12 * C * C + 13 * C) + (long)m.Vp * C + (long)m.T * C + 2 * C;
        long count = parameter_table(m).count;
        check(count == formula && count == c.count,
              text("%s has %ld parameters, wants %ld", c.name, count, c.count));
    }
}

void test_json() {
    Json j = Json::parse(R"({"a": [1, -2.5e3, true, null], "s": "x\n\u00e9\ud83d\ude00\ud800!"})", "j");
    check(j.at("a", "j").items[1].number("j") == -2500 &&
          j.at("s", "j").text == "x\n\xc3\xa9\xf0\x9f\x98\x80\xef\xbf\xbd!", "values");
    for (const char* bad : {"", "{", "[1,]", "{\"a\" 1}", "\"\\x\"", "\"abc", "01", "1.", "tru", "[1] 2",
                            "\"\x01\"", "-"}) refuses("not JSON at offset", [&] { Json::parse(bad, "j"); });
    refuses("at most 64 levels", [] { Json::parse(std::string(100000, '['), "j"); });
    check(Json::parse(json_quote("a\"\\\n\x02"), "j").text == "a\"\\\n\x02", "quoting and back");
}

// ---- the emulated device ---------------------------------------------------------------------------------

#if defined(DEVICE_EMULATED)
__global__ void missing_barrier_kernel(int* out) {
    if (threadIdx.x != 5) __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void missing_lane_kernel(int* out) {
    if (threadIdx.x == 3) return;
    out[threadIdx.x] = __shfl_xor_sync(all_lanes, 1, 1);
}
__global__ void foreign_mask_kernel(int* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 0); }
__global__ void poison_kernel(float* out) {
    SHARED(float, x, 4);
    out[threadIdx.x] = x[threadIdx.x];
}
__global__ void order_kernel(int* out, int* next) { out[atomicAdd(next, 1)] = threadIdx.x; }
__global__ void stamp_kernel(int* out) { *out = 7; }
// neighbour's value through shared memory: right only with the barrier, in any order of threads
__global__ void neighbour_kernel(int* out, bool barrier) {
    SHARED(int, x, 64);
    x[threadIdx.x] = threadIdx.x;
    if (barrier) __syncthreads();
    out[threadIdx.x] = x[(threadIdx.x + 1) % 64];
}
__global__ void warp_kernel(int* out) {
    int lane = threadIdx.x % 32;
    unsigned odd = __ballot_sync(all_lanes, lane & 1);
    int half = lane < 16 ? __shfl_xor_sync(0x0000ffffu, lane, 3) : __shfl_down_sync(0xffff0000u, lane, 2, 16);
    __syncwarp();
    out[threadIdx.x] = odd == 0xaaaaaaaau && __any_sync(all_lanes, lane == 7) &&
        !__all_sync(all_lanes, lane == 7) && half == (lane < 16 ? lane ^ 3 : lane % 16 + 2 < 16 ? lane + 2
                                                      : lane);
}

void test_emulated() {
    std::vector<int> out(1024, 0), next(1, 0);
    int *o = out.data(), *n = next.data();
    auto refused = [](const std::string& part, auto launch) {
        refuses(part, [&] {
            launch();
            synchronize(nullptr);
        });
    };
    refused("waits for ever: 1 of 64 threads never reach its __syncthreads()",
            [&] { LAUNCH(missing_barrier_kernel, 1, 64, 0, nullptr, o); });
    refused("missing_lane_kernel, block (0,0,0), thread (0,0,0) waits",
            [&] { LAUNCH(missing_lane_kernel, 1, 32, 0, nullptr, o); });
    refused("not in its own mask", [&] { LAUNCH(foreign_mask_kernel, 1, 32, 0, nullptr, o); });
    refused("a block has 1 to 1024 threads", [&] { LAUNCH(order_kernel, 1, 1025, 0, nullptr, o, n); });
    std::vector<float> poison(4, 0);
    float* p = poison.data();
    LAUNCH(poison_kernel, 1, 4, 0, nullptr, p);
    synchronize(nullptr);
    check(std::isnan(poison[0]) && std::isnan(poison[3]), "shared memory starts as NaN");
    std::vector<int> first;
    int wrong = 0;
    for (unsigned seed = 1; seed <= 4; seed++) {
        emulated::seed = seed;
        next[0] = 0;
        LAUNCH(order_kernel, 1, 64, 0, nullptr, o, n);
        synchronize(nullptr);
        std::vector<int> order(out.begin(), out.begin() + 64);
        check(order != first, "another seed, another order of threads");
        first = order;
        std::sort(order.begin(), order.end());
        check(order[0] == 0 && order[63] == 63 && std::unique(order.begin(), order.end()) == order.end(),
              "each thread ran once");
        LAUNCH(neighbour_kernel, 1, 64, 0, nullptr, o, true);
        synchronize(nullptr);
        for (int i = 0; i < 64; i++) wrong += out[i] != (i + 1) % 64;
        LAUNCH(warp_kernel, 3, 96, 0, nullptr, o);
        synchronize(nullptr);
        for (int i = 0; i < 96; i++) wrong += out[i] != 1;
    }
    check(wrong == 0, text("barriers and warp votes: %d wrong values", wrong));
    LAUNCH(neighbour_kernel, 1, 64, 0, nullptr, o, false);
    synchronize(nullptr);
    int stale = 0;
    for (int i = 0; i < 64; i++) stale += out[i] == -1;
    check(stale > 0, "without its barrier a kernel reads poison");
    // two streams: the second reads what the first writes, with an event between them and without
    int early[2] = {0, 0};
    for (bool with_event : {true, false}) {
        cudaStream_t a, b;
        cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
        Event written, read;
        for (unsigned round = 0; round < 100; round++) {
            emulated::seed = round + 1;
            int *from = &out[2 * round], *to = from + 1;
            *from = -1;
            LAUNCH(stamp_kernel, 1, 1, 0, a, from);
            written.record(a);
            if (with_event) written.hold(b);
            copy_on_device(to, from, sizeof(int), b);
            read.record(b);
            read.hold(a);
            set_zero(from, sizeof(int), a);
            synchronize(a);
            synchronize(b);
            early[with_event] += *to < 0;
            check(*from == 0, "a stream keeps its order");
        }
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
    }
    check(early[true] == 0, "an event orders two streams");
    check(early[false] > 10, text("without it the second is too early: %d of 100 times", early[false]));
    emulated::seed = 1;
}
#endif

// ---- ref against finite differences ----------------------------------------------------------------------

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
                        const std::vector<int>& targets, real dloss, bool want_gradient, int N, int V,
                            int Vp) {
    int Vp_r = Vp / ranks;
    std::vector<real> largest(N, -INFINITY), part(N), sums(2 * N, 0), part_sums(2 * N), ignored(N, 0);
    std::vector<std::vector<floatX>> own(ranks, std::vector<floatX>(N * Vp_r));
    auto share = [&](int r) { return Vocabularies{std::clamp(V - r * Vp_r, 0, Vp_r), Vp_r, r * Vp_r}; };
    for (int i = 0; i < N * Vp; i++) own[i % Vp / Vp_r][i / Vp * Vp_r + i % Vp_r] = logits[i];
    for (int r = 0; r < ranks; r++) {
        ref::cross_entropy_max(part.data(), own[r].data(), N, share(r), nullptr);
        for (int n = 0; n < N; n++) largest[n] = std::max(largest[n], part[n]);
    }
    for (int r = 0; r < ranks; r++) {
        ref::cross_entropy_sum(part_sums.data(), largest.data(), own[r].data(), targets.data(), N, share(r),
                               nullptr);
        for (int n = 0; n < 2 * N; n++) sums[n] += part_sums[n];
    }
    for (int r = 0; r < ranks; r++)
        ref::cross_entropy_finish(r ? ignored.data() : losses.data(), nullptr, own[r].data(), largest.data(),
                                  sums.data(), targets.data(), dloss, want_gradient, N, share(r), nullptr);
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
            ref::layernorm_forward(y.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), N, C,
                                   nullptr);
            return dot(y, r);
        };
        forward();
        ref::layernorm_backward(dx.data(), dw.data(), db.data(), r.data(), x.data(), w.data(), mean.data(),
                                rstd.data(), nullptr, N, C, false, nullptr);
        differences("layernorm dx", x, wide(dx), forward);
        differences("layernorm dw", w, wide(dw), forward);
        differences("layernorm db", b, wide(db), forward);
    }
    {
        X x = random_values<floatX>(50, 5, 2), y(50), r = random_values<floatX>(50, 6), d = r;
        auto forward = [&] {
            ref::gelu_forward(y.data(), x.data(), 50, nullptr);
            return dot(y, r);
        };
        R db(1);
        ref::gelu_backward(d.data(), db.data(), x.data(), nullptr, 50, 1, false, nullptr);
        differences("gelu dx", x, wide(d), forward);
    }
    {
        int N = 4, C = 5, OC = 3;
        X x = random_values<floatX>(N * C, 7), w = random_values<floatX>(OC * C, 8),
            b = random_values<floatX>(OC, 9);
        X y(N * OC), r = random_values<floatX>(N * OC, 10), dx(N * C);
        R dw(OC * C, 0), db(OC, 0);
        auto forward = [&] {
            ref::matmul_forward(y.data(), x.data(), w.data(), b.data(), N, C, OC,
                                                        nullptr);
            return dot(y, r);
        };
        ref::matmul_backward(dx.data(), dw.data(), db.data(), r.data(), x.data(), w.data(), nullptr, N, C, OC,
                             false, nullptr);
        differences("matmul dx", x, wide(dx), forward);
        differences("matmul dw", w, wide(dw), forward);
        differences("matmul db", b, wide(db), forward);
    }
    for (int T : {1, 5, 67}) {  // 67: more than one tile of rows
        AttentionShape a = {2, T, 2, 3};
        long n = a.B * T * a.row(), m = a.B * T * a.out(), s = (long)a.B * a.NH * T * T;
        X qkv = random_values<floatX>(n, 11), o(m), p(s), r = random_values<floatX>(m, 12), d(n), dp(s);
        auto forward = [&] {
            ref::attention_forward(o.data(), p.data(), qkv.data(), a, nullptr);
            return dot(o, r);
        };
        forward();
        ref::attention_backward(d.data(), dp.data(), r.data(), p.data(), qkv.data(), a, nullptr);
        differences(text("attention dqkv, T %d", T), qkv, wide(d), forward);
    }
    for (int T : {1, 5, 67}) {  // the same by tiles, and not a value of T x T
        AttentionShape a = {2, T, 2, 3};
        long n = a.B * T * a.row(), m = a.B * T * a.out(), rows = (long)a.B * a.NH * T;
        X qkv = random_values<floatX>(n, 11), o(m), whole(m), p(rows * T), r = random_values<floatX>(m, 12),
          d(n);
        R lse(rows);
        auto forward = [&] {
            ref::flash_attention_forward(o.data(), lse.data(), qkv.data(), a, nullptr);
            return dot(o, r);
        };
        forward();
        ref::attention_forward(whole.data(), p.data(), qkv.data(), a, nullptr);
        double most = 0;
        for (long i = 0; i < m; i++) most = std::max(most, std::abs((double)o[i] - (double)whole[i]));
        check(most < 1e-14, text("flash attention is attention, T %d: %g", T, most));
        ref::flash_attention_backward(d.data(), {}, r.data(), o.data(), lse.data(), qkv.data(), a, nullptr);
        differences(text("flash attention dqkv, T %d", T), qkv, wide(d), forward);
    }
    for (int ranks : {1, 2}) {  // of the vocabulary
        int N = 3, V = 5, Vp = 8;
        X logits = random_values<floatX>(N * Vp, 13), work;
        std::vector<int> targets = {4, 0, 2};
        R losses(N);
        auto forward = [&] {
            work = logits;
            std::fill(losses.begin(), losses.end(), 0);
            cross_entropy_over(ranks, losses, work, targets, 0.25, true, N, V, Vp);
            return 0.25 * (losses[0] + losses[1] + losses[2]);
        };
        forward();
        differences(text("cross entropy dlogits over %d ranks", ranks), logits, wide(X(work)), forward);
    }
    {
        int N = 6, T = 3, C = 4, V = 5;
        X wte = random_values<floatX>(V * C, 14), wpe = random_values<floatX>(T * C, 15), x(N * C);
        X r = random_values<floatX>(N * C, 16);
        std::vector<int> tokens = {1, 1, 4, 0, 1, 4};
        R dwte(V * C, 0), dwpe(T * C, 0);
        auto forward = [&] {
            ref::embedding_forward(x.data(), tokens.data(), wte.data(), 0, V, N, C, nullptr);
            ref::position_forward(x.data(), wpe.data(), nullptr, 0, N, T, C, nullptr);
            return dot(x, r);
        };
        std::vector<int> rows(N), starts(N + 1), counts(V + 1, 0);
        sort_tokens(rows.data(), starts.data(), tokens.data(), N, counts);
        check(rows == std::vector{3, 0, 1, 4, 2, 5} && starts == std::vector{0, 1, 4, 6, 6, 6, 6} &&
                  counts == std::vector(V + 1, 0), "tokens sorted");
        ref::embedding_backward(dwte.data(), tokens.data(), {rows.data(), starts.data()}, r.data(), 0, V, N,
                                C, nullptr);
        ref::position_backward(dwpe.data(), r.data(), 0, N, T, C, false, nullptr);
        differences("embedding dwte", wte, wide(dwte), forward);
        differences("embedding dwpe", wpe, wide(dwpe), forward);
    }
}

// ---- gpu against ref -------------------------------------------------------------------------------------

#if HAS_KERNELS
// a host vector and its copy on the device
template <class T>
struct Both {
    std::vector<T> host;
    T* device;
    explicit Both(std::vector<T> values) : host(std::move(values)) {
        device = (T*)device_malloc(std::max((size_t)1, host.size() * sizeof(T)), "a test");
        copy_to_device(device, host.data(), host.size() * sizeof(T), nullptr);
        synchronize(nullptr);
    }
    explicit Both(size_t n) : Both(std::vector<T>(n)) {  // an output: poisoned on the device
        std::vector<unsigned char> poison(n * sizeof(T), 0xFF);
        copy_to_device(device, poison.data(), poison.size(), nullptr);
        synchronize(nullptr);
    }
    Both(const Both&) = delete;
    ~Both() { device_free(device); }
    T* ref() { return host.data(); }
    std::vector<T> back() const {
        std::vector<T> out(host.size());
        copy_to_host(out.data(), device, out.size() * sizeof(T), nullptr);
        return out;
    }
    void agree(const std::string& what, double tolerance) const { close(what, back(), host, tolerance); }
};
using X = Both<floatX>;
using R = Both<real>;

void kernels_layernorm() {
    // rows that are no whole vectors; of one warp, whole and not; of four; of 32
    for (auto [N, C] : {std::pair{1, 1},
                        {3, 31},
                        {5, 33},
                        {9, 100},
                        {130, 257},
                        {64, 768},
                        {3, 8},
                        {1100, 40},
                        {5, 1024},
                        {530, 1600},
                        {2, 4096},
                        {3, 5120},
                        {140, 16384},
                        {1, 20480}}) {
        X x(random_values<floatX>(N * C, 1)), w(random_values<floatX>(C, 2)), b(random_values<floatX>(C, 3)),
            y(N * C);
        X dy(random_values<floatX>(N * C, 4)), dx(random_values<floatX>(N * C, 5));
        R mean(N), rstd(N), dw(random_values<real>(C, 6)), db(random_values<real>(C, 7)),
            scratch(layernorm_scratch(C));
        std::string size = text(" %d x %d", N, C);
        ref::layernorm_forward(y.ref(), mean.ref(), rstd.ref(), x.ref(), w.ref(), b.ref(), N, C, nullptr);
        gpu::layernorm_forward(y.device, mean.device, rstd.device, x.device, w.device, b.device, N, C,
                               nullptr);
        y.agree("layernorm y" + size, rounding);
        mean.agree("layernorm mean" + size, sums_tolerance);
        rstd.agree("layernorm rstd" + size, sums_tolerance);
        X made(N * C), f(random_values<floatX>(N * C, 8)), bias(random_values<floatX>(C, 9));
        ref::residual_layernorm_forward(made.ref(), y.ref(), mean.ref(), rstd.ref(), x.ref(), f.ref(),
                                        bias.ref(), w.ref(), b.ref(), N, C, nullptr);
        gpu::residual_layernorm_forward(made.device, y.device, mean.device, rstd.device, x.device, f.device,
                                        bias.device, w.device, b.device, N, C, nullptr);
        made.agree("layernorm's residual" + size, rounding);
        y.agree("layernorm of it" + size, 2 * rounding);
        for (bool add : {false, true}) {
            ref::layernorm_backward(dx.ref(), dw.ref(), db.ref(), dy.ref(), x.ref(), w.ref(), mean.ref(),
                                    rstd.ref(), nullptr, N, C, add, nullptr);
            gpu::layernorm_backward(dx.device, dw.device, db.device, dy.device, x.device, w.device,
                                    mean.device, rstd.device, scratch.device, N, C, add, nullptr);
            std::string what = (add ? ", added to" : ", set") + size;
            dx.agree("layernorm dx" + what, (1 + add) * rounding);
            dw.agree("layernorm dw" + what, sums_tolerance);
            db.agree("layernorm db" + what, sums_tolerance);
        }
    }
}

void kernels_gelu() {
    for (auto [N, C] : {std::pair{1, 1}, {1, 255}, {17, 256}, {127, 40}, {1000, 33}}) {
        long n = (long)N * C;
        X x(random_values<floatX>(n, 1, 2)), y(n), d(random_values<floatX>(n, 2));
        R db(random_values<real>(C, 3)), scratch(column_sum_scratch(C));
        std::string size = text(" %d x %d", N, C);
        ref::gelu_forward(y.ref(), x.ref(), n, nullptr);
        gpu::gelu_forward(y.device, x.device, n, nullptr);
        y.agree("gelu y" + size, rounding);
        for (bool add : {false, true}) {
            ref::gelu_backward(d.ref(), db.ref(), x.ref(), nullptr, N, C, add, nullptr);
            gpu::gelu_backward(d.device, db.device, x.device, scratch.device, N, C, add, nullptr);
            d.agree("gelu dx" + size, (1 + add) * rounding);
            // its terms are rounded like dx, each anew
            db.agree("gelu db" + size, sizeof(floatX) == 2 ? rounding : sums_tolerance);
        }
    }
}

void kernels_matmul() {
    for (auto [N, C, OC] : {std::tuple{1, 1, 1}, {3, 5, 7}, {17, 33, 9}, {64, 40, 72}, {100, 96, 128}}) {
        X x(random_values<floatX>(N * C, 1)), w(random_values<floatX>(OC * C, 2)),
            b(random_values<floatX>(OC, 3)), y(N * OC), plain(N * OC);
        X dy(random_values<floatX>(N * OC, 4)), dx(N * C);
        R dw(random_values<real>(OC * C, 5)), db(random_values<real>(OC, 6)), scratch(column_sum_scratch(OC));
        std::string size = text(" %d x %d x %d", N, C, OC);
        ref::matmul_forward(y.ref(), x.ref(), w.ref(), b.ref(), N, C, OC, nullptr);
        gpu::matmul_forward(y.device, x.device, w.device, b.device, N, C, OC, nullptr);
        y.agree("matmul y" + size, rounding);
        ref::matmul_forward(plain.ref(), x.ref(), w.ref(), nullptr, N, C, OC, nullptr);
        gpu::matmul_forward(plain.device, x.device, w.device, nullptr, N, C, OC, nullptr);
        plain.agree("matmul y without bias" + size, rounding);
        for (int way = 0; way < 4; way++) {
            bool add = way % 2;
            // apart, fused
            tuning.known["bias gradient " PRECISION_NAME + size] = {way / 2, 0};
            tuning.round++;
            ref::matmul_backward(dx.ref(), dw.ref(), db.ref(), dy.ref(), x.ref(), w.ref(), nullptr, N, C, OC,
                                 add, nullptr);
            gpu::matmul_backward(dx.device, dw.device, db.device, dy.device, x.device, w.device,
                                 scratch.device, N, C, OC, add, nullptr);
            std::string what = (way / 2 ? ", fused" : "") + std::string(add ? ", added to" : ", set") + size;
            dx.agree("matmul dx" + what, rounding);
            dw.agree("matmul dw" + what, sums_tolerance);
            db.agree("matmul db" + what, sums_tolerance);
        }
    }
    // GELU behind or before a layer, in a pass of its own and in the product's epilogue
    for (auto [N, C, OC, fused] : {std::tuple{3, 5, 7, false}, {17, 40, 72, false}, {17, 40, 72, true},
                                   {100, 96, 128, true}}) {
        std::string size = text(PRECISION_NAME " %d x %d x %d", N, C, OC),
                    what = (fused ? ", fused " : " ") + size;
        tuning.known["GELU " + size] = tuning.known["GELU backward " + size] = {fused, 0};
        tuning.round++;
        X x(random_values<floatX>(N * C, 1)), w(random_values<floatX>(OC * C, 2)),
            b(random_values<floatX>(OC, 3)), y(N * OC), up(N * OC);
        ref::matmul_gelu_forward(y.ref(), up.ref(), x.ref(), w.ref(), b.ref(), N, C, OC, nullptr);
        gpu::matmul_gelu_forward(y.device, up.device, x.device, w.device, b.device, N, C, OC, nullptr);
        up.agree("up" + what, rounding);
        y.agree("gelu of up" + what, 2 * rounding);
        X dy(random_values<floatX>(N * OC, 4)), before(random_values<floatX>(N * C, 5, 2)), dup(N * C);
        R dw(random_values<real>(OC * C, 5)), db(random_values<real>(C, 6)), scratch(column_sum_scratch(C));
        ref::matmul_gelu_backward(dup.ref(), db.ref(), dw.ref(), dy.ref(), x.ref(), before.ref(), w.ref(),
                                  nullptr, N, C, OC, true, nullptr);
        gpu::matmul_gelu_backward(dup.device, db.device, dw.device, dy.device, x.device, before.device,
                                  w.device, scratch.device, N, C, OC, true, nullptr);
        dup.agree("gradient of up" + what, 2 * rounding);
        dw.agree("dw behind gelu" + what, sums_tolerance);
        // the sums take up terms that are rounded anew
        db.agree("bias gradient of up" + what, sizeof(floatX) == 2 ? rounding : sums_tolerance);
    }
}

// numbers of 8 bits: every code, and what lies between two; then tensors, and the layers made of them
template <class T8>
void kernels_fp8_numbers(const std::string& name) {
    std::vector<float> values;
    bool same = true;
    for (int code = 0; code < 256; code++) {
        float value = (float)T8{(uint8_t)code};
        if (std::isfinite(value)) same = same && T8::of(value).bits == code;
        if (std::isfinite(value) && code < 128) values.push_back(value);
    }
    check(same && values.back() == T8::largest, name + ": every number is itself");
    bool nearest = true;
    for (size_t i = 0; i + 1 < values.size(); i++) {
        float a = values[i], b = values[i + 1], middle = (a + b) / 2, even = i % 2 ? b : a;
        nearest = nearest && (float)T8::of(std::nextafter(middle, a)) == a && (float)T8::of(middle) == even &&
            (float)T8::of(-std::nextafter(middle, b)) == -b;
    }
    check(nearest, name + ": to the nearest, and to even");
    check((float)T8::of(INFINITY) == T8::largest && (float)T8::of(-1e9) == -T8::largest &&
              std::isnan((float)T8::of(NAN)), name + ": the largest, and what is no number");
}
void kernels_fp8() {
    kernels_fp8_numbers<e4m3>("e4m3");
    kernels_fp8_numbers<e5m2>("e5m2");
    check(fp8_scale(448, 448).scale == 1 && fp8_scale(449, 448).scale == 0.5 &&
              fp8_scale(3, 448).scale == 128 &&
              fp8_scale(1e-44f, 448).scale == fp8_scale(1e-30f, 448).scale && fp8_scale(0, 448).scale == 1 &&
              fp8_scale(INFINITY, 448).scale == 1,
          "scales are powers of two");
    for (auto [N, C] : {std::pair{16, 16}, {48, 80}, {1008, 144}, {64, 256}}) {
        X x(random_values<floatX>(N * C, 1, 1e-3));
        Both<uint8_t> q(N * C), q_t(N * C);
        Both<Fp8Scratch::Scale> scale(1);
        Both<float> parts(fp8_parts);
        ref::fp8_round((e5m2*)q.ref(), (e5m2*)q_t.ref(), scale.ref(), nullptr, x.ref(), N, C, nullptr);
        gpu::fp8_round((e5m2*)q.device, (e5m2*)q_t.device, scale.device, parts.device, x.device, N, C,
                       nullptr);
        std::string size = text(" %d x %d", N, C);
        check(q.back() == q.host && q_t.back() == q_t.host, "rounded to e5m2, and transposed" + size);
        check(scale.back()[0].scale == scale.host[0].scale, "scale" + size);
        gpu::fp8_round((e4m3*)nullptr, (e4m3*)q_t.device, scale.device, parts.device, x.device, N, C,
                       nullptr);
        ref::fp8_round((e4m3*)nullptr, (e4m3*)q_t.ref(), scale.ref(), nullptr, x.ref(), N, C, nullptr);
        check(q_t.back() == q_t.host, "rounded to e4m3, transposed alone" + size);
    }
    int N = 48, C = 80, OC = 112;
    X x(random_values<floatX>(N * C, 1)), w(random_values<floatX>(OC * C, 2, 0.02)),
        b(random_values<floatX>(OC, 3)), dy(random_values<floatX>(N * OC, 4, 0.3));
    X y(N * OC), dx(N * C), want_y(N * OC), want_dx(N * C);
    R dw(random_values<real>(OC * C, 5)), db(random_values<real>(OC, 6)), want_dw(dw.host), want_db(db.host),
        sums(column_sum_scratch(OC));
    Both<uint8_t> rows(N * OC), dys(N * OC), dys_t(N * OC), weights(OC * C);
    Both<Fp8Scratch::Scale> scales(3);
    Both<float> parts(fp8_parts);
    Fp8Scratch f = {rows.device, dys.device, dys_t.device, weights.device, scales.device, parts.device};
    fp8::matmul_forward(y.device, x.device, w.device, b.device, f, N, C, OC, nullptr);
    fp8::matmul_backward(dx.device, dw.device, db.device, dy.device, x.device, w.device, sums.device, f, N, C,
                         OC, true, nullptr);
    ref::matmul_forward(want_y.ref(), x.ref(), w.ref(), b.ref(), N, C, OC, nullptr);
    ref::matmul_backward(want_dx.ref(), want_dw.ref(), want_db.ref(), dy.ref(), x.ref(), w.ref(), nullptr, N,
                         C, OC, true, nullptr);
    // root of the mean square of the difference over that of the values. A rounding is off by up
    // to 2^-4 (e4m3) or 2^-3 (e5m2) of a value, in the mean by 1/sqrt(3) of that, two together by the root of
    // their squares.
    auto off = [](const auto& got, const auto& want) {
        double d = 0, all = 0;
        for (size_t i = 0; i < got.size(); i++) {
            d += std::pow((double)real(got[i]) - (double)real(want[i]), 2);
            all += std::pow((double)real(want[i]), 2);
        }
        return std::sqrt(d / all);
    };
    double forward = std::sqrt(2.0) / 16 / std::sqrt(3.0),
           backward = std::sqrt(1 / 256.0 + 1 / 64.0) / std::sqrt(3.0);
    double y_off = off(y.back(), want_y.host), dx_off = off(dx.back(), want_dx.host),
           dw_off = off(dw.back(), want_dw.host);
    check(y_off < forward && y_off > forward / 16, text("a layer in fp8: y is off by %g", y_off));
    check(dx_off < backward && dx_off > backward / 16, text("a layer in fp8: dx is off by %g", dx_off));
    check(dw_off < backward && dw_off > backward / 16, text("a layer in fp8: dw is off by %g", dw_off));
    db.host = want_db.host;
    db.agree("a layer in fp8: db", sums_tolerance);
}

// choices that were timed are kept, and those that stand first in the file win
void kernels_tuning() {
    std::string path = scratch_folder + "/choices";
    fs::create_directories(scratch_folder);
    fs::remove(path);
    Tuning a, b, other;
    a.open(path, "GPU 1");
    b.open(path, "GPU 1");
    auto run = [](int) { return true; };
    check(a.choose("x", 3, 1, nullptr, run) == 1 && a.known.empty(), "what is not timed is as usual");
    a.on = b.on = true;
    int first = a.choose("x = y", 3, 1, nullptr, run);
    check(a.choose("can", 3, 0, nullptr, [](int way) { return way == 2; }) == 2, "only what can is chosen");
    check(a.choose("none", 2, 1, nullptr, [](int) { return false; }) == 1, "nothing can: as usual");
    a.known.erase("none");
    b.known["x = y"] = {first ^ 1, 1};
    b.known["z"] = {4, 1};
    a.save();
    b.save();
    std::vector<std::thread> together;
    std::vector<Tuning> many(8);
    for (int i = 0; i < 8; i++) {
        many[i].open(path, "GPU 1");
        many[i].known["both"] = {i, 1};
        many[i].known[text("of %d", i)] = {i, 1};
        together.emplace_back([&many, i] { many[i].save(); });
    }
    for (auto& t : together) t.join();
    bool agreed = true;
    for (int i = 0; i < 8; i++) {
        many[i].save();
        agreed = agreed && many[i].known.count(text("of %d", 7 - i)) &&
            many[i].known["both"].number == many[0].known["both"].number;
    }
    check(agreed, "eight that save together: all are kept, and the first holds for all");
    check(b.known["x = y"].number == first && b.known["can"].number == 2 && b.known["z"].number == 4,
          "choices of two are joined, the first stays");
    a.open(path, "GPU 1");
    check(a.known.size() == 12 && a.choose("z", 5, 0, nullptr, run) == 4, "choices are read again");
    check(a.choose("z", 4, 0, nullptr, [](int way) { return way == 3; }) == 3,
          "one that is no more is timed anew");
    other.open(path, "GPU 2");
    check(other.known.empty(), "another machine's choices are not used");
    std::string good = std::string(MappedFile(path).view());
    for (std::string bad : {std::string(""), good.substr(0, 10), good + "k = 1", good + "k = -1 2\nl = 1 2\n",
                            good + "k = 1 2 3\nl = 1 2\n", good + " = 1 2\n", good + std::string(1, '\0')}) {
        write_file(path, bad);
        other.open(path, "GPU 1");
        check(other.known.size() == (bad.size() < good.size() ? 0 : 12), "a damaged file of choices");
    }
}

void kernels_residual() {
    for (auto [N, C] : {std::pair{1, 1}, {7, 33}, {40, 128}}) {
        X x(random_values<floatX>(N * C, 1)), f(random_values<floatX>(N * C, 2)),
            b(random_values<floatX>(C, 3)), y(N * C);
        ref::residual_forward(y.ref(), x.ref(), f.ref(), b.ref(), N, C, nullptr);
        gpu::residual_forward(y.device, x.device, f.device, b.device, N, C, nullptr);
        y.agree(text("residual %d x %d", N, C), rounding);
    }
}

void kernels_attention() {
    for (auto [B, T, NH, HS] : {std::tuple{1, 1, 1, 1}, {2, 17, 3, 5}, {1, 33, 2, 64}, {2, 70, 1, 33},
                                {1, 127, 2, 16}}) {
        AttentionShape a = {B, T, NH, HS};
        long n = B * T * a.row(), m = B * T * a.out(), s = (long)B * NH * T * T;
        X qkv(random_values<floatX>(n, 1)), o(m), p(s), dout(random_values<floatX>(m, 2)), dqkv(n), dp(s);
        std::string size = text(" B %d T %d NH %d HS %d", B, T, NH, HS);
        ref::attention_forward(o.ref(), p.ref(), qkv.ref(), a, nullptr);
        gpu::attention_forward(o.device, p.device, qkv.device, a, nullptr);
        o.agree("attention o" + size, 2 * rounding);
        p.agree("attention p" + size, 2 * rounding);
        ref::attention_backward(dqkv.ref(), dp.ref(), dout.ref(), p.ref(), qkv.ref(), a, nullptr);
        gpu::attention_backward(dqkv.device, dp.device, dout.device, p.device, qkv.device, a, nullptr);
        dqkv.agree("attention dqkv" + size, 4 * rounding);
    }
}

// runs of one row and of more than a tile, with and without something before them, anywhere in the cache
void kernels_segment_attention() {
    for (auto [NH, HS] : {std::pair{1, 1}, {3, 5}, {2, 64}, {1, 160}}) {
        Pack pack;
        std::vector<int> none(200, 0);
        pack.add(none.data(), 1, 0, 7, 7);
        pack.add(none.data(), 33, 0, 100, 100);
        pack.add(none.data(), 70, 33, 200, 200, 100, 33);
        pack.add(none.data(), 130, 0, 300, 300);
        pack.add(none.data(), 1, 129, 430, 300);
        pack.add(none.data(), 5, 300, 140, 133, 200, 70);
        AttentionShape a = {1, pack.rows(), NH, HS};
        X cache(random_values<floatX>(500 * a.row(), 1)), o(pack.rows() * a.out()),
            rows(random_values<floatX>(9 * a.row(), 2));
        Both<Tile> tiles(pack.tiles);
        Both<int> places(std::vector<int>{3, 499, 0, 20, 21, 22, 9, 8, 7});
        std::string size = text(" NH %d HS %d", NH, HS);
        ref::place_rows(cache.ref(), rows.ref(), places.ref(), 9, (int)a.row(), nullptr);
        gpu::place_rows(cache.device, rows.device, places.device, 9, (int)a.row(), nullptr);
        cache.agree("rows in the cache" + size, 0);
        ref::segment_attention(o.ref(), cache.ref(), tiles.ref(), (int)pack.tiles.size(), a, nullptr);
        gpu::segment_attention(o.device, cache.device, tiles.device, (int)pack.tiles.size(), a, nullptr);
        o.agree("segment attention" + size, 2 * rounding);
    }
}

// sizes that do not fit the tiles of 64 keys and 32, 64 or 128 queries
void kernels_flash_attention() {
    if (sizeof(floatX) != 2) return;
    // roundings are independent: in the root of the mean square few of them add up to less than 2^-8
    auto alike = [](const std::string& what, const std::vector<floatX>& got,
                    const std::vector<floatX>& want) {
        double difference = 0, square = 0;
        for (size_t i = 0; i < got.size(); i++) {
            double x = real(got[i]) - real(want[i]);
            difference += x * x;
            square += real(want[i]) * real(want[i]);
        }
        double off = std::sqrt(difference / square);
        check(off < std::ldexp(1, -8), text("%s: off by %.2e in the mean", what.c_str(), off));
    };
    struct Size { int B, T, NH, HS; };
    std::vector<Size> sizes = {{1, 1, 1, 64},   {2, 17, 2, 64},  {1, 127, 3, 64},  {1, 200, 1, 64},
                               {2, 65, 2, 80},  {1, 96, 1, 96},  {1, 130, 2, 128}, {1, 64, 1, 128},
                               {2, 70, 1, 160}, {1, 129, 1, 160}};
    // long ones take seconds in emulation: in one order of threads
    static int orders = 0;
    if (host_is_device && orders++ == 0)
        sizes.insert(sizes.end(), {{1, 1000, 1, 64}, {1, 2048, 1, 128}});
    if (!host_is_device) sizes.insert(sizes.end(), {{2, 1000, 3, 64}, {1, 2048, 4, 128}, {1, 2048, 2, 160}});
    for (auto [B, T, NH, HS] : sizes) {
        AttentionShape a = {B, T, NH, HS};
        long n = B * T * a.row(), m = B * T * a.out(), rows = (long)B * NH * T;
        X qkv(random_values<floatX>(n, 1)), o(m), dout(random_values<floatX>(m, 2)), dqkv(n);
        R lse(rows), delta(rows), dq(rows * HS);
        Both<int> turns(flash_turns(B, NH, T));
        std::string size = text(" B %d T %d NH %d HS %d", B, T, NH, HS);
        ref::flash_attention_forward(o.ref(), lse.ref(), qkv.ref(), a, nullptr);
        gpu::flash_attention_forward(o.device, lse.device, qkv.device, a, nullptr);
        // p is rounded before it is divided by its sum here, after it in ref, and o is rounded: 2^-8 each
        o.agree("flash attention o" + size, 2 * rounding);
        lse.agree("flash attention lse" + size, 1e-5);
        X whole(m), p(rows * T);  // and ref says what the materialised one says
        ref::attention_forward(whole.ref(), p.ref(), qkv.ref(), a, nullptr);
        // which also rounds the scores, some of them above 2
        close("flash attention is attention" + size, o.host, whole.host, 4 * rounding);
        alike("flash attention o" + size, o.back(), o.host);
        ref::flash_attention_backward(dqkv.ref(), {}, dout.ref(), o.ref(), lse.ref(), qkv.ref(), a, nullptr);
        FlashScratch scratch = {delta.device, dq.device, turns.device};
        std::vector<floatX> first;
        for (int again = 0; again < 2; again++) {
            gpu::flash_attention_backward(dqkv.device, scratch, dout.device, o.device, lse.device, qkv.device,
                                          a, nullptr);
            // p and ds are rounded, ds after the difference of two sums that end differently: twice 2^-8 each
            dqkv.agree("flash attention dqkv" + size, 4 * rounding);
            std::vector<floatX> back = dqkv.back();
            alike("flash attention dqkv" + size, back, dqkv.host);
            if (again)
                check(!memcmp(back.data(), first.data(), n * sizeof(floatX)), "bit for bit again" + size);
            first = back;
        }
    }
    refuses("wants 64, 80, 96, 128 or 160", [] {
        gpu::flash_attention_forward((floatX*)nullptr, nullptr, (const floatX*)nullptr, {1, 1, 1, 32},
                                     nullptr);
    });
}

void kernels_cross_entropy() {
    for (auto [N, V, Vp, first] : {std::tuple{1, 2, 2, 0}, {3, 11, 16, 0}, {17, 257, 257, 0},
                                   {5, 257, 384, 100}, {4, 1000, 1024, 0}, {2, 50257, 50304, 0},
                                   {2, 60000, 60000, 0}, {3, 0, 8, 8}}) {
        X logits(random_values<floatX>(N * Vp, 1, 3));
        std::vector<int> t(N);
        for (int n = 0; n < N; n++) t[n] = n * 7919 % (first ? 1000 : std::max(V, 1));
        Both<int> targets(t);
        R losses(random_values<real>(N, 2)), hits(N), largest(N), sums(2 * N);
        Vocabularies v = {V, Vp, first};
        std::string size = text(" N %d V %d Vp %d from %d", N, V, Vp, first);
        // ref may sum one after the other: V roundings, of which the square root adds up, and some to spare
        double summed = 4 * std::sqrt(V) * std::numeric_limits<real>::epsilon();
        ref::cross_entropy_max(largest.ref(), logits.ref(), N, v, nullptr);
        gpu::cross_entropy_max(largest.device, logits.device, N, v, nullptr);
        if (V == 0) {  // a rank that holds only padding: -inf, until the others' largest comes
            check(largest.back() == largest.host && std::isinf(largest.host[0]),
                  "no column, no largest logit");
            std::fill(largest.host.begin(), largest.host.end(), real(1));
            copy_to_device(largest.device, largest.ref(), N * sizeof(real), nullptr);
        }
        largest.agree("largest" + size, 0);
        ref::cross_entropy_sum(sums.ref(), largest.ref(), logits.ref(), targets.ref(), N, v, nullptr);
        gpu::cross_entropy_sum(sums.device, largest.device, logits.device, targets.device, N, v, nullptr);
        sums.agree("sums" + size, sums_tolerance + summed);
        if (V == 0) std::fill(sums.host.begin(), sums.host.end(), real(2));
        copy_to_device(sums.device, sums.ref(), 2 * N * sizeof(real), nullptr);
        X whole(logits.host);
        R whole_losses(losses.host), whole_hits(N);
        for (bool want : {false, true}) {
            ref::cross_entropy_finish(losses.ref(), hits.ref(), logits.ref(), largest.ref(), sums.ref(),
                                      targets.ref(), real(0.1), want, N, v, nullptr);
            gpu::cross_entropy_finish(losses.device, hits.device, logits.device, largest.device, sums.device,
                                      targets.device, real(0.1), want, N, v, nullptr);
            losses.agree("losses, added to" + size, sums_tolerance + summed);
            hits.agree("hits" + size, 0);
            logits.agree((want ? "dlogits" : "logits without gradient") + size, want ? rounding + summed : 0);
            if (V == 0 || first) continue;
            gpu::cross_entropy(whole_losses.device, whole_hits.device, whole.device, largest.device,
                               sums.device, targets.device, real(0.1), want, N, v, nullptr);  // all at once
            whole_losses.host = losses.host;
            whole_hits.host = hits.host;
            whole.host = logits.host;
            whole_losses.agree("losses at once" + size, sums_tolerance + summed);
            whole_hits.agree("hits at once" + size, 0);
            whole.agree((want ? "dlogits at once" : "logits kept") + size, want ? rounding + summed : 0);
        }
    }
}

void kernels_embedding() {
    for (auto [N, T, C, V] : {std::tuple{1, 1, 1, 2}, {18, 9, 33, 5}, {150, 50, 600, 11},
                              {260, 130, 16, 300}, {127, 127, 136, 3}, {2048, 1000, 24, 40}}) {
        std::vector<int> t(N);
        for (int n = 0; n < N; n++) t[n] = (n * n + n / 3) % V;
        Both<int> tokens(t), rows_of(N), starts(N + 1);
        std::vector<int> counts(V + 1, 0);
        sort_tokens(rows_of.ref(), starts.ref(), t.data(), N, counts);
        copy_to_device(rows_of.device, rows_of.ref(), N * sizeof(int), nullptr);
        copy_to_device(starts.device, starts.ref(), (N + 1) * sizeof(int), nullptr);
        for (int n = 0; n < 2 * N; n++) {
            t.resize(n + 1);
            t[n] = (n * 5 + 2) % (T + 3);
        }
        Both<int> positions(t);
        X wte(random_values<floatX>(V * C, 1)), wpe(random_values<floatX>((T + 3) * C, 2)), x(N * C);
        X dx(random_values<floatX>(N * C, 3));
        R dwte(random_values<real>(V * C, 4)), dwpe(random_values<real>((T + 3) * C, 5));
        std::string size = text(" N %d T %d C %d V %d", N, T, C, V);
        // whole, and a rank's share
        for (auto [row, rows, offset] : {std::tuple{0, V, 0}, {V / 2, V - V / 2, T / 2}}) {
            ref::embedding_forward(x.ref(), tokens.ref(), wte.ref(), row, rows, N, C, nullptr);
            gpu::embedding_forward(x.device, tokens.device, wte.device, row, rows, N, C, nullptr);
            x.agree("embedding x" + size, 0);
            for (bool listed : {false, true}) {
                ref::position_forward(x.ref(), wpe.ref(), listed ? positions.ref() : nullptr, offset, N, T, C,
                                      nullptr);
                gpu::position_forward(x.device, wpe.device, listed ? positions.device : nullptr, offset, N, T,
                                      C, nullptr);
            }
            x.agree("position x" + size, rounding);
            ref::embedding_backward(dwte.ref(), tokens.ref(), {rows_of.ref(), starts.ref()}, dx.ref(), row,
                                    rows, N, C, nullptr);
            gpu::embedding_backward(dwte.device, tokens.device, {rows_of.device, starts.device}, dx.device,
                                    row, rows, N, C, nullptr);
            ref::position_backward(dwpe.ref(), dx.ref(), offset, N, T, C, offset > 0, nullptr);
            gpu::position_backward(dwpe.device, dx.device, offset, N, T, C, offset > 0, nullptr);
            dwte.agree("embedding dwte" + size, sums_tolerance);
            dwpe.agree("embedding dwpe" + size, sums_tolerance);
        }
    }
}

void kernels_adamw() {
    for (long n : {128L, 384L, 70016L}) {
        std::vector<real> w = random_values<real>(n, 1), v = random_values<real>(n, 2);
        for (auto& value : v) value = value * value;
        X p(n);
        R master(w), m(random_values<real>(n, 3)), moment(v), g(random_values<real>(2 * n, 4));
        std::vector<uint8_t> of(2 * n / trait_span);
        for (size_t i = 0; i < of.size(); i++) of[i] = (uint8_t)(hash_of(i) % 4);
        Both<uint8_t> traits(of);
        AdamW how = {real(1e-2), real(0.9), real(0.95), real(1e-8), real(0.1), real(0.19), real(0.0975)};
        Both<AdamW> rule(std::vector<AdamW>(1, how));
        // two slices, the second one's sum first
        Slice first = {0, n, 0, 2, square_sum_cut(n)}, second = {n, n, n, 0, square_sum_cut(n)};
        Both<Slice> slices(std::vector<Slice>{first, second});
        Both<double> sums(std::vector<double>{0, 3, 0}), parts(2 * square_sum_parts);
        ref::square_sums(sums.ref(), parts.ref(), g.ref(), traits.ref(), slices.ref(), 2, nullptr);
        gpu::square_sums(sums.device, parts.device, g.device, traits.device, slices.device, 2, nullptr);
        std::string size = text(" %ld", n);
        sums.agree("square sums" + size, 1e-12);
        std::vector<double> plain = {0, 3, 0};
        for (long i = 0; i < 2 * n; i++)
            if (of[i / trait_span] & counts) plain[i < n ? 2 : 0] += (double)g.host[i] * g.host[i];
        close("square sums against a plain loop" + size, sums.host, plain, 1e-12);
        double norm = std::sqrt(plain[0] + plain[1] + plain[2]);
        for (double largest : {0.0, 1e9, 0.5}) {
            Both<Clip> clip(1);
            ref::clip_gradients(clip.ref(), sums.ref(), 3, largest, nullptr);
            gpu::clip_gradients(clip.device, sums.device, 3, largest, nullptr);
            double scale = largest == 0.5 ? 0.5 / (norm + 1e-6) : 1;
            for (const Clip& c : {clip.host[0], clip.back()[0]})
                close("clip" + size, std::vector<double>{c.norm, (double)c.scale},
                      std::vector<double>{norm, scale}, sums_tolerance);
            ref::adamw(p.ref(), master.ref(), m.ref(), moment.ref(), g.ref(), traits.ref(), rule.ref(),
                       clip.ref(), n, nullptr);
            gpu::adamw(p.device, master.device, m.device, moment.device, g.device, traits.device, rule.device,
                       clip.device, n, nullptr);
            p.agree("adamw parameters" + size, rounding);
            master.agree("adamw master" + size, sums_tolerance);
            m.agree("adamw m" + size, sums_tolerance);
            moment.agree("adamw v" + size, sums_tolerance);
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
    D.agree("mma and ldmatrix against a plain product", 1e-5);  // 16 exact products, summed in fp32
}

void test_kernels() {
#if defined(DEVICE_EMULATED)
    for (unsigned seed : {1u, 2u, 3u}) {
        emulated::seed = seed;
#endif
        kernels_layernorm();
        kernels_gelu();
        kernels_matmul();
        kernels_residual();
        kernels_attention();
        kernels_flash_attention();
        kernels_segment_attention();
        kernels_cross_entropy();
        kernels_embedding();
        kernels_adamw();
        kernels_mma();
    kernels_fp8();
    kernels_tuning();
#if defined(DEVICE_EMULATED)
    }
    emulated::seed = 1;
#endif
}
#endif

// ---- the model: against PyTorch, and with itself ---------------------------------------------------------

struct Trial {  // a small model with its optimiser
    Options options;
    Model model;
    Optimizer optimizer;
    long step = 0;
    explicit Trial(const Options& o, const ModelShape& shape, int B, bool flash = false)
        : options(o),
          model(shape, Grid{}, {.B = B, .packs = true, .scores = true, .flash = flash, .losses = 8}),
          optimizer(model) {
        model.memory(true);
        optimizer.memory(model, true);
        initialise(model, &optimizer, 7);
    }
    // the mean loss over windows (batch, T + 1), micro-batch by micro-batch, and one update
    double train(const std::vector<int>& windows, double rate, bool update = true) {
        int row = model.shape.T + 1, B = model.setup.B, rows = (int)windows.size() / row;
        double tokens = (double)rows * model.shape.T;
        Batch batch = {B, model.shape.T};
        Slot& slot = model.slots[0];
        clear_losses(model);
        int micro_batches = rows / B;
        check(rows % B == 0 && micro_batches <= model.setup.losses, "micro-batches that a trial can hold");
        for (int micro = 0; micro < micro_batches; micro++) {
            auto first = windows.begin() + micro * B * row;
            stage_batch(model, {first, first + B * row}, batch, micro);
            load_batch(model, &slot, batch, micro);
            chunk_forward(model, 0, slot, 0, batch, model.ranks);
            chunk_backward(model, 0, slot, 0, 0, micro, batch, (real)(1 / tokens),
                           micro + 1 == micro_batches);
        }
        optimizer.prepare(options, rate, step + update);
        if (update) {
            optimizer_step(model, optimizer, options.clip);
            step++;
        }
        double sum = 0;
        for (double loss : sequence_losses(model, micro_batches)) sum += loss;
        return sum / tokens;
    }
    std::vector<real> weights(const Parameter& p) {
        std::vector<floatX> out(p.stored());
        copy_to_host(out.data(), model.weights + p.offset, out.size() * sizeof(floatX), nullptr);
        std::vector<real> values(out.begin(), out.end());
        return values;
    }
};

std::vector<int> some_windows(int rows, int T, int V) {
    std::vector<int> w((size_t)rows * (T + 1));
    for (size_t i = 0; i < w.size(); i++) w[i] = (int)(hash_of(i) % V);
    return w;
}

void test_pytorch() {
    std::string name = "scripts/reference_pytorch.json";
    MappedFile file(name);
    Json j = Json::parse(file.view(), name);
    auto number = [&](const char* key) { return j.at(key, name).number(name); };
    auto list = [&](const Json& array) {
        std::vector<double> out;
        for (auto& item : array.items) out.push_back(item.number(name));
        return out;
    };
    Options o;
    o.weight_decay = number("weight_decay");
    o.clip = number("clip");
    int C = (int)number("hidden"), T = (int)number("sequence"), V = (int)number("vocabulary"), Vp = 16,
        B = (int)number("batch");
    Trial trial(o, {(int)number("layers"), C, (int)number("heads"), T, V, Vp}, B);
    Model& m = trial.model;
    for (size_t t = 0; t < m.table.list.size(); t++) {
        const Parameter& p = m.table.list[t];
        std::vector<real> values(p.size, 0);
        for (long i = 0; i < p.stored(); i++)
            values[i] = (real)(p.constant + 0.3 * std::sin(1 + (double)t + 0.7 * (double)i));
        store_parameter(m, &trial.optimizer, p, values);
    }
    // fp64: PyTorch's own rounding; fp32: sums of some 100 terms through 2 layers; bf16: 2^-8 a rounding,
    // some 20 in a row
    double tolerance = sizeof(floatX) == 8 ? 1e-10 : sizeof(floatX) == 4 ? 2e-4 : 0.3;
    std::vector<double> windows = list(j.at("windows", name));
    std::vector<int> w(windows.begin(), windows.end());
    Batch batch = {B, T};
    stage_batch(m, w, batch, 0);
    load_batch(m, &m.slots[0], batch, 0);
    chunk_forward(m, 0, m.slots[0], 0, batch, m.ranks);
    model_logits(m, m.slots[0], batch, m.ranks);
    std::vector<floatX> logits((size_t)B * T * Vp), unpadded;
    copy_to_host(logits.data(), m.end.logits, logits.size() * sizeof(floatX), nullptr);
    for (int n = 0; n < B * T; n++) unpadded.insert(unpadded.end(), &logits[n * Vp], &logits[n * Vp] + V);
    close("logits", unpadded, list(j.at("logits", name)), sizeof(floatX) == 2 ? 0.05 : tolerance);
    std::vector<double> losses, wanted = list(j.at("losses", name));
    for (size_t step = 0; step < wanted.size(); step++) {
        losses.push_back(trial.train(w, number("learning_rate"), step > 0));
        if (step > 0) continue;
        for (auto& p : m.table.list) {
            std::vector<real> g(p.stored());
            copy_to_host(g.data(), m.gradients + p.offset, g.size() * sizeof(real), nullptr);
            std::vector<double> want = list(j.at("gradients", name).at(p.name, name));
            close("gradient of " + p.name, g, want, tolerance);
        }
        trial.optimizer.prepare(o, number("learning_rate"), ++trial.step);
        optimizer_step(m, trial.optimizer, o.clip);
    }
    close("ten training losses", losses, wanted, sizeof(floatX) == 2 ? 0.02 : tolerance);
}

void test_training() {
    Options o;
    o.weight_decay = 0;
    int T = 19, V = 61;
    ModelShape shape = {2, 48, 3, T, V, 64};
    std::vector<int> windows = some_windows(4, T, V);
    {
        Trial a(o, shape, 4), b(o, shape, 1), again(o, shape, 4);
        double first = a.train(windows, 3e-3), loss = first;
        close("the first loss is about ln V", std::vector<double>{first},
              std::vector<double>{std::log((double)V)}, 0.05);
        close("micro-batches of 1 and of 4", std::vector<double>{b.train(windows, 3e-3)},
              std::vector<double>{first}, rounding);
        again.train(windows, 3e-3);
        // AdamW's first update is the gradient's sign: compare where it is not near 0
        for (auto& p : a.model.table.list)
            if (p.decay && sizeof(floatX) == 8)
                close("weights after micro-batches of 1 and of 4: " + p.name, b.weights(p), a.weights(p),
                      1e-6);
        for (int i = 1; i < 60; i++) {
            loss = a.train(windows, 3e-3);
            again.train(windows, 3e-3);
        }
        check(loss < 0.1, text("overfits one batch: loss %.3f after 60 steps, wants below 0.1", loss));
        bool same = true;
        for (auto& p : a.model.table.list) same = same && a.weights(p) == again.weights(p);
        check(same, "two runs are equal to the last bit");
        // generation with the key-value cache gives the logits of a whole pass
        std::vector<int> tokens(windows.begin(), windows.begin() + T);
        auto logits_after = [&](int done) {  // of all tokens, of which those before `done` are in the cache
            Pack pack;
            pack.add(&tokens[done], T - done, done, done, 0);
            for (int i = done; i < T; i++) pack.places.push_back(i);
            pack.wanted = {T - done - 1};
            pack.targets = {0};
            return wanted_logits(a.model, pack)[0];
        };
        std::vector<real> whole = logits_after(0);
        close("logits with the cache", logits_after(T - 1), whole, 4 * rounding);
        close("logits with half of the cache", logits_after(T / 2), whole, 4 * rounding);
        std::vector<int> out;
        generate(a.model, {{{tokens[0], tokens[1], tokens[2]}, 8, {.temperature = 0}}}, 1,
                 [&](size_t, int t) {
                     out.push_back(t);
                     return true;
                 });
        check(std::equal(out.begin(), out.end(), windows.begin() + 3), "the overfitted batch is recited");
        out.clear();
        generate(a.model, {{{tokens[0]}, 3 * T, {.seed = 1}}}, 1,
                 [&](size_t, int t) {
                     out.push_back(t);
                     return t < V;
                 });
        check((int)out.size() == 3 * T, "generation goes on beyond the sequence length");
        // what a step draws from is what a pass over the same window, with nothing kept, gives: also after
        // the window has slid, and behind a prompt that is longer than the sequence
        Text text = {{tokens.begin(), tokens.begin() + 3}, 4 * T, {.temperature = 0}};
        bool alike = true;
        for (int i = 0; i < 3 * T; i++) {
            std::vector<int> before = text.tokens;
            if ((int)before.size() > T) before.erase(before.begin(), before.end() - (T + 1) / 2);
            int drawn = next_tokens(a.model, {&text})[0];
            Text fresh = {before, 1, {.temperature = 0}};
            alike = alike && next_tokens(a.model, {&fresh})[0] == drawn;
            text.done = 0;  // the fresh pass has overwritten the cache
            if (i % 3) {  // …and it goes on from a cache that the text has filled itself
                Text again = {before, 1, {.temperature = 0}};
                next_tokens(a.model, {&again});
                text.done = (int)before.size();
            }
        }
        check(alike, "a step draws what a whole pass would");
        std::vector<int> long_prompt = some_windows(1, 2 * T, V), seen_by_model;
        generate(a.model, {{long_prompt, 1, {.temperature = 0}}}, 1,
                 [&](size_t, int t) {
                     out = {t};
                     return true;
                 });
        generate(a.model, {{{long_prompt.end() - T, long_prompt.end()}, 1, {.temperature = 0}}}, 1,
                 [&](size_t, int t) {
                     seen_by_model = {t};
                     return true;
                 });
        check(out == seen_by_model, "of a long prompt the end is seen");
    }
    for (ModelShape odd : {ModelShape{1, 3, 1, 1, 2, 2}, {1, 1, 1, 2, 3, 128}, {3, 35, 5, 7, 13, 13}}) {
        Trial trial(o, odd, 3);
        std::vector<int> w = some_windows(3, odd.T, odd.V);
        double before = trial.train(w, 1e-2), after = before;
        for (int i = 0; i < 20; i++) after = trial.train(w, 1e-2);
        check(after < before && std::isfinite(after),
              text("L %d C %d NH %d T %d V %d learns: %.3f -> %.3f", odd.L, odd.C, odd.NH, odd.T, odd.V,
                   before, after));
    }
    double peak = 6e-4, low = 6e-5;
    auto rate = [&](double t) { return learning_rate(t, peak, low, 100, 1000); };
    check(rate(50) == peak / 2 && rate(100) == peak && std::abs(rate(550) - (peak + low) / 2) < 1e-12 &&
          rate(1000.5) == low && std::abs(rate(1000) - low) < 1e-12,
          "learning rate: warm-up, peak, half way, floor");
    std::vector<real> l = {1, 3, 2, real(-INFINITY)};
    check(sample_token(l, {.temperature = 0}, 0.99) == 1 && sample_token(l, {.top_k = 1}, 0.99) == 1 &&
          sample_token(l, {.top_p = 0.6}, 0.99) == 1 && sample_token(l, {.top_k = 2}, 0.999) == 2 &&
          sample_token(l, {}, 0.999) == 0 && sample_token(l, {}, 0) == 1, "temperature, top-k, top-p");
    // many tokens, of which the likeliest are sorted first: each gets its share of u. p falls by 0.99 from
    // one to the next; the first k together have (1 - 0.99^k) / (1 - 0.99^n)
    std::vector<real> many(500);
    for (int i = 0; i < 500; i++) many[(i * 37) % 500] = real(i * std::log(0.99));
    bool shares = true;
    for (double u : {0.0, 0.1, 0.5, 0.9, 0.99, 0.9999}) {
        int k = (int)(std::log(1 - u * (1 - std::pow(0.99, 500))) / std::log(0.99) + 1e-3);
        shares = shares &&
                 std::abs(((long)sample_token(many, {}, u) * 473) % 500 - k) <= 1;  // 473 * 37 = 1 mod 500
    }
    check(shares && sample_token(many, {.top_p = 0.5}, 0.9999) == 37 * 68 % 500, "each token has its share");
    // repetition: logits of tokens that were there, 2 -> 1 and -2 -> -4
    Text said = {{1}, 9, {.temperature = 0, .repetition = 2}, {1, 2}};
    std::vector<real> logits = {real(1.5), 2, -2, -3};
    check(draw_token(said, logits) == 0 && logits == std::vector<real>({real(1.5), 1, -4, -3}) &&
              said.how.draw == 1,
          "repetition");
    Text drawn = {{1}, 9, {.seed = 3, .draw = 7}};
    std::vector<double> u;
    for (int i = 0; i < 3; i++) u.push_back(uniform(3, purpose("sample"), 7 + i));
    std::vector<int> tokens_drawn, want;
    for (int i = 0; i < 3; i++) {
        std::vector<real> flat(1000, 0);
        tokens_drawn.push_back(draw_token(drawn, flat));
        want.push_back(sample_token(flat, drawn.how, u[i]));
    }
    check(tokens_drawn == want && want[0] != want[1] && want[1] != want[2], "a random number for each token");
    // stops: over two tokens, the earliest of several, in one token, the end of text
    Vocabulary v = Vocabulary::bytes();
    v.tokens[1] = "xabcy";
    auto taken = [&](std::vector<std::string> stop, std::vector<int> given) {
        Answer answer;
        Prompt prompt = {"", 0, 9, {}, stop};
        size_t n = 0;
        while (n < given.size() && take_up(answer, given[n++], prompt, v)) {}
        return answer.text + "|" + answer.stopped + "|" + std::to_string(n);
    };
    check(taken({"ab"}, {'x', 'a', 'b', 'c'}) == "x|stop|3" && taken({"c", "bc"}, {1, 'z'}) == "xa|stop|1" &&
              taken({"q"}, {'a', 256, 'b'}) == "a|end of text|2" && taken({}, {'a', 'b'}) == "ab|length|2",
          "stops");
}

// ---- evaluation ------------------------------------------------------------------------------------------

// attention over segments is attention: of a whole sequence, of one cut in a context and what follows, and of
// rows that come one by one
void test_segments() {
    if (HAS_KERNELS) return;  // kernels are held against ref
    int T = 150, cut = 67;
    AttentionShape a = {1, T, 3, 8}, twice = {1, T + T - cut, 3, 8};
    std::vector<floatX> qkv = random_values<floatX>(T * a.row(), 1), whole(T * a.out()), p(3L * T * T),
                        cache = qkv;
    ref::attention_forward(whole.data(), p.data(), qkv.data(), a, nullptr);
    auto part = [&](int from, int n) {
        return std::vector<floatX>(whole.begin() + from * a.out(), whole.begin() + (from + n) * a.out());
    };
    auto attend = [&](const Pack& pack) {
        std::vector<floatX> o(pack.rows() * a.out());
        ref::segment_attention(o.data(), cache.data(), pack.tiles.data(), (int)pack.tiles.size(), a, nullptr);
        return o;
    };
    std::vector<int> tokens(T, 0);
    Pack one, behind, last;
    one.add_alone(tokens.data(), T, 0);
    close("one segment", attend(one), whole, sums_tolerance);
    last.add(tokens.data(), 1, T - 1, T - 1, 0);
    close("the last row, the others in the cache", attend(last), part(T - 1, 1), sums_tolerance);
    // the context, what follows it, and the same again: both see the context, neither the other
    cache.insert(cache.end(), qkv.begin() + cut * a.row(), qkv.end());
    behind.add_alone(tokens.data(), cut, 0);
    for (int i = 0; i < 2; i++) behind.add_alone(tokens.data(), T - cut, cut, 0, cut);
    std::vector<floatX> o = attend(behind), want = whole, again = part(cut, T - cut);
    want.insert(want.end(), again.begin(), again.end());
    close("two continuations of one context", o, want, sums_tolerance);
    check(behind.rows() == twice.T && behind.positions[T] == cut && behind.positions[T - 1] == T - 1,
          "positions go on");
    Pack padded;
    padded.add_alone(tokens.data(), 5, 0);
    padded.pad(4);
    check(padded.rows() == 8 && padded.outputs() == 0, "padding");
}

// requests of (context, continuation) tokens; equal contexts are one
EvalFile requests_of(const std::vector<std::vector<std::pair<std::vector<int>, std::vector<int>>>>& documents,
                     int V) {
    EvalFile e;
    e.path = "a test";
    e.task = "piqa";
    e.metric = "choice";
    e.kind = "bytes";
    e.hash = "-";
    e.from = "a file";
    e.vocabulary = V;
    e.normalised = true;
    std::map<std::vector<int>, int64_t> known;
    auto add = [&](const std::vector<int>& tokens) {
        auto [at, is_new] = known.emplace(tokens, (int64_t)e.tokens.size());
        if (is_new) e.tokens.insert(e.tokens.end(), tokens.begin(), tokens.end());
        return at->second;
    };
    for (auto& d : documents) {
        e.documents.push_back(
            {(int64_t)e.requests.size(), (int64_t)d.size(), 0, {-1, -1}, (int64_t)e.documents.size() + 1});
        for (auto& [context, own] : d) {
            int64_t a = add(context), b = add(own);
            e.requests.push_back({a, (int64_t)context.size(), b, (int64_t)own.size(), (int64_t)own.size()});
        }
    }
    return e;
}

void test_scores() {
    Options o;
    int T = 24, V = 61, B = 2;
    Trial a(o, {2, 48, 3, T, V, 64}, B);
    for (int i = 0; i < 3; i++) a.train(some_windows(B, T, V), 3e-3);
    auto tokens = [&](int n, int salt) {
        std::vector<int> out(n);
        for (int i = 0; i < n; i++) out[i] = (int)(hash_of(salt * 1000 + i) % V);
        return out;
    };
    auto score_all = [&](const EvalFile& file, const ScorePlan& plan) {
        std::vector<Score> scores(file.requests.size());
        for (auto& b : plan.batches) {
            clear_losses(a.model);
            Batch batch = lay(a.model, a.model.slots[0], plan.pack(b, 1));
            chunk_forward(a.model, 0, a.model.slots[0], 0, batch, a.model.ranks);
            model_loss(a.model, a.model.slots[0], 0, batch);
            collect(a.model, plan, b, 0, scores);
        }
        return scores;
    };
    // continuations of one token and of many, contexts shared and not, one that fills the sequence, one too
    // long for it
    auto c = tokens(9, 1);
    EvalFile file =
        requests_of({{{c, tokens(1, 2)}, {c, tokens(7, 3)}, {c, tokens(16, 4)}, {c, tokens(3, 5)}},
                     {{tokens(1, 6), tokens(24, 7)}, {tokens(2, 8), tokens(1, 9)}},
                     {{tokens(40, 10), tokens(5, 11)}, {tokens(40, 10), tokens(6, 12)}}},
                    V);
    ScorePlan shared(file, T, B * T, B * T, 1), alone(file, T, B * T, B * T, 1, false),
        narrow(file, T, B * T, 25, 1);
    check(shared.truncated == 1 && shared.rows < alone.rows,
          "the long document is counted, shared contexts are fewer rows");
    std::vector<Score> scores = score_all(file, shared), one_by_one = score_all(file, alone),
                       cut = score_all(file, narrow);
    std::vector<double> got, again, few, want;
    for (size_t r = 0; r < file.requests.size(); r++) {
        got.push_back(scores[r].log_likelihood);
        again.push_back(one_by_one[r].log_likelihood);
        few.push_back(cut[r].log_likelihood);
        // as a window of a whole pass: the last T + 1 tokens, filled up with anything
        const EvalRequest& q = file.requests[r];
        std::vector<int> all(&file.tokens[q.context], &file.tokens[q.context] + q.context_tokens);
        all.insert(all.end(), &file.tokens[q.continuation],
                   &file.tokens[q.continuation] + q.continuation_tokens);
        if ((int)all.size() > T + 1) all.erase(all.begin(), all.end() - (T + 1));
        int n = (int)all.size(), length = (int)q.continuation_tokens;
        all.resize(B * (T + 1), 0);
        clear_losses(a.model);
        stage_batch(a.model, all, {B, T}, 0);
        Batch batch = load_batch(a.model, &a.model.slots[0], {B, T}, 0);
        chunk_forward(a.model, 0, a.model.slots[0], 0, batch, a.model.ranks);
        model_loss(a.model, a.model.slots[0], 0, batch);
        std::vector<real> losses(B * T);
        copy_to_host(losses.data(), a.model.end.losses, losses.size() * sizeof(real), nullptr);
        want.push_back(0);
        for (int i = n - 1 - length; i < n - 1; i++) want.back() -= losses[i];
    }
    close("log-likelihoods are a whole pass's", got, want, 4 * rounding);
    close("a context for each continuation: the same", again, got, 4 * rounding);
    close("small batches: the same", few, got, 4 * rounding);
    // greedy: is each token the likeliest where it stands? Continuations are made from the model's own
    // choices
    auto first_choice = [&](std::vector<int> context, int n) {
        std::vector<int> made;
        for (int i = 0; i < n; i++) {
            generate(a.model, {{context, 1, {.temperature = 0}}}, 1,
                     [&](size_t, int t) {
                         made.push_back(t);
                         return true;
                     });
            context.push_back(made.back());
        }
        return made;
    };
    std::vector<int> chosen = first_choice(c, 4), wrong_first = chosen, wrong_last = chosen;
    wrong_first[0] = (wrong_first[0] + 1) % V;
    wrong_last[3] = (wrong_last[3] + 1) % V;
    EvalFile greedy = requests_of({{{c, chosen}, {c, wrong_first}, {c, wrong_last}, {c, {chosen[0]}}}}, V);
    scores = score_all(greedy, ScorePlan(greedy, T, B * T, B * T, 1));
    check(scores[0].greedy && !scores[1].greedy && !scores[2].greedy && scores[3].greedy,
          "greedy: all tokens, or not");
    refuses("has a continuation of 25 tokens, the model takes 24", [&] {
        EvalFile long_one = requests_of({{{c, tokens(25, 1)}}}, V);
        check_lengths(long_one, T);
    });
    // what scores mean, by hand: right, wrong, right by characters alone; a tie goes to the first
    EvalFile f = requests_of(
        {{{c, {1}}, {c, {2}}}, {{c, {1}}, {c, {2}}}, {{c, {1, 2, 3, 4}}, {c, {2}}}, {{c, {5}}, {c, {6}}}}, V);
    f.groups = {"x", "y"};
    f.documents[0].groups[0] = 0;
    f.documents[1].groups[0] = 0;
    f.documents[3].groups[1] = 1;
    TaskResult r =
        task_result(f, {{-1, 0}, {-2, 0}, {-3, 0}, {-2, 0}, {-4, 0}, {-2, 0}, {-7, 0}, {-7, 0}}, 0);
    auto metric = [&](const char* name) {
        for (auto& m : r.metrics) if (m.name == name) return m;
        return TaskMetric{name, NAN, NAN};
    };
    // stderr of {1, 0, 0, 1}: deviation sqrt(1/3), over sqrt(4); of {1, 0, 1, 1}: 1/2 over 2
    check(metric("acc").value == 0.5 && std::abs(metric("acc").error - std::sqrt(1.0 / 3) / 2) < 1e-15 &&
              metric("acc_norm").value == 0.75 && metric("acc_norm").error == 0.25 &&
              metric("acc x").value == 0.5 && metric("acc y").value == 1,
          "accuracy, by characters, by group, standard errors");
    f = requests_of({{{c, {1}}}, {{c, {2}}}}, V);
    f.metric = "greedy";
    r = task_result(f, {{-1, true}, {-3, false}}, 0);
    // mean -2; deviation sqrt(2) over sqrt(2)
    check(metric("acc").value == 0.5 && std::abs(metric("ppl").value - std::exp(2)) < 1e-12 &&
          std::abs(metric("ppl").error - std::exp(2)) < 1e-12, "greedy accuracy and perplexity");
    f = requests_of({{{c, {1}}, {c, {2}}, {{0}, {1}}, {{0}, {2}}}}, V);
    f.priors = true;
    r = task_result(f, {{-2, 0}, {-3, 0}, {-1, 0}, {-4, 0}}, 0);  // -1 and +1 beyond what is said anyway
    check(metric("acc").value == 0, "divided by the continuation's own probability");
    Json json = Json::parse(task_json({r}, "m", 3), "results");
    check(json.at("results", "r").at("piqa", "r").find("acc_stderr") && json.at("versions", "r").find("piqa"),
          "JSON");
}

void test_tasks() {
    PythonRandom random(42);  // as CPython 3 prints
    bool good = true;
    for (uint32_t want : {2746317213u, 478163327u, 107420369u, 3184935163u})
        good = good && random.next() == want;
    check(good, "random.Random(42).getrandbits(32)");
    random = PythonRandom(42);
    std::vector<int> ten = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    random.shuffle(ten);
    check(ten == std::vector<int>({7, 3, 2, 8, 5, 6, 9, 4, 0, 1}) &&
              random.sample(100, 5) == std::vector<uint32_t>({75, 54, 4, 3, 11}),
          "shuffle, then sample from a set");
    Sha256 sum, empty;
    for (char c : std::string(1000, 'a')) sum.add(std::string(1, c));
    check(empty.digits() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" &&
              sum.digits() == "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3",
          "SHA-256 (FIPS 180-4)");
    check(python_json("a\"\\/\n\x7f\xc3\xa9\xf0\x9f\x98\x80", "x") ==
              "\"a\\\"\\\\/\\n\\u007f\\u00e9\\ud83d\\ude00\"",
          "as json.dumps writes it");
    refuses("here: has a byte 0xff that is not UTF-8, 1 bytes into a text",
            [] { python_json("a\xff", "here"); });
    check(python_capitalize("tHE \xc3\x89T\xc3\x89", "") == "The \xc3\xa9t\xc3\xa9" &&
              python_strip("\xc2\xa0 a b\x1c\n", "") == "a b" &&
              python_capitalize("\xc3\xa9", "") == "\xc3\x89",
          "capitalize and strip");
    auto rendered = [](const char* task, const char* form, const std::string& line) {
        const TaskForm& t = find_task(task, form);
        TaskDocument d = parse_document(line, "a test", 1);
        if (t.prepare) t.prepare(d);
        std::string out;
        std::vector<TaskRequest> all = render(t, d);
        for (auto& r : all) out += r.context + "|" + r.continuation + "\n--\n";
        return out + std::to_string(gold_of(t, d, all.size()));
    };
    check(rendered("lambada", "", R"({"text": "a b  c d."})") == "a b  c| d.\n--\n0", "LAMBADA");
    check(rendered("lambada", "cloze", R"({"text": "a b"})") == "a ____. ->| b\n--\n0", "LAMBADA as a cloze");
    check(rendered("boolq", "", R"({"question": "is it", "passage": "P.", "label": false})") ==
          "P.\nQuestion: is it\nAnswer:| yes\n--\nP.\nQuestion: is it\nAnswer:| no\n--\n1", "BoolQ");
    check(rendered("boolq", "v1", R"({"question": "q", "passage": "P", "label": true})")
                  .find("q?\nAnswer:| yes") != std::string::npos,
          "BoolQ, version 1");
    check(rendered("piqa", "", R"({"goal": "g", "sol1": "s ", "sol2": "t", "label": 1})") ==
          "Question: g\nAnswer:| s \n--\nQuestion: g\nAnswer:| t\n--\n1", "PiQA");
    check(
        rendered("hellaswag", "",
                 R"({"activity_label": "Do it", "ctx_a": "[header] A [title] b  c.", "ctx_b": "the Man",
          "endings": [" a [x] b", "[title] c", "d", "e"], "label": 2})") ==
            "Do it: A. b c. The man| a b\n--\nDo it: A. b c. The man|  c\n--\nDo it: A. b c. The man| d\n--\n"
            "Do it: A. b c. The man| e\n--\n2",
        "HellaSwag");
    check(rendered(
              "winogrande", "",
              R"({"sentence": "X told Y that _ is _. ", "option1": "X", "option2": "Y", "answer": "2"})") ==
              "X told Y that X| is _.\n--\nX told Y that Y| is _.\n--\n1",
          "WinoGrande");
    check(rendered("anli-r2", "", R"({"context": "p", "hypothesis": "h.", "label": "n"})")
                  .starts_with("p\nQuestion: h. True, False, or Neither?\nAnswer:| True\n--\n") &&
              rendered("anli-r2", "", R"({"context": "p", "hypothesis": "h.", "label": "n"})")
                  .ends_with("Answer:| False\n--\n1"),
          "ANLI");
    check(rendered("wic", "", R"({"word": "go", "sentence1": "\u00e9 went", "sentence2": "b", "start1": 2,
          "end1": 6, "label": true})").starts_with("Sentence 1: \xc3\xa9 went\nSentence 2: b\nQuestion: Is "
          "the word 'went' used in the same way in the two sentences above?\nAnswer:| yes\n--\n"), "WiC");
    std::string race =
        R"({"article": "A.", "questions": ["It is  _  .", "Why?", "Who?"], "answers": ["B", "A", "D"],
        "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"], ["i", "j", "k", "l"]]})";
    check(rendered("race", "", race)
                  .starts_with("Article: A.\n\n _  .b\nQuestion: Why?\nAnswer: e\nWho?| i\n--\n") &&
              rendered("race", "", race).ends_with("| l\n--\n3"),
          "RACE");
    check(rendered("race", "filled", race).starts_with("Article: A.\n\nIt is b\nQuestion: Why?"),
          "RACE, gaps filled");
    check(rendered("requests", "", R"({"context": "c", "continuations": [" a", " b"], "gold": 1})") ==
              "c| a\n--\nc| b\n--\n1",
          "one's own");
    // files: HANS's table, RACE's folder with one article in two files, PiQA's labels
    fs::path folder = scratch_folder + "/tasks";
    fs::create_directories(folder / "test");
    std::string where = folder;
    write_file(where + "/heuristics_evaluation_set.txt",
               "gold_label\tsentence1\tsentence2\theuristic\tsubcase\n"
               "non-entailment\tThe a .\tThe b .\tlexical_overlap\tln_x\n");
    const TaskForm& hans = find_task("hans", "");
    std::vector<TaskDocument> docs = read_task(hans, where, false);
    check(docs.size() == 1 &&
              render(hans, docs[0])[1].context == "The a .\nQuestion: The b . True or False?\nAnswer:" &&
              gold_of(hans, docs[0], 2) == 1,
          "HANS");
    for (const char* name : {"9.txt", "10.txt"})
        write_file(where + "/test/" + name,
                   R"({"article": "A", "questions": [")" + std::string(name) +
                       R"("], "answers": ["A"], "options": [["a", "b", "c", "d"]]})");
    docs = read_task(find_task("race", ""), where, false);
    check(
        docs.size() == 1 && docs[0].fields["problems"] == "Article: A\n\nQuestion: 10.txt\nAnswer: a\n9.txt",
        "RACE: one document an article");
    write_file(where + "/valid.jsonl", R"({"goal": "g", "sol1": "a", "sol2": "b"})" "\n"
               R"({"goal": "h", "sol1": "a", "sol2": "b"})" "\n");
    auto labels = [&](const char* text) {
        write_file(where + "/valid-labels.lst", text);
        read_task(find_task("piqa", ""), where, false);
    };
    refuses("has 1 labels, " + where + "/valid.jsonl has 2 documents", [&] { labels("0\n"); });
    refuses("valid-labels.lst line 3: has more labels", [&] { labels("0\n1\n1\n"); });
    refuses("valid-labels.lst line 2: is an empty document", [&] { labels("0\n\n1\n"); });
    refuses("valid.jsonl line 1: has label \"2\", wants one of 0 1", [&] {
        labels("2\n1\n");
        docs = read_task(find_task("piqa", ""), where, false);
        gold_of(find_task("piqa", ""), docs[0], 2);
    });
    refuses("is this the task's file?", [&] {
        docs = read_task(find_task("boolq", ""), where + "/valid.jsonl", false);
        render(find_task("boolq", ""), docs[0]);
    });
    refuses("the text is empty or has no last word", [&] { rendered("lambada", "", R"({"text": ""})"); });
    refuses("has no label \"label\"", [&] { rendered("boolq", "", R"({"question": "q", "passage": "P"})"); });
    refuses("did you mean piqa", [&] { find_task("pica", ""); });
    refuses("--form v2: boolq has (none) v1", [&] { find_task("boolq", "v2"); });
    EvalFile file = requests_of({{{{1, 2}, {3}}}}, 9);
    std::string path = where + "/x.eval";
    file.save(path);
    EvalFile back = EvalFile::open(path);
    check(back.tokens == file.tokens && back.task == "piqa" && back.documents.size() == 1 && back.normalised,
          "an evaluation file");
    std::string bytes(MappedFile(path).view());
    auto spoilt = [&](const std::string& text) {
        write_file(path, text);
        EvalFile::open(path);
    };
    refuses("is no evaluation file", [&] { spoilt("GPTTOKEN"); });
    refuses("its header wants another length", [&] { spoilt(bytes.substr(0, bytes.size() - 1)); });
    bytes[bytes.size() - 1] ^= 1;
    refuses("damaged: its checksum differs", [&] { spoilt(bytes); });
    bytes[20] ^= 1;
    refuses("the header's checksum differs", [&] { spoilt(bytes); });
    file.requests[0].context_tokens = 4;
    file.save(path);
    refuses("continuation 0 is inconsistent", [&] { EvalFile::open(path); });
    file = requests_of({{{{1, 2}, {9}}}}, 9);
    file.save(path);
    refuses("has a token 9, its vocabulary has 9", [&] { EvalFile::open(path); });
}

// ---- pipelines: every schedule is played by hand ---------------------------------------------------------

void check_schedule(const PipelineShape& s) {
    std::string complaint = ScheduleChecker(all_stages(s)).check();
    check(complaint.empty(), text("p %d m %d v %d N %d: %s", s.p, s.m, s.v, s.N, complaint.c_str()));
}

// a schedule spoilt on purpose must be noticed
template <class Spoil>
void spoilt(const std::string& part, const PipelineShape& s, Spoil spoil) {
    std::vector<Schedule> all = all_stages(s);
    spoil(all);
    std::string complaint = ScheduleChecker(all).check();
    check(complaint.find(part) != std::string::npos,
          text("a spoilt schedule: \"%s\", wants \"%s\"", complaint.c_str(), part.c_str()));
}

void test_schedule() {
    using I = Instruction;
    for (int p = 1; p <= 12; p++)
        for (int m = 1; m <= 24; m++) {
            check_schedule({p, m, 1, m});
            check_schedule({p, m, 1, p, false});
            for (int v = 2; v <= 3 && p > 1; v++) {
                check_schedule({p, m, v, p, false});
                for (int N = p; N <= m; N++) if (legal_group(p, m, N)) check_schedule({p, m, v, N});
            }
        }
    for (int m : {240, 192, 160}) check_schedule({35, m, 1, m});
    for (auto [m, N] : {std::pair{240, 40}, {240, 48}, {192, 48}, {192, 39}, {160, 40}}) {
        check(legal_group(35, m, N), text("35 stages, %d micro-batches: groups of %d are possible", m, N));
        check_schedule({35, m, 3, N});
    }
    check(!legal_group(35, 192, 40) && !legal_group(35, 160, 39), "and others not");
    check(!legal_group(35, 240, 35) && !legal_group(35, 192, 35) && !legal_group(35, 160, 35),
          "the classic group of 35 is not possible with 240, 192 or 160 micro-batches");
    check(print_schedule(make_schedule(0, {4, 6, 1, 6})) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5" &&
          print_schedule(make_schedule(3, {4, 2, 1, 2})) == "F0 B0 F1 B1", "1F1B");
    check(print_schedule(make_schedule(1, {2, 4, 2, 2})) ==
          "0F0 0F1 1F0 1B0 1F1 1B1 0F2 0B0 0F3 0B1 1F2 1B2 1F3 1B3 0B2 0B3", "interleaved 1F1B");
    check(print_schedule(make_schedule(1, {2, 2, 1, 2}), true) == "[r0] F0 [r1] B0 [S0] F1 B1 [S1]",
          "messages: " + print_schedule(make_schedule(1, {2, 2, 1, 2}), true));
    auto find = [](Schedule& s, I::Kind kind, int micro) {
        return std::find_if(s.list.begin(), s.list.end(),
                            [=](auto& i) { return i.kind == kind && i.micro == micro; });
    };
    PipelineShape plain = {4, 6, 1, 6}, deep = {4, 8, 2, 4};
    spoilt("another's message", plain,
           [&](auto& all) { all[0].list.erase(find(all[0], I::SendForward, 2)); });
    spoilt("waits for ever", plain, [&](auto& all) { all[2].list.erase(find(all[2], I::SendBackward, 5)); });
    spoilt("before its receive", plain,
           [&](auto& all) { all[1].list.erase(find(all[1], I::ReceiveForward, 3)); });
    spoilt("its slot is in use", plain, [&](auto& all) { find(all[0], I::Forward, 1)->slot = 0; });
    spoilt("its slot holds another", plain, [&](auto& all) { find(all[0], I::Backward, 1)->slot = 0; });
    spoilt("its input is in use", deep, [&](auto& all) { find(all[1], I::ReceiveForward, 1)->input = 0; });
    spoilt("sent before it is computed", plain, [&](auto& all) {
        auto send = find(all[0], I::SendForward, 0);
        std::swap(*send, *(send - 1));
    });
    spoilt("done twice", plain, [&](auto& all) {
        auto f = find(all[3], I::Forward, 0);
        I again = *f;
        again.slot = 1;
        all[3].slots = 2;
        all[3].list.insert(f + 1, again);
    });
    spoilt("of 6 computations", {1, 6, 1, 6},
           [&](auto& all) { all[0].list.resize(all[0].list.size() - 2); });
    spoilt("two of a kind", plain, [&](auto& all) {
        find(all[1], I::ReceiveForward, 1)->group = find(all[1], I::ReceiveForward, 0)->group;
    });
    spoilt("the formula says", plain,
           [&](auto& all) {  // one forward more than needed before the first backward
               all = all_stages({4, 6, 1, 6});
               auto b = find(all[0], I::Backward, 0), f = find(all[0], I::Forward, 4);
               I late = *b;
               auto last = find(all[0], I::Backward, 4);
               f->slot = last->slot = 4;
               f->input = last->input = 8;
               all[0].slots = 5;
               all[0].inputs = 9;
               all[0].list.erase(b);
               all[0].list.insert(find(all[0], I::Forward, 4) + 1, late);
           });
    spoilt("waits for ever", {10, 24, 2, 24},
           [&](auto& all) {  // too few gradients for the way back to the end
               for (auto& i : all[0].list)
                   if (i.gradient >= 0) i.gradient %= 3;
           });
    refuses("wants at least 4 micro-batches", [] { check_pipeline({4, 3, 2, 4}); });
    refuses("choose one of 4 6 7 8 12", [] { check_pipeline({4, 12, 2, 5}); });
    for (int rank = 0; rank < 24; rank++) {
        Grid g = place_in_grid(rank, 24, 2, 3);
        check(g.d == 4 && g.rank_of(g.tensor, g.data, g.stage) == rank, "rank = tensor + t (data + d stage)");
    }
}

// ---- plans -----------------------------------------------------------------------------------------------

Run settled_plan(const std::string& words) {
    Run run;
    std::istringstream in(words);
    std::vector<std::string> list = {"--plan"};
    for (std::string word; in >> word;) list.push_back(word);
    run.options = options_of(list);
    check_plan_options(run.options);
    settle_plan(run);
    return run;
}
Plan plan_of(const std::string& words) {
    Run run = settled_plan(words);
    return whole_plan(run, choose_hardware(run.options));
}

const std::string mtnlg = "--config scripts/mtnlg-530b.conf --hardware dgx-a100 ";

// the published runs (arXiv 2201.11990), all met with one constant; and figures that follow from the sizes
void test_plan_mtnlg() {
    struct {
        int world;
        double seconds, tflops;
    } runs[] = {{2240, 60.1, 126}, {2800, 50.2, 121}, {3360, 44.4, 113}};
    for (auto& r : runs) {
        Plan p = plan_of(mtnlg + text("--ramp-start 0 --world-size %d", r.world));
        double s = p.step().seconds, tflops = model_flops(p.shape, 1920, true) / s / r.world * 1e-12;
        check(std::abs(s / r.seconds - 1) < 0.03,
              text("%d GPUs: %.2f s, published %.1f", r.world, s, r.seconds));
        check(std::abs(tflops / r.tflops - 1) < 0.03, text("%d GPUs: %.1f TFLOP/s", r.world, tflops));
    }
    Plan p = plan_of(mtnlg + "--world-size 2240");
    check(parameter_table(p.shape).count == 529600819200, "parameters of 530B");
    check(p.stages.size() == 35 && p.stages[0].parameters == 2060874240 &&
              p.stages[1].parameters == 1887859200 && p.stages[34].parameters == 2018972160,
          "of stages 0, 1, 34");
    auto gb = [&](bool sequence, bool flash, bool full) {
        return std::round(megatron_activations(p, sequence, flash, full ? Recompute::Full : Recompute::None) *
                          1e-8) /
            10;
    };
    check(gb(false, false, false) == 92.5 && gb(true, false, false) == 53.9 &&
              gb(true, true, false) == 18.7 && gb(false, false, true) == 8.8,
          "activations by Megatron-LM's formulas");
    // ZeRO-1 at d = 8: 6 bytes a parameter, 7/8 of them to others; padding of the buckets is less than 1e-4
    double data = (double)p.stages[1].work.at(1920).traffic.at("data").sent;
    check(std::abs(data / (6.0 * 1887859200 * 7 / 8) - 1) < 1e-4, text("data-parallel traffic %.3g", data));
    double forward = (double)p.stages[1].work.at(1920).traffic.at("forward").sent;
    check(forward == 240 * 2.0 * 2048 * 20480 / 8, text("messages %.3g", forward));
    Recipe r = recipe_of(p);
    check(r.ramp == 14475 && r.steps == 80087, text("%ld steps, %ld in the ramp", r.steps, r.ramp));
    for (int world : {2800, 3360})
        refuses("data-parallel ranks of 1 2 4 8 16 32",
                [&] { plan_of(mtnlg + text("--world-size %d", world)); });
    auto legal = [](int d, int N) { return legal_group(35, 1920 / d, N); };
    check(!legal(8, 35) && !legal(10, 35) && !legal(12, 35) && legal(8, 40) && legal(12, 40) &&
              !legal(10, 40) && legal(8, 48) && legal(10, 48) && legal(10, 39),
          "group sizes");
    Run large = settled_plan(mtnlg + "--world-size 2240 --recompute none");
    Hardware h = choose_hardware(large.options);
    check(!whole_plan(large, h).fits(), "every activation kept does not fit");
    std::string advice = what_would_fit(large, h);
    check(advice.find("--recompute full: 28.") != advice.npos &&
              advice.find("--sequence-parallel yes") != advice.npos,
          advice);
    std::string said = plan_text(p);
    check(said.find("529,600,819,200 parameters") != said.npos &&
              said.find("stage 34: 2,018,972,160") != said.npos && grouped(7) == "7" &&
              grouped(1000) == "1,000",
          said);
    prove_grid(p);
    check(prove_schedules(p) == 35 * 60, "the schedules of 60 batches");
}

// stages that are alike, on lines that take no time: the formulas of the bubble are exact
void test_plan_simulation() {
    auto play = [](PipelineShape s, double forward, double backward, double message, double last = 0) {
        StepTimes times;
        times.stages.resize(s.p);
        for (auto& t : times.stages) {
            t.forward.assign(s.v, {{forward / s.v, {}}});
            t.backward.assign(s.v, {{backward / s.v, {}}});
            t.send_forward = t.send_backward = message;
        }
        times.stages.back().backward.back()[0].seconds += last;
        return Simulator(all_stages(s), times).run();
    };
    for (int p : {1, 2, 4, 7})
        for (int m : {7, 8, 30}) {
            double wants = (m + p - 1) * 3.0, got = play({p, m, 1, m}, 1, 2, 0).seconds;
            check(std::abs(got - wants) < 1e-9, text("1F1B p %d m %d: %g, wants %g", p, m, got, wants));
        }
    for (int v : {2, 3})  // arXiv 2104.04473: the bubble is cut by v
        for (int p : {2, 4}) {
            double wants = 8 * 3.0 + (p - 1) * 3.0 / v, got = play({p, 8, v, p}, 1, 2, 0).seconds;
            check(std::abs(got - wants) < 1e-9,
                  text("interleaved p %d v %d: %g, wants %g", p, v, got, wants));
        }
    // neighbours wait for one message in turn: a micro-batch more costs its work and one message
    double more = play({2, 20, 1, 20}, 1, 2, 0.25).seconds - play({2, 10, 1, 10}, 1, 2, 0.25).seconds;
    check(std::abs(more - 10 * 3.25) < 1e-9, text("ten micro-batches more: %g", more));
    // the slowest stage sets the pace
    more = play({4, 30, 1, 30}, 1, 2, 0, 0.5).seconds - play({4, 20, 1, 20}, 1, 2, 0, 0.5).seconds;
    check(std::abs(more - 10 * 3.5) < 1e-9, text("ten more with a slow last stage: %g", more));
    Simulation s = play({4, 8, 1, 8}, 1, 2, 0);
    check(std::abs(s.idle() - 3.0 / 11) < 1e-9, text("idle %g", s.idle()));
    bool apart = true;
    for (auto& a : s.spans)
        for (auto& b : s.spans)
            if (&a < &b && a.stage == b.stage && a.kind <= Span::Backward && b.kind <= Span::Backward)
                apart &= a.end <= b.start + 1e-12 || b.end <= a.start + 1e-12;
    check(apart, "a stage computes one thing at a time");
}

void test_plan_hosts() {
    const std::string small = "--hardware dgx-h100 --layers 8 --hidden 64 --heads 4 --sequence 32 --batch 16 "
                              "--micro-batch 1 --tensor-parallel 2 --pipeline-parallel 4 --world-size 16 ";
    Plan p = plan_of(small);
    std::string path = scratch_folder + "/hosts";
    write_file(path, "# four\na slots=4\nb slots=4\n\nc slots=4 # and\nd slots=4\n");
    std::string out = Placement(p, path).print();
    check(out.find("b                leaf 0   ranks 4 to 7: stage 1, data 0 to 1") != out.npos, out);
    double listed = 0, sent = 0;  // what is listed by level is what all ranks send
    std::istringstream lines(out.substr(out.find("leaf\n  backward")));
    std::string line;
    for (std::getline(lines, line); std::getline(lines, line);) {
        double a, b, c;
        check(sscanf(line.c_str() + 28, "%lf %lf %lf", &a, &b, &c) == 3, line);
        listed += a + b + c;
    }
    for (auto& stage : p.stages)
        for (auto& [group, t] : stage.work.at(16).traffic) sent += 4 * (double)t.sent * 1e-9;
    check(std::abs(listed / sent - 1) < 1e-3, text("%g GB listed, %g sent", listed, sent));
    write_file(path, "a slots=4\nb\n");
    refuses("wants room for 16", [&] { Placement(p, path); });
    for (const char* bad :
         {"a slots=x\n", "a slots=0\n", "a slots=\n", "a slots=4294967297\n", "a slots = 2\n"}) {
        write_file(path, bad);
        refuses("line 1", [&] { Placement(p, path); });
    }
    write_file(path, "# none\n");
    refuses("names no host", [&] { Placement(p, path); });
    refuses("choose one of dgx-a100", [&] { plan_of("--hardware dgx"); });
    refuses("wants FILE.svg", [&] { plan_of("--timeline x.png"); });
    refuses("wants nothing, or search", [&] { settled_plan("all"); });
}

// what is advised is so: each suggestion, taken, fits; what is named stays
void test_plan_advice() {
    for (std::string base :
         {"--model 13B --batch 32 --world-size 16",
          "--model 2.7B --batch 8 --world-size 8 --sequence 8192 --attention materialised",
          "--model 13B --world-size 64 --batch 512 --pipeline-parallel 4 --pipeline-chunks 2 "
          "--pipeline-group 16 --micro-batch 2",
          "--model 22B --world-size 8 --batch 64"}) {
        base += " --hardware dgx-a100 ";
        Run run = settled_plan(base);
        Hardware h = choose_hardware(run.options);
        check(!whole_plan(run, h).fits(), "does not fit: " + base);
        std::istringstream lines(what_would_fit(run, h));
        std::string line;
        std::getline(lines, line);
        int taken = 0;
        while (std::getline(lines, line)) {
            Plan p = plan_of(base + line.substr(0, line.rfind(':')));
            check(p.fits(), base + "with" + line);
            taken++;
        }
        check(taken > 0 || line.find("plan for more ranks") != line.npos, base);
    }
    Run named = settled_plan(
        "search --hardware dgx-h100 --model 22B --world-size 64 --batch 512 --pipeline-parallel 4 "
        "--pipeline-chunks 2 --pipeline-group 16");
    Options o = named.options;
    o.micro_batch = 1;
    o.given.insert("micro-batch");
    check(plan_with(named, o, choose_hardware(o), false).o.pipeline_group == 16, "a named group stays");
    Hardware h = find_hardware("dgx-h100");
    check(tensor_nodes(h, 8) == 1 && tensor_nodes(h, 4) == 1 && tensor_nodes(h, 6) == 2 &&
              tensor_nodes(h, 16) == 2,
          "groups that straddle nodes");
    // without recomputation the products are the model's FLOPs, to the last digit that a double has
    Plan p = plan_of(mtnlg + "--ramp-start 0 --world-size 2240 --recompute none --sequence-parallel yes");
    double products = 0;
    for (auto& stage : p.stages) products += stage.work.at(1920).product_flops * 64;
    check(std::abs(products / model_flops(p.shape, 1920, false) - 1) < 1e-12,
          text("products %.17g", products));
    check(choices(plan_of(mtnlg + "--world-size 2240")).find("as few as 4") != std::string::npos,
          "chunks that the ramp forbids are not offered");
    refuses("is not a regular file", [] { FileWriter file("/dev/null"); });
    refuses("give --plan without search", [] { settled_plan("search --hosts x"); });
    refuses("choose one of dgx", [] { settled_plan("--hardware foo"); });
    refuses("at most 1", [] { settled_plan("--gemm-efficiency 5"); });
}

// what is drawn, and what programs read
void test_plan_forms() {
    const std::string small = "--hardware dgx-h100 --layers 8 --hidden 64 --heads 4 --sequence 32 --batch 16 "
                              "--micro-batch 1 --tensor-parallel 2 --pipeline-parallel 4 --world-size 16 ";
    Plan p = plan_of(small + "--pipeline-chunks 2");
    Picture picture = draw(p.step(), pipeline_shape(p.o, 2, 16), plan_title(p));
    Json trace = Json::parse(chrome_trace(picture), "a trace");
    long computations = 0, events = 0;
    for (auto& e : trace.at("traceEvents", "a trace").items) {
        std::string name = e.at("name", "an event").text;
        computations += name.rfind("forward ", 0) == 0 || name.rfind("backward ", 0) == 0;
        events++;
    }
    check(computations == 4 * 2 * 8 * 2, text("%ld computations in the trace", computations));
    std::string drawing = svg(picture);
    long rectangles = std::count(drawing.begin(), drawing.end(), 'M');
    long shown = std::count_if(picture.spans.begin(), picture.spans.end(),
                               [](const Span& s) { return s.kind != Span::Message; });
    check(rectangles == shown && shown > computations, text("%ld rectangles of %ld", rectangles, shown));
    for (auto& s : picture.spans)
        if (s.start < -1e-9 || s.end > picture.seconds * 1.5) check(false, "a span outside the step");
    Json j = Json::parse(plan_json(p), "a plan");
    check(j.at("world", "").integer("") == 16 && j.at("stages", "").items.size() == 4, "the plan as JSON");
    check(j.at("stages", "").items[3].at("parameters", "").integer("") == p.stages[3].parameters,
          "its stages");
    const std::string large = "--hardware dgx-h100 --model 6.7B --batch 64 --world-size 16 ";
    Run run = settled_plan("search " + large);
    std::string found = search(run, choose_hardware(run.options));
    std::istringstream lines(found);
    std::string line;
    double before = 0;
    int listed = 0;
    while (std::getline(lines, line)) {
        int t, d, pipe, v, b;
        char recompute[16];
        double s;
        if (sscanf(line.c_str(), "%d %d %d %d %d %15s %lf", &t, &d, &pipe, &v, &b, recompute, &s) != 7)
            continue;
        Plan one = plan_of(large + text("--tensor-parallel %d --pipeline-parallel %d --pipeline-chunks %d "
                                        "--micro-batch %d --recompute %s", t, pipe, v, b, recompute));
        check(t * d * pipe == 16 && std::abs(one.step().seconds - s) < 0.006 && s >= before && s > 0.1, line);
        before = s;
        listed++;
    }
    check(listed == 10, text("%d layouts listed", listed));
}

// what every rank of a layout lists: together exactly the whole model
void test_layouts() {
    ModelShape shape = {12, 32, 8, 16, 257, 264};
    ParameterTable whole = parameter_table(shape);
    for (int t : {1, 2, 4, 8})
        for (int p : {1, 2, 3, 4, 6, 12})
            for (int v = 1; v <= 3; v++)
                for (int d : {1, 3}) {
                    if (shape.L % (p * v) || (p == 1 && v > 1)) continue;
                    std::vector<long> counted(whole.tensors, 0);
                    int copies = 0;
                    bool alike = true, cut = true;
                    for (int stage = 0; stage < p; stage++)
                        for (int tensor = 0; tensor < t; tensor++) {
                            ParameterTable table = parameter_table(shape, {t, tensor, d, p, stage, v});
                            alike = alike && table.count == whole.count && table.tensors == whole.tensors;
                            long owned = 0;
                            for (int owner = 0; owner < d; owner++)
                                for (auto& piece : owned_pieces(table, owner)) owned += piece.n;
                            for (auto& q : table.list) {
                                alike = alike && q.name == whole.list[q.number].name;
                                owned -= q.size;
                                copies += q.copy;
                                if (!q.copy && (q.split || tensor == 0)) counted[q.number] += q.stored();
                            }
                            cut = cut && owned == 0;
                            if (p > 1 && stage == p - 1) {  // both copies of the embedding are cut alike
                                auto& a = table.buckets.back();
                                Bucket b = parameter_table(shape, {t, tensor, d, p, 0, v}).buckets[0];
                                cut = cut && a.elements == b.elements && a.offset % 128 == 0;
                            }
                        }
                    for (auto& q : whole.list) alike = alike && counted[q.number] == q.stored();
                    check(alike && copies == (p > 1 ? t : 0),
                          text("t %d p %d v %d d %d: every value once", t, p, v, d));
                    check(cut, text("t %d p %d v %d d %d: owned pieces", t, p, v, d));
                }
}

// ---- ranks: every call, of every type, on the compute stream and on a channel ----------------------------

template <class T>
void ranks_calls(const comm::Group& g, Stream channel, const char* type) {
    constexpr int n = 1000;  // small whole numbers, so that every type sums them exactly
    auto value = [](int rank, int i) { return (double)((rank * 7 + i * 3) % 11) - 4; };
    auto whole = [&](int i) {
        double sum = 0;
        for (int r = 0; r < g.size; r++) sum += value(r, i);
        return sum;
    };
    std::vector<T> host((size_t)n * g.size), out(host.size());
    T* x = (T*)device_malloc(host.size() * sizeof(T), "a test");
    T* y = (T*)device_malloc(host.size() * sizeof(T), "a test");
    // fills x, makes the call where it belongs, fetches `from` into out
    auto call = [&](Stream where, T* from, auto make) {
        for (size_t i = 0; i < host.size(); i++) host[i] = T((float)value(g.rank, (int)i));
        copy_to_device(x, host.data(), host.size() * sizeof(T), nullptr);
        set_zero(y, host.size() * sizeof(T), nullptr);
        if (where) comm::fork(where, nullptr);
        make(where);
        if (where) comm::join(nullptr, comm::mark(where));
        copy_to_host(out.data(), from, out.size() * sizeof(T), nullptr);
    };
    auto expect = [&](const char* what, bool on_channel, int from, int count, auto wanted) {
        int wrong = 0;
        for (int i = 0; i < count; i++) wrong += (double)(float)out[from + i] != wanted(i);
        check(wrong == 0, text("%s, %s%s: %d of %d values wrong", what, type,
                               on_channel ? ", on a channel" : "", wrong, count));
    };
    int size = n * g.size, left = (g.rank + g.size - 1) % g.size, right = (g.rank + 1) % g.size;
    for (Stream s : {(Stream) nullptr, channel}) {
        call(s, x, [&](Stream s) { comm::all_reduce(g, x, size, comm::Op::Sum, "a test", s); });
        expect("all-reduce, sum", s, 0, size, whole);
        call(s, x, [&](Stream s) { comm::all_reduce(g, x, size, comm::Op::Max, "a test", s); });
        expect("all-reduce, max", s, 0, size, [&](int i) {
            double most = value(0, i);
            for (int r = 1; r < g.size; r++) most = std::max(most, value(r, i));
            return most;
        });
        call(s, x, [&](Stream s) { comm::reduce_scatter(g, x + g.rank * n, x, n, "a test", s); });
        expect("reduce-scatter in place", s, g.rank * n, n, [&](int i) { return whole(g.rank * n + i); });
        call(s, x, [&](Stream s) { comm::all_gather(g, x, x + g.rank * n, n, "a test", s); });
        expect("all-gather in place", s, 0, size, [&](int i) { return value(i / n, i); });
        call(s, x, [&](Stream s) { comm::broadcast(g, x, n, g.size - 1, "a test", s); });
        expect("broadcast", s, 0, n, [&](int i) { return value(g.size - 1, i); });
        if (g.size > 1) {
            call(s, y, [&](Stream s) {  // everybody sends to the right: only together can this end
                comm::group_begin();
                comm::send(g, x, n, right, "a test", s);
                comm::receive(g, y, n, left, "a test", s);
                comm::group_end();
            });
            expect("send and receive", s, 0, n, [&](int i) { return value(left, i); });
        }
    }
    call(nullptr, y, [&](Stream s) { comm::reduce_scatter(g, y, x, n, "a test", s); });
    expect("reduce-scatter", false, 0, n, [&](int i) { return whole(g.rank * n + i); });
    call(nullptr, y, [&](Stream s) { comm::all_gather(g, y, x, n, "a test", s); });
    expect("all-gather", false, 0, size, [&](int i) { return value(i / n, i % n); });
    device_free(x);
    device_free(y);
}

// a replica that differs in one bit is found, with its tensor and rank
void ranks_replicas(int t, int p, int zero, const char* tensor, bool moments, int rank, const char* part) {
    if (comm::world_size() % (t * p)) return;
    Grid grid = make_grid(t, p, false);
    ModelShape shape = {4, 16, 4, 8, 257, 264};
    Model model(shape, grid, {.sequence = t > 1, .owners = zero ? grid.d : 1});
    Optimizer o(model);
    model.memory(true);
    o.memory(model, true);
    initialise(model, &o, 7);
    auto complaint = [&] {
        std::string said;
        try {
            check_replicas(model, o);
        } catch (const Error& e) {
            said = e.what();
        }
        double all = comm::sum_over(grid.world, {(double)!said.empty()}, "who complains")[0];
        return all == 0 ? "none" : said;
    };
    check(complaint() == "none", "replicas that are alike");
    real one = 1;
    floatX x = floatX(0.125f);
    for (auto& piece : o.owned)
        if (comm::world_rank() == rank && moments && model.table.list[piece.parameter].name == tensor)
            copy_to_device(o.m + piece.state, &one, sizeof one, nullptr);
    for (auto& q : model.table.list)
        if (comm::world_rank() == rank && !moments && q.name == tensor)
            copy_to_device(model.weights + q.offset, &x, sizeof x, nullptr);
    std::string said = complaint();
    check(said != "none", text("a change in %s over t %d p %d is noticed", tensor, t, p));
    bool mine = said.find(part) != std::string::npos;
    check(comm::sum_over(grid.world, {(double)mine}, "who names it")[0] > 0,
          text("%s, wants %s", said.c_str(), part));
}

void test_ranks() {
    comm::Group world = comm::make_group("a test", comm::everyone().members);
    Stream channel = comm::make_channel();
    ranks_calls<bf16>(world, channel, "bf16");
    ranks_calls<float>(world, channel, "fp32");
    ranks_calls<double>(world, channel, "fp64");
    ranks_calls<int64_t>(world, channel, "int64");
    std::vector<int64_t> all = comm::gather_numbers(world, {world.rank, 5}, "a test");
    bool right = true;
    for (int r = 0; r < world.size; r++) right = right && all[2 * r] == r && all[2 * r + 1] == 5;
    check(right, "numbers of all ranks");
    check(comm::rank_list({0, 1, 2, 5, 7, 8}) == "0 to 2 5 7 to 8", "a list of ranks");
    // two channels, the second after the first by way of the compute stream, many times over
    Stream second = comm::make_channel();
    double* x = (double*)device_malloc(sizeof(double), "a test");
    double one = 1, got = 0, want = 1;
    copy_to_device(x, &one, sizeof one, nullptr);
    for (int i = 0; i < 20; i++, want *= world.size) {
        Stream s = i % 2 ? second : channel;
        comm::fork(s, nullptr);
        comm::all_reduce(world, x, 1, comm::Op::Sum, "a test", s);
        comm::join(nullptr, comm::mark(s));
    }
    copy_to_host(&got, x, sizeof got, nullptr);
    device_free(x);
    check(got == want, text("a chain over two channels: %g, wants %g", got, want));
    if (world.size != 4) return;
    ranks_replicas(2, 1, 1, "h.1.ln_2.weight", false, 3,
                   "parameters of h.1.ln_2.weight on rank 3 differs from rank");
    ranks_replicas(1, 1, 1, "h.3.attn.c_attn.bias", false, 2,
                   "parameters of h.3.attn.c_attn.bias on rank 2 differs");
    ranks_replicas(1, 2, 0, "h.2.mlp.c_fc.weight", true, 3,
                   "optimizer state of h.2.mlp.c_fc.weight on rank 3");
    ranks_replicas(2, 2, 1, "wte.weight", true, 2,
                   "optimizer state of wte.weight on rank 2 differs from rank 0");
    ranks_replicas(2, 2, 1, "h.0.mlp.c_proj.bias", true, 1,
                   "optimizer state of h.0.mlp.c_proj.bias on rank 1");
}

// ---- tokens, loader, tokenizer ---------------------------------------------------------------------------

std::string make_tokens(const std::string& name, int n, int V, int seed = 1) {
    std::string path = scratch_folder + "/" + name;
    TokenWriter w(path, V == 257 ? "bytes" : "bpe", V, V - 1);
    for (int i = 0; i < n; i++) {
        uint32_t token = (uint32_t)(hash_of(i * 31 + seed) % V);
        w.add(&token, 1);
    }
    w.finish();
    return path;
}

void patch(const std::string& path, size_t offset, std::string bytes) {
    int fd = open(path.c_str(), O_WRONLY);
    if (pwrite(fd, bytes.data(), bytes.size(), (off_t)offset) != (ssize_t)bytes.size())
        check(false, "patching " + path);
    close(fd);
}

void test_loader() {
    for (uint64_t n : {1, 2, 3, 5, 64, 1000, 4097}) {
        std::set<uint64_t> seen;
        for (uint64_t i = 0; i < n; i++) seen.insert(permute(i, n, 9, 0));
        check(seen.size() == n && *seen.rbegin() == n - 1, text("a permutation of %d", (int)n));
    }
    check(permute(0, 1000, 9, 0) != permute(0, 1000, 9, 1) ||
          permute(1, 1000, 9, 0) != permute(1, 1000, 9, 1), "each epoch has its order");
    check(permute(338999999999ull, 339000000000ull, 9, 0) < 339000000000ull, "of 339e9 windows as well");
    for (int V : {257, 70000}) {  // uint16 and uint32
        std::string a = make_tokens("a.bin", 1001, V), b = make_tokens("b.bin", 57, V, 2);
        Loader loader({a, b}, 8, 5);
        loader.V = V;
        check(loader.windows() == 125 + 7 && loader.file_vocabulary() == V, "windows of two files");
        std::vector<int> w(9), v(9), all(1001);
        loader.files[0].read(all.data(), 0, 1001, V);
        loader.window(w.data(), 3);
        loader.window(v.data(), 4);
        check(w[8] == v[0] && w[0] == all[24] && all[5] == (int)(hash_of(5 * 31 + 1) % V),
              "windows overlap by one");
        std::vector<int> count(132, 0);
        for (uint64_t n = 0; n < 2 * 132; n++) count[loader.order(n)]++;
        check(std::count(count.begin(), count.end(), 2) == 132, "every window once an epoch");
    }
    std::string path = make_tokens("c.bin", 100000, 257), whole(MappedFile(path).view());
    auto reads = [&](int V = 257) { std::vector<int> t(100000); TokenFile(path).read(t.data(), 0, 100000, V);
                                   };
    reads();
    refuses("between offsets 64 and", [&] { patch(path, 64, std::string("\1\1", 2)); reads(); });
    write_file(path, whole);
    refuses("damaged between offsets 131136 and", [&] { patch(path, 64 + 2 * 70000, "x"); reads(); });
    write_file(path, whole);
    refuses("the vocabulary has 200", [&] { reads(200); });
    for (size_t n : {3, 30, 63, 64, 1000, (int)whole.size() - 1})
        refuses("", [&] { write_file(path, whole.substr(0, n)); TokenFile f(path); });
    refuses("truncated or damaged", [&] { write_file(path, whole.substr(0, 1000)); TokenFile f(path); });
    refuses("is empty", [&] { write_file(path, ""); TokenFile f(path); });
    refuses("is no token file", [&] { write_file(path, "To be, or not to be"); TokenFile f(path); });
    refuses("cannot be read", [&] { TokenFile f("/nowhere.bin"); });
    refuses("damaged between offsets 0 and 64", [&] { write_file(path, whole);
                                                     patch(path, 16, std::string(8, '\x7f'));
                                         TokenFile f(path); });
    refuses("version 9", [&] { write_file(path, whole); patch(path, 8, "\x09"); TokenFile f(path); });
    refuses("one window wants", [&] { Loader({make_tokens("d.bin", 8, 257)}, 8, 1); });
    refuses("must agree", [&] { Loader({make_tokens("d.bin", 100, 257), make_tokens("e.bin", 100, 300)}, 8,
                                       1); });
    // llm.c and Megatron-LM
    auto bytes = [](auto... values) { std::string s; (s.append((const char*)&values, sizeof values), ...);
                                     return s; };
    std::string header = bytes(20240520, 1, 4) + std::string(1012, 0),
        tokens = bytes((uint16_t)5, (uint16_t)6, (uint16_t)7, (uint16_t)50000);
    std::vector<int> t(4);
    write_file(path, header + tokens);
    TokenFile(path).read(t.data(), 0, 4, 50257);
    check(t == std::vector<int>({5, 6, 7, 50000}), "llm.c's file");
    refuses("token 50000 at offset 1030", [&] { TokenFile(path).read(t.data(), 0, 4, 50000); });
    refuses("truncated or damaged", [&] { write_file(path, header + tokens.substr(1)); TokenFile f(path); });
    write_file(path, tokens);
    std::string magic("MMIDIDX\0\0", 9), index = scratch_folder + "/c.idx";
    auto idx = [&](uint8_t type, int first, long second) {
        return magic + bytes((uint64_t)1, type, (uint64_t)2, (uint64_t)3, first, 1, 0l, second, 0l, 1l, 2l);
    };
    write_file(index, idx(8, 3, 6));
    TokenFile(path).read(t.data(), 0, 4, 50257);
    check(t == std::vector<int>({5, 6, 7, 50000}), "Megatron-LM's pair");
    refuses("has token type 3", [&] { write_file(index, idx(3, 3, 6)); TokenFile f(path); });
    refuses("wants pointer 6", [&] { write_file(index, idx(8, 3, 4)); TokenFile f(path); });
    refuses("its index", [&] { write_file(index, idx(8, 2, 4)); TokenFile f(path); });
    refuses("its header wants", [&] { write_file(index, idx(8, 3, 6).substr(0, 50)); TokenFile f(path); });
    refuses("is no Megatron-LM index", [&] { write_file(index, "nonsense, but long enough");
                                            TokenFile f(path); });
    fs::remove(index);
}

// the recipe: sets mixed by weight, and the batch that grows
void test_recipe() {
    // MT-NLG's fifteen weights (arXiv 2201.11990, table 2)
    std::vector<double> weights = {0.14336, 0.19336, 0.05689, 0.02897, 0.04771, 0.00873, 0.01007, 0.00208,
                                   0.09446, 0.01359, 0.01588, 0.13017, 0.15652, 0.08962, 0.00859};
    Mixture mixture(weights), later(weights);
    double drift = 0;
    std::vector<SetChoice> tail;
    for (int i = 0; i < 1000000; i++) {
        SetChoice c = mixture.next();
        if (i >= 777777 && i < 778777) tail.push_back(c);
        for (size_t k = 0; k < weights.size(); k++)
            drift =
                std::max(drift, std::abs(mixture.weights[k] * (double)mixture.n - (double)mixture.taken[k]));
    }
    check(drift < 1.05, text("the largest drift of a set in 1e6 samples: %.4f", drift));
    double last = 0;
    for (size_t k = 0; k < weights.size(); k++)
        last = std::max(last, std::abs(mixture.weights[k] * 1e6 - (double)mixture.taken[k]));
    check(last <= 1, text("and after them: %.4f", last));
    later.seek(777777);
    bool same = true;
    for (auto& c : tail) {
        SetChoice d = later.next();
        same = same && c.set == d.set && c.index == d.index;
    }
    check(same && tail.size() == 1000, "from sample 777,777 on, the same order");
    Mixture plain({1, 1});
    std::string order;
    for (int i = 0; i < 6; i++) order += (char)('a' + plain.next().set);
    check(order == "abbaba" || order == "ababab", "two equal sets take turns: " + order);
    auto sets = parse_sets({"0.25:a/books3.bin", "3:b.train.bin"});
    check(sets.size() == 2 && sets[0].weight == 0.25 && sets[0].name == "books3" && sets[1].name == "b" &&
          sets[1].files[0] == "b.train.bin", "WEIGHT:FILE");
    check(parse_sets({"a.bin", "b.bin"}).size() == 1 && parse_sets({"a.bin", "b.bin"})[0].files.size() == 2,
          "files without weights are one set");
    refuses("write WEIGHT:FILE for each", [] { parse_sets({"0.5:a.bin", "b.bin"}); });
    refuses("has weight 0", [] { parse_sets({"0:a.bin"}); });
    refuses("has weight -1", [] { parse_sets({"-1:a.bin"}); });
    std::string name = scratch_folder + "/mix.blend";
    write_file(name, "# two\n0.3 a.bin  # the first\n\n\t\n0.7\t/data/b c.bin\n");
    sets = parse_sets({name});
    check(sets.size() == 2 && sets[0].files[0] == scratch_folder + "/a.bin" &&
              sets[1].files[0] == "/data/b c.bin" && sets[1].weight == 0.7,
          "a .blend file");
    write_file(name, "0.3 a.bin\nb.bin\n");
    refuses("mix.blend line 2: \"b.bin\": wants WEIGHT FILE", [&] { parse_sets({name}); });
    write_file(name, "# nothing\n");
    refuses("names no set", [&] { parse_sets({name}); });
    // MT-NLG's ramp: from 32 by 32 to 1920 over 12e9 tokens, then on to 270e9
    Options o = options_of({"--sequence", "2048", "--batch", "1920", "--ramp-start", "32", "--ramp-increment",
                            "32", "--ramp-tokens", "12e9"});
    long steps = 0, in_ramp = 0;
    for (uint64_t samples = 0; (double)samples * 2048 < 270e9; steps++) {
        in_ramp += (double)samples <= 12e9 / 2048;
        samples += batch_after(o, samples);
    }
    check(in_ramp == 14475 && steps == 80087, text("the ramp: %ld steps, %ld in all", in_ramp, steps));
    check(batch_after(o, 0) == 32 && batch_after(o, 5859375) <= 1920 && batch_after(o, 5859376) == 1920,
          "its ends");
}

void test_tokenizer() {
    auto words = [](std::string_view s) {
        std::vector<std::string> out;
        split_words(s, [&](size_t a, size_t b) { out.emplace_back(s.substr(a, b - a)); });
        return out;
    };
    using W = std::vector<std::string>;
    check(words("I'll say it's  fine, 'tis\n\n 42nd!! \t x ") == W({"I", "'ll", " say", " it", "'s", " ",
                                                                    " fine", ",", " '", "tis", "\n\n", " 42",
                                                                    "nd", "!!", " \t", " x", " "}),
                                                                    "English");
    check(words("'S don'T 've'd") == W({"'", "S", " don", "'", "T", " '", "ve", "'d"}),
          "contractions are lower case, without a space");
    check(words("\xc3\xa9t\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xc2\xbd\xe2\x82\xac") ==
              W({"\xc3\xa9t\xc3\xa9", " \xe4\xbd\xa0\xe5\xa5\xbd", " \xc2\xbd", "\xe2\x82\xac"}),
          "letters, numbers and signs beyond ASCII");
    check(words("a\xc2\xa0\xc2\xa0" "b\xe3\x80\x80") == W({"a", "\xc2\xa0", "\xc2\xa0", "b", "\xe3\x80\x80"}),
          "spaces beyond ASCII");
    check(words("a\xff\xc0\x80 \xed\xa0\x80 b\xe4\xbd") == W({"a", "\xff\xc0\x80", " \xed\xa0\x80", " b",
                                                              "\xe4\xbd"}), "bytes that are not UTF-8");
    check(words("  ") == W({"  "}) && words("").empty() && words(" ") == W({" "}) &&
          words("\n\na") == W({"\n", "\n", "a"}), "edges");
    std::string path = scratch_folder + "/small.bpe";
    write_file(path, "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xc4\xa0 w\nl o\n");
    Vocabulary v = Vocabulary::open(path), bytes = Vocabulary::open("bytes");
    check(v.size() == 263 && v.end_of_text == 262, "a token for each byte and merge, and the end of text");
    auto spell = [&](std::string_view s) {
        W out;
        for (int t : encode_text(v, s)) out.push_back(v.tokens[t]);
        return out;
    };
    check(spell("hello hello wlo") == W({"hello", " ", "hello", " w", "lo"}), "merges, the earliest first");
    std::string noise, letters;
    for (int i = 0; i < 20000; i++) {
        noise += (char)hash_of(i);
        letters += "hello"[hash_of(i) % 5];
    }
    for (auto* vocabulary : {&v, &bytes})
        for (auto* s : {&noise, &letters}) {
            std::string back;
            for (int t : encode_text(*vocabulary, *s)) back += vocabulary->tokens[t];
            check(back == *s, "any bytes come back");
        }
    Encoder encoder(v);
    std::string part = letters.substr(0, 50), twice;  // a long word is merged by other code than a short one
    std::vector<uint32_t> a(60), b(60);
    encoder.symbols.clear();
    for (char c : part) encoder.symbols.push_back((uint32_t)v.byte_token[(unsigned char)c]);
    std::vector<uint32_t> start = encoder.symbols;
    encoder.merge_short();
    a = encoder.symbols;
    encoder.symbols = start;
    encoder.merge_long();
    check(a == encoder.symbols, "long and short words merge alike");
    refuses("line 2: \"h qq\"", [&] {
        write_file(path, "h e\nh q\n");
        write_file(path, "#version: 0.2\nh qq\n");
        Vocabulary::open(path);
    });
    refuses("cannot be read", [] { Vocabulary::open("/nowhere.bpe"); });
    refuses("has no merges", [&] {
        write_file(path, "#version: 0.2\n");
        Vocabulary::open(path);
    });
}

// ---- checkpoints -----------------------------------------------------------------------------------------

void test_checkpoint() {
    Options o;
    ModelShape shape = {2, 12, 3, 5, 11, 16};
    std::string dir = scratch_folder + "/checkpoints";
    std::vector<int> windows = some_windows(2, 5, 11);
    Trial trial(o, shape, 2);
    auto save = [&](long keep) {
        RunState s = {trial.step, (uint64_t)trial.step * 2, (uint64_t)trial.step * 10, 7, 3, shape, "bytes"};
        save_checkpoint(dir, s, source_of(trial.model, trial.optimizer), "{}", nullptr, keep);
    };
    for (int i = 0; i < 4; i++) {
        trial.train(windows, 1e-2);
        save(2);
    }
    check(list_checkpoints(dir) == std::vector<std::string>({"step-00000004", "step-00000003"}),
          "the newest two are kept");
    double next = trial.train(windows, 1e-2), after = trial.train(windows, 1e-2);
    Trial other(o, shape, 2);
    std::vector<Checkpoint> found = find_checkpoints(dir);
    load_checkpoint(found[0], other.model, &other.optimizer);
    other.step = found[0].state.step;
    check(found.size() == 2 && other.step == 4 && found[0].state.shape.V == 11, "the newest is found");
    double again = other.train(windows, 1e-2);
    check(again == next && other.train(windows, 1e-2) == after, "goes on to the last bit");
    std::string data = dir + "/step-00000004/rank-00000.bin", whole(MappedFile(data).view());
    patch(data, 100, "x");
    refuses("damaged between offsets", [&] { load_checkpoint(found[0], other.model, &other.optimizer); });
    fs::resize_file(data, whole.size() - 1);
    refuses("truncated", [&] { Checkpoint c(dir + "/step-00000004"); });
    write_file(data, whole);
    patch(dir + "/step-00000004/rank-00000.json", 50, "x");
    refuses("its checksum differs", [&] { Checkpoint c(dir + "/step-00000004"); });
    patch(dir + "/step-00000003/index.json", 60, "9");
    refuses("", [&] { Checkpoint c(dir + "/step-00000003"); });
    refuses("holds no whole checkpoint", [&] { find_checkpoints(dir); });
    refuses("holds no whole checkpoint", [&] { find_checkpoints("/nowhere"); });
    // a tensor put together from boxes, as several ranks would have written it
    TensorSource source = source_of(trial.model, trial.optimizer);
    save(2);
    Checkpoint c(dir + "/" + step_name(trial.step));
    const Parameter& p = c.state.shape.L ? trial.model.table.block(1, UP_W) : trial.model.table.list[0];
    std::vector<real> want, got;
    source.read(want, p, 0);
    auto& pieces = c.pieces["master " + p.name];
    std::string boxes = scratch_folder + "/boxes.bin", bytes;
    std::vector<Checkpoint::Piece> cut;
    for (long half = 0; half < 2; half++) {
        long columns = p.shape[1] / 2, at = (long)bytes.size();
        for (long r = 0; r < p.shape[0]; r++)
            bytes.append((const char*)&want[r * p.shape[1] + half * columns], columns * sizeof(real));
        size_t n = bytes.size() - at;
        cut.push_back({p.shape, {0, half * columns}, {p.shape[0], columns}, boxes, (size_t)at, n,
                       checksum(bytes.data() + at, n), sizeof(real) == 8});
    }
    write_file(boxes, bytes);
    pieces = cut;
    c.read(got, p, 0);
    check(got == want, "a tensor cut in columns comes together");
    pieces[1].start = {INT64_MAX, 0};
    refuses("outside its shape", [&] { c.read(got, p, 0); });
    pieces[1] = cut[0];
    refuses("two pieces over the same values", [&] { c.read(got, p, 0); });
    pieces.pop_back();
    refuses("values", [&] { c.read(got, p, 0); });
    // what is kept: the newest that are whole, up to the one just written; nothing that is not a checkpoint
    // goes
    std::string keeps = scratch_folder + "/keeps", old = dir;
    dir = keeps;
    fs::create_directories(keeps + "/step-by-step1");
    fs::create_directories(keeps + "/step-99999999");
    write_file(keeps + "/step-00000000", "a file");
    for (trial.step = 1; trial.step <= 4; trial.step++) save(9);
    patch(keeps + "/step-00000004/rank-00000.json", 30, "x");
    trial.step = 3;
    save(2);
    std::string left;
    for (auto& name : list_checkpoints(keeps)) left += " " + std::to_string(step_of(name));
    check(left == " 99999999 4 3 2", "damaged and newer folders neither count nor go, left are" + left);
    check(fs::exists(keeps + "/step-by-step1") && fs::exists(keeps + "/step-00000000"),
          "nor does anything else");
    patch(keeps + "/step-00000002/rank-00000.json", 30, "x");
    save(2);
    check(list_checkpoints(keeps).size() == 4 && is_whole(keeps + "/step-00000003"),
          "saved again over itself");
    Vocabulary v = Vocabulary::bytes();
    v.kind = "bpe";
    v.source = "#version: 0.2\nh e\n";
    RunState spoken = {5, 10, 50, 7, 3, shape, "bpe"};
    save_checkpoint(keeps, spoken, source, "{}", &v, 2);
    check(is_whole(keeps + "/step-00000005"), "a checkpoint with its vocabulary");
    patch(keeps + "/step-00000005/vocab.bpe", 15, "x");
    refuses("vocab.bpe: damaged", [&] { Checkpoint damaged(keeps + "/step-00000005"); });
}

// ---- the program -----------------------------------------------------------------------------------------

struct Outcome { int code; std::string out; };  // code: exit status, or 128 + signal

// runs a program with stdout and stderr together; kills it with `kill_signal` after `after` seconds if that
// is > 0
Outcome run(const std::string& command, double after = 0, int kill_signal = SIGKILL, long file_limit = 0) {
    int fds[2];
    if (pipe(fds)) fail("pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        if (file_limit) {
            rlimit limit = {(rlim_t)file_limit, (rlim_t)file_limit};
            setrlimit(RLIMIT_FSIZE, &limit);
        }
        execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), (char*)nullptr);
        _exit(127);
    }
    close(fds[1]);
    if (after > 0) {
        usleep((useconds_t)(after * 1e6));
        kill(child, kill_signal);
    }
    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = read(fds[0], buffer, sizeof buffer)) > 0;) out.append(buffer, n);
    close(fds[0]);
    int status;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out};
}

void program_refuses(const std::string& arguments, const std::string& part,
                     const std::string& program = "train_gpt") {
    Outcome o = run(programs + "/" + program + " " + arguments);
    check(o.code == 1 && o.out.find(part) != std::string::npos,
          text("%s %s: exit code %d, \"%s\", wants 1 and \"%s\"", program.c_str(), arguments.c_str(), o.code,
               o.out.c_str(), part.c_str()));
}

// step -> the line's numbers as text, so that equal means equal to the last bit
std::map<long, std::string> read_metrics(const std::string& path) {
    std::map<long, std::string> out;
    if (access(path.c_str(), F_OK) != 0) return out;
    MappedFile file(path);
    std::string_view left = file.view();
    while (left.find('\n') != left.npos) {
        Json j = Json::parse(left.substr(0, left.find('\n')), path);
        left.remove_prefix(left.find('\n') + 1);
        long step = j.at("step", path).integer(path);
        check(!out.count(step), text("%s has step %ld once", path.c_str(), step));
        out[step] = j.at("loss", path).text + " " + j.at("gradient_norm", path).text + " " +
            j.at("learning_rate", path).text;
    }
    return out;
}

void test_resume() {
    std::string tokens = make_tokens("train.bin", 700, 257), s = scratch_folder;
    auto command = [&](const std::string& name) {
        return programs + "/train_gpt --train " + tokens + " --validation " + tokens +
            " --layers 2 --hidden 24 --heads 3 --sequence 16 --batch 6 --micro-batch 2 --steps 120 "
            "--learning-rate 1e-2 --evaluate-every 5 --evaluate-batches 2 --save-every 3 --save " + s + "/" +
            name + " --metrics " + s + "/" + name + ".jsonl";
    };
    Outcome o = run(command("unbroken"));
    check(o.code == 0 && o.out.find("validation loss") != std::string::npos, "a run to its end: " + o.out);
    auto want = read_metrics(s + "/unbroken.jsonl");
    check(want.size() == 120, "a line of metrics for each step");
    // kill -9 at whatever moment, resume, again and again
    int kills = 0;
    for (double after = 0.02; after < 2; after *= 1.35) {
        bool begun = fs::exists(s + "/killed") && !list_checkpoints(s + "/killed").empty();
        o = run(command("killed") + (begun ? " --resume " + s + "/killed" : ""), after);
        kills += o.code == 128 + SIGKILL;
        if (o.code != 128 + SIGKILL && o.code != 0) check(false, "after kill -9: " + o.out);
    }
    bool begun = !list_checkpoints(s + "/killed").empty();
    o = run(command("killed") + (begun ? " --resume " + s + "/killed" : ""));
    check(o.code == 0, "the last resume: " + o.out);
    check(kills >= 3, text("killed %d times, wants 3 or more", kills));
    check(read_metrics(s + "/killed.jsonl") == want,
          "kill -9 and --resume give the losses of the unbroken run to the last bit");
    std::string a(MappedFile(s + "/unbroken/step-00000120/rank-00000.bin").view()),
        b(MappedFile(s + "/killed/step-00000120/rank-00000.bin").view());
    check(a == b, "and its weights and moments");
    o = run(command("stopped") + " --steps 100000 --save-every 0 --decay-tokens 1e6", 0.5, SIGTERM);
    check(o.code == 0 && list_checkpoints(s + "/stopped").size() == 1,
          "SIGTERM: finishes the step, saves, exits with 0: " + o.out);
    // a disk that is full: the older checkpoint stays
    size_t had = list_checkpoints(s + "/unbroken").size();
    o = run(programs + "/train_gpt --train " + tokens + " --steps 126 --batch 6 --micro-batch 2 --save " + s +
            "/unbroken --resume " + s + "/unbroken", 0, 0, 40000);
    check(o.code == 1 && o.out.find("was not saved") != std::string::npos &&
          o.out.find("older checkpoints are untouched") != std::string::npos, "disk full: " + o.out);
    check(list_checkpoints(s + "/unbroken").size() == had &&
          find_checkpoints(s + "/unbroken")[0].state.step == 120, "the previous checkpoint stays the newest");
    check(!fs::exists(s + "/unbroken/.step-00000126.partial"), "nothing half written remains");
    o = run(programs + "/train_gpt --resume " + s +
            "/unbroken --generate Hi --sample-tokens 5 --tokenizer bytes");
    check(o.code == 0 && o.out.substr(0, 2) == "Hi", "--generate: " + o.out);
    program_refuses("--train " + tokens + " --resume " + s + "/unbroken --layers 3",
                    "the checkpoint has layers 2, the options say 3");
    program_refuses("--train " + tokens + " --resume " + s + "/unbroken --model 124M", "the checkpoint has");
    program_refuses("--train " + tokens + " --resume " + s + "/unbroken --seed 3", "leave --seed out");
    program_refuses("--train " + tokens + " --layers 2 --hidden 24 --heads 3 --sequence 16 --save " + s +
                    "/unbroken", "already holds checkpoints");
    check(find_checkpoints(s + "/unbroken")[0].state.step == 120, "nothing was written over");
}

void test_program() {
    std::string tokens = make_tokens("train.bin", 700, 257), s = scratch_folder,
        small = " --layers 1 --hidden 8 --heads 2 --sequence 8 ";
    check(run(programs + "/train_gpt --help").out.find("--micro-batch") != std::string::npos, "--help");
    program_refuses("", "wants --train FILE");
    program_refuses("--modle 124M", "did you mean --model");
    program_refuses("--train " + tokens + " --model 530", "did you mean 530B");
    program_refuses("--train " + tokens + small + "--heads 3", "does not divide --hidden 8");
    program_refuses("--train " + tokens + small + "--batch 6 --micro-batch 4",
                    "does not divide --batch 6: choose 3 or 6");
    program_refuses("--train " + tokens + small + "--vocabulary 300", "give --vocabulary 257");
    program_refuses("--train /nowhere.bin" + small, "cannot be read");
    program_refuses("--train " + tokens + " --layers 1 --hidden 8 --heads 2 --sequence 700",
                    "one window wants 701");
    program_refuses("--train " + tokens + small + "--resume " + s + "/nothing", "holds no whole checkpoint");
    program_refuses("--generate hello", "give --resume DIR");
    program_refuses("--train " + tokens + small + "--steps 2 --save /proc/here", "cannot be written");
    program_refuses("--train " + tokens + small + "--tokenizer /nowhere.bpe", "cannot be read");
    write_file(s + "/text.txt", "To be, or not to be: that is the question.\n");
    program_refuses("--train " + s + "/text.txt" + small, "make one from text with ./tokenize");
    program_refuses("--vocabulary bytes --output " + s + "/x /nowhere.txt", "cannot be read", "tokenize");
    program_refuses("--vocabulry bytes", "did you mean --vocabulary", "tokenize");
    program_refuses("--vocabulary bytes --output " + s + "/x", "wants a FILE", "tokenize");
    check(!fs::exists(s + "/x.bin") && !fs::exists(s + "/x.bin.partial"),
          "a refused tokenize leaves nothing");
    write_file(s + "/bad.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n");
    program_refuses("--vocabulary bytes --output " + s + "/x " + s + "/bad.jsonl",
                    "bad.jsonl line 2: document: has no \"text\"", "tokenize");
    write_file(s + "/good.jsonl", "{\"text\": \"a\\u00e9\"}\n\n{\"id\": 1, \"text\": \"\"}\n{\"text\": "
                                  "\"b\"}");
    check(run(programs + "/tokenize --vocabulary bytes --output " + s + "/j " + s + "/good.jsonl").code == 0,
          "JSONL");
    TokenFile j(s + "/j.bin");
    std::vector<int> t(j.count);
    j.read(t.data(), 0, j.count, 257);
    check(t == std::vector<int>({'a', 0xc3, 0xa9, 256, 256, 'b', 256}),
          "a document a line, each with its end of text");
    std::string command = programs + "/tokenize --vocabulary bytes --output " + s + "/t ";
    check(run(command + s + "/text.txt").code == 0 &&
          run(programs + "/tokenize --decode " + s +
              "/t.bin").out == std::string(MappedFile(s + "/text.txt").view()), "text comes back");
    check(run("sh -c 'cat " + s + "/text.txt | " + programs + "/tokenize --vocabulary bytes --output " + s +
              "/u -'").code == 0 && MappedFile(s + "/u.bin").view() == MappedFile(s + "/t.bin").view(),
              "standard input is like a file");
    check(run(command + "--validation 0.3 " + s + "/text.txt").code == 0 &&
          TokenFile(s + "/t.train.bin").count + TokenFile(s + "/t.validation.bin").count == 45,
          "one document is split at its end");
    std::string many;
    for (int i = 0; i < 1000; i++) many += text("{\"text\": \"document %d\"}\n", i);
    write_file(s + "/many.jsonl", many);
    check(run(command + "--validation 0.1 " + s + "/many.jsonl").code == 0, "many documents");
    uint64_t held = MappedFile(s + "/t.validation.bin").read<uint64_t>(32, "documents");
    check(held > 60 && held < 140, text("a tenth of 1000 documents is set aside: %d", (int)held));
}

// ---- bench -----------------------------------------------------------------------------------------------

// FLOP/s of the matrix products of one block and the logits, forward and backward, run by themselves
double gemm_rate(const ModelShape& m, int N) {
    long C = m.C, largest = std::max((long)m.Vp, 4 * C);
    std::vector<floatX> wide_host = random_values<floatX>(std::max(N, (int)C) * largest, 1),
        out_host(wide_host.size());
    auto upload = [](const std::vector<floatX>& x) {
        void* p = device_malloc(x.size() * sizeof(floatX), "bench");
        copy_to_device(p, x.data(), x.size() * sizeof(floatX), nullptr);
        return (floatX*)p;
    };
    floatX *a = upload(wide_host), *b = upload(wide_host), *c = upload(out_host);
    real* sum = (real*)device_malloc(largest * C * sizeof(real), "bench");
    set_zero(sum, largest * C * sizeof(real), nullptr);
    double flops = 0, best = INFINITY;
    for (int repeat = 0; repeat < 4; repeat++) {
        synchronize(nullptr);
        double start = seconds();
        flops = 0;
        for (auto [in, out, times] : {std::tuple{C, 3 * C, m.L}, {C, C, m.L}, {C, 4 * C, m.L},
                                      {4 * C, C, m.L}, {C, (long)m.Vp, 1}}) {
            for (int i = 0; i < times; i++) {
                dev::matmul_forward(c, a, b, nullptr, N, (int)in, (int)out, nullptr);
                dev::matmul_backward(c, sum, nullptr, a, b, b, nullptr, N, (int)in, (int)out, true,
                                     nullptr);
                flops += 6.0 * N * (double)in * (double)out;
            }
        }
        synchronize(nullptr);
        best = std::min(best, seconds() - start);
    }
    for (void* p : {(void*)a, (void*)b, (void*)c, (void*)sum}) device_free(p);
    return flops / best;
}

void bench() {
    Options o = options_of({"--model", "124M", "--sequence", "256"});
    ModelShape shape = model_shape(o, 0);
    int B = 4, N = B * shape.T;
    double rate = gemm_rate(shape, N);
    bool flash = uses_flash(o, {});
    Trial trial(o, shape, B, flash), materialised(o, shape, B);
    std::vector<int> windows = some_windows(B, shape.T, shape.V);
    auto step = [&](Trial& t) {
        synchronize(nullptr);
        double start = seconds();
        t.train(windows, 1e-4);
        synchronize(nullptr);
        return seconds() - start;
    };
    double best = INFINITY, other = INFINITY, total = 0;
    int steps = 6;
    step(trial);
    step(materialised);
    for (int i = 0; i < steps; i++) {  // in turn, so that both see the same machine
        profile.on = true;
        double took = step(trial);
        profile.collect(nullptr);
        profile.on = false;
        best = std::min(best, took);
        total += took;
        other = std::min(other, step(materialised));
    }
    double flops = 6.0 * ((double)trial.model.table.count - (double)shape.T * shape.C) +
        6.0 * shape.L * shape.C * shape.T;
    printf("GPT-2 124M, B %d, T %d, %s on %s, %s attention: %.0f tokens/s (best of %d; mean %.0f)\n", B,
           shape.T, PRECISION_NAME, device_name().c_str(), flash ? "flash" : "materialised", N / best, steps,
           N * steps / total);
    printf("%.1f GFLOP/s, %.1f %% of the %.1f GFLOP/s of the matrix products by themselves\n",
           flops * N / best * 1e-9, 100 * flops * N / best / rate, rate * 1e-9);
    for (auto& [name, time] : profile.spent)
        printf("  %-14s %8.1f ms %6.1f %%\n", name.c_str(), 1e3 * time / steps, 100 * time / total);
    auto memory = [](const Trial& t, bool rest) {
        double sum = rest ? 0 : (double)t.optimizer.arena.used;
        for (size_t i = 0; i < t.model.arenas.size(); i++)
            if ((i == 2 || i == 3) == rest) sum += (double)t.model.arenas[i].used;
        return sum;
    };
    printf("memory: %.2f bytes a parameter, and %.1f MB of activations and scratch\n",
           memory(trial, false) / (double)trial.model.table.count, memory(trial, true) * 1e-6);
    if (flash)
        printf(
            "materialised attention in the same minutes: %.2f x the step, %.1f MB of activations and "
            "scratch\n",
            other / best, memory(materialised, true) * 1e-6);
}

// bytes a second, read and written, of a copy on the device
double copy_rate() {
    size_t bytes = host_is_device ? 256 << 20 : 2048UL << 20;
    void *to = device_malloc(bytes, "bench"), *from = device_malloc(bytes, "bench");
    set_zero(to, bytes, nullptr);
    set_zero(from, bytes, nullptr);
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        synchronize(nullptr);
        double start = seconds();
        copy_on_device(to, from, bytes, nullptr);
        synchronize(nullptr);
        best = std::min(best, seconds() - start);
    }
    device_free(to);
    device_free(from);
    return 2 * (double)bytes / best;
}

// seconds of a step that each section takes at least: products at `flops` a second, all else at `bytes`
std::map<std::string, double> floors(const Model& m, double flops, double bytes) {
    std::map<std::string, double> out;
    each_work(m, [&](const Work& work) {
        out[work.section] += work.kind == Work::Memory ? work.bytes / bytes : work.product.flops() / flops;
    });
    double x = master_is_parameter ? 0 : sizeof(floatX), r = sizeof(real), n = (double)m.table.elements;
    out["optimizer"] = n * (7 * r + x) / bytes;
    out["gradient norm"] = n * r / bytes;
    return out;
}

void print_profile(const std::vector<std::string>& words) {
    Options o = options_of(words);
    if (!o.has("model")) o.model = "124M";
    if (!o.sequence && host_is_device) o.sequence = 256;
    ModelShape shape = model_shape(o, 0);
    int B = o.micro_batch ? o.micro_batch : host_is_device ? 4 : 16, N = B * shape.T, steps = 5;
    double flops = gemm_rate(shape, N), bytes = copy_rate();
    Trial trial(o, shape, B, uses_flash(o, {}));
    std::vector<int> windows = some_windows(B, shape.T, shape.V);
    trial.train(windows, 1e-4);
    synchronize(nullptr);
    profile.on = true;
    double start = seconds();
    for (int i = 0; i < steps; i++) trial.train(windows, 1e-4);
    profile.collect(nullptr);
    profile.on = false;
    double took = (seconds() - start) / steps, named = 0;
    printf(
        "%s, B %d, T %d, %s on %s: %.1f ms a step, %.0f tokens/s\nfloor: products at %.4g TFLOP/s, all else "
        "at "
        "%.4g GB/s, both measured here\n%-18s %10s %8s %10s %9s\n",
        o.model.c_str(), B, shape.T, PRECISION_NAME, device_name().c_str(), took * 1e3, N / took,
        flops * 1e-12, bytes * 1e-9, "", "ms", "of step", "floor, ms", "of floor");
    std::map<std::string, double> least = floors(trial.model, flops, bytes);
    for (auto& [name, all] : profile.spent) {
        double spent = all / steps;
        named += spent;
        std::string floor =
            least.count(name) ? text("%10.3f %7.1f %%", least[name] * 1e3, 100 * least[name] / spent) : "";
        printf("%-18s %10.3f %6.1f %% %s\n", name.c_str(), spent * 1e3, 100 * spent / took, floor.c_str());
    }
    printf("%-18s %10.3f %6.1f %%\n", "the rest", (took - named) * 1e3, 100 * (took - named) / took);
}

// evaluation beside training on the same model, and contexts shared beside each alone, in turn
void bench_evaluate() {
    Options o = options_of({"--model", "124M", "--sequence", "256"});
    ModelShape shape = model_shape(o, 0);
    int B = 4;
    Trial trial(o, shape, B, uses_flash(o, {}));
    Model& m = trial.model;
    std::vector<int> windows = some_windows(B, shape.T, shape.V);
    auto train = [&] {
        double start = seconds();
        trial.train(windows, 1e-4);
        synchronize(nullptr);
        return seconds() - start;
    };
    auto evaluate = [&](const EvalFile& file, const ScorePlan& plan) {
        std::vector<Score> scores(file.requests.size());
        double start = seconds();
        for (auto& b : plan.batches) {
            clear_losses(m);
            Batch batch = lay(m, m.slots[0], plan.pack(b, 1));
            chunk_forward(m, 0, m.slots[0], 0, batch, m.ranks);
            model_loss(m, m.slots[0], 0, batch);
            collect(m, plan, b, 0, scores);
        }
        return seconds() - start;
    };
    // tokens of a context and of each of four continuations: about those of the public files
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
        ScorePlan shared(file, shape.T, m.rows(), m.rows(), 1),
            alone(file, shape.T, m.rows(), m.rows(), 1, false);
        double step = INFINITY, together = INFINITY, apart = INFINITY;
        for (int i = 0; i < 4; i++) {
            step = std::min(step, train());
            together = std::min(together, evaluate(file, shared));
            apart = std::min(apart, evaluate(file, alone));
        }
        double trained = m.rows() / step, scored = (double)alone.rows / apart,
               of_shared = (double)shared.rows / together;
        printf(
            "%-10s 4 choices of %d tokens behind %d: training %.0f tokens/s; evaluation %.0f, %.2f x; with "
            "contexts shared %.0f, %.2f x\n",
            kind.name, kind.continuation, kind.context, trained, scored, scored / trained, of_shared,
            of_shared / trained);
        printf(
            "%-10s documents with shared contexts %.2f x as fast as each choice alone (%.2f s and %.2f s)\n",
            "", apart / together, together, apart);
    }
}

#if HAS_KERNELS
// every kernel by itself: GB/s against what a copy reaches, or TFLOP/s; a line of JSON each. On a GPU with
// the sizes of a step of the 124M model, in emulation small: there only to be run.
void bench_kernels() {
    bool small = host_is_device || std::string(DEVICE_NAME) == "emulated";
    int B = small ? 1 : 32, T = small ? 64 : 1024, C = small ? 128 : 768, V = small ? 300 : 50257,
        repeats = small ? 1 : 20;
    int Vp = (V + 127) / 128 * 128, N = B * T;
    long n = (long)N * C, wide = 4 * n, parameters = small ? 20096 : 124000000;
    double x = sizeof(floatX), r = sizeof(real), A = x * (double)n, copy_rate = 0;
    std::vector<void*> owned;
    auto room = [&](size_t bytes) {
        owned.push_back(device_malloc(bytes, "bench"));
        set_zero(owned.back(), bytes, nullptr);
        return owned.back();
    };
    auto xs = [&](long count) { return (floatX*)room((size_t)count * sizeof(floatX)); };
    auto rs = [&](long count) { return (real*)room((size_t)count * sizeof(real)); };
    auto ints = [&](const std::vector<int>& values) {
        int* p = (int*)room(values.size() * sizeof(int));
        copy_to_device(p, values.data(), values.size() * sizeof(int), nullptr);
        synchronize(nullptr);
        return p;
    };
    // least: bytes that must be moved; flops: of products
    auto measure = [&](const std::string& name, double least, double flops, auto run) {
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
    };
    floatX *a = xs(wide), *b = xs(wide), *c = xs(wide), *w = xs(4L * C * C), *bias = xs(4 * C), *o = xs(n);
    real *mean = rs(N), *rstd = rs(N), *dw = rs(4L * C * C), *db = rs(4 * C);
    real* scratch = rs(std::max(layernorm_scratch(C), column_sum_scratch(4 * C)));
    measure("device copy", 2 * x * (double)wide, 0,
            [&] { copy_on_device(a, b, wide * sizeof(floatX), nullptr); });
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
    measure("weight gradient of up", 0, 2.0 * N * 4 * C * C, [&] {
        gpu::matmul_backward(nullptr, dw, nullptr, a, o, w, scratch, N, C, 4 * C, true, nullptr);
    });
    measure("layer norm", 2 * A, 0,
            [&] { gpu::layernorm_forward(o, mean, rstd, a, w, bias, N, C, nullptr); });
    measure("residual and layer norm", 4 * A, 0, [&] {
        gpu::residual_layernorm_forward(b, o, mean, rstd, a, c, bias, w, bias, N, C, nullptr);
    });
    measure("layer norm backward", 4 * A, 0,
            [&] { gpu::layernorm_backward(o, dw, db, a, b, w, mean, rstd, scratch, N, C, true, nullptr); });
    measure("residual", 3 * A, 0, [&] { gpu::residual_forward(o, a, b, bias, N, C, nullptr); });
    measure("gelu", 8 * A, 0, [&] { gpu::gelu_forward(b, a, wide, nullptr); });
    measure("gelu backward", 12 * A, 0,
            [&] { gpu::gelu_backward(b, db, a, scratch, N, 4 * C, true, nullptr); });
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
        FlashScratch flash = {rs(rows * h.NH), rs(rows * shape.out()),
                              (int*)room(flash_turns(shape.B, h.NH, h.T) * sizeof(int))};
        double flops =
            (double)shape.B * h.NH * h.T * h.T * h.HS;  // of one product over the causal half, twice
        measure(text("attention, head size %d, T %d", h.HS, h.T), 0, 2 * flops, [&] {
            gpu::flash_attention_forward(out, lse, qkv, shape, nullptr);
        });
        measure(text("attention backward, head size %d, T %d", h.HS, h.T), 0, 5 * flops, [&] {
            gpu::flash_attention_backward(dqkv, flash, dout, out, lse, qkv, shape, nullptr);
        });
    }
    std::vector<int> some(N);
    for (int i = 0; i < N; i++) some[i] = (int)(hash_of(i) % V);
    std::vector<int> rows_of(N), starts(N + 1), token_counts(V + 1, 0);
    sort_tokens(rows_of.data(), starts.data(), some.data(), N, token_counts);
    int* tokens = ints(some);
    SortedTokens sorted = {ints(rows_of), ints(starts)};
    floatX *wte = xs((long)Vp * C), *wpe = xs((long)T * C), *logits = xs((long)N * Vp);
    real *dwte = rs((long)Vp * C), *dwpe = rs((long)T * C), *losses = rs(N), *most = rs(N), *sums = rs(2 * N);
    measure("embedding", 2 * A, 0, [&] { gpu::embedding_forward(o, tokens, wte, 0, Vp, N, C, nullptr); });
    measure("positions", 2 * A, 0, [&] { gpu::position_forward(o, wpe, nullptr, 0, N, T, C, nullptr); });
    measure("embedding backward", A + 2 * r * (double)n, 0,
            [&] { gpu::embedding_backward(dwte, tokens, sorted, o, 0, Vp, N, C, nullptr); });
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
                        (uint8_t*)room(4L * C * C),
                        (Fp8Scratch::Scale*)room(3 * sizeof(Fp8Scratch::Scale)),
                        (float*)room(fp8_parts * sizeof(float))};
        measure("rounding to fp8, and transposed", (2 * x + 2) * (double)wide, 0, [&] {
            gpu::fp8_round((e5m2*)q, (e5m2*)q_t, f.scales, f.parts, a, N, 4 * C, nullptr);
        });
        if (device_has_fp8())
            measure("up in fp8, rounding included", 0, 2.0 * N * 4 * C * C,
                    [&] { fp8::matmul_forward(b, o, w, bias, f, N, C, 4 * C, nullptr); });
    }
    floatX* weights = xs(parameters);
    real *master = master_is_parameter ? (real*)weights : rs(parameters), *m = rs(parameters),
         *v = rs(parameters), *g = rs(parameters);
    std::vector<uint8_t> of(parameters / trait_span, decays | counts);
    uint8_t* traits = (uint8_t*)room(of.size());
    auto put = [&](const auto& value) {
        auto* p = (std::decay_t<decltype(value)>*)room(sizeof value);
        copy_to_device(p, &value, sizeof value, nullptr);
        synchronize(nullptr);
        return p;
    };
    copy_to_device(traits, of.data(), of.size(), nullptr);
    synchronize(nullptr);
    AdamW* rule = put(AdamW{real(1e-4), real(0.9), real(0.95), real(1e-8), real(0.1), real(0.1), real(0.05)});
    Clip* clip = put(Clip{1, 1});
    Slice* slice = put(Slice{0, parameters, 0, 0, square_sum_cut(parameters)});
    measure("AdamW", (double)parameters * (7 * r + (master_is_parameter ? 0 : x)), 0, [&] {
        gpu::adamw(weights, master, m, v, g, traits, rule, clip, parameters, nullptr);
    });
    double* square = (double*)room(8 * (square_sum_parts + 1));
    measure("gradient norm", (double)parameters * r, 0,
            [&] { gpu::square_sums(square, square + 1, g, traits, slice, 1, nullptr); });
    for (void* p : owned) device_free(p);
}
#endif

// ---- main ------------------------------------------------------------------------------------------------

struct Chapter { const char* name; void (*run)(); };
const Chapter chapters[] = {
    {"rng", test_rng},
    {"options", test_options},
    {"json", test_json},
#if defined(DEVICE_EMULATED)
    {"emulated", test_emulated},
#endif
    {"gradients", test_gradients},
#if HAS_KERNELS
    {"kernels", test_kernels},
#endif
    {"pytorch", test_pytorch},
    {"training", test_training},
    {"segments", test_segments},
    {"scores", test_scores},
    {"tasks", test_tasks},
    {"schedule", test_schedule},
    {"plan",
     [] {
         test_plan_mtnlg();
         test_plan_simulation();
         test_plan_hosts();
         test_plan_advice();
         test_plan_forms();
     }},
    {"layouts", test_layouts},
    {"ranks", test_ranks},
    {"loader", test_loader},
    {"recipe", test_recipe},
    {"tokenizer", test_tokenizer},
    {"checkpoint", test_checkpoint},
    {"resume", test_resume},
    {"program", test_program},
};

int main(int argc, char** argv) {
    comm::start(&argc, &argv);
    std::vector<std::string> wanted(argv + 1, argv + argc);
    programs = fs::absolute(argv[0]).parent_path();
    scratch_folder = fs::temp_directory_path() / text("test_gpt.%d", getpid());
    try {
        if (wanted == std::vector<std::string>{"bench"}) {
            bench();
            return 0;
        }
        if (!wanted.empty() && wanted[0] == "profile") {
            print_profile({wanted.begin() + 1, wanted.end()});
            return 0;
        }
        if (wanted == std::vector<std::string>{"bench-evaluate"}) {
            bench_evaluate();
            return 0;
        }
#if HAS_KERNELS
        if (wanted == std::vector<std::string>{"bench-kernels"}) {
            bench_kernels();
            return 0;
        }
#endif
        fs::create_directories(scratch_folder);
        for (auto& c : chapters) {
            bool named = std::find(wanted.begin(), wanted.end(), c.name) != wanted.end();
            if (!wanted.empty() && !named) continue;
            chapter = c.name;
            int before = passed, failures = failed;
            double start = seconds();
            c.run();
            if (comm::everyone().rank == 0)
                printf("%-11s %5d passed, %d failed, %.1f s\n", c.name, passed - before, failed - failures,
                   seconds() - start);
            fflush(stdout);
        }
    } catch (const std::exception& e) {
        check(false, std::string("stopped: ") + e.what());
    }
    fs::remove_all(scratch_folder);
    if (passed + failed == 0) check(false, "no such chapter");
    std::vector<double> all =
        comm::sum_over(comm::everyone(), {(double)passed, (double)failed}, "passed and failed");
    passed = (int)all[0];
    failed = (int)all[1];
    comm::finish();
    if (comm::everyone().rank > 0) return failed > 0;
    printf("%s, %s: %d passed, %d failed\n", DEVICE_NAME, PRECISION_NAME, passed, failed);
    return failed > 0;
}
