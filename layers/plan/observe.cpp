// observe.cpp   observes a run's steps: see observe.h
#include "observe.h"
#include <sys/resource.h>
#include <functional>
#include "../run/metrics.h"
#include "invariants.h"
#include "memory.h"
#include "profile.h"
#include "record.h"
#include "report.h"
#include "timeline.h"
#include "trace.h"

void check_trace(const Run& run) {
    const Options& o = run.options;
    if (o.inference() && (o.profile || !o.trace.empty() || !o.record.empty()))
        fail("--profile, --trace and --record observe a training step, and this run makes none: leave them "
             "out");
    if (o.profile && run.last_step < run.state.step + 3)
        fail("--profile: the run ends at step %ld, and is at step %ld: at least three steps are needed",
             run.last_step, run.state.step);
    if (o.trace.empty() && o.record.empty()) return;
    if (o.trace_step <= run.state.step || o.trace_step > run.last_step)
        fail("--trace-step %ld: the run goes from step %ld to %ld: choose one of these", o.trace_step,
             run.state.step + 1, run.last_step);
    for (auto& path : {o.trace, o.record})
        if (run.is_rank0() && !path.empty()) FileWriter probe(path);
}

// the plan of this run's steps on this machine, if it is known; on rank 0
static std::optional<Plan> predict_run(const Run& run) {
    Hardware h = choose_hardware(run.options);
    if (!h.is_known() || sizeof(floatX) != 2 || !run.is_rank0()) return {};
    return make_plan(run.options, run.state.shape, run.grid, h, run.state.samples_seen, true);
}

// The plan to draw beside a trace on a machine that is in no table: GEMMs and copies at the rates that rank 0
// measures, messages at the rate of copies. The latency of calls is not measured but taken from GPUs: small
// steps take longer than this says. samples: consumed before the step
static Plan plan_as_measured(const Run& run, const Ceilings& ceilings, uint64_t samples) {
    Hardware h = find_hardware("here");
    h.name = "this machine as measured";
    h.gpu.peak = ceilings.flops;
    h.gpu.bandwidth = ceilings.bytes;
    h.nvlink = h.network = ceilings.bytes / 2;
    h.efficiency = 1;
    h.is_measured = true;
    return make_plan(run.options, run.state.shape, run.grid, h, samples, false);
}

// the step that was just traced, beside the planned one where the machine is known; collective over the world
static void save_trace(const Run& run, Model& model, const Trace& trace, int batch, double took,
                       const Plan* planned) {
    const Grid& g = run.grid;
    PipelineShape shape = pipeline_shape(run.options, g.d, batch);
    model.await_parameters();  // then the step's calls have ended
    synchronize(model.stream);

    int row = g.stage * g.t + g.tensor, rank = g.world.rank;
    std::string spans, events;
    if (g.data == 0) {
        for (auto& e : trace.events()) {
            Span s = {Span::Wait, row, -1, -1, -1, e.start, e.end};
            if (span_of(*e.activity, s)) spans += std::string((const char*)&s, sizeof s);
            events += chrome_event(e, row);
        }
        events += chrome_name(row, 0, "process_name", text("rank %d, stage %d", rank, g.stage));
        for (int lane = 0; lane < (int)std::size(chrome_lanes); lane++)
            events += chrome_name(row, lane, "thread_name", chrome_lanes[lane]);
    }

    spans = collect_text(g.world, spans);
    events = collect_text(g.world, events);
    if (!run.is_rank0()) return;

    Timeline traced = {text("step %ld of the run, %.4g s", run.state.step, took), {}, shape.micro_batches,
                       shape.chunks, took, {}};
    for (int i = 0; i < g.p * g.t; i++)
        traced.rows.push_back(text("rank %d", g.rank_of(i % g.t, 0, i / g.t)));
    traced.spans.resize(spans.size() / sizeof(Span));
    memcpy((void*)traced.spans.data(), spans.data(), spans.size());

    try {
        std::vector<Timeline> panels = {traced};
        if (planned) {
            Plan of_step = *planned;  // with this step's batch
            of_step.o.batch = batch;
            of_step.steps[batch] = simulate(*planned, shape);
            panels.push_back(draw(of_step.step(), shape, plan_title(of_step)));
        }
        save_timeline(run.options.trace, panels, events);
        printf("traced    step %ld: %s\n", run.state.step, run.options.trace.c_str());
    } catch (const std::exception& e) {  // a run must not fail because its timeline cannot be written
        printf("not traced: %s\n", e.what());
    }
}

