// plan_check.h   at the end of a run: what was planned beside what was measured
//   Calls and bytes must be exactly equal on every rank; memory was compared at the start (memory.h). Only
//   training steps count: evaluation, samples and checkpoints communicate as well.
#pragma once
#include <sys/resource.h>
#include "../run/metrics.h"
#include "stage_plan.h"

class PlanCheck {
    TrafficTable planned, done;
    double planned_flops = 0, planned_seconds = 0, done_seconds = 0;
    long steps = 0;
    bool equal = true;
    TrafficTable before;
    const StepWork* now = nullptr;

public:
    void open(const StepWork& work) {
        before = comm::traffic;
        now = &work;
    }

    // seconds: what the step took; predicted: what it should have taken, or 0
    void close(double seconds, double predicted) {
        TrafficTable said;
        for (auto& [group, t] : comm::traffic) {
            comm::Traffic more = {t.calls - before[group].calls, t.sent - before[group].sent};
            if (more.calls) said[group] = more;
        }

        equal = equal && said == now->traffic;
        for (auto& [group, t] : said) {
            done[group].calls += t.calls;
            done[group].sent += t.sent;
        }
        for (auto& [group, t] : now->traffic) {
            planned[group].calls += t.calls;
            planned[group].sent += t.sent;
        }

        planned_flops += (double)now->linear_flops;
        if (steps++ == 1) done_seconds = planned_seconds = 0;  // the first warms up, and does not count
        done_seconds += seconds;
        planned_seconds += predicted;
    }

    // collective over the world; the run has ended and saved. If plan and run differ, every rank exits with 1
    void print(const Run& run, const StagePlan& mine, size_t taken_bytes) const {
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

        if (run.is_rank0() && steps) print_table(mine, taken_bytes, least, most);
        if (!who.empty())
            comm::end_on_error(text("plan and run DIFFER on rank %s: a defect of this program",
                                        comm::rank_list(who).c_str()));
        if (run.is_rank0() && steps) printf("plan and run are equal on %s\n",
                                           run.grid.world.size == 1 ? "this rank"
                                           : text("all %d ranks", run.grid.world.size).c_str());
    }

private:
    // least, most: the smallest and the largest peak resident bytes of any rank
    void print_table(const StagePlan& mine, size_t taken_bytes, int64_t least, int64_t most) const {
        printf("rank 0, a step           planned       measured\n");
        for (auto& [group, t] : planned) {
            comm::Traffic d = done.count(group) ? done.at(group) : comm::Traffic{};
            printf("  %-15s %9.4g MB   %9.4g MB   %ld and %ld calls\n", group.c_str(),
                   (double)t.sent * 1e-6 / (double)steps, (double)d.sent * 1e-6 / (double)steps,
                   t.calls / steps, d.calls / steps);
        }

        printf("  linear layers   %9.4g GFLOP\n", planned_flops * 1e-9 / (double)steps);
        printf(
            "  memory          %9.1f MB   %9.1f MB   and %s MB resident at most%s\n",
            (double)mine.bytes() * 1e-6, (double)taken_bytes * 1e-6,
            (least == most ? text("%.1f", (double)most * 1e-6)
                           : text("%.1f to %.1f", (double)least * 1e-6, (double)most * 1e-6)).c_str(),
            least == most ? "" : ", over all ranks");

        double timed = (double)std::max(1L, steps - 1);
        std::string time =
            planned_seconds > 0 ? text("%9.4g s ", planned_seconds / timed) : "        -";
        printf("  seconds         %-12s    %9.4g s\n", time.c_str(), done_seconds / timed);
    }
};
