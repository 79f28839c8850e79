// loader.h   which tokens make up sample n: a function of n, T, the files' sizes, the seed, a blend's weights
//   and, from its second set on, the set's name and position
//   A sample is T + 1 tokens, T inputs and their targets, and overlaps the next in its file by one. Several
//   files are one set; no sample spans two files. An epoch visits every sample once, in a shuffled order that
//   is computed, not stored: a Feistel network over the samples' numbers, keyed by seed and epoch. So the
//   position in training is the number of samples consumed (RunState.samples_seen, stored in checkpoints). A
//   resume refuses another seed, T or training set (run/resolve.h, sets.h), and takes any t, d and p.
//   A blend mixes several sets by weight. Sample n comes from the set with the largest
//   w[i] * max(n, 1) - taken[i], the first on ties: the rule of MT-NLG's training code, which keeps each set
//   within about one sample of its share (with MT-NLG's weights never more than 1.05). The weights are scaled
//   to sum to 1, and the rule is followed in integers: rounding would make it another order on a machine that
//   multiplies and adds in one instruction. taken[i] counts the samples drawn from set i. It is not stored: a
//   start or a resume counts from sample 0 again (some 1e7 samples a second). A set is a token file, or
//   several that count as one; how they are named on the command line: sets.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>
#include "../layers/base/numbers.h"
#include "formats/answers.h"
#include "tokens.h"

// ---- a set ------------------------------------------------------------------------------------------------

// the image of index under a permutation of 0 … n - 1, another in each epoch (Luby & Rackoff: a Feistel
// network over the next even number of bits, applied until the image is below n)
inline uint64_t permute(uint64_t index, uint64_t n, uint64_t key, uint64_t epoch) {
    int half = 1;
    while (half < 32 && 1ull << (2 * half) < n) half++;
    uint64_t mask = (1ull << half) - 1;

    do {
        uint64_t left = index >> half, right = index & mask;
        for (int round = 0; round < 6; round++) {
            uint64_t mixed = philox(key, epoch * 8 + round, right).x[0];
            uint64_t next = left ^ (mixed & mask);
            left = right;
            right = next;
        }
        index = left << half | right;
    } while (index >= n);
    return index;
}

inline void check_same_tokens(const TokenFile& a, const TokenFile& b, const char* who) {
    auto said = [](const TokenFile& f) {
        return f.vocabulary_name.empty() ? "an unknown one"
                                         : text("%s of %d", f.vocabulary_name.c_str(), f.vocabulary);
    };
    if (!may_be_one_vocabulary(a.vocabulary_name, b.vocabulary_name) || a.vocabulary != b.vocabulary)
        fail("%s: has vocabulary %s, %s has %s: %s must agree", a.path.c_str(), said(a).c_str(),
             b.path.c_str(), said(b).c_str(), who);
}

struct Loader {
    std::vector<TokenFile> files;
    std::vector<Answers> answers;  // per file; empty: the losses of all tokens count
    std::vector<uint64_t> first_samples;  // index of each file's first sample; last: the number of samples
    int T, V = 0;
    uint64_t key;

    // V must be set before samples are read: every token must be below it
    Loader(const std::vector<std::string>& paths, int T, uint64_t seed) : T(T),
        key(seed ^ purpose("order of samples")) {
        first_samples.push_back(0);
        for (auto& path : paths) {
            files.emplace_back(path);
            TokenFile& f = files.back();
            if (f.count < 3)
                fail("%s: has %zu tokens, too few for a text: give another file", path.c_str(),
                     (size_t)f.count);
            if (f.count < (uint64_t)T + 1)
                fail("%s: has %zu tokens, one sample needs %ld: choose a --sequence below %zu", path.c_str(),
                     (size_t)f.count, T + 1L, (size_t)f.count);
            check_same_tokens(f, files[0], "files of one set");
            first_samples.push_back(first_samples.back() + (f.count - 1) / T);
        }
    }

    // from now on only the losses of answers count
    void take_answers() {
        for (auto& f : files) answers.emplace_back(f.path, f.count);
    }

    uint64_t samples() const { return first_samples.back(); }
    size_t file_of(uint64_t index) const {
        auto next = std::upper_bound(first_samples.begin(), first_samples.end(), index);
        return next - first_samples.begin() - 1;
    }

    int file_vocabulary() const { return files.empty() ? 0 : files[0].vocabulary; }

