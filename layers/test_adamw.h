// test_adamw.h   AdamW: gpu against ref; how master weights and moments are kept
#pragma once
#include "adamw.cuh"
#include "run/packed_state.cuh"
#include "run/sum_bits.cuh"
#include "test_kernels.h"

// ---- what is kept ----------------------------------------------------------------------------------------

// every kind of float: exponents, what lies around a tie of bf16, infinities
void master_halves() {
    bool whole = true, nearest = true;
    for (uint32_t upper = 0; upper < 1 << 16; upper++)
        for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
            uint32_t bits = upper << 16 | low;
            float w;
            memcpy(&w, &bits, 4);
            MasterHalves halves = split_master(w);
            real back = join_master(halves.parameter, halves.low_bits);
            if (w != w) {
                whole = whole && back != back && real(halves.parameter) != real(halves.parameter);
                continue;
            }
            whole = whole && memcmp(&back, std::array{real(w)}.data(), sizeof back) == 0;
            nearest = nearest && (low == 0x8000 || real(halves.parameter) == real(floatX(w)));
        }
    check(whole, "a master weight comes back from its halves");
    check(nearest, "its parameter is the nearest, but for ties");
}

// the mean over many roundings of x is x, and each is a neighbour of it
void stochastic_rounding() {
    const int n = 40000;
    for (double x : {1.0, 1.001, -1.0037, 3.14159, 1e-30, -7e20, 0.0}) {
        double sum = 0, step = std::ldexp(1.0, x == 0 ? -149 : std::ilogb(x) - 7);
        bool near = true;
        int above = 0;
        for (int i = 0; i < n; i++) {
            bf16 kept;
            round_stochastically(kept, real(x), rounding_bits(3, real(0.37), real(i * 1e-3)) >> (i % 2 * 16));
            double got = (float)kept;
            near = near && std::abs(got - x) < step && (got == x || x != (double)(float)bf16((float)x));
            sum += got;
            above += std::abs(got) > std::abs(x);
        }
        check(near, text("%g becomes a neighbour", x));
        // deviation of a draw: at most half a step
        check(std::abs(sum / n - x) <= 5 * step / 2 / std::sqrt(n),
              text("the mean of %d roundings of %.9g is %.9g, %d away from 0", n, x, sum / n, above));
    }

    // bits of numbers that differ in little are not alike: each of the 32 is set half of the time
    int set[32] = {};
    for (int i = 0; i < n; i++) {
        uint32_t bits = rounding_bits((uint32_t)(1 + i % 200), real(1 + i / 200 * 0x1p-20), real(1e-4));
        for (int b = 0; b < 32; b++) set[b] += bits >> b & 1;
    }

    int *least = std::min_element(set, set + 32), *most = std::max_element(set, set + 32);
    check(*least > n / 2 - 5 * std::sqrt(n) / 2 && *most < n / 2 + 5 * std::sqrt(n) / 2,
          text("of %d numbers a bit is set in %d to %d", n, *least, *most));
}

// with beta2 = 0.999 a moment of bf16 that is rounded to nearest stands still; this one follows
template <class Moment>
double long_run_of_v() {
    const int n = flag_span * 32;
    std::vector<floatX> parameters = random_values<floatX>(n, 1);
    std::vector<uint16_t> low(n, 0);
    std::vector<Moment> m(n, Moment(0.0f));
    auto v = m;
    std::vector<real> gradients(n, real(0.01));
    std::vector<uint8_t> flags(n / flag_span, 0);
    using State = AdamWState<Moment, !master_is_parameter>;
    State state = {parameters.data(), low.data(), m.data(), v.data()};
    UpdateDecision decision = {1, 1, 1};
    StateCheck sums = {};

    for (uint32_t step = 1; step <= 1000; step++) {
        HyperParameters hyper = {real(1e-4), real(0.9), real(0.999), real(1e-8), 0,
                       real(1 - std::pow(0.9, step)), real(1 - std::pow(0.999, step)), step};
        AdamW<State>{state, gradients.data(), flags.data(), &hyper, &decision, &sums, n}.ref({});
    }

    double mean = 0;
    for (auto& x : v) mean += (double)real(x) / n;
    return mean;
}

