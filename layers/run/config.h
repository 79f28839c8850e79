// config.h   configuration of a run: presets, the table of options (run.h), the model's shape
//   The parser (base/arguments.h), --help, the printed settings and the options recorded in checkpoints are
//   generated from the table. A --config file uses the same names, one option per line (`batch 1920`); the
//   command line overrides it.
#pragma once
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <variant>
#include <vector>
#include "../base/arguments.h"
#include "run.h"

struct Preset {
    const char* name;
    int layers, hidden, heads, sequence, pad_vocabulary;
    double learning_rate;
};

// Sizes of GPT-2 and GPT-3 (Radford et al. 2019; Brown et al. 2020, table 2.1), MT-NLG (arXiv 2201.11990),
// 8.3B of arXiv 1909.08053, 17B of Turing-NLG's announcement (2020), 22B and 1T of arXiv 2205.05198; learning
// rates that were not published are close to those of similar sizes
constexpr Preset presets[] = {
    {"124M", 12, 768, 12, 1024, 128, 6.0e-4},    {"350M", 24, 1024, 16, 1024, 128, 3.0e-4},
    {"774M", 36, 1280, 20, 1024, 128, 2.5e-4},   {"1.3B", 24, 2048, 16, 2048, 128, 2.0e-4},
    {"1558M", 48, 1600, 25, 1024, 128, 2.0e-4},  {"2.7B", 32, 2560, 32, 2048, 128, 1.6e-4},
    {"6.7B", 32, 4096, 32, 2048, 128, 1.2e-4},   {"8.3B", 72, 3072, 24, 1024, 128, 1.2e-4},
    {"13B", 40, 5120, 40, 2048, 128, 1.0e-4},    {"17B", 78, 4256, 28, 1024, 128, 1.0e-4},
    {"22B", 48, 6144, 64, 2048, 128, 9.0e-5},    {"175B", 96, 12288, 96, 2048, 128, 6.0e-5},
    {"530B", 105, 20480, 128, 2048, 1024, 5.0e-5}, {"1T", 128, 25600, 160, 2048, 1024, 5.0e-5},
};
constexpr int gpt2_vocabulary = 50257;

using Field = std::variant<int Options::*, long Options::*, double Options::*, bool Options::*,
                           std::string Options::*, std::vector<std::string> Options::*>;
// Whether a resumed run takes an option from its checkpoint, if it was given there and is not given here.
// Never: what belongs to the machine (layout, kernels), names files, concerns this command alone or (the
// model's sizes, the seed) is read from the checkpoint itself. The micro-batch, which belongs to both machine
// and recipe, is taken if possible: micro_batch_of_checkpoint()
enum class Inherit { always, with_save, never };

// field: where its value is stored; `auto` is stored as `automatic`
struct RunOption : OptionForm {
    Field field;
    Inherit inherit;

    RunOption(const char* name, Field field, double least, Inherit inherit, const char* help,
              const char* bare = nullptr, bool takes_auto = false)
        : OptionForm{.name = name, .kind = Text, .help = help, .least = least, .bare = bare,
                     .takes_auto = takes_auto}, field(field), inherit(inherit) {
        std::visit([&](auto member) {  // the kind follows from the field's type
            using T = std::decay_t<decltype(std::declval<Options>().*member)>;
            if constexpr (std::is_same_v<T, bool>) kind = Flag;
            else if constexpr (std::is_same_v<T, std::vector<std::string>>) kind = List;
            else if constexpr (std::is_floating_point_v<T>) kind = Number;
            else if constexpr (std::is_integral_v<T>) {
                kind = Whole;
                most = std::min(9e15, (double)std::numeric_limits<T>::max());
            }
        }, field);
    }
};

