// make_grid.h   makes the communicators and streams of a rank's place in the grid
#pragma once
#include "../grid.h"

// Collective over the world. Links out of even stages come first, then those out of odd ones: a few rounds,
// however many stages there are
inline Grid make_grid(int t, int p, bool wrap) {
    Grid g = place_in_grid(comm::world_rank(), comm::world_size(), t, p);
    auto make = [](comm::Group& group, bool beside_kernels) {
        group = comm::make_group(group.name, group.members, beside_kernels);
    };
    for (comm::Group* group : {&g.world, &g.tp}) make(*group, false);
    make(g.dp, true);
    g.dp_stream = comm::make_comm_stream();
    if (p == 1) return g;
    g.stages_on_host = comm::make_host_group(g.stages_on_host.name, g.stages_on_host.members);
    if (g.holds_tied()) make(g.tied, false);

    auto make_links = [&](int from) {
        int to = (from + 1) % p;
        if (g.stage != from && g.stage != to) return;
        for (Link* link : {g.stage == from ? &g.forward_out : &g.forward_in,
                           g.stage == from ? &g.backward_in : &g.backward_out}) {
            make(link->group, true);
            link->stream = comm::make_comm_stream();
        }
    };

    // links of even stages and then of odd ones: no rank waits for a chain of others
    int links = wrap ? p : p - 1;
    for (int odd : {0, 1})
        for (int from = odd; from < links; from += 2) make_links(from);
    return g;
}
