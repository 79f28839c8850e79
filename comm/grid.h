// grid.h   the grid of ranks and its groups: rank = tensor + t * (data + d * stage)
//   A tensor group has the most traffic, so its ranks are consecutive: they share a node. Next come the
//   replicas of a stage; a pipeline neighbour is t * d ranks away:
//
//                 data 0         data 1             t = 2, d = 2, p = 3; [ ]: a tensor group
//     stage 0   [ 0   1 ]      [ 2   3 ]   <- the data group of rank 0 is {0, 2}
//     stage 1   [ 4   5 ]      [ 6   7 ]
//     stage 2   [ 8   9 ]      [10  11 ]   <- its pipeline is {0, 4, 8}; first and last hold the embedding
//
//   A Link is one direction between two stages, with a communicator and a comm stream of its own: messages do
//   not queue behind unrelated ones, and two neighbours that send to each other do not wait for each other.
//   With several chunks per stage the last stage also links to the first.
//
//   Tensor parallelism (Megatron-LM): GEMMs into a layer are column-parallel, GEMMs out of it row-parallel:
//   they yield partial sums of all N rows, to be reduced. With sequence parallelism the rows of the residual
//   stream are sharded over the ranks as well: rank r holds rows [r N / t, (r + 1) N / t); reductions become
//   reduce-scatters, and rows are gathered before the next GEMM. Then N_r = N / t, otherwise N_r = N.
//   To add a call: one line, here or in a layer's function, with its label and what each rank holds before
//   and after (a new kind of collective: .github/CONTRIBUTING.md). Plans include it where a dry run passes
//   (layers and update, not schedules: plan/dry_run.h). If a rank omits the call or passes another count, the
//   stand-in for NCCL names both ranks (bash scripts/test.sh nccl); over MPI a rank prints MPI's error and
//   its last calls, at once or after --comm-timeout. If plan and run differ, every run says so
//   (scripts/test_parallel.py).
#pragma once
#include <algorithm>
#include <string>
#include "../layers/base/check.h"
#include "comm.h"

struct Link {
    comm::Group group;  // sender, receiver
    Stream stream = nullptr;
};

struct Grid {
    int t = 1, d = 1, p = 1;                // ranks along each axis
    int tensor = 0, data = 0, stage = 0;    // this rank's coordinates
    bool sequence_parallel = false;         // rows of the residual stream are sharded over t (in Model.grid)
    comm::Group tp, dp, world;
    comm::Group stages_on_host;             // all stages: for the host's numbers only; messages use the Links
    comm::Group tied;                       // first and last stage, which both hold the token embedding
    Link forward_in, forward_out, backward_in, backward_out;
    Stream dp_stream = nullptr;             // for dp: gradients are reduced, parameters gathered

    int rank_of(int tensor, int data, int stage) const { return tensor + t * (data + d * stage); }
    void set_rank(int rank) {
        tensor = rank % t;
        data = rank / t % d;
        stage = rank / t / d;
    }
    bool is_first_stage() const { return stage == 0; }
    bool is_last_stage() const { return stage == p - 1; }
    bool holds_tied() const { return p > 1 && (is_first_stage() || is_last_stage()); }
    int rows(int N) const { return sequence_parallel ? N / t : N; }  // N_r
};

// a rank's coordinates, and the names and members of its groups; mpi/make_grid.h makes their communicators
inline Grid place_in_grid(int rank, int world, int t, int p) {
    if (long one = (long)t * p; world % one) {
        long fewer = world / one * one, more = fewer + one;
        std::string near = fewer ? text("%ld or %ld", fewer, more) : text("%ld", more);
        fail("--tensor-parallel %d x --pipeline-parallel %d does not divide %s: start %s ranks "
             "(mpirun -n %ld ./train_gpt …), or choose other sizes", t, p, counted(world, "rank").c_str(),
             near.c_str(), fewer ? fewer : more);
    }

    Grid g;
    g.t = t;
    g.p = p;
    g.d = world / (t * p);
    g.set_rank(rank);

    auto group = [&](const char* name, int size, int mine, auto member) {
        comm::Group out = {name, mine, size, std::vector<int>(size)};
        for (int i = 0; i < size; i++) out.members[i] = member(i);
        return out;
    };
    g.tp = group("tensor", t, g.tensor, [&](int i) { return g.rank_of(i, g.data, g.stage); });
    g.dp = group("data", g.d, g.data, [&](int i) { return g.rank_of(g.tensor, i, g.stage); });
    g.world = group("world", world, rank, [](int i) { return i; });
    if (p == 1) return g;

    // pipeline: the neighbours of this stage, and the two ends that share the token embedding
    auto of_stage = [&](int stage) { return g.rank_of(g.tensor, g.data, stage); };
    g.stages_on_host = group("pipeline", p, g.stage, of_stage);
    auto pair = [&](const char* name, int from, int to) {
        return group(name, 2, g.stage == from ? 0 : 1, [&](int i) { return of_stage(i ? to : from); });
    };
    if (g.holds_tied()) g.tied = pair("tied embedding", 0, p - 1);

    // a ring; with one chunk per stage, the link from the last stage to the first gets no communicator
    int before = (g.stage + p - 1) % p, next = (g.stage + 1) % p;
    g.forward_in.group = pair("forward", before, g.stage);
    g.forward_out.group = pair("forward", g.stage, next);
    g.backward_in.group = pair("backward", next, g.stage);
    g.backward_out.group = pair("backward", g.stage, before);
    return g;
}

// ---- tensor parallelism -----------------------------------------------------------------------------------

// this rank's rows -> all N rows
inline const floatX* gather_rows(const Grid& grid, floatX* all, const floatX* own, int N, int C,
                                 const char* label, Stream s, comm::Where where = comm::Where::current()) {
    if (!grid.sequence_parallel) return own;
    comm::all_gather(grid.tp, all, own, (long)grid.rows(N) * C, label, s, where);  // N / t rows -> N rows
    return all;
}

// partial sums over all N rows -> whole sums of this rank's rows; returns where they are: in `own` with
// sequence parallelism only
inline floatX* reduce_rows(const Grid& grid, floatX* own, floatX* partial, int N, int C,
                           const char* label, Stream s, comm::Where where = comm::Where::current()) {
    if (grid.sequence_parallel) {
        // N rows of partial sums -> N / t rows of whole sums
        comm::reduce_scatter(grid.tp, own, partial, (long)grid.rows(N) * C, label, s, where);
        return own;
    }
    // N rows of partial sums -> N rows of whole sums
    comm::all_reduce(grid.tp, partial, (long)N * C, comm::ReduceOp::Sum, label, s, where);
    return partial;
}