inline const std::vector<RunOption> option_table = [] {
    using O = Options;
    using enum Inherit;
    return std::vector<RunOption>{
        {"model", &O::model, 0, always,
         "preset: 124M 350M 774M 1.3B 1558M 2.7B 6.7B 8.3B 13B 17B 22B 175B 530B 1T"},
        {"layers", &O::layers, 1, never, "transformer blocks L (default: the checkpoint's or the preset's)"},
        {"hidden", &O::hidden, 1, never, "hidden size C (default: the checkpoint's or the preset's)"},
        {"heads", &O::heads, 1, never,
         "attention heads NH; divides --hidden (default: the checkpoint's or the preset's)"},
        {"sequence", &O::sequence, 1, never,
         "tokens per sequence T (default: the checkpoint's or the preset's)"},
        {"vocabulary", &O::vocabulary, 2, never,
         "vocabulary size V (default: the checkpoint's or the training file's, else 50257)"},
        {"pad-vocabulary", &O::pad_vocabulary, 1, always,
         "V is padded to a multiple of this (default: the preset's)"},
        {"train", &O::train, 0, never,
         "token files to train on: FILE… as one set, WEIGHT:FILE… as a blend, or NAME.blend"},
        {"loss-on", &O::loss_on, 0, always,
         "all: every token; answers: only the answers, in token files made from prompts and answers"},
        {"validation", &O::validation, 0, never, "token files for the validation loss: FILE…"},
        {"evaluate", &O::evaluate, 0, never,
         "task files from ./tasks: scored once or, with --train, every --evaluate-every steps"},
        {"tokenizer", &O::tokenizer, 0, never,
         "bytes, vocab.bpe or tokenizer.json, to read and print text (default: the checkpoint's, else "
         "--train's)"},
        {"batch", &O::batch, 1, always,
         "sequences per step (global batch size); with a prompt file, prompts generated concurrently"},
        {"micro-batch", &O::micro_batch, 1, never,
         "sequences per forward pass; divides a replica's --batch (default: up to 4); auto: as many as fit",
         nullptr, true},
        {"ramp-start", &O::ramp_start, 0, always, "batch ramp: sequences in the first step; 0: no ramp"},
        {"ramp-increment", &O::ramp_increment, 1, always,
         "batch ramp: batch-size increment (default: --ramp-start)"},
        {"ramp-tokens", &O::ramp_tokens, 1, always, "batch ramp: tokens until the full --batch is reached"},
        {"steps", &O::steps, 0, always,
         "stop after this many steps (default: 1000, or none with --until-tokens)"},
        {"until-tokens", &O::until_tokens, 1, always, "stop after this many tokens"},
        {"learning-rate", &O::learning_rate, 0, always, "peak learning rate (default: the preset's)"},
        {"min-learning-rate", &O::min_learning_rate, 0, always,
         "learning rate after the decay (default: a tenth of the peak)"},
        {"warmup-tokens", &O::warmup_tokens, 0, always,
         "tokens of linear warm-up (default: 1 % of the decay)"},
        {"decay-tokens", &O::decay_tokens, 0, always,
         "tokens at which the cosine decay ends (default: the whole run)"},
        {"beta1", &O::beta1, 0, always, "AdamW's beta1"},
        {"beta2", &O::beta2, 0, always, "AdamW's beta2"},
        {"epsilon", &O::epsilon, 0, always, "AdamW's epsilon"},
        {"weight-decay", &O::weight_decay, 0, always,
         "AdamW's weight decay; not applied to biases and layer norms"},
        {"clip", &O::clip, 0, always, "maximum global gradient norm; 0: no clipping"},
        {"seed", &O::seed, 0, never, "seed of initial weights, sample order and sampling"},
        {"evaluate-every", &O::evaluate_every, 0, always, "steps between evaluations; 0: only at the end"},
        {"evaluate-sequences", &O::evaluate_sequences, 1, always,
         "maximum number of sequences per validation loss"},
        {"sample-every", &O::sample_every, 0, always, "steps between text samples; 0: none"},
        {"sample-tokens", &O::sample_tokens, 1, always, "tokens per text sample, and of --generate"},
        {"generate", &O::generate, 0, never,
         "text to continue with the model of --resume; -: standard input, line by line on a terminal; "
         "FILE.jsonl: each of its prompts; -.jsonl: prompts from standard input, as they arrive"},
        {"temperature", &O::temperature, 0, never, "sampling temperature; 0: greedy"},
        {"top-k", &O::top_k, 0, never, "sample from the k most likely tokens; 0: all"},
        {"top-p", &O::top_p, 0, never,
         "nucleus sampling: from the fewest most likely tokens whose probabilities sum to at least this"},
        {"repetition", &O::repetition, 0.001, never,
         "repetition penalty: divides the logits of tokens already seen (multiplies negative ones)"},
        {"long-continuations", &O::long_continuations, 0, never,
         "documents of --evaluate with a continuation longer than --sequence: skip (and count), or refuse"},
        {"results", &O::results, 0, never,
         "JSON file for the results of --evaluate or the answers of --generate"},
        {"save", &O::save, 0, never,
         "folder for checkpoints, or no (default: a resumed training run saves to the folder of --resume)"},
        {"save-every", &O::save_every, 0, with_save, "steps between checkpoints; 0: only at the end"},
        {"save-seconds", &O::save_seconds, 0, with_save, "seconds between checkpoints; 0: by steps only"},
        {"mtbf", &O::mtbf, 0, with_save,
         "mean time between failures of the whole machine, in hours; saves at Young's interval"},
        {"save-attempts", &O::save_attempts, 1, with_save,
         "consecutive failed saves after which the run ends"},
        {"keep", &O::keep, 1, with_save, "number of checkpoints to keep"},
        {"resume", &O::resume, 0, never,
         "folder of checkpoints; continues from the newest intact one, with its recipe, except for options "
         "given"},
        {"resume-before", &O::resume_before, 1, never,
         "resume only from checkpoints of steps before this one; in a --save folder, the others are renamed "
         "diverged-step-00000020 and so on"},
        {"other-data", &O::other_data, 0, never,
         "yes: continue from a checkpoint with training data other than its own"},
        {"metrics", &O::metrics, 0, never,
         "metrics file, one JSON line per step (its tokens_per_second is smoothed, its seconds are not)"},
        {"on-spike", &O::on_spike, 0, with_save,
         "if loss or norm spikes or is not finite: stop; skip (drop the update); back (return to the newest "
         "earlier checkpoint and skip the samples since then)"},
        {"spike-z", &O::spike_z, 0, always,
         "a spike is this many standard deviations above the running mean, of at least 30 steps; 0: only "
         "non-finite values"},
        {"slow-factor", &O::slow_factor, 1, never,
         "report a rank that computes this many times longer than its peers"},
        {"tensor-parallel", &O::tensor_parallel, 1, never,
         "tensor-parallel ranks t; the remaining ranks are data-parallel"},
        {"sequence-parallel", &O::sequence_parallel, 0, never,
         "yes or no: between GEMMs, also shard the rows of the residual stream over t"},
        {"pipeline-parallel", &O::pipeline_parallel, 1, never, "pipeline stages p"},
        {"pipeline-chunks", &O::pipeline_chunks, 1, never,
         "model chunks per stage v; more than 1: interleaved 1F1B"},
        {"pipeline-group", &O::pipeline_group, 1, never,
         "interleaved: micro-batches per chunk before switching to the next (default: p if possible)"},
        {"recompute", &O::recompute, 0, never,
         "full: keep only each block's input; light: recompute outputs of layer norm and GELU (with --fp8: "
         "as none); none"},
        {"attention", &O::attention, 0, never,
         "flash: scores stay on chip; materialised: scores in memory; auto: flash where possible"},
        {"loss-chunk", &O::loss_chunk, 1, never,
         "rows of logits held at once; any number moves the loss into backward (default: all rows)"},
        {"fp8", &O::fp8, 0, always,
         "yes or no: the blocks' linear layers in FP8 (e4m3 forward, e5m2 gradients; sm_89 or later)"},
        {"fp8-lm-head", &O::fp8_lm_head, 0, always,
         "yes or no: with --fp8 yes, the LM head's GEMMs in FP8 as well"},
        {"moments", &O::moments, 0, always,
         "storage of AdamW's moments: fp32 (fp64 in an fp64 build), or bf16 with stochastic rounding"},
        {"master-weights", &O::master_weights, 0, always,
         "yes or no; no: keep only the bf16 parameters, with stochastic rounding"},
        {"zero", &O::zero, 0, never,
         "1: shard the optimizer state across data-parallel ranks (ZeRO-1); 0: replicate it"},
        {"check-every", &O::check_every, 0, never,
         "steps between checks that compute gradients twice and compare replicated state bitwise; 0: none"},
        {"comm-timeout", &O::comm_timeout, 1, never,
         "seconds that a collective or message may wait for other ranks before the run is aborted (NCCL: "
         "from the end of the previous call, including what the device computes in between)"},
        {"graph", &O::graph, 0, never,
         "yes or no: run a step as one CUDA graph (multiple ranks: NCCL); auto: on one rank, if faster"},
        {"tuning", &O::tuning, 0, never,
         "folder for cached autotuning choices (default on a GPU: ~/.cache/train_gpt); none: no cache"},
        {"plan", &O::plan, 0, never,
         "print memory, traffic and time of the run without starting it; search: the ten fastest layouts; "
         "published: plans of published runs",
         "this"},
        {"plan-json", &O::plan_json, 0, never,
         "with --plan: write JSON to FILE; -: print JSON alone to standard output"},
        {"world-size", &O::world_size, 1, never,
         "number of ranks; with --plan, ranks to plan for (default: t × p), otherwise ranks required"},
        {"hardware", &O::hardware, 0, never,
         "with --plan: dgx-a100 azure-ndv4 azure-ndmv4 dgx-h100 dgx-h200 rtx-4090 rtx-5090 l40s "
         "rtx-pro-6000, here, or your own: memory=80,tflops=312,bandwidth=2039[,gpus=8,link=235,network=25] "
         "in GB and GB/s (default: this machine if it is known, else dgx-a100)"},
        {"gemm-efficiency", &O::gemm_efficiency, 0.01, never,
         "with --plan: share of peak that the largest GEMMs reach: 0.545 as in MT-NLG's runs, "
         "0.765 as in later Megatron-LM runs (--plan published)"},
        {"network-rate", &O::network_rate, 0, never,
         "with --plan: GB/s that a GPU sends to other nodes, instead of the machine's own"},
        {"file-system-rate", &O::file_system_rate, 0, never,
         "with --plan: GB/s that all ranks together read and write, for save and resume times"},
        {"hosts", &O::hosts, 0, never,
         "with --plan: file with one host per line, to show which ranks run where"},
        {"timeline", &O::timeline, 0, never,
         "with --plan: write a step's timeline to FILE.json, for Chrome, Perfetto and scripts/draw.py"},
        {"trace", &O::trace, 0, never, "write a timeline of a step of the actual run, in the same form"},
        {"record", &O::record, 0, never,
         "write a step's operations in order to FILE, as JSON lines (see layers/plan/record.h)"},
        {"record-values", &O::record_values, 0, never,
         "with --record: include the values of tensors with at most this many elements"},
        {"trace-step", &O::trace_step, 1, never, "the step that --trace and --record write"},
        {"profile", &O::profile, 1, never,
         "print each operation's time over this many steps, from the third on", "5"},
        {"config", &O::config, 0, never, "file of options, one `NAME VALUE` per line; # begins a comment"},
        {"verbose", &O::verbose, 0, never,
         "print all settings at the start, not only those that differ from the defaults"},
        {"help", &O::help, 0, never, "print this list"},
        {"version", &O::version, 0, never, "print the version"},
    };
}();

