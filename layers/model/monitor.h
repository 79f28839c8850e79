// monitor.h   what is watched from step to step: spikes of loss and norm, bits that flip, ranks that are slow
//   Every rank sees the same numbers (exchange.h, and the norm, which is a sum over all) and decides alike.
#pragma once
#include "exchange.h"
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
        const char* advice = "a bit has flipped in memory: go on from the last checkpoint, and have this "
                             "host's memory checked";
        if (!same)
            return text("step %ld read other master weights or moments than step %ld had written: %s", step,
                        step - 1, advice);
        if (now.wrong)
            return text("step %ld read %llu parameters that are not their rounded master weights: %s", step,
                        now.wrong, advice);
        return "";
    }
};

// ---- slow ranks ------------------------------------------------------------------------------------------

// the names of all ranks' hosts; collective
inline std::vector<std::string> gather_hosts(const comm::Group& world) {
    constexpr size_t words = 8;
    char name[words * 8] = {};
    gethostname(name, sizeof name - 1);
    std::vector<int64_t> mine(words);
    memcpy(mine.data(), name, sizeof name);
    std::vector<int64_t> all = comm::gather_numbers(world, mine, "host names");
    std::vector<std::string> hosts;
    for (size_t at = 0; at < all.size(); at += words) hosts.push_back((const char*)&all[at]);
    return hosts;
}

// A rank is slow that computes longer than --slow-factor times what its peers need (the lower median of the
// ranks of its stage, or where it has only itself, of all) in five steps in a row.
class SlowRankMonitor {
    std::vector<int> slow_steps;
    std::vector<std::string> hosts;

public:
    static constexpr int steps = 5;
    explicit SlowRankMonitor(const comm::Group& world) : slow_steps(world.size), hosts(gather_hosts(world)) {}

    const std::string& host(int rank) const { return hosts[rank]; }
    // ranks that are slow now; rank 0 knows
    std::vector<int> update(const Grid& grid, const std::vector<RankReport>& reports, double factor) {
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
            bool is_slow = reports[rank].computed > factor * *median;
            slow_steps[rank] = is_slow ? slow_steps[rank] + 1 : 0;
            if (slow_steps[rank] == steps)
                fprintf(stderr, "slow: rank %d on %s computes %.3f s a step, its peers %.3f s, for %d "
                        "steps\n", rank, hosts[rank].c_str(), reports[rank].computed, *median, steps);
            if (slow_steps[rank] >= steps) slow.push_back(rank);
        }
        return slow;
    }
};
