// stage_plan.h   what a stage will hold and send, before anything is allocated: memory, traffic, FLOPs
//   From the tables that training executes (model/setup.h, params.h, comm/schedule.h) and from cost.h.
#pragma once
#include <map>
#include <numeric>
#include <string>
#include <vector>
#include "../../comm/schedule.h"
#include "../model/setup.h"
#include "cost.h"

// of all batches of a ramp at most some 64, evenly chosen, with the first and the last
inline std::vector<int> representative_batches(const Options& o, uint64_t samples) {
    std::vector<int> all = batches_from(o, samples), some;
    size_t step = (all.size() + 63) / 64;
    for (size_t i = 0; i + 1 < all.size(); i += step) some.push_back(all[i]);
    some.push_back(all.back());
    return some;
}

// ---- traffic ---------------------------------------------------------------------------------------------

using TrafficTable = std::map<std::string, comm::Traffic>;  // by the group's name

inline void add_call(TrafficTable& table, const char* group, comm::Collective kind, long ranks, double bytes,
                     long times = 1) {
    comm::Traffic& t = table[group];
    t.calls += times;
    t.sent += times * comm::sent_bytes(kind, ranks, (long)bytes);
}

// what a rank sends in a step, and its GEMMs: every call of block.h, vocabulary.h, pipeline.h, stage.h
// and optimizer.h, counted as comm does
struct StepWork {
    TrafficTable traffic;
    int64_t linear_flops = 0;
    double gemm_flops = 0;  // with those of attention
};

// of a message between stages, as pipeline.h cuts it: when it is gathered, and what one rank sends of it
struct MessageBytes { double whole, own; };
inline MessageBytes message_bytes(const Model& m) {
    double whole = (double)m.tp.rows(m.setup.B * m.shape.T) * m.shape.C * (double)m.setup.precision.x;
    return {whole, m.tp.sequence_parallel ? whole : whole / m.grid.t};
}

inline void add_messages(StepWork& out, const Model& m, const Schedule& schedule) {
    auto [whole, own] = message_bytes(m);
    for (auto& i : schedule.list) {
        if (i.computes()) continue;
        bool forward = i.kind == Instruction::SendForward || i.kind == Instruction::ReceiveForward;
        add_call(out.traffic, forward ? "forward" : "backward", comm::Collective::Message, 2,
                 i.sends() ? own : 0);
        if (!i.sends() && !m.tp.sequence_parallel && m.grid.t > 1)
            add_call(out.traffic, "tensor", comm::Collective::AllGather, m.grid.t, whole);
    }
}

inline StepWork step_work(const Model& m, const Schedule& schedule) {
    StepWork out;
    const Grid& g = m.grid;
    double x = (double)m.setup.precision.x, r = (double)m.setup.precision.real;
    int micro_batches = schedule.shape.micro_batches;
    for_each_work(m, [&](const Work& work) {
        if (work.kind == Work::Linear) out.linear_flops += micro_batches * (int64_t)work.gemm.flops();
        out.gemm_flops += micro_batches * work.gemm.flops();
        if (work.kind == Work::Call)
            add_call(out.traffic, "tensor", work.call, g.t, work.bytes, micro_batches);
    });
    add_messages(out, m, schedule);
    for (auto& b : m.table.buckets) {
        if (g.d == 1) break;
        bool owned = m.table.layout.optimizer_shards > 1;
        add_call(out.traffic, "data", owned ? comm::Collective::ReduceScatter : comm::Collective::AllReduce,
                 g.d, (double)b.elements * r);
        if (owned)
            add_call(out.traffic, "data", comm::Collective::AllGather, g.d, (double)b.elements * x);
    }
    for (auto& p : m.table.list)
        if (m.tp.sequence_parallel && !p.split)
            add_call(out.traffic, "tensor", comm::Collective::AllReduce, g.t, (double)p.size * r);
    if (g.holds_tied()) {
        const Bucket& b = m.table.buckets[m.table.list[m.table.wte].bucket];
        add_call(out.traffic, "tied embedding", comm::Collective::AllReduce, 2,
                 (double)(b.elements / m.table.layout.optimizer_shards) * r);
    }
    if (g.t * g.d * g.p > 1)
        add_call(out.traffic, "world", comm::Collective::AllReduce, g.t * g.d * g.p,
                 8.0 * (m.table.bucket_ids + 1));
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
    model->set_up_memory(false);
    return model;
}

inline StagePlan plan_stage(const Options& o, const ModelShape& shape, const Grid& place, int stage,
                            uint64_t samples, const Target& target = {}) {
    Schedules schedules = make_schedules(o, place, stage, samples);
    auto model = dry_model(o, shape, place, stage, schedules, target);
    Optimizer optimizer(*model);
    optimizer.set_up_memory(*model, false);
    StagePlan out = {stage, 0, model->arenas, {}};
    out.memory.push_back(optimizer.arena);
    for (auto& p : model->table.list) out.parameters += p.size;
    for (auto& [batch, schedule] : schedules) out.work[batch] = step_work(*model, schedule);
    return out;
}

// a rank's bytes on the fullest stage: the first, which has most micro-batches in flight, one in the
// middle, or the last
inline double most_stage_bytes(const Options& o, const ModelShape& shape, const Grid& place, uint64_t samples,
                               const Target& target) {
    double most = 0;
    for (int stage : {0, place.p / 2, place.p - 1})
        most = std::max(most, (double)plan_stage(o, shape, place, stage, samples, target).bytes());
    return most;
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
