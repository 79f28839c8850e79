// task_report.h   what the scores of a task mean: accuracy, perplexity, standard errors; as table and JSON
//   acc       share of documents whose likeliest continuation is the gold one; for greedy tasks, share whose
//             continuation is what greedy decoding would give. Ties are as in lm-evaluation-harness: the
//             first counts but, of BoolQ's and WiC's yes and no, no
//   acc_norm  the same with log-likelihoods divided by characters
//   ppl       exp of the mean negative log-likelihood of a continuation
//   a user's own requests without a gold continuation have no metrics
//   stderr    sample standard deviation / sqrt(n); for ppl by its derivative: ppl times that of the mean
#pragma once
#include "../../data/tasks/published_scores.h"
#include "scoring.h"

struct TaskMetric { std::string name; double value, error; };

struct TaskResult {
    std::string name;  // task, with form and shots unless these are the default
    const EvalFile* file;
    std::vector<TaskMetric> metrics;  // the task's own first, then one acc per group
    long truncated = 0;
    std::vector<Score> scores;
};

// the mean, and its standard error: sample standard deviation / sqrt(n)
inline TaskMetric mean_metric(const std::string& name, const std::vector<double>& x) {
    double n = (double)x.size(), mean = 0, square = 0;
    for (double v : x) mean += v;  // divided once: 6 right of 12 are 0.5
    mean /= n;
    for (double v : x) square += (v - mean) * (v - mean);
    return {name, mean, n > 1 ? std::sqrt(square / (n - 1) / n) : NAN};
}

// the index of the largest of n values, the first or the last if tied
template <class Value>
int likeliest(int n, Value value, bool last = false) {
    int best = 0;
    for (int i = 1; i < n; i++) if (value(i) > value(best) || (last && value(i) == value(best))) best = i;
    return best;
}

// a task's name, with form and shots unless these are the default; for a user's own requests, the file's
inline std::string task_name(const EvalFile& file) {
    std::string name = file.task, own = file.path.substr(file.path.rfind('/') + 1);
    if (file.task == "requests") name = own.substr(0, own.rfind('.'));
    if (!file.form.empty()) name += "-" + file.form;
    return file.shots ? name + text("-%d-shot", file.shots) : name;
}

inline TaskResult task_result(const EvalFile& file, std::vector<Score> scores, long truncated) {
    TaskResult out = {task_name(file), &file, {}, truncated, std::move(scores)};
    std::vector<double> right, by_length, logs;
    std::vector<std::vector<double>> of_group(file.groups.size());
    for (auto& d : file.documents) {
        int n = file.choices(d);
        const Score* s = &out.scores[d.first];
        auto prior = [&](int i) { return file.priors ? s[n + i].log_likelihood : 0; };
        auto length = [&](int i) {
            return (double)std::max<int64_t>(1, file.requests[d.first + i].characters);
        };

        bool asks_yes = file.task == "boolq" || file.task == "wic";
        bool good = file.metric == "greedy" ? s[d.gold].is_greedy : file.metric == "none" ? false
            : likeliest(n, [&](int i) { return s[i].log_likelihood - prior(i); }, asks_yes) == d.gold;
        right.push_back(good);
        by_length.push_back(likeliest(n, [&](int i) { return s[i].log_likelihood / length(i); }) == d.gold);
        logs.push_back(s[std::max<int64_t>(d.gold, 0)].log_likelihood);
        for (int64_t g : d.groups) if (g >= 0) of_group[g].push_back(good);
    }

    if (file.metric == "none") return out;
    out.metrics.push_back(mean_metric("acc", right));
    if (file.normalised) out.metrics.push_back(mean_metric("acc_norm", by_length));
    if (file.metric == "greedy") {
        TaskMetric mean = mean_metric("ppl", logs);
        mean.value = std::exp(-mean.value);
        mean.error *= mean.value;
        out.metrics.push_back(mean);
    }

    for (size_t g = 0; g < of_group.size(); g++)
        if (!of_group[g].empty())
            out.metrics.push_back(mean_metric("acc " + file.groups[g], of_group[g]));
    return out;
}

