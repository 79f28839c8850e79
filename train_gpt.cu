// train_gpt.cu   trains a GPT: start, build, train, evaluate, sample, save
//   ./train_gpt --help lists the options; bash scripts/demo.sh shows a run.
//   Read on from here into layers/model/model.h, stage.h and block.h, then the layers in the block's order.
#include <signal.h>
#include <sys/resource.h>
#include "comm/schedule.h"
#include "layers/base/peak.h"
#include "layers/model/generate.h"
#include "layers/model/replicas.h"
#include "layers/model/run.h"

volatile sig_atomic_t stop_requested = 0;

// ---- build -----------------------------------------------------------------------------------------------

// Model FLOPs a token: 6 N + 6 L C T
double flops_per_token(const Run& run) {
    const ModelShape& m = run.state.shape;
    double N = (double)run.model->table.count - (double)m.T * m.C;
    return 6 * N + 6.0 * m.L * m.C * m.T;
}

void print_settings(const Run& run) {
    printf("settings\n");
    for (auto& option : option_table) {
        std::string value = print_value(run.options, option);
        if (!value.empty() && strcmp(option.name, "help")) printf("  %-18s %s\n", option.name, value.c_str());
    }
    std::string device = device_name();
    double peak = device_peak(device);
    printf("model     %ld parameters, vocabulary %d padded to %d\n", parameter_table(run.state.shape).count,
           run.state.shape.V, run.state.shape.Vp);
    if (run.grid.world.size > 1) printf("%s", print_grid(run.grid).c_str());
    printf("device    %s, %s; %s\n", device.c_str(), PRECISION_NAME,
           peak > 0 ? text("peak %.0f TFLOP/s", peak * 1e-12).c_str() : "peak unknown, so no MFU");
}

// how micro-batches pass through the pipeline
PipelineShape pipeline_shape(Options& o, const Grid& grid) {
    PipelineShape s = {o.pipeline_parallel, o.batch / grid.d / o.micro_batch, o.pipeline_chunks, 1};
    if (s.v == 1) s.N = s.m;
    else s.N = o.has("pipeline-group") ? o.pipeline_group : default_group(s.p, s.m);
    if (o.generate.empty()) check_pipeline(s);
    if (s.v > 1) o.pipeline_group = s.N;
    return s;
}

Setup setup_of(const Run& run, const Schedule& schedule) {
    const Options& o = run.options;
    int v = o.pipeline_chunks;
    if (!o.generate.empty()) return {.training = false, .chunks = v, .slots = v, .streams = 0};
    return {o.micro_batch, true, o.sequence_parallel == "yes", o.recompute == "full", schedule.shape.m > 1,
            o.zero == 1 ? run.grid.d : 1, v, schedule.slots, schedule.inputs, schedule.gradients};
}

// the arenas of a rank on a stage, measured
std::vector<Arena> measure(const Run& run, const PipelineShape& shape, int stage) {
    Grid place = run.grid;
    place.stage = stage;
    Model model(run.state.shape, place, setup_of(run, make_schedule(stage, shape)));
    Optimizer optimizer(model);
    model.memory(false), optimizer.memory(model, false);
    std::vector<Arena> arenas = model.arenas;
    arenas.push_back(optimizer.arena);
    return arenas;
}

// what was printed for this rank's stage is what it has taken
void check_memory(const Run& run, const PipelineShape& shape) {
    std::vector<Arena> planned = measure(run, shape, run.grid.stage), taken = run.model->arenas;
    taken.push_back(run.optimizer->arena);
    for (size_t i = 0; i < planned.size(); i++)
        if (planned[i].used != taken[i].used)
            fail("%s: %zu bytes were planned, %zu taken: a defect of this program", planned[i].name,
                 planned[i].used, taken[i].used);
}

void print_plan(const Run& run, const PipelineShape& shape) {
    print_settings(run);
    std::vector<std::string> titles;
    std::vector<std::vector<Arena>> memory;
    for (int stage = 0; stage < run.grid.p; stage++) {
        if (run.grid.p > 4 && stage > 1 && stage < run.grid.p - 1) continue;
        titles.push_back(run.grid.p == 1 ? "a rank" : text("stage %d", stage));
        memory.push_back(measure(run, shape, stage));
    }
    printf("%s", memory_table(titles, memory).c_str());
    fflush(stdout);
}

