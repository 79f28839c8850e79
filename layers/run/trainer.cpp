// trainer.cpp   what surrounds a step's work, and what follows a step: see trainer.h
#include "trainer.h"
#include <bit>
#include <chrono>
#include <cstring>
#include <future>
#include "../../comm/mpi/capture.h"
#include "../base/process.h"
#include "../fast/graph.h"
#include "../fast/turns.h"
#include "metrics.h"
#include "monitor.h"
#include "replicas.h"
#include "resume.h"
#include "signals.h"

// reads a step's samples one step ahead, in a background thread
class SampleReader {
    StepSamples upcoming, samples;

public:
    std::future<void> reading;  // of `upcoming`

    void begin(Blend& blend, const Model& model, uint64_t first, int batch) {
        if (reading.valid()) reading.wait();  // the blend is read by one thread at a time
        upcoming = {};
        int other = 1 - samples.token_buffer;
        reading = std::async(std::launch::async, [this, &blend, &model, other, first, batch] {
            upcoming = read_samples(blend, model, other, first, batch);
        });
    }

    // waits at most `seconds` for the read that was begun; false: it is not done yet
    bool await(double seconds, std::string& error) {
        if (!reading.valid()) return true;
        auto patience = std::chrono::duration<double>(seconds);
        if (reading.wait_for(patience) != std::future_status::ready) return false;
        try {
            reading.get();
        } catch (const std::exception& e) {
            error = e.what();
        }
        return true;
    }

    const StepSamples& take() {
        samples = std::move(upcoming);
        return samples;
    }

    // of the step that began last, or 0: the other one is being read into
    int token_buffer() const { return samples.token_buffer; }

    ~SampleReader() {
        if (reading.valid()) reading.wait();
    }
};

struct StepGraphs {
    CapturedStep captured[2];       // one per buffer of Model.host_tokens
    comm::TrafficTable traffic[2];  // of one launch of each
};

Run::Run() = default;
Run::Run(Run&&) = default;
Run::~Run() = default;
Trainer::Trainer() : reader(std::make_unique<SampleReader>()) {}
Trainer::~Trainer() = default;

void prepare_training(Run& run, Trainer& trainer) {
    keep_freed_memory();
    trainer.writer =
        std::make_unique<CheckpointWriter>(run, *trainer.model, *trainer.optimizer, trainer.lock.get());
    trainer.slow = std::make_unique<SlowRankMonitor>(run.hosts.size());
    trainer.reporter = std::make_unique<ProgressReporter>(run);
}

// ---- in a step -------------------------------------------------------------------------------------------

// The compute stream waits for all all-gathers and sends that have been posted. Over several ranks a step
// that becomes a CUDA graph begins and ends with this, because streams cannot wait for events across the
// border of a graph
static void await_communication(Model& model) {
    model.await_parameters();
    for (InFlight& kept : model.in_flight) await_sent(model, kept.y);
    for (Buffer& buffer : model.dx_buffers) await_sent(model, buffer);
}

// Enqueues a step as a CUDA graph: captured and launched the first time for a buffer of tokens, launched from
// then on; if it cannot be captured, by calling step(). It captures dloss, which depends on the batch size
// alone: a graph needs --loss-on all. Inside a graph, waits for other ranks are timed as computation.
static void enqueue_as_graph(Model& model, Trainer& trainer, const StepSamples& samples,
                             const std::function<void()>& step) {
    if (!trainer.graphs) trainer.graphs = std::make_unique<StepGraphs>();
    CapturedStep& captured = trainer.graphs->captured[samples.token_buffer];
    if (model.grid.world.size == 1) return captured.enqueue(model.stream, samples.batch, step);

    comm::TrafficTable before = comm::traffic;
    bool is_new = false;
    await_communication(model);
    captured.must_capture = true;
    captured.enqueue(model.stream, samples.batch, [&] {
        is_new = true;
        comm::begin_capture();
        step();
        await_communication(model);
        comm::end_capture(model.stream);
    });

    // calls are counted while they are captured; each later launch adds the same counts
    comm::TrafficTable& of_launch = trainer.graphs->traffic[samples.token_buffer];
    if (is_new) of_launch.clear();
    for (auto& [group, sum] : comm::traffic) {
        comm::Traffic& launch = of_launch[group];
        if (is_new) launch = {sum.calls - before[group].calls, sum.sent - before[group].sent};
        else sum = {sum.calls + launch.calls, sum.sent + launch.sent};
    }
    comm::watch_graph(model.grid.world, model.stream);
}

