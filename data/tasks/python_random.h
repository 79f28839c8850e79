// python_random.h   Python's random.Random(seed), to get lm-evaluation-harness's order of documents and shots
//   MT19937 (Matsumoto and Nishimura, 1998), seeded by init_by_array([seed]) as CPython does; below(n) draws
//   as many bits as n has until the number is below n; shuffle and sample as in CPython 3's random.py.
#pragma once
#include <math.h>
#include <stdint.h>
#include <set>
#include <utility>
#include <vector>

struct PythonRandom {
    static constexpr int n = 624, m = 397;
    uint32_t state[n];
    int at = n;

    explicit PythonRandom(uint32_t seed) {
        auto mixed = [&](int i) { return state[i - 1] ^ state[i - 1] >> 30; };
        state[0] = 19650218;
        for (int i = 1; i < n; i++) state[i] = 1812433253 * mixed(i) + (uint32_t)i;

        int i = 1;
        auto wrap = [&] {
            if (++i == n) {
                state[0] = state[n - 1];
                i = 1;
            }
        };
        for (int k = 0; k < n; k++, wrap()) state[i] = (state[i] ^ mixed(i) * 1664525) + seed;
        for (int k = 0; k < n - 1; k++, wrap()) state[i] = (state[i] ^ mixed(i) * 1566083941) - (uint32_t)i;
        state[0] = 0x80000000;
    }

    uint32_t next() {
        if (at == n) {
            for (int i = 0; i < n; i++) {
                uint32_t y = (state[i] & 0x80000000) | (state[(i + 1) % n] & 0x7FFFFFFF);
                state[i] = state[(i + m) % n] ^ y >> 1 ^ (y & 1 ? 0x9908B0DF : 0);
            }
            at = 0;
        }
        uint32_t y = state[at++];
        y ^= y >> 11;
        y ^= y << 7 & 0x9D2C5680;
        y ^= y << 15 & 0xEFC60000;
        return y ^ y >> 18;
    }

    // uniform in [0, n), 0 < n
    uint32_t below(uint32_t n) {
        int bits = 0;
        while (bits < 32 && n >> bits) bits++;
        uint32_t r;
        do r = next() >> (32 - bits);
        while (r >= n);
        return r;
    }

    template <class T>
    void shuffle(std::vector<T>& list) {
        for (size_t i = list.size(); i-- > 1;) std::swap(list[i], list[below((uint32_t)i + 1)]);
    }

    // k different numbers of [0, n), in the order drawn; k <= n
    std::vector<uint32_t> sample(uint32_t n, uint32_t k) {
        std::vector<uint32_t> out;
        double most = 21;  // up to here a list takes less memory than a set, Python reckons
        if (k > 5) most += pow(4, ceil(log(k * 3.0) / log(4.0)));

        if (n <= most) {
            std::vector<uint32_t> pool(n);
            for (uint32_t i = 0; i < n; i++) pool[i] = i;
            for (uint32_t i = 0; i < k; i++) {
                uint32_t j = below(n - i);
                out.push_back(pool[j]);
                pool[j] = pool[n - i - 1];
            }
            return out;
        }

        std::set<uint32_t> chosen;
        while (out.size() < k)
            if (uint32_t j = below(n); chosen.insert(j).second) out.push_back(j);
        return out;
    }
};
