// memory.h   planned memory against what was taken, and the largest micro-batch that fits
#pragma once
#include "../../comm/mpi/hosts.h"
#include "../run/metrics.h"
#include "../run/resolve.h"
#include "stage_plan.h"

inline void print_run(const Run& run) {
    print_settings(run);
    if (run.options.save.empty() && !run.options.has("save"))
        printf("note: without --save FOLDER nothing of this run is kept\n");
    const Grid& g = run.grid;
    std::vector<StagePlan> stages;
    for (int stage = 0; stage < g.p; stage++)
        if (g.p <= 4 || stage <= 1 || stage == g.p - 1)
            stages.push_back(plan_stage(run.options, run.state.shape, g, stage, run.state.samples_seen));
    printf("%s", memory_table(stages).c_str());
    fflush(stdout);
}

// checks that what was printed for this rank's stage is what it has taken
inline void check_memory(const Model& model, const Optimizer& optimizer, const StagePlan& planned) {
    std::vector<Allocation> taken = model.memory;
    taken.push_back(optimizer.memory);
    for (size_t i = 0; i < planned.memory.size(); i++)
        if (planned.memory[i].bytes != taken[i].bytes)
            fail("%s: %zu bytes were planned, %zu taken: this is a bug", planned.memory[i].name,
                 planned.memory[i].bytes, taken[i].bytes);
}

inline size_t memory_taken(const Model& model, const Optimizer& optimizer) {
    size_t sum = optimizer.memory.bytes;
    for (auto& each : model.memory) sum += each.bytes;
    return sum;
}

// Bytes that each rank may take: ranks share the free memory of their device (of the host, if it has none)
// equally, less a twelfth for libraries, and `ulimit -v` bounds each; the least of all ranks. Collective.
inline double memory_of_a_rank() {
    std::vector<int64_t> mine = {comm::host_id(), device_id(), (int64_t)free_memory(),
                                 (int64_t)std::min(free_address_space(), (size_t)INT64_MAX)};
    std::vector<int64_t> all = comm::gather_numbers(comm::everyone(), mine, "free memory");
    double least = INFINITY;
    for (size_t i = 0; i < all.size(); i += 4) {
        int sharing = 0;
        for (size_t j = 0; j < all.size(); j += 4) sharing += all[j] == all[i] && all[j + 1] == all[i + 1];
        double share = (double)all[i + 2] / sharing * 11 / 12;
        least = std::min({least, share, host_is_device ? (double)all[i + 3] : INFINITY});
    }
    return least;
}

// what saves memory and is not chosen yet, for "choose …"
inline std::string savings_left(const Options& o) {
    std::string out;
    if (o.micro_batch > 1) out += text("a smaller --micro-batch (now %d), ", o.micro_batch);
    if (o.recompute != "full") out += "--recompute full, ";
    if (o.moments != "bf16") out += "--moments bf16, ";
    if (o.master_weights != "no" && !master_is_parameter) out += "--master-weights no, ";
    if (o.resume.empty()) out += text("a shorter --sequence (now %d), ", o.sequence);
    return out;
}

// Before anything is allocated: a host grants memory that it does not have, and kills the process later.
// Collective
inline void check_memory_suffices(const Run& run, double planned) {
    double most = host_is_device ? memory_of_a_rank() : INFINITY;  // a GPU refuses by itself
    std::string error;
    if (planned > most)
        error = text("%.2f GB are planned, a rank may use %.2f GB here: choose %smore ranks on other hosts, "
                     "or a smaller model", planned * 1e-9, most * 1e-9, savings_left(run.options).c_str());
    comm::all_end_on_error(error);
}

// --micro-batch auto: the checkpoint's if it still fits (the same layout then gives the same bits), or the
// largest that fits into `bytes` and still gives every stage of a pipeline a micro-batch of its own
inline void choose_micro_batch(Run& run, double bytes, const Target& target = {}) {
    if (!run.automatic_micro_batch) return;
    Options& o = run.options;
    const Grid& g = run.grid;
    int common = common_share(o, run.state.samples_seen, g.d), best = 0;
    int before = micro_batch_of_checkpoint(run, common);
    double wanted = 0;
    std::string refused;  // why the smallest has no valid schedule
    for (int b = 1; b <= common; b++) {
        if (common % b || (b > 1 && g.p > 1 && common / b < g.p)) continue;
        if ((long)b * o.sequence > most_rows) break;

        Options with = o;
        with.micro_batch = b;
        double most = 0;
        try {
            most = most_stage_bytes(with, run.state.shape, g, run.state.samples_seen, target);
        } catch (const Error& e) {
            if (refused.empty()) refused = e.what();
            continue;
        }

        if (!wanted) wanted = most;
        if (most > bytes) break;
        best = b;
        if (b == before) break;
    }

    if (!best && !wanted) fail("--micro-batch auto: not even 1 is possible: %s", refused.c_str());
    if (!best)
        fail("--micro-batch auto: even 1 needs %.2f GB, a rank may use %.2f: choose %smore ranks or a "
             "smaller model", wanted * 1e-9, bytes * 1e-9, savings_left(o).c_str());
    o.micro_batch = best;
    check_micro_batches(o, g.d);
}
