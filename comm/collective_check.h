// collective_check.h   an error of one rank, or ranks that were started differently, end all
//   Both are collective over the world. Where one fails, one message is printed and every rank exits with 1.
#pragma once
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include "../layers/base/checksum.h"
#include "comm.h"

namespace comm {

inline const char* program = "train_gpt";  // in messages

inline std::string rank_list(const std::vector<int>& ranks) {
    std::string out;
    for (size_t i = 0; i < ranks.size(); i++) {
        size_t end = i;
        while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) end++;
        out += text(i ? " %d" : "%d", ranks[i]);
        if (end > i) out += text(" to %d", ranks[end]);
        i = end;
    }
    return out;
}

// goes on if no rank has an error; else all exit with `code`
inline void collective_check(const std::string& error, int code = 1) {
    uint64_t mine = error.empty() ? 0 : checksum(error.data(), error.size()) | 1;
    std::map<int64_t, std::vector<int>> who;
    std::vector<int64_t> all = gather_numbers(everyone(), {(int64_t)mine}, "who has an error");
    for (size_t rank = 0; rank < all.size(); rank++) if (all[rank]) who[all[rank]].push_back((int)rank);
    if (who.empty()) return;
    fflush(stdout);
    if (mine && who[(int64_t)mine][0] == world_rank()) {
        std::string ranks = all.size() == 1 ? ""
            : who[(int64_t)mine].size() == all.size() ? text("[all %zu ranks] ", all.size())
            : "[rank " + rank_list(who[(int64_t)mine]) + "] ";
        fprintf(stderr, "%s%s: %s\n", ranks.c_str(), program, error.c_str());
    }
    finish();
    exit(code);
}

// what must be the same everywhere: its name, its checksum, and what to do where it is not
struct ConfigHash { std::string name; uint64_t sum; const char* advice; };
inline void check_config_hashes(const std::vector<ConfigHash>& hashes) {
    std::vector<int64_t> mine;
    for (auto& f : hashes) mine.push_back((int64_t)f.sum);
    std::vector<int64_t> all = gather_numbers(everyone(), mine, "what must be the same");
    std::string error;
    for (size_t i = 0; i < hashes.size() && error.empty(); i++) {
        std::vector<int> differ;
        for (int rank = 1; rank < world_size(); rank++)
            if (all[rank * hashes.size() + i] != all[i]) differ.push_back(rank);
        if (!differ.empty())
            error = text("rank %s: %s differs from rank 0's: %s", rank_list(differ).c_str(),
                             hashes[i].name.c_str(), hashes[i].advice);
    }
    collective_check(error);
}

}  // namespace comm
