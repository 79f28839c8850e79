// nccl_watch.h   calls over NCCL are watched, so that one that does not end is named, and waits are timed
//   While the host waits for the device, it looks at the oldest unfinished call. So that it never blocks
//   inside CUDA's driver, which queues about 1,000 launches per stream, it runs at most about 120 operations,
//   or 15 calls, ahead of the compute stream. (What the first stage sends to the last is bounded by
//   --pipeline-group: check_pipeline.)
//   The time that a rank waits for others is measured on its compute stream: the duration of calls and of
//   groups of calls there, which last until the slowest rank has joined, and of waits for events of comm
//   streams; not within a CUDA graph.
#pragma once
#include <deque>
#include "call_times.h"
#include "capture.h"
#include "nccl_start.h"

namespace comm {
namespace {

// ---- calls -----------------------------------------------------------------------------------------------

bool capturing = false;  // calls become part of a CUDA graph, which is watched as a whole

// calls that may still be running, oldest first
struct Watched {
    std::string here;
    long number;
    Group group;
    Stream stream;
    std::unique_ptr<Event> ended;
};
std::deque<Watched> watched;

std::vector<std::pair<std::shared_ptr<CallTimes>, Stream>> timed;  // calls that end with the group
std::vector<const Handle*> communicators;

void advance_comm_streams() { let_device_go_on(); }

void forget_ended() {
    while (!watched.empty() && watched.front().ended && watched.front().ended->reached()) watched.pop_front();
}

// the timeout applies to how long the oldest call has been the oldest
void look() {
    static long oldest = 0;
    static double since = 0;
    forget_ended();

    long number = watched.empty() ? -1 : watched.front().number;
    if (number != oldest) {
        oldest = number;
        since = seconds();
    }

    std::string here = watched.empty() ? "a computation" : watched.front().here;
    answer_questions(here, watched.empty() ? std::vector<int>() : watched.front().group.members);
    for (const Handle* each : communicators) {
        ncclResult_t error = ncclSuccess;
        ncclCommGetAsyncError((ncclComm_t)each->nccl, &error);
        check_nccl(error, each->name.c_str());
    }

    if (!watched.empty() && seconds() - since > timeout) find_who_hangs(here, watched.front().group.members);
}

// What was enqueued since the compute stream's progress was last marked: an operation counts as one, and so
// does each GEMM (between two counts are at most 8 launches, mostly 1 or 2), a call as eight (events, NCCL's
// waits for its own streams, its kernel)
int enqueued = 0;

// The progress is marked each time that 24 have been enqueued; before the fifth mark, the host waits for the
// first
void stay_near_the_device(Stream compute) {
    constexpr int apart = 24, most = 4;
    static Event marks[most];
    static long mark = 0;
    if (capturing || ++enqueued < apart) return;

    enqueued = 0;
    Event& reused = marks[++mark % most];
    for (long turn = 1; mark > most && !reused.reached(); turn++) {
        if (turn % 1024 == 0) look();
        if (turn % 64 == 0) sched_yield();
    }
    reused.record(compute);
}

void end_calls() {
    if (capturing) return;  // captured events cannot be queried
    enqueued += 8;
    for (auto& [times, stream] : timed) times->last.record(stream);
    timed.clear();
    for (auto& w : watched)
        if (!w.ended) {
            w.ended = std::make_unique<Event>();
            w.ended->record(w.stream);
        }
    forget_ended();
}

// a call that is about to be enqueued; end_calls() follows when it is
void watch_call(const std::string& here, const Group& g, Stream s) {
    if (!capturing) watched.push_back({here, calls, g, s, nullptr});
}

// times it, if the caller wants that
void time_call(Stream s) {
    auto times = std::move(times_of_next_call);
    if (!times) return;
    times->has_events = true;
    times->first.record(s);
    timed.push_back({times, s});
}

// ---- waits -----------------------------------------------------------------------------------------------

struct Wait {
    TimedEvent begin, end;
};
std::deque<std::unique_ptr<Wait>> waits, unused_waits;  // of the compute stream, not yet counted
double device_waited = 0;                               // seconds

template <class Work>
void time_wait(Stream compute, Work work) {
    if (waits.size() > 4096) waited_seconds();  // if nobody else asks, as in evaluation
    if (unused_waits.empty()) unused_waits.push_back(std::make_unique<Wait>());
    waits.push_back(std::move(unused_waits.front()));
    unused_waits.pop_front();
    waits.back()->begin.record(compute);
    work();
    waits.back()->end.record(compute);
}

}  // namespace

// counts the waits that the device has finished
double waited_seconds() {
    while (!waits.empty() && waits.front()->end.reached()) {
        device_waited += waits.front()->end.since(waits.front()->begin);
        unused_waits.push_back(std::move(waits.front()));
        waits.pop_front();
    }
    return host_waited + device_waited;
}

}  // namespace comm
