// test_kernels.h   gpu against ref: layer norm, GELU, linear layers, the autotuner
#pragma once
#include <thread>
#include <filesystem>
#include "base/testing.h"
#include "fast/fp8_linear.h"
#include "layernorm.cuh"
#include "linear.cuh"

inline bool computes_on_device = false;  // in both_ways

#if HAS_KERNELS
// a host vector and its copy on the device
template <class T>
struct Both {
    std::vector<T> host;
    T* device;
    explicit Both(std::vector<T> values) : host(std::move(values)) {
        device = (T*)device_malloc(std::max((size_t)1, host.size() * sizeof(T)), "a test");
        upload();
    }

    explicit Both(size_t n) : Both(std::vector<T>(n)) {  // an output: poisoned on the device
        std::vector<unsigned char> poison(n * sizeof(T), 0xFF);
        copy_to_device(device, poison.data(), poison.size(), nullptr);
        synchronize(nullptr);
    }

    Both(const Both&) = delete;
    ~Both() { device_free(device); }
    T* ref() { return host.data(); }
    operator T*() { return computes_on_device ? device : host.data(); }
    void upload() {
        copy_to_device(device, host.data(), host.size() * sizeof(T), nullptr);
        synchronize(nullptr);  // ref may write there next
    }

    std::vector<T> back() const {
        std::vector<T> out(host.size());
        copy_to_host(out.data(), device, out.size() * sizeof(T), nullptr);
        return out;
    }

    void compare(const std::string& what, double tolerance) const { close(what, back(), host, tolerance); }
};

// computes the operation that make() returns, with Both<T> for its tensors, by ref() and by gpu()
template <class Make>
void both_ways(Make make) {
    computes_on_device = false;
    make().ref(nullptr);
    computes_on_device = true;
    make().gpu(nullptr);
}

// column sums that backward makes on its way, beside the fp64 sums of the matrix that it wrote, as wide as
// `out`: the first run sets them, a second adds
struct SumsOnTheWay {
    Both<real> out, scratch;
    std::vector<double> wanted;
    bool accumulate = false;
    explicit SumsOnTheWay(long columns)
        : out(columns), scratch(column_sum_scratch((int)columns)), wanted(columns, 0) {}

    void compare(const std::string& what, const std::vector<floatX>& rows) {
        for (size_t i = 0; i < rows.size(); i++) wanted[i % wanted.size()] += (double)real(rows[i]);
        // what was summed is not rounded yet: 2^-9 a value
        close(what, out.back(), wanted, rounding + 1e-6);
        accumulate = true;
    }
};

// in emulation a block's threads run in an order that the seed decides
template <class Checks>
void in_several_orders(Checks checks) {
#if defined(DEVICE_EMULATED)
    for (unsigned seed : {1u, 2u, 3u}) {
        emulated::seed = seed;
        checks();
        if (is_watched || is_sanitized) break;  // what these find does not depend on the order
    }

    emulated::seed = 1;
#else
    checks();
#endif
}

using X = Both<floatX>;
using R = Both<real>;