// parameters that are all there is of a weight
void rounded_parameters() {
    if constexpr (!master_is_parameter) {
        const int n = 40000;
        for (double w : {1.001, -0.0213}) {
            double sum = 0, step = std::ldexp(1.0, std::ilogb(w) - 7);
            for (int i = 0; i < n; i++) {
                uint32_t chance = rounding_bits(5, real(w), real(i * 1e-3));
                sum += (double)real(AdamWState<bf16, false>::keep(real(w), chance).parameter);
            }
            check(std::abs(sum / n - w) <= 5 * step / 2 / std::sqrt(n),
                  text("the mean of %d parameters of %.9g is %.9g", n, w, sum / n));
        }
    }
}

void test_adamw() {
    master_halves();
    stochastic_rounding();
    rounded_parameters();
    double want = 1e-4 * (1 - std::pow(0.999, 1000)), got = long_run_of_v<bf16>();
    close("v after 1000 steps, in real", std::vector<double>{long_run_of_v<real>()},
          std::vector<double>{want}, 1e-4);
    close("v after 1000 steps, in bf16", std::vector<double>{got}, std::vector<double>{want}, 5e-3);
    // what the header says an update reads and writes for one parameter
    floatX parameter;
    real moment, gradient;
    uint16_t low;
    bf16 short_moment;
    uint16_t* low_bits = master_is_parameter ? nullptr : &low;
    using Kept = AdamWState<real, !master_is_parameter>;
    using Least = AdamWState<bf16, false>;
    Kept state = {&parameter, low_bits, &moment, &moment};
    Least least_state = {&parameter, nullptr, &short_moment, &short_moment};
    auto bytes = [&](const auto& of) {
        AdamW<std::decay_t<decltype(of)>> update = {};
        update.state = of;
        update.gradients = &gradient;
        update.n = 1;
        return tensor_bytes(update.tensors());
    };
    check(bytes(state) == (sizeof(real) == 8 ? 56 : 28) &&
              bytes(least_state) == (sizeof(real) == 8 ? 32 : sizeof(floatX) == 4 ? 20 : 16),
          "bytes that an update reads and writes");
}

// ---- the kernels -----------------------------------------------------------------------------------------

#if HAS_KERNELS
template <class Moment, bool HAS_LOW>
struct BothStates {
    using State = AdamWState<Moment, HAS_LOW>;
    X parameters;
    Both<uint16_t> low;
    Both<Moment> m, v;
    std::vector<real> values[state_kinds];

    explicit BothStates(size_t n)
        : parameters(n), low(n), m(n), v(n),
          values{random_values<real>(n, 1), random_values<real>(n, 3), random_values<real>(n, 2)} {
        for (auto& value : values[MomentV]) value = value * value;
        for (StateKind kind : {Master, MomentM, MomentV}) {
            R in(values[kind]);
            CopyState<State>{in.ref(), ref(), kind, (long)n, true}.ref(nullptr);
            CopyState<State>{in.device, device(), kind, (long)n, true}.gpu(nullptr);
        }
    }

    State ref() {
        return {parameters.ref(), HAS_LOW ? low.ref() : nullptr, m.ref(), v.ref()};
    }

    State device() {
        return {parameters.device, HAS_LOW ? low.device : nullptr, m.device, v.device};
    }

    void upload() {
        synchronize(nullptr);
        parameters.upload();
        low.upload();
        m.upload();
        v.upload();
    }

    void download() {
        parameters.host = parameters.back();
        low.host = low.back();
        m.host = m.back();
        v.host = v.back();
    }

    std::vector<real> on_device(StateKind kind) {
        R out(values[kind].size());
        CopyState<State>{out.device, device(), kind, (long)values[kind].size()}.gpu(nullptr);
        return out.back();
    }

    void compare(const std::string& what) {
        parameters.compare("adamw parameters" + what, rounding);
        for (StateKind kind : {Master, MomentM, MomentV}) {
            std::vector<real> want(values[kind].size());
            CopyState<State>{want.data(), ref(), kind, (long)want.size()}.ref(nullptr);
            // a kernel's sum may be rounded otherwise: then to the other neighbour
            bool rounded = kind == Master ? State::rounds_parameters : sizeof(Moment) < sizeof(real);
            double tolerance = rounded ? 0x1p-7 : sums_tolerance;
            close(text("adamw %s", (const char*[]){"master", "m", "v"}[kind]) + what, on_device(kind), want,
                  tolerance);
        }
    }
};

