// train_gpt.cu   trains a GPT: start, build, train, evaluate, sample, save
//   ./train_gpt --help lists the options; bash scripts/demo.sh shows a run.
//   Read on from here into layers/model/model.h, stage.h and block.h, then the layers in the block's order.
#include <signal.h>
#include "layers/model/generate.h"
#include "layers/model/replicas.h"
#include "plan/advice.h"
#include "plan/ledger.h"
#include "plan/memory.h"
#include "plan/picture.h"
#include "plan/trace.h"

volatile sig_atomic_t stop_requested = 0;

// ---- build -----------------------------------------------------------------------------------------------

// the newest checkpoint that every rank finds whole to the last byte
void resume(Run& run) {
    for (auto& checkpoint : run.checkpoints) {
        double damaged = 0;
        if (run.optimizer) run.optimizer->clear(*run.model);  // of what a damaged one has left
        try {
            load_checkpoint(checkpoint, *run.model, run.optimizer.get());
        } catch (const Error& e) {
            fprintf(stderr, "passed over: %s\n", e.what());
            damaged = 1;
        }
        if (comm::sum_over(comm::everyone(), {damaged}, "damaged checkpoints")[0] > 0) continue;
        uint64_t windows = run.state.windows;
        run.state = checkpoint.state;
        run.state.shape = run.model->shape;
        run.state.windows = windows;
        if (run.trains() && run.speaks())
            printf("resumed   %s: step %ld\n", checkpoint.folder.c_str(), run.state.step);
        return;
    }
    comm::agree(text("--resume %s: no checkpoint is whole", run.options.resume.c_str()));
}

void build(Run& run, const Schedules& schedules, const StagePlan& planned) {
    const Options& o = run.options;
    bool training = run.trains();
    if (training && run.speaks()) print_plan(run);
    run.model = std::make_unique<Model>(run.state.shape, run.grid, setup_of(o, run.grid, schedules));
    if (run.grid.world.size == 1) run.model->stream = make_stream();  // the default one is never recorded
    if (training) run.optimizer = std::make_unique<Optimizer>(*run.model);
    run.model->memory(true);
    if (training) {
        run.optimizer->memory(*run.model, true);
        check_memory(run, planned);
    }
    if (run.checkpoints.empty()) initialise(*run.model, run.optimizer.get(), (uint64_t)o.seed);
    else resume(run);
    if (!training || !HAS_KERNELS) return;
    open_tuning(o);
    // in a longer step the host is ahead anyway, and graphs take memory
    bool is_short = schedules.rbegin()->second.shape.m <= 8;
    bool may = o.graph == "auto" && run.grid.world.size == 1 && !host_is_device && is_short;
    bool faster = rehearse(*run.model, may);
    if (o.graph == "auto") run.options.graph = faster ? "yes" : "no";
    tuning.save();
}

// ---- the pipeline: a schedule's instructions, one after the other ----------------------------------------

// lays a micro-batch of this replica into a slot, if one is given; says its size
using Load = std::function<Batch(int micro, Slot* slot)>;

// where a message goes or comes from
struct Message { Link& link; Buffer& buffer; const char* label; };
Message message_of(Model& m, const Instruction& op) {
    Grid& g = m.grid;
    switch (op.kind) {
        case Instruction::SendForward: return {g.forward_out, m.slots[op.slot].y, "activations"};
        case Instruction::ReceiveForward: return {g.forward_in, m.inputs[op.input], "activations"};
        case Instruction::SendBackward: return {g.backward_out, m.streams[op.gradient], "their gradient"};
        default: return {g.backward_in, m.streams[op.gradient], "their gradient"};
    }
}

// the messages from list[at] on that stand in one group; returns the last
size_t exchange(Model& m, const std::vector<Instruction>& list, size_t at, const Load& load) {
    size_t end = at;
    while (end + 1 < list.size() && list[end + 1].group == list[at].group) end++;
    comm::group_begin();
    for (size_t i = at; i <= end; i++) {
        Message x = message_of(m, list[i]);
        Batch batch = load(list[i].micro, nullptr);
        if (list[i].sends()) post_send(m, x.link, x.buffer, x.label, batch);
        else post_receive(m, x.link, x.buffer, x.label, batch);
    }
    comm::group_end();
    for (size_t i = at; i <= end; i++) {
        Message x = message_of(m, list[i]);
        (list[i].sends() ? x.buffer.sent : x.buffer.arrived) = comm::mark(x.link.channel);
    }
    return end;
}

