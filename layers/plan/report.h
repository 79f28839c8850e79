// report.h   what --plan says of a plan, as text and as JSON
#pragma once
#include "../../data/json.h"
#include "../run/metrics.h"
#include "plan.h"
#include "schedule_checker.h"

// ---- proofs ----------------------------------------------------------------------------------------------

// ranks and places are one to one; so the groups, which vary one coordinate, partition the world
inline void prove_grid(const Plan& plan) {
    const Grid& g = plan.grid;
    std::vector<int> seen(plan.world(), 0);
    Grid at = g;
    for (int rank = 0; rank < plan.world(); rank++) {
        at.set_rank(rank);
        bool inside = at.tensor < g.t && at.data < g.d && at.stage < g.p;
        if (!inside || at.rank_of(at.tensor, at.data, at.stage) != rank)
            fail("rank %d is misplaced: this is a bug", rank);
        seen[at.tensor + g.t * (at.data + g.d * at.stage)]++;
    }
    for (int place = 0; place < plan.world(); place++)
        if (seen[place] != 1) fail("place %d has %d ranks: this is a bug", place, seen[place]);
}

// checks all stages of each batch's schedule against one another; returns how many
inline int prove_schedules(const Plan& plan) {
    int proved = 0;
    for (int batch : representative_batches(plan.o, plan.samples)) {
        std::vector<Schedule> all = all_stages(pipeline_shape(plan.o, plan.grid.d, batch));
        std::string wrong = ScheduleChecker(all).check();
        if (!wrong.empty()) fail("the schedule of batch %d: %s", batch, wrong.c_str());
        proved += (int)all.size();
    }
    return proved;
}

// ---- lists -----------------------------------------------------------------------------------------------

inline std::string grouped(long n) {  // 529,600,819,200
    std::string digits = std::to_string(n), out;
    for (size_t i = 0; i < digits.size(); i++) {
        if (i && (digits.size() - i) % 3 == 0) out += ',';
        out += digits[i];
    }
    return out;
}

inline std::vector<int> divisors(int n) {
    std::vector<int> all;
    for (long i = 1; i * i <= n; i++) {
        if (n % i) continue;
        all.push_back((int)i);
        if (i * i < n) all.push_back((int)(n / i));
    }
    std::sort(all.begin(), all.end());
    return all;
}

inline std::string memory_report(const Plan& plan) {
    std::string out = "parameters of a rank";
    std::vector<StagePlan> shown;
    for (auto& s : plan.stages)
        if (plan.grid.p <= 4 || s.stage <= 1 || s.stage == plan.grid.p - 1) shown.push_back(s);
    for (auto& s : shown)
        out += text("%s stage %d: %s", &s == &shown[0] ? "" : ";", s.stage, grouped(s.parameters).c_str());

    out += "\n" + memory_table(shown);
    int communicators = plan.communicators();
    double has = plan.hardware.gpu.memory * 1e-9;
    if (has > 0 && communicators)
        out += text("  NCCL takes about %.1f GB for %d communicators (an estimate)\n",
                    plan.communicator_bytes() * 1e-9, communicators);
    if (has > 0)
        out += text("  %.1f of %.0f GB at most: %s\n", plan.gpu_bytes() * 1e-9, has,
                    plan.fits() ? "fits" : "DOES NOT FIT");
    return out;
}

inline std::string traffic_report(const Plan& plan) {
    std::vector<const StagePlan*> shown;
    std::set<std::string> groups;
    for (auto& s : plan.stages)
        if (plan.grid.p <= 4 || s.stage <= 1 || s.stage == plan.grid.p - 1) shown.push_back(&s);
    for (auto* s : shown)
        for (auto& [group, t] : s->work.at(plan.o.batch).traffic) groups.insert(group);
    if (groups.empty()) return "";

    std::string out = "a rank sends in a step, GB";
    for (auto* s : shown) out += text("%12s", text("stage %d", s->stage).c_str());
    for (auto& group : groups) {
        out += text("\n  %-24s", group.c_str());
        for (auto* s : shown) {
            auto& traffic = s->work.at(plan.o.batch).traffic;
            auto found = traffic.find(group);
            out += text("%12.4g", found == traffic.end() ? 0 : (double)found->second.sent * 1e-9);
        }
    }

    double message = 2.0 * plan.o.micro_batch * plan.shape.T * plan.shape.C;
    if (plan.target.precision.x != 2) message *= (double)plan.target.precision.x / 2;
    if (plan.grid.p > 1)
        out += text("\n  a message between stages: %.4g MB, cut over %d tensor-parallel ranks",
                    message * 1e-6, plan.grid.t);
    return out + "\n";
}

// ---- the recipe ------------------------------------------------------------------------------------------

struct Recipe { long steps = 0, ramp = 0; double tokens = 0, seconds = 0; };

