// trace.h   when a step's computations began and ended, on a device by events in its stream
//   { Traced timed(Span::Forward, micro, chunk, stream); … }   costs nothing while tracing.on is false
#pragma once
#include <list>
#include "../comm/comm.h"
#include "../layers/base/profile.h"
#include "simulate.h"

struct Trace {
    struct Entry { Span::Kind kind; int micro, chunk; Moment begin, end; };
    bool on = false;
    std::list<Entry> entries;
    Moment origin;

    void start(const comm::Group& world, Stream stream) {
        synchronize(stream);
        comm::barrier(world, "the traced step");  // clocks of several hosts are as near as this
        origin.record(stream);
        on = true;
    }
    // this rank's spans; seconds since the start
    std::vector<Span> stop(int stage, Stream stream) {
        on = false;
        synchronize(stream);
        std::vector<Span> spans;
        for (auto& e : entries)
            spans.push_back({e.kind, stage, e.micro, e.chunk, e.begin.since(origin), e.end.since(origin)});
        entries.clear();
        return spans;
    }
};
inline Trace tracing;

struct Traced {
    Range range;
    Stream stream;
    Trace::Entry* entry = nullptr;
    Traced(Span::Kind kind, int micro, int chunk, Stream stream)
        : range(kind == Span::Forward ? "forward" : kind == Span::Backward ? "backward" : "update"),
          stream(stream) {
        if (!tracing.on) return;
        entry = &tracing.entries.emplace_back();
        entry->kind = kind;
        entry->micro = micro;
        entry->chunk = chunk;
        entry->begin.record(stream);
    }
    ~Traced() {
        if (entry) entry->end.record(stream);
    }
    Traced(const Traced&) = delete;
};

// the spans of every stage of the first replica; collective over the world
inline std::vector<Span> gather_spans(const comm::Group& world, const std::vector<Span>& mine, bool counts) {
    int64_t most = 0;
    for (int64_t n : comm::gather_numbers(world, {(int64_t)mine.size()}, "spans")) most = std::max(most, n);
    std::vector<int64_t> numbers((size_t)most * 6, -1);
    for (size_t i = 0; counts && i < mine.size(); i++) {
        const Span& s = mine[i];
        int64_t row[] = {s.kind, s.stage, s.micro, s.chunk, std::bit_cast<int64_t>(s.start),
                         std::bit_cast<int64_t>(s.end)};
        std::copy(row, row + 6, &numbers[i * 6]);
    }
    std::vector<int64_t> all = comm::gather_numbers(world, numbers, "spans");
    std::vector<Span> spans;
    for (size_t i = 0; i + 6 <= all.size(); i += 6)
        if (all[i] >= 0)
            spans.push_back({(Span::Kind)all[i], (int)all[i + 1], (int)all[i + 2], (int)all[i + 3],
                             std::bit_cast<double>(all[i + 4]), std::bit_cast<double>(all[i + 5])});
    return spans;
}
