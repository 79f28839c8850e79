// operation.h   where a step's time goes: named sections for profilers, spans for timelines
//   { Section timed("attention", stream); … }   what is enqueued until the brace: an NVTX range, and timed in
//   the stream while profile.on; Profile::collect() adds the times up by name.
//   { Section timed(Span::Forward, micro_batch, chunk, stream); … }   the same for one span of a timeline,
//   while trace.on. Both cost nothing while they are off.
#pragma once
#include <list>
#include <string>
#include <utility>
#include <vector>
#include "device.h"
#if defined(__CUDACC__)
#include <nvtx3/nvToolsExt.h>
#endif

// ---- times by name, for profiles -------------------------------------------------------------------------

struct Profile {
    struct Entry {
        const char* name;
        TimedEvent begin, end;
    };
    bool on = false;
    std::list<Entry> entries;
    std::vector<std::pair<std::string, double>> spent;  // seconds
    void collect(Stream stream) {
        synchronize(stream);
        for (auto& entry : entries) add_time(entry.name, entry.end.since(entry.begin));
        entries.clear();
    }

private:
    void add_time(const char* name, double s) {
        for (auto& entry : spent)
            if (entry.first == name) {
                entry.second += s;
                return;
            }
        spent.push_back({name, s});
    }
};
inline Profile profile;

// ---- spans of a step -------------------------------------------------------------------------------------

struct Span {
    enum Kind { Forward, Backward, Message, Reduce, Gather, Update, kinds } kind;
    int stage, micro_batch, chunk;  // -1: none; of a bucket: chunk is its number on this stage
    double start, end;              // seconds
};
constexpr const char* span_names[] = {"forward", "backward", "message", "reduce", "gather", "update"};
static_assert(std::size(span_names) == Span::kinds);

// the spans of one step of this rank
struct Trace {
    struct Entry {
        Span::Kind kind;
        int micro_batch, chunk;
        TimedEvent begin, end;
    };
    bool on = false;
    std::list<Entry> entries;
    TimedEvent origin;

    void start(Stream stream) {
        origin.record(stream);
        on = true;
    }
    // seconds since the start
    std::vector<Span> stop(int stage, Stream stream) {
        on = false;
        synchronize(stream);
        std::vector<Span> spans;
        for (auto& e : entries)
            spans.push_back(
                {e.kind, stage, e.micro_batch, e.chunk, e.begin.since(origin), e.end.since(origin)});
        entries.clear();
        return spans;
    }
};
inline Trace trace;

// ---- in the code of a step ------------------------------------------------------------------------------

// times everything that is enqueued until the end of the scope
class Section {
    Stream stream;
    TimedEvent* end = nullptr;

public:
    Section(const char* name, Stream stream) : stream(stream) {
        push(name);
        if (profile.on) begin(profile.entries.emplace_back(), [&](auto& entry) { entry.name = name; });
    }
    Section(Span::Kind kind, int micro_batch, int chunk, Stream stream) : stream(stream) {
        push(span_names[kind]);
        if (trace.on)
            begin(trace.entries.emplace_back(), [&](auto& entry) {
                entry.kind = kind;
                entry.micro_batch = micro_batch;
                entry.chunk = chunk;
            });
    }
    ~Section() {
        if (end) end->record(stream);
#if defined(__CUDACC__)
        nvtxRangePop();
#endif
    }
    Section(const Section&) = delete;

private:
    // a name in NVIDIA's profilers for what the host does until the brace
    static void push([[maybe_unused]] const char* name) {
#if defined(__CUDACC__)
        nvtxRangePushA(name);
#endif
    }
    template <class Entry, class Describe>
    void begin(Entry& entry, Describe describe) {
        describe(entry);
        entry.begin.record(stream);
        end = &entry.end;
    }
};