// all micro-batches through this rank's stage; losses are added to end.losses on the last
void execute(Model& m, const Schedule& schedule, const Load& load, real dloss) {
    for (size_t i = 0; i < schedule.list.size(); i++) {
        const Instruction& op = schedule.list[i];
        if (!op.computes()) {
            i = exchange(m, schedule.list, i, load);
            continue;
        }
        Slot& slot = m.slots[op.slot];
        bool reads = m.setup.packs || m.first(op.chunk) || m.last(op.chunk);
        Batch batch = load(op.micro, reads && op.kind == Instruction::Forward ? &slot : nullptr);
        if (op.kind == Instruction::Forward) {
            await_message(m, m.inputs[op.input], "activations, whole", batch);
            Traced timed(Span::Forward, op.micro, op.chunk, m.stream);
            chunk_forward(m, op.chunk, slot, op.input, batch, m.ranks);
            if (!schedule.shape.training && m.last(op.chunk)) model_loss(m, slot, op.micro, batch);
        } else {
            await_message(m, m.streams[op.gradient], "their gradient, whole", batch);
            Traced timed(Span::Backward, op.micro, op.chunk, m.stream);
            chunk_backward(m, op.chunk, slot, op.input, op.gradient, op.micro, batch, dloss,
                           op.micro == schedule.shape.m - 1);
        }
    }
    finish_messages(m);
}

// ---- train, evaluate, sample, save -----------------------------------------------------------------------

// the losses of all replicas, summed by sets of the blend; also whether a signal has reached any rank.
// set_of: for each sequence of this replica's micro-batches
std::vector<double> sum_losses(Run& run, int micro_batches, const std::vector<int>& set_of, int sets,
                               bool& stop) {
    const Grid& g = run.grid;
    std::vector<double> sums(sets, 0);
    if (g.last() && g.tensor == 0) {
        std::vector<double> losses = sequence_losses(*run.model, micro_batches);
        for (size_t i = 0; i < losses.size(); i++) sums[set_of.empty() ? 0 : set_of[i]] += losses[i];
    }
    sums.push_back(stop_requested);
    sums = comm::sum_over(g.world, sums, "losses");
    stop |= sums.back() > 0;
    sums.pop_back();
    return sums;
}

