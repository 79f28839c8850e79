// report.h   what a run says: its settings, a line a step, a JSON line a step in --metrics
#pragma once
#include "../base/peak.h"
#include "run.h"

// Model FLOPs a token: 6 N + 6 L C T
inline double flops_per_token(const Run& run) {
    const ModelShape& m = run.state.shape;
    double N = (double)run.model->table.count - (double)m.T * m.C;
    return 6 * N + 6.0 * m.L * m.C * m.T;
}

inline void print_settings(const Run& run) {
    printf("settings\n");
    for (auto& option : option_table) {
        std::string value = print_value(run.options, option);
        bool unset = value.empty() || (value == "0" && option.least >= 1);
        if (!unset && strcmp(option.name, "help")) printf("  %-18s %s\n", option.name, value.c_str());
    }
    std::string device = device_name();
    double peak = device_peak(device);
    printf("model     %ld parameters, vocabulary %d padded to %d\n", parameter_table(run.state.shape).count,
           run.state.shape.V, run.state.shape.Vp);
    if (run.grid.world.size > 1) printf("%s", print_grid(run.grid).c_str());
    printf("device    %s, %s; %s\n", device.c_str(), PRECISION_NAME,
           peak > 0 ? text("peak %.0f TFLOP/s", peak * 1e-12).c_str() : "peak unknown, so no MFU");
}

struct StepResult {
    double loss = 0, rate = 0, norm = 0, took = 0;
    std::vector<std::pair<std::string, double>>
        losses;  // of each set that had samples, where there are several
};

// the steps that stand in a metrics file, with their lines; refuses a file that is none
inline std::vector<std::pair<long, std::string>> read_metrics_file(const std::string& path) {
    std::vector<std::pair<long, std::string>> lines;
    MappedFile old(path);
    std::string_view left = old.view();
    while (left.find('\n') != left.npos) {  // a last line without an end was never finished
        std::string line(left.substr(0, left.find('\n')));
        left.remove_prefix(line.size() + 1);
        try {
            lines.push_back({Json::parse(line, path).at("step", path).integer(path), line});
        } catch (const Error&) {
            fail("--metrics %s: is there, and line %zu is no line of metrics: choose another file, or "
                 "remove it", path.c_str(), lines.size() + 1);
        }
    }
    if (lines.empty() && old.size > 0)
        fail("--metrics %s: is there, and is no file of metrics: choose another, or remove it", path.c_str());
    return lines;
}

inline void check_metrics(const Run& run) {
    const std::string& path = run.options.metrics;
    if (path.empty() || !run.speaks()) return;
    if (access(path.c_str(), F_OK) == 0) read_metrics_file(path);
    FILE* file = fopen(path.c_str(), "a");
    if (!file || fclose(file)) fail("--metrics %s: cannot be written: %s", path.c_str(), strerror(errno));
}

// the metrics file goes on where the resumed checkpoint stands: steps after it will be done again. A new run
// keeps what an earlier one has left as FILE.previous.
inline void open_metrics(const Run& run) {
    const std::string& path = run.options.metrics;
    if (path.empty() || !run.speaks()) return;
    std::string kept;
    std::vector<std::pair<long, std::string>> lines = read_metrics_file(path);
    for (auto& [step, line] : lines) if (step <= run.state.step) kept += line + "\n";
    if (run.state.step == 0 && !lines.empty()) std::filesystem::rename(path, path + ".previous");
    FileWriter file(path);
    file.write(kept);
    file.finish();
}

// speed: tokens a second, smoothed
inline void report(Run& run, const StepResult& r, double speed, bool evaluated) {
    if (!run.speaks()) return;
    const Options& o = run.options;
    double peak = device_peak(device_name()) * run.grid.world.size;
    if (!o.metrics.empty()) {
        std::string line = text("{\"step\": %ld, \"tokens\": %llu, \"loss\": %.17g", run.state.step,
                                (unsigned long long)run.state.tokens, r.loss);
        for (size_t i = 0; i < r.losses.size(); i++)
            line += text("%s%s: %.17g%s", i ? ", " : ", \"losses\": {", json_quote(r.losses[i].first).c_str(),
                         r.losses[i].second, i + 1 == r.losses.size() ? "}" : "");
        if (evaluated) line += text(", \"validation_loss\": %.17g", run.validation_loss);
        for (auto& t : run.task_results)
            for (auto& metric : t.metrics)
                line += text("%s%s: %.17g%s",
                             &t == &run.task_results[0] && &metric == &t.metrics[0] ? ", \"tasks\": {" : ", ",
                             json_quote(t.name + " " + metric.name).c_str(), metric.value,
                             &t == &run.task_results.back() && &metric == &t.metrics.back() ? "}" : "");
        line += text(", \"learning_rate\": %.17g, \"gradient_norm\": %.17g, \"seconds\": %.6g, "
                     "\"tokens_per_second\": %.6g", r.rate, r.norm, r.took, speed);
        if (peak > 0) line += text(", \"mfu\": %.4f", speed * flops_per_token(run) / peak);
        line += "}\n";
        FILE* file = fopen(o.metrics.c_str(), "a");
        if (!file || fwrite(line.data(), 1, line.size(), file) != line.size() || fclose(file))
            fail("--metrics %s: cannot be written: %s", o.metrics.c_str(), strerror(errno));
    }
    static double last_print = 0;
    bool edge = run.state.step == 1 || run.state.step == run.last_step || evaluated;
    if (!edge && seconds() - last_print < 2) return;
    last_print = seconds();
    double left = ((double)run.last_tokens - (double)run.state.tokens) / speed;
    std::string mfu = peak > 0 ? text("  MFU %4.1f %%", 100 * speed * flops_per_token(run) / peak) : "";
    std::string held = evaluated ? text("  validation loss %.4f", run.validation_loss) : "";
    printf("step %6ld/%ld  loss %.4f  lr %.2e  norm %.3f  %.0f tokens/s%s  left %ld:%02ld%s\n",
           run.state.step, run.last_step, r.loss, r.rate, r.norm, speed, mfu.c_str(), (long)left / 60,
           (long)left % 60, held.c_str());
    fflush(stdout);
}