inline Recipe recipe_of(const Plan& plan) {
    Recipe r;
    for (auto& [batch, count] : plan.counts) {
        r.steps += count;
        r.tokens += (double)count * batch * plan.shape.T;
        if (batch < plan.o.batch) r.ramp += count;
        if (plan.timed()) r.seconds += (double)count * plan.seconds(batch);
    }
    return r;
}

inline double checkpoint_bytes(const Plan& plan) {  // master, m and v of the unpadded model
    const ModelShape& m = plan.shape;
    double count = (double)parameter_table(m).count - (double)(m.Vp - m.V) * m.C;
    return 3 * count * (double)plan.target.precision.real;
}

// of the rank that writes most; the last stage's copy of the token embedding is not written
inline double most_written(const Plan& plan) {
    long most = 0, tied = (long)plan.shape.Vp / plan.grid.t * plan.shape.C;
    for (auto& s : plan.stages)
        most = std::max(most, s.parameters - (s.stage > 0 && s.stage == plan.grid.p - 1 ? tied : 0));
    return 3.0 * (double)most / plan.grid.d * (double)plan.target.precision.real;
}

inline double bubble(const Plan& plan) {  // relative to the ideal time, by the formula
    return (plan.grid.p - 1) /
        ((double)plan.o.batch / plan.grid.d / plan.o.micro_batch * plan.o.pipeline_chunks);
}

inline std::string time_report(const Plan& plan) {
    const ModelShape& m = plan.shape;
    const Simulation& step = plan.step();
    bool full = plan.o.recompute == "full";
    double gpus = plan.world(), done = model_flops(m, plan.o.batch, full);
    double model = model_flops(m, plan.o.batch, false), s = step.seconds, p = plan.grid.p;
    double half = model_flops(m, plan.o.batch, false) - 6.0 * plan.o.batch * m.T * (double)m.L * m.C * m.T;

    std::string out = text(
        "step            %.4g s on %s; %.4g TFLOP/s on each GPU, MFU %.1f %% (%.1f %% with half of "
        "the scores, as a run prints)\n",
        s, plan.hardware.name, done / s / gpus * 1e-12, 100 * model / s / gpus / plan.hardware.gpu.peak,
        100 * half / s / gpus / plan.hardware.gpu.peak);

    double gemms = 0;
    for (auto& stage : plan.stages) gemms += stage.work.at(plan.o.batch).gemm_flops * gpus / p;
    out += text(
        "  FLOPs         model %.4g, with recomputation %.4g (arXiv 2104.04473: all scores of attention); "
        "GEMMs of this program %.4g\n",
        model, done, gemms);

    out += text("  bubble        %.1f %% of the ideal time by the formula; the average stage is idle for "
                "%.1f %% of the step\n", 100 * bubble(plan), 100 * step.idle());

    Recipe r = recipe_of(plan);
    out += "recipe          " + counted(r.steps, "step");
    if (r.ramp) out += text(", %ld of them in the ramp", r.ramp);
    return out + text("; %.4ge9 tokens, %.3g days, %.4g GPU-hours\n", r.tokens * 1e-9, r.seconds / 86400,
                      r.seconds / 3600 * gpus);
}

inline std::string plan_text(const Plan& plan) {
    prove_grid(plan);
    int schedules = prove_schedules(plan);
    const ModelShape& m = plan.shape;
    std::string out = text(
        "model           %s parameters: %s, hidden %d, %s, sequence %d, "
        "vocabulary %d padded to %d\n",
        grouped(parameter_table(m).count).c_str(), counted(m.L, "layer").c_str(), m.C,
        counted(m.NH, "head").c_str(), m.T, m.V, m.Vp);

    out += print_grid(plan.grid) + memory_report(plan);
    out += text("micro-batch     %d: %d a step on each replica\n", plan.o.micro_batch,
                plan.o.batch / plan.grid.d / plan.o.micro_batch);
    out += traffic_report(plan);
    if (plan.timed()) {
        out += time_report(plan);
    } else {
        Recipe r = recipe_of(plan);
        out += text(
            "recipe          %s, %ld of them in the ramp; no times: --hardware names no machine that is "
            "known\n",
            counted(r.steps, "step").c_str(), r.ramp);
    }

    double saved = checkpoint_bytes(plan) * 1e-9, rate = plan.o.file_system_rate;
    out += text("checkpoint      %.4g GB; a rank writes up to %.3g GB, for which its host has as much "
                "memory pinned from the start\n", saved, most_written(plan) * 1e-9);
    if (rate > 0)
        out += text("  at %.4g GB/s  written in %.3g s beside the steps, read in %.3g s at a resume\n", rate,
                    saved / rate, saved / rate);

    return out + text(
                     "proved          %s in one place each; %s: all messages meet, none waits for ever\n",
                     counted(plan.world(), "rank").c_str(), counted(schedules, "schedule").c_str());
}

// ---- JSON ------------------------------------------------------------------------------------------------