// A step is not run as a graph if a listener observes its operations, if it is computed twice, or if it is
// the first on several ranks: libraries' setup at first use cannot be captured (tune() did it for one rank)
void enqueue_step(const Run& run, Trainer& trainer, const StepSamples& samples,
                  const std::function<void()>& gradients, const std::function<void()>& update) {
    Model& model = *trainer.model;
    trainer.repeated.reset();
    long every = run.options.check_every;
    bool repeats = every && (run.state.step + 1) % every == 0;
    bool initialises = trainer.steps_here == 0 && model.grid.world.size > 1;
    trainer.steps_here++;

    auto step = [&] {
        if (repeats) trainer.repeated = std::make_unique<RepeatedStep>(model, *trainer.optimizer, gradients);
        else gradients();
        update();
    };

    // listeners: those of the first step (plan/invariants.h), of --trace, --record, --profile; StepObserver
    // adds and removes them (plan/observe.cpp)
    if (!trainer.uses_graph || !listeners.empty() || repeats || initialises) step();
    else enqueue_as_graph(model, trainer, samples, step);
}

void prefetch_samples(Run& run, Trainer& trainer, uint64_t first) {
    trainer.reader->begin(*run.train, *trainer.model, first, batch_after(run.options, first));
}

// "", or what is wrong in this rank's memory: an update, even one that is skipped, must read master weights
// and moments exactly as the previous one left them. Copies from the compute stream, which has ended the step
static std::string check_state(Optimizer& optimizer, Model& model, long step, bool has_ended = false) {
    StateCheck now;
    copy_to_host(&now, optimizer.state_check, sizeof now, model.stream);
    bool same = !optimizer.has_written || now.read == optimizer.written;
    optimizer.written = now.written;
    optimizer.has_written = true;
    if (same) return "";
    return text("step %ld%s read other master weights or moments than %s had written: a bit has flipped in "
                "memory: resume from the last checkpoint, and have this host's memory checked", step,
                has_ended ? ", after its end," : "", has_ended ? "its update" : "the update before it");
}

// What this rank has found after the step, whose stream is idle; waits for the next step's samples. start,
// waited: as in exchange_reports
static RankReport await_rank_report(const Run& run, Trainer& trainer, double start, double waited) {
    long step = run.state.step;
    refuse_expired_waits(text("step %ld", step).c_str(), trainer.model->stream);
    trainer.memory_error = check_state(*trainer.optimizer, *trainer.model, step);
    if (trainer.repeated && trainer.memory_error.empty())
        trainer.memory_error = trainer.repeated->error(step);
    trainer.data_error.clear();
    double patience = std::min(5.0, comm::timeout / 4);  // seconds

    RankReport mine;
    double began = seconds();
    mine.still_reads = !trainer.reader->await(patience, trainer.data_error);
    double read = seconds() - began;
    mine.lacks_data = !trainer.data_error.empty();
    mine.wants_save = trainer.writer->is_due(step);
    mine.is_corrupt = !trainer.memory_error.empty();
    mine.save_status = trainer.writer->status();
    mine.stops = take_stop_signal();
    // without waits for other ranks and for the disk, whose slowness is not the rank's
    mine.computed = seconds() - start - read - (comm::waited_seconds() - waited);
    return mine;
}

const StepSamples& take_samples(Trainer& trainer) { return trainer.reader->take(); }

void await_samples(Trainer& trainer) {
    comm::await_all_ranks(trainer.reader->reading, "reading samples", trainer.data_error);
    comm::all_end_on_error(std::exchange(trainer.data_error, ""));
}

