// step.h   what goes into a step and what comes out of it: its samples, its result
//   A sample is T + 1 consecutive tokens of a file: T tokens and, one further, their targets. Which they are
//   follows from its index in the run (data/loader.h: every sample once an epoch, shuffled; several sets by
//   weight). They are read into pinned host memory in the background while the previous step computes.
//   Micro-batches are dealt round-robin to the data-parallel ranks: sequence b of this rank's micro-batch i
//   is sample (i d + data) B + b of the step.
#pragma once
#include <algorithm>
#include <chrono>
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
    StepSamples upcoming, samples;

public:
    std::future<void> reading;  // of `upcoming`

    void begin(Blend& blend, const Model& model, uint64_t first, int batch) {
        if (reading.valid()) reading.wait();  // the blend is read by one thread at a time
        upcoming = {};
        int other = 1 - model.token_buffer;
        reading = std::async(std::launch::async, [this, &blend, &model, other, first, batch] {
            upcoming = read_samples(blend, model, other, first, batch);
        });
    }

    // waits at most `seconds` for the read that was begun; false: it is not done yet
    bool await(double seconds, std::string& error) {
        if (!reading.valid()) return true;
        auto patience = std::chrono::duration<double>(seconds);
        if (reading.wait_for(patience) != std::future_status::ready) return false;
        try {
            reading.get();
        } catch (const std::exception& e) {
            error = e.what();
        }
        return true;
    }

    // the samples of the next step, valid until the next call; their tokens are then the model's
    // (Model.token_buffer)
    const StepSamples& take(Model& model) {
        samples = std::move(upcoming);
        model.token_buffer = samples.token_buffer;
        return samples;
    }

    ~SampleReader() {
        if (reading.valid()) reading.wait();
    }
};

// ---- result ----------------------------------------------------------------------------------------------

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
