// samples.h   the samples of a step: chosen by number, and read while the step before it computes
//   Micro-batches go round the data-parallel ranks: sequence b of this rank's micro-batch i is number
//   (i d + data) B + b of the step's samples. What cannot be read is an error of the step that wants it, of
//   which all ranks hear at the end of the step before (exchange.h).
#pragma once
#include <future>
#include "resolve.h"

struct StepSamples {
    uint64_t first = 0;  // of the run
    int batch = 0;
    std::vector<SetChoice> chosen;         // of all ranks
    std::vector<std::vector<int>> tokens;  // (B, T + 1) of each of this rank's micro-batches
};

// which of a step's samples is sequence b of one of this rank's micro-batches
inline int sample_index(const Model& model, int micro_batch, int b) {
    return (micro_batch * model.grid.d + model.grid.data) * model.setup.B + b;
}

inline StepSamples read_samples(Blend& set, const Model& model, uint64_t first, int batch) {
    int B = model.setup.B, T = model.shape.T, micro_batches = batch / model.grid.d / B;
    StepSamples out = {first, batch, set.choose(first, batch), {}};
    if (!model.host_tokens) return out;  // of a stage that has no tokens
    out.tokens.assign(micro_batches, std::vector<int>((size_t)B * (T + 1)));
    for (int micro_batch = 0; micro_batch < micro_batches; micro_batch++)
        for (int b = 0; b < B; b++)
            set.read_sample(&out.tokens[micro_batch][(size_t)b * (T + 1)],
                            out.chosen[sample_index(model, micro_batch, b)]);
    return out;
}

// reads one step ahead, in a thread of its own
class SampleReader {
    std::future<StepSamples> next;
    StepSamples upcoming, samples;

public:
    void begin(Blend& set, const Model& model, uint64_t first, int batch) {
        if (next.valid()) next.wait();  // the set is read by one thread at a time
        next = std::async(std::launch::async, [&set, &model, first, batch] {
            return read_samples(set, model, first, batch);
        });
    }
    // what was begun, when it is there; "", or what kept it from being read
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
    // valid until the next call
    const StepSamples& take() {
        samples = std::move(upcoming);
        return samples;
    }
    ~SampleReader() {
        if (next.valid()) next.wait();
    }
};