// close() for attention, whose first positions average few values and are larger, with their errors, than the
// rest: each position is divided by its own root mean square where that exceeds the whole's. `parts`: 1 for
// o, 3 for dqkv
void close_by_position(const std::string& what, const std::vector<floatX>& got_,
                       const std::vector<floatX>& want_, const AttentionShape& a, int parts,
                       double tolerance) {
    std::vector<double> got = wide(got_), want = wide(want_);
    size_t row = want.size() / ((size_t)a.B * a.T), part = row / (size_t)parts;
    std::vector<double> squares((size_t)(a.T * parts)), counts(squares.size());
    auto position = [&](size_t i) { return i / row % (size_t)a.T * (size_t)parts + i % row / part; };
    double all = 0;

    for (size_t i = 0; i < want.size(); i++) {
        squares[position(i)] += want[i] * want[i];
        counts[position(i)] += 1;
        all += want[i] * want[i];
    }
    all /= (double)want.size();
    for (size_t i = 0; i < want.size(); i++) {
        double mean = squares[position(i)] / counts[position(i)];
        double larger = std::sqrt(std::max(1.0, mean / (all + 1e-300)));
        got[i] /= larger;
        want[i] /= larger;
    }
    close(what, got, want, tolerance);
}

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
                        {1, 20480},
                        {4096, 8}}) {  // more rows than parts of 64
        X x(random_values<floatX>(N * C, 1)), w(random_values<floatX>(C, 2)), b(random_values<floatX>(C, 3)),
            y(N * C);
        X dy(random_values<floatX>(N * C, 4)), dx(random_values<floatX>(N * C, 5));
        R mean(N), rstd(N), dw(random_values<real>(C, 6)), db(random_values<real>(C, 7)),
            dbias(random_values<real>(C, 10)), scratch(ln_scratch(C)), parts(column_sum_scratch(C));
        std::string size = text(" %d x %d", N, C);

        both_ways([&] { return LayerNormForward{y, {mean, rstd}, x, w, b, N, C}; });
        y.compare("layernorm y" + size, rounding);
        mean.compare("layernorm mean" + size, sums_tolerance);
        rstd.compare("layernorm rstd" + size, sums_tolerance);

        X made(N * C), f(random_values<floatX>(N * C, 8)), bias(random_values<floatX>(C, 9));
        both_ways([&] { return LayerNormForward{y, {mean, rstd}, nullptr, w, b, N, C, made, x, f, bias}; });
        made.compare("layernorm's residual" + size, rounding);
        y.compare("layernorm of it" + size, 2 * rounding);

        for (bool add : {false, true}) {
            both_ways([&] {
                return LayerNormBackward{dx, dw, db, dy, x, w, {mean, rstd}, scratch, N, C, add};
            });
            std::string what = (add ? ", added to" : ", set") + size;
            dx.compare("layernorm dx" + what, (1 + add) * rounding);
            dw.compare("layernorm dw" + what, sums_tolerance);
            db.compare("layernorm db" + what, sums_tolerance);

            // dx differs by a rounding here and there, and so do its sums
            both_ways([&] { return BiasBackward{dbias, dx, parts, N, C, add}; });
            dbias.compare("bias" + what, sizeof(floatX) == 2 ? rounding : sums_tolerance);
        }
    }

    // rows whose mean is a thousand times their deviation: E[x^2] - mean^2 would have no digit left. The
    // mean's own rounding is 6e-5 of a deviation
    int N = 7, C = 300;
    std::vector<floatX> rows = random_values<floatX>(N * C, 1, sizeof(floatX) == 2 ? 8 : 1);
    for (floatX& each : rows) each = floatX(real(each) + 1000);
    X x(rows), w(random_values<floatX>(C, 2)), b(random_values<floatX>(C, 3)), y(N * C);
    R mean(N), rstd(N);
    both_ways([&] { return LayerNormForward{y, {mean, rstd}, x, w, b, N, C}; });
    y.compare("layernorm of shifted rows", std::max(rounding, sizeof(real) == 4 ? 1e-3 : 0));
    for (int n = 0; n < N; n++) {
        double sum = 0, squares = 0;
        for (int c = 0; c < C; c++) sum += (double)real(rows[n * C + c]);
        for (int c = 0; c < C; c++) squares += std::pow((double)real(rows[n * C + c]) - sum / C, 2);
        double want = 1 / std::sqrt(squares / C + 1e-5);
        for (real got : {rstd.host[n], rstd.back()[n]})
            check(std::abs((double)got / want - 1) < 1e-4, text("rstd of shifted row %d", n));
    }
}

void kernels_gelu() {
    for (auto [N, C] : {std::pair{1, 1}, {1, 255}, {17, 256}, {127, 40}, {1000, 33}}) {
        long n = (long)N * C;
        X x(random_values<floatX>(n, 1, 2)), y(n), d(random_values<floatX>(n, 2));
        std::string size = text(" %d x %d", N, C);
        both_ways([&] { return GeluForward{y, x, N, C}; });
        y.compare("gelu y" + size, rounding);
        for (bool add : {false, true}) {
            R db(random_values<real>(C, 3)), sums(column_sum_scratch(C)), of_ref(C);
            ref::gelu_backward(d.ref(), of_ref.ref(), x.ref(), nullptr, N, C, add, nullptr);
            gpu::gelu_backward(d.device, db.device, x.device, sums.device, N, C, add, nullptr);
            d.compare("gelu dx" + size, rounding);
            // of the kernel's own dx, as a value may be rounded the other way
            ref::column_sum(db.ref(), d.back().data(), nullptr, N, C, add, nullptr);
            db.compare("gelu db" + std::string(add ? ", added to" : ", set") + size, sums_tolerance);
        }
    }
}