// what every rank has written down of the step, in one file; collective over the world
static void save_record(const Run& run, const Model& model, const Record& record, int batch) {
    std::string all = collect_text(run.grid.world, record.lines_written());
    if (!run.is_rank0()) return;
    try {
        write_file(run.options.record, record_header(model, run.options, run.state.step, batch) + all);
        printf("recorded  step %ld: %s\n", run.state.step, run.options.record.c_str());
    } catch (const Error& e) {
        printf("not recorded: %s\n", e.what());
    }
}

// ---- the plan's check ------------------------------------------------------------------------------------

// What was planned beside what was measured: compared in every step, printed at a run's end. Calls and bytes
// must be exactly equal on every rank; memory was compared at the start (memory.h). Only training steps
// count: evaluation, samples and checkpoints communicate as well
class PlanCheck {
    const std::map<int, StepWork>& planned;  // of a step, by batch
    std::map<int, long> steps;               // that were taken, by batch
    int first_batch = 0;
    comm::TrafficTable before, done;
    double first_seconds = 0, seconds = 0;  // of the first step, which warms up; of the others
    bool equal = true;

public:
    explicit PlanCheck(const std::map<int, StepWork>& planned) : planned(planned) {}

    void begin_step() { before = comm::traffic; }

    // took: seconds
    void end_step(int batch, double took) {
        comm::TrafficTable of_step;
        for (auto& [group, t] : comm::traffic) {
            comm::Traffic more = {t.calls - before[group].calls, t.sent - before[group].sent};
            if (more.calls) of_step[group] = more;
        }
        equal = equal && of_step == planned.at(batch).traffic;
        for (auto& [group, t] : of_step) {
            done[group].calls += t.calls;
            done[group].sent += t.sent;
        }
        if (steps.empty()) first_batch = batch;
        (steps.empty() ? first_seconds : seconds) += took;
        steps[batch]++;
    }

    // collective over the world; the run has ended and saved. If plan and run differ, every rank exits with 1
    // bytes: of device memory on this rank; predicted(batch): seconds of a step, or 0
    void print(const Run& run, size_t planned_bytes, size_t taken_bytes,
               const std::function<double(int)>& predicted) const {
        rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        int64_t differs = !equal, resident = usage.ru_maxrss * 1024;
        std::vector<int64_t> all =
            comm::gather_numbers(run.grid.world, {differs, resident}, "plan and run");

        std::vector<int> who;
        int64_t least = all[1], most = all[1];
        for (size_t i = 0; i < all.size(); i += 2) {
            if (all[i]) who.push_back((int)i / 2);
            least = std::min(least, all[i + 1]);
            most = std::max(most, all[i + 1]);
        }

        bool prints = run.is_rank0() && !steps.empty();
        if (prints) print_table(planned_bytes, taken_bytes, least, most, predicted);
        if (!who.empty())
            comm::all_end_on_error(text("plan and run DIFFER on rank %s: this is a bug",
                                        comm::rank_list(who).c_str()));
        int ranks = run.grid.world.size;
        if (prints)
            printf("plan and run are equal on %s\n",
                   ranks == 1 ? "this rank" : text("all %d ranks", ranks).c_str());
    }

private:
    // least, most: the smallest and the largest peak resident bytes of any rank
    void print_table(size_t planned_bytes, size_t taken_bytes, int64_t least, int64_t most,
                     const std::function<double(int)>& predicted) const {
        StepWork work;
        long count = 0;
        double expected = 0;
        for (auto [batch, times] : steps) {
            work.add(planned.at(batch), times);
            count += times;
            expected += predicted(batch) * (double)times;
        }

        double n = (double)count, measured = count > 1 ? seconds / (n - 1) : first_seconds;
        expected = count > 1 ? (expected - predicted(first_batch)) / (n - 1) : expected;
        printf("rank 0, a step           planned       measured\n");
        for (auto& [group, t] : work.traffic) {
            comm::Traffic d = done.count(group) ? done.at(group) : comm::Traffic{};
            printf("  %-15s %9.4g MB   %9.4g MB   %ld and %ld calls\n", group.c_str(),
                   (double)t.sent * 1e-6 / n, (double)d.sent * 1e-6 / n, t.calls / count, d.calls / count);
        }
        printf("  linear layers   %9.4g GFLOP\n", work.linear_flops * 1e-9 / n);
        printf("  memory          %9.1f MB   %9.1f MB   and %s MB resident at most%s\n",
               (double)planned_bytes * 1e-6, (double)taken_bytes * 1e-6,
               (least == most ? text("%.1f", (double)most * 1e-6)
                              : text("%.1f to %.1f", (double)least * 1e-6, (double)most * 1e-6)).c_str(),
               least == most ? "" : ", over all ranks");
        std::string time = expected > 0 ? text("%9.4g s ", expected) : "        -";
        printf("  seconds         %-12s    %9.4g s\n", time.c_str(), measured);
    }
};

