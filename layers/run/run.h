// run.h   a run: its options, its progress, a step's result and what ranks report to each other about it
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include "../../data/loader.h"
#include "../model/optimizer.h"
#include "start_times.h"

struct Checkpoint;  // checkpoint.h
struct Vocabulary;  // data/tokenizer.h

// ---- options --------------------------------------------------------------------------------------------

// what each means: the table in config.h, or ./train_gpt --help

constexpr int automatic = -1;  // a number given as `auto`, resolved later
constexpr long most_rows = 1 << 28;  // B * T: some products of it are computed in 32 bits

struct Options : OptimizerOptions {
    std::string model = "124M";
    int layers = 0, hidden = 0, heads = 0, sequence = 0, vocabulary = 0, pad_vocabulary = 0;

    std::vector<std::string> train, validation, evaluate;
    std::string tokenizer;

    int batch = 8, micro_batch = 0, ramp_start = 0, ramp_increment = 0;  // micro_batch 0: at most 4
    long ramp_tokens = 0;

    long steps = 0, until_tokens = 0;
    long seed = 1234;

    long evaluate_every = 0, evaluate_sequences = 80, sample_every = 0;
    int sample_tokens = 64, top_k = 0;
    double temperature = 1, top_p = 1, repetition = 1;

    std::string save, resume, metrics, config, generate, results, long_continuations = "skip";
    std::string other_data = "no";
    long save_every = 0, keep = 2, save_attempts = 5, resume_before = 0;
    double save_seconds = 0, mtbf = 0;

    std::string on_spike = "stop";
    double spike_z = 0, slow_factor = 2;

    int tensor_parallel = 1, pipeline_parallel = 1, pipeline_chunks = 1, pipeline_group = 0, zero = 1;
    int loss_chunk = 0;

    std::string graph = "auto", fp8 = "no", fp8_lm_head = "no", moments = "fp32", master_weights = "yes";
    std::string loss_on = "all";
    std::string sequence_parallel = "yes", recompute = "none", attention = "auto";

    long check_every = 0;
    double comm_timeout = 600;
    int world_size = 0;

    std::string tuning, plan, plan_json, hardware, hosts, timeline, trace, record;
    long trace_step = 2, record_values = 256, profile = 0;
    double gemm_efficiency = 0.545, network_rate = 0, file_system_rate = 0;

    bool help = false, version = false, verbose = false;
    std::set<std::string> given;  // given on the command line or in the config file
    // of the checkpoint's recipe, what this build or device cannot do; recorded again, for one that can
    std::map<std::string, std::string> postponed;

    bool has(const char* name) const { return given.count(name) > 0; }

    // the model generates or is evaluated, and is not trained
    bool inference() const {
        return !generate.empty() || (!evaluate.empty() && train.empty() && plan.empty());
    }

    // --generate names a file of prompts; otherwise its text is the only prompt
    bool prompts() const { return generate.ends_with(".jsonl"); }
    // … or serves prompts that come on standard input: inference/serve.h
    bool serves() const { return generate == "-.jsonl"; }
};

// global batch size of the step that begins after `samples`: grows from ramp_start to batch in increments of
// ramp_increment, evenly spread over the first ramp_tokens (Megatron-LM's --rampup-batch-size)
inline int batch_after(const Options& o, uint64_t samples) {
    if (!o.ramp_start || o.inference()) return o.batch;
    double ramp = (double)o.ramp_tokens / o.sequence;
    int increments = (o.batch - o.ramp_start) / o.ramp_increment;
    if ((double)samples > ramp || increments == 0) return o.batch;
    int done = (int)((double)samples / (ramp / increments));
    return std::min(o.batch, o.ramp_start + o.ramp_increment * done);
}

// the global batch sizes still to come, from the step that begins after `samples` on
inline std::vector<int> batches_from(const Options& o, uint64_t samples) {
    std::vector<int> all;
    for (int batch = batch_after(o, samples); batch < o.batch; batch += o.ramp_increment)
        all.push_back(batch);
    all.push_back(o.batch);
    return all;
}

// ---- progress -------------------------------------------------------------------------------------------

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
    uint64_t samples_seen = 0, tokens_seen = 0;  // the first is also the position in the data
    long seed = 0;
    uint64_t training_set_size = 0;  // in samples; and a checksum of its files, to notice if it has changed
    uint64_t training_set_sum = 0;   // (0: unknown)
    ModelShape shape;
    std::string tokenizer;  // "bytes", "bpe" or ""
    uint64_t vocabulary_sum = 0;  // checksum of vocab.bpe
    std::map<uint64_t, int> choices;  // the autotuner's: see fast/autotune.h
    RunningStatistics losses = {}, norms = {};  // of steps that made their update, for --spike-z
    int spikes_since_progress = 0;  // skipped since an update; rollbacks since a new checkpoint
    long updates = 0;  // made since m and v were 0, skipped ones left out: for AdamW's bias correction

    void advance(int batch, uint64_t batch_tokens, bool updated) {
        step++;
        updates += updated;
        samples_seen += (uint64_t)batch;
        tokens_seen += batch_tokens;
    }
};

// ---- a step's end ---------------------------------------------------------------------------------------

using NamedValues = std::vector<std::pair<std::string, double>>;

// what one rank reports at the end of a step
struct RankReport {
    bool stops = false;        // it has received a signal
    bool lacks_data = false;   // the next step's samples cannot be read
    bool still_reads = false;  // … or are not read yet: all ranks wait for that (exchange_reports)
    bool wants_save = false;   // a save is due; only rank 0's answer counts, as clocks differ
    bool is_corrupt = false;   // bits have flipped in its memory, or a step computed twice differs
    int save_status = 0;       // see save.h
    double computed = 0;       // seconds of the step, without waiting for other ranks
};

// A step's numbers, the same on every rank, except for seconds, which are each rank's own, and slow_ranks,
// which only rank 0 knows
struct StepResult {
    double loss = 0, learning_rate = 0, norm = 0;  // the mean over the step's tokens; norm before clipping
    double seconds = 0, counted_tokens = 0;
    bool updated = true;           // false: loss or norm was not finite, or a spike; nothing changed
    std::vector<int> slow_ranks;   // see SlowRankMonitor (monitor.h)
    NamedValues set_losses;        // for each set of a blend that had samples in the step
    std::optional<double> validation_loss;  // if evaluated
    NamedValues tasks;             // metrics of --evaluate; empty: not evaluated
    std::vector<RankReport> reports;  // by rank
    bool is_finite() const { return std::isfinite(loss) && std::isfinite(norm); }
    bool any(bool RankReport::* flag) const {
        return std::any_of(reports.begin(), reports.end(), [&](auto& r) { return r.*flag; });
    }
};

// ---- a run ----------------------------------------------------------------------------------------------

// once every setting is resolved
struct Run {
    Options options;
    Grid grid;
    RunState state;           // its progress
    long last_step = 0;
    uint64_t last_tokens = 0;
    std::optional<Blend> train;
    std::optional<Loader> validation;
    std::unique_ptr<Vocabulary> vocabulary;
    std::vector<Checkpoint> checkpoints;  // to resume from, newest first
    long newest_listed = -1;  // step of the newest when they were looked for, even if it cannot be read
    std::vector<std::string> hosts;       // by rank
    StartTimes start_times;
    bool automatic_micro_batch = false;

    Run();
    Run(Run&&);
    ~Run();
    bool trains() const { return !options.inference() && options.plan.empty(); }
    bool is_rank0() const { return comm::world_rank() == 0; }  // the rank that prints
};
