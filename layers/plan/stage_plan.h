// stage_plan.h   what a stage will hold and send, before anything is allocated: memory, traffic, FLOPs
//   From the tables that training executes (run/setup.h, params.h, comm/schedule.h), and from its code.
#pragma once
#include <map>
#include <string>
#include <vector>
#include "../../comm/mpi/make_grid.h"
#include "../../comm/schedule.h"
#include "../run/setup.h"
#include "dry_run.h"

// the batches of a ramp, at most about 64 of them, evenly chosen, with the first and the last
inline std::vector<int> representative_batches(const Options& o, uint64_t samples) {
    std::vector<int> all = batches_from(o, samples), some;
    size_t step = (all.size() + 63) / 64;
    for (size_t i = 0; i + 1 < all.size(); i += step) some.push_back(all[i]);
    some.push_back(all.back());
    return some;
}

// ---- a stage, measured -----------------------------------------------------------------------------------

struct StagePlan {
    int stage;
    long parameters = 0;            // per rank, including padding of the vocabulary
    std::vector<Allocation> memory;
    std::map<int, StepWork> work;   // of a rank in a step, by batch
    StageRun run;                   // the parts of a step
    size_t bytes() const {
        size_t sum = 0;
        for (auto& each : memory) sum += each.bytes;
        return sum;
    }
};

// a model that only measures: without memory, groups or a device
inline std::unique_ptr<Model> dry_model(const Options& o, const ModelShape& shape, Grid place, int stage,
                                        const Schedules& schedules, const Target& target) {
    place = place_in_grid(place.rank_of(0, 0, stage), place.t * place.d * place.p, place.t, place.p);
    auto model = std::make_unique<Model>(shape, place, setup_of(o, place, schedules, target));
    measure_memory(*model);
    return model;
}

// a stage's plan, with times if the hardware is known; memory_alone: memory and parameters only
inline StagePlan plan_stage(const Options& o, const ModelShape& shape, const Grid& place, int stage,
                            uint64_t samples, const Target& target = {}, const Hardware& hardware = {},
                            bool memory_alone = false) {
    Schedules schedules = make_schedules(o, place, stage, samples);
    auto model = dry_model(o, shape, place, stage, schedules, target);
    Optimizer optimizer(*model);
    measure_memory(optimizer, *model);
    StagePlan out = {stage, 0, model->memory, {}, {}};
    out.memory.push_back(optimizer.memory);
    for (auto& p : model->table.list) out.parameters += p.size;
    if (memory_alone) return out;
    out.run = run_dry(*model, optimizer, schedules, hardware);
    for (auto& [batch, schedule] : schedules) out.work[batch] = out.run.work(schedule);
    return out;
}

inline StagePlan measure_stage(const Options& o, const ModelShape& shape, const Grid& place, int stage,
                               uint64_t samples, const Target& target) {
    return plan_stage(o, shape, place, stage, samples, target, {}, true);
}

// bytes per rank on the fullest stage: the first, which has the most micro-batches in flight, one in the
// middle, or the last
inline double most_stage_bytes(const Options& o, const ModelShape& shape, const Grid& place, uint64_t samples,
                               const Target& target) {
    double most = 0;
    for (int stage : {0, place.p / 2, place.p - 1})
        most = std::max(most, (double)measure_stage(o, shape, place, stage, samples, target).bytes());
    return most;
}

// What NCCL takes on a GPU for each communicator: 544 to 688 MB have been published; the larger number is
// used. It was not measured here
constexpr double bytes_of_communicator = 688e6;

// how many communicators make_grid() (comm/mpi/make_grid.h) makes for a rank at g, with the same `wrap`
inline int communicator_count(const Grid& g, bool wrap) {
    int count = 0;
    for (const comm::Group* group : {&g.world, &g.tp, &g.dp, &g.tied}) count += group->size > 1;
    bool has_before = g.p > 1 && (wrap || g.stage > 0), has_next = g.p > 1 && (wrap || g.stage < g.p - 1);
    return count + 2 * has_before + 2 * has_next;
}

// a rank's communicators, on the stage that has the most
inline int most_communicators(const Grid& grid, bool wrap) {
    int most = 0;
    for (int stage = 0; stage < std::min(grid.p, 2); stage++) {
        int rank = grid.rank_of(0, 0, stage), world = grid.t * grid.d * grid.p;
        most = std::max(most, communicator_count(place_in_grid(rank, world, grid.t, grid.p), wrap));
    }
    return most;
}

// What they take on a GPU in all. A data-parallel one whose ranks are each on a node of their own (t of 8) is
// connected to 2 ranks each way for every power of two: by NCCL 2.30's code some 9.3 MB for each connection
// and SM (make_grid.h), which exceeds the above from 8 nodes on
inline double communicator_bytes(const Grid& grid, bool wrap) {
    double all = most_communicators(grid, wrap) * bytes_of_communicator;
    if (grid.t < 8 || grid.d < 8) return all;
    double connections = 4 * (std::log2(grid.d) - 1) + 2;
    return all + std::max(0.0, connections * sms_beside_kernels * 9.3e6 - bytes_of_communicator);
}

// one column per stage
inline std::string memory_table(const std::vector<StagePlan>& stages) {
    bool alone = stages.size() == 1;
    int digits = stages[0].bytes() < 10e6 ? 3 : 1;
    std::string out = text("memory, MB      "), all = text("\n  %-14s", "in all");
    for (auto& s : stages) {
        out += text("%12s", alone ? "a rank" : text("stage %d", s.stage).c_str());
        all += text("%12.*f", digits, (double)s.bytes() * 1e-6);
    }
    for (size_t i = 0; i < stages[0].memory.size(); i++) {
        out += text("\n  %-14s", stages[0].memory[i].name);
        for (auto& s : stages) out += text("%12.*f", digits, (double)s.memory[i].bytes * 1e-6);
    }
    return out + all + "\n";
}
