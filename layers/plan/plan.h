// plan.h   a run, planned for any number of ranks on any machine: memory, traffic, FLOPs and time
//   From the code that training executes (dry_run.h) and its tables (stage_plan.h); times from simulate.h.
#pragma once
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
    std::vector<StageRun> runs;        // by stage; empty if the hardware is unknown
    std::map<int, Simulation> steps;   // by batch; empty if the hardware is unknown
    std::map<int, long> counts;        // steps of each batch in the recipe
    int world() const { return grid.t * grid.d * grid.p; }
    const Simulation& step() const { return steps.at(o.batch); }
    double seconds(int batch) const {  // interpolated between the batches that were simulated
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

    int communicators() const { return most_communicators(grid, o.pipeline_chunks > 1); }
    // of a GPU's memory, with an estimate of what NCCL takes
    double gpu_bytes() const { return (double)most_bytes() + communicator_bytes(); }
    double communicator_bytes() const { return ::communicator_bytes(grid, o.pipeline_chunks > 1); }
    bool fits() const { return hardware.gpu.memory == 0 || gpu_bytes() <= hardware.gpu.memory; }
};

// FLOPs of a step: the model's, counting all scores of attention, though the causal half would do; with
// `recompute`, the hardware's under --recompute full, which repeats the blocks' forward (arXiv 2104.04473,
// equation 3). --recompute light adds none
inline double model_flops(const ModelShape& m, double batch, bool recompute) {
    double L = m.L, C = m.C, T = m.T, Vp = m.Vp;
    double logits = Vp / ((recompute ? 16 : 12) * L * C);
    return (recompute ? 96 : 72) * batch * T * L * C * C * (1 + T / (6 * C) + logits);
}

// ---- times -----------------------------------------------------------------------------------------------

// the ranks' reports at the end of a step, and the host's reading of them and of the norm
inline double reports_seconds(int world) { return small_sum_seconds(world) + 2 * launch_seconds; }

// for a stage that does the same work as its neighbour, but sends to other nodes: how long its messages take
inline void time_sends(StageRun& run, const Hardware& h, const Grid& at) {
    for (auto [kind, link] : {std::pair(Instruction::SendForward, &at.forward_out),
                              {Instruction::SendBackward, &at.backward_out}}) {
        StepPart& send = run.message[kind - Instruction::SendForward];
        double bytes = (double)send.work.traffic.at(link->group.name).sent;
        send.pieces[0].seconds =
            call_seconds(h, Collective::Send, 2, nodes_of(h, link->group.members), bytes);
    }
}

inline Simulation simulate(const Plan& plan, const PipelineShape& s) {
    return Simulator(all_stages(s), plan.runs, reports_seconds(plan.world())).run();
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

// options must be resolved. all: every stage and every batch of the recipe, not only representative ones
inline Plan make_plan(const Options& o, const ModelShape& shape, const Grid& grid, const Hardware& h,
                      uint64_t samples, bool all) {
    Plan plan;
    plan.o = o;
    plan.shape = shape;
    plan.grid = grid;
    plan.hardware = h;
    plan.samples = samples;
    if (h.is_known() && !h.is_measured) plan.target = gpu_target;

    // Stages between the first and the last do the same work. What differs is where their messages go and how
    // many nodes their replicas are on: of these, one stage is planned for each number
    std::map<int, StageRun> middle;
    for (int stage = 0; stage < grid.p; stage++) {
        Grid at = place_in_grid(grid.rank_of(0, 0, stage), grid.t * grid.d * grid.p, grid.t, grid.p);
        int nodes = h.is_known() ? nodes_of(h, at.dp.members) : 1;
        bool is_end = stage == 0 || stage == grid.p - 1;
        bool is_planned = all || is_end || !middle.count(nodes);
        if (is_planned) plan.stages.push_back(plan_stage(o, shape, grid, stage, samples, plan.target, h));
        if (is_planned && !is_end) middle[nodes] = plan.stages.back().run;
        if (!h.is_known()) continue;
        plan.runs.push_back(is_planned ? plan.stages.back().run : middle.at(nodes));
        if (!is_planned) time_sends(plan.runs.back(), h, at);
    }

    if (!plan.timed()) return plan;
    for (int batch : representative_batches(o, samples))
        if (all || batch == o.batch)
            plan.steps[batch] = simulate(plan, pipeline_shape(o, grid.d, batch));
    return plan;
}
