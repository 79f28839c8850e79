// report.h   what became of every set: a table (report.md), from the steps' counts
#pragma once
#include "steps.h"

constexpr const char* reported_steps[] = {"extract", "clean", "filter", "dedup", "decontaminate", "tokens"};

inline std::string thousands(int64_t n) {
    std::string s = std::to_string(n);
    for (long i = (long)s.size() - 3; i > 0; i -= 3) s.insert((size_t)i, ",");
    return s;
}

struct StepCounts {
    std::string step;
    std::map<std::string, Counts> sets;
};

inline std::vector<StepCounts> read_step_counts(const std::string& folder) {
    std::vector<StepCounts> out;
    for (const char* step : reported_steps) {
        std::string path = folder + "/" + step + "/" + step + ".json";
        if (access(path.c_str(), F_OK) != 0) continue;
        out.push_back({step, {}});
        WholeFile file(path);
        Json all = Json::parse(file.view(), path);
        for (auto& [set, counts] : all.members)
            for (auto& [name, n] : counts.members) out.back().sets[set][name] = (int64_t)n.number(path);
    }
    if (out.empty())
        fail("%s: holds no step's counts: expected the output folder of ./corpus run", folder.c_str());
    return out;
}

inline void write_table(const std::string& folder, const std::vector<StepCounts>& steps,
                        const std::vector<std::string>& sets) {
    std::string out =
        "| set | step | documents in | kept | share | characters in | kept | counted besides |\n"
        "|---|---|---|---|---|---|---|---|\n";
    for (auto& set : sets)
        for (auto& step : steps) {
            auto found = step.sets.find(set);
            if (found == step.sets.end()) continue;
            const Counts& c = found->second;
            if (step.step == "tokens") {
                out += text("| %s | tokens | %s | | | | | %s tokens |\n", set.c_str(),
                            thousands(count_of(c, "documents") + count_of(c, "validation documents")).c_str(),
                            thousands(count_of(c, "tokens") + count_of(c, "validation tokens")).c_str());
                continue;
            }

            int64_t in = count_of(c, "documents"), kept = count_of(c, "kept");
            out += text("| %s | %s | %s | %s | %.1f %% | %s | %s | ", set.c_str(), step.step.c_str(),
                        thousands(in).c_str(), thousands(kept).c_str(),
                        in ? 100.0 * (double)kept / (double)in : 0.0,
                        thousands(count_of(c, "characters")).c_str(),
                        thousands(count_of(c, "kept characters")).c_str());

            bool first = true;
            for (auto& [name, n] : c) {
                if (name == "documents" || name == "kept" || name == "characters" ||
                    name == "kept characters" || !n)
                    continue;
                out += (std::exchange(first, false) ? "" : ", ") + name + " " + thousands(n);
            }
            out += " |\n";
        }

    write_file(folder + "/report.md", out);
    fputs(out.c_str(), stdout);
}

inline void report(const std::string& folder) {
    std::vector<StepCounts> steps = read_step_counts(folder);
    std::vector<std::string> sets;
    for (auto& step : steps)
        for (auto& [set, counts] : step.sets)
            if (std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(set);
    write_table(folder, steps, sets);
}