// the newest checkpoint that every rank finds whole to the last byte
void resume(Run& run) {
    bool training = run.options.generate.empty();
    for (auto& checkpoint : run.checkpoints) {
        double damaged = 0;
        try {
            load_checkpoint(checkpoint, *run.model, run.optimizer.get());
        } catch (const Error& e) {
            fprintf(stderr, "passed over: %s\n", e.what());
            damaged = 1;
        }
        if (comm::sum_over(run.grid.world, damaged, "damaged checkpoints") > 0) continue;
        uint64_t windows = run.state.windows;
        run.state = checkpoint.state;
        run.state.shape = run.model->shape, run.state.windows = windows;
        if (training && run.speaks())
            printf("resumed   %s: step %ld\n", checkpoint.folder.c_str(), run.state.step);
        return;
    }
    fail("--resume %s: no checkpoint is whole", run.options.resume.c_str());
}

void build(Run& run, const Schedule& schedule) {
    const Options& o = run.options;
    bool training = o.generate.empty();
    if (training && run.speaks()) print_plan(run, schedule.shape);
    run.model = std::make_unique<Model>(run.state.shape, run.grid, setup_of(run, schedule));
    if (training) run.optimizer = std::make_unique<Optimizer>(*run.model);
    run.model->memory(true);
    if (training) run.optimizer->memory(*run.model, true), check_memory(run, schedule.shape);
    if (run.checkpoints.empty()) initialise(*run.model, run.optimizer.get(), (uint64_t)o.seed);
    else resume(run);
}

// ---- the pipeline: a schedule's instructions, one after the other ----------------------------------------

// fills windows (B, T + 1), if there are any to fill, with a micro-batch of this replica; says its size
using Load = std::function<Batch(int micro, std::vector<int>* windows)>;

// the messages from list[at] on that stand in one group; returns the last
size_t exchange(Model& m, const std::vector<Instruction>& list, size_t at, const Load& load) {
    using I = Instruction;
    Grid& g = m.grid;
    size_t end = at;
    while (end + 1 < list.size() && list[end + 1].group == list[at].group) end++;
    comm::group_begin();
    for (size_t i = at; i <= end; i++) {
        const I& op = list[i];
        Batch batch = load(op.micro, nullptr);
        if (op.kind == I::SendForward) post_send(m, g.forward_out, m.slots[op.slot].y, "activations", batch);
        if (op.kind == I::SendBackward)
            post_send(m, g.backward_out, m.streams[op.gradient].x, "their gradient", batch);
        if (op.kind == I::ReceiveForward)
            post_receive(m, g.forward_in, m.inputs[op.input], "activations", batch);
        if (op.kind == I::ReceiveBackward)
            post_receive(m, g.backward_in, m.streams[op.gradient], "their gradient", batch);
    }
    comm::group_end();
    for (size_t i = at; i <= end; i++) {
        const I& op = list[i];
        if (op.kind == I::SendForward) m.slots[op.slot].sent = comm::mark(g.forward_out.channel);
        if (op.kind == I::SendBackward) m.streams[op.gradient].sent = comm::mark(g.backward_out.channel);
        if (op.kind == I::ReceiveForward) m.inputs[op.input].arrived = comm::mark(g.forward_in.channel);
        if (op.kind == I::ReceiveBackward) m.streams[op.gradient].arrived = comm::mark(g.backward_in.channel);
    }
    return end;
}

// all micro-batches through this rank's stage; losses are added to end.losses on the last
void execute(Model& m, const Schedule& schedule, const Load& load, real dloss) {
    std::vector<int> windows;
    for (size_t i = 0; i < schedule.list.size(); i++) {
        const Instruction& op = schedule.list[i];
        if (!op.computes()) {
            i = exchange(m, schedule.list, i, load);
            continue;
        }
        Slot& slot = m.slots[op.slot];
        Batch batch = load(op.micro, nullptr);
        if (op.kind == Instruction::Forward) {
            if (m.first(op.chunk) || m.last(op.chunk))
                load(op.micro, &windows), load_batch(m, slot, windows, batch);
            await_message(m, m.inputs[op.input], "activations, whole", batch);
            chunk_forward(m, op.chunk, slot, op.input, batch, m.ranks);
            if (!schedule.shape.training && m.last(op.chunk)) model_loss(m, slot, batch);
        } else {
            await_message(m, m.streams[op.gradient], "their gradient, whole", batch);
            chunk_backward(m, op.chunk, slot, op.input, op.gradient, batch, dloss,
                           op.micro == schedule.shape.m - 1);
        }
    }
    finish_messages(m);
}