    // starts to fetch what read_at(index) will read
    void expect(uint64_t index) const {
        size_t f = file_of(index);
        files[f].expect((index - first_samples[f]) * T, T + 1);
    }

    // a token whose loss does not count is returned as -1 - token
    void read_at(int* out, uint64_t index) {
        size_t f = file_of(index);
        uint64_t begin = (index - first_samples[f]) * T;
        files[f].read(out, begin, T + 1, V);
        if (answers.empty()) return;
        for (int t = 0; t <= T; t++)
            if (!answers[f].covers(begin + t)) out[t] = -1 - out[t];
    }

    // how many of a sample's T losses count
    uint64_t counted(uint64_t index) const {
        if (answers.empty()) return T;
        size_t f = file_of(index);
        uint64_t begin = (index - first_samples[f]) * T;
        return answers[f].count(begin + 1, begin + T + 1);
    }

    // the sample that training reads as its n-th, counted from 0 over all epochs
    uint64_t order(uint64_t n) const { return permute(n % samples(), samples(), key, n / samples()); }
};

// ---- a blend of sets --------------------------------------------------------------------------------------

struct Mixture {
    static constexpr int64_t one = 1L << 40;  // a sample, in the units of shares and behind
    std::vector<double> weights;
    std::vector<int64_t> shares;  // weights[i], in units
    std::vector<int64_t> behind;  // shares[i] * max(n, 1) - taken[i] samples
    std::vector<uint64_t> taken;
    uint64_t n = 0;  // samples chosen so far

    explicit Mixture(std::vector<double> given) : weights(std::move(given)) {
        double sum = 0;
        for (double w : weights) sum += w;
        if (!std::isfinite(sum))
            fail("the weights of %zu sets have no finite sum: give smaller ones", weights.size());
        for (double& w : weights) shares.push_back(std::llround((w /= sum) * (double)one));
        start();
    }

    void start() {
        n = 0;
        behind = shares;
        taken.assign(shares.size(), 0);
    }

    // the set of the next sample; taken[set] counts it, over all epochs of the set
    int next() {
        for (size_t i = 0; n > 1 && i < shares.size(); i++) behind[i] += shares[i];
        int set = (int)(std::max_element(behind.begin(), behind.end()) - behind.begin());
        behind[set] -= one;
        n++;
        taken[set]++;
        return set;
    }

    // moves to sample `to`; moving backwards counts from 0 again
    void seek(uint64_t to) {
        if (to < n) start();
        while (n < to) next();
    }
};

struct WeightedFiles {
    std::string name;  // for the metrics
    double weight;
    std::vector<std::string> files;
    std::string key = name;  // what its order depends on, beside its position
};

inline std::vector<double> weights_of(const std::vector<WeightedFiles>& sets) {
    std::vector<double> weights;
    for (auto& s : sets) weights.push_back(s.weight);
    return weights;
}

struct SetChoice {
    int set;
    uint64_t index;  // of the sample, in the set
};

// the training set: sample n of the blend
struct Blend {
    std::vector<WeightedFiles> given;
    std::vector<Loader> sets;
    Mixture mixture;

    Blend(const std::vector<WeightedFiles>& sets_given, int T, uint64_t seed)
        : given(sets_given), mixture(weights_of(given)) {
        for (size_t i = 0; i < given.size(); i++) {
            // the first set's order is the same as if it were the only set
            sets.emplace_back(given[i].files, T, seed ^ (i ? purpose(given[i].key) * i : 0));
            check_same_tokens(sets[i].files[0], sets[0].files[0], "sets of one blend");
        }
    }

    uint64_t samples() const {
        uint64_t sum = 0;
        for (auto& s : sets) sum += s.samples();
        return sum;
    }

    int file_vocabulary() const { return sets[0].file_vocabulary(); }
    void set_vocabulary(int V) {
        for (auto& s : sets) s.V = V;
    }

    // where samples first, … first + count - 1 come from
    std::vector<SetChoice> choose(uint64_t first, uint64_t count) {
        std::vector<SetChoice> out;
        mixture.seek(first);
        for (uint64_t i = 0; i < count; i++) {
            int set = mixture.next();
            out.push_back({set, sets[set].order(mixture.taken[set] - 1)});
        }
        return out;
    }

    void take_answers() {
        for (auto& s : sets) s.take_answers();
    }
};
