// machines.h   machines to plan for, and how long a piece of work takes there
//   A node holds `node` GPUs. Each sends `nvlink` bytes/s to others of its node and `network` bytes/s to
//   other nodes, both ways at once; `leaf` nodes share their leaf switches.
//     GEMM         max(2 m n k / (efficiency * peak * filled), bytes / bandwidth) + launch
//                  filled: the useful part of 128 x 128 tiles, and of waves of `sms` tiles; where there are
//                  fewer tiles than multiprocessors k is split, down to parts of 512
//     memory       bytes / bandwidth + launch
//     collective   bytes that each rank sends / rate + base + a hop for each step of the ring. Over several
//                  nodes with n of the group's ranks each the rate is min(nvlink, n network): a GPU has an
//                  adapter of its own, and NCCL makes rings through all of them
//   `efficiency`, 0.480 unless --gemm-efficiency says otherwise, is the one number that was fitted: to
//   MT-NLG's three published runs, see README.md.
//   Sources
//     GPUs                  base/hardware.h
//     network, node, leaf   NVIDIA DGX A100 and H100 data sheets (8 x HDR 200 Gb/s, 8 x NDR 400 Gb/s); DGX
//                           SuperPOD reference architectures: 20 and 32 nodes in a scalable unit
//     nvlink                what NCCL counts on: src/graph/tuning.cc (235 GB/s on A100), topo.h (18 links
//                           of 20.6 GB/s on H100)
//     base, hop             NCCL, src/graph/tuning.cc: ring, Simple: 8.4 us, 3.4 us inside, 9.6 us outside
//     launch                4 us, the time of an empty kernel in a stream; rounded up from NVIDIA's "Getting
//                           started with CUDA graphs"
#pragma once
#include <string>
#include "../../comm/comm.h"
#include "../base/hardware.h"
#include "../model/config.h"

struct Hardware {
    const char* name;
    Gpu gpu;
    int node;
    double nvlink, network;
    int leaf;
    double efficiency = 0;  // of GEMMs, --gemm-efficiency
    bool is_known() const { return gpu.peak > 0; }  // else there are no times
};

inline const std::vector<Hardware> machines = {
    {"dgx-a100", *find_gpu("A100-SXM4-80GB"), 8, 235e9, 25e9, 20},
    {"dgx-h100", *find_gpu("H100 80GB HBM3"), 8, 370e9, 50e9, 32},
    {"dgx-h200", *find_gpu("NVIDIA H200"), 8, 370e9, 50e9, 32},
    {"here", {"", 0, 0, 0, 0, 1}, 8, 0, 0, 1},  // this machine in this build, if it is none of those
};
constexpr double launch_seconds = 4e-6, call_base = 8.4e-6, hop_inside = 3.4e-6, hop_outside = 9.6e-6;

inline Hardware find_hardware(const std::string& name) {
    std::vector<std::string> names;
    for (auto& h : machines) {
        if (name == h.name) return h;
        names.push_back(h.name);
    }
    std::string all;
    for (auto& n : names) all += " " + n;
    fail("--hardware %s: unknown: choose one of%s", name.c_str(), all.c_str());
}

// the machine named, else the one that is here; with --plan, else the one that most is known of
inline Hardware choose_hardware(const Options& o) {
    std::string name = o.hardware, device = device_name();
    for (auto& h : machines)
        if (name.empty() && h.is_known() && device.find(h.gpu.name) != device.npos) name = h.name;
    Hardware found = find_hardware(!name.empty() ? name : o.plan.empty() ? "here" : "dgx-a100");
    found.efficiency = o.gemm_efficiency;
    if (o.fp8 == "yes" && found.gpu.fp8 == 0)
        fail("--fp8 yes on %s: it has no GEMMs of 8-bit numbers: choose another --hardware", found.name);
    return found;
}

// one GEMM, or `batch` of them
struct GemmShape {
    long m, n, k, batch = 1;
    double flops() const { return 2.0 * (double)m * (double)n * (double)k * (double)batch; }
};

inline double filled(const Hardware& h, const GemmShape& p) {
    constexpr long tile = 128, least_k = 512;
    long rows = (p.m + tile - 1) / tile, columns = (p.n + tile - 1) / tile;
    long tiles = rows * columns * p.batch, parts = 1;
    while (tiles * parts * 2 <= h.gpu.sms && p.k / (parts * 2) >= least_k) parts *= 2;
    double waves = std::ceil((double)(tiles * parts) / h.gpu.sms);
    double used = (double)(tiles * parts) / (waves * h.gpu.sms);
    return used * (double)(p.m * p.n) / (double)(rows * columns * tile * tile);
}

// bytes: of its operands, read, and its result, written
inline double gemm_seconds(const Hardware& h, const GemmShape& p, double bytes) {
    double compute = p.flops() / (h.efficiency * h.gpu.peak * filled(h, p));
    return std::max(compute, bytes / h.gpu.bandwidth) + launch_seconds;
}

inline double memory_seconds(const Hardware& h, double bytes) {
    return bytes / h.gpu.bandwidth + launch_seconds;
}

// the nodes that a group lies on: `ranks` ranks from `first`, `stride` apart; nodes are filled one by one
inline int nodes_of(const Hardware& h, int first, int stride, int ranks) {
    int nodes = 1;
    for (int i = 1; i < ranks; i++)
        nodes += (first + i * stride) / h.node != (first + (i - 1) * stride) / h.node;
    return nodes;
}

// the same of tensor-parallel groups; where t does not divide a node some straddle two: all wait for those
inline int tensor_nodes(const Hardware& h, int t) {
    int most = 1;
    for (int i = 0; i < h.node; i++) most = std::max(most, nodes_of(h, i * t, 1, t));
    return most;
}

// of a collective over bytes of the whole, or of a message
inline double call_seconds(const Hardware& h, comm::Collective kind, int ranks, int nodes, double bytes) {
    if (ranks == 1) return 0;
    double sent = (double)comm::sent_bytes(kind, ranks, (long)bytes);
    double rate = nodes == 1 ? h.nvlink : std::min(h.nvlink, h.network * ranks / nodes);
    double hops = (ranks - nodes) * hop_inside + (nodes - 1) * hop_outside;
    return sent / rate + call_base + (kind == comm::Collective::AllReduce ? 2 : 1) * hops;
}
