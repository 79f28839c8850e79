// process.h   what a process asks of its host: standard streams, threads that exist and sleep while they
//   wait, memory that it keeps; a loop over OpenMP's threads
#pragma once
#include <fcntl.h>
#include <malloc.h>
#include <omp.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>

// A program that is started without standard input, output or error (`./train_gpt … <&- >&- &`) would print
// into whichever file it opens next: a lock, or metrics
inline void open_standard_streams() {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)  // open() takes the lowest free number; answers to nobody still fail
            open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

// Every thread that is asked for is started. By OMP_DYNAMIC=true on a busy machine, or OMP_THREAD_LIMIT,
// there are fewer, and OpenBLAS waits for ever for those that are missing
inline void start_all_threads() {
    omp_set_dynamic(0);
    omp_set_num_threads(std::min(omp_get_max_threads(), omp_get_thread_limit()));
}

// OpenMP's threads spin while they wait: on a machine with other work, or with several ranks, they take the
// processor from the threads that they wait for, and a step takes many times as long.
// Sets OMP_WAIT_POLICY=passive, unless the user has set it. OpenMP reads it before main(): so a program
// with several threads re-executes itself. If it cannot, its threads spin, and nothing else differs
inline void let_waiting_threads_sleep(char** argv) {
    if (omp_get_max_threads() < 2 || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    std::string path(4096, '\0');
    ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
    if (length <= 0 || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
    path.resize((size_t)length);
    execv(path.c_str(), argv);
}

// From now on malloc keeps freed memory. Every step allocates and frees the same hundreds of megabytes (MPI's
// reductions, and computations of CPU builds); faulting them in again page by page made a step on two ranks
// 7 % longer. Call it after start-up, which needs much memory just once.
inline void keep_freed_memory() {
#if defined(__GLIBC__)
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

// call(i) for i < n, by OpenMP's threads; if some throw, one of the exceptions is thrown after the loop
template <class Call>
void in_parallel(long n, Call call) {
    std::exception_ptr error;
    #pragma omp parallel for schedule(dynamic) if (n > 1)
    for (long i = 0; i < n; i++) {
        try {
            call(i);
        } catch (...) {
            #pragma omp critical
            error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
}
