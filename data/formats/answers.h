// answers.h   which tokens of a token file are answers: NAME.answers beside NAME.bin (--loss-on answers)
//   little-endian:
//      0  8  "GPTANSWR"
//      8  8  number of tokens in that token file
//     16  8  number of ranges r
//     24     r times the first token of an answer and one past its last: 8 bytes each, ascending
//            a checksum of everything above
//   An answer's end-of-text token is part of it. ./tokenize writes the file from JSON lines with "prompt" and
//   "answer".
#pragma once
#include <algorithm>
#include <string>
#include <vector>
#include "../../layers/base/whole_file.h"

inline std::string answers_path(const std::string& tokens) {
    return (tokens.ends_with(".bin") ? tokens.substr(0, tokens.size() - 4) : tokens) + ".answers";
}

struct AnswerRange { uint64_t first, end; };

class Answers {
    std::vector<AnswerRange> ranges;
    std::vector<uint64_t> before;  // tokens in the ranges before each

    // answer tokens before this token
    uint64_t count_before(uint64_t token) const {
        auto next = std::upper_bound(ranges.begin(), ranges.end(), token,
                                     [](uint64_t token, const AnswerRange& r) { return token < r.first; });
        if (next == ranges.begin()) return 0;
        size_t i = (size_t)(next - ranges.begin()) - 1;
        return before[i] + std::min(token, ranges[i].end) - ranges[i].first;
    }

public:
    uint64_t sum = 0;  // the file's checksum

    // tokens: the token file's path, and how many it has
    Answers(const std::string& tokens, uint64_t count) {
        std::string path = answers_path(tokens);
        if (access(path.c_str(), F_OK) != 0)
            fail("--loss-on answers: %s has no %s beside it: make both with ./tokenize, from JSON lines with "
                 "\"prompt\" and \"answer\"", tokens.c_str(), path.c_str());

        WholeFile file(path);
        if (file.size < 32 || memcmp(file.data, "GPTANSWR", 8) != 0)
            fail("%s: is not an answer file: expected \"GPTANSWR\" at offset 0; make it again with "
                 "./tokenize", path.c_str());

        uint64_t size = file.read<uint64_t>(16, "ranges"), of = file.read<uint64_t>(8, "tokens");
        if (size > file.size || file.size != 32 + size * sizeof(AnswerRange))
            fail("%s: has %zu bytes, but its header says 32 + 16 * %zu: truncated or damaged; make it again",
                 path.c_str(), file.size, (size_t)size);

        sum = file.read<uint64_t>(file.size - 8, "the checksum");
        if (checksum(file.data, file.size - 8) != sum)
            fail("%s: damaged: its checksum differs; make it again with ./tokenize", path.c_str());
        if (of != count)
            fail("%s: belongs to %zu tokens, %s has %zu: make both again", path.c_str(), (size_t)of,
                 tokens.c_str(), (size_t)count);

        ranges.resize(size);
        if (size) memcpy(ranges.data(), file.data + 24, size * sizeof(AnswerRange));
        uint64_t all = 0, end = 0;
        for (auto& r : ranges) {
            if (r.first < end || r.end <= r.first || r.end > count)
                fail("%s: an answer from token %zu to %zu, after one that ends at %zu of %zu: make it again",
                     path.c_str(), (size_t)r.first, (size_t)r.end, (size_t)end, (size_t)count);
            before.push_back(all);
            all += r.end - r.first;
            end = r.end;
        }
    }
    // answer tokens among [from, to)
    uint64_t count(uint64_t from, uint64_t to) const { return count_before(to) - count_before(from); }
    bool covers(uint64_t token) const { return count(token, token + 1) == 1; }
};
