// waiting_threads.h   threads that wait for one another sleep
//   OpenMP's threads spin while they wait: on a machine with other work, or with several ranks, they keep the
//   threads that they wait for from their processor, and a step takes many times as long.
#pragma once
#include <omp.h>
#include <unistd.h>
#include <cstdlib>
#include <string>

// Sets OMP_WAIT_POLICY=passive, unless the user has set it. OpenMP reads it before main(): so a program
// with several threads starts itself once more. If it cannot, its threads spin, and nothing else differs
inline void let_waiting_threads_sleep(char** argv) {
    if (omp_get_max_threads() < 2 || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    std::string path(4096, '\0');
    ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
    if (length <= 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
    path.resize((size_t)length);
    execv(path.c_str(), argv);
}
