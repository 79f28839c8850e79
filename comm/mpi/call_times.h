// call_times.h   how long a call on a comm stream took, for --trace
#pragma once
#include <utility>
#include "../../layers/base/timed_event.h"
#include "../comm.h"

namespace comm {

// When a call on a comm stream began and ended, by the host's clock or by events of the stream
struct CallTimes {
    double began = 0, ended = 0;  // seconds()
    bool has_events = false;
    TimedEvent first, last;
    // begin and end in seconds since `origin`, at which the host's clock was host_origin
    std::pair<double, double> span(const TimedEvent& origin, double host_origin) const {
        if (has_events) return {first.since(origin), last.since(origin)};
        return {began - host_origin, ended - host_origin};
    }
};

// to time the next call, set this: the transport fills it in
inline std::shared_ptr<CallTimes> times_of_next_call;

}  // namespace comm
