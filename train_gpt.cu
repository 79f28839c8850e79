// train_gpt.cu   trains a GPT: start, plan, train, evaluate, sample, save
//   ./train_gpt --help lists the options; bash scripts/demo.sh shows a run.
//   Read on from here into layers/model/model.h, then block.h, then the layers in the block's order.
#include <signal.h>
#include <optional>
#include "data/loader.h"
#include "layers/base/peak.h"
#include "layers/model/checkpoint.h"
#include "layers/model/generate.h"

volatile sig_atomic_t stop_requested = 0;

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
    bool speaks() const { return grid.world.rank == 0; }  // one rank prints
};

// ---- start: settle every open setting, or refuse ----------------------------------------------------------

// a checkpoint brings the model's shape and seed; options that were named must agree with it
void take_from_checkpoint(Run& run) {
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
void open_vocabulary(Run& run) {
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

void settle_schedule(Run& run) {
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

void settle_tensor_parallel(Run& run) {
    const Options& o = run.options;
    int t = run.grid.t;
    if (o.sequence_parallel != "yes" && o.sequence_parallel != "no")
        fail("--sequence-parallel %s: wants yes or no", o.sequence_parallel.c_str());
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
}

void plan(Run& run) {
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
    settle_tensor_parallel(run);
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

// Model FLOPs a token: 6 N + 6 L C T
double flops_per_token(const Run& run) {
    const ModelShape& m = run.state.shape;
    double N = (double)run.model->table.count - (double)m.T * m.C;
    return 6 * N + 6.0 * m.L * m.C * m.T;
}

void print_settings(const Run& run) {
    printf("settings\n");
    for (auto& option : option_table()) {
        std::string value = print_value(run.options, option);
        if (!value.empty() && strcmp(option.name, "help")) printf("  %-18s %s\n", option.name, value.c_str());
    }
    std::string device = device_name();
    double peak = device_peak(device);
    printf("model     %ld parameters, vocabulary %d padded to %d\n", run.model->table.count,
           run.state.shape.V, run.state.shape.Vp);
    if (run.grid.world.size > 1) printf("%s", print_grid(run.grid).c_str());
    printf("device    %s, %s; %s\n", device.c_str(), PRECISION_NAME,
           peak > 0 ? text("peak %.0f TFLOP/s", peak * 1e-12).c_str() : "peak unknown, so no MFU");
}

void build(Run& run) {
    const Options& o = run.options;
    bool training = o.generate.empty();
    device_name();  // refuses where there is none
    int owners = training && o.zero == 1 ? run.grid.d : 1;
    run.model = std::make_unique<Model>(run.state.shape, run.grid, training ? o.micro_batch : 1, training,
                                        training && o.sequence_parallel == "yes", owners);
    if (training) run.optimizer = std::make_unique<Optimizer>(*run.model);
    run.model->memory(false);
    std::vector<Arena> arenas = run.model->arenas;
    if (training) {
        run.optimizer->memory(*run.model, false);
        arenas.push_back(run.optimizer->arena);
        if (run.speaks()) print_settings(run), printf("%s", memory_table(arenas).c_str());
        fflush(stdout);
    }
    run.model->memory(true);
    if (training) run.optimizer->memory(*run.model, true);
    if (run.checkpoints.empty()) return initialise(*run.model, run.optimizer.get(), (uint64_t)o.seed);
    for (auto& checkpoint : run.checkpoints) {  // the newest that is whole to the last byte
        try {
            load_checkpoint(checkpoint, *run.model, run.optimizer.get());
            uint64_t windows = run.state.windows;
            run.state = checkpoint.state;
            run.state.shape = run.model->shape, run.state.windows = windows;
            if (training && run.speaks())
                printf("resumed   %s: step %ld\n", checkpoint.folder.c_str(), run.state.step);
            return;
        } catch (const Error& e) {
            fprintf(stderr, "passed over: %s\n", e.what());
        }
    }
    fail("--resume %s: no checkpoint is whole", o.resume.c_str());
}

// ---- train, evaluate, sample, save ------------------------------------------------------------------------

// one optimiser step over --batch sequences; returns the mean loss, and the gradient norm through `norm`
double train_step(Run& run, double rate, double& norm) {
    Model& m = *run.model;
    const Options& o = run.options;
    int T = m.shape.T;
    Batch batch = {o.micro_batch, T};
    std::vector<int> windows((size_t)o.micro_batch * (T + 1));
    double tokens = (double)o.batch * T, loss = 0;
    clear_losses(m);
    // micro-batches go round the data-parallel ranks
    for (int done = run.grid.data * o.micro_batch; done < o.batch; done += run.grid.d * o.micro_batch) {
        for (int b = 0; b < o.micro_batch; b++)
            run.train->sample(&windows[(size_t)b * (T + 1)], run.state.samples + done + b);
        load_batch(m, windows, batch);
        model_forward(m, batch);
        model_loss(m, batch, (real)(1 / tokens), true);
        model_backward(m, batch);
    }
    loss = sum_over(run.grid.dp, sum_losses(m, batch), "loss") / tokens;
    norm = optimizer_step(m, *run.optimizer, o, rate, run.state.step + 1);
    run.state.step++, run.state.samples += o.batch, run.state.tokens += (uint64_t)tokens;
    return loss;
}

// the mean loss over at most --evaluate-batches micro-batches, spread evenly over the validation set
double evaluate(Run& run) {
    Model& m = *run.model;
    int T = m.shape.T;
    uint64_t all = run.validation->windows();
    uint64_t count = std::min(all, (uint64_t)run.options.evaluate_batches * m.B);
    double sum = 0;
    for (uint64_t done = (uint64_t)run.grid.data * m.B; done < count; done += (uint64_t)run.grid.d * m.B) {
        Batch batch = {(int)std::min((uint64_t)m.B, count - done), T};
        std::vector<int> windows((size_t)batch.B * (T + 1));
        for (int b = 0; b < batch.B; b++)
            run.validation->window(&windows[(size_t)b * (T + 1)],
                                   (uint64_t)((double)(done + b) * (double)all / (double)count));
        load_batch(m, windows, batch);
        clear_losses(m);
        model_forward(m, batch);
        model_loss(m, batch, 0, false);
        sum += sum_losses(m, batch);
    }
    return sum_over(run.grid.dp, sum, "validation loss") / ((double)count * T);
}

void print_sample(Run& run, const std::string& prompt, uint64_t draw) {
    const Options& o = run.options;
    std::vector<int> tokens = encode_text(*run.vocabulary, prompt);
    if (tokens.empty()) tokens.push_back(run.vocabulary->end_of_text);
    Sampling how = {o.temperature, o.top_p, o.top_k, (uint64_t)o.seed, draw};
    if (run.speaks()) printf("%s", prompt.c_str());
    generate(*run.model, tokens, o.sample_tokens, how, [&](int token) {
        if (token == run.vocabulary->end_of_text) return false;
        const std::string& bytes = run.vocabulary->tokens[token];
        if (run.speaks()) fwrite(bytes.data(), 1, bytes.size(), stdout), fflush(stdout);
        return true;
    });
    if (run.speaks()) printf("\n");
}

void save(Run& run) {
    const Options& o = run.options;
    std::string record;
    for (auto& option : option_table()) {
        std::string value = print_value(o, option);
        record += (record.empty() ? "{" : ", ") + json_quote(option.name) + ": " + json_quote(value);
    }
    save_checkpoint(o.save, run.state, source_of(*run.model, *run.optimizer), record + "}",
                    run.vocabulary ? &*run.vocabulary : nullptr, o.keep);
    if (run.speaks()) printf("saved     %s/%s\n", o.save.c_str(), step_name(run.state.step).c_str());
}

// the metrics file goes on where the resumed checkpoint stands: steps after it will be done again
void open_metrics(const Run& run) {
    const std::string& path = run.options.metrics;
    if (path.empty() || !run.speaks()) return;
    std::string kept;
    if (run.state.step > 0 && access(path.c_str(), F_OK) == 0) {
        MappedFile old(path);
        std::string_view left = old.view();
        while (!left.empty() && left.find('\n') != left.npos) {
            std::string_view line = left.substr(0, left.find('\n'));
            left.remove_prefix(line.size() + 1);
            if (Json::parse(line, path).at("step", path).integer(path) > run.state.step) break;
            kept += std::string(line) + "\n";
        }
    }
    FileWriter file(path);
    file.write(kept);
    file.finish();
}

void report(Run& run, double loss, double rate, double norm, double step_seconds, bool evaluated) {
    if (!run.speaks()) return;
    const Options& o = run.options;
    double speed = (double)o.batch * run.model->shape.T / step_seconds;
    double peak = device_peak(device_name());
    if (!o.metrics.empty()) {
        std::string line = text("{\"step\": %ld, \"tokens\": %llu, \"loss\": %.17g", run.state.step,
                                (unsigned long long)run.state.tokens, loss);
        if (evaluated) line += text(", \"validation_loss\": %.17g", run.validation_loss);
        line += text(", \"learning_rate\": %.10g, \"gradient_norm\": %.10g, \"tokens_per_second\": %.6g",
                     rate, norm, speed);
        if (peak > 0) line += text(", \"mfu\": %.4f", speed * flops_per_token(run) / peak);
        line += "}\n";
        FILE* file = fopen(o.metrics.c_str(), "a");
        if (!file || fwrite(line.data(), 1, line.size(), file) != line.size() || fclose(file))
            fail("--metrics %s: cannot be written: %s", o.metrics.c_str(), strerror(errno));
    }
    static double last_print = 0;
    bool edge = run.state.step == 1 || run.state.step == run.last_step || evaluated;
    if (!edge && seconds() - last_print < 2) return;
    last_print = seconds();
    double left = (double)(run.last_step - run.state.step) * step_seconds;
    std::string mfu = peak > 0 ? text("  MFU %4.1f %%", 100 * speed * flops_per_token(run) / peak) : "";
    std::string held = evaluated ? text("  validation loss %.4f", run.validation_loss) : "";
    printf("step %6ld/%ld  loss %.4f  lr %.2e  norm %.3f  %.0f tokens/s%s  left %ld:%02ld%s\n",
           run.state.step, run.last_step, loss, rate, norm, speed, mfu.c_str(), (long)left / 60,
           (long)left % 60, held.c_str());
    fflush(stdout);
}

void train(Run& run) {
    const Options& o = run.options;
    auto every = [&](long n) { return n && run.state.step % n == 0; };
    long saved = o.resume == o.save ? run.state.step : -1;  // what --save holds already
    double pace = 0;  // seconds a step, smoothed
    if (run.speaks() && run.state.step >= run.last_step)
        printf("nothing to do: the checkpoint is at step %ld, the run ends at %ld\n", run.state.step,
               run.last_step);
    // a signal may have reached some ranks only: all stop after the same step
    auto stopped = [&] { return sum_over(run.grid.world, stop_requested, "stop") > 0; };
    bool stop = false;
    while (run.state.step < run.last_step && !(stop = stopped())) {
        double start = seconds(), norm = 0;
        double rate = learning_rate((double)run.state.tokens + (double)o.batch * o.sequence, o.learning_rate,
                                    o.min_learning_rate, (double)o.warmup_tokens, (double)o.decay_tokens);
        double loss = train_step(run, rate, norm);
        double took = seconds() - start;
        pace = pace ? 0.9 * pace + 0.1 * took : took;
        bool evaluated = run.validation && (every(o.evaluate_every) || run.state.step == run.last_step);
        if (evaluated) run.validation_loss = evaluate(run);
        report(run, loss, rate, norm, pace, evaluated);
        if (!std::isfinite(loss) || !std::isfinite(norm))
            fail("step %ld: loss %g and gradient norm %g are not finite: lower --learning-rate, and go on "
                 "from an earlier checkpoint", run.state.step, loss, norm);
        if (every(o.sample_every)) print_sample(run, "", (uint64_t)run.state.step << 32);
        if (!o.save.empty() && every(o.save_every)) save(run), saved = run.state.step;
    }
    if (stop && run.speaks()) printf("stopped by a signal after step %ld\n", run.state.step);
    if (!o.save.empty() && saved != run.state.step) save(run);
}

int main(int argc, char** argv) {
    for (int signal_number : {SIGINT, SIGTERM}) signal(signal_number, [](int) { stop_requested = 1; });
    signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write, not the end
    try {
        comm::start(&argc, &argv);
        Run run;
        run.options = parse_options(argc, argv);
        comm::timeout = run.options.comm_timeout;
        if (run.options.help) {
            if (comm::world_rank() == 0) fputs(help_text().c_str(), stdout);
            return comm::finish(), 0;
        }
        run.grid = make_grid(run.options.tensor_parallel);
        plan(run);
        build(run);
        if (run.options.generate.empty()) {
            open_metrics(run);
            train(run);
        } else {
            print_sample(run, run.options.generate, 0);
        }
    } catch (const std::exception& e) {
        fflush(stdout);
        std::string who = comm::world_size() > 1 ? text("[rank %d] ", comm::world_rank()) : "";
        fprintf(stderr, "%strain_gpt: %s\n", who.c_str(), e.what());
        comm::stop(1);
    }
    comm::finish();
    return 0;
}
