// search.h   other layouts: those that would fit where this one does not, and the fastest (--plan search)
#pragma once
#include <functional>
#include "../run/resolve.h"
#include "placement.h"
#include "memory.h"
#include "timeline.h"
#include "report.h"

// checks the options of this folder. With --plan, --world-size is the number of ranks to plan for, and gets a
// default; otherwise it must be the number of ranks started
inline void check_plan_options(Options& o) {
    check_timeline_path("timeline", o.timeline);
    check_timeline_path("trace", o.trace);
    if (!o.hardware.empty()) find_hardware(o.hardware);

    if (o.gemm_efficiency > 1)
        fail("--gemm-efficiency %g: must be a share of the peak, at most 1", o.gemm_efficiency);

    if (o.plan.empty()) {
        for (const char* name :
             {"plan-json", "hosts", "timeline", "hardware", "network-rate", "file-system-rate"})
            if (o.has(name)) fail("--%s requires --plan", name);
        if (o.world_size && o.world_size != comm::world_size())
            fail("--world-size %d: the run has %s: start %d, or leave the option out", o.world_size,
                 counted(comm::world_size(), "rank").c_str(), o.world_size);
        return;
    }

    if (o.plan_json == "-" && o.has("hosts")) fail("--hosts prints text: give --plan-json a FILE");
    if (o.plan != "this" && o.plan != "search" && o.plan != "published")
        fail("--plan %s: expected nothing, search or published", o.plan.c_str());

    for (const char* name : {"plan-json", "hosts", "timeline"})
        if (o.plan != "this" && o.has(name))
            fail("--%s requires a single layout: give --plan without %s", name, o.plan.c_str());
    if (o.plan == "published" && o.has("hardware"))
        fail("--plan published: those runs had A100: leave --hardware out");
    for (const char* name : {"trace", "record", "profile", "generate"})
        if (o.has(name)) fail("--%s does not go with --plan: nothing runs then", name);
    if ((long)o.tensor_parallel * o.pipeline_parallel > 1 << 24)
        fail("--tensor-parallel %d x --pipeline-parallel %d: at most %d ranks can be planned",
             o.tensor_parallel, o.pipeline_parallel, 1 << 24);
    if (o.world_size > 1 << 24)
        fail("--world-size %d: at most %d ranks can be planned", o.world_size, 1 << 24);
    if (!o.world_size) o.world_size = std::max(comm::world_size(), o.tensor_parallel * o.pipeline_parallel);
}

// places rank 0 among the ranks to plan for, and resolves every other setting
inline void resolve_plan(Run& run) {
    Options& o = run.options;
    // a search resolves a single replica: the number of ranks need not suit the layout that it starts with
    bool searches = o.plan == "search";  // for micro-batches too
    int world = searches ? o.tensor_parallel * o.pipeline_parallel : o.world_size;
    run.grid = place_in_grid(0, world, o.tensor_parallel, o.pipeline_parallel);
    int chunks = o.pipeline_chunks;  // for the layouts searched; this one has 1 chunk and no group
    bool has_group = false;
    if (searches && (o.pipeline_parallel == 1 || !o.has("pipeline-chunks"))) {
        o.pipeline_chunks = 1;
        has_group = o.given.erase("pipeline-group");
    }
    resolve(run, 0);
    o.pipeline_chunks = chunks;
    if (has_group) o.given.insert("pipeline-group");
    Hardware h = choose_hardware(o);
    double taken = communicator_bytes(run.grid, o.pipeline_chunks > 1);
    if (!searches && h.gpu.peak > 0) choose_micro_batch(run, h.gpu.memory * 11 / 12 - taken, gpu_target);
    else if (!searches) choose_micro_batch(run, (double)free_memory() * 11 / 12);
    run.grid.world.size = o.world_size;
    if (searches && run.automatic_micro_batch) o.given.erase("micro-batch");  // it is searched for
}

// every stage, and every batch of the recipe
inline Plan whole_plan(const Run& run, const Hardware& h) {
    Plan plan = make_plan(run.options, run.state.shape, run.grid, h, run.state.samples_seen, true);
    plan.counts = count_steps(run.options, run.state.samples_seen, run.state.step, run.last_step);
    return plan;
}

// the same run with other options; refuses what the run itself would. timed: with times, else memory only
inline Plan plan_with(const Run& base, const Options& o, const Hardware& h, bool timed) {
    Run run;
    run.options = o;
    run.options.plan = "this";
    run.state = base.state;

    if (!o.has("micro-batch")) run.options.micro_batch = 0;  // resolved anew if not named
    run.grid = place_in_grid(0, base.grid.world.size, o.tensor_parallel, o.pipeline_parallel);
    check_parallel(run);
    resolve_batch(run);
    Options& resolved = run.options;

    check_pipeline(pipeline_shape(resolved, run.grid.d, resolved.batch));
    if (timed) return make_plan(resolved, base.state.shape, run.grid, h, base.state.samples_seen, false);

    Plan plan;
    plan.o = resolved;
    plan.grid = run.grid;
    plan.hardware = h;
    if (h.gpu.peak > 0) plan.target = gpu_target;
    for (int stage : {0, 1, run.grid.p - 1})
        if (stage < run.grid.p)
            plan.stages.push_back(measure_stage(resolved, base.state.shape, run.grid, stage,
                                                base.state.samples_seen, plan.target));
    return plan;
}