// that the choice was looked up which the test has made: its key is the program's
void is_used(const std::string& key, int n) {
    bool used = autotuner.used.count(autotuner.hash_of(key));
    check(used == fits_epilogue(n), "the choice is the test's: " + key);
}

void kernels_matmul() {
    for (auto [N, C, OC] : {std::tuple{1, 1, 1}, {3, 5, 7}, {17, 33, 9}, {64, 40, 72}, {100, 96, 128}}) {
        X x(random_values<floatX>(N * C, 1)), w(random_values<floatX>(OC * C, 2)),
            b(random_values<floatX>(OC, 3)), y(N * OC), plain(N * OC);
        X dy(random_values<floatX>(N * OC, 4)), dx(N * C);
        R dw(random_values<real>(OC * C, 5));
        std::string size = text(" %d x %d x %d", N, C, OC);
        both_ways([&] { return LinearForward{y, x, w, b, N, C, OC}; });
        y.compare("matmul y" + size, rounding);
        both_ways([&] { return LinearForward{plain, x, w, nullptr, N, C, OC}; });
        plain.compare("matmul y without bias" + size, rounding);
        X residual(random_values<floatX>(N * OC, 6));
        for (bool fused : {false, true}) {  // the bias, in the epilogue
            std::string key = text("bias and residual " PRECISION_NAME " %d x %d x %d", N, OC, C);
            autotuner.measured[key] = {fused, 0};
            autotuner.generation++;
            both_ways([&] { return LinearForward{y, x, w, b, N, C, OC, residual}; });
            y.compare("matmul y on a residual" + size, (fused ? 1 : 2) * rounding);
            is_used(key, OC);
        }
        for (bool add : {false, true}) {
            both_ways([&] { return LinearBackward{dx, dw, dy, x, w, N, C, OC, add}; });
            std::string what = std::string(add ? ", added to" : ", set") + size;
            dx.compare("matmul dx" + what, rounding);
            dw.compare("matmul dw" + what, sums_tolerance);
        }
    }

    // GELU behind or before a layer, in a pass of its own and in the product's epilogue
    for (auto [N, C, OC, fused] : {std::tuple{3, 5, 7, false}, {17, 40, 72, false}, {17, 40, 72, true},
                                   {100, 96, 128, true}}) {
        std::string size = text(PRECISION_NAME " %d x %d x %d", N, C, OC),
                    what = (fused ? ", fused " : " ") + size;
        std::string forward = text("GELU " PRECISION_NAME " %d x %d x %d", N, OC, C),
                    backward = "GELU backward with sums " + size;
        autotuner.measured[forward] = autotuner.measured[backward] = {fused, 0};
        autotuner.generation++;
        X x(random_values<floatX>(N * C, 1)), w(random_values<floatX>(OC * C, 2)),
            b(random_values<floatX>(OC, 3)), y(N * OC), up(N * OC);
        both_ways([&] { return LinearGeluForward{y, up, x, w, b, N, C, OC}; });
        up.compare("up" + what, rounding);
        y.compare("gelu of up" + what, 2 * rounding);
        X dy(random_values<floatX>(N * OC, 4)), before(random_values<floatX>(N * C, 5, 2)), dup(N * C);
        R dw(random_values<real>(OC * C, 5)), db(random_values<real>(C, 6)), scratch(column_sum_scratch(C));
        // ref from its parts, the device by what a step runs
        LinearBackward{dup.ref(), dw.ref(), dy.ref(), x.ref(), w.ref(), N, C, OC, true}.ref(nullptr);
        ref::gelu_backward(dup.ref(), db.ref(), before.ref(), nullptr, N, C, true, nullptr);
        compute(LinearOfGeluBackward{dup.device, dw.device, db.device, dy.device, x.device, before.device,
                                     w.device, scratch.device, N, C, OC, true}, nullptr);
        // in fp32, cuBLASLt's own slope of GELU is off by up to 5e-5 on an H200
        bool rough = fused && !host_is_device && sizeof(floatX) == 4;
        dup.compare("gradient of up" + what, rough ? 1e-4 : 2 * rounding);
        dw.compare("dw behind gelu" + what, sums_tolerance);
        db.compare("bias gradient before gelu" + what, rough ? 1e-3 : 4 * rounding);
        is_used(forward, OC);
        is_used(backward, C);
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
              std::isnan(fp8_scale(INFINITY, 448).scale) && fp8_scale(3.2e38f, 448).scale < 1e-30f,
          "scales are powers of two");

    for (auto [N, C] : {std::pair{16, 16}, {48, 80}, {1008, 144}, {64, 256}}) {
        X x(random_values<floatX>(N * C, 1, 1e-3));
        Both<uint8_t> q(N * C), q_t(N * C);
        Both<Fp8Scale> scale(1);
        Both<float> parts(most_fp8_parts(C));
        std::string size = text(" %d x %d", N, C);
        WantedScale wanted = {scale.ref(), nullptr, e5m2::largest},
                    on_device = {scale.device, parts.device, e5m2::largest};
        auto same_scale = [&](const char* what) {
            check(scale.back()[0].scale == scale.host[0].scale, what + size);
        };

        ref::fp8_find_scale(wanted, x.ref(), N * C, nullptr);
        gpu::fp8_find_scale(on_device, x.device, N * C, nullptr);
        same_scale("scale");
        ref::fp8_round((e5m2*)q.ref(), (e5m2*)q_t.ref(), scale.ref(), x.ref(), N, C, nullptr);
        gpu::fp8_round((e5m2*)q.device, (e5m2*)q_t.device, scale.device, x.device, N, C, nullptr);
        check(q.back() == q.host && q_t.back() == q_t.host, "rounded to e5m2, and transposed" + size);

        // an infinity must not become a number: all are NaN then
        std::vector<floatX> infinite(N * C, floatX(1));
        infinite[N * C / 2] = floatX(-INFINITY);
        X bad(infinite);
        gpu::fp8_find_scale(on_device, bad.device, N * C, nullptr);
        gpu::fp8_round((e5m2*)q.device, (e5m2*)q_t.device, scale.device, bad.device, N, C, nullptr);
        std::vector<uint8_t> bits = q.back(), bits_t = q_t.back();
        auto is_nan = [](uint8_t each) { return std::isnan((float)std::bit_cast<e5m2>(each)); };
        check(std::all_of(bits.begin(), bits.end(), is_nan) &&
                  std::all_of(bits_t.begin(), bits_t.end(), is_nan), "an infinity" + size);

        // the largest value stands last, and what GELU makes of it decides
        std::vector<floatX> ups = random_values<floatX>(N * C, 7), dys = random_values<floatX>(N * C, 8);
        ups.back() = floatX(700);
        dys.back() = floatX(900);
        X up(ups), y(N * C), dy(dys);
        R db(C), sums(column_sum_scratch(C));
        gpu::fp8_find_scale<true>(on_device, up.device, N * C, nullptr);
        ref::fp8_find_scale<true>(wanted, up.ref(), N * C, nullptr);
        same_scale("scale of gelu's output");
        check(scale.host[0].scale == fp8_scale(700, e5m2::largest).scale, "decided by the largest" + size);
        gpu::fp8_round<true>((e4m3*)q.device, (e4m3*)q_t.device, scale.device, up.device, N, C, nullptr);
        std::vector<uint8_t> at_once = q.back(), at_once_t = q_t.back();
        GeluForward{y.device, up.device, N, C}.gpu(nullptr);
        gpu::fp8_round((e4m3*)q.device, (e4m3*)q_t.device, scale.device, y.device, N, C, nullptr);
        check(q.back() == at_once && q_t.back() == at_once_t, "GELU and rounding, at once or not" + size);
        gpu::fp8_gelu_backward(dy.device, db.device, up.device, sums.device, N, C, false, on_device, nullptr);
        ref::fp8_gelu_backward(dy.ref(), db.ref(), up.ref(), nullptr, N, C, false, wanted, nullptr);
        same_scale("scale of gelu's dx");
        dy.compare("gelu's dx, with its scale" + size, rounding);
        ref::column_sum(db.ref(), dy.back().data(), nullptr, N, C, false, nullptr);
        db.compare("gelu's db, with a scale" + size, sums_tolerance);
        check(scale.host[0].scale == fp8_scale(900, e5m2::largest).scale, "decided by the largest" + size);
    }

    int N = 48, C = 80, OC = 112;
    X x(random_values<floatX>(N * C, 1)), w(random_values<floatX>(OC * C, 2, 0.02)),
        b(random_values<floatX>(OC, 3)), dy(random_values<floatX>(N * OC, 4, 0.3));
    X y(N * OC), dx(N * C), want_y(N * OC), want_dx(N * C);
    R dw(random_values<real>(OC * C, 5)), want_dw(dw.host);
    Both<uint8_t> rows(N * OC), dys(N * OC), dys_t(N * OC), copies(OC * C), transposed(OC * C), x_t(N * C);
    Both<Fp8Scale> scales(4);
    Both<float> parts(most_fp8_parts(OC));
    Fp8Input kept = {(e4m3*)x_t.device, scales.device + 3};
    Fp8Weights weights = {w.device, (e4m3*)copies.device, (e4m3*)transposed.device, scales.device + 2,
                          OC * C};
    Fp8Scratch f = {rows.device, dys.device, dys_t.device, scales.device, scales.device + 1, parts.device,
                    weights};
    fp8::round_weight(w.device, f, C, OC, nullptr);
    bool biased = sizeof(floatX) == 2;  // beside a result in fp32, cuBLASLt takes a bias in bf16 only
    LinearForward forward_layer = {y.device, x.device, w.device, biased ? b.device : nullptr, N, C, OC};
    LinearBackward backward_layer = {dx.device, dw.device, dy.device, nullptr, w.device, N, C, OC, true};
    compute(InFp8<LinearForward>{forward_layer, f, {kept}}, nullptr);
    compute(InFp8<LinearBackward>{backward_layer, f, {kept}}, nullptr);
    LinearForward{want_y.ref(), x.ref(), w.ref(), biased ? b.ref() : nullptr, N, C, OC}.ref(nullptr);
    LinearBackward{want_dx.ref(), want_dw.ref(), dy.ref(), x.ref(), w.ref(), N, C, OC, true}.ref(nullptr);

    // a rounding is off by up to 2^-4 (e4m3) or 2^-3 (e5m2) of a value, in the mean by 1/sqrt(3) of that, two
    // together by the root of their squares
    double forward = std::sqrt(2.0) / 16 / std::sqrt(3.0),
           backward = std::sqrt(1 / 256.0 + 1 / 64.0) / std::sqrt(3.0);
    double y_off = rms_off(y.back(), want_y.host), dx_off = rms_off(dx.back(), want_dx.host),
           dw_off = rms_off(dw.back(), want_dw.host);
    check(y_off < forward && y_off > forward / 16, text("a layer in fp8: y is off by %g", y_off));
    check(dx_off < backward && dx_off > backward / 16, text("a layer in fp8: dx is off by %g", dx_off));
    check(dw_off < backward && dw_off > backward / 16, text("a layer in fp8: dw is off by %g", dw_off));

    // the two of the MLP: GELU behind a layer, whose output is kept rounded, and its gradient before one
    if (biased) {
        X up(N * OC), z(N * OC), before(random_values<floatX>(N * C, 6, 2)), want_d_up(N * C);
        R db(random_values<real>(C, 7)), sums(column_sum_scratch(C));
        Both<uint8_t> z_t(N * OC);
        Fp8Input of_gelu = {(e4m3*)z_t.device, scales.device + 1};
        compute(InFp8<LinearGeluForward>{{z.device, up.device, x.device, w.device, b.device, N, C, OC}, f,
                                         {.x = kept, .y = of_gelu}}, nullptr);
        LinearGeluForward{z.ref(), up.ref(), x.ref(), w.ref(), b.ref(), N, C, OC}.ref(nullptr);
        double up_off = rms_off(up.back(), up.host);
        check(up_off < forward && up_off > forward / 16, text("GELU in fp8: up is off by %g", up_off));
        std::vector<double> rounded(N * OC);  // from its transpose
        std::vector<uint8_t> codes = z_t.back();
        real inverse = real(scales.back()[1].inverse);
        for (int n = 0; n < N; n++)
            for (int c = 0; c < OC; c++)
                rounded[n * OC + c] = (double)((float)std::bit_cast<e4m3>(codes[c * N + n]) * inverse);
        double z_off = rms_off(rounded, z.host);
        check(z_off < 1.5 * forward && z_off > forward / 16, text("GELU in fp8: off by %g", z_off));

        R dw_of(random_values<real>(OC * C, 5));
        f.d_up_scale = scales.device + 1;
        LinearOfGeluBackward layer = {dx.device, dw_of.device, db.device, dy.device, nullptr, before.device,
                                      w.device, sums.device, N, C, OC, true};
        compute(InFp8<LinearOfGeluBackward>{layer, f, {kept}}, nullptr);
        LinearOfGeluBackward{want_d_up.ref(), dw_of.ref(), db.ref(), dy.ref(), x.ref(), before.ref(), w.ref(),
                             nullptr, N, C, OC, true}.ref(nullptr);
        double d_off = rms_off(dx.back(), want_d_up.host), sums_off = rms_off(dw_of.back(), dw_of.host),
               b_off = rms_off(db.back(), db.host);
        check(d_off < backward && d_off > backward / 16, text("before GELU in fp8: dx is off by %g", d_off));
        check(sums_off < backward && sums_off > backward / 16, text("dw of GELU's is off by %g", sums_off));
        check(b_off < backward && b_off > backward / 64, text("db before GELU is off by %g", b_off));
        compute(InFp8<LinearForward>{forward_layer, f, {kept}}, nullptr);  // as before, for what follows
        compute(InFp8<LinearBackward>{backward_layer, f, {kept}}, nullptr);
    }

    // what whoever made x or dy has done is not done again, and gives the same bits
    auto before = y.back(), dx_before = dx.back();
    set_zero(y.device, before.size() * sizeof(floatX), nullptr);
    set_zero(dx.device, dx_before.size() * sizeof(floatX), nullptr);
    forward_layer.x = nullptr;
    f.d_up_scale = f.dy_scale;
    compute(InFp8<LinearForward>{forward_layer, f, {.x = kept, .x_is_rounded = true}}, nullptr);
    compute(InFp8<LinearBackward>{backward_layer, f, {.x = kept, .dy_is_scaled = true}}, nullptr);
    auto same_bits = [](const auto& a, const auto& b) {
        return !memcmp(a.data(), b.data(), a.size() * sizeof a[0]);
    };
    check(same_bits(y.back(), before) && same_bits(dx.back(), dx_before), "a layer in fp8: scales given");
}

