// monitor.h   monitors across steps: flipped bits, slow ranks
//   Flipped bits: each rank checks itself, with --check-every; after updates: check_state (trainer.cpp).
//   Slow ranks: rank 0 compares all.
#pragma once
#include <functional>
#include "../model/optimizer.h"
#include "run.h"
#include "sum_bits.cuh"

// What --check-every checks within a step (replicas.h compares across ranks): parameters must not change
// between their all-gather and the update, and computing the gradients twice must give the same bits. This
// finds bits that flip in parameters, gradients or activations, and devices that compute wrongly. The
// constructor runs forward and backward of all micro-batches twice, takes a checksum of each result, then
// reduces the gradients over d; error() compares. The update is made once.
class RepeatedStep {
    Model& model;
    Optimizer& optimizer;

    template <class T>
    void sum(int which, const T* x, long n) {
        compute(SumBits<T>{.sum = optimizer.bit_sums + which, .x = x, .n = n}, model.stream);
    }

    void sum_gradients(int which) {
        sum(which, model.gradients, model.table.elements);
        if (model.sums_wte_apart())
            sum(which, model.wte_gradient_from_logits, model.table.list[model.table.wte].size);
    }

public:
    // gradients(): forward and backward of all micro-batches
    RepeatedStep(Model& model, Optimizer& optimizer, const std::function<void()>& gradients)
        : model(model), optimizer(optimizer) {
        auto traffic = comm::traffic;  // do not count the repetition

        model.await_parameters();
        compute(ClearValues{"bit sums", optimizer.bit_sums, Optimizer::bit_sum_count}, model.stream);
        sum(0, model.weights, model.table.elements);

        // twice, over the same micro-batches
        model.holds_back_reductions = true;
        gradients();
        sum_gradients(2);
        comm::traffic = traffic;
        gradients();
        sum_gradients(3);

        sum(1, model.weights, model.table.elements);
        model.holds_back_reductions = false;
        for (size_t bucket = 0; bucket < model.table.buckets.size(); bucket++)
            reduce_bucket(model, (int)bucket);
    }

    // "", or what is wrong on this rank; called after the step
    std::string error(long step) {
        unsigned long long sums[Optimizer::bit_sum_count];
        copy_to_host(sums, optimizer.bit_sums, sizeof sums, model.stream);
        if (sums[0] != sums[1])
            return text("parameters have changed within step %ld: a bit has flipped in memory: resume from "
                        "the last checkpoint, and have this host's memory checked", step);
        if (sums[2] != sums[3])
            return text("step %ld, computed twice, gave different gradients: a bit has flipped, or this "
                        "device computes incorrectly: resume from the last checkpoint, and have it checked",
                        step);
        return "";
    }
};

// ---- slow ranks ------------------------------------------------------------------------------------------

// A rank is slow if in five consecutive steps its compute time exceeds --slow-factor times its peers' time,
// and exceeds that time by more than `noise`. Peers' time: the lower median over the ranks of its stage or,
// if the stage has one rank, over all ranks.
class SlowRankMonitor {
    std::vector<int> slow_steps;  // consecutive slow steps, by rank

public:
    static constexpr int steps = 5;
    static constexpr double noise = 0.03;  // seconds
    explicit SlowRankMonitor(size_t ranks) : slow_steps(ranks) {}

    // the ranks that are slow now, on rank 0; elsewhere empty. hosts: by rank
    std::vector<int> update(const Grid& grid, const std::vector<std::string>& hosts,
                            const std::vector<RankReport>& reports, double factor) {
        std::vector<int> slow;
        if (grid.world.rank != 0) return slow;
        int ranks = (int)reports.size(), peers = grid.t * grid.d;  // those of a stage are adjacent
        if (peers == 1) peers = ranks;

        for (int first = 0; first < ranks; first += peers) {
            std::vector<double> times;
            for (int rank = first; rank < first + peers; rank++) times.push_back(reports[rank].computed);
            auto median = times.begin() + (peers - 1) / 2;
            std::nth_element(times.begin(), median, times.end());

            for (int rank = first; rank < first + peers; rank++) {
                double computed = reports[rank].computed;
                bool is_slow = computed > factor * *median && computed > *median + noise;
                slow_steps[rank] = is_slow ? slow_steps[rank] + 1 : 0;
                if (slow_steps[rank] == steps)
                    fprintf(stderr, "slow: rank %d on %s computes %.3f s a step, its peers %.3f s, for %d "
                            "steps\n", rank, hosts[rank].c_str(), computed, *median, steps);
                if (slow_steps[rank] >= steps) slow.push_back(rank);
            }
        }
        return slow;
    }
};
