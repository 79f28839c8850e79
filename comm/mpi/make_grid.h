// make_grid.h   makes the communicators and streams of a rank's place in the grid
#pragma once
#include "../grid.h"

// SMs that a call may take. cuBLASLt's GEMMs need all at once, and a GEMM that lacks one waits for it: 8 are
// enough for a network card (not measured), and NCCL rounds links' up to a power of two. Calls of tensor
// parallelism overlap with no GEMM, and are many. Over the world only a step's few numbers are summed: more
// SMs would take memory for their connections, and gain nothing
constexpr int sms_beside_kernels = 8, sms_alone = 32, sms_for_numbers = 2;

// Collective over the world. Links out of even stages come first, then those out of odd ones: a few rounds,
// however many stages there are
inline Grid make_grid(int t, int p, bool wrap) {
    Grid g = place_in_grid(comm::world_rank(), comm::world_size(), t, p);
    auto make = [](comm::Group& group, int most_sms) {
        group = comm::make_group(group.name, group.members, most_sms);
    };
    make(g.world, sms_for_numbers);
    make(g.tp, sms_alone);
    make(g.dp, sms_beside_kernels);
    g.dp_stream = comm::make_comm_stream();
    if (p == 1) return g;
    g.stages_on_host = comm::make_host_group(g.stages_on_host.name, g.stages_on_host.members);
    if (g.holds_tied()) make(g.tied, sms_beside_kernels);

    auto make_links = [&](int from) {
        int to = (from + 1) % p;
        if (g.stage != from && g.stage != to) return;
        for (Link* link : {g.stage == from ? &g.forward_out : &g.forward_in,
                           g.stage == from ? &g.backward_in : &g.backward_out}) {
            make(link->group, sms_beside_kernels);
            link->stream = comm::make_comm_stream();
        }
    };

    // links of even stages and then of odd ones: no rank waits for a chain of others
    int links = wrap ? p : p - 1;
    for (int odd : {0, 1})
        for (int from = odd; from < links; from += 2) make_links(from);
    return g;
}
