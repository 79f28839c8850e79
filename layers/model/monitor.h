// monitor.h   what is watched from step to step: spikes of loss and norm, bits that flip, ranks that are slow
//   Every rank sees the same numbers (step_reports.h, and the norm, a sum over all) and decides alike.
#pragma once
#include "step_reports.h"
#include "metrics.h"

// Mean and deviation of a series, of which the last hundred or so count.
class RunningStatistics {
    double mean = 0, variance = 0;
    long seen = 0;

public:
    void add(double x) {
        double weight = 1 / std::min(100.0, (double)++seen), delta = x - mean;
        mean += weight * delta;
        variance = (1 - weight) * (variance + weight * delta * delta);
    }
    // `z` deviations above the mean; none before the series is long enough to know
    double limit(double z) const {
        constexpr long enough = 30;
        return z > 0 && seen >= enough ? mean + z * std::sqrt(variance) : INFINITY;
    }
};

// --on-spike: a step whose loss or norm is not finite, or more than --spike-z deviations above its running
// mean, changes nothing on the device (adamw.cuh); what is done then is decided here
struct SpikeMonitor {
    RunningStatistics losses, norms;
    int in_a_row = 0;  // steps without an update, or returns to a checkpoint without a new one

    void add(const StepResult& result) {
        if (!result.updated) return;
        losses.add(result.loss);
        norms.add(result.norm);
    }
};

// What --check-every checks of a step, beside what ranks hold alike (replicas.h): parameters are the same
// when they are updated as when they were gathered; and gradients are the same when the step is computed
// twice. So bits that flip in parameters, gradients or activations are found, and what computes wrongly. The
// step takes twice as long.
class RepeatedStep {
    Model& model;
    Optimizer& optimizer;

    template <class T>
    void sum(int which, const T* x, long n) {
        sum_bits(optimizer.bit_sums + which, x, n, model.stream);
    }
    void sum_gradients(int which) {
        sum(which, model.gradients, model.table.elements);
        if (model.sums_wte_apart())
            sum(which, model.wte_gradient_from_logits, model.table.list[model.table.wte].size);
    }

public:
    // compute(): forward and backward of all micro-batches
    template <class Compute>
    RepeatedStep(Model& model, Optimizer& optimizer, Compute compute) : model(model), optimizer(optimizer) {
        auto traffic = comm::traffic;  // what is computed twice is counted once
        int64_t flops = linear_flops;
        model.await_parameters();
        clear_values("bit sums", optimizer.bit_sums, Optimizer::bit_sum_count, model.stream);
        sum(0, model.weights, model.table.elements);
        model.holds_reductions = true;
        compute();
        sum_gradients(2);
        comm::traffic = traffic;
        linear_flops = flops;
        compute();
        sum_gradients(3);
        sum(1, model.weights, model.table.elements);
        model.holds_reductions = false;
        for (size_t bucket = 0; bucket < model.table.buckets.size(); bucket++)
            reduce_bucket(model, (int)bucket);
    }
    // "", or what is wrong on this rank; after the step
    std::string error(long step) {
        unsigned long long sums[Optimizer::bit_sum_count];
        copy_to_host(sums, optimizer.bit_sums, sizeof sums, model.stream);
        if (sums[0] != sums[1])
            return text("parameters have changed within step %ld: a bit has flipped in memory: go on from "
                        "the last checkpoint, and have this host's memory checked", step);
        if (sums[2] != sums[3])
            return text("step %ld, computed twice, has other gradients: a bit has flipped, or this device "
                        "computes wrongly: go on from the last checkpoint, and have it checked", step);
        return "";
    }
};

// What the last update has written of master weights and moments, this one must have read.
class StateMonitor {
    unsigned long long written = 0;
    bool known = false;

public:
    void forget() { known = false; }  // the state was loaded
    // "", or what is wrong with this rank's memory
    std::string compare(Model& model, const Optimizer& optimizer, bool updated, long step) {
        if (!updated) return "";
        StateCheck now;
        copy_to_host(&now, optimizer.state_check, sizeof now, model.stream);
        bool same = !known || now.read == written;
        written = now.written;
        known = true;
        if (same) return "";
        return text("step %ld read other master weights or moments than step %ld had written: a bit has "
                    "flipped in memory: go on from the last checkpoint, and have this host's memory checked",
                    step, step - 1);
    }
};

// ---- slow ranks ------------------------------------------------------------------------------------------

// A rank is slow that computes longer than --slow-factor times what its peers need (the lower median of the
// ranks of its stage, or where it has only itself, of all), and longer by some hundredths of a second, in
// five steps in a row.
class SlowRankMonitor {
    std::vector<int> slow_steps;  // in a row, by rank

public:
    static constexpr int steps = 5;
    static constexpr double noise = 0.03;  // seconds
    explicit SlowRankMonitor(size_t ranks) : slow_steps(ranks) {}

    // ranks that are slow now; rank 0 knows. hosts: by rank
    std::vector<int> update(const Grid& grid, const std::vector<std::string>& hosts,
                            const std::vector<RankReport>& reports, double factor) {
        std::vector<int> slow;
        if (grid.world.rank != 0) return slow;
        int per_stage = grid.t * grid.d;
        for (int rank = 0; rank < (int)reports.size(); rank++) {
            std::vector<double> peers;
            for (int other = 0; other < (int)reports.size(); other++)
                if (per_stage == 1 || other / per_stage == rank / per_stage)
                    peers.push_back(reports[other].computed);
            auto median = peers.begin() + (long)(peers.size() - 1) / 2;
            std::nth_element(peers.begin(), median, peers.end());
            double computed = reports[rank].computed;
            bool is_slow = computed > factor * *median && computed > *median + noise;
            slow_steps[rank] = is_slow ? slow_steps[rank] + 1 : 0;
            if (slow_steps[rank] == steps)
                fprintf(stderr, "slow: rank %d on %s computes %.3f s a step, its peers %.3f s, for %d "
                        "steps\n", rank, hosts[rank].c_str(), reports[rank].computed, *median, steps);
            if (slow_steps[rank] >= steps) slow.push_back(rank);
        }
        return slow;
    }
};
