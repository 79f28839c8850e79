// step.h   what goes into a step and what comes out of it: its samples, its result, the ranks' reports
//   A sample is T + 1 consecutive tokens of a file: T tokens and, one further, their targets. Which they are
//   follows from its index in the run (data/loader.h: every sample once an epoch, shuffled; several sets by
//   weight). They are read into pinned host memory in the background while the previous step computes.
//   Micro-batches are dealt round-robin to the data-parallel ranks: sequence b of this rank's micro-batch i
//   is sample (i d + data) B + b of the step.
//   At the end of a step ranks exchange in one call: losses, what to do next, and each rank's compute time. A
//   rank that cannot read the next step's samples sets lacks_data; then all ranks save (if there is --save)
//   and exit with 1 (save_and_end, trainer.h).
#pragma once
#include <algorithm>
#include <bit>
#include <future>
#include <numeric>
#include "../../data/loader.h"
#include "stage.h"

// ---- samples ---------------------------------------------------------------------------------------------

struct StepSamples {
    uint64_t first = 0;  // index in the run of the step's first sample
    int batch = 0, micro_batches = 0;  // of the step: the global batch, and its micro-batches per replica
    int token_buffer = 0;              // which of Model.host_tokens holds their tokens
    std::vector<SetChoice> chosen;     // of the global batch
    std::vector<uint64_t> counted;     // tokens of the global batch whose losses count, by set of the blend

    // at least 1: a mean over no tokens is 0 / 1
    double counted_tokens() const {
        return std::max(1.0, (double)std::accumulate(counted.begin(), counted.end(), uint64_t(0)));
    }
};

// index, among the step's samples, of sequence b of one of this rank's micro-batches
inline int sample_index(const Model& model, int micro_batch, int b) {
    return (micro_batch * model.grid.d + model.grid.data) * model.setup.B + b;
}

inline StepSamples read_samples(Blend& blend, const Model& model, int token_buffer, uint64_t first,
                                int batch) {
    int B = model.setup.B, T = model.shape.T, micro_batches = batch / model.grid.d / B;
    StepSamples out = {first, batch, micro_batches, token_buffer, blend.choose(first, batch), {}};
    out.counted.resize(blend.sets.size());
    for (auto& choice : out.chosen) out.counted[choice.set] += blend.counted(choice);
    if (!model.loads_tokens()) return out;

    std::vector<int> tokens((size_t)B * (T + 1));  // of one micro-batch
    for (int micro_batch = 0; micro_batch < micro_batches; micro_batch++) {
        for (int b = 0; b < B; b++)
            blend.read_sample(&tokens[(size_t)b * (T + 1)], out.chosen[sample_index(model, micro_batch, b)]);
        put_tokens_on_host(model, token_buffer, tokens, {B, T}, micro_batch);
    }
    return out;
}

// reads one step ahead, in a background thread
class SampleReader {
    std::future<StepSamples> next;
    StepSamples upcoming, samples;

public:
    void begin(Blend& blend, const Model& model, uint64_t first, int batch) {
        if (next.valid()) next.wait();  // the blend is read by one thread at a time
        int other = 1 - model.token_buffer;
        next = std::async(std::launch::async, [&blend, &model, other, first, batch] {
            return read_samples(blend, model, other, first, batch);
        });
    }

    // waits for the read that was begun; returns "" or the error
    std::string await() {
        if (!next.valid()) return "";
        try {
            upcoming = next.get();
        } catch (const std::exception& e) {
            upcoming = {};
            return e.what();
        }
        return "";
    }

    // the samples of the next step, valid until the next call; their tokens are then the model's
    // (Model.token_buffer)
    const StepSamples& take(Model& model) {
        samples = std::move(upcoming);
        model.token_buffer = samples.token_buffer;
        return samples;
    }

    ~SampleReader() {
        if (next.valid()) next.wait();
    }
};

// ---- result and reports ----------------------------------------------------------------------------------

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

// one rank's report
struct RankReport {
    bool stops = false;        // it has received a signal
    bool lacks_data = false;   // the next step's samples cannot be read
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
    std::vector<int64_t> numbers = {mine.stops, mine.lacks_data, mine.wants_save, mine.is_corrupt,
                                    mine.save_status, std::bit_cast<int64_t>(mine.computed)};
    size_t first_loss = numbers.size();
    for (double sum : sums) numbers.push_back(std::bit_cast<int64_t>(sum));

    std::vector<int64_t> all = comm::gather_numbers(grid.world, numbers, "a step's reports");
    StepReports out = {std::vector<double>(sets, 0), {}};
    for (size_t at = 0; at < all.size(); at += numbers.size()) {
        const int64_t* of_rank = &all[at];
        for (size_t set = 0; set < sets; set++)
            out.losses[set] += std::bit_cast<double>(of_rank[first_loss + set]);
        out.by_rank.push_back({.stops = of_rank[0] != 0, .lacks_data = of_rank[1] != 0,
                               .wants_save = of_rank[2] != 0, .is_corrupt = of_rank[3] != 0,
                               .save_status = (int)of_rank[4],
                               .computed = std::bit_cast<double>(of_rank[5])});
    }
    return out;
}