// ---- the observer ----------------------------------------------------------------------------------------

struct StepObserver::Parts {
    const Run& run;
    StagePlan planned;  // what this rank's steps must consist of
    PlanCheck check;
    std::optional<Plan> predicted;  // on rank 0, where the machine is known: how long they should take
    std::optional<StepInvariants> invariants;  // in the first steps, unless computed twice
    std::optional<Trace> trace;
    std::optional<Record> record;
    std::optional<Profile> profile;
    std::optional<Ceilings> ceilings;
    std::vector<std::unique_ptr<Listening>> now;
    long first_step, profiled_steps = 0;

    Parts(const Run& run, StagePlan&& stage)
        : run(run), planned(std::move(stage)), check(planned.work), predicted(predict_run(run)),
          first_step(run.state.step) {}
    void listen(Listener& l) { now.push_back(std::make_unique<Listening>(l)); }
    bool profiles(long step) const {
        return profile && step > first_step + 2 && step <= first_step + 2 + run.options.profile;
    }
};

StepObserver::StepObserver(const Run& run, StagePlan&& planned)
    : parts(std::make_unique<Parts>(run, std::move(planned))) {
    const Options& o = run.options;
    bool is_wanted = o.profile || (!o.trace.empty() && !parts->predicted);
    if (is_wanted && run.is_rank0()) parts->ceilings = measure_ceilings();
    if (o.profile) parts->profile.emplace(parts->ceilings.value_or(Ceilings{INFINITY, INFINITY}));
}
StepObserver::~StepObserver() = default;

void StepObserver::begin_step(Model& model, int batch) {
    Parts& p = *parts;
    const Options& o = p.run.options;
    long every = o.check_every, step = p.run.state.step + 1;
    long checked = p.first_step + (model.grid.d > 1 ? 2 : 1);  // the second awaits what the first gathers
    if (step <= checked && !(every && step % every == 0))
        p.listen(p.invariants.emplace(model, batch / model.grid.d / model.setup.B));

    // an earlier listener's times include the work of later ones, so the trace is added last
    bool is_traced = step == o.trace_step;
    if (is_traced && !o.record.empty()) p.listen(p.record.emplace(model, o.record_values));
    if (p.profiles(step)) {
        p.profiled_steps++;
        p.listen(*p.profile);
    }
    if (is_traced && !o.trace.empty()) {
        p.trace.emplace().start(p.run.grid.world, model.stream);
        p.listen(*p.trace);
    }
    p.check.begin_step();
}

void StepObserver::end_step(Model& model, int batch, const StepResult& result) {
    Parts& p = *parts;
    p.check.end_step(batch, result.seconds);
    p.now.clear();
    if (p.profiles(p.run.state.step)) p.profile->collect(model.stream, result.seconds);
    if (p.trace) {
        const Plan* beside = p.predicted ? &*p.predicted : nullptr;
        std::optional<Plan> as_measured;
        uint64_t before = p.run.state.samples_seen - (uint64_t)batch;
        if (!beside && p.run.is_rank0())
            beside = &as_measured.emplace(plan_as_measured(p.run, *p.ceilings, before));
        save_trace(p.run, model, *p.trace, batch, result.seconds, beside);
    }
    if (p.record) save_record(p.run, model, *p.record, batch);
    p.invariants.reset();
    p.trace.reset();
    p.record.reset();
}

void StepObserver::print(const Model& model, const Optimizer& optimizer) const {
    const Parts& p = *parts;
    if (p.profile && p.run.is_rank0() && p.profiled_steps) fputs(p.profile->print().c_str(), stdout);
    p.check.print(p.run, p.planned.bytes(), memory_taken(model, optimizer),
                  [&](int batch) { return p.predicted ? p.predicted->seconds(batch) : 0; });
}