inline std::string stage_json(const Plan& plan, const StagePlan& s) {
    std::string out = text("{\"stage\": %d, \"parameters\": %ld, \"memory\": {", s.stage, s.parameters);
    for (auto& each : s.memory)
        out += text("%s%s: %zu", &each == &s.memory[0] ? "" : ", ", json_quote(each.name).c_str(),
                    each.bytes);
    out += "}, \"sent\": {";
    bool first = true;

    const StepWork& work = s.work.at(plan.o.batch);
    for (auto& [group, t] : work.traffic) {
        out += text("%s%s: {\"calls\": %ld, \"bytes\": %ld}", first ? "" : ", ", json_quote(group).c_str(),
                    t.calls, t.sent);
        first = false;
    }

    out += text("}, \"linear_flops\": %.17g, \"operations\": {", work.linear_flops);
    Schedule schedule = make_schedule(s.stage, pipeline_shape(plan.o, plan.grid.d, plan.o.batch));
    for (auto& [name, o] : s.run.operations(schedule))
        out += text("%s%s: {\"calls\": %ld, \"flops\": %.17g, \"bytes\": %.17g}",
                    out.back() == '{' ? "" : ", ", json_quote(name).c_str(), o.calls, o.flops, o.bytes);
    return out + "}}";
}

inline std::string plan_json(const Plan& plan) {
    const ModelShape& m = plan.shape;
    Recipe r = recipe_of(plan);
    prove_grid(plan);
    prove_schedules(plan);
    int micro_batches = plan.o.batch / plan.grid.d / plan.o.micro_batch;
    std::string out = text(
        "{\"parameters\": %ld, \"layers\": %d, \"hidden\": %d, \"heads\": %d, \"sequence\": %d, "
        "\"vocabulary\": %d, \"padded_vocabulary\": %d,\n",
        parameter_table(m).count, m.L, m.C, m.NH, m.T, m.V, m.Vp);
    out += text(
        " \"world\": %d, \"tensor\": %d, \"data\": %d, \"pipeline\": %d, \"batch\": %d, \"micro_batch\": %d, "
        "\"micro_batches\": %d,\n",
        plan.world(), plan.grid.t, plan.grid.d, plan.grid.p, plan.o.batch, plan.o.micro_batch, micro_batches);

    const Options& o = plan.o;
    out += text(
        " \"pipeline_chunks\": %d, \"pipeline_group\": %d, \"sequence_parallel\": %s, \"recompute\": %s, "
        "\"zero\": %d, \"attention\": %s, \"fp8\": %s, \"fp8_lm_head\": %s, \"loss_chunk\": %d,\n",
        o.pipeline_chunks, pipeline_shape(o, plan.grid.d, o.batch).interleave_group,
        o.sequence_parallel == "yes" ? "true" : "false", json_quote(o.recompute).c_str(), o.zero,
        uses_flash(o, plan.target) ? "\"flash\"" : "\"materialised\"", o.fp8 == "yes" ? "true" : "false",
        o.fp8_lm_head == "yes" ? "true" : "false", o.loss_chunk);
    out += text(" \"precision\": %s, \"hardware\": %s, \"memory_limit\": %.0f, \"fits\": %s,\n",
                json_quote(plan.target.precision.name).c_str(), json_quote(plan.hardware.name).c_str(),
                plan.hardware.gpu.memory, plan.fits() ? "true" : "false");
    out += text(" \"bubble\": %.10g,\n \"stages\": [\n", bubble(plan));
    for (auto& s : plan.stages)
        out += "  " + stage_json(plan, s) + (&s == &plan.stages.back() ? "\n" : ",\n");
    out +=
        text(" ],\n \"model_flops\": %.17g, \"hardware_flops\": %.17g,\n",
             model_flops(m, plan.o.batch, false), model_flops(m, plan.o.batch, plan.o.recompute == "full"));

    if (plan.timed()) {
        double s = plan.step().seconds, gpus = plan.world();
        out +=
            text(" \"seconds\": %.10g, \"tflops_per_gpu\": %.10g, \"mfu\": %.10g, \"idle\": %.10g,\n", s,
                 model_flops(m, plan.o.batch, plan.o.recompute == "full") / s / gpus * 1e-12,
                 model_flops(m, plan.o.batch, false) / s / gpus / plan.hardware.gpu.peak, plan.step().idle());
        out += text(" \"days\": %.10g, \"gpu_hours\": %.10g,\n", r.seconds / 86400, r.seconds / 3600 * gpus);
    }

    return out +
           text(" \"steps\": %ld, \"ramp_steps\": %ld, \"tokens\": %.17g, \"checkpoint_bytes\": %.17g}\n",
                r.steps, r.ramp, r.tokens, checkpoint_bytes(plan));
}

inline std::string plan_title(const Plan& plan) {
    return text(
        "planned: %d layers, hidden %d, %d x %d x %d ranks (tensor x data x pipeline), batch %d, %s, %.4g s",
        plan.shape.L, plan.shape.C, plan.grid.t, plan.grid.d, plan.grid.p, plan.o.batch, plan.hardware.name,
        plan.timed() ? plan.step().seconds : 0);
}