// The sum of losses of each sequence in the first `micro_batches`, on the last stage: reports list losses by
// set of the blend, whereas the device, for its decision (adamw.cuh), sums all of them
static std::vector<double> sequence_losses(Model& model, int micro_batches) {
    std::vector<real> losses((size_t)micro_batches * model.max_rows());
    if (!losses.empty())
        copy_to_host(losses.data(), model.lm_head.losses, losses.size() * sizeof(real), model.stream);
    std::vector<double> sums((size_t)micro_batches * model.setup.B, 0);
    for (size_t i = 0; i < losses.size(); i++) sums[i / model.shape.T] += losses[i];
    return sums;
}

// All ranks' reports, by rank. losses: summed over all replicas, by set of the blend, in rank order. set_of:
// the set of each sequence in this replica's micro-batches; empty: set 0 for all. Collective over the world
static std::vector<RankReport> gather_reports(std::vector<double>& losses, Model& model, int micro_batches,
                                              const std::vector<int>& set_of, const RankReport& mine) {
    const Grid& grid = model.grid;
    std::vector<double> sums(losses.size(), 0);
    if (grid.is_last_stage() && grid.tensor == 0) {
        std::vector<double> by_sequence = sequence_losses(model, micro_batches);
        for (size_t i = 0; i < by_sequence.size(); i++)
            sums[set_of.empty() ? 0 : set_of[i]] += by_sequence[i];
    }
    // a rank's numbers: its report, as it lies in memory, then its losses
    static_assert(std::is_trivially_copyable_v<RankReport>);
    constexpr size_t words = (sizeof(RankReport) + 7) / 8;
    std::vector<int64_t> numbers(words);
    memcpy(numbers.data(), &mine, sizeof mine);
    for (double sum : sums) numbers.push_back(std::bit_cast<int64_t>(sum));

    std::vector<int64_t> all = comm::gather_numbers(grid.world, numbers, "a step's reports");
    std::vector<RankReport> reports;
    for (size_t at = 0; at < all.size(); at += numbers.size()) {
        memcpy((void*)&reports.emplace_back(), &all[at], sizeof(RankReport));
        for (size_t set = 0; set < sums.size(); set++)
            losses[set] += std::bit_cast<double>(all[at + words + set]);
    }
    return reports;
}

void exchange_reports(StepResult& result, Run& run, Trainer& trainer, const StepSamples& samples,
                      double start, double waited) {
    Model& model = *trainer.model;
    RankReport mine = await_rank_report(run, trainer, start, waited);

    std::vector<int> set_of;
    for (int micro_batch = 0; micro_batch < samples.micro_batches; micro_batch++)
        for (int b = 0; b < model.setup.B; b++)
            set_of.push_back(samples.chosen[sample_index(model, micro_batch, b)].set);

    std::vector<double> losses(run.train->sets.size(), 0);
    result.reports = gather_reports(losses, model, samples.micro_batches, set_of, mine);
    // a disk that hangs must not prevent the save of a run that needs no further samples
    bool ends = result.any(&RankReport::stops) || run.state.step >= run.last_step;
    bool waits = result.any(&RankReport::still_reads) && !ends;
    bool given_up = false;
    if (waits && !comm::await_all_ranks(trainer.reader->reading, "reading samples", trainer.data_error,
                                        is_stop_requested, &given_up))
        for (RankReport& report : result.reports)  // the run ends, with a save
            (given_up ? report.stops : report.lacks_data) = true;
    for (size_t set = 0; set < losses.size(); set++) {
        result.loss += losses[set] / samples.counted_tokens();
        double tokens = (double)samples.counted[set];
        result.counted_tokens += tokens;
        if (losses.size() > 1 && tokens > 0)
            result.set_losses.push_back({run.train->given[set].name, losses[set] / tokens});
    }
    if (run.grid.world.size > 1)
        result.slow_ranks =
            trainer.slow->update(run.grid, run.hosts, result.reports, run.options.slow_factor);
}

// ---- validation ------------------------------------------------------------------------------------------

