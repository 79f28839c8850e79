// collective_check.h   an error on one rank, or ranks that were started differently, end all ranks
//   Everything here is collective over the world. If a check fails, each error is printed once and all exit.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include "../../layers/base/file.h"
#include "../comm.h"

namespace comm {

inline const char* program = "train_gpt";  // in error messages

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

// the ranks whose number is `value`, as 0 2 to 4
template <class Number>
std::string ranks_with(const std::vector<Number>& of_ranks, Number value) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < of_ranks.size(); rank++)
        if (of_ranks[rank] == value) ranks.push_back((int)rank);
    return rank_list(ranks);
}

// returns if no rank has an error; otherwise all ranks exit with `code`
inline void all_end_on_error(const std::string& error, int code = 1) {
    uint64_t mine = error.empty() ? 0 : checksum(error.data(), error.size()) | 1;

    std::map<int64_t, std::vector<int>> who;
    std::vector<int64_t> all = gather_numbers(everyone(), {(int64_t)mine}, "who has an error");
    for (size_t rank = 0; rank < all.size(); rank++) if (all[rank]) who[all[rank]].push_back((int)rank);

    if (who.empty()) return;

    // one rank of those with this error prints it, for all of them
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

// Runs a phase that may throw on some ranks only. Either all ranks continue, or each error is printed once
// and all exit with `code` (where await_all_ranks() would return false)
template <class Phase>
void all_ranks_or_fail(Phase phase, int code = 1) {
    std::string error;
    try {
        phase();
    } catch (const std::bad_alloc&) {
        error = "not enough memory for these settings";
    } catch (const std::exception& e) {
        error = e.what();
    }
    all_end_on_error(error, code);
}

// what must be the same on all ranks: its name, its checksum, and advice if it is not
struct RankHash { std::string name; uint64_t sum; const char* advice; };
inline void check_ranks_agree(const std::vector<RankHash>& hashes) {
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
    all_end_on_error(error);
}

// Waits until the background work of all ranks is done. Meanwhile the ranks keep exchanging their status, so
// that no call times out because of a slow disk. Names slow ranks. Sets error if this rank's work failed;
// returns true if no rank's did. If gives_up() is true on a rank that still waits, all stop waiting: then
// `given_up` is set, and false is returned
inline bool await_all_ranks(std::future<void>& work, const char* doing, std::string& error,
                            bool (*gives_up)() = nullptr, bool* given_up = nullptr) {
    enum { Done, Busy, Failed, GivesUp };
    constexpr std::chrono::milliseconds tick(20);
    constexpr double patience = 5;  // seconds
    double began = seconds();
    int64_t status = work.valid() ? Busy : Done;

    for (bool named = false;;) {
        if (status != Busy) std::this_thread::sleep_for(tick);
        else if (work.wait_for(tick) == std::future_status::ready) {
            status = Done;
            try {
                work.get();
            } catch (const std::exception& e) {
                error = e.what();
                status = Failed;
            }
        }

        int64_t said = status == Busy && gives_up && gives_up() ? (int64_t)GivesUp : status;
        std::vector<int64_t> all = gather_numbers(everyone(), {said}, doing);
        if (std::count(all.begin(), all.end(), GivesUp)) {
            *given_up = true;
            return false;
        }
        if (!std::count(all.begin(), all.end(), Busy)) return !std::count(all.begin(), all.end(), Failed);

        if (named || world_rank() != 0 || seconds() - began < patience) continue;
        named = true;
        fprintf(stderr, "slow: rank %s still %s after 5 s\n", ranks_with(all, (int64_t)Busy).c_str(), doing);
    }
}

}  // namespace comm