// values: already accepted by check_values()
inline void set_option(Options& options, const RunOption& o, const std::vector<std::string>& values) {
    std::visit([&](auto field) {
        auto& value = options.*field;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>) value = true;
        else if constexpr (std::is_same_v<T, std::string>) value = values[0];
        else if constexpr (std::is_same_v<T, std::vector<std::string>>) value = values;
        else if (o.takes_auto && values[0] == "auto") value = (T)automatic;
        else value = (T)strtod(values[0].c_str(), nullptr);
    }, o.field);
    options.given.insert(o.name);
}

inline Options parse_options(int argc, char** argv) {
    Options options;
    auto take = [&](const std::vector<GivenOption<RunOption>>& all) {
        for (auto& given : all) set_option(options, *given.form, given.values);
    };
    take(parse_command_line(argc, argv, option_table));
    if (options.config.empty()) return options;

    // the command line wins over the file
    take(read_option_file(options.config, option_table, options.given,
                          [](auto& words, const std::string& where) {
        if (words[0] == "config") fail("%sa config file cannot name another", where.c_str());
        return false;
    }));
    return options;
}

// the fewest digits that give the same number again
inline std::string shortest(double value) {
    char digits[32];
    return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

// exact: a number reads back as the same; else it has at most six digits
inline std::string print_value(const Options& options, const RunOption& o, bool exact = true) {
    return std::visit([&](auto field) -> std::string {
        auto& value = options.*field;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>) return value ? "yes" : "no";
        else if constexpr (std::is_same_v<T, std::string>) return value;
        else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            std::string all;
            for (auto& s : value) all += (all.empty() ? "" : " ") + s;
            return all;
        } else if constexpr (std::is_integral_v<T>)
            return o.takes_auto && value == automatic ? "auto" : std::to_string(value);
        else return exact ? shortest(value) : text("%.6g", value);
    }, o.field);
}