// Adds the losses of some samples of the validation set to `sum`; false if any rank cannot read them. Their
// tokens take the place of the last step's: the other buffer holds the next step's
static bool add_validation_losses(double& sum, Run& run, Trainer& trainer,
                                  const std::vector<uint64_t>& chosen) {
    Model& model = *trainer.model;
    const Grid& grid = model.grid;
    int B = model.setup.B, T = model.shape.T, n = (int)chosen.size(), batches = (n + B - 1) / B;
    int* host_tokens = model.host_tokens[trainer.reader->token_buffer()];
    int mine = (batches + grid.d - 1 - grid.data) / grid.d;  // dealt round-robin, as in training

    auto first_of = [&](int i) { return (i * grid.d + grid.data) * B; };
    auto size_of = [&](int i) { return std::min(B, n - first_of(i)); };  // in samples
    std::vector<int> rows;
    for (int i = 0; i < mine; i++) rows.push_back(size_of(i) * T);

    auto read = [&] {
        std::vector<int> samples((size_t)B * (T + 1));
        for (int i = 0; model.loads_tokens() && i < mine; i++) {
            for (int b = 0; b < size_of(i); b++)
                run.validation->read_at(&samples[(size_t)b * (T + 1)], chosen[first_of(i) + b]);
            put_tokens_on_host(model, host_tokens, samples, size_of(i), i);
        }
    };

    std::future<void> reading = std::async(std::launch::async, read);
    if (!comm::await_all_ranks(reading, "reading validation data", trainer.data_error)) return false;

    clear_losses(model);
    Schedule schedule = make_schedule(grid.stage, {grid.p, mine, model.setup.chunks, grid.p, false});
    run_schedule(model, schedule, rows, host_tokens, 0);
    std::vector<double> losses(1, 0);
    gather_reports(losses, model, mine, {}, {});
    sum += losses[0];
    refuse_expired_waits("the validation loss", model.stream);
    return true;
}

// loss: the mean over at most --evaluate-sequences samples, spread evenly over the validation set, the same
// in every layout; in rounds of as many as the buffers hold. Returns false if any rank cannot read it.
bool evaluate_loss(std::optional<double>& loss, Run& run, Trainer& trainer) {
    const Setup& setup = trainer.model->setup;
    uint64_t all = run.validation->samples();
    uint64_t count = std::min(all, (uint64_t)run.options.evaluate_sequences);
    uint64_t round = (uint64_t)setup.micro_batches * run.grid.d * setup.B;

    double sum = 0, counted = 0;
    for (uint64_t first = 0; first < count; first += round) {
        std::vector<uint64_t> chosen;
        for (uint64_t k = first; k < std::min(first + round, count); k++)
            chosen.push_back((uint64_t)((unsigned __int128)k * all / count));

        if (!add_validation_losses(sum, run, trainer, chosen)) return false;
        for (uint64_t sample : chosen) counted += (double)run.validation->counted(sample);
    }
    if (counted > 0) loss = sum / counted;
    else if (run.is_rank0())
        fprintf(stderr, "step %ld: the %llu validation samples have no answers, so there is no validation "
                "loss%s\n", run.state.step, (unsigned long long)count,
                count < all ? ": raise --evaluate-sequences" : "");
    if (loss && !std::isfinite(*loss) && run.is_rank0())  // the last step's own loss would not show it
        fprintf(stderr, "step %ld: the validation loss is not finite: checkpoints from here on are useless: "
                "resume from an earlier one (--resume-before)\n", run.state.step);
    return true;
}

void report_nothing_to_do(Run& run, Trainer& trainer) {
    const Options& o = run.options;
    if (run.is_rank0())
        printf("nothing to do: the run is at step %ld, and %s\n", run.state.step,
               o.has("steps") ? text("--steps %ld is its total length", o.steps).c_str() : "ends there");
    std::optional<double> loss;
    if (run.validation && evaluate_loss(loss, run, trainer) && loss && run.is_rank0())
        printf("validation loss %.4f\n", *loss);
}

// ---- saves -----------------------------------------------------------------------------------------------

