// signals.h   signals that end a run after its step, with a checkpoint
//   SIGINT, SIGTERM and SIGUSR1; SIGHUP, when a terminal is closed, unless nohup ignores it; and SIGPIPE,
//   when nobody reads what is printed. Rank 0 says so at once. If the step does not end, any of these but
//   SIGPIPE, 3 seconds or more after the first, ends the process.
#pragma once
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include <initializer_list>

namespace stop_signal {
inline volatile sig_atomic_t is_requested = 0, is_noticed = 0, speaks = 0, is_alone = 1;
inline volatile time_t first = 0;

inline time_t now() {  // does not jump if the clock is set
    struct timespec t = {};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

inline bool say(const char* text, size_t n) { return write(STDERR_FILENO, text, n) >= 0; }

inline void handle(int number) {
    constexpr time_t patience = 3;  // seconds: launchers may send one signal twice
    if (!is_requested) {
        first = now();
        constexpr char what[] = "train_gpt: signal received: the run ends after this step, and saves if "
                                "--save is given; a second signal ends it at once\n";
        // mpirun kills its ranks seconds after a Ctrl-C; the launchers send SIGUSR1
        constexpr char hurries[] = "train_gpt: mpirun does not wait for that, and ends its ranks in 2 "
                                   "seconds: scripts/launch_mpirun.sh waits\n";
        constexpr char closed[] = "train_gpt: standard output was closed: the run ends after this step, and "
                                  "saves if --save is given\n";
        if (speaks) number == SIGPIPE ? say(closed, sizeof closed - 1) : say(what, sizeof what - 1);
        if (speaks && number == SIGINT && !is_alone) say(hurries, sizeof hurries - 1);
    }
    is_requested = 1;
    if (is_noticed || number == SIGPIPE || now() - first < patience) return;
    constexpr char why[] = "train_gpt: second signal before the step has ended: not saved\n";
    say(why, sizeof why - 1);
    _exit(128 + number);
}
}  // namespace stop_signal

inline void catch_stop_signals(bool speaks, bool is_alone) {
    stop_signal::speaks = speaks;
    stop_signal::is_alone = is_alone;
    for (int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}) {
        struct sigaction now = {};
        sigaction(number, nullptr, &now);
        if (number != SIGHUP || now.sa_handler != SIG_IGN) signal(number, stop_signal::handle);
    }
}

// the run is about to end: a further signal must not interrupt the last save
inline void notice_stop_signal() { stop_signal::is_noticed = 1; }

// whether a signal has come: notices none
inline bool is_stop_requested() { return stop_signal::is_requested; }

// at a step's end: whether the run is to stop
inline bool take_stop_signal() {
    stop_signal::is_noticed = stop_signal::is_requested;
    return stop_signal::is_noticed;
}