template <class T>
void flip_bit(Both<T>& array, size_t at, int bit) {
    std::vector<T> all = array.back();
    ((uint8_t*)&all[at])[bit / 8] ^= (uint8_t)(1 << bit % 8);
    copy_to_device(array.device, all.data(), all.size() * sizeof(T), nullptr);
    synchronize(nullptr);
}

template <class Moment, bool HAS_LOW>
void check_adamw(const char* moments) {
    using State = typename BothStates<Moment, HAS_LOW>::State;
    for (long n : {128L, 384L, 70016L}) {
        BothStates<Moment, HAS_LOW> state(n);
        R g(random_values<real>(2 * n, 4));
        std::vector<uint8_t> of(2 * n / flag_span);
        for (size_t i = 0; i < of.size(); i++) of[i] = (uint8_t)(hash_of(i) % 4);
        Both<uint8_t> flags(of);

        HyperParameters how = {real(1e-2), real(0.9), real(0.95), real(1e-8), real(0.1), real(0.19),
                               real(0.0975), 2};

        // two slices, the second one's sum first
        Slice first = {0, n, 0, 2, square_sum_part_count(n)}, second = {n, n, n, 0, square_sum_part_count(n)};
        Both<Slice> slices(std::vector<Slice>{first, second});
        Both<double> sums(std::vector<double>{0, 3, 0, 4}), parts(2 * square_sum_parts);
        both_ways([&] { return SquareSums{sums, parts, g, flags, slices, 2}; });

        std::string size = text("%s %ld", moments, n);
        state.compare(" before a step" + size);
        sums.compare("square sums" + size, 1e-12);
        std::vector<double> plain = {0, 3, 0, 4};  // the loss behind the squares
        for (long i = 0; i < 2 * n; i++)
            if (of[i / flag_span] & flag_in_norm) plain[i < n ? 2 : 0] += (double)g.host[i] * g.host[i];
        close("square sums against a plain loop" + size, sums.host, plain, 1e-12);

        double norm = std::sqrt(plain[0] + plain[1] + plain[2]);
        for (double largest : {0.0, 1e9, 0.5}) {
            Both<UpdateDecision> decision(1);
            Both<StateCheck> state_check(std::vector<StateCheck>(1));
            how.clip = largest;
            Both<HyperParameters> hyper(std::vector<HyperParameters>(1, how));
            both_ways([&] { return DecideUpdate{decision, sums, 3, hyper}; });
            double scale = largest == 0.5 ? 0.5 / (norm + 1e-6) : 1;
            for (const UpdateDecision& c : {decision.host[0], decision.back()[0]})
                close("decision" + size, std::vector<double>{c.norm, (double)c.clip_coefficient},
                      std::vector<double>{norm, scale}, sums_tolerance);

            // from the same values: where a sum is rounded otherwise, so is chance, and two updates later w
            decision.upload();
            state.upload();
            AdamW<State>{state.ref(), g.ref(), flags.ref(), hyper.ref(), decision.ref(), state_check.ref(),
                         n}.ref(nullptr);
            AdamW<State>{state.device(), g.device, flags.device, hyper.device, decision.device,
                         state_check.device, n}.gpu(nullptr);
            state.compare(size);
        }

        // what a step has written the next one reads; one flipped bit is noticed
        auto launch = [&](real max_norm) {
            Both<UpdateDecision> decision(1);
            Both<StateCheck> state_check(std::vector<StateCheck>(1));
            HyperParameters limited = how;
            limited.norm_limit = max_norm;
            limited.clip = 0;
            Both<HyperParameters> given(std::vector<HyperParameters>(1, limited));
            DecideUpdate{decision.device, sums.device, 3, given.device}.gpu(nullptr);
            AdamW<State>{state.device(), g.device, flags.device, given.device, decision.device,
                         state_check.device, n}.gpu(nullptr);
            return state_check.back()[0];
        };

        launch(INFINITY);
        StateCheck one = launch(INFINITY), two = launch(INFINITY);
        check(two.read == one.written, "state is read as it was written" + size);

        auto is_noticed = [&](const char* what, auto& array) {
            StateCheck before = launch(INFINITY);
            flip_bit(array, (size_t)n / 3, (int)(n % (8 * sizeof array.host[0])));
            check(launch(INFINITY).read != before.written,
                  text("a flipped bit of %s is noticed", what) + size);
        };

        is_noticed("parameters", state.parameters);
        if (HAS_LOW) is_noticed("low bits", state.low);
        is_noticed("m", state.m);
        is_noticed("v", state.v);

        StateCheck last = launch(INFINITY), none = launch(real(norm / 2));
        std::vector<real> unchanged = state.on_device(Master);
        StateCheck again = launch(real(norm / 2));
        check(none.read == last.written && none.written == none.read && again.read == none.read,
              "a skipped update reads the state, and leaves it" + size);
        UpdateDecision skip = {norm, 1, 0};
        StateCheck in_ref = {};
        state.download();
        AdamW<State>{state.ref(), g.ref(), flags.ref(), &how, &skip, &in_ref, n}.ref(nullptr);
        check(in_ref.read == none.read && in_ref.written == none.read, "in ref the same" + size);
        check(state.on_device(Master) == unchanged, "no update beyond the norm's limit" + size);
    }
}

