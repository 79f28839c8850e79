// metrics.h   what a run reports: its settings, progress lines, and with --metrics a JSON line per step
#pragma once
#include "../base/hardware.h"
#include "same_run.h"

// model FLOPs per token, for MFU: 6 N + 6 L C T; N without position embeddings, causal half of attention
inline double flops_per_token(const ModelShape& shape) {
    double N = (double)parameter_table(shape).count - (double)shape.T * shape.C;
    return 6 * N + 6.0 * shape.L * shape.C * shape.T;
}

// the preset's name, or "custom" if the sizes differ from the preset's
inline std::string model_name(const Options& o) {
    const Preset& p = find_preset(o.model);
    return p.layers == o.layers && p.hidden == o.hidden && p.heads == o.heads ? o.model : "custom";
}

// a line per stage: the ranks of each replica's tensor group; the middle is left out if there are many
inline std::string print_grid(const Grid& g) {
    std::string out =
        text("grid      %s = %d tensor x %d data x %d pipeline\n", counted(g.t * g.d * g.p, "rank").c_str(),
             g.t, g.d, g.p);

    auto shown = [](int i, int n) { return n <= 8 || i < 4 || i >= n - 2; };
    for (int s = 0; s < g.p; s++) {
        if (!shown(s, g.p)) {
            if (s == 4) out += "  …\n";
            continue;
        }
        out += text("  stage %-3d", s);
        for (int d = 0; d < g.d; d++) {
            if (!shown(d, g.d)) out += d == 4 ? "  …" : "";
            else if (g.t == 1) out += text("  [%d]", g.rank_of(0, d, s));
            else out += text("  [%d to %d]", g.rank_of(0, d, s), g.rank_of(g.t - 1, d, s));
        }
        out += "\n";
    }
    return out;
}

// those that differ from the defaults; with --verbose, all
inline void print_settings(const Run& run) {
    const Options& o = run.options;
    printf("settings%s\n", o.verbose ? "" : "  (all of them: --verbose)");
    for (auto& option : option_table) {
        std::string value = print_value(o, option, false), name = option.name;
        if (name == "model") value = model_name(o);
        bool unset = value.empty() || (value == "0" && option.least >= 1);
        bool is_default = value == print_value({}, option, false);
        if (name == "help" || name == "version" || name == "verbose") continue;
        if (!unset && (o.verbose || !is_default || o.has(option.name)))
            printf("  %-18s %s\n", option.name, value.c_str());
    }

    std::string device = device_name();
    double peak = device_peak(device);
    printf("model     %ld parameters, vocabulary %d padded to %d\n", parameter_table(run.state.shape).count,
           run.state.shape.V, run.state.shape.Vp);
    if (run.grid.world.size > 1) printf("%s", print_grid(run.grid).c_str());
    printf("device    %s, %s; %s\n", device.c_str(), PRECISION_NAME,
           peak > 0 ? text("peak %.0f TFLOP/s", peak * 1e-12).c_str() : "peak unknown, so no MFU");
}

// ---- the file --------------------------------------------------------------------------------------------

// the steps in a metrics file, with their lines; fails if it is not a metrics file
inline std::vector<std::pair<long, std::string>> read_metrics_file(const std::string& path) {
    std::vector<std::pair<long, std::string>> lines;
    WholeFile old(path);
    std::string_view left = old.view();

    while (left.find('\n') != left.npos) {  // a last line without a newline was cut off
        std::string line(left.substr(0, left.find('\n')));
        left.remove_prefix(line.size() + 1);
        try {
            lines.push_back({Json::parse(line, path).at("step", path).integer(path), line});
        } catch (const Error&) {
            fail("--metrics %s: exists but is not a metrics file (line %zu): choose another file, or "
                 "remove it", path.c_str(), lines.size() + 1);
        }
    }

    if (lines.empty() && old.size > 0)
        fail("--metrics %s: exists but is not a metrics file: choose another file, or remove it",
             path.c_str());
    return lines;
}

// one run at a time writes a metrics file: it is locked as long as this process lives
inline int held_metrics = -1;  // file descriptor
inline void lock_metrics(const std::string& path) {
    int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) fail("--metrics %s: cannot be written: %s", path.c_str(), strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        fail("--metrics %s: another run writes there: end that run, or give another file", path.c_str());
    if (held_metrics >= 0) close(held_metrics);
    held_metrics = fd;
}

