// autotune.h   what is timed once and then remembered: cuBLASLt's algorithms, and the faster of two methods
//   Choices are timed while a TimingChoices exists: at a run's start, in tune(). They belong to the run: all
//   its ranks on the same kind of machine use the same ones (share_choices, run/setup.h), and checkpoints
//   store them: a run resumed on such a machine computes exactly the same. Other shapes, such as the GEMMs of
//   packed batches, are neither timed nor shared: each rank takes its file's choice or, if it has none, the
//   default.
//   Choices are also cached in a file for later runs on the same kind of machine:
//     train_gpt choices 1 | GPU, versions of its driver and of cuBLASLt
//     KEY = NUMBER MICROSECONDS          one per line
//   A file of another machine or version is ignored, and so is everything from the first damaged line on.
//   save() adds to the valid entries, and never changes them.
#pragma once
#include <math.h>
#include <map>
#include <sstream>
#include <string>
#include <vector>
#include "../base/timed_event.h"
#include "../base/whole_file.h"
#include "../base/device.h"
#include "../base/file_writer.h"

struct Choice {
    int number;
    double microseconds;
};

struct Autotuner {
    bool on = false;
    int generation = 0;  // what was cached under an earlier one must be looked up again
    std::map<std::string, Choice> measured;
    std::map<uint64_t, int> run_choices;  // by hash_of: the run's own, which precede `measured`
    std::map<uint64_t, int> used;         // by hash_of: what was chosen since the start
    std::string path, machine;       // the file, if any; the machine it must be from

    // includes the machine: on another one, choices are made anew
    uint64_t hash_of(const std::string& key) const {
        std::string all = machine + "\n" + key;
        return checksum(all.data(), all.size());
    }

    void take_run_choices(const std::map<uint64_t, int>& choices) {
        run_choices = choices;
        generation++;
    }

    // a header line, then choices; after a line that cannot be parsed, the rest of the file is ignored
    static std::map<std::string, Choice> parse(std::string_view contents, const std::string& machine) {
        std::map<std::string, Choice> out;
        std::istringstream lines{std::string(contents)};
        std::string line;
        if (!std::getline(lines, line) || line != header(machine)) return out;

        while (std::getline(lines, line)) {
            size_t equals = line.rfind(" = ");
            Choice c;
            int read = 0;
            if (equals == line.npos || equals == 0) break;
            if (sscanf(line.c_str() + equals + 3, "%d %lf%n", &c.number, &c.microseconds, &read) != 2 ||
                line.size() != equals + 3 + (size_t)read || c.number < 0)
                break;
            out.emplace(line.substr(0, equals), c);
        }
        return out;
    }

    static std::string header(const std::string& machine) { return "train_gpt choices 1 | " + machine; }

    void open(const std::string& file, const std::string& of) {
        path = file;
        machine = of;
        generation++;
        if (!path.empty()) measured = read_file();
    }

    // adds the choices that the file lacks, and keeps the union; ranks take turns, most with nothing to add.
    // Saves the choices that the run's ranks share, not this rank's own: the next run computes the same
    void save() {
        if (path.empty()) return;
        for (auto& [key, choice] : measured)
            if (auto shared = run_choices.find(hash_of(key)); shared != run_choices.end())
                choice.number = shared->second;
        try {
            std::map<std::string, Choice> all = read_file();
            if (lacks_any(all)) {
                FileLock turn(path + ".lock");
                all = read_file();
                if (lacks_any(all)) {
                    all.insert(measured.begin(), measured.end());
                    write_all(all);
                }
            }
            measured = all;  // whichever rank chose first decides for all
            generation++;
        } catch (const Error& e) {
            fprintf(stderr, "note: autotuning choices are not saved: %s\n", e.what());
        }
    }

    // the number of the fastest way; `usual` if that is unknown and timing is off.
    // run(way) enqueues the work in that way, or returns false if that is not possible.
    template <class Run>
    int choose(const std::string& key, int ways, int usual, Stream s, Run run) {
        uint64_t hash = hash_of(key);
        auto fixed = run_choices.find(hash);
        if (fixed != run_choices.end() && fixed->second < ways) return used[hash] = fixed->second;
        auto found = measured.find(key);
        if (found != measured.end() && found->second.number < ways) return used[hash] = found->second.number;
        if (!on) return usual;
        Choice best = time_ways(ways, usual, s, run);
        measured[key] = best;
        return used[hash] = best.number;
    }

private:
    void write_all(const std::map<std::string, Choice>& all) const {
        std::string out = header(machine) + "\n";
        for (auto& [key, c] : all) out += text("%s = %d %.2f\n", key.c_str(), c.number, c.microseconds);
        write_file(path, out);
    }

    bool lacks_any(const std::map<std::string, Choice>& there) const {
        for (auto& [key, choice] : measured) if (!there.count(key)) return true;
        return false;
    }

    bool is_warm = false;  // the device has reached its clock rate under load

    // all ways in turn, several times, so that a temporary slowdown of the device affects all of them
    template <class Run>
    Choice time_ways(int ways, int usual, Stream s, Run run) {
        constexpr int rounds = 5;
        constexpr double clocks_rise = 0.5;  // seconds
        std::vector<double> least(ways, INFINITY);
        std::vector<bool> can(ways);
        for (int way = 0; way < ways; way++) can[way] = run(way);  // the first run does not count
        synchronize(s);

        for (double began = seconds(); !host_is_device && !is_warm && seconds() - began < clocks_rise;)
            for (int way = 0; way < ways; way++) {
                if (can[way]) run(way);
                synchronize(s);
            }
        is_warm = true;

        for (int round = 0; round < rounds; round++)
            for (int way = 0; way < ways; way++) {
                if (!can[way]) continue;
                TimedEvent begin, end;
                begin.record(s);
                run(way);
                end.record(s);
                synchronize(s);
                least[way] = std::min(least[way], end.since(begin) * 1e6);
            }

        Choice best = {usual, INFINITY};
        for (int way = 0; way < ways; way++)
            if (least[way] < best.microseconds) best = {way, least[way]};
        return best;
    }

    std::map<std::string, Choice> read_file() const {
        if (access(path.c_str(), R_OK) != 0) return {};
        return parse(WholeFile(path).view(), machine);
    }
};
inline Autotuner autotuner;

// choices by shape, looked up without building a key
template <class Shape, class Value>
struct AutotuneCache {
    std::map<Shape, Value> map;
    int generation = 0;
    // calls make() if the shape is not cached
    template <class Make>
    const Value& get(const Shape& shape, Make make) {
        if (generation != autotuner.generation) {
            map.clear();
            generation = autotuner.generation;
        }
        auto found = map.find(shape);
        if (found != map.end()) return found->second;
        Value value = make();  // which may call get() itself
        return map[shape] = value;
    }
};

// while this exists, a choice made for the first time is timed: its work, writes included, runs several times
struct TimingChoices {
    TimingChoices() { autotuner.on = true; }
    TimingChoices(const TimingChoices&) = delete;
    ~TimingChoices() { autotuner.on = false; }
};
