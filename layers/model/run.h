// run.h   a run, and its start: every open setting is settled, or refused
//   preset < checkpoint < option. What is settled is printed, and recorded in checkpoints.
#pragma once
#include <unistd.h>
#include <optional>
#include "../../comm/agree.h"
#include "../../data/loader.h"
#include "checkpoint.h"

struct Run {
    Options options;
    Grid grid;
    RunState state;
    long last_step = 0;
    std::optional<Loader> train, validation;
    std::optional<Vocabulary> vocabulary;
    std::vector<Checkpoint> checkpoints;  // to resume from, newest first
    std::unique_ptr<Model> model;
    std::unique_ptr<Optimizer> optimizer;
    double validation_loss = NAN;
    bool speaks() const { return comm::world_rank() == 0; }  // one rank prints
};

// a checkpoint brings the model's shape and seed; options that were named must agree with it
inline void take_from_checkpoint(Run& run) {
    Options& o = run.options;
    const RunState& saved = run.checkpoints[0].state;
    if (o.has("model")) {
        const Preset& p = find_preset(o.model);
        int* settings[] = {&o.layers, &o.hidden, &o.heads, &o.sequence};
        int values[] = {p.layers, p.hidden, p.heads, p.sequence};
        const char* names[] = {"layers", "hidden", "heads", "sequence"};
        for (int i = 0; i < 4; i++)
            if (!o.has(names[i])) *settings[i] = values[i], o.given.insert(names[i]);
    }
    struct { const char* name; int* setting; int saved; } all[] = {
        {"layers", &o.layers, saved.shape.L},       {"hidden", &o.hidden, saved.shape.C},
        {"heads", &o.heads, saved.shape.NH},        {"sequence", &o.sequence, saved.shape.T},
        {"vocabulary", &o.vocabulary, saved.shape.V}};
    for (auto& a : all) {
        if (o.has(a.name) && *a.setting != a.saved)
            fail("--resume %s: the checkpoint has %s %d, the options say %d: leave the option out, or start "
                 "a new run without --resume", o.resume.c_str(), a.name, a.saved, *a.setting);
        *a.setting = a.saved;
    }
    if (o.has("seed") && o.seed != saved.seed)
        fail("--resume %s: the run has seed %ld, the options say %ld: leave --seed out", o.resume.c_str(),
             saved.seed, o.seed);
    o.seed = saved.seed;
    run.state = saved;
}

// the vocabulary to print and read text with: --tokenizer's, the checkpoint's, or the one beside the tokens
inline void open_vocabulary(Run& run) {
    Options& o = run.options;
    std::string spec = o.tokenizer;
    if (spec.empty() && !run.checkpoints.empty() && !run.state.tokenizer.empty())
        spec = run.state.tokenizer == "bytes" ? "bytes" : run.checkpoints[0].folder + "/vocab.bpe";
    if (spec.empty() && run.train && run.train->files[0].kind == "bytes") spec = "bytes";
    if (spec.empty() && run.train && run.train->files[0].kind == "bpe") {
        for (const char* ending : {".train.bin", ".bin"}) {
            std::string path = o.train[0];
            if (!path.ends_with(ending)) continue;
            path = path.substr(0, path.size() - strlen(ending)) + ".vocab.bpe";
            if (access(path.c_str(), R_OK) == 0) spec = path;
        }
    }
    if (spec.empty() && (o.sample_every || !o.generate.empty()))
        fail("%s wants to know the vocabulary: give --tokenizer bytes or PATH/vocab.bpe",
             o.sample_every ? "--sample-every" : "--generate");
    if (spec.empty()) return;
    run.vocabulary = Vocabulary::open(spec);
    if (run.vocabulary->size() != o.vocabulary)
        fail("--tokenizer %s: has %d tokens, the model's vocabulary is %d", spec.c_str(),
             run.vocabulary->size(), o.vocabulary);
    run.state.tokenizer = run.vocabulary->kind;
}

inline void settle_schedule(Run& run) {
    Options& o = run.options;
    int d = run.grid.d, share = o.batch / d;
    if (o.batch % d) fail("--batch %d over %d data-parallel ranks: choose a multiple of %d", o.batch, d, d);
    if (!o.micro_batch)
        for (o.micro_batch = std::min(4, share); share % o.micro_batch; o.micro_batch--) {}
    if (share % o.micro_batch)
        fail("--micro-batch %d does not divide --batch %d%s: choose %s", o.micro_batch, o.batch,
             d > 1 ? text(" / %d data-parallel ranks", d).c_str() : "",
                 divisors_near(share, o.micro_batch).c_str());
    if (o.beta1 >= 1 || o.beta2 >= 1) fail("--beta1 %g --beta2 %g: want less than 1", o.beta1, o.beta2);
    if (o.top_p <= 0 || o.top_p > 1) fail("--top-p %g: wants more than 0, at most 1", o.top_p);
    double step_tokens = (double)o.batch * o.sequence;
    if (!o.has("steps")) o.steps = o.until_tokens ? std::numeric_limits<int>::max() : 1000;
    run.last_step = o.steps;
    if (o.until_tokens) {
        long left = (long)std::ceil(((double)o.until_tokens - (double)run.state.tokens) / step_tokens);
        run.last_step = std::min(run.last_step, run.state.step + std::max(0L, left));
    }
    double tokens = (double)run.last_step * step_tokens;
    if (o.learning_rate == 0 && !o.has("learning-rate")) o.learning_rate = find_preset(o.model).learning_rate;
    if (o.min_learning_rate < 0) o.min_learning_rate = o.learning_rate / 10;
    if (o.decay_tokens < 0) o.decay_tokens = o.until_tokens ? o.until_tokens : (long)tokens;
    if (o.warmup_tokens < 0) o.warmup_tokens = o.decay_tokens / 100;
    if (o.warmup_tokens > o.decay_tokens)
        fail("--warmup-tokens %ld is more than --decay-tokens %ld: lower it", o.warmup_tokens,
             o.decay_tokens);
}

