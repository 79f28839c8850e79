// resolve.h   start of a run: resolves every setting that was left open, and rejects what cannot work before
//   anything begins. Options override the preset, but not what a checkpoint fixes (shape, seed; the tokenizer
//   by default). A run that resumes takes its recipe from the checkpoint, where the options do not say
//   otherwise, and saves back into the folder that it came from. The resolved settings are recorded in
//   checkpoints.
#pragma once
#include <unistd.h>
#include <numeric>
#include "../../comm/mpi/hosts.h"
#include "../fast/autotune.h"
#include "../../comm/mpi/capture.h"
#include "../base/hardware.h"
#include "same_run.h"

// takes the model's shape and seed from the checkpoint; options given explicitly must agree with them
inline void take_from_checkpoint(Run& run) {
    Options& o = run.options;
    const RunState& saved = run.checkpoints[0].state;
    if (o.has("model")) {
        const Preset& p = find_preset(o.model);
        int* settings[] = {&o.layers, &o.hidden, &o.heads, &o.sequence};
        int values[] = {p.layers, p.hidden, p.heads, p.sequence};
        const char* names[] = {"layers", "hidden", "heads", "sequence"};
        for (int i = 0; i < 4; i++)
            if (!o.has(names[i])) {
                *settings[i] = values[i];
                o.given.insert(names[i]);
            }
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

    if (o.has("seed") && o.inference()) return void(run.state = saved);  // here it seeds sampling
    if (o.has("seed") && o.seed != saved.seed)
        fail("--resume %s: the run has seed %ld, the options say %ld: leave --seed out", o.resume.c_str(),
             saved.seed, o.seed);
    o.seed = saved.seed;
    run.state = saved;
}

// whether this build and device, with these options, can train with a checkpoint's value
inline bool is_possible_here(const Options& o, const std::string& name, const std::string& value) {
    if (name == "master-weights") return value == "yes" || !master_is_parameter;
    if (name == "fp8") return value == "no" || (sizeof(floatX) == 2 && device_has_fp8());
    if (name == "fp8-lm-head") return value == "no" || o.fp8 == "yes";  // which is taken before it
    return true;
}

inline void take_options(Run& run, Inherit kind) {
    Options& o = run.options;
    const Checkpoint& from = run.checkpoints[0];
    bool has_end = o.has("steps") || o.has("until-tokens");

    for (auto& option : option_table) {
        const std::string name = option.name;
        bool is_end = name == "steps" || name == "until-tokens";
        // a resumed run's own checkpoints hold the model's name, which that run's options did not give
        auto waits = from.postponed.find(name);
        bool is_postponed = waits != from.postponed.end();
        bool was_given = from.given.count(name) || (name == "model" && from.options.count(name));
        if (option.inherit != kind || (!was_given && !is_postponed)) continue;
        if (o.has(option.name) || (is_end && has_end)) continue;

        std::vector<std::string> value = {is_postponed ? waits->second : from.options.at(name)};
        check_values(option, value);
        if (!is_possible_here(o, name, value[0])) {
            bool is_refused = name == "fp8-lm-head" && o.has("fp8");  // --fp8 no was given
            if (!is_refused) o.postponed[name] = value[0];
            continue;
        }
        set_option(o, option, value);
        if (name == "model") o.given.erase(name);  // wanted for its defaults: the sizes are the checkpoint's
    }
}

// The learning rate continues where it was: without options for it, it follows the checkpoint's schedule,
// even if the run becomes longer
inline void take_schedule(Run& run) {
    Options& o = run.options;
    std::map<std::string, std::string>& saved = run.checkpoints[0].options;
    if (o.has("decay-tokens") || !saved.count("decay-tokens")) return;
    o.decay_tokens = atol(saved["decay-tokens"].c_str());
    if (!o.has("warmup-tokens")) o.warmup_tokens = atol(saved["warmup-tokens"].c_str());
}

// the folder into which a resumed run saves without --save: the one that holds the checkpoint
inline std::string folder_to_save_back(const Run& run) {
    const std::string& folder = run.checkpoints[0].folder;
    const std::string& given = run.options.resume;
    auto asks = [&](const std::string& why) {
        fail("--resume %s: %s: say where this run should save: --save FOLDER, or --save no", given.c_str(),
             why.c_str());
    };
    if (!run.checkpoints[0].has_moments()) asks("is a model without optimizer state, and stays as it is");
    if (run.options.other_data == "yes") asks("with other data it stays as it is");
    if (folder != given) return given;  // it holds the checkpoints

    std::filesystem::path whole = std::filesystem::canonical(folder), parent = whole.parent_path();
    if (step_of(whole.filename()) < 0) asks("is a checkpoint on its own");
    if (list_checkpoints(parent)[0] != whole.filename()) asks("has newer checkpoints beside it");
    return parent;
}

// whether --resume names --save's folder or its newest checkpoint
inline bool saves_back(const Options& o) {
    std::error_code none;
    if (std::filesystem::equivalent(o.resume, o.save, none)) return true;
    std::vector<std::string> there = list_checkpoints(o.save);
    return !there.empty() && std::filesystem::equivalent(o.resume, o.save + "/" + there[0], none);
}

// what a run that resumes takes from its checkpoint, beyond the model
inline void resume_options(Run& run) {
    Options& o = run.options;
    // options that change what forward computes would have to be taken for inference too; there are none but
    // --fp8 and --fp8-lm-head, and inference is in bf16
    if (run.checkpoints.empty() || o.inference()) return;
    take_options(run, Inherit::always);
    if (run.checkpoints[0].has_moments()) take_schedule(run);
    if (!run.trains()) return;
    if (!o.has("save")) o.save = folder_to_save_back(run);
    if (o.save == "no" || !saves_back(o)) return;
    o.resume = o.save;
    take_options(run, Inherit::with_save);
}

// the tokens of file `path` are of vocabulary `name`, those of `other` of `wanted`; "": it is not known.
// Another vocabulary of the same size would train, or score, nonsense
inline void check_vocabulary_name(const std::string& path, const std::string& name, const std::string& other,
                                  const std::string& wanted) {
    if (name.empty() || wanted.empty() || may_be_one_vocabulary(name, wanted)) return;
    fail("%s: is in tokens of vocabulary %s, %s has %s: make it again with the same vocabulary", path.c_str(),
         name.c_str(), other.c_str(), wanted.c_str());
}

inline void check_vocabulary_names(const Run& run) {
    const TokenFile* train = run.train ? &run.train->sets[0].files[0] : nullptr;
    const TokenFile* validation = run.validation ? &run.validation->files[0] : nullptr;
    std::string own = run.vocabulary ? run.vocabulary->name() : "";
    for (auto* file : {train, validation})
        if (file) check_vocabulary_name(file->path, file->vocabulary_name, "the model", own);
    if (train && validation)
        check_vocabulary_name(validation->path, validation->vocabulary_name, train->path,
                              train->vocabulary_name);
}

// the vocabulary for text: --tokenizer's, else the checkpoint's, else the one next to the training tokens
inline void open_vocabulary(Run& run) {
    Options& o = run.options;
    std::string spec = o.tokenizer;
    if (spec.empty() && !run.checkpoints.empty() && !run.state.tokenizer.empty())
        spec = run.state.tokenizer == "bytes" ? "bytes" : run.checkpoints[0].folder + "/vocab.bpe";

    // a token file made by ./tokenize has its vocabulary beside it
    std::string of_train = run.train ? run.train->sets[0].files[0].vocabulary_name : "";
    if (spec.empty() && of_train == "bytes") spec = "bytes";
    if (spec.empty() && of_train.starts_with("bpe")) {
        for (const char* ending : {".train.bin", ".bin"}) {
            std::string path = run.train->given[0].files[0];
            if (!path.ends_with(ending)) continue;
            path = path.substr(0, path.size() - strlen(ending)) + ".vocab.bpe";
            if (access(path.c_str(), R_OK) == 0) spec = path;
        }
    }

    if (spec.empty() && (o.sample_every || !o.generate.empty()))
        fail("%s needs the vocabulary: give --tokenizer bytes or PATH/vocab.bpe",
             o.sample_every ? "--sample-every" : "--generate");
    if (spec.empty()) return;

    run.vocabulary = std::make_unique<Vocabulary>(Vocabulary::open(spec));
    if (run.vocabulary->size() != o.vocabulary)
        fail("--tokenizer %s: has %d tokens, but the model's vocabulary is %d", spec.c_str(),
             run.vocabulary->size(), o.vocabulary);
    run.state.tokenizer = run.vocabulary->kind;
}

// the micro-batch of the checkpoint's run, if it divides this run's share of the batch (the same layout then
// gives the same bits), else 0
inline int micro_batch_of_checkpoint(const Run& run, int share) {
    if (run.checkpoints.empty()) return 0;
    auto before = run.checkpoints[0].options.find("micro-batch");
    int B = before == run.checkpoints[0].options.end() ? 0 : atoi(before->second.c_str());
    return B > 0 && share % B == 0 ? B : 0;
}

// a search has more replicas than the layout that it starts with
inline void check_micro_batches(const Options& o, int d) {
    constexpr int most = 1 << 16;
    if (o.batch / d / o.micro_batch > most && o.plan != "search")
        fail("--batch %d: makes more than %d micro-batches a step on each replica: choose a larger "
             "--micro-batch, or a smaller --batch", o.batch, most);
}

// the batch size, and every batch size of the ramp, must be whole micro-batches on every replica
inline void resolve_batch(Run& run) {
    Options& o = run.options;
    int d = run.grid.d;

    if (!o.ramp_start && !o.has("ramp-start") && (o.ramp_increment || o.ramp_tokens))
        fail("--ramp-increment and --ramp-tokens require --ramp-start");
    if (o.ramp_start && !o.ramp_tokens) fail("--ramp-start %d requires --ramp-tokens", o.ramp_start);
    if (!o.ramp_increment) o.ramp_increment = o.ramp_start;
    const char* inherited = run.checkpoints.empty() ? "" : ", or --ramp-start 0 if the ramp has ended";
    if (o.ramp_start > o.batch)
        fail("--ramp-start %d is more than --batch %d: a ramp grows: choose at most %d%s", o.ramp_start,
             o.batch, o.batch, inherited);
    if (o.ramp_start && (o.batch - o.ramp_start) % o.ramp_increment)
        fail("--ramp-start %d by --ramp-increment %d does not reach --batch %d: choose an increment that "
             "divides %d%s", o.ramp_start, o.ramp_increment, o.batch, o.batch - o.ramp_start, inherited);

    constexpr long most_sizes = 1 << 14, most_steps = 100'000'000;
    if (o.ramp_start && (o.batch - o.ramp_start) / o.ramp_increment > most_sizes)
        fail("--ramp-increment %d: makes more than %ld batch sizes, each with its own schedule: choose a "
             "larger one", o.ramp_increment, most_sizes);
    if (o.ramp_start && o.ramp_tokens / o.sequence / o.ramp_start > most_steps)
        fail("--ramp-tokens %ld: more than %ld steps of the ramp: choose fewer, or a larger --ramp-start",
             o.ramp_tokens, most_steps);

    if (o.batch % d) fail("--batch %d over %d data-parallel ranks: choose a multiple of %d", o.batch, d, d);
    int common = 0;  // greatest common divisor of the batch sizes still to come
    for (int batch : batches_from(o, run.state.samples_seen)) common = std::gcd(common, batch);
    if (common % d) {
        std::vector<std::string> good;
        for (int i = 1; i <= common; i++) if (common % i == 0) good.push_back(std::to_string(i));
        fail("--ramp-start %d by --ramp-increment %d over %d data-parallel ranks: choose a ramp in multiples "
             "of %d, or %s data-parallel ranks; or use these %d from a checkpoint after the ramp "
             "(--plan: with --ramp-start 0)",
             o.ramp_start, o.ramp_increment, d, d, alternatives(good).c_str(), d);
    }

    int share = common / d;
    if (!o.has("micro-batch")) {
        o.micro_batch = micro_batch_of_checkpoint(run, share);
        if (o.micro_batch) o.given.insert("micro-batch");  // for runs that resume from this one
    }
    run.automatic_micro_batch |= o.micro_batch == automatic;
    if (o.micro_batch == automatic) o.micro_batch = 1;  // until choose_micro_batch()
    if (!o.micro_batch)
        for (o.micro_batch = std::min(4, share); share % o.micro_batch; o.micro_batch--) {}
    if (share % o.micro_batch)
        fail("--micro-batch %d does not divide %s %d%s: choose %s", o.micro_batch,
             o.ramp_start ? "the ramp's common divisor" : "--batch", common,
             d > 1 ? text(" / %d data-parallel ranks", d).c_str() : "",
             divisors_near(share, o.micro_batch).c_str());
    if (!run.automatic_micro_batch) check_micro_batches(o, d);
}

// the run's last step, by --steps and --until-tokens: counted step by step, because the batch size may grow
inline void resolve_last_step(Run& run) {
    Options& o = run.options;
    long most = o.has("steps") ? o.steps : o.until_tokens ? std::numeric_limits<int>::max() : 1000;
    uint64_t samples = run.state.samples_seen, T = (uint64_t)o.sequence;
    run.last_step = run.state.step;
    uint64_t enough = o.until_tokens ? (uint64_t)o.until_tokens : std::numeric_limits<uint64_t>::max();
    uint64_t tokens = run.state.tokens_seen;  // not samples * T: --on-spike back skips samples
    constexpr double most_tokens = 9e15;      // as any option's
    if (o.has("steps") && (double)o.steps * o.batch * (double)T > most_tokens)
        fail("--steps %ld of %d sequences of %d tokens: more than %g tokens: choose fewer", o.steps, o.batch,
             o.sequence, most_tokens);

    for (; run.last_step < most && tokens < enough; run.last_step++) {
        int B = batch_after(o, samples);
        samples += B;
        tokens += B * T;
        if (B == o.batch) {  // from here on all steps are alike
            uint64_t left = enough > tokens ? (enough - tokens + B * T - 1) / (B * T) : 0;
            left = std::min(left, (uint64_t)(most - run.last_step - 1));
            run.last_step += (long)left;
            samples += left * B;
            tokens += left * B * T;
        }
    }
    run.last_tokens = tokens;
    if (o.until_tokens && tokens < enough && !o.has("steps"))
        fail("--until-tokens %ld: more than %ld steps: choose a larger --batch, or --steps too",
             o.until_tokens, most);
    if (!o.has("steps")) o.steps = run.last_step;
}

// defaults, in tokens: decay over --until-tokens or else the whole run, warm-up over 1 % of the decay
inline void resolve_learning_rate(Run& run) {
    Options& o = run.options;
    if (o.learning_rate == 0 && !o.has("learning-rate")) o.learning_rate = find_preset(o.model).learning_rate;
    if (o.min_learning_rate < 0) o.min_learning_rate = o.learning_rate / 10;
    if (o.min_learning_rate > o.learning_rate)
        fail("--min-learning-rate %g is more than --learning-rate %g: lower it", o.min_learning_rate,
             o.learning_rate);
    if (o.decay_tokens < 0) o.decay_tokens = o.until_tokens ? o.until_tokens : (long)run.last_tokens;
    if (o.warmup_tokens < 0) o.warmup_tokens = o.decay_tokens / 100;
    if (o.warmup_tokens > o.decay_tokens)
        fail("--warmup-tokens %ld is more than --decay-tokens %ld: lower it", o.warmup_tokens,
             o.decay_tokens);
}

inline void resolve_schedule(Run& run) {
    Options& o = run.options;
    if (o.inference() && o.micro_batch == automatic)
        fail("--micro-batch auto is for training: give a number");
    if (!o.inference()) resolve_batch(run);
    else if (!o.generate.empty()) o.micro_batch = 1;
    else if (!o.micro_batch) o.micro_batch = 4;
    if ((long)(o.prompts() ? o.batch : o.micro_batch) * o.sequence > most_rows)
        fail("--%s: makes more than %ld rows at once: choose a smaller one",
             o.prompts() ? "batch" : "micro-batch", most_rows);

    if ((real)o.beta1 >= 1 || (real)o.beta2 >= 1)
        fail("--beta1 %.10g --beta2 %.10g: must be less than 1, in the %zu bits that they are computed with",
             o.beta1, o.beta2, 8 * sizeof(real));
    if (!((real)o.epsilon > 0))  // where v is 0, m is divided by it alone
        fail("--epsilon %g: must be more than 0: give 1e-8, or another value that %zu bits can hold",
             o.epsilon, 8 * sizeof(real));
    if (o.top_p <= 0 || o.top_p > 1) fail("--top-p %g: must be more than 0 and at most 1", o.top_p);
    resolve_last_step(run);
    resolve_learning_rate(run);
}

// fails: the value is not one of the words that the option allows
[[noreturn]] inline void fail_choice(const char* name, const std::string& value,
                                     const std::vector<std::string>& wants) {
    fail("--%s %s: expected %s", name, value.c_str(), alternatives(wants).c_str());
}

inline void check_fp8(const Run& run) {
    const Options& o = run.options;
    if (o.plan.empty() && sizeof(floatX) != 2)
        fail("--fp8 yes in " PRECISION_NAME ": requires a bf16 build: make PRECISION=bf16");
    if (o.plan.empty() && !device_has_fp8())
        fail("--fp8 yes: %s has no FP8 GEMMs, sm_89 and later have them: choose --fp8 no",
             device_name().c_str());
    if (o.inference()) fail("--fp8 yes is for training: leave it out");
    int t = run.grid.t;
    if (o.hidden % (16 * t) || o.sequence % 16)
        fail("--fp8 yes with --hidden %d over %d tensor-parallel ranks and --sequence %d: expected multiples "
             "of %d and 16", o.hidden, t, o.sequence, 16 * t);
}

inline void check_fp8_lm_head(const Run& run) {
    const Options& o = run.options;
    int Vp = run.state.shape.Vp, t = run.grid.t;
    if (o.fp8 != "yes") fail("--fp8-lm-head yes requires --fp8 yes");
    if (Vp % (16 * t))
        fail("--fp8-lm-head yes with a vocabulary padded to %d over %d tensor-parallel ranks: expected a "
             "multiple of %d: choose another --pad-vocabulary", Vp, t, 16 * t);
    if (o.loss_chunk % 16)
        fail("--fp8-lm-head yes with --loss-chunk %d: expected a multiple of 16", o.loss_chunk);
}

// options whose values are words
inline void check_words(const Options& o) {
    struct { const char* name; const std::string& value; std::vector<std::string> wants; } words[] = {
        {"sequence-parallel", o.sequence_parallel, {"yes", "no"}},
        {"recompute", o.recompute, {"none", "light", "full"}},
        {"attention", o.attention, {"flash", "materialised", "auto"}},
        {"loss-on", o.loss_on, {"all", "answers"}},
        {"graph", o.graph, {"yes", "no", "auto"}},
        {"on-spike", o.on_spike, {"stop", "skip", "back"}},
        {"fp8", o.fp8, {"yes", "no"}},
        {"fp8-lm-head", o.fp8_lm_head, {"yes", "no"}},
        {"other-data", o.other_data, {"yes", "no"}},
        {"moments", o.moments, {"fp32", "bf16"}},
        {"long-continuations", o.long_continuations, {"skip", "refuse"}},
        {"master-weights", o.master_weights, {"yes", "no"}}};
    for (auto& w : words)
        if (!std::count(w.wants.begin(), w.wants.end(), w.value)) fail_choice(w.name, w.value, w.wants);
}

inline void check_tensor_parallel(const Run& run) {
    const Options& o = run.options;
    int t = run.grid.t;
    if (o.heads % t)
        fail("%d heads over %d tensor-parallel ranks: choose a --tensor-parallel that divides %d (%s)",
             o.heads, t, o.heads, divisors_near(o.heads, t).c_str());
    if (run.state.shape.Vp % t)
        fail("a vocabulary padded to %d over %d tensor-parallel ranks: choose --pad-vocabulary %ld",
             run.state.shape.Vp, t, (long)o.pad_vocabulary * t);
    if (o.sequence % t && o.sequence_parallel == "yes" && !o.inference())
        fail("--sequence %d over %d tensor-parallel ranks: choose a multiple of %d, or --sequence-parallel "
             "no", o.sequence, t, t);
}

inline void check_pipeline_parallel(const Run& run) {
    const Options& o = run.options;
    long L = o.layers, p = run.grid.p, v = o.pipeline_chunks;
    if (v > 1 && p == 1)
        fail("--pipeline-chunks %ld on one pipeline stage: choose --pipeline-parallel 2 or more, or 1 chunk",
             v);
    if (v == 1 && o.has("pipeline-group"))
        fail("--pipeline-group %d requires --pipeline-parallel and --pipeline-chunks of 2 or more: leave it "
             "out otherwise", o.pipeline_group);
    if (L % (p * v) == 0) return;

    // does not divide: which numbers of stages, and of layers, would?
    std::vector<std::string> good;
    std::string layers = text("%ld", (L / (p * v) + 1) * p * v);
    if (L > p * v) layers = text("%ld or ", L / (p * v) * p * v) + layers;
    for (long i = v > 1 ? 2 : 1; i <= L; i++)  // one stage has one chunk
        if (L % (i * v) == 0 && i != p) good.push_back(std::to_string(i));
    if (good.empty()) good = {"1 with --pipeline-chunks 1"};
    fail("%ld layers over %ld pipeline stages%s: choose --pipeline-parallel %s, or --layers %s", L, p,
         v > 1 ? text(" of %ld chunks", v).c_str() : "", alternatives(good).c_str(), layers.c_str());
}

inline void check_parallel(const Run& run) {
    const Options& o = run.options;
    check_words(o);
    if (o.graph == "yes" && o.plan.empty() && comm::world_size() > 1 && !comm::can_capture)
        fail("--graph yes over %d ranks: MPI calls cannot be captured: build with COMM=nccl, or choose "
             "--graph no or auto", comm::world_size());
    if (o.graph == "yes" && o.plan.empty() && run.grid.p > 1 && comm::world_rank() == 0)
        fprintf(stderr, "note: --graph yes over %d pipeline stages: CUDA does not promise that a graph's "
                        "branches run concurrently: if a step hangs, choose --graph no\n", run.grid.p);
    if (o.graph == "yes" && o.loss_on == "answers")
        fail("--graph yes with --loss-on answers: each step divides by a different number of tokens: choose "
             "--graph no or auto");
    if (o.fp8 == "yes") check_fp8(run);
    if (o.fp8_lm_head == "yes") check_fp8_lm_head(run);
    if (o.master_weights == "no" && o.plan.empty() && master_is_parameter)
        fail("--master-weights no in " PRECISION_NAME ": requires a bf16 build: make PRECISION=bf16");
    if (o.zero > 1) fail("--zero %d: expected 0 or 1", o.zero);
    check_tensor_parallel(run);
    check_pipeline_parallel(run);
}

// with --plan the token files may be on another machine; if they are here, they give the vocabulary size
inline int planned_vocabulary(const Options& o) {
    if (o.train.empty() || o.vocabulary) return 0;
    try {
        int T = o.sequence ? o.sequence : find_preset(o.model).sequence;
        return Blend(parse_sets(o.train), T, 0).file_vocabulary();
    } catch (const Error& e) {
        fprintf(stderr, "note: %s; planning with GPT-2's vocabulary\n", e.what());
        return 0;
    }
}

// --loss-on answers: only the losses of answers count
inline void take_answers(Run& run) {
    run.train->take_answers();
    if (run.validation) run.validation->take_answers();
}

// opens --train and --validation
inline void open_data(Run& run) {
    Options& o = run.options;
    find_preset(o.model);
    int T = o.sequence ? o.sequence : find_preset(o.model).sequence;
    run.train.emplace(parse_sets(o.train), T, (uint64_t)o.seed);
    if (!o.validation.empty()) run.validation.emplace(o.validation, T, (uint64_t)o.seed);
    if (o.loss_on == "answers") take_answers(run);
}

// the token files' vocabulary must be the model's
inline void check_data_vocabulary(Run& run) {
    Options& o = run.options;
    auto check = [&](const TokenFile& file, int V) {
        if (V && V != o.vocabulary)
            fail("%s: has vocabulary size %d, the model %d: give %s", file.path.c_str(), V, o.vocabulary,
                 run.checkpoints.empty() ? text("--vocabulary %d or other files", V).c_str()
                                         : "tokens of the checkpoint's vocabulary, made with ./tokenize");
    };
    if (run.train) {
        check(run.train->sets[0].files[0], run.train->file_vocabulary());
        run.train->set_vocabulary(o.vocabulary);
    }
    if (run.validation) {
        check(run.validation->files[0], run.validation->file_vocabulary());
        run.validation->V = o.vocabulary;
    }
}

// whether a folder has a checkpoint's name, or lies in a checkpoint, with which it would be deleted
inline bool lies_in_checkpoint(std::filesystem::path folder) {
    folder = std::filesystem::absolute(folder).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    bool is_one = step_of(folder.filename()) >= 0;
    for (; !is_one && folder.has_relative_path(); folder = folder.parent_path())
        is_one = step_of(folder.filename()) >= 0 && access((folder / "index.json").c_str(), F_OK) == 0;
    return is_one;
}

// every file that a list of --train or --validation reads; those of a .blend only where it can be read itself
inline std::vector<std::string> files_of_sets(const std::vector<std::string>& given) {
    std::vector<std::string> out = given;
    if (given.empty()) return out;
    try {
        for (auto& set : parse_sets(given))
            for (auto& file : set.files) out.insert(out.end(), {file, index_path(file), answers_path(file)});
    } catch (const Error&) {  // reported where data are opened: a plan opens none
    }
    return out;
}

// files that a run writes: none of them one that it reads, or another one's, or part of a checkpoint
inline void check_output_files(const Options& o) {
    std::vector<std::pair<const char*, std::string>> outputs;
    for (auto& [name, path] : {std::pair{"metrics", o.metrics}, {"record", o.record}, {"trace", o.trace},
                               {"timeline", o.timeline}, {"plan-json", o.plan_json}, {"results", o.results}})
        if (!path.empty() && path != "-") outputs.push_back({name, path});

    std::vector<std::string> inputs = {o.config, o.hosts, o.tokenizer, o.generate};
    for (auto* files : {&o.train, &o.validation}) {
        std::vector<std::string> read = files_of_sets(*files);
        inputs.insert(inputs.end(), read.begin(), read.end());
    }
    inputs.insert(inputs.end(), o.evaluate.begin(), o.evaluate.end());
    std::map<std::string, const char*> named;  // file_identity -> option, nullptr: an input
    for (auto& in : inputs)
        if (!in.empty()) named[file_identity(in)] = nullptr;
    for (auto& [name, path] : outputs) {
        auto [other, is_new] = named.insert({file_identity(path), name});
        if (!is_new && !other->second)
            fail("--%s %s: is a file that this run reads: give another name", name, path.c_str());
        if (!is_new)
            fail("--%s and --%s both name %s: give two names", other->second, name, path.c_str());
        if (lies_in_checkpoint(std::filesystem::absolute(path).parent_path()))
            fail("--%s %s: lies in a checkpoint: choose another folder", name, path.c_str());
    }

    refuse_replacing_other(o.record, {"{\"record\""}, "no record of a step");
    refuse_replacing_other(o.plan_json == "-" ? "" : o.plan_json, {"{\"parameters\""}, "no plan");
    for (auto& path : {o.trace, o.timeline})
        refuse_replacing_other(path, {"{\"displayTimeUnit\""}, "no timeline");
    refuse_replacing_other(o.results, {"{\"results\"", "{\"prompt\""}, "no results");
}

// checks that --save is a folder that can be written and holds no other run
inline void check_save_folder(const Options& o) {
    if (!o.save.empty() && lies_in_checkpoint(o.save))
        fail("--save %s: is a checkpoint, or lies in one, which --keep may remove: choose another folder",
             o.save.c_str());
    if (o.save.empty())
        for (const char* name : {"save-every", "save-seconds", "mtbf"})
            if (o.has(name)) fail("--%s requires --save FOLDER", name);
    if (o.on_spike == "back" && o.save.empty() && !o.inference())
        fail("--on-spike back requires --save FOLDER");
    if (o.save.empty()) return;

    std::error_code e;
    std::filesystem::create_directories(o.save, e);
    if (e || access(o.save.c_str(), W_OK) != 0)
        fail("--save %s: cannot be written: %s%s", o.save.c_str(), e ? e.message().c_str() : strerror(errno),
             o.has("save") ? "" : ": give --save another FOLDER, or --save no");

    if (o.resume != o.save && !list_checkpoints(o.save).empty())
        fail("--save %s already holds checkpoints: continue from them with --resume %s, or choose another "
             "folder", o.save.c_str(), o.save.c_str());
}

// task_vocabulary: vocabulary size of the --evaluate files, or 0
inline void resolve(Run& run, int task_vocabulary) {
    Options& o = run.options;
    bool evaluates = !o.validation.empty() || !o.evaluate.empty();
    if (o.evaluate_every && run.trains() && !evaluates && run.is_rank0())
        fprintf(stderr, "note: --evaluate-every %ld without --validation or --evaluate evaluates nothing\n",
                o.evaluate_every);
    if (run.is_rank0())
        for (auto& path : o.validation)
            if (std::count(o.train.begin(), o.train.end(), path))
                fprintf(stderr, "note: %s is also trained on, so its loss validates nothing\n", path.c_str());
    if (run.trains() && o.train.empty() && !run.checkpoints.empty() &&
        run.checkpoints[0].options.count("train"))
        fail("missing --train FILE; the checkpoint's run had --train %s",
             run.checkpoints[0].options["train"].c_str());
    if (run.trains() && o.train.empty())
        fail("missing --train FILE: make one with ./tokenize (--help lists all options)");

    // the model: from the checkpoint, or the options and the data's vocabulary
    if (!o.resume.empty()) {
        if (run.checkpoints.empty()) run.checkpoints = find_checkpoints(o.resume, o.resume_before);
        take_from_checkpoint(run);
        resume_options(run);
    }
    if (o.save == "no") o.save.clear();
    if (run.trains()) open_data(run);
    int V = run.train ? run.train->file_vocabulary()
        : task_vocabulary ? task_vocabulary
        : planned_vocabulary(o);
    run.state.shape = model_shape(o, V);
    run.state.seed = o.seed;

    check_parallel(run);
    check_data_vocabulary(run);
    if (o.plan.empty()) open_vocabulary(run);
    check_vocabulary_names(run);
    resolve_schedule(run);
    if (!o.plan.empty()) return;  // a plan reads and writes no data

    if (run.train) {
        uint64_t now = run.train->samples(), before = std::exchange(run.state.training_set_size, now);
        uint64_t sum = fingerprint_of(*run.train);
        uint64_t sum_before = std::exchange(run.state.training_set_sum, sum);
        bool is_other = (before && before != now) || (sum_before && sum_before != sum);
        bool knows = !run.checkpoints.empty() && run.checkpoints[0].options.count("loss-on");
        std::string loss_on = knows ? run.checkpoints[0].options.at("loss-on") : "";
        if (is_other && !loss_on.empty() && loss_on != o.loss_on && o.other_data != "yes")
            fail("--resume %s: was trained with --loss-on %s, which counts other samples than %s: give the "
                 "same, or --other-data yes", o.resume.c_str(), loss_on.c_str(), o.loss_on.c_str());
        if (is_other && o.other_data != "yes")
            fail("--resume %s: was trained on other data than --train gives (%llu samples, now %llu), or "
                 "with other weights, names or order of its sets: give the same, or --other-data yes to "
                 "continue with these", o.resume.c_str(), (unsigned long long)before,
                 (unsigned long long)now);
        if (is_other && run.is_rank0())
            printf("note: the training set has %llu samples, the checkpoint's %llu: this is different data\n",
                   (unsigned long long)now, (unsigned long long)before);
    }
    check_save_folder(o);
}
