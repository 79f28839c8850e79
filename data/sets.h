// sets.h   the training set as the command line gives it: token files, or several sets with their weights
//     FILE…                 one set of all files
//     WEIGHT:FILE…          one set each, e.g. 0.14336:books3.bin 0.19336:owt2.bin
//     NAME.blend            a text file with a line `WEIGHT FILE` per set; paths are relative to its folder
#pragma once
#include <bit>
#include <map>
#include <string>
#include <vector>
#include "../layers/base/whole_file.h"
#include "loader.h"

// the file name without folder and extension
inline std::string set_name(const std::string& path) {
    std::string name = path.substr(path.rfind('/') + 1);
    for (const char* ending : {".bin", ".idx", ".train"})
        if (name.size() > strlen(ending) && name.ends_with(ending)) name.resize(name.size() - strlen(ending));
    return name;
}

// the weight that `text` begins with, and where the rest begins; 0 if there is none
inline double leading_weight(const std::string& text, size_t* rest, char separator) {
    char* end = nullptr;
    double weight = strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != separator) return 0;
    *rest = (size_t)(end - text.c_str()) + 1;
    if (!(weight > 0) || !std::isfinite(weight))
        fail("%s: has weight %g, expected a number above 0", text.c_str(), weight);
    return weight;
}

inline std::vector<WeightedFiles> read_blend(const std::string& path) {
    WholeFile file(path);
    std::string all(file.text()), folder = path.substr(0, path.rfind('/') + 1);
    std::vector<WeightedFiles> sets;
    int number = 0;
    for (size_t at = 0; at < all.size(); number++) {
        size_t end = std::min(all.find('\n', at), all.size()), rest = 0;
        std::string line = all.substr(at, end - at);

        at = end + 1;
        line = without_comment(line);
        while (!line.empty() && isspace((unsigned char)line.back())) line.pop_back();
        if (line.empty()) continue;
        for (char& c : line) if (c == '\t') c = ' ';

        double weight = leading_weight(line, &rest, ' ');
        if (weight == 0)
            fail("%s line %d: \"%s\": expected WEIGHT FILE, as in 0.14336 books3.bin", path.c_str(),
                 number + 1, line.c_str());
        std::string name = line.substr(line.find_first_not_of(' ', rest));
        sets.push_back({set_name(name), weight, {name[0] == '/' ? name : folder + name}});
    }

    if (sets.empty()) fail("%s: names no set: expected a line WEIGHT FILE for each", path.c_str());
    return sets;
}

// sets with the same name are named by their paths, and numbered if these are the same; not in `key`: their
// order stays the same elsewhere
inline std::vector<WeightedFiles> distinct(std::vector<WeightedFiles> sets) {
    std::map<std::string, int> count;
    for (auto& s : sets) count[s.name]++;
    for (auto& s : sets)
        if (count[s.name] > 1) s.name = s.files[0];
    count.clear();
    for (auto& s : sets)
        if (int before = count[s.name]++) s.name += text(" (%d)", before + 1);
    return sets;
}

// command-line arguments -> sets
inline std::vector<WeightedFiles> parse_sets(const std::vector<std::string>& given) {
    if (given.size() == 1 && given[0].ends_with(".blend")) return distinct(read_blend(given[0]));
    std::vector<WeightedFiles> weighted;

    for (auto& word : given) {
        size_t rest = 0;
        double weight = leading_weight(word, &rest, ':');
        if (weight > 0) weighted.push_back({set_name(word.substr(rest)), weight, {word.substr(rest)}});
    }

    for (auto& word : given)
        if (word.ends_with(".blend"))
            fail("%s: is one of %zu names: give one .blend alone, or write its sets as WEIGHT:FILE",
                 word.c_str(), given.size());

    if (weighted.empty()) return {{set_name(given[0]), 1, given}};
    if (weighted.size() != given.size())
        fail("some of the %zu sets have a weight and some have none: write WEIGHT:FILE for each, or for none",
             given.size());
    return distinct(std::move(weighted));
}

// A table: how many tokens the first `samples` samples draw from each set, and how many epochs of it. sizes:
// of the sets, in samples of T tokens; 0 if unknown
inline std::string draws_of_sets(const std::vector<WeightedFiles>& sets, const std::vector<uint64_t>& sizes,
                                 uint64_t samples, int T) {
    Mixture mixture(weights_of(sets));
    mixture.seek(samples);
    std::string out = text("%-24s%9s%13s%13s%10s\n", "set", "weight", "tokens", "drawn", "epochs");
    for (size_t i = 0; i < sets.size(); i++) {
        double size = (double)sizes[i] * T, drawn = (double)mixture.taken[i] * T;
        out += text("%-24s%9.4f%13s%13.4g%10s\n", sets[i].name.c_str(), mixture.weights[i],
                    size > 0 ? text("%.4g", size).c_str() : "not here", drawn,
                    size > 0 ? text("%.2f", drawn / size).c_str() : "-");
    }
    return out;
}

// the same of a blend whose files are open
inline std::string draws_of(const Blend& blend, uint64_t samples) {
    std::vector<uint64_t> sizes;
    for (auto& s : blend.sets) sizes.push_back(s.samples());
    return draws_of_sets(blend.given, sizes, samples, blend.sets[0].T);
}

// ---- fingerprints: is it the same data? ------------------------------------------------------------------

// A hash of the size, the first 64 KiB and all token checksums (1/8192 of the file); in formats without
// checksums, of the last 64 KiB instead: there, a different token in the middle goes unnoticed
inline uint64_t fingerprint_of(const TokenFile& tokens) {
    const InputFile& file = tokens.file;
    size_t piece = 1 << 20, end = std::min(file.size, (size_t)64 << 10);
    std::vector<char> part;
    auto sum = [&](size_t from, size_t n) {
        part.resize(n);
        file.read(part.data(), from, n, "what tells it from others");
        return checksum(part.data(), n);
    };
    uint64_t all = file.size * 31 + sum(0, end);
    if (!tokens.checksums) return all * 31 + sum(file.size - end, end);
    for (size_t at = tokens.checksums; at < file.size; at += piece)
        all = all * 31 + sum(at, std::min(piece, file.size - at));
    return all;
}

inline uint64_t fingerprint_of(const Loader& loader) {
    uint64_t sum = 0;
    for (auto& f : loader.files) sum = sum * 31 + fingerprint_of(f);
    for (auto& a : loader.answers) sum = sum * 31 + a.sum;
    return sum;
}

// a hash of all that decides which tokens sample n has: the files, and a blend's weights and keys
inline uint64_t fingerprint_of(const Blend& blend) {
    uint64_t sum = blend.sets.size() > 1 ? Mixture::one : 0;
    for (size_t i = 0; i < blend.sets.size(); i++) {
        sum = sum * 31 + fingerprint_of(blend.sets[i]);
        if (blend.sets.size() > 1)
            sum = (sum * 31 + blend.sets[i].key) * 31 + std::bit_cast<uint64_t>(blend.given[i].weight);
    }
    return sum;
}
