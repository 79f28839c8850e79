// placement.h   which ranks are on which hosts, and how many bytes of a step cross each level of the network
//   FILE has one host per line, as mpirun reads it: `node17 slots=8`; without slots, as many as a node of the
//   hardware has GPUs. Ranks fill host after host, as both launchers start them.
//   levels: inside a node; between nodes of one leaf (`leaf` consecutive hosts); between leaves
//   In a ring each member sends to the next, and the last to the first.
#pragma once
#include <algorithm>
#include <array>
#include <sstream>
#include "../../comm/mpi/collective_check.h"
#include "plan.h"

struct Host { std::string name; int slots; };

inline std::vector<Host> read_hosts(const std::string& path, int slots) {
    WholeFile file(path);
    std::istringstream lines{std::string(file.text())};
    std::vector<Host> hosts;
    std::string line;
    for (int number = 1; std::getline(lines, line); number++) {
        std::istringstream words(without_comment(line));
        std::string name, word;
        if (!(words >> name)) continue;

        int count = slots;
        while (words >> word) {
            // an option of mpirun's own
            if (word.rfind("max_slots=", 0) == 0 || word.rfind("max-slots=", 0) == 0) continue;
            char* end = nullptr;
            long given = word.rfind("slots=", 0) == 0 ? strtol(word.c_str() + 6, &end, 10) : 0;
            count = (int)given;
            if (!end || *end || given < 1 || given > 4096)
                fail("--hosts %s line %d: \"%s\": expected slots=N with N from 1 to 4096", path.c_str(),
                     number, word.c_str());
        }

        auto same = [&](const Host& h) { return h.name == name; };
        auto before = std::find_if(hosts.begin(), hosts.end(), same);
        if (before != hosts.end()) before->slots += count;  // as mpirun counts
        else hosts.push_back({name, count});
    }

    if (hosts.empty())
        fail("--hosts %s: names no host: expected one line per host, as in node17 slots=8", path.c_str());
    return hosts;
}

class Placement {
    const Plan& plan;
    std::vector<Host> hosts;
    std::vector<int> host_of;
    std::map<std::string, std::array<double, 3>> bytes;  // group -> inside, leaf, beyond

    void add(const std::string& group, int from, int to, double sent) {
        int a = host_of[from], b = host_of[to], leaf = plan.hardware.leaf;
        bytes[group][a == b ? 0 : a / leaf == b / leaf ? 1 : 2] += sent;
    }

    void count(int rank) {
        const Grid& g = plan.grid;
        Grid at = place_in_grid(rank, plan.world(), g.t, g.p);
        auto& work = plan.stages[at.stage].work.at(plan.o.batch);
        for (auto& [group, traffic] : work.traffic) {
            double sent = (double)traffic.sent;
            auto to = [&](int tensor, int data, int stage) {
                return at.rank_of(tensor, data, (stage + g.p) % g.p);
            };

            int next = group == "tensor" ? to((at.tensor + 1) % g.t, at.data, at.stage)
                : group == "data" ? to(at.tensor, (at.data + 1) % g.d, at.stage)
                : group == "forward" ? to(at.tensor, at.data, at.stage + 1)
                : group == "backward" ? to(at.tensor, at.data, at.stage - 1)
                : group == "tied embedding" ? to(at.tensor, at.data, at.stage ? 0 : g.p - 1)
                : (rank + 1) % plan.world();
            add(group, rank, next, sent);
        }
    }

public:
    Placement(const Plan& plan, const std::string& path)
        : plan(plan), hosts(read_hosts(path, plan.hardware.node)) {
        for (size_t h = 0; h < hosts.size(); h++)
            for (int i = 0; i < hosts[h].slots && (int)host_of.size() < plan.world(); i++)
                host_of.push_back((int)h);
        if ((int)host_of.size() < plan.world())
            fail("--hosts %s: has %zu hosts with room for %zu ranks, needs room for %d: add hosts, or lower "
                 "--world-size", path.c_str(), hosts.size(), host_of.size(), plan.world());
        for (int rank = 0; rank < plan.world(); rank++) count(rank);
    }

    std::string print() const {
        const Grid& g = plan.grid;
        std::string out = "hosts\n";
        for (int first = 0; first < plan.world();) {
            int last = first;
            while (last + 1 < plan.world() && host_of[last + 1] == host_of[first]) last++;
            Grid a = place_in_grid(first, plan.world(), g.t, g.p),
                 b = place_in_grid(last, plan.world(), g.t, g.p);
            auto range = [](int x, int y) { return x == y ? text("%d", x) : text("%d to %d", x, y); };
            out += text("  %-16s leaf %-3d ranks %s: stage %s, data %s\n", hosts[host_of[first]].name.c_str(),
                        host_of[first] / plan.hardware.leaf, range(first, last).c_str(),
                        range(a.stage, b.stage).c_str(),
                        a.stage == b.stage ? range(a.data, b.data).c_str() : "several");
            first = last + 1;
        }

        out += "groups of rank 0\n";
        auto members = [&](const char* name, int stride, int n) {
            std::vector<int> ranks;
            for (int i = 0; i < n; i++) ranks.push_back(i * stride);
            if (n > 1) out += text("  %-16s %s\n", name, comm::rank_list(ranks).c_str());
        };
        members("tensor", 1, g.t);
        members("data", g.t, g.d);
        members("pipeline", g.t * g.d, g.p);

        out += "all ranks send in a step, GB   inside a node   to its leaf   beyond the leaf\n";
        for (auto& [group, level] : bytes)
            out += text("  %-26s %16.4g %13.4g %17.4g\n", group.c_str(), level[0] * 1e-9, level[1] * 1e-9,
                        level[2] * 1e-9);
        return out;
    }
};