// choices that were timed are kept, and those that stand first in the file win
void kernels_tuning() {
    std::string path = scratch_folder + "/choices";
    fs::create_directories(scratch_folder);
    fs::remove(path);
    Autotuner a, b, other;
    a.open(path, "GPU 1");
    b.open(path, "GPU 1");
    auto run = [](int) { return true; };
    check(a.choose("x", 3, 1, nullptr, run) == 1 && a.measured.empty(), "what is not timed is as usual");
    a.on = b.on = true;
    int first = a.choose("x = y", 3, 1, nullptr, run);
    check(a.choose("can", 3, 0, nullptr, [](int way) { return way == 2; }) == 2, "only what can is chosen");
    check(a.choose("none", 2, 1, nullptr, [](int) { return false; }) == 1, "nothing can: as usual");
    a.measured.erase("none");
    b.measured["x = y"] = {first ^ 1, 1};
    b.measured["z"] = {4, 1};
    a.save();
    b.save();
    std::vector<std::thread> together;

    std::vector<Autotuner> many(8);
    for (int i = 0; i < 8; i++) {
        many[i].open(path, "GPU 1");
        many[i].measured["both"] = {i, 1};
        many[i].measured[text("of %d", i)] = {i, 1};
        together.emplace_back([&many, i] { many[i].save(); });
    }

    for (auto& t : together) t.join();
    bool agreed = true;
    for (int i = 0; i < 8; i++) {
        many[i].save();
        agreed = agreed && many[i].measured.count(text("of %d", 7 - i)) &&
            many[i].measured["both"].number == many[0].measured["both"].number;
    }

    check(agreed, "eight that save together: all are kept, and the first holds for all");
    check(b.measured["x = y"].number == first && b.measured["can"].number == 2 && b.measured["z"].number == 4,
          "choices of two are joined, the first stays");
    a.open(path, "GPU 1");
    check(a.measured.size() == 12 && a.choose("z", 5, 0, nullptr, run) == 4, "choices are read again");
    check(a.choose("z", 4, 0, nullptr, [](int way) { return way == 3; }) == 3,
          "one that is no more is timed anew");
    other.open(path, "GPU 2");
    check(other.measured.empty(), "another machine's choices are not used");
    std::string good = std::string(MappedFile(path).view());
    for (std::string bad : {std::string(""), good.substr(0, 10), good + "k = 1", good + "k = -1 2\nl = 1 2\n",
                            good + "k = 1 2 3\nl = 1 2\n", good + " = 1 2\n", good + std::string(1, '\0')}) {
        write_file(path, bad);
        other.open(path, "GPU 1");
        check(other.measured.size() == (bad.size() < good.size() ? 0 : 12), "a damaged file of choices");
    }
}
#endif
