// run_state.h   the progress of a run, from step to step and in its checkpoints
//   Besides parameters and optimizer state, this is all that a run goes on from: samples, random bits and
//   rates are functions of what stands here and of the options.
#pragma once
#include <cmath>
#include <map>
#include <string>
#include "../model/params.h"

// running mean and variance, over about the last hundred values
struct RunningStatistics {
    double mean = 0, variance = 0;
    long seen = 0;

    void add(double x) {
        double weight = 1 / std::min(100.0, (double)++seen), delta = x - mean;
        mean += weight * delta;
        variance = (1 - weight) * (variance + weight * delta * delta);
    }

    // `z` standard deviations above the mean; infinite if z is 0 or too few values have been seen
    double limit(double z) const {
        constexpr long enough = 30;
        return z > 0 && seen >= enough ? mean + z * std::sqrt(variance) : INFINITY;
    }
};

// the progress of a run, recorded in checkpoints
struct RunState {
    long step = 0;
    uint64_t samples = 0, tokens = 0;  // consumed; samples is also the position in the data
    long seed = 0;
    uint64_t training_set_size = 0;  // in samples; and a checksum of its files, to notice if it has changed
    uint64_t training_set_sum = 0;   // (0: unknown)
    ModelShape shape;
    std::string tokenizer;  // "bytes", "bpe" or ""
    uint64_t vocabulary_sum = 0;  // checksum of vocab.bpe
    std::map<uint64_t, int> choices;  // the autotuner's: see fast/autotune.h
    RunningStatistics losses = {}, norms = {};  // of the steps that were updates, for --spike-z
    int spikes_since_progress = 0;  // skipped since an update; rollbacks since a new checkpoint

    void advance(int batch, uint64_t batch_tokens) {
        step++;
        samples += (uint64_t)batch;
        tokens += batch_tokens;
    }
};
