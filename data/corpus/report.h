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
        WholeFile file(path);
        Json all = Json::parse(file.view(), path);
        for (auto& [set, counts] : all.members)
            for (auto& [name, n] : counts.members) out.back().sets[set][name] = (int64_t)n.number(path);
    }
    if (out.empty())
        fail("%s: holds no step's counts: wants the output folder of ./corpus run", folder.c_str());
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

    FileWriter file(folder + "/report.md");
    file.write(out);
    file.finish();
    fputs(out.c_str(), stdout);
}

struct Timeline {
    static constexpr int bar = 220, row = 26, gap = 30, left = 110, top = 44, across = 5;
    std::string out;

    void words(double x, int y, const char* how, const std::string& s) {
        out += text("<text x=\"%.0f\" y=\"%d\"%s>%s</text>\n", x, y, how, s.c_str());
    }

    // a bar around `middle`, as wide as the share
    void draw(double middle, int y, double share, const char* colour, const std::string& label) {
        double w = std::max(2.0, bar * std::min(share, 1.0));
        out += text("<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", middle - w / 2,
                    y + 2, w, row - 4, colour);
        words(middle, y + 17, " text-anchor=\"middle\"", label);
    }
};

// a column for each set, five beside each other; a bar for each step: as wide as the share of documents left
inline void write_funnel(const std::string& folder, const std::vector<StepCounts>& steps,
                         const std::vector<std::string>& sets) {
    using P = Timeline;
    int bands = ((int)sets.size() + P::across - 1) / P::across,
        band = P::top + P::row * ((int)steps.size() + 1) + 16;
    int width = P::left + std::min((int)sets.size(), P::across) * (P::bar + P::gap);

    Timeline picture;
    picture.out = text(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
        width, bands * band, width, bands * band, width, bands * band);
    for (size_t s = 0; s < sets.size(); s++) {
        int top = (int)s / P::across * band + P::top;
        double middle = P::left + (double)(s % P::across) * (P::bar + P::gap) + P::bar / 2.0;

        if (s % P::across == 0) {
            picture.words(10, top + 17, "", "given");
            for (int i = 0; i < (int)steps.size(); i++)
                picture.words(10, top + P::row * (i + 1) + 17, "", steps[i].says);
        }
        picture.words(middle, top - 18, " text-anchor=\"middle\" font-weight=\"bold\"", sets[s]);

        double given = 0;
        for (size_t i = 0; i < steps.size(); i++) {
            auto found = steps[i].sets.find(sets[s]);
            if (found == steps[i].sets.end()) continue;
            const Counts& c = found->second;
            bool last = steps[i].step == "tokens";
            int64_t in = count_of(c, "documents"), kept = count_of(c, "kept");
            if (given == 0) {
                given = (double)std::max(in, (int64_t)1);
                picture.draw(middle, top, 1, "#c6dbef", thousands(in) + " documents");
            }

            if (last) kept = in + count_of(c, "validation documents");
            std::string label = last
                ? thousands(count_of(c, "tokens") + count_of(c, "validation tokens")) + " tokens"
                : thousands(kept);
            picture.draw(middle, top + P::row * ((int)i + 1), (double)kept / given,
                         last ? "#a1d99b" : "#9ecae1", label);
        }
    }

    FileWriter file(folder + "/report.svg");
    file.write(picture.out + "</svg>\n");
    file.finish();
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