inline void check_metrics(const Run& run) {
    const std::string& path = run.options.metrics;
    if (path.empty() || !run.is_rank0()) return;
    if (access(path.c_str(), F_OK) == 0) read_metrics_file(path);
    if (run.trains() && run.state.step < run.last_step) lock_metrics(path);
}

// whether this run continues the resumed run's file: it saves where it resumes, with the same --metrics
inline bool continues_metrics(const Run& run) {
    const Options& o = run.options;
    std::error_code none;
    if (run.checkpoints.empty() || !std::filesystem::equivalent(o.save, o.resume, none)) return false;
    auto recorded = run.checkpoints[0].options.find("metrics");
    return recorded != run.checkpoints[0].options.end() && recorded->second == o.metrics;
}

// Continues the metrics file from the resumed checkpoint: drops the lines of later steps, which will be run
// again. Another run's file (this run is new, or the file lacks this step or counts other tokens at it) is
// renamed FILE.previous, or FILE.previous-2 and so on; a branch of a run does so too, and copies its lines.
inline void open_metrics(const Run& run) {
    const std::string& path = run.options.metrics;
    if (path.empty() || !run.is_rank0() || run.state.step >= run.last_step) return;
    if (held_metrics < 0) lock_metrics(path);  // the newest checkpoint was the last step's, and damaged
    std::string kept;
    bool is_other = true, drops = false, in_order = true;
    std::vector<std::pair<long, std::string>> lines = read_metrics_file(path);
    for (auto& [step, line] : lines) {
        if (step > run.state.step) {
            drops = true;
            continue;
        }
        kept += line + "\n";
        in_order &= !drops;
        if (step != run.state.step) continue;
        Json at = Json::parse(line, path);
        const Json* tokens = at.find("tokens");
        is_other = run.state.step == 0 || !tokens || (uint64_t)tokens->integer(path) != run.state.tokens_seen;
    }
    // its own file, whose last lines were lost with the power, or never written, ends before this step
    if (!lines.empty() && lines.back().first < run.state.step && continues_metrics(run)) is_other = false;
    bool sets_aside = !lines.empty() && (is_other || (drops && !continues_metrics(run)));
    if (sets_aside) {
        std::string aside = path + ".previous";
        for (int i = 2; access(aside.c_str(), F_OK) == 0; i++) aside = path + text(".previous-%d", i);
        std::filesystem::rename(path, aside);
        if (is_other) kept.clear();
        std::string what = is_other ? "of another run, which are" : "of the run that this one branches off,";
        printf("note: %s has %s %s now in %s\n", path.c_str(),
               counted((long)lines.size(), "step").c_str(), what.c_str(), aside.c_str());
    }
    if (!sets_aside && in_order)  // needs no room: the disk may be full
        return std::filesystem::resize_file(path, kept.size());
    write_file(path, kept);
    lock_metrics(path);  // of the new file
}

// JSON has no NaN or infinity: these become null
inline std::string json_number(double value) {
    return std::isfinite(value) ? text("%.17g", value) : "null";
}

// `, "NAME": {"a": 1, "b": 2}`, or nothing if there are no values
inline std::string json_values(const char* name, const NamedValues& values) {
    std::string out;
    for (auto& [key, value] : values)
        out += text("%s%s: %s", out.empty() ? "" : ", ", json_quote(key).c_str(), json_number(value).c_str());
    return out.empty() ? out : text(", \"%s\": {%s}", name, out.c_str());
}

// ---- a step ----------------------------------------------------------------------------------------------

// reports on rank 0; the others print and write nothing
class ProgressReporter {
    const Run& run;
    double flops, peak;      // FLOPs per token; peak FLOP/s of all devices
    double pace = 0;         // seconds per token, smoothed
    double usual = 0;        // seconds expected for the last step, from the pace of earlier steps
    bool check_was_reported = false;
    double last_print = 0;
    std::string unwritten;   // lines that could not be written yet
    bool error_was_reported = false;

