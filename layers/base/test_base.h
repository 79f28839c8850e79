// test_base.h   checks of the ground floor: random numbers, the autotuner
#pragma once
#include "../fast/autotune.h"
#include "testing.h"

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
    // two units in the last place, as its comment says; sums over a softmax need no more
    double worst = 0;
    for (float e = -87; e < 88; e += 0.0123f)
        worst = std::max(worst, std::abs((double)vector_exp(e) / std::exp((double)e) - 1));
    check(worst < 2 * 0x1p-23 && vector_exp(-200.f) == vector_exp(-87.f) && vector_exp(0.f) == 1,
          text("vector_exp is off by %g", worst));
    double u = uniform(1, 2, 3);
    check(u >= 0 && u < 1 && u == uniform(1, 2, 3) && u != uniform(1, 2, 4),
          "uniform is a function of its index");
}