// The run that held --save until now may have saved since this one looked for checkpoints
static void refuse_newer_checkpoints(const Run& run) {
    const Options& o = run.options;
    bool resumes_there = !run.checkpoints.empty() && o.resume == o.save;
    long from = resumes_there ? std::max(run.newest_listed, run.checkpoints[0].state.step) : -1;
    for (auto& name : list_checkpoints(o.save))
        if (step_of(name) > from && !o.resume_before && is_complete(o.save + "/" + name))
            fail("--save %s: another run has ended meanwhile and left %s there: start again",
                 o.save.c_str(), name.c_str());
}

// Locks --save for this run. Collective, because rank 0 may need some seconds to be sure that another host's
// lock is stale
void lock_save_folder(const Run& run, Trainer& trainer) {
    const std::string& folder = run.options.save;
    if (folder.empty() || !run.trains() || trainer.has_folder) return;
    // with nothing to do but to evaluate, nothing is written there, and training may go on beside
    if (run.options.resume == folder && run.state.step >= run.last_step) return;
    trainer.has_folder = true;
    std::future<void> locking;
    if (run.is_rank0())
        locking = std::async(std::launch::async, [&] {
            trainer.lock = std::make_unique<FolderLock>(folder);
            FolderLock::remove_leftovers(folder);
            refuse_newer_checkpoints(run);
        });
    std::string error;
    comm::await_all_ranks(locking, "locking --save", error);
    comm::all_end_on_error(error);
}

// Waits for a running save, at most `patience` seconds by rank 0's clock, while all ranks exchange their
// status. Returns whether it has ended
static bool finish_save(Run& run, Trainer& trainer, double patience) {
    CheckpointWriter& writer = *trainer.writer;
    double began = seconds(), told = began;

    for (bool late = false; !writer.is_idle() && !late;) {
        usleep(5000);
        if (run.is_rank0() && seconds() - told > 60) {
            fprintf(stderr, "waiting for a save that has been running for %.0f s\n",
                    writer.seconds_under_way());
            told = seconds();
        }
        int64_t mine = writer.status() | (seconds() - began > patience) << 4;
        std::vector<int64_t> all = comm::gather_numbers(run.grid.world, {mine}, "saving a checkpoint");
        late = all[0] >> 4;
        for (auto& status : all) status &= 15;
        writer.advance({all.begin(), all.end()});
    }
    return writer.is_idle();
}

// for a save that stands in the way of what comes next
static double save_patience() { return 10 * std::min(60.0, comm::timeout); }

// Called when a save is due. If storage is so slow that the previous save is still running, training waits a
// minute for it (or --comm-timeout, if shorter) and then skips the new save, which counts as failed: a write
// that never returns must not stop training, but training must not run forever without checkpoints. (The last
// save of a run is waited for as long as it takes, unless it is known to be stuck: save_now.)
static void begin_save(Run& run, Trainer& trainer) {
    CheckpointWriter& writer = *trainer.writer;
    if (finish_save(run, trainer, writer.is_stuck() ? 0 : std::min(60.0, comm::timeout)))
        return writer.begin(*trainer.model);
    writer.leave_out();
    if (run.is_rank0())
        fprintf(stderr, "step %ld is not saved: an earlier save is still running after %.0f s\n",
                run.state.step, writer.seconds_under_way());
}

static void check_save_attempts(const Run& run, const Trainer& trainer) {
    int failed = trainer.writer->failed_attempts();
    if (failed < run.options.save_attempts) return;
    std::string what = failed == 1 ? "a save has failed" : text("%d saves in a row have failed", failed);
    if (trainer.writer->is_stuck())
        what = text("an earlier save has been running for %.0f s, and %d in a row were skipped or failed",
                    trainer.writer->seconds_under_way(), failed);
    comm::all_end_on_error(text("%s: --save %s: free space, repair the file system, or choose another folder",
                                what.c_str(), run.options.save.c_str()));
}

