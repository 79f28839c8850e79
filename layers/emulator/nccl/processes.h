// processes.h   shared memory of a host's ranks: what each of them waits for, and whether they are deadlocked
//   A deadlock is reported when, for some seconds, every live process has tried many times to advance and
//   none has advanced. A rank that computes or is stopped does not try, so it is not taken for a deadlock.
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include "../../base/check.h"
#include "../../base/device.h"

namespace nccl_on_cpu {

constexpr const char* prefix = "nccl-on-cpu-";

// maps the shared memory of this name, the same for all processes; it starts as zeros
inline void* share(const std::string& name, size_t bytes) {
    int file = shm_open(("/" + name).c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes))
        fail("NCCL's stand-in: /dev/shm has no room for %zu bytes (%s)", bytes, strerror(errno));
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (p == MAP_FAILED) fail("NCCL's stand-in: %zu bytes cannot be shared (%s)", bytes, strerror(errno));
    return p;
}

// a unique name for a process, even if its pid is reused
inline std::string name_of(pid_t process) {
    std::string stat, line = "/proc/" + std::to_string(process) + "/stat";
    std::getline(std::ifstream(line), stat);
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    for (int i = 3; i <= 22; i++) fields >> line;  // the 22nd: when it started
    return prefix + std::to_string(process) + "-" + line;
}

// what processes that are gone have left: names begin with the process that made them
inline void remove_old() {
    std::error_code none;
    for (auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
        std::string name = entry.path().filename();
        if (name.rfind(prefix, 0)) continue;
        pid_t maker = atoi(name.c_str() + strlen(prefix));
        if (kill(maker, 0) && errno == ESRCH) std::filesystem::remove(entry.path(), none);
    }
}

struct Processes {
    static constexpr int most = 512;
    static constexpr int64_t tries = 1000;  // by each process, in vain

    struct Process {
        std::atomic<int> id;
        std::atomic<int64_t> tried;
        char waits_for[1000];
    };
    struct Shared {
        std::atomic<int64_t> moves;  // of all
        std::atomic<int> count;
        Process all[most];
    };
    double patience = 3;  // seconds
    Shared* shared;
    Process* own;
    uint64_t turns_seen = 0;
    // as of the last time this process saw anything move: `moves`, the time, and each process's tries
    int64_t moves_seen = -1;
    double since = 0;
    int64_t tried_before[most] = {};

    // mpirun starts all ranks of a host, and gives the name
    Processes() : shared((Shared*)share(name_of(getppid()), sizeof(Shared))) {
        int place = shared->count++;
        if (place >= most) fail("NCCL's stand-in knows at most %d ranks", most);
        own = &shared->all[place];
        own->id = getpid();
    }

    void moved() { shared->moves++; }

    // after a try in vain
    void try_again(const std::string& waits_for) {
        if (turns_seen != emulated::turns_taken) {
            turns_seen = emulated::turns_taken;
            moved();
        }
        if (moves_seen != shared->moves) {
            snprintf(own->waits_for, sizeof own->waits_for, "%s", waits_for.c_str());
            moves_seen = shared->moves;
            since = seconds();
            for (int i = 0; i < shared->count; i++) tried_before[i] = shared->all[i].tried;
        }
        own->tried++;
        if (own->tried % 64 == 0 && seconds() - since > patience && nobody_goes_on()) end();
        sched_yield();
    }

private:
    bool is_alive(const Process& p) const { return p.id && (kill(p.id, 0) == 0 || errno != ESRCH); }
    bool nobody_goes_on() const {
        const char* ranks = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
        if (ranks && shared->count < atoi(ranks)) return false;  // some have not even begun to wait
        for (int i = 0; i < shared->count; i++) {
            const Process& p = shared->all[i];
            if (is_alive(p) && p.tried < tried_before[i] + tries) return false;
        }
        return shared->moves == moves_seen;
    }

    [[noreturn]] void end() const {
        std::string all = "NCCL's stand-in: a deadlock, no rank can go on:";
        for (int i = 0; i < shared->count; i++)
            if (is_alive(shared->all[i])) all += std::string("\n    ") + shared->all[i].waits_for;
        throw Defect(all);
    }
};

inline Processes& processes() {
    static Processes all;
    return all;
}

}  // namespace nccl_on_cpu
