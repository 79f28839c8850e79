// machines.h   machines to plan for, and how long a piece of work takes on them
//   A node holds `node` GPUs. Each sends `nvlink` bytes/s to others of its node and `network` bytes/s to
//   other nodes, both ways at once; `leaf` nodes share their leaf switches.
//     GEMM         max(2 m n k / (rate * filled), bytes / bandwidth) + launch
//                  rate = efficiency * peak / (1 + narrow_loss / min(n, k)): the narrower a shard of the
//                  weights, the more overhead and data movement per product
//                  filled: the useful share of 128 x 128 tiles, and of waves of `sms` tiles; if there are
//                  fewer tiles than multiprocessors, k is split into parts of at least 512
//     memory       bytes / bandwidth + launch
//     collective   bytes that each rank sends / rate + base + a hop for each step of the ring. Over several
//                  nodes, with n of the group's ranks on each, the rate is min(nvlink, n network): every GPU
//                  has an adapter of its own, and NCCL builds rings through all of them
//   Two numbers are fitted to published runs of Megatron-LM (published.h): narrow_loss, and the `efficiency`
//   that --gemm-efficiency sets. Its default is fitted to MT-NLG's runs instead, whose software was slower.
//   Sources
//     GPUs                  base/hardware.h
//     network, node, leaf   NVIDIA DGX A100 and H100 data sheets (8 x HDR 200 Gb/s, 8 x NDR 400 Gb/s); DGX
//                           SuperPOD reference architectures: 20 and 32 nodes per scalable unit. Azure's
//                           NDv4 (ND96asr_v4) and NDm v4 also have one HDR adapter per GPU; how many hosts
//                           share a leaf is not published: 20, as many as a 40-port switch allows
//     nvlink                what NCCL assumes: src/graph/tuning.cc (235 GB/s on A100), topo.h (18 links
//                           of 20.6 GB/s on H100)
//     base, hop             NCCL, src/graph/tuning.cc: ring, Simple: 8.4 us, 3.4 us inside, 9.6 us outside
//                           PCIe: 25 GB/s of generation 4's 32, 50 of generation 5's 64, assuming that GPUs
//                           reach one another directly (GeForce cards often do not)
//     launch                4 us, the time of an empty kernel in a stream; rounded up from NVIDIA's "Getting
//                           started with CUDA graphs"
#pragma once
#include <string>
#include "../../comm/comm.h"
#include "../base/hardware.h"
#include "../run/config.h"

struct Hardware {
    const char* name;
    Gpu gpu;
    int node;
    double nvlink, network;
    int leaf;
    double efficiency = 0;  // of GEMMs, --gemm-efficiency
    bool is_measured = false;  // rates measured by this build, on this machine
    bool is_known() const { return gpu.peak > 0; }  // else there are no times
};

inline const std::vector<Hardware> machines = {
    {"dgx-a100", *find_gpu("A100-SXM4-80GB"), 8, 235e9, 25e9, 20},
    {"azure-ndv4", *find_gpu("A100-SXM4-40GB"), 8, 235e9, 25e9, 20},
    {"azure-ndmv4", *find_gpu("A100-SXM4-80GB"), 8, 235e9, 25e9, 20},
    {"dgx-h100", *find_gpu("H100 80GB HBM3"), 8, 370e9, 50e9, 32},
    {"dgx-h200", *find_gpu("NVIDIA H200"), 8, 370e9, 50e9, 32},
    {"rtx-4090", *find_gpu("RTX 4090"), 8, 25e9, 12.5e9, 20},
    {"rtx-5090", *find_gpu("RTX 5090"), 8, 50e9, 12.5e9, 20},
    {"l40s", *find_gpu("L40S"), 8, 25e9, 25e9, 20},
    {"rtx-pro-6000", *find_gpu("RTX PRO 6000"), 8, 50e9, 50e9, 20},
    {"here", {.name = "", .peak = 0, .fp8 = 1}, 8, 0, 0, 1},  // this machine, if it is none of the above
};
constexpr double narrow_loss = 350;  // fitted: see published.h
constexpr double mtnlg_efficiency = 0.545, megatron_efficiency = 0.765;
constexpr double launch_seconds = 4e-6, call_base = 8.4e-6, hop_inside = 3.4e-6, hop_outside = 9.6e-6;

// one's own machine: memory=GB,tflops=DENSE_BF16,bandwidth=GB/s[,gpus=8][,link=GB/s][,network=GB/s]
inline Hardware hardware_from_numbers(const std::string& given) {
    std::map<std::string, double> of = {{"memory", 0}, {"tflops", 0}, {"bandwidth", 0},
                                        {"gpus", 8}, {"link", 25}, {"network", 12.5}};
    std::istringstream words(given);
    for (std::string word; std::getline(words, word, ',');) {
        size_t equals = word.find('=');
        std::string name = word.substr(0, equals);
        if (equals == word.npos || !of.count(name))
            fail("--hardware %s: %s: expected memory=GB,tflops=N,bandwidth=GB/s and, if they differ, gpus=8 "
                 "(of a node), link=25 and network=12.5 (GB/s)", given.c_str(), word.c_str());
        of[name] = parse_number("hardware " + name, word.substr(equals + 1), 1e-3, name == "gpus");
        if (of[name] > 1e6)
            fail("--hardware %s: %s: is in GB, TFLOP/s and GB/s: memory=80 is 80 GB", given.c_str(),
                 word.c_str());
    }
    for (const char* name : {"memory", "tflops", "bandwidth"})
        if (of[name] == 0) fail("--hardware %s: lacks %s", given.c_str(), name);
    Gpu gpu = {"own", of["tflops"] * 1e12, of["memory"] * 1e9, of["bandwidth"] * 1e9, 0, 2};
    return {"own", gpu, (int)of["gpus"], of["link"] * 1e9, of["network"] * 1e9, 20};
}