static void save_now(Run& run, Trainer& trainer) {
    if (run.options.save.empty() || !trainer.writer) return;
    notice_stop_signal();  // no further step will do it
    double patience = trainer.writer->is_stuck() ? save_patience() : INFINITY;
    if (!finish_save(run, trainer, patience))
        comm::all_end_on_error(text("step %ld is not saved: an earlier save has been running for %.0f s: "
                                    "check the file system of --save", run.state.step,
                                    trainer.writer->seconds_under_way()));

    while (trainer.writer->saved_step() != run.state.step) {
        check_save_attempts(run, trainer);
        usleep((useconds_t)(1e6 * trainer.writer->seconds_to_wait()));
        trainer.writer->begin(*trainer.model);
        finish_save(run, trainer, INFINITY);
    }
}

// No update will read what the last one has written: so an update that is skipped, as no norm is below its
// limit, reads and checks it. Collective
static void verify_last_update(const Run& run, Trainer& trainer) {
    Model& model = *trainer.model;
    Optimizer& optimizer = *trainer.optimizer;
    model.await_parameters();  // all-gathered after the last update
    optimizer.set_hyper_parameters(run.options, 0, run.state.updates + 1, -INFINITY);
    update_parameters(model, optimizer);
    std::string error = check_state(optimizer, model, run.state.step, true);
    comm::all_end_on_error(error.empty() ? "" : run.hosts[run.grid.world.rank] + ": " + error);
}

void save_and_end(Run& run, Trainer& trainer, const std::string& error) {
    verify_last_update(run, trainer);
    save_now(run, trainer);
    comm::all_end_on_error(error);
}

// ---- when something is wrong -----------------------------------------------------------------------------

constexpr int exit_diverged = 3;  // resuming from the newest checkpoint would diverge again

// Goes back to the newest checkpoint before the spike and skips the samples read since then. If the loss or
// norm is not finite in the first step after the checkpoint that was loaded, that checkpoint is at fault, not
// the samples: goes back to an older one and skips none
static void go_back(const StepResult& result, Run& run, Trainer& trainer) {
    bool checkpoint_is_wrong = run.state.step == trainer.loaded_step + 1 && !result.is_finite();
    uint64_t samples = run.state.samples_seen;
    if (!finish_save(run, trainer, save_patience()))
        comm::all_end_on_error(text("--on-spike back: a save has been running for %.0f s: check the file "
                                    "system of --save", trainer.writer->seconds_under_way()));

    run.options.resume = run.options.save;
    run.options.resume_before = checkpoint_is_wrong ? trainer.loaded_step : run.state.step;
    comm::all_ranks_or_fail([&] {
        if (run.options.resume_before <= 0 || list_checkpoints(run.options.save).empty())
            fail("--on-spike back: there is no checkpoint to go back to yet: lower --learning-rate, or save "
                 "earlier by --save-every");
    }, exit_diverged);
    open_checkpoints(run, exit_diverged);
    comm::check_ranks_agree(file_fingerprints(run));

    // autotuning choices made since that checkpoint still belong to the run, and the count of spikes goes on
    std::map<uint64_t, int> choices = run.state.choices;
    int spikes = run.state.spikes_since_progress;
    trainer.model->await_parameters();
    resume_newest(run, *trainer.model, trainer.optimizer.get());
    set_aside_newer(run);
    trainer.loaded_step = run.state.step;
    run.state.choices.insert(choices.begin(), choices.end());
    run.state.spikes_since_progress = spikes;
    run.state.losses = run.state.norms = {};  // otherwise a lasting change would stop the run
    if (!checkpoint_is_wrong) run.state.samples_seen = samples;
    resolve_last_step(run);  // in a batch ramp, steps over later samples hold more tokens
    if (!trainer.schedules.count(batch_after(run.options, run.state.samples_seen)))
        comm::all_end_on_error("--on-spike back: the batch ramp of that checkpoint was not set up: start "
                               "again with --resume");

    trainer.writer->forget();
    try {
        open_metrics(run);
    } catch (const std::exception& e) {  // a full disk must not end the run
        fprintf(stderr, "--metrics: keeps the lines of the steps that are repeated: %s\n", e.what());
    }

    prefetch_samples(run, trainer, run.state.samples_seen);
    await_samples(trainer);
}