struct Change { std::string say; std::function<void(Options&)> make; };

// options that save memory, one at a time
inline std::vector<Change> savings_of(const Run& run, const Hardware& h) {
    const Options& o = run.options;
    std::vector<Change> changes;
    for (std::string more : {"light", "full"})
        if (o.recompute != "full" && o.recompute != more && (more != "light" || o.fp8 != "yes"))
            changes.push_back({"--recompute " + more, [=](Options& o) { o.recompute = more; }});
    if (o.sequence_parallel != "yes")
        changes.push_back({"--sequence-parallel yes", [](Options& o) { o.sequence_parallel = "yes"; }});
    if (o.zero != 1) changes.push_back({"--zero 1", [](Options& o) { o.zero = 1; }});
    for (int b = o.micro_batch / 2; b > 0; b /= 2)
        changes.push_back({text("--micro-batch %d", b), [b](Options& o) {
            o.micro_batch = b;
            o.given.insert("micro-batch");
        }});
    for (int t = o.tensor_parallel * 2; t <= h.node; t *= 2)
        changes.push_back({text("--tensor-parallel %d", t), [t](Options& o) { o.tensor_parallel = t; }});
    for (int p : divisors(run.state.shape.L))
        if (p > o.pipeline_parallel)
            changes.push_back(
                {text("--pipeline-parallel %d", p), [p](Options& o) { o.pipeline_parallel = p; }});
    return changes;
}

// "  --recompute full (24.1 GB)": one or two of them, or all that take no more ranks, with which the run fits
inline std::string what_would_fit(const Run& run, const Hardware& h) {
    const Options& o = run.options;
    std::vector<Change> changes = savings_of(run, h);
    std::string out;
    int found = 0;
    auto attempt = [&](const std::string& say, Options with) {
        try {
            Plan plan = plan_with(run, with, h, false);
            if (plan.fits() && found < 8) {
                out += text("\n  %s: %.1f GB", say.c_str(), plan.gpu_bytes() * 1e-9);
                found++;
            }
        } catch (const Error&) {}  // that one is impossible for another reason
    };

    for (auto& c : changes) {
        Options with = o;
        c.make(with);
        attempt(c.say, with);
    }

    for (size_t i = 0; i < changes.size() && !found; i++)
        for (size_t j = i + 1; j < changes.size(); j++) {
            Options with = o;
            changes[i].make(with);
            changes[j].make(with);
            attempt(changes[i].say + " " + changes[j].say, with);
        }

    if (!found) {  // all savings together that take no more ranks
        Options with = o;
        with.moments = "bf16";
        with.master_weights = "no";
        with.micro_batch = 1;
        with.given.insert("micro-batch");
        std::string savings = "--moments bf16 --master-weights no --micro-batch 1";
        attempt(savings, with);
        with.recompute = "full";
        attempt(savings + " --recompute full", with);
    }
    if (found) return "these would fit:" + out;
    return text("one or two savings are not enough: %splan for more ranks or shorter sequences",
                o.plan == "search" ? "" : "--plan search looks for other layouts; or ");
}

// ---- search ----------------------------------------------------------------------------------------------

// the share of tensor-parallel calls in a middle stage's micro-batch
inline double tensor_share(const Plan& plan) {
    const StageRun& run = plan.runs[plan.grid.p > 2 ? 1 : 0];
    int micro_batches = plan.o.batch / plan.grid.d / plan.o.micro_batch;
    WhichMicroBatch which = which_micro_batch(micro_batches / 2, micro_batches);
    double calls = 0, all = 0;
    for (auto* passes : {&run.forward, &run.backward})
        for (auto& chunk : *passes) {
            calls += chunk.at(which).tensor_seconds;
            all += chunk.at(which).seconds();
        }
    return calls / all;
}

