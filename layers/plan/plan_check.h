// plan_check.h   what was planned beside what was measured: compared in every step, printed at a run's end
//   Calls and bytes must be exactly equal on every rank; memory was compared at the start (memory.h). Only
//   training steps count: evaluation, samples and checkpoints communicate as well.
#pragma once
#include <sys/resource.h>
#include <functional>
#include "../run/metrics.h"
#include "stage_plan.h"

class PlanCheck {
    const std::map<int, StepWork>& planned;  // of a step, by batch
    std::map<int, long> steps;               // that were taken, by batch
    int first_batch = 0;
    TrafficTable before, done;
    double first_seconds = 0, seconds = 0;  // of the first step, which warms up; of the others
    bool equal = true;

public:
    explicit PlanCheck(const std::map<int, StepWork>& planned) : planned(planned) {}

    void begin_step() { before = comm::traffic; }

    // took: seconds
    void end_step(int batch, double took) {
        TrafficTable of_step;
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
            comm::end_on_error(text("plan and run DIFFER on rank %s: a defect of this program",
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
        printf("  linear layers   %9.4g GFLOP\n", (double)work.linear_flops * 1e-9 / n);
        printf("  memory          %9.1f MB   %9.1f MB   and %s MB resident at most%s\n",
               (double)planned_bytes * 1e-6, (double)taken_bytes * 1e-6,
               (least == most ? text("%.1f", (double)most * 1e-6)
                              : text("%.1f to %.1f", (double)least * 1e-6, (double)most * 1e-6)).c_str(),
               least == most ? "" : ", over all ranks");
        std::string time = expected > 0 ? text("%9.4g s ", expected) : "        -";
        printf("  seconds         %-12s    %9.4g s\n", time.c_str(), measured);
    }
};
