// layout.h   what the stages hold and do, before anything is allocated: schedules, set-up, memory, traffic
//   These are the very tables that training executes: train_gpt.cu builds from them, --plan prints them.
#pragma once
#include <map>
#include <numeric>
#include <string>
#include <vector>
#include "../comm/schedule.h"
#include "cost.h"

// how the micro-batches of a step pass through a stage, for each batch that the run has
using Schedules = std::map<int, Schedule>;

// of all batches of a ramp at most some 64, evenly chosen, with the first and the last
inline std::vector<int> telling_batches(const Options& o, uint64_t samples) {
    std::vector<int> all = batches_from(o, samples), some;
    size_t step = (all.size() + 63) / 64;
    for (size_t i = 0; i + 1 < all.size(); i += step) some.push_back(all[i]);
    some.push_back(all.back());
    return some;
}

// m micro-batches, the group as asked for, or what comes nearest to it
inline PipelineShape pipeline_shape(const Options& o, int d, int batch) {
    PipelineShape s = {o.pipeline_parallel, batch / d / o.micro_batch, o.pipeline_chunks, 1};
    if (s.v == 1) s.N = s.m;
    else s.N = o.pipeline_group && (batch == o.batch || legal_group(s.p, s.m, o.pipeline_group))
        ? o.pipeline_group : default_group(s.p, s.m);
    return s;
}

// samples: consumed so far; smaller batches lie behind
inline Schedules make_schedules(const Options& o, const Grid& grid, int stage, uint64_t samples) {
    Schedules all;
    for (int batch : batches_from(o, samples)) {
        PipelineShape s = pipeline_shape(o, grid.d, batch);
        check_pipeline(s);
        all[batch] = make_schedule(stage, s);
    }
    return all;
}

// the build that is planned for; by default this one
struct Target {
    Precision precision = {};
    size_t workspace = dev::gemm_workspace(false);
    bool kernels = HAS_KERNELS;
};
constexpr Target gpu_target = {{"bf16", 2, 4}, cublas_workspace, true};

// kernels do it in bf16 for some head sizes, plain loops always; by itself it is chosen alike on both
inline bool uses_flash(const Options& o, const Target& target) {
    int HS = o.hidden / o.heads;
    bool possible = flash_head_size(HS) && (target.precision.x == 2 || !target.kernels);
    if (o.attention == "flash" && !possible && target.kernels)
        fail(
            "--attention flash with a head size of %d in %s: wants bf16 and a head size of 64, 80, 96, 128 "
            "or "
            "160: choose --attention auto",
            HS, target.precision.name);
    return o.attention == "flash" || (o.attention == "auto" && possible);
}

inline Recompute recompute_of(const Options& o) {
    return o.recompute == "full" ? Recompute::Full
        : o.recompute == "light" ? Recompute::Light
                                 : Recompute::None;
}

// micro-batches of a replica in a round of evaluation: many, so that the pipeline is seldom empty
inline int score_round(int p) { return std::max(64, 8 * p); }

inline Setup setup_of(const Options& o, const Grid& grid, const Schedules& schedules,
                      const Target& target = {}) {
    int v = o.pipeline_chunks, d = grid.d;
    bool flash = uses_flash(o, target);
    if (!o.generate.empty()) {
        int B = o.prompts() ? o.batch : 1;
        return {.B = B,
                .training = false,
                .packs = true,
                .cache = true,
                .outputs = B,
                .chunks = v,
                .slots = v,
                .streams = 0};
    }
    if (o.inference()) {
        Schedule s = make_schedule(grid.stage, {grid.p, score_round(grid.p), v, grid.p, false});
        return {.B = o.micro_batch,
                .training = false,
                .packs = true,
                .scores = true,
                .losses = score_round(grid.p),
                .chunks = v,
                .slots = s.slots,
                .inputs = s.inputs,
                .streams = 0};
    }
    Setup s = {.B = o.micro_batch,
               .sequence = o.sequence_parallel == "yes",
               .samples = o.sample_every > 0,
               .packs = o.sample_every > 0 || !o.evaluate.empty(),
               .scores = !o.evaluate.empty(),
               .recompute = recompute_of(o),
               .flash = flash,
               .fp8 = o.fp8 == "yes",
               .owners = o.zero == 1 ? d : 1,
               .chunks = v,
               .precision = target.precision,
               .workspace = target.workspace};
    s.loss_rows = o.loss_chunk;
    if (!o.validation.empty()) s.losses = (int)((o.evaluate_batches + d - 1) / d);
    for (auto& [batch, schedule] : schedules) {
        s.accumulates |= schedule.shape.m > 1;
        s.losses = std::max(s.losses, schedule.shape.m);
        s.slots = std::max(s.slots, schedule.slots);
        s.inputs = std::max(s.inputs, schedule.inputs);
        s.streams = std::max(s.streams, schedule.gradients);
    }
    return s;
}

// ---- traffic ---------------------------------------------------------------------------------------------

using TrafficTable = std::map<std::string, comm::Traffic>;  // by the group's name

inline void add_call(TrafficTable& table, const char* group, comm::Collective kind, long ranks, double bytes,
                     long times = 1) {
    comm::Traffic& t = table[group];
    t.calls += times;
    t.sent += times * comm::sent_bytes(kind, ranks, (long)bytes);
}

// what a rank sends in a step, and in products: every call of stage.h and optimizer.h, counted as comm does
struct StepWork {
    TrafficTable traffic;
    int64_t linear_flops = 0;
    double product_flops = 0;  // with those of attention
};