// possible layouts of `world` ranks; options that were given stay as they are
inline std::vector<Options> layouts(const Run& run, const Hardware& h) {
    const Options& o = run.options;
    int world = run.grid.world.size, L = run.state.shape.L;
    auto one_or = [&](const char* name, int value, std::vector<int> all) {
        return o.has(name) ? std::vector<int>{value} : all;
    };
    std::vector<std::string> recompute = {"none", "light", "full"};
    if (o.fp8 == "yes") recompute = {"none", "full"};  // with --fp8, light is the same as none
    if (o.has("recompute")) recompute = {o.recompute};

    std::vector<int> tensor, pipeline = divisors(L);
    for (int t : divisors(o.heads)) if (t <= h.node) tensor.push_back(t);

    std::vector<Options> all;
    for (int t : one_or("tensor-parallel", o.tensor_parallel, tensor))
        for (int p : one_or("pipeline-parallel", o.pipeline_parallel, pipeline)) {
            if (world % (t * p) || o.batch % (world / (t * p))) continue;
            for (int v :
                 one_or("pipeline-chunks", o.pipeline_chunks, p > 1 ? divisors(L / p) : std::vector<int>{1}))
                for (int b : one_or("micro-batch", o.micro_batch, divisors(o.batch / (world / (t * p)))))
                    for (auto& r : recompute) {
                        if ((long)b * o.sequence > most_rows) continue;
                        Options with = o;
                        with.tensor_parallel = t;
                        with.pipeline_parallel = p;
                        with.pipeline_chunks = v;
                        with.micro_batch = b;
                        with.recompute = r;
                        with.given.insert("micro-batch");
                        all.push_back(with);
                    }
        }
    return all;
}

// quoted where a shell needs it
inline std::string quoted(const std::string& word) {
    const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
    if (!word.empty() && word.find_first_not_of(plain) == word.npos) return word;
    std::string out = "'";
    for (char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
    return out + "'";
}

// the command that starts a run with a plan's layout: the options given, less those that ask for a plan
inline std::string command_of(const Plan& plan) {
    const std::set<std::string> layout = {"tensor-parallel", "pipeline-parallel", "pipeline-chunks",
                                          "micro-batch", "recompute"},
                                asks = {"plan", "plan-json", "hardware", "world-size", "network-rate",
                                        "gemm-efficiency", "file-system-rate", "verbose", "config"};
    std::string out = text("mpirun -n %d ./train_gpt", plan.world());
    for (auto& option : option_table) {
        std::string name = option.name;
        if (!layout.count(name) && (!plan.o.has(option.name) || asks.count(name))) continue;
        out += " --" + name;
        if (auto* list = std::get_if<std::vector<std::string> Options::*>(&option.field))
            for (auto& word : plan.o.*(*list)) out += " " + quoted(word);
        else out += " " + quoted(print_value(plan.o, option));
    }
    return out + (plan.o.train.empty() ? " --train …" : "");
}

inline std::string search(const Run& run, const Hardware& h) {
    if (h.gpu.peak == 0) fail("--plan search: --hardware %s has no times: name another machine", h.name);
    std::vector<Options> all = layouts(run, h);
    std::vector<Plan> good;
    int impossible = 0, large = 0;
    std::string why;  // the first

    for (auto& o : all) {
        try {
            if (!plan_with(run, o, h, false).fits()) {
                large++;
                continue;
            }
            good.push_back(plan_with(run, o, h, true));
        } catch (const Error& e) {
            if (!impossible++) why = e.what();
        }
    }

    std::ranges::stable_sort(good, {}, [](auto& plan) { return plan.step().seconds; });

    std::string out = text(
        "search          %s of %s for --batch %d: %d impossible, %d do not fit in %.0f GB, "
        "%zu simulated\n", counted((long)all.size(), "layout").c_str(),
        counted(run.grid.world.size, "rank").c_str(), run.options.batch, impossible, large,
        h.gpu.memory * 1e-9, good.size());
    if (all.empty())
        return out +
            text("  no tensor x pipeline for %d heads and %d layers divides %d ranks into a number of "
                 "replicas that divides --batch %d: choose other ranks or another batch\n", run.options.heads,
                 run.state.shape.L, run.grid.world.size, run.options.batch);

    if (!run.options.has("batch"))
        out += text("  note: --batch was not given; larger batches favour other layouts\n");
    if (impossible) out += text("  impossible, the first: %s\n", why.c_str());
    if (good.empty() && large) fail("%s  none fits; %s", out.c_str(), what_would_fit(run, h).c_str());
    if (good.empty()) return out;
    out +=
        "  tensor  data  pipeline  chunks  micro-batch  recompute        s  TFLOP/s    MFU     GB    idle  "
        "tensor calls\n";

    for (size_t i = 0; i < good.size() && i < 10; i++) {
        const Plan& p = good[i];
        double s = p.step().seconds, gpus = p.world();
        out += text("  %6d %5d %9d %7d %12d %10s %8.2f %8.1f %5.1f%% %6.1f %6.1f%% %8.1f%%\n", p.grid.t,
                    p.grid.d, p.grid.p, p.o.pipeline_chunks, p.o.micro_batch, p.o.recompute.c_str(), s,
                    model_flops(p.shape, p.o.batch, p.o.recompute == "full") / s / gpus * 1e-12,
                    100 * model_flops(p.shape, p.o.batch, false) / s / gpus / h.gpu.peak,
                    p.gpu_bytes() * 1e-9, 100 * p.step().idle(), 100 * tensor_share(p));
    }
    return out +
           "  idle: the mean stage's share of the step; tensor calls: of a middle stage's micro-batch\n"
           "the fastest     " + command_of(good[0]) + "\n";
}