    void write_metrics(const StepResult& r, double speed) {
        std::string line = text("{\"step\": %ld, \"tokens\": %llu, \"loss\": %s", run.state.step,
                                (unsigned long long)run.state.tokens_seen, json_number(r.loss).c_str());
        line += json_values("losses", r.set_losses);
        if (r.validation_loss) line += ", \"validation_loss\": " + json_number(*r.validation_loss);
        line += json_values("tasks", r.tasks);

        line += text(", \"learning_rate\": %.17g, \"gradient_norm\": %s, \"seconds\": %.6g, "
                     "\"tokens_per_second\": %.6g", r.learning_rate, json_number(r.norm).c_str(), r.seconds,
                     speed);
        if (!r.updated) line += ", \"updated\": false";
        for (size_t i = 0; i < r.slow_ranks.size(); i++)
            line += text("%s%d%s", i ? ", " : ", \"slow_ranks\": [", r.slow_ranks[i],
                         i + 1 == r.slow_ranks.size() ? "]" : "");

        if (peak > 0) line += text(", \"mfu\": %.4f", speed * flops / peak);
        unwritten += line + "}\n";
        append_lines(run.options.metrics);
    }

    // appends all pending lines or none: what cannot be written is kept for the next step
    void append_lines(const std::string& path) {
        int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        struct stat before;
        bool opened = fd >= 0 && fstat(fd, &before) == 0;
        errno = opened ? 0 : errno;

        bool written = opened && write(fd, unwritten.data(), unwritten.size()) == (ssize_t)unwritten.size();
        int reason = errno ? errno : ENOSPC;
        if (opened && !written && ftruncate(fd, before.st_size) != 0) reason = errno;
        if (fd >= 0) close(fd);

        if (written) unwritten.clear();
        else if (!error_was_reported)
            fprintf(stderr, "--metrics %s: cannot be written: %s: training continues; the lines are kept and "
                    "written later\n", path.c_str(), strerror(reason));
        error_was_reported = !written;
    }

public:
    explicit ProgressReporter(const Run& run)
        : run(run), flops(flops_per_token(run.state.shape)),
          peak(device_peak(device_name()) * run.grid.world.size) {}

    // tokens: in the step
    void report_step(const StepResult& r, double tokens) {
        double each = r.seconds / tokens;
        usual = pace * tokens;
        pace = pace ? 0.9 * pace + 0.1 * each : each;
        if (!run.is_rank0()) return;

        double speed = 1 / pace;
        if (!run.options.metrics.empty()) write_metrics(r, speed);
        bool evaluated = r.validation_loss.has_value();
        bool edge = run.state.step == 1 || run.state.step == run.last_step || evaluated;
        if (!edge && seconds() - last_print < 2) return;
        last_print = seconds();

        double left = ((double)run.last_tokens - (double)run.state.tokens_seen) / speed;
        std::string mfu = peak > 0 ? text("  MFU %4.1f %%", 100 * speed * flops / peak) : "";
        std::string validation = evaluated ? text("  validation loss %.4f", *r.validation_loss) : "";
        printf("step %6ld/%ld  loss %.4f  lr %.2e  norm %.3f  %.0f tokens/s%s  left %ld:%02ld%s\n",
               run.state.step, run.last_step, r.loss, r.learning_rate, r.norm, speed, mfu.c_str(),
               (long)left / 60, (long)left % 60, validation.c_str());
        fflush(stdout);
    }

    // at the run's end: lines that could not be written until now
    void write_pending() {
        if (unwritten.empty()) return;
        long steps = std::count(unwritten.begin(), unwritten.end(), '\n');
        append_lines(run.options.metrics);
        if (!unwritten.empty())
            fprintf(stderr, "--metrics %s: lacks the last %s\n", run.options.metrics.c_str(),
                    counted(steps, "step").c_str());
    }

    // prints, once, the cost of a --check-every step that found nothing; took: seconds of step and comparison
    void report_check(double took) {
        if (check_was_reported || usual <= 0 || run.options.check_every < 2 || !run.is_rank0()) return;
        check_was_reported = true;
        double share = (took / usual - 1) / (double)run.options.check_every;
        printf("check     step %ld: nothing is wrong; it took %.1f x a step's time, %.2g %% of the run\n",
               run.state.step, took / usual, 100 * share);
    }
};
