// testing.h   what checks are made of: check(), refuses(), close(); for the chapters of ./test_gpt
#pragma once
#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>
#include "check.h"
#include "device.h"
#include "file_writer.h"
#include "random.h"

namespace fs = std::filesystem;

// set by SANITIZE=thread, which makes kernels ten times slower
#if defined(WATCHED)
constexpr bool is_watched = true;
#else
constexpr bool is_watched = false;
#endif

// by SANITIZE=address, which makes them seven times slower
#if defined(__SANITIZE_ADDRESS__)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

int passed = 0, failed = 0;
const char* chapter = "";
std::string programs;  // the folder of ./train_gpt and the tools
std::string scratch_folder;

void check(bool good, const std::string& what) {
    (good ? passed : failed)++;
    if (!good) printf("FAILED  %s: %s\n", chapter, what.c_str());
}

// the call throws an Error whose message contains `part`
template <class Function>
void refuses(const std::string& part, Function call) {
    try {
        call();
    } catch (const std::exception& e) {
        return check(std::string(e.what()).find(part) != std::string::npos,
                     "says \"" + std::string(e.what()) + "\", expected \"" + part + "\"");
    }

    check(false, "accepted what should say \"" + part + "\"");
}

uint32_t hash_of(uint64_t i) { return philox(11, 22, i).x[0]; }

template <class T>
std::vector<T> random_values(size_t n, uint64_t what, double std_dev = 1) {
    std::vector<T> x(n);
    normals(x.data(), 42, what, 0, (long)n, std_dev);
    return x;
}

template <class T>
std::vector<double> wide(const std::vector<T>& x) {
    std::vector<double> out(x.size());
    for (size_t i = 0; i < x.size(); i++) out[i] = (double)real(x[i]);
    return out;
}

inline std::vector<double> wide(const std::vector<double>& x) { return x; }

// the root mean square of got - want, relative to that of want
template <class A, class B>
double rms_off(const std::vector<A>& got, const std::vector<B>& want) {
    double difference = 0, square = 0;
    for (size_t i = 0; i < want.size(); i++) {
        difference += std::pow((double)real(got[i]) - (double)real(want[i]), 2);
        square += std::pow((double)real(want[i]), 2);
    }
    return std::sqrt(difference / square);
}

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
    check(good, good ? what : text("%s: element %zu of %zu is %.9g, expected %.9g: off by %.2e, at most %.2e",
                                   what.c_str(), at, got.size(), at < got.size() ? got[at] : 0,
                                   at < want.size() ? want[at] : 0, worst, tolerance));
}

// rounding of a result: bf16 keeps 8 bits, so 2^-8 for the store and as much for each of up to three values
// rounded on the way (inputs, scores, probabilities); fp32 sums of up to 1000 terms in two different orders
// differ by about sqrt(1000) * 2^-24 = 2e-6, and a cancellation in layer norm costs another factor 5
const double rounding = sizeof(floatX) == 2 ? 4 * std::ldexp(1, -8) : sizeof(floatX) == 4 ? 1e-5 : 1e-12;
const double sums_tolerance = sizeof(real) == 4 ? 2e-5 : 1e-12;  // of results kept in real

void patch(const std::string& path, size_t offset, std::string bytes) {
    int fd = open(path.c_str(), O_WRONLY);
    if (pwrite(fd, bytes.data(), bytes.size(), (off_t)offset) != (ssize_t)bytes.size())
        check(false, "patching " + path);
    close(fd);
}
