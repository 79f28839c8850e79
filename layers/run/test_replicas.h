// test_replicas.h   what ranks hold alike and one of them changes is found (--check-every)
//   mpirun -n 4 ./test_gpt replicas
#pragma once
#include "../../comm/mpi/make_grid.h"
#include "../../comm/mpi/sum_over.h"
#include "../base/testing.h"
#include "monitor.h"
#include "replicas.h"
#include "values.h"

// a replica that differs in one bit is found, with its tensor and rank
void check_drift(int t, int p, int zero, const char* tensor, bool moments, int rank, const char* part) {
    if (comm::world_size() % (t * p)) return;
    Grid grid = make_grid(t, p, false);
    ModelShape shape = {4, 16, 4, 8, 257, 264};
    Model model(shape, grid, {.sequence_parallel = t > 1, .optimizer_shards = zero ? grid.d : 1});
    Optimizer o(model);
    allocate_memory(model);
    allocate_memory(o, model);
    initialise_parameters(model, &o, 7);

    auto error = [&] {
        std::string said = compare_replicas(model, o, 1);
        double all = comm::sum_over(grid.world, {(double)!said.empty()}, "who complains")[0];
        return all == 0 ? "none" : said;
    };

    check(error() == "none", "replicas that are alike");
    real one = 1;
    floatX x = floatX(0.125f);
    for (auto& owned : owned_tensor_parts(model.table, o.slices))
        if (comm::world_rank() == rank && moments && model.table.list[owned.parameter].name == tensor)
            copy_to_device((real*)o.m + owned.state_offset, &one, sizeof one, nullptr);
    for (auto& q : model.table.list)
        if (comm::world_rank() == rank && !moments && q.name == tensor)
            copy_to_device(model.weights + q.offset, &x, sizeof x, nullptr);
    std::string said = error();
    check(said != "none", text("a change in %s over t %d p %d is noticed", tensor, t, p));
    bool mine = said.find(part) != std::string::npos;
    check(comm::sum_over(grid.world, {(double)mine}, "who names it")[0] > 0,
          text("%s, wants %s", said.c_str(), part));
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
    check_drift(2, 1, 1, "h.1.ln_2.weight", false, 3,
                "parameters of h.1.ln_2.weight on rank 3 differs from rank");
    check_drift(1, 1, 1, "h.3.attn.c_attn.bias", false, 2,
                "parameters of h.3.attn.c_attn.bias on rank 2 differs");
    check_drift(1, 2, 0, "h.2.mlp.c_fc.weight", true, 3,
                "optimizer state of h.2.mlp.c_fc.weight on rank 3");
    check_drift(2, 2, 1, "wte.weight", true, 2,
                "optimizer state of wte.weight on rank 2 differs from rank 0");
    check_drift(2, 2, 1, "h.0.mlp.c_proj.bias", true, 1,
                "optimizer state of h.0.mlp.c_proj.bias on rank 1");
}
