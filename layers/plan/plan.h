// plan.h   a run, planned for any number of ranks on any machine: memory, traffic, FLOPs and time
//   Everything comes from the tables that training executes (stage_plan.h); times from simulate.h.
#pragma once
#include <memory>
#include "stage_plan.h"
#include "simulate.h"

struct Plan {
    Options o;                      // resolved
    ModelShape shape;
    Grid grid;                      // of rank 0; groups by their sizes
    Hardware hardware;
    Target target;
    uint64_t samples = 0;           // consumed when the run begins
    std::vector<StagePlan> stages;
    StepTimes times;
    std::map<int, Simulation> steps;   // by batch; none where the hardware is unknown
    std::map<int, long> counts;        // steps of each batch in the recipe
    int world() const { return grid.t * grid.d * grid.p; }
    const Simulation& step() const { return steps.at(o.batch); }
    double seconds(int batch) const {  // between two that were simulated: on the line
        auto above = steps.lower_bound(batch);
        if (above->first == batch || above == steps.begin()) return above->second.seconds;
        auto below = std::prev(above);
        double share = (double)(batch - below->first) / (above->first - below->first);
        return below->second.seconds + share * (above->second.seconds - below->second.seconds);
    }
    bool timed() const { return hardware.gpu.peak > 0; }
    size_t most_bytes() const {
        size_t most = 0;
        for (auto& s : stages) most = std::max(most, s.bytes());
        return most;
    }
    bool fits() const { return hardware.gpu.memory == 0 || (double)most_bytes() <= hardware.gpu.memory; }
};

// FLOPs of a step: the model's, counting all scores of attention (half of them would do); with --recompute
// full also what the hardware does (arXiv 2104.04473, equation 3)
inline double model_flops(const ModelShape& m, double batch, bool recompute) {
    double L = m.L, C = m.C, T = m.T, Vp = m.Vp;
    double logits = Vp / ((recompute ? 16 : 12) * L * C);
    return (recompute ? 96 : 72) * batch * T * L * C * C * (1 + T / (6 * C) + logits);
}

// ---- times -----------------------------------------------------------------------------------------------

inline TimedPiece timed(const Hardware& h, const Piece& piece, const Grid& g) {
    TimedPiece out = {0, piece.buckets};
    for (auto& work : piece.works) out.seconds += seconds_of(h, work, g.t, tensor_nodes(h, g.t));
    return out;
}

// optimizer.h, bucket by bucket
inline void time_buckets(StageTimes& out, const Hardware& h, const Model& m, const Optimizer& optimizer) {
    const Grid& g = m.grid;
    double x = (double)m.setup.precision.x, r = (double)m.setup.precision.real;
    int nodes = nodes_of(h, g.rank_of(0, 0, m.grid.stage), g.t, g.d);
    bool owned = m.table.layout.optimizer_shards > 1;
    out.update.assign(m.table.buckets.size(), 0);
    for (auto& b : m.table.buckets) {
        double elements = (double)b.elements;
        auto reduction = owned ? comm::Collective::ReduceScatter : comm::Collective::AllReduce;
        out.reduce.push_back(call_seconds(h, reduction, g.d, nodes, elements * r));
        out.gather.push_back(owned ? call_seconds(h, comm::Collective::AllGather, g.d, nodes, elements * x)
                                   : 0);
    }
    for (auto& piece : optimizer.partitions) {
        double n = (double)piece.n, each = optimizer.update_bytes(m.setup.precision);
        out.update[m.table.list[piece.parameter].bucket] += memory_seconds(h, n * each);
        out.norm += memory_seconds(h, n * r);
    }
    // the next forward's first micro-batch rounds what was updated
    for (int layer = 0; m.setup.fp8 && layer < m.setup.chunks * m.chunk_layers(); layer++)
        for (BlockTensor matrix : {QKV_W, OUT_W, UP_W, DOWN_W}) {
            const Parameter& p = m.table.block(layer, matrix);
            out.update[p.bucket] += memory_seconds(h, CostWriter(m).fp8_bytes(p.size, 2));
        }
    for (auto& p : m.table.list)
        if (m.tp.sequence_parallel && !p.split)
            out.sums += call_seconds(h, comm::Collective::AllReduce, g.t, tensor_nodes(h, g.t),
                                     (double)p.size * r);
    if (m.sums_wte_apart()) out.sums += memory_seconds(h, 3 * r * (double)m.table.list[m.table.wte].size);
}