// one optimiser step; the loss is the mean over its tokens
StepResult train_step(Run& run, const Schedules& schedules, bool& stop) {
    Model& m = *run.model;
    const Options& o = run.options;
    const Grid& g = run.grid;
    double start = seconds();
    int batch = batch_after(o, run.state.samples), T = m.shape.T, B = o.micro_batch;
    const Schedule& schedule = schedules.at(batch);
    double tokens = (double)batch * T;
    std::vector<SetChoice> chosen = run.train->choose(run.state.samples, batch);
    // micro-batches go round the data-parallel ranks
    auto sequence = [&](int micro, int b) { return (micro * g.d + g.data) * B + b; };
    std::vector<int> windows((size_t)B * (T + 1));
    for (int micro = 0; m.staged && micro < schedule.shape.m; micro++) {
        for (int b = 0; b < B; b++)
            run.train->sample(&windows[(size_t)b * (T + 1)], chosen[sequence(micro, b)]);
        stage_batch(m, windows, {B, T}, micro);
    }
    StepResult result;
    result.rate = learning_rate((double)run.state.tokens + tokens, o.learning_rate, o.min_learning_rate,
                                (double)o.warmup_tokens, (double)o.decay_tokens);
    run.optimizer->prepare(o, result.rate, run.state.step + 1);
    run.step.give(m.stream, batch, o.graph == "yes" && !tracing.on, [&] {
        clear_losses(m);
        execute(m, schedule, [&](int micro, Slot* slot) { return load_batch(m, slot, {B, T}, micro); },
                (real)(1 / tokens));
        Traced timed(Span::Update, -1, -1, m.stream);
        optimizer_step(m, *run.optimizer, o.clip);
    });
    result.norm = gradient_norm(m, *run.optimizer);  // until here the host has waited for nothing
    std::vector<int> set_of;
    for (int micro = 0; micro < schedule.shape.m; micro++)
        for (int b = 0; b < B; b++) set_of.push_back(chosen[sequence(micro, b)].set);
    std::vector<double> sums =
        sum_losses(run, schedule.shape.m, set_of, (int)run.train->sets.size(), stop), count(sums.size(), 0);
    for (auto& c : chosen) count[c.set] += T;
    for (size_t set = 0; set < sums.size(); set++) {
        result.loss += sums[set] / tokens;
        if (sums.size() > 1 && count[set] > 0)
            result.losses.push_back({run.train->given[set].name, sums[set] / count[set]});
    }
    run.state.step++;
    run.state.samples += batch;
    run.state.tokens += (uint64_t)tokens;
    result.took = seconds() - start;
    return result;
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
    std::vector<int> windows(B * (T + 1));
    execute(m, make_schedule(g.stage, shape), [&](int micro, Slot* slot) -> Batch {
        uint64_t first = ((uint64_t)micro * g.d + g.data) * B;
        Batch batch = {(int)std::min(B, count - first), T};
        for (int b = 0; slot && m.staged && b < batch.B; b++)
            run.validation->window(&windows[(size_t)b * (T + 1)],
                                   (uint64_t)((double)(first + b) * (double)all / (double)count));
        if (slot && m.staged) stage_batch(m, windows, batch, micro);
        return load_batch(m, slot, batch, micro);
    }, 0);
    return sum_losses(run, mine, {}, 1, stop)[0] / ((double)count * T);
}

void print_sample(Run& run, const std::string& prompt, uint64_t draw) {
    const Options& o = run.options;
    std::vector<int> tokens = encode_text(*run.vocabulary, prompt);
    if (tokens.empty()) tokens.push_back(run.vocabulary->end_of_text);
    Sampling how = {o.temperature, o.top_p, o.top_k, o.repetition, (uint64_t)o.seed, draw};
    if (run.speaks()) printf("%s", prompt.c_str());
    generate(*run.model, {{tokens, o.sample_tokens, how}}, 1, [&](size_t, int token) {
        if (token == run.vocabulary->end_of_text) return false;
        const std::string& bytes = run.vocabulary->tokens[token];
        if (run.speaks()) {
            fwrite(bytes.data(), 1, bytes.size(), stdout);
            fflush(stdout);
        }
        return true;
    });
    if (run.speaks()) printf("\n");
}

// each prompt's answer as a line of JSON, in their order; some at a time, so that little is lost
void answer_prompts(Run& run) {
    const Options& o = run.options;
    std::optional<FileWriter> file;
    if (run.speaks() && !o.results.empty()) file.emplace(o.results);
    size_t round = (size_t)o.batch * run.grid.d * 8;
    for (size_t first = 0; first < run.prompts.size(); first += round) {
        std::vector<Prompt> some(run.prompts.begin() + (long)first,
                                 run.prompts.begin() + (long)std::min(first + round, run.prompts.size()));
        std::vector<Answer> answers = answer(*run.model, some, *run.vocabulary, o.batch);
        for (size_t i = 0; run.speaks() && i < some.size(); i++) {
            std::string line = answer_json(some[i], answers[i]);
            if (file) file->write(line);
            else {
                fputs(line.c_str(), stdout);
                fflush(stdout);
            }
        }
    }
    if (file) file->finish();
}