// --on-spike: the device has skipped the update (adamw.cuh), as loss or norm is not finite or exceeds its
// limit. Every rank sees the same loss (gather_reports) and norm (all-reduced), so all decide alike
static void handle_spike(const StepResult& result, Run& run, Trainer& trainer) {
    const std::string& way = run.options.on_spike;
    int most = way == "skip" ? 10 : way == "back" ? 3 : 0;
    std::string what = text("step %ld: loss %g, gradient norm %g: %s", run.state.step, result.loss,
                            result.norm, result.is_finite() ? "a spike" : "not finite");

    bool stops = ++run.state.spikes_since_progress > most;
    if (!stops && run.is_rank0())
        fprintf(stderr, "%s: %s\n", what.c_str(),
                way == "skip" ? "its update is skipped" : "back to the newest checkpoint before it");
    if (!stops) return way == "back" ? go_back(result, run, trainer) : void();

    finish_save(run, trainer, save_patience());
    std::string others = way == "stop" ? "choose --on-spike skip or back, " : "";
    comm::all_end_on_error(what + ": lower --learning-rate, " + others + "or resume from an earlier "
                               "checkpoint (--resume-before)", exit_diverged);
}

void act_on_reports(const StepResult& result, Run& run, Trainer& trainer) {
    trainer.stop |= result.any(&RankReport::stops);
    if (trainer.stop) notice_stop_signal();
    if (result.any(&RankReport::is_corrupt))
        comm::all_end_on_error(trainer.memory_error.empty() ? ""
            : run.hosts[run.grid.world.rank] + ": " + trainer.memory_error);

    std::vector<int> save_statuses;
    for (const RankReport& report : result.reports) save_statuses.push_back(report.save_status);
    trainer.writer->advance(save_statuses);  // not reached if a rank's memory is corrupt
    if (!result.updated) {
        handle_spike(result, run, trainer);
        if (run.options.on_spike == "back") return;  // go_back() has already read the next samples
    } else {
        if (result.counted_tokens > 0) {  // --loss-on answers: a step may have had none
            run.state.losses.add(result.loss);
            run.state.norms.add(result.norm);
        }
        bool has_newer_checkpoint = trainer.writer->saved_step() > trainer.loaded_step;
        if (run.options.on_spike != "back" || has_newer_checkpoint) run.state.spikes_since_progress = 0;
    }

    check_save_attempts(run, trainer);
    if (result.reports[0].wants_save) begin_save(run, trainer);
    if (result.any(&RankReport::lacks_data) && run.state.step < run.last_step)
        save_and_end(run, trainer, trainer.data_error);
}

// ---- reports ---------------------------------------------------------------------------------------------

void report_step(const StepResult& result, Trainer& trainer, double tokens) {
    trainer.reporter->report_step(result, tokens);
}

void check_replicas(const Run& run, Trainer& trainer, double step) {
    double began = seconds();
    comm::all_end_on_error(compare_replicas(*trainer.model, *trainer.optimizer, run.state.step));
    trainer.reporter->report_check(step + seconds() - began);
}

void end_training(Run& run, Trainer& trainer, bool has_begun) {
    const Options& o = run.options;
    if (has_begun) verify_last_update(run, trainer);
    trainer.model->await_parameters();
    synchronize(trainer.model->stream);  // here, where ranks that are lost are noticed
    if (long left = comm::unawaited_calls())
        fail("%ld calls were never waited for: this is a bug", left);
    if (trainer.stop && run.state.step < run.last_step && run.is_rank0())
        printf("stopped by a signal after step %ld%s%s\n", run.state.step,
               o.save.empty() ? "" : ": continue with --resume ", o.save.c_str());
    if (has_begun || o.resume != o.save) save_now(run, trainer);
    trainer.reporter->write_pending();
    if (run.is_rank0()) fputs(draws_of(*run.train, run.state.samples_seen).c_str(), stdout);
}