// own: bytes of a message that one of the tensor-parallel ranks sends
inline void time_messages(StageTimes& out, const Hardware& h, const Grid& g, int stage, double own) {
    auto send = [&](int to) {
        int a = g.rank_of(0, 0, stage), b = g.rank_of(0, 0, (to + g.p) % g.p);
        return call_seconds(h, comm::Collective::Message, 2, 1 + (a / h.node != b / h.node), own);
    };
    out.send_forward = send(stage + 1);
    out.send_backward = send(stage - 1);
}

inline StageTimes stage_times(const Hardware& h, Model& m) {
    StageTimes out;
    const Grid& g = m.grid;
    for (int chunk = 0; chunk < m.setup.chunks; chunk++) {
        out.forward.emplace_back();
        out.backward.emplace_back();
        for (auto& piece : forward_pieces(m, chunk)) out.forward.back().push_back(timed(h, piece, g));
        for (auto& piece : backward_pieces(m, chunk)) out.backward.back().push_back(timed(h, piece, g));
    }
    time_buckets(out, h, m, Optimizer(m));
    MessageBytes bytes = message_bytes(m);
    if (!m.tp.sequence_parallel)
        out.whole_message =
            call_seconds(h, comm::Collective::AllGather, g.t, tensor_nodes(h, g.t), bytes.whole);
    time_messages(out, h, g, g.stage, bytes.own);
    return out;
}

inline void time_plan(Plan& plan) {
    const Hardware& h = plan.hardware;
    const Grid& g = plan.grid;
    Schedules none;  // times of a micro-batch do not depend on how many there are
    std::unique_ptr<Model> model;
    for (int stage = 0; stage < g.p; stage++) {
        if (stage > 1 && stage < g.p - 1) {  // as its neighbour, but for where it sends
            plan.times.stages.push_back(plan.times.stages[1]);
            time_messages(plan.times.stages.back(), h, g, stage, message_bytes(*model).own);
            continue;
        }
        model = dry_model(plan.o, plan.shape, g, stage, none, plan.target);
        if (g.p == 1) model->setup.accumulates = plan.o.batch / g.d > plan.o.micro_batch;
        plan.times.stages.push_back(stage_times(h, *model));
    }
    if (g.p > 1) {
        int nodes = 1 + (g.rank_of(0, 0, g.p - 1) / h.node != 0);
        const Bucket& b = model->table.buckets[model->table.list[model->table.wte].bucket];
        plan.times.tied = call_seconds(
            h, comm::Collective::AllReduce, 2, nodes,
            (double)(b.elements / model->table.layout.optimizer_shards) * (double)plan.target.precision.real);
    }
    // small sums over the world go up and down a tree; so do the losses, and the host looks at both
    double hops = 2 * std::log2(std::max(2, plan.world())) * hop_outside;
    plan.times.world = 2 * (call_base + hops) + 2 * launch_seconds;
}

inline Simulation simulate(const Plan& plan, int batch) {
    PipelineShape s = pipeline_shape(plan.o, plan.grid.d, batch);
    return Simulator(all_stages(s), plan.times).run();
}

// ---- the whole -------------------------------------------------------------------------------------------

// how many steps of each batch are still to come
inline std::map<int, long> count_steps(const Options& o, uint64_t samples, long first, long last) {
    std::map<int, long> counts;
    for (long step = first; step < last; step++) {
        int batch = batch_after(o, samples);
        if (batch == o.batch) {
            counts[batch] += last - step;
            break;
        }
        counts[batch]++;
        samples += batch;
    }
    return counts;
}

// options must be resolved. all: each stage, and each batch of the recipe, not only the telling ones
inline Plan make_plan(const Options& o, const ModelShape& shape, const Grid& grid, const Hardware& h,
                      uint64_t samples, bool all) {
    Plan plan;
    plan.o = o;
    plan.shape = shape;
    plan.grid = grid;
    plan.hardware = h;
    plan.samples = samples;
    if (h.gpu.peak > 0) plan.target = gpu_target;
    for (int stage = 0; stage < grid.p; stage++)
        if (all || stage <= 1 || stage == grid.p - 1)
            plan.stages.push_back(plan_stage(o, shape, grid, stage, samples, plan.target));
    if (!plan.timed()) return plan;
    time_plan(plan);
    for (int batch : representative_batches(o, samples))
        if (all || batch == o.batch) plan.steps[batch] = simulate(plan, batch);
    return plan;
}