inline Hardware find_hardware(const std::string& name) {
    if (name.find('=') != name.npos) return hardware_from_numbers(name);
    std::string all;
    std::vector<std::string> names;
    for (auto& h : machines) {
        if (name == h.name) return h;
        all += std::string(" ") + h.name;
        names.push_back(h.name);
    }
    std::string near = nearest(name, names);
    bool is_near = edit_distance(name, near) <= 2;
    fail("--hardware %s: unknown: %schoose one of%s, or give memory=GB,tflops=N,bandwidth=GB/s", name.c_str(),
         is_near ? text("did you mean %s? Otherwise ", near.c_str()).c_str() : "", all.c_str());
}

// the machine named, else the one we run on; if that is in no table, with --plan, the best documented one
inline Hardware choose_hardware(const Options& o) {
    std::string name = o.hardware;
    const Gpu* here = find_gpu(device_name());
    for (auto& h : machines)
        if (name.empty() && here && h.is_known() && !strcmp(h.gpu.name, here->name)) name = h.name;
    Hardware found = find_hardware(!name.empty() ? name : o.plan.empty() ? "here" : "dgx-a100");
    if (found.name == std::string("here")) found.gpu.memory = (double)free_memory() * 11 / 12;
    found.efficiency = o.gemm_efficiency;
    if (o.network_rate > 0) found.network = 1e9 * o.network_rate;
    if (o.fp8 == "yes" && found.gpu.fp8 == 0)
        fail("--fp8 yes on %s: it has no FP8 GEMMs: choose another --hardware", found.name);
    return found;
}

inline double filled(const Hardware& h, const GemmShape& p) {
    if (h.is_measured || h.gpu.sms == 0 || p.m * p.n == 0) return 1;
    constexpr long tile = 128, least_k = 512;
    long rows = (p.m + tile - 1) / tile, columns = (p.n + tile - 1) / tile;
    long tiles = rows * columns * p.batch, parts = 1;
    while (tiles * parts * 2 <= h.gpu.sms && p.k / (parts * 2) >= least_k) parts *= 2;
    double waves = std::ceil((double)(tiles * parts) / h.gpu.sms);
    double used = (double)(tiles * parts) / (waves * h.gpu.sms);
    return used * (double)(p.m * p.n) / (double)(rows * columns * tile * tile);
}

// bytes: of its operands, which are read, and its result, which is written
inline double gemm_seconds(const Hardware& h, const GemmShape& p, double bytes) {
    double loss = h.is_measured ? 0 : narrow_loss / (double)std::min(p.n, p.k);
    double rate = h.efficiency * h.gpu.peak / (1 + loss);
    double compute = p.flops() / (rate * filled(h, p));
    return std::max(compute, bytes / h.gpu.bandwidth) + launch_seconds;
}

inline double memory_seconds(const Hardware& h, double bytes) {
    return bytes / h.gpu.bandwidth + launch_seconds;
}

// how many nodes a group's ranks, in ascending or descending order, are on; nodes are filled one by one
inline int nodes_of(const Hardware& h, const std::vector<int>& members) {
    int nodes = 1;
    for (size_t i = 1; i < members.size(); i++) nodes += members[i] / h.node != members[i - 1] / h.node;
    return nodes;
}

// the same for tensor-parallel groups: if t does not divide a node, some straddle two, and all wait for them
inline int tensor_nodes(const Hardware& h, int t) {
    int most = 1;
    for (int i = 0; i < h.node; i++) most = std::max(most, 1 + (i * t + t - 1) / h.node - i * t / h.node);
    return most;
}

// the time of a collective over `bytes` of the whole, or of a message
inline double call_seconds(const Hardware& h, comm::Collective kind, int ranks, int nodes, double bytes) {
    if (ranks == 1) return 0;
    double sent = (double)comm::sent_bytes(kind, ranks, (long)bytes);
    double rate = nodes == 1 ? h.nvlink : std::min(h.nvlink, h.network * ranks / nodes);
    double hops = (ranks - nodes) * hop_inside + (nodes - 1) * hop_outside;
    return sent / rate + call_base + (kind == comm::Collective::AllReduce ? 2 : 1) * hops;
}

// the time of a sum of a few numbers over the world, which goes up and down a tree
inline double small_sum_seconds(int ranks) {
    return call_base + 2 * std::log2(std::max(2, ranks)) * hop_outside;
}