// the headings of --help, each before the option that it names
struct HelpHeading { const char *option, *title; };
constexpr HelpHeading help_headings[] = {
    {"model", "Model"}, {"train", "Data"}, {"batch", "Batch and length of the run"},
    {"learning-rate", "Optimizer"}, {"evaluate-every", "Evaluation and generation"},
    {"save", "Checkpoints"}, {"metrics", "Metrics, loss spikes, slow ranks"},
    {"tensor-parallel", "Parallelism"}, {"recompute", "Memory, precision, kernels"},
    {"check-every", "Checks and tuning"}, {"plan", "Planning"}, {"trace", "Inspecting a step"},
    {"config", "Other"}};

inline std::string help_text() {
    std::string out =
        "usage: ./train_gpt --train FILE [--OPTION VALUE]…                    trains a model\n"
        "       ./train_gpt --resume FOLDER --train FILE [--OPTION VALUE]…    continues one\n"
        "       ./train_gpt --resume FOLDER --generate TEXT [--OPTION VALUE]…\n"
        "       ./train_gpt --resume FOLDER --evaluate FILE [--OPTION VALUE]…\n"
        "       ./train_gpt --plan [--OPTION VALUE]…                          memory and time, no run\n";
    Options defaults;
    for (auto& o : option_table) {
        for (auto& heading : help_headings)
            if (!strcmp(heading.option, o.name)) out += text("\n%s\n", heading.title);
        std::string value = print_value(defaults, o);
        bool plain = value.empty() || value == "0" || value == "-1" || value == "no";
        out += text("  --%-18s %s%s\n", o.name, o.help, plain ? "" : text(" [%s]", value.c_str()).c_str());
    }
    return out;
}

