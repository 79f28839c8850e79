// profile.h   where a step's time goes, by the names of its steps; off unless profile.on
//   { Section timed("attention", stream); … }  adds the seconds until the brace, the stream's work included
#pragma once
#include <string>
#include <utility>
#include <vector>
#include "device.h"

struct Profile {
    bool on = false;
    std::vector<std::pair<std::string, double>> spent;
    void add(const char* name, double s) {
        for (auto& entry : spent) if (entry.first == name) return void(entry.second += s);
        spent.push_back({name, s});
    }
};
inline Profile profile;

struct Section {
    const char* name;
    Stream stream;
    double start = 0;
    Section(const char* name, Stream stream) : name(name), stream(stream) {
        if (profile.on) start = seconds();
    }
    ~Section() {
        if (!profile.on) return;
        synchronize(stream);
        profile.add(name, seconds() - start);
    }
    Section(const Section&) = delete;
};
