// profile.h   the time of each operation of a step on this rank, beside its floor on this machine
//   floor: a GEMM takes at least its FLOPs at the rate of a large GEMM, and any operation at least its bytes
//   at the rate of a copy; both rates are measured here. Calls and waits have no floor. An operation whose
//   data is in a cache may beat its floor.
#pragma once
#include <algorithm>
#include <list>
#include <map>
#include "../base/timed_event.h"
#include "../linear.cuh"
#include "dry_run.h"

// FLOP/s of a large GEMM, and bytes/s (read and written) of a copy on the device; the best of several runs
struct Ceilings { double flops, bytes; };

inline Ceilings measure_ceilings() {
    int n = host_is_device ? 1024 : 4096;
    size_t bytes = (host_is_device ? 64 : 256) << 20, matrix = (size_t)n * n * sizeof(floatX);
    char *to = (char*)device_malloc(bytes + 3 * matrix, "measuring this machine"), *from = to + bytes / 2;
    auto* matrices = (floatX*)(to + bytes);
    set_zero(to, bytes, nullptr);

    std::vector<floatX> ones((size_t)n * n, floatX(1));
    for (int i = 0; i < 3; i++) copy_to_device(matrices + i * ones.size(), ones.data(), matrix, nullptr);
    synchronize(nullptr);  // `ones` is not needed after this

    LinearForward gemm = {.y = matrices, .x = matrices + ones.size(), .w = matrices + 2 * ones.size(),
                          .b = nullptr, .N = n, .C = n, .OC = n};

    auto fastest = [](auto work) {
        double best = INFINITY;
        for (int i = 0; i < 6; i++) {
            synchronize(nullptr);
            double start = seconds();
            work();
            synchronize(nullptr);
            if (i) best = std::min(best, seconds() - start);
        }
        return best;
    };

    double product = fastest([&] { compute(gemm, nullptr); });
    double copy = fastest([&] { copy_on_device(to, from, bytes / 2, nullptr); });
    device_free(to);
    return {2.0 * n * n * n / product, (double)bytes / copy};
}

class Profile : public Listener {
    struct Entry {
        Activity activity;
        TimedEvent begin, end;
    };
    struct Row {
        Activity::Kind kind;
        long calls = 0;
        double seconds = 0, flops = 0, bytes = 0, floor = 0;
    };
    Ceilings ceilings;
    std::list<Entry> entries;
    std::vector<Entry*> open;
    std::map<std::pair<std::string, std::string>, Row> rows;  // by name and sizes
    long steps = 0;
    double took = 0;

    static bool is_timed(const Activity& a) {
        if (a.kind == Activity::Section || (a.kind == Activity::Wait && a.position < 0)) return false;
        return !a.ends_later();
    }

    static std::string sizes_of(const Activity& a) {
        if (a.kind == Activity::Wait) return text("for %s", a.label);
        if (a.kind == Activity::Communicate) return text("%s, %ld values", a.label, a.call.count);
        for (auto& work : a.works)
            if (work.gemm.m) {
                std::string sizes = text("%ld x %ld x %ld", work.gemm.m, work.gemm.n, work.gemm.k);
                return work.gemm.batch > 1 ? sizes + text(", %ld of them", work.gemm.batch) : sizes;
            }
        const TensorAccess* largest = &a.tensors[0];
        for (auto& tensor : a.tensors)
            if (tensor.rows * tensor.columns > largest->rows * largest->columns) largest = &tensor;
        return largest->columns > 1 ? text("%ld x %ld", largest->rows, largest->columns)
                                    : text("%ld", largest->rows);
    }

    // each of the works separately: they are kernels that run one after the other
    double floor_of(const Activity& a) const {
        double sum = 0;
        for (auto& w : a.works)
            sum += std::max(w.gemm.flops() / ceilings.flops / (w.fp8 ? 2 : 1), w.bytes({}) / ceilings.bytes);
        return a.works.empty() ? bytes_moved(a, {}) / ceilings.bytes : sum;
    }

    static std::string rate_of(const Row& row) {
        if (row.seconds <= 0) return text("%16s", "");
        double flops = row.flops / row.seconds;
        if (flops > 1e12) return text("%8.4g TFLOP/s", flops * 1e-12);
        if (flops > 0) return text("%8.4g GFLOP/s", flops * 1e-9);
        return row.bytes > 0 ? text("%8.4g GB/s   ", row.bytes / row.seconds * 1e-9) : text("%16s", "");
    }

public:
    explicit Profile(const Ceilings& ceilings) : ceilings(ceilings) {}
    void begin(const Activity& a) override {
        if (!is_timed(a)) return;
        entries.emplace_back();
        entries.back().activity = a;
        entries.back().begin.record(a.stream);
        open.push_back(&entries.back());
    }

    void end(const Activity& a) override {
        if (!is_timed(a)) return;
        open.back()->end.record(a.stream);
        open.pop_back();
    }

    // after each step; seconds: what the step took
    void collect(Stream stream, double seconds) {
        synchronize(stream);
        for (auto& e : entries) {
            const Activity& a = e.activity;
            Row& row = rows[{a.kind == Activity::Wait ? "wait" : a.name, sizes_of(a)}];
            row.kind = a.kind;
            row.calls++;
            row.seconds += e.end.since(e.begin);
            if (a.kind == Activity::Communicate)
                row.bytes += (double)comm::sent_bytes(a.call.kind, a.call.size, (long)whole_bytes(a, {}));

            if (a.kind != Activity::Compute) continue;
            for (auto& work : a.works) row.flops += work.gemm.flops();
            row.bytes += bytes_moved(a, {});
            row.floor += floor_of(a);
        }

        entries.clear();
        steps++;
        took += seconds;
    }

    // seconds per step, by the operation's name
    std::map<std::string, double> by_name() const {
        std::map<std::string, double> out;
        for (auto& [key, row] : rows) out[key.first] += row.seconds / (double)steps;
        return out;
    }

    std::string print() const {
        std::vector<std::pair<double, decltype(rows)::const_iterator>> order;
        for (auto it = rows.begin(); it != rows.end(); ++it) order.push_back({-it->second.seconds, it});
        std::sort(order.begin(), order.end(), [](auto& a, auto& b) { return a.first < b.first; });

        double n = (double)steps, named = 0, lost = 0;
        std::string out = text(
            "profile of %s of %.4g ms; floors: products at %.4g TFLOP/s, all else at %.4g GB/s, both "
            "measured here\n%-26s %-34s %6s %9s %7s %16s %8s\n",
            counted(steps, "step").c_str(), 1e3 * took / n, ceilings.flops * 1e-12,
            ceilings.bytes * 1e-9, "operation", "sizes", "calls", "ms", "of step", "", "of floor");

        for (auto& [negative, it] : order) {
            const Row& row = it->second;
            named += row.seconds;
            std::string floor;
            if (row.kind == Activity::Compute && row.seconds > 0) {
                floor = text("%6.1f %%", 100 * row.floor / row.seconds);
                lost += row.seconds - row.floor;
            }
            out += text("%-26s %-34s %6.4g %9.3f %5.1f %% %s %s\n", it->first.first.c_str(),
                        it->first.second.c_str(), (double)row.calls / n, 1e3 * row.seconds / n,
                        100 * row.seconds / took, rate_of(row).c_str(), floor.c_str());
        }
        return out + text("%-68s %9.3f %5.1f %%\nat their floors all computations would take %.3f ms less: "
                          "%.1f %% of the step\n", "between operations", 1e3 * (took - named) / n,
                          100 * (took - named) / took, 1e3 * lost / n, 100 * lost / took);
    }
};