// of a message between stages, as stage.h cuts it: when it is gathered, and what one rank sends of it
struct MessageBytes { double whole, own; };
inline MessageBytes message_bytes(const Model& m) {
    double whole = (double)m.ranks.rows(m.setup.B * m.shape.T) * m.shape.C * (double)m.setup.precision.x;
    return {whole, m.ranks.sequence ? whole : whole / m.grid.t};
}

inline void add_messages(StepWork& out, const Model& m, const Schedule& schedule) {
    auto [whole, own] = message_bytes(m);
    for (auto& i : schedule.list) {
        if (i.computes()) continue;
        bool forward = i.kind == Instruction::SendForward || i.kind == Instruction::ReceiveForward;
        add_call(out.traffic, forward ? "forward" : "backward", comm::Collective::Message, 2,
                 i.sends() ? own : 0);
        if (!i.sends() && !m.ranks.sequence && m.grid.t > 1)
            add_call(out.traffic, "tensor", comm::Collective::AllGather, m.grid.t, whole);
    }
}

inline StepWork step_work(const Model& m, const Schedule& schedule) {
    StepWork out;
    const Grid& g = m.grid;
    double x = (double)m.setup.precision.x, r = (double)m.setup.precision.real;
    int micro_batches = schedule.shape.m;
    each_work(m, [&](const Work& work) {
        if (work.kind == Work::Linear) out.linear_flops += micro_batches * (int64_t)work.product.flops();
        out.product_flops += micro_batches * work.product.flops();
        if (work.kind == Work::Call)
            add_call(out.traffic, "tensor", work.call, g.t, work.bytes, micro_batches);
    });
    add_messages(out, m, schedule);
    for (auto& b : m.table.buckets) {
        if (g.d == 1) break;
        bool owned = m.table.layout.d > 1;
        add_call(out.traffic, "data", owned ? comm::Collective::ReduceScatter : comm::Collective::AllReduce,
                 g.d, (double)b.elements * r);
        if (owned)
            add_call(out.traffic, "data", comm::Collective::AllGather, g.d, (double)b.elements * x);
    }
    for (auto& p : m.table.list)
        if (m.ranks.sequence && !p.split)
            add_call(out.traffic, "tensor", comm::Collective::AllReduce, g.t, (double)p.size * r);
    if (g.holds_tied()) {
        const Bucket& b = m.table.buckets[m.table.list[m.table.wte].bucket];
        add_call(out.traffic, "tied embedding", comm::Collective::AllReduce, 2,
                 (double)(b.elements / m.table.layout.d) * r);
    }
    if (g.t * g.d * g.p > 1)
        add_call(out.traffic, "world", comm::Collective::AllReduce, g.t * g.d * g.p, 8.0 * m.table.numbers);
    return out;
}

// ---- a stage, measured -----------------------------------------------------------------------------------

struct StagePlan {
    int stage;
    long parameters = 0;            // of a rank, padding of the vocabulary included
    std::vector<Arena> memory;
    std::map<int, StepWork> work;   // of a rank in a step, by batch
    size_t bytes() const {
        size_t sum = 0;
        for (auto& arena : memory) sum += arena.used;
        return sum;
    }
};

// a model that only measures: without memory, groups or a device
inline std::unique_ptr<Model> dry_model(const Options& o, const ModelShape& shape, Grid place, int stage,
                                        const Schedules& schedules, const Target& target) {
    place.stage = stage;
    auto model = std::make_unique<Model>(shape, place, setup_of(o, place, schedules, target));
    model->memory(false);
    return model;
}

inline StagePlan plan_stage(const Options& o, const ModelShape& shape, const Grid& place, int stage,
                            uint64_t samples, const Target& target = {}) {
    Schedules schedules = make_schedules(o, place, stage, samples);
    auto model = dry_model(o, shape, place, stage, schedules, target);
    Optimizer optimizer(*model);
    optimizer.memory(*model, false);
    StagePlan out = {stage, 0, model->arenas, {}};
    out.memory.push_back(optimizer.arena);
    for (auto& p : model->table.list) out.parameters += p.size;
    for (auto& [batch, schedule] : schedules) out.work[batch] = step_work(*model, schedule);
    return out;
}

// a rank's bytes on the fullest stage: the first, which has most micro-batches in flight, or the last
inline double most_stage_bytes(const Options& o, const ModelShape& shape, const Grid& place, uint64_t samples,
                               const Target& target) {
    double most = 0;
    for (int stage : {0, place.p / 2, place.p - 1})
        most = std::max(most, (double)plan_stage(o, shape, place, stage, samples, target).bytes());
    return most;
}

// what the shares of a replica, in all batches that are still to come, have in common: micro-batches divide it
inline int common_share(const Options& o, uint64_t samples, int d) {
    int common = 0;
    for (int batch : batches_from(o, samples)) common = std::gcd(common, batch / d);
    return common;
}

// a column for each of the stages
inline std::string memory_table(const std::vector<StagePlan>& stages) {
    bool alone = stages.size() == 1;
    int digits = stages[0].bytes() < 10e6 ? 3 : 1;
    std::string out = text("memory, MB     "), all = text("\n  %-13s", "in all");
    for (auto& s : stages) {
        out += text("%12s", alone ? "a rank" : text("stage %d", s.stage).c_str());
        all += text("%12.*f", digits, (double)s.bytes() * 1e-6);
    }
    for (size_t i = 0; i < stages[0].memory.size(); i++) {
        out += text("\n  %-13s", stages[0].memory[i].name);
        for (auto& s : stages) out += text("%12.*f", digits, (double)s.memory[i].used * 1e-6);
    }
    return out + all + "\n";
}
