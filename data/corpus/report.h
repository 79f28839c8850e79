// report.h   what became of every set: a table (report.md) and a funnel (report.svg), from steps' counts
#pragma once
#include "steps.h"

struct Stop { const char *step, *says; };  // steps in order, and what a reader calls them
constexpr Stop stops[] = {
    {"extract", "main text"}, {"clean", "cleaned"}, {"filter", "of quality"}, {"dedup", "no duplicates"},
    {"decontaminate", "no test data"}, {"tokens", "tokens"},
};

inline std::string thousands(int64_t n) {
    std::string s = std::to_string(n);
    for (long i = (long)s.size() - 3; i > 0; i -= 3) s.insert((size_t)i, ",");
    return s;
}

struct StepCounts {
    std::string step, says;
    std::map<std::string, Counts> sets;
};

inline std::vector<StepCounts> read_step_counts(const std::string& folder) {
    std::vector<StepCounts> out;
    for (auto& stop : stops) {
        std::string path = folder + "/" + stop.step + "/" + stop.step + ".json";
        if (access(path.c_str(), F_OK) != 0) continue;
        out.push_back({stop.step, stop.says, {}});
        MappedFile file(path);
        Json all = Json::parse(file.view(), path);
        for (auto& [set, counts] : all.members)
            for (auto& [name, n] : counts.members) out.back().sets[set][name] = (int64_t)n.number(path);
    }
    if (out.empty())
        fail("%s: holds no step's counts: wants the output folder of ./corpus run", folder.c_str());
    return out;
}

inline int64_t count_of(const Counts& c, const char* name) {
    auto found = c.find(name);
    return found == c.end() ? 0 : found->second;
}

inline void write_table(const std::string& folder, const std::vector<StepCounts>& steps,
                        const std::vector<std::string>& sets) {
    std::string out =
        "| set | step | documents in | kept | share | characters in | kept | dropped, and why |\n"
        "|---|---|---|---|---|---|---|---|\n";
    for (auto& set : sets)
        for (auto& step : steps) {
            auto found = step.sets.find(set);
            if (found == step.sets.end()) continue;
            const Counts& c = found->second;
            if (step.step == "tokens") {
                out += text("| %s | tokens | %s | | | | | %s tokens |\n", set.c_str(),
                            thousands(count_of(c, "documents")).c_str(),
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
    FileWriter file(folder + "/report.md");
    file.write(out), file.finish();
    fputs(out.c_str(), stdout);
}

// a column for each set, a bar for each step: as wide as the share of its documents that is left
inline void write_funnel(const std::string& folder, const std::vector<StepCounts>& steps,
                         const std::vector<std::string>& sets) {
    constexpr int bar = 220, row = 26, gap = 30, left = 110, top = 44;
    int width = left + (int)sets.size() * (bar + gap), height = top + row * ((int)steps.size() + 1) + 16;
    std::string out = text(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
        width, height, width, height, width, height);
    out += text("<text x=\"10\" y=\"%d\">given</text>\n", top + 17);
    for (size_t i = 0; i < steps.size(); i++)
        out +=
            text("<text x=\"10\" y=\"%d\">%s</text>\n", top + row * ((int)i + 1) + 17, steps[i].says.c_str());
    for (size_t s = 0; s < sets.size(); s++) {
        double middle = left + (double)s * (bar + gap) + bar / 2.0;
        out += text("<text x=\"%.0f\" y=\"26\" text-anchor=\"middle\" font-weight=\"bold\">%s</text>\n",
                    middle, sets[s].c_str());
        int64_t given = 0;
        auto draw = [&](int at, int64_t n, const std::string& label, const char* colour) {
            double w = given ? std::max(2.0, bar * (double)n / (double)given) : 2;
            out += text(
                "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>"
                "<text x=\"%.0f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                middle - w / 2, top + row * at + 2, w, row - 4, colour, middle, top + row * at + 17,
                label.c_str());
        };
        for (size_t i = 0; i < steps.size(); i++) {
            auto found = steps[i].sets.find(sets[s]);
            if (found == steps[i].sets.end()) continue;
            const Counts& c = found->second;
            bool last = steps[i].step == "tokens";
            if (!given)
                given = count_of(c, "documents"), draw(0, given, thousands(given) + " documents", "#c6dbef");
            int64_t n =
                last ? count_of(c, "documents") + count_of(c, "validation documents") : count_of(c, "kept");
            // pieces of split documents may be more than there were
            draw((int)i + 1, std::min(n, given),
                 last ? thousands(count_of(c, "tokens") + count_of(c, "validation tokens")) + " tokens"
                      : thousands(n),
                 last ? "#a1d99b" : "#9ecae1");
        }
    }
    FileWriter file(folder + "/report.svg");
    file.write(out + "</svg>\n"), file.finish();
}

inline void report(const std::string& folder) {
    std::vector<StepCounts> steps = read_step_counts(folder);
    std::vector<std::string> sets;
    for (auto& step : steps)
        for (auto& [set, counts] : step.sets)
            if (std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(set);
    write_table(folder, steps, sets);
    write_funnel(folder, steps, sets);
}
