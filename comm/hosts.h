// hosts.h   which host each rank is on, and what of that a user should know before the first step
#pragma once
#include <unistd.h>
#include <cstring>
#include <map>
#include <string>
#include <vector>
#include "collective_check.h"
#include "grid.h"

namespace comm {

constexpr size_t host_words = 8;  // int64 that hold a name

inline std::string host_name() {
    char name[host_words * 8] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

// by rank; collective
inline std::vector<std::string> gather_hosts(const Group& world) {
    std::vector<int64_t> mine(host_words);
    std::string name = host_name();
    memcpy(mine.data(), name.data(), name.size());
    std::vector<int64_t> all = gather_numbers(world, mine, "host names");
    std::vector<std::string> hosts;
    for (size_t at = 0; at < all.size(); at += host_words) hosts.push_back((const char*)&all[at]);
    return hosts;
}

// Tensor groups of t ranks that lie on more than one host, and hosts with more ranks than devices (0: no
// GPU): both work, slowly. A line for each of the two, which names the first and counts the others.
inline std::string host_notes(const std::vector<std::string>& hosts, int t, int devices) {
    std::string notes;
    int straddling = 0, groups = (int)hosts.size() / t;
    for (int first = 0; first < groups * t; first += t) {
        int other = first;  // the first rank on another host
        while (other < first + t && hosts[other] == hosts[first]) other++;
        if (other == first + t || straddling++) continue;
        notes = text("rank %d on %s and rank %d on %s", first, hosts[first].c_str(), other,
                     hosts[other].c_str());
    }
    if (straddling)
        notes = text("note: %d of %d tensor-parallel groups of %d lie on more than one host (%s): every "
                     "layer waits for the network: start a multiple of %d ranks on each host, one host after "
                     "the other, or lower --tensor-parallel\n", straddling, groups, t, notes.c_str(), t);
    std::map<std::string, int> ranks;
    for (auto& host : hosts) ranks[host]++;
    std::string crowded;
    int more = -1;
    for (auto& [host, n] : ranks)
        if (devices > 0 && n > devices && ++more == 0) crowded = text("%s has %d ranks", host.c_str(), n);
    if (more > 0) crowded += text(", and %d more host%s too many,", more, more == 1 ? "" : "s");
    if (more >= 0)
        notes += text("note: ranks share GPUs: %s for %d GPU%s: NCCL refuses this, others are slow: start at "
                      "most %d on a host\n", crowded.c_str(), devices, devices == 1 ? "" : "s", devices);
    return notes;
}

}  // namespace comm