// ---- the model's shape -----------------------------------------------------------------------------------

// for a size like 124M or 6.7B, the nearest in parameters; for a model's name elsewhere, its size; for any
// other word, the nearest in spelling
inline std::string nearest_size(const std::string& name, const std::vector<std::string>& names) {
    auto size_of = [](const std::string& s) {
        char* end;
        double number = strtod(s.c_str(), &end), of = *end == 'M' ? 1e6 : *end == 'T' ? 1e12 : 1e9;
        return number > 0 && (!*end || (strchr("MBT", *end) && !end[1])) ? std::log(number * of) : NAN;
    };
    for (auto& [from, size] : {std::pair{"gpt2-medium", "350M"}, {"gpt2-large", "774M"}, {"gpt2-xl", "1558M"},
                               {"gpt3", "175B"}, {"gpt-3", "175B"}, {"GPT-3", "175B"}})
        if (name == from) return size;
    double wanted = size_of(name);
    if (std::isnan(wanted)) return nearest(name, names);
    return *std::min_element(names.begin(), names.end(), [&](auto& a, auto& b) {
        return std::abs(size_of(a) - wanted) < std::abs(size_of(b) - wanted);
    });
}

inline const Preset& find_preset(const std::string& name) {
    std::vector<std::string> names;
    for (auto& p : presets) {
        if (name == p.name) return p;
        names.push_back(p.name);
    }
    fail("--model %s: unknown; did you mean %s? (--help lists the presets)", name.c_str(),
         nearest_size(name, names).c_str());
}

inline std::string divisors_near(long of, long wanted) {  // the nearest divisors of `of`, below and above
    long below = std::min(of, wanted), above = wanted;
    while (below > 1 && of % below) below--;
    while (above < of && of % above) above++;
    return below == above || above >= of * 2 || of % above ? text("%ld", below)
        : text("%ld or %ld", below, above);
}

// options override the preset; file_vocabulary: vocabulary size of the training file, or 0
inline ModelShape model_shape(Options& o, int file_vocabulary) {
    const Preset& p = find_preset(o.model);
    if (!o.layers) o.layers = p.layers;
    if (!o.hidden) o.hidden = p.hidden;
    if (!o.heads) o.heads = p.heads;
    if (!o.sequence) o.sequence = p.sequence;
    if (!o.pad_vocabulary) o.pad_vocabulary = p.pad_vocabulary;
    if (!o.vocabulary) o.vocabulary = file_vocabulary ? file_vocabulary : gpt2_vocabulary;

    struct { const char* name; int value, most; } sizes[] =
        {{"layers", o.layers, 10000}, {"hidden", o.hidden, 1 << 20},
        {"heads", o.heads, 1 << 20}, {"sequence", o.sequence, 1 << 24},
            {"vocabulary", o.vocabulary, 1 << 28}};
    for (auto& size : sizes)
        if (size.value > size.most) fail("--%s %d: too large, at most %d", size.name, size.value, size.most);

    if (o.hidden % o.heads)
        fail("--heads %d does not divide --hidden %d: choose --heads %s", o.heads, o.hidden,
             divisors_near(o.hidden, o.heads).c_str());

    long padded = ((long)o.vocabulary + o.pad_vocabulary - 1) / o.pad_vocabulary * o.pad_vocabulary;
    if (padded > std::numeric_limits<int>::max())
        fail("--vocabulary %d padded to a multiple of %d: too large", o.vocabulary, o.pad_vocabulary);
    return {o.layers, o.hidden, o.heads, o.sequence, o.vocabulary, (int)padded};
}
