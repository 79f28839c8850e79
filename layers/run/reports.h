// reports.h   a step's result, and what ranks report to each other at its end, in one call: losses, what
//   to do next, and each rank's compute time
//   A rank that cannot read the next step's samples sets lacks_data; then all ranks save (if there is --save)
//   and exit with 1 (save_and_end, trainer.cpp).
#pragma once
#include <algorithm>
#include <bit>
#include "../model/stage.h"

// ---- a step's result -------------------------------------------------------------------------------------

using NamedValues = std::vector<std::pair<std::string, double>>;

// A step's numbers, the same on every rank, except for seconds, which are each rank's own, and slow_ranks,
// which only rank 0 knows
struct StepResult {
    double loss = 0, learning_rate = 0, norm = 0;  // the mean over the step's tokens; norm before clipping
    double seconds = 0;
    bool updated = true;           // false: a spike; parameters and optimizer state unchanged
    std::vector<int> slow_ranks;   // see SlowRankMonitor (monitor.h)
    NamedValues set_losses;        // for each set of a blend that had samples in the step
    double validation_loss = NAN;  // NAN: not evaluated
    NamedValues tasks;             // metrics of --evaluate; empty: not evaluated
    bool is_finite() const { return std::isfinite(loss) && std::isfinite(norm); }
};

// ---- reports ---------------------------------------------------------------------------------------------

// one rank's report
struct RankReport {
    bool stops = false;        // it has received a signal
    bool lacks_data = false;   // the next step's samples cannot be read
    bool still_reads = false;  // … or are not read yet: all ranks wait for that (gather_step_reports)
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

// The sum of losses of each sequence in the first `micro_batches`, on the last stage: reports have losses by
// set of the blend; what the device sums for its decision (adamw.cuh) is all of them
inline std::vector<double> sequence_losses(Model& model, int micro_batches) {
    std::vector<real> losses((size_t)micro_batches * model.max_rows());
    if (!losses.empty())
        copy_to_host(losses.data(), model.lm_head.losses, losses.size() * sizeof(real), model.stream);
    std::vector<double> sums((size_t)micro_batches * model.setup.B, 0);
    for (size_t i = 0; i < losses.size(); i++) sums[i / model.shape.T] += losses[i];
    return sums;
}

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