// ---- train, evaluate, sample, save -----------------------------------------------------------------------

// what the last stage has in end.losses, over all replicas; also whether a signal has reached any rank
double sum_all_losses(Run& run, bool& stop) {
    const Grid& g = run.grid;
    double loss = g.last() && g.tensor == 0 ? sum_losses(*run.model) : 0, sum = 0;
    std::vector<int64_t> all =
        comm::gather_numbers(g.world, {std::bit_cast<int64_t>(loss), stop_requested}, "loss");
    for (size_t i = 0; i < all.size(); i += 2) sum += std::bit_cast<double>(all[i]), stop |= all[i + 1] > 0;
    return sum;
}

// one optimiser step over --batch sequences; returns the mean loss, and the gradient norm through `norm`
double train_step(Run& run, const Schedule& schedule, double rate, double& norm, bool& stop) {
    Model& m = *run.model;
    const Options& o = run.options;
    int T = m.shape.T, B = o.micro_batch;
    double tokens = (double)o.batch * T;
    clear_losses(m);
    // micro-batches go round the data-parallel ranks
    execute(m, schedule, [&](int micro, std::vector<int>* windows) -> Batch {
        if (windows) windows->resize((size_t)B * (T + 1));
        for (int b = 0; windows && b < B; b++)
            run.train->sample(&(*windows)[(size_t)b * (T + 1)],
                              run.state.samples + ((uint64_t)micro * run.grid.d + run.grid.data) * B + b);
        return {B, T};
    }, (real)(1 / tokens));
    double loss = sum_all_losses(run, stop) / tokens;
    norm = optimizer_step(m, *run.optimizer, o, rate, run.state.step + 1);
    run.state.step++, run.state.samples += o.batch, run.state.tokens += (uint64_t)tokens;
    return loss;
}

