// reports.h   what ranks report to each other at the end of a step, in one call: losses, what to do next, and
//   each rank's compute time
//   A rank that cannot read the next step's samples sets lacks_data; then all ranks save (if there is --save)
//   and exit with 1 (save_and_end, trainer.cpp).
#pragma once
#include <algorithm>
#include <bit>
#include "../model/stage.h"

// one rank's report
struct RankReport {
    bool stops = false;        // it has received a signal
    bool lacks_data = false;   // the next step's samples cannot be read
    bool still_reads = false;  // … or are not read yet: all ranks wait for that (await_slow_samples)
    bool wants_save = false;   // a save is due; only rank 0's answer counts, as clocks differ
    bool is_corrupt = false;   // bits have flipped in its memory, or a step computed twice differs
    int save_status = 0;       // see save.h
    double computed = 0;       // seconds of the step, without waiting for other ranks
};

struct StepReports {
    std::vector<double> losses;       // summed over all replicas, by set of the blend
    std::vector<RankReport> by_rank;
    std::vector<int> save_statuses() const {
        std::vector<int> out;
        for (auto& r : by_rank) out.push_back(r.save_status);
        return out;
    }

    bool any(bool RankReport::* flag) const {
        return std::any_of(by_rank.begin(), by_rank.end(), [&](auto& r) { return r.*flag; });
    }
};

// set_of: the set of each sequence in this replica's micro-batches; empty: set 0 for all. Collective over the
// world; losses are added in rank order
inline StepReports gather_reports(Model& model, int micro_batches, const std::vector<int>& set_of,
                                  size_t sets, const RankReport& mine) {
    const Grid& grid = model.grid;
    std::vector<double> sums(sets, 0);
    if (grid.is_last_stage() && grid.tensor == 0) {
        std::vector<double> losses = sequence_losses(model, micro_batches);
        for (size_t i = 0; i < losses.size(); i++) sums[set_of.empty() ? 0 : set_of[i]] += losses[i];
    }
    std::vector<int64_t> numbers = {mine.stops, mine.lacks_data, mine.still_reads, mine.wants_save,
                                    mine.is_corrupt, mine.save_status,
                                    std::bit_cast<int64_t>(mine.computed)};
    size_t first_loss = numbers.size();
    for (double sum : sums) numbers.push_back(std::bit_cast<int64_t>(sum));

    std::vector<int64_t> all = comm::gather_numbers(grid.world, numbers, "a step's reports");
    StepReports out = {std::vector<double>(sets, 0), {}};
    for (size_t at = 0; at < all.size(); at += numbers.size()) {
        const int64_t* of_rank = &all[at];
        for (size_t set = 0; set < sets; set++)
            out.losses[set] += std::bit_cast<double>(of_rank[first_loss + set]);
        out.by_rank.push_back({.stops = of_rank[0] != 0, .lacks_data = of_rank[1] != 0,
                               .still_reads = of_rank[2] != 0, .wants_save = of_rank[3] != 0,
                               .is_corrupt = of_rank[4] != 0, .save_status = (int)of_rank[5],
                               .computed = std::bit_cast<double>(of_rank[6])});
    }
    return out;
}
