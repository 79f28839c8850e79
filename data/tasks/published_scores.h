// published_scores.h   the nine tasks of MT-NLG's announcement: what was published, and where their files are
//   Accuracy in per cent with zero, one and few shots. MT-NLG's scores, and four shots for HANS: figure 3 of
//   its announcement of October 2021 (the later paper, arXiv 2201.11990, reports HANS differently); a star
//   there marks the best known score in all three settings. GPT-3's scores, and the other tasks' numbers of
//   shots: arXiv 2005.14165.
#pragma once
#include <cmath>
#include <cstring>
#include <string>
#include "../../layers/base/check.h"

struct PublishedScores {
    const char* task;
    int few;  // shots
    bool has_star;
    double mtnlg[3], gpt3[3];
    const char* files;  // where they are published
};
constexpr PublishedScores published_scores[] = {
    {"lambada", 15, true, {76.6, 73.1, 87.2}, {76.2, 72.5, 86.4}, "zenodo.org/record/2630551"},
    {"race", 10, false, {47.9, 48.4, 47.9}, {45.5, 45.9, 46.8}, "cs.cmu.edu/~glai1/data/race"},
    {"boolq", 32, false, {78.2, 82.5, 84.8}, {60.5, 76.7, 77.5}, "super.gluebenchmark.com"},
    {"piqa", 50, true, {82.0, 81.0, 83.2}, {81.0, 80.5, 82.3}, "yonatanbisk.com/piqa"},
    {"hellaswag", 20, false, {80.2, 80.2, 82.4}, {78.9, 78.1, 79.3}, "rowanzellers.com/hellaswag"},
    {"winogrande", 50, false, {73.0, 73.7, 78.9}, {70.2, 73.2, 77.7}, "winogrande.allenai.org"},
    {"anli-r2", 50, false, {36.6, 39.7, 39.6}, {35.4, 33.9, 34.0}, "github.com/facebookresearch/anli"},
    {"hans", 4, false, {60.7, 64.9, 70.2}, {NAN, NAN, NAN}, "github.com/tommccoy1/hans"},
    {"wic", 32, false, {48.6, 51.3, 58.5}, {0.0, 48.6, 55.3}, "super.gluebenchmark.com"},
};

inline const PublishedScores* find_published(const char* task) {
    for (auto& p : published_scores)
        if (!strcmp(p.task, task)) return &p;
    return nullptr;
}

// as JSON: {task: {"few": shots, "star": …, "MT-NLG 530B": [zero, one, few], "GPT-3 175B": …}}
inline std::string published_json() {
    std::string out;
    auto three = [](const double* x) {
        std::string list;
        for (int i = 0; i < 3; i++)
            list += (i ? ", " : "") + (std::isnan(x[i]) ? std::string("null") : text("%.1f", x[i]));
        return "[" + list + "]";
    };
    for (auto& p : published_scores)
        out += text("%s\n    \"%s\": {\"few\": %d, \"star\": %s, \"MT-NLG 530B\": %s, \"GPT-3 175B\": %s}",
                    out.empty() ? "" : ",", p.task, p.few, p.has_star ? "true" : "false",
                    three(p.mtnlg).c_str(), three(p.gpt3).c_str());
    return "{" + out + "}";
}
