// options.h   the options of a run; what each means: the table in config.h, or ./train_gpt --help
#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <vector>
#include "../model/optimizer.h"

constexpr int automatic = -1;  // a number given as `auto`, resolved later

struct Options : OptimizerOptions {
    std::string model = "124M";
    int layers = 0, hidden = 0, heads = 0, sequence = 0, vocabulary = 0, pad_vocabulary = 0;

    std::vector<std::string> train, validation, evaluate;
    std::string tokenizer;

    int batch = 8, micro_batch = 0, ramp_start = 0, ramp_increment = 0;
    long ramp_tokens = 0;

    long steps = 0, until_tokens = 0;
    long seed = 1234;

    long evaluate_every = 0, evaluate_batches = 20, sample_every = 0;
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

    std::string graph = "auto", fp8 = "no", moments = "fp32", master_weights = "yes";
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

    bool has(const char* name) const { return given.count(name) > 0; }

    // the model generates or is evaluated, and is not trained
    bool inference() const {
        return !generate.empty() || (!evaluate.empty() && train.empty() && plan.empty());
    }

    // --generate names a file of prompts; otherwise its text is the only prompt
    bool prompts() const { return generate.ends_with(".jsonl"); }
};

// global batch size of the step that begins after `samples`: grows from ramp_start to batch in increments of
// ramp_increment, evenly spread over the first ramp_tokens (Megatron-LM's --rampup-batch-size)
inline int batch_after(const Options& o, uint64_t samples) {
    if (!o.ramp_start) return o.batch;
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
