// start_times.h   how long a run takes to reach its first step, and how many MPI messages it sends, by phase
//   All ranks end a phase at about the same time, as most phases end with a collective check. NCCL's messages
//   are not counted.
#pragma once
#include <cstdio>
#include <string>
#include <vector>
#include "../../comm/comm.h"

class StartTimes {
    struct Phase {
        const char* name;
        double seconds;
        long messages;
    };
    std::vector<Phase> phases;
    double begun = seconds();
    long sent = 0;

public:
    // ends a phase, which began when the last one ended
    void end(const char* phase) {
        double now = seconds();
        long all = comm::sent_messages().count;
        phases.push_back({phase, now - begun, all - sent});
        begun = now;
        sent = all;
    }

    // seconds of each phase on its slowest rank; messages if something counts them (scripts/test_start.py).
    // Collective over the world
    std::string print(const comm::Group& world) const {
        constexpr double unit = 1e-6;
        comm::SentMessages mine = comm::sent_messages();
        std::vector<int64_t> numbers = {mine.count, mine.peers};
        for (auto& p : phases) numbers.insert(numbers.end(), {(int64_t)(p.seconds / unit), p.messages});
        std::vector<int64_t> all = comm::gather_numbers(world, numbers, "the start's times");

        auto most = [&](size_t which) {
            int64_t found = all[which];
            for (size_t i = which; i < all.size(); i += numbers.size()) found = std::max(found, all[i]);
            return found;
        };

        std::string times, messages;
        double sum = 0;
        for (size_t i = 0; i < phases.size(); i++) {
            double slowest = (double)most(2 + 2 * i) * unit;
            sum += slowest;
            times += text("%s %s %.3g", i ? "," : "", phases[i].name, slowest);
            messages += text("%s %s %ld", i ? "," : "", phases[i].name, (long)most(3 + 2 * i));
        }
        std::string out = text("start     %.3g s:%s (each on its slowest rank)\n", sum, times.c_str());

        if (mine.count < 0) return out;
        int64_t whole = 0;
        for (size_t i = 0; i < all.size(); i += numbers.size()) whole += all[i];
        return out + text("messages  %ld over MPI; at most %ld peers per rank; at most per rank:%s\n",
                          (long)whole, (long)most(1), messages.c_str());
    }
};
