// loader.h   which sample of tokens is sample n: a function of n, with nothing stored but the files' sizes
//   A sample is T + 1 tokens and overlaps the next by one: T inputs and their targets. Several files are one
//   set; no sample crosses from one into the next. Samples go through all samples once an epoch, in an order
//   that is computed: a Feistel network over the samples' numbers, keyed by seed and epoch. So the position
//   in training is the number of samples consumed, and resuming is counting on.
#pragma once
#include <algorithm>
#include "../layers/base/rng.h"
#include "tokens.h"

// a permutation of 0 … n - 1 (Luby & Rackoff; walking the cycle until the image lies below n)
inline uint64_t permute(uint64_t index, uint64_t n, uint64_t key, uint64_t round_key) {
    int half = 1;
    while (half < 32 && 1ull << 2 * half < n) half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (int round = 0; round < 6; round++) {
            uint64_t mixed = philox(key, round_key * 8 + round, right).x[0];
            uint64_t next = left ^ (mixed & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= n);
    return index;
}

inline void check_same_tokens(const TokenFile& a, const TokenFile& b, const char* who) {
    if (a.kind != b.kind || a.vocabulary != b.vocabulary)
        fail("%s: has vocabulary %s of %d, %s has %s of %d: %s must agree", a.path.c_str(), a.kind.c_str(),
             a.vocabulary, b.path.c_str(), b.kind.c_str(), b.vocabulary, who);
}

struct Loader {
    std::vector<TokenFile> files;
    std::vector<uint64_t> first;  // sample of each file, and at the end the number of all
    int T, V = 0;
    uint64_t key;

    // rows of tokens that are read must be below V; 0: what the files say
    Loader(const std::vector<std::string>& paths, int T, uint64_t seed) : T(T),
        key(seed ^ purpose("order of samples")) {
        first.push_back(0);
        for (auto& path : paths) {
            files.emplace_back(path);
            TokenFile& f = files.back();
            if (f.count < (uint64_t)T + 1)
                fail("%s: has %zu tokens, one sample wants %ld: choose a --sequence below %zu", path.c_str(),
                     (size_t)f.count, T + 1L, (size_t)f.count);
            check_same_tokens(f, files[0], "files of one set");
            first.push_back(first.back() + (f.count - 1) / T);
        }
    }
    uint64_t samples() const { return first.back(); }
    int file_vocabulary() const { return files.empty() ? 0 : files[0].vocabulary; }

    void read_sample(int* out, uint64_t index) {
        size_t f = std::upper_bound(first.begin(), first.end(), index) - first.begin() - 1;
        files[f].read(out, (index - first[f]) * T, T + 1, V);
    }
    // the sample that training sees as its n-th, counted from 0 over all epochs
    uint64_t order(uint64_t n) const { return permute(n % samples(), samples(), key, n / samples()); }
    void read_nth(int* out, uint64_t n) { read_sample(out, order(n)); }
};