inline void settle_parallel(Run& run) {
    const Options& o = run.options;
    int t = run.grid.t;
    struct { const char* name; const std::string& value; const char *one, *other; } words[] = {
        {"sequence-parallel", o.sequence_parallel, "yes", "no"}, {"recompute", o.recompute, "full", "none"}};
    for (auto& w : words)
        if (w.value != w.one && w.value != w.other)
            fail("--%s %s: wants %s or %s", w.name, w.value.c_str(), w.one, w.other);
    if (o.zero > 1) fail("--zero %d: wants 0 or 1", o.zero);
    if (o.heads % t)
        fail("%d heads over %d tensor-parallel ranks: choose a --tensor-parallel that divides %d (%s)",
             o.heads, t, o.heads, divisors_near(o.heads, t).c_str());
    if (run.state.shape.Vp % t)
        fail("a vocabulary padded to %d over %d tensor-parallel ranks: choose --pad-vocabulary %d",
             run.state.shape.Vp, t, o.pad_vocabulary * t);
    if (o.sequence % t && o.sequence_parallel == "yes")
        fail("--sequence %d over %d tensor-parallel ranks: choose a multiple of %d, or --sequence-parallel "
             "no", o.sequence, t, t);
    int L = o.layers, p = run.grid.p, v = o.pipeline_chunks;
    if (L % (p * v) == 0) return;
    std::string good, layers = text("%d", (L / (p * v) + 1) * p * v);
    if (L > p * v) layers = text("%d or ", L / (p * v) * p * v) + layers;
    for (int i = 1; i <= L; i++)
        if (L % (i * v) == 0 && i != p) good += text(" %d", i);
    fail("%d layers over %d pipeline stages%s: choose a --pipeline-parallel of%s, or --layers %s", L, p,
         v > 1 ? text(" of %d chunks", v).c_str() : "", good.empty() ? " 1" : good.c_str(), layers.c_str());
}

inline void settle(Run& run) {
    Options& o = run.options;
    bool training = o.generate.empty();
    if (!training && o.resume.empty()) fail("--generate wants a trained model: give --resume DIR");
    if (training && o.train.empty())
        fail("wants --train FILE: make one with ./tokenize (--help lists all options)");
    if (!o.resume.empty()) {
        run.checkpoints = find_checkpoints(o.resume);
        take_from_checkpoint(run);
    }
    if (training) {
        find_preset(o.model);
        int T = o.sequence ? o.sequence : find_preset(o.model).sequence;
        run.train.emplace(o.train, T, (uint64_t)o.seed);
        if (!o.validation.empty()) run.validation.emplace(o.validation, T, (uint64_t)o.seed);
    }
    run.state.shape = model_shape(o, run.train ? run.train->file_vocabulary() : 0);
    settle_parallel(run);
    run.state.seed = o.seed;
    for (auto* loader : {&run.train, &run.validation}) {
        if (!*loader) continue;
        int V = (*loader)->file_vocabulary();
        if (V && V != o.vocabulary)
            fail("%s: has a vocabulary of %d, the model of %d: give --vocabulary %d or other files",
                 (*loader)->files[0].path.c_str(), V, o.vocabulary, V);
        (*loader)->V = o.vocabulary;
    }
    open_vocabulary(run);
    settle_schedule(run);
    if (run.speaks() && run.train && run.state.windows && run.state.windows != run.train->windows())
        printf("note: the training set has %llu windows, the checkpoint's had %llu: this is other data\n",
               (unsigned long long)run.train->windows(), (unsigned long long)run.state.windows);
    if (run.train) run.state.windows = run.train->windows();
    if (!o.save.empty()) {
        std::error_code e;
        std::filesystem::create_directories(o.save, e);
        if (e || access(o.save.c_str(), W_OK) != 0)
            fail("--save %s: cannot be written: %s", o.save.c_str(),
                 e ? e.message().c_str() : strerror(errno));
    }
    if (!o.save.empty() && o.resume != o.save && !list_checkpoints(o.save).empty())
        fail("--save %s already holds checkpoints: go on from them with --resume %s, or choose another "
             "folder", o.save.c_str(), o.save.c_str());
}

// ---- what must be the same on every rank -----------------------------------------------------------------

inline uint64_t file_sum(const std::string& path) {
    MappedFile file(path);
    return checksum(file.data, file.size);
}

inline std::vector<comm::Fact> option_facts(const Options& o) {
    std::vector<comm::Fact> facts = {
        {"the program", file_sum("/proc/self/exe"), "copy one build to all hosts"}};
    for (auto& option : option_table) {
        std::string value = print_value(o, option);
        facts.push_back({text("--%s", option.name), checksum(value.data(), value.size()),
                         "start all ranks with the same options"});
    }
    return facts;
}

inline std::vector<comm::Fact> file_facts(const Run& run) {
    auto sum = [](const std::optional<Loader>& loader) {
        uint64_t all = 0;
        if (loader) for (auto& f : loader->files) all = all * 31 + f.fingerprint();
        return all;
    };
    uint64_t resumed = 0;
    if (!run.checkpoints.empty()) resumed = file_sum(run.checkpoints[0].folder + "/index.json");
    return {{"the training set", sum(run.train), "copy the same files to all hosts"},
            {"the validation set", sum(run.validation), "copy the same files to all hosts"},
            {"the checkpoint to resume", resumed, "give a folder that all hosts share"}};
}
