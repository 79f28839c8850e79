// hosts.h   which host each rank runs on, and notes for the user about placement that makes a run slow
#pragma once
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>
#include "collective_check.h"
#include "../grid.h"

namespace comm {

inline std::string host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

// the same on all ranks of a host, and on no other
inline int64_t host_id() {
    std::string name = host_name();
    return (int64_t)checksum(name.data(), name.size());
}

// host names by rank, the first 63 bytes of each; collective
inline std::vector<std::string> gather_hosts(const Group& world) {
    constexpr size_t words = 8;
    std::string name = host_name();
    std::vector<int64_t> mine(words);
    memcpy(mine.data(), name.data(), std::min(name.size(), words * sizeof(int64_t) - 1));
    std::vector<int64_t> all = gather_numbers(world, mine, "host names");
    std::vector<std::string> hosts;
    for (size_t at = 0; at < all.size(); at += words) hosts.push_back((const char*)&all[at]);
    return hosts;
}

// Notes on tensor groups of t ranks that span several hosts, and on hosts with more ranks than devices (0: no
// GPU): slow, or refused by NCCL. At most one line each, with the first case and a count.
inline std::string host_notes(const std::vector<std::string>& hosts, int t, int devices) {
    std::string notes, apart, crowded;  // the first of each kind
    int straddling = 0, crowds = 0, groups = (int)hosts.size() / t;
    for (int first = 0; first < groups * t; first += t) {
        int other = first + 1;
        while (other < first + t && hosts[other] == hosts[first]) other++;
        if (other == first + t) continue;
        if (straddling++ == 0)
            apart = text("rank %d on %s and rank %d on %s", first, hosts[first].c_str(), other,
                         hosts[other].c_str());
    }
    if (straddling)
        notes = text("note: %d of %d tensor-parallel groups of %d span more than one host (%s), so every "
                     "layer waits for the network: fill one host after the other, each with a multiple of %d "
                     "ranks, or lower --tensor-parallel\n", straddling, groups, t, apart.c_str(), t);
    if (!devices) return notes;

    std::map<std::string, int> ranks;
    for (auto& host : hosts) ranks[host]++;
    for (auto& [host, n] : ranks)
        if (n > devices && crowds++ == 0) crowded = text("%s has %d ranks", host.c_str(), n);
    if (crowds > 1) crowded += text(", and %d more host%s too many,", crowds - 1, crowds == 2 ? "" : "s");
    if (crowds)
        notes += text("note: ranks share GPUs: %s for %d GPU%s: NCCL refuses this, MPI is slow: start at "
                      "most %d per host\n", crowded.c_str(), devices, devices == 1 ? "" : "s", devices);
    return notes;
}

}  // namespace comm