// the mean loss over at most --evaluate-batches micro-batches, spread evenly over the validation set
double evaluate(Run& run, bool& stop) {
    Model& m = *run.model;
    const Grid& g = run.grid;
    int T = m.shape.T;
    uint64_t all = run.validation->windows(), B = m.setup.B;
    uint64_t count = std::min(all, run.options.evaluate_batches * B), batches = (count + B - 1) / B;
    int mine = (int)((batches + g.d - 1 - g.data) / g.d);  // micro-batches go round here as well
    PipelineShape shape = {g.p, mine, run.options.pipeline_chunks, g.p, false};
    clear_losses(m);
    execute(m, make_schedule(g.stage, shape), [&](int micro, std::vector<int>* windows) -> Batch {
        uint64_t first = ((uint64_t)micro * g.d + g.data) * B;
        Batch batch = {(int)std::min(B, count - first), T};
        if (windows) windows->resize((size_t)batch.B * (T + 1));
        for (int b = 0; windows && b < batch.B; b++)
            run.validation->window(&(*windows)[(size_t)b * (T + 1)],
                                   (uint64_t)((double)(first + b) * (double)all / (double)count));
        return batch;
    }, 0);
    return sum_all_losses(run, stop) / ((double)count * T);
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
    for (auto& option : option_table) {
        std::string value = print_value(o, option);
        record += (record.empty() ? "{" : ", ") + json_quote(option.name) + ": " + json_quote(value);
    }
    save_checkpoint(o.save, run.state, source_of(*run.model, *run.optimizer), record + "}",
                    run.vocabulary ? &*run.vocabulary : nullptr, o.keep);
    run.model->clear_gradients();  // their memory was used
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

void report(Run& run, double loss, double rate, double norm, double took, double step_seconds,
            bool evaluated) {
    if (!run.speaks()) return;
    const Options& o = run.options;
    double speed = (double)o.batch * run.model->shape.T / step_seconds;
    double peak = device_peak(device_name()) * run.grid.world.size;
    if (!o.metrics.empty()) {
        std::string line = text("{\"step\": %ld, \"tokens\": %llu, \"loss\": %.17g", run.state.step,
                                (unsigned long long)run.state.tokens, loss);
        if (evaluated) line += text(", \"validation_loss\": %.17g", run.validation_loss);
        line += text(", \"learning_rate\": %.17g, \"gradient_norm\": %.17g, \"seconds\": %.6g, "
                     "\"tokens_per_second\": %.6g", rate, norm, took, speed);
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

void train(Run& run, const Schedule& schedule) {
    const Options& o = run.options;
    auto every = [&](long n) { return n && run.state.step % n == 0; };
    long saved = o.resume == o.save ? run.state.step : -1;  // what --save holds already
    double pace = 0;  // seconds a step, smoothed
    if (run.speaks() && run.state.step >= run.last_step)
        printf("nothing to do: the checkpoint is at step %ld, the run ends at %ld\n", run.state.step,
               run.last_step);
    bool stop = false;  // a signal may have reached some ranks only: all stop after the same step
    while (run.state.step < run.last_step && !stop) {
        double start = seconds(), norm = 0;
        double rate = learning_rate((double)run.state.tokens + (double)o.batch * o.sequence, o.learning_rate,
                                    o.min_learning_rate, (double)o.warmup_tokens, (double)o.decay_tokens);
        double loss = train_step(run, schedule, rate, norm, stop);
        double took = seconds() - start;
        pace = pace ? 0.9 * pace + 0.1 * took : took;
        bool evaluated = run.validation && (every(o.evaluate_every) || run.state.step == run.last_step);
        if (evaluated) run.validation_loss = evaluate(run, stop);
        report(run, loss, rate, norm, took, pace, evaluated);
        if (!std::isfinite(loss) || !std::isfinite(norm))
            fail("step %ld: loss %g and gradient norm %g are not finite: lower --learning-rate, and go on "
                 "from an earlier checkpoint", run.state.step, loss, norm);
        if (every(o.check_every)) check_replicas(*run.model, *run.optimizer);
        if (every(o.sample_every)) print_sample(run, "", (uint64_t)run.state.step << 32);
        if (!o.save.empty() && every(o.save_every)) save(run), saved = run.state.step;
    }
    if (stop && run.speaks()) printf("stopped by a signal after step %ld\n", run.state.step);
    if (!o.save.empty() && saved != run.state.step) save(run);
}

// from the least to the most that a rank has said and taken
void print_traffic(const Run& run) {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    std::vector<int64_t> all = comm::gather_numbers(
        run.grid.world, {comm::traffic.calls, comm::traffic.bytes, usage.ru_maxrss * 1024}, "traffic");
    if (!run.speaks() || run.grid.world.size == 1) return;
    double least[3], most[3];
    for (size_t i = 0; i < all.size(); i++) {
        double x = (double)all[i];
        least[i % 3] = i < 3 ? x : std::min(least[i % 3], x),
                  most[i % 3] = i < 3 ? x : std::max(most[i % 3], x);
    }
    printf("a rank    %.0f to %.0f calls, %.3g to %.3g MB put into them; %.1f to %.1f MB resident at most\n",
           least[0], most[0], least[1] * 1e-6, most[1] * 1e-6, least[2] * 1e-6, most[2] * 1e-6);
}

// settles everything that can be settled without memory or messages; all ranks go on, or all end
Schedule start(Run& run, int argc, char** argv) {
    auto together = [](auto phase) {
        std::string complaint;
        try {
            phase();
        } catch (const std::exception& e) {
            complaint = e.what();
        }
        comm::agree(complaint);
    };
    Options& o = run.options;
    Schedule schedule;
    together([&] { o = parse_options(argc, argv); });
    comm::timeout = o.comm_timeout;
    if (o.help) return schedule;
    comm::agree_on(option_facts(o));
    together([&] {
        run.grid =
            place_in_grid(comm::world_rank(), comm::world_size(), o.tensor_parallel, o.pipeline_parallel);
        settle(run);
        schedule = make_schedule(run.grid.stage, pipeline_shape(o, run.grid));
        device_name();  // refuses where there is none
    });
    comm::agree_on(file_facts(run));
    run.grid = make_grid(o.tensor_parallel, o.pipeline_parallel, o.pipeline_chunks > 1);
    return schedule;
}

int main(int argc, char** argv) {
    for (int signal_number : {SIGINT, SIGTERM}) signal(signal_number, [](int) { stop_requested = 1; });
    signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write, not the end
    try {
        comm::start(&argc, &argv);
        Run run;
        Schedule schedule = start(run, argc, argv);
        if (run.options.help) {
            if (run.speaks()) fputs(help_text().c_str(), stdout);
            return comm::finish(), 0;
        }
        build(run, schedule);
        if (run.options.generate.empty()) {
            open_metrics(run);
            train(run, schedule);
            print_traffic(run);
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