// the score of every continuation of a file, on all ranks
std::vector<Score> score(Run& run, const ScorePlan& plan) {
    Model& m = *run.model;
    const Grid& g = run.grid;
    std::vector<Score> scores(plan.file.requests.size());
    size_t round = (size_t)m.setup.losses * g.d;
    for (size_t first = 0; first < plan.batches.size(); first += round) {
        size_t end = std::min(plan.batches.size(), first + round);
        auto batch_of = [&](int micro) -> const ScoreBatch& {
            return plan.batches[first + (size_t)micro * g.d + g.data];
        };
        int mine = (int)((end - first + g.d - 1 - g.data) / g.d), ranks = m.ranks.sequence ? g.t : 1;
        clear_losses(m);
        execute(m, make_schedule(g.stage, {g.p, mine, run.options.pipeline_chunks, g.p, false}),
                [&](int micro, Slot* slot) -> Batch {
                    if (!slot) return {1, batch_of(micro).rows};
                    return lay(m, *slot, plan.pack(batch_of(micro), ranks));
                }, 0);
        for (int i = 0; g.last() && i < mine; i++) collect(m, plan, batch_of(i), i, scores);
        share_scores(g, plan, first, end, scores);
    }
    return scores;
}

// the files of --evaluate: a table, and --results
void evaluate_tasks(Run& run) {
    Model& m = *run.model;
    const Options& o = run.options;
    double start = seconds(), rows = 0;
    run.task_results.clear();
    for (auto& file : run.tasks) {
        ScorePlan plan(file, m.shape.T, m.rows(), m.outputs(), m.ranks.sequence ? m.grid.t : 1);
        run.task_results.push_back(task_result(file, score(run, plan), plan.truncated));
        rows += (double)plan.rows;
    }
    if (!run.trains()) comm::agree(not_finite(run.task_results));
    if (!run.speaks()) return;
    double took = seconds() - start;
    printf("%s%.0f tokens in %.1f s, %.0f tokens/s\n", task_table_text(run.task_results).c_str(), rows, took,
           rows / took);
    fflush(stdout);
    if (o.results.empty()) return;
    std::string model = run.trains() ? o.save : o.resume;
    save_results(o.results, task_json(run.task_results, model.empty() ? o.model : model, run.state.step),
                 run.trains());
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

// the steps of a run on the machine that is here, if it is known, on rank 0
std::optional<Plan> predict(const Run& run) {
    Hardware h = choose_hardware(run.options);
    if (h.peak == 0 || sizeof(floatX) != 2 || !run.speaks()) return {};
    return make_plan(run.options, run.state.shape, run.grid, h, run.state.samples, false);
}

// the step that was just traced, of the first replica; collective over the world
void save_trace(Run& run, const PipelineShape& shape, double took) {
    const Grid& g = run.grid;
    std::vector<Span> mine = tracing.stop(g.stage, run.model->stream);
    std::vector<Span> all = gather_spans(g.world, mine, g.tensor == 0 && g.data == 0);
    if (!run.speaks()) return;
    try {
        save_picture(run.options.trace, {text("step %ld of the run", run.state.step), shape.p, shape.m,
                                         shape.v, took, all});
        printf("traced    step %ld: %s\n", run.state.step, run.options.trace.c_str());
    } catch (const Error& e) {  // the run is worth more than its picture
        printf("not traced: %s\n", e.what());
    }
}

void train(Run& run, const Schedules& schedules, const StagePlan& planned) {
    const Options& o = run.options;
    Ledger ledger;
    std::optional<Plan> predicted = predict(run);
    auto every = [&](long n) { return n && run.state.step % n == 0; };
    long saved = o.resume == o.save ? run.state.step : -1;  // what --save holds already
    double pace = 0;  // seconds a token, smoothed
    if (run.speaks() && run.state.step >= run.last_step)
        printf("nothing to do: the run is at step %ld, and ends at %ld\n", run.state.step,
               run.last_step);
    bool stop = false;  // a signal may have reached some ranks only: all stop after the same step
    while (run.state.step < run.last_step && !stop) {
        uint64_t before = run.state.tokens;
        int batch = batch_after(o, run.state.samples);
        bool traced = !o.trace.empty() && run.state.step + 1 == o.trace_step;
        if (traced) tracing.start(run.grid.world, run.model->stream);
        ledger.open(planned.work.at(batch));
        StepResult r = train_step(run, schedules, stop);
        ledger.close(r.took, predicted ? predicted->seconds(batch) : 0);
        if (traced) save_trace(run, schedules.at(batch).shape, r.took);
        double each = r.took / (double)(run.state.tokens - before);
        pace = pace ? 0.9 * pace + 0.1 * each : each;
        bool evaluated = run.validation && (every(o.evaluate_every) || run.state.step == run.last_step);
        if (evaluated) run.validation_loss = evaluate(run, stop);
        run.task_results.clear();
        if (!run.tasks.empty() && (every(o.evaluate_every) || run.state.step == run.last_step))
            evaluate_tasks(run);
        report(run, r, 1 / pace, evaluated);
        if (!std::isfinite(r.loss) || !std::isfinite(r.norm))
            comm::agree(
                text("step %ld: loss %g and gradient norm %g are not finite: lower --learning-rate, and "
                     "go on from an earlier checkpoint",
                     run.state.step, r.loss, r.norm));
        if (every(o.check_every)) check_replicas(*run.model, *run.optimizer);
        if (every(o.sample_every)) print_sample(run, "", (uint64_t)run.state.step << 32);
        if (!o.save.empty() && every(o.save_every)) {
            save(run);
            saved = run.state.step;
        }
    }
    run.model->await_parameters();  // the last update's
    if (stop && run.speaks()) printf("stopped by a signal after step %ld\n", run.state.step);
    if (!o.save.empty() && saved != run.state.step) save(run);
    ledger.print(run, planned);
}

// settles everything that can be settled without memory or messages; all ranks go on, or all end
Schedules start(Run& run, int argc, char** argv) {
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
    Schedules schedules;
    together([&] { o = parse_options(argc, argv); });
    comm::timeout = o.comm_timeout;
    comm::agree_on(option_facts(o));
    if (o.help) return schedules;
    double memory = o.micro_batch == automatic && o.plan.empty() ? memory_of_a_rank() : 0;
    together([&] {
        check_plan_options(o);
        if (!o.plan.empty()) return settle_plan(run);
        run.grid =
            place_in_grid(comm::world_rank(), comm::world_size(), o.tensor_parallel, o.pipeline_parallel);
        settle(run);
        choose_micro_batch(run, memory);
        if (run.trains())
            schedules = make_schedules(o, run.grid, run.grid.stage, run.state.samples);
        if (o.pipeline_chunks > 1 && !schedules.empty())
            o.pipeline_group = schedules.rbegin()->second.shape.N;
        device_name();        // refuses where there is none
        uses_flash(o, {});    // or where it cannot be
        check_metrics(run);
        check_trace(run);
    });
    if (!o.plan.empty()) return schedules;
    comm::agree_on(file_facts(run));
    check_shared(run);
    run.grid = make_grid(o.tensor_parallel, o.pipeline_parallel, o.pipeline_chunks > 1);
    return schedules;
}

int main(int argc, char** argv) {
    signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write, not the end
    Run run;  // outlives the catch: freeing memory may wait for a device that waits for ever
    try {
        comm::start(&argc, &argv);
        Schedules schedules = start(run, argc, argv);
        if (run.options.help) {
            if (run.speaks()) fputs(help_text().c_str(), stdout);
            comm::finish();
            return 0;
        }
        if (!run.options.plan.empty()) {
            if (run.speaks()) show_plan(run);
            comm::finish();
            return 0;
        }
        StagePlan planned;
        if (run.trains())
            for (int number : {SIGINT, SIGTERM}) signal(number, [](int) { stop_requested = 1; });
        if (run.trains())
            planned = plan_stage(run.options, run.state.shape, run.grid, run.grid.stage, run.state.samples);
        build(run, schedules, planned);
        if (run.trains()) {
            open_metrics(run);
            train(run, schedules, planned);
        } else if (!run.tasks.empty()) evaluate_tasks(run);
        else if (!run.prompts.empty()) answer_prompts(run);
        else print_sample(run, run.options.generate, 0);
    } catch (const std::exception& e) {
        fflush(stdout);
        std::string who = comm::world_size() > 1 ? text("[rank %d] ", comm::world_rank()) : "";
        fprintf(stderr, "%strain_gpt: %s\n", who.c_str(), e.what());
        comm::stop(1);
    }
    comm::finish();
    return 0;
}
