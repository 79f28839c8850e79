// profile.h   where a step's time goes, by the names of its steps
//   { Section timed("attention", stream); … }   what is given to the stream until the brace: named for
//   NVIDIA's profilers (NVTX), and timed in the stream while profile.on; collect() adds the times up.
#pragma once
#include <list>
#include <string>
#include <utility>
#include <vector>
#include "device.h"
#if defined(__CUDACC__)
#include <nvtx3/nvToolsExt.h>
#endif

struct Profile {
    struct Entry {
        const char* name;
        Moment begin, end;
    };
    bool on = false;
    std::list<Entry> entries;
    std::vector<std::pair<std::string, double>> spent;  // seconds
    void collect(Stream stream) {
        synchronize(stream);
        for (auto& e : entries) add(e.name, e.end.since(e.begin));
        entries.clear();
    }

private:
    void add(const char* name, double s) {
        for (auto& entry : spent) if (entry.first == name) return void(entry.second += s);
        spent.push_back({name, s});
    }
};
inline Profile profile;

// a name in NVIDIA's profilers for what the host does until the brace
struct Range {
#if defined(__CUDACC__)
    explicit Range(const char* name) { nvtxRangePushA(name); }
    ~Range() { nvtxRangePop(); }
#else
    explicit Range(const char*) {}
#endif
    Range(const Range&) = delete;
};

struct Section {
    Range range;
    Stream stream;
    Profile::Entry* entry = nullptr;
    Section(const char* name, Stream stream) : range(name), stream(stream) {
        if (!profile.on) return;
        entry = &profile.entries.emplace_back();
        entry->name = name;
        entry->begin.record(stream);
    }
    ~Section() {
        if (entry) entry->end.record(stream);
    }
    Section(const Section&) = delete;
};