inline std::string task_table_text(const std::vector<TaskResult>& results) {
    std::string out = text("%-28s%9s  %5s  %16s  %16s  %16s  %11s  %11s\n", "task", "documents", "shots",
                           "acc %", "acc_norm %", "ppl", "MT-NLG 530B", "GPT-3 175B");
    for (auto& r : results) {
        const EvalFile& f = *r.file;
        auto find = [&](const char* name) -> const TaskMetric* {
            for (auto& m : r.metrics) if (m.name == name) return &m;
            return nullptr;
        };

        auto cell = [](const TaskMetric* m, double scale) {
            if (m && std::isfinite(m->error))
                return text("%8.2f ± %-5.2f", scale * m->value, scale * m->error);
            return m ? text("%8.2f        ", scale * m->value) : text("%16s", "-");
        };

        std::string mtnlg = "-", gpt3 = "-";
        const PublishedScores* p = find_published(f.task.c_str());
        int column = f.shots == 0 ? 0 : f.shots == 1 ? 1 : 2;
        if (p && (column < 2 || f.shots == p->few)) {
            mtnlg = text("%.1f", p->mtnlg[column]);
            if (!std::isnan(p->gpt3[column])) gpt3 = text("%.1f", p->gpt3[column]);
        }

        out += text("%-28s%9zu  %5d  %s  %s  %s  %11s  %11s\n", r.name.c_str(), f.documents.size(), f.shots,
                    cell(find("acc"), 100).c_str(), cell(find("acc_norm"), 100).c_str(),
                    cell(find("ppl"), 1).c_str(), mtnlg.c_str(), gpt3.c_str());

        for (auto& m : r.metrics)
            if (m.name.rfind("acc ", 0) == 0)
                out += text("  %-41s  %s\n", m.name.c_str() + 4, cell(&m, 100).c_str());

        if (f.left_out)
            out += text("  left out: %s of %zu, with a continuation longer than the model's sequence "
                        "(--long-continuations)\n", counted(f.left_out, "document").c_str(),
                        f.documents.size() + (size_t)f.left_out);
        if (f.metric == "none")
            out += "  no accuracy: the requests have no gold continuation (log-likelihoods: --results)\n";
        if (r.truncated)
            out += text("  cut from the left: %s of %zu, longer than the model's sequence\n",
                        counted(r.truncated, "document").c_str(), f.documents.size());
    }
    return out;
}

// in the form of lm-evaluation-harness's output (results, versions, config), with log_likelihoods by document
inline std::string task_json(const std::vector<TaskResult>& results, const std::string& model, long step) {
    std::string values, versions, shots, scores, hashes, cut, left_out, lines;
    auto number = [](double x) { return std::isfinite(x) ? text("%.17g", x) : std::string("null"); };
    for (auto& r : results) {
        std::string name = json_quote(r.name), comma = &r == &results[0] ? "" : ",\n    ", row;
        for (auto& m : r.metrics)
            row += text("%s%s: %s, %s: %s", row.empty() ? "" : ", ", json_quote(m.name).c_str(),
                        number(m.value).c_str(),
                        json_quote(m.name.substr(0, m.name.find(' ')) + "_stderr" +
                                   (m.name.find(' ') == m.name.npos ? "" : m.name.substr(m.name.find(' '))))
                            .c_str(),
                        number(m.error).c_str());

        values += comma + name + ": {" + row + "}";
        versions += comma + name + text(": %d", r.file->version);
        shots += comma + name + text(": %d", r.file->shots);
        hashes += comma + name + ": " + json_quote(r.file->hash);
        cut += comma + name + text(": %ld", r.truncated);
        left_out += comma + name + text(": %ld", r.file->left_out);

        std::string documents;
        for (auto& d : r.file->documents) {
            std::string one;
            for (int64_t i = d.first; i < d.first + d.count; i++)
                one += (one.empty() ? "" : ", ") + number(r.scores[i].log_likelihood);
            documents += (documents.empty() ? "[" : ", [") + one + "]";
        }
        scores += comma + name + ": [" + documents + "]";

        std::string from;
        for (auto& d : r.file->documents) from += text(from.empty() ? "%lld" : ", %lld", (long long)d.line);
        lines += comma + name + ": [" + from + "]";
    }
    return "{\"results\": {\n    " + values + "},\n\"versions\": {\n    " + versions +
           "},\n\"config\": {\"model\": " + json_quote(model) +
           text(", \"step\": %ld, \"num_fewshot\": {\n    ", step) + shots +
           "}},\n\"requests_sha256\": {\n    " + hashes + "},\n\"truncated_documents\": {\n    " + cut +
           "},\n\"left_out_documents\": {\n    " + left_out +
           "},\n\"lines\": {\n    " + lines +
           "},\n\"published\": " + published_json() +
           ",\n\"log_likelihoods\": {\n    " + scores + "}}\n";
}

// an error, if the model gives log-likelihoods that are not numbers; else ""
inline std::string not_finite(const std::vector<TaskResult>& results) {
    for (auto& r : results)
        for (auto& s : r.scores)
            if (!std::isfinite(s.log_likelihood))
                return text("%s: some log-likelihoods are not numbers: resume from an earlier checkpoint",
                            r.file->path.c_str());
    return "";
}

// a training run must not fail because its results cannot be written
inline void save_results(const std::string& path, const std::string& json, bool trains) {
    try {
        write_file(path, json);
    } catch (const Error& e) {
        if (!trains) throw;
        printf("no results: %s\n", e.what());
    }
}