// tensors whose size is no multiple of what a thread adds, and what lies behind them
void kernels_add_values() {
    for (long n : {1L, 128L, 257L, 2570L}) {
        R sum(random_values<real>(n + 4, 1)), x(random_values<real>(n + 4, 2));
        std::vector<real> before = sum.host;
        both_ways([&] { return AddValues{sum, x, n}; });
        std::vector<real> after = sum.back();
        check(after == sum.host && sum.host[n - 1] == before[n - 1] + x.host[n - 1],
              text("adding %ld values", n));
        check(std::equal(after.begin() + n, after.end(), before.begin() + n),
              text("what lies behind %ld values stays", n));
    }
}

void kernels_sums() {
    for (long n : {1L, 300L, 300001L}) {
        R x(random_values<real>(n, 1));
        X y(random_values<floatX>(n, 2));
        Both<double> sum(1);
        std::vector<unsigned long long> before(1, 7);
        Both<unsigned long long> bits(before), others(before);
        both_ways([&] { return SumValues{sum, x, n}; });
        sum.compare(text("sum of %ld values", n), 1e-12);
        both_ways([&] { return SumBits<real>{bits, x, n}; });
        both_ways([&] { return SumBits<floatX>{others, y, n}; });
        check(bits.back() == bits.host && others.back() == others.host, text("checksum of %ld values", n));
    }
}

// a slice of more spans than there are parts, and one that ends within a part
void kernels_square_sums() {
    long n = 4096L * square_sum_parts + flag_span, m = 4096 * 3 + flag_span;
    R g(random_values<real>(n + m, 4));
    Both<uint8_t> flags(std::vector<uint8_t>((n + m) / flag_span, flag_in_norm));
    Slice first = {0, n, 0, 0, square_sum_part_count(n)}, second = {n, m, n, 1, square_sum_part_count(m)};
    Both<Slice> slices(std::vector<Slice>{first, second});
    Both<double> sums(2), parts(2 * square_sum_parts);
    both_ways([&] { return SquareSums{sums, parts, g, flags, slices, 2}; });
    std::vector<double> plain(2, 0);
    for (long i = 0; i < n + m; i++) plain[i >= n] += (double)g.host[i] * g.host[i];
    close("square sums of long slices, ref", sums.host, plain, 1e-12);
    close("square sums of long slices", sums.back(), plain, 1e-12);
}

void kernels_adamw() {
    kernels_add_values();
    kernels_square_sums();
    kernels_sums();
    constexpr bool halves = !master_is_parameter;
    check_adamw<real, halves>(" in real");
    check_adamw<bf16, halves>(" in bf16");
    if constexpr (halves) check_adamw<bf16, false>(" in bf16, no master weights");
}
#endif
