// grid.h   who stands where: rank = tensor + t * data, and the groups along each axis
//   The ranks of a tensor group are neighbours, so that they share a node: theirs is the largest traffic.
#pragma once
#include <string>
#include "../layers/base/check.h"
#include "comm.h"

struct Grid {
    int t = 1, d = 1;            // ranks along each axis
    int tensor = 0, data = 0;    // this rank's place
    comm::Group tp, dp, world;

    int rank_of(int tensor, int data) const { return tensor + t * data; }
};

// collective over the world
inline Grid make_grid(int t) {
    int world = comm::world_size(), rank = comm::world_rank();
    if (world % t)
        fail("--tensor-parallel %d does not divide the %d ranks that were started: start a multiple of %d", t,
             world, t);
    Grid g;
    g.t = t, g.d = world / t;
    g.tensor = rank % t, g.data = rank / t;
    std::vector<int> tp, dp, all;
    for (int i = 0; i < t; i++) tp.push_back(g.rank_of(i, g.data));
    for (int i = 0; i < g.d; i++) dp.push_back(g.rank_of(g.tensor, i));
    for (int i = 0; i < world; i++) all.push_back(i);
    g.tp = comm::make_group("tensor", tp), g.dp = comm::make_group("data", dp),
        g.world = comm::make_group("world", all);
    return g;
}

// a line for each data-parallel replica: the ranks of its tensor group
inline std::string print_grid(const Grid& g) {
    std::string out = text("grid: %d ranks = %d tensor x %d data\n", g.t * g.d, g.t, g.d);
    for (int d = 0; d < g.d && d < 16; d++)
        out += text("  data %-3d tensor group: ranks %d to %d\n", d, g.rank_of(0, d), g.rank_of(g.t - 1, d));
    return out;
}
