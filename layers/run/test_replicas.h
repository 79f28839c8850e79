// test_replicas.h   replicated state that one rank has changed is found (--check-every)
//   mpirun -n 4 ./test_gpt replicas
#pragma once
#include "../../comm/mpi/make_grid.h"
#include "../../comm/mpi/sum_over.h"
#include "../base/testing.h"
#include "monitor.h"
#include "replicas.h"
#include "values.h"

enum class Drift { Parameters, LowBits, FirstMoment, SecondMoment };

// a replica that differs in one bit is found, with its tensor and rank
void check_drift(int t, int p, int zero, const char* tensor, Drift drift, int rank, const char* part,
                 bool bf16_moments = false) {
    if (comm::world_size() % (t * p)) return;
    Grid grid = make_grid(t, p, false);
    ModelShape shape = {4, 16, 4, 8, 257, 264};
    Model model(shape, grid, {.sequence_parallel = t > 1, .bf16_moments = bf16_moments,
                              .optimizer_shards = zero ? grid.d : 1});
    Optimizer o(model);
    if (drift == Drift::LowBits && !o.low_bytes) return;  // parameters in bf16 have them
    allocate_memory(model);
    allocate_memory(o, model);
    initialise_parameters(model, &o, 7);

    auto error = [&] {
        std::string said = compare_replicas(model, o, 1);
        double all = comm::sum_over(grid.world, {(double)!said.empty()}, "who complains")[0];
        return all == 0 ? "none" : said;
    };

    check(error() == "none", "replicas that are alike");
    // the first of the rank's values
    auto flip_bit = [&](void* array, long at, size_t size) {
        char* value = (char*)array + at * size;
        uint8_t byte;
        copy_to_host(&byte, value, 1, nullptr);
        byte ^= 1;
        copy_to_device(value, &byte, 1, nullptr);
        synchronize(nullptr);
    };
    for (auto& q : model.table.list)
        if (comm::world_rank() == rank && drift == Drift::Parameters && q.name == tensor)
            flip_bit(model.weights, q.offset, sizeof(floatX));
    for (auto& owned : owned_tensor_parts(model.table, o.slices)) {
        if (comm::world_rank() != rank || model.table.list[owned.parameter].name != tensor) continue;
        if (drift == Drift::LowBits) flip_bit(o.low_bits, owned.state_offset, o.low_bytes);
        if (drift == Drift::FirstMoment) flip_bit(o.m, owned.state_offset, o.moment_bytes);
        if (drift == Drift::SecondMoment) flip_bit(o.v, owned.state_offset, o.moment_bytes);
    }
    std::string said = error();
    check(said != "none", text("a change in %s over t %d p %d is noticed", tensor, t, p));
    bool mine = said.find(part) != std::string::npos;
    check(comm::sum_over(grid.world, {(double)mine}, "who names it")[0] > 0,
          text("%s, expected %s", said.c_str(), part));
}

// five slow steps in a row, by more than a factor and by more than noise
void check_slow_ranks() {
    Grid grid;
    grid.world.rank = 0;
    grid.t = grid.d = 1;
    SlowRankMonitor monitor(4);
    std::vector<std::string> hosts(4, "host");
    auto slow_after = [&](int steps, double peers, double mine) {
        std::vector<RankReport> reports(4);
        for (int rank = 0; rank < 4; rank++) reports[rank].computed = rank == 2 ? mine : peers;
        std::vector<int> slow;
        for (int i = 0; i < steps; i++) slow = monitor.update(grid, hosts, reports, 2);
        return slow;
    };
    bool in_between = !slow_after(4, 0.1, 0.3).empty() || !slow_after(1, 0.1, 0.1).empty();
    check(!in_between && slow_after(4, 0.1, 0.3).empty(), "four slow steps, one that is not, and four");
    check(slow_after(1, 0.1, 0.3) == std::vector<int>{2}, "five in a row");
    check(slow_after(9, 0.001, 0.02).empty(), "twice as slow, within the noise");
    check(slow_after(9, 0.1, 0.19).empty(), "less than twice as slow");
}

void test_replicas() {
    if (comm::world_size() == 1) return check_slow_ranks();
    if (comm::world_size() != 4) return;
    check_drift(2, 1, 1, "h.1.ln_2.weight", Drift::Parameters, 3,
                "parameters of h.1.ln_2.weight on rank 3 differs from rank");
    check_drift(1, 1, 1, "h.3.attn.c_attn.bias", Drift::Parameters, 2,
                "parameters of h.3.attn.c_attn.bias on rank 2 differs");
    check_drift(1, 2, 0, "h.2.mlp.c_fc.weight", Drift::FirstMoment, 3,
                "optimizer state of h.2.mlp.c_fc.weight on rank 3");
    check_drift(2, 2, 1, "wte.weight", Drift::SecondMoment, 2,
                "optimizer state of wte.weight on rank 2 differs from rank 0");
    check_drift(2, 2, 1, "h.0.mlp.c_proj.bias", Drift::FirstMoment, 1,
                "optimizer state of h.0.mlp.c_proj.bias on rank 1");
    check_drift(1, 2, 0, "h.3.ln_1.bias", Drift::LowBits, 3, "optimizer state of h.3.ln_1.bias on rank 3");
    for (Drift moment : {Drift::FirstMoment, Drift::SecondMoment})
        check_drift(1, 2, 0, "h.2.mlp.c_fc.weight", moment, 2,
                    "optimizer state of h.2.mlp.c_fc.weight on rank 3", true);
}
