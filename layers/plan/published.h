// published.h   runs that others have published, and what this program plans for them: --plan published
//   Two numbers of machines.h (narrow_loss and megatron_efficiency) are fitted to the first four, one
//   (mtnlg_efficiency) to the next three. Nothing is fitted to the last four, which are there to judge by.
//   The last four recompute only attention's scores, which this program does not do without flash attention;
//   the plan assumes that nothing is recomputed, which is a few per cent less work.
//   Sources: Korthikanti et al., arXiv 2205.05198, table 5; Smith et al., arXiv 2201.11990, section 3.3
#pragma once
#include "search.h"

struct PublishedRun {
    const char *name, *source, *options;
    double seconds, efficiency;
};

constexpr const char *korthikanti = "2205.05198", *smith = "2201.11990";
constexpr PublishedRun published_runs[] = {
    {"22B, full recomputation", korthikanti,
     "--model 22B --tensor-parallel 8 --world-size 8 --batch 4 --micro-batch 4", 1.42, megatron_efficiency},
    {"175B, full recomputation", korthikanti,
     "--model 175B --tensor-parallel 8 --pipeline-parallel 8 --pipeline-chunks 3 --world-size 64 --batch 64",
     18.13, megatron_efficiency},
    {"530B, full recomputation", korthikanti,
     "--model 530B --tensor-parallel 8 --pipeline-parallel 35 --pipeline-chunks 3 --world-size 280 "
     "--batch 280", 49.05, megatron_efficiency},
    {"1T, full recomputation", korthikanti,
     "--model 1T --tensor-parallel 8 --pipeline-parallel 64 --world-size 512 --batch 512", 94.42,
     megatron_efficiency},
    {"MT-NLG 530B, 280 servers", smith,
     "--model 530B --tensor-parallel 8 --pipeline-parallel 35 --world-size 2240 --batch 1920", 60.1,
     mtnlg_efficiency},
    {"MT-NLG 530B, 350 servers", smith,
     "--model 530B --tensor-parallel 8 --pipeline-parallel 35 --world-size 2800 --batch 1920", 50.2,
     mtnlg_efficiency},
    {"MT-NLG 530B, 420 servers", smith,
     "--model 530B --tensor-parallel 8 --pipeline-parallel 35 --world-size 3360 --batch 1920", 44.4,
     mtnlg_efficiency},
    {"22B, sequence parallel", korthikanti,
     "--model 22B --tensor-parallel 8 --world-size 8 --batch 4 --micro-batch 4 --sequence-parallel yes "
     "--recompute none", 1.10, megatron_efficiency},
    {"175B, sequence parallel", korthikanti,
     "--model 175B --tensor-parallel 8 --pipeline-parallel 8 --pipeline-chunks 3 --world-size 64 --batch 64 "
     "--sequence-parallel yes --recompute none", 13.75, megatron_efficiency},
    {"530B, sequence parallel", korthikanti,
     "--model 530B --tensor-parallel 8 --pipeline-parallel 35 --pipeline-chunks 3 --world-size 280 "
     "--batch 280 --sequence-parallel yes --recompute none", 37.83, megatron_efficiency},
    {"1T, sequence parallel", korthikanti,
     "--model 1T --tensor-parallel 8 --pipeline-parallel 64 --world-size 512 --batch 512 "
     "--sequence-parallel yes --recompute none", 71.49, megatron_efficiency},
};
constexpr size_t fitted_runs = 7;  // the first ones; nothing is fitted to the others

// planned seconds of a step; the run's own options override these defaults
inline double planned_seconds(const PublishedRun& r) {
    std::vector<std::string> words = {"train_gpt", "--plan", "--hardware", "dgx-a100", "--sequence-parallel",
                                      "no", "--recompute", "full", "--attention", "materialised",
                                      "--micro-batch", "1", "--gemm-efficiency", text("%g", r.efficiency)};
    std::istringstream in(r.options);

    for (std::string word; in >> word;) {
        auto named_before = std::find(words.begin(), words.end(), word);
        if (word.starts_with("--") && named_before != words.end())
            words.erase(named_before, named_before + 2);
        words.push_back(word);
    }

    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());

    Run run;
    run.options = parse_options((int)argv.size(), argv.data());
    check_plan_options(run.options);
    resolve_plan(run);
    return make_plan(run.options, run.state.shape, run.grid, choose_hardware(run.options), 0, false)
        .step().seconds;
}

inline std::string published_report() {
    std::string out = text("%-26s %-11s %10s %9s %9s %8s\n", "published on A100", "arXiv", "efficiency",
                           "planned s", "published", "");
    for (auto& r : published_runs) {
        if (&r - published_runs == fitted_runs) out += "not fitted:\n";
        double planned = planned_seconds(r);
        out += text("%-26s %-11s %10.3f %9.2f %9.2f %+7.1f %%\n", r.name, r.source, r.efficiency, planned,
                    r.seconds, 100 * (planned / r.seconds - 1));
    }
    return out;
}

// ---- --plan -----------------------------------------------------------------------------------------------

// what the run would draw from each set of a blend. A plan needs no data: unreadable sets are not an error
inline std::string planned_draws(const Run& run) {
    const Options& o = run.options;
    std::vector<WeightedFiles> sets;
    try {
        if (!o.train.empty()) sets = parse_sets(o.train);
    } catch (const Error& e) {
        return text("what is drawn from each set is not known: %s\n", e.what());
    }
    if (sets.empty()) return "";

    std::vector<uint64_t> sizes(sets.size(), 0);
    for (size_t i = 0; i < sets.size(); i++) {
        try {
            sizes[i] = Loader(sets[i].files, o.sequence, 0).samples();
        } catch (const Error&) {
        }
    }
    return draws_of_sets(sets, sizes, run.last_tokens / o.sequence, o.sequence);
}

// prints what the run would hold, send, compute and take
inline void show_plan(const Run& run) {
    const Options& o = run.options;
    if (o.plan == "published") return (void)fputs(published_report().c_str(), stdout);

    Hardware h = choose_hardware(o);
    if (o.hardware.empty() && device_name().find(h.gpu.name) == std::string::npos)
        fprintf(stderr, "note: planned for %s, as this machine is not in the table: --hardware plans for "
                "another one, for this one (here), or for your own numbers\n", h.name);
    if (o.plan == "search") return (void)fputs(search(run, h).c_str(), stdout);
    Plan p = whole_plan(run, h);
    std::string hosts = o.hosts.empty() ? "" : Placement(p, o.hosts).print();

    if (!o.plan_json.empty() && o.plan_json != "-")
        write_file(o.plan_json, plan_json(p));
    if (o.plan_json == "-") fputs(plan_json(p).c_str(), stdout);
    else fputs((plan_text(p) + planned_draws(run)).c_str(), stdout);
    fputs(hosts.c_str(), stdout);

    if (!o.timeline.empty()) {
        if (!p.timed()) fail("--timeline: --hardware %s has no times: name another machine", h.name);
        save_timeline(o.timeline, {draw(p.step(), pipeline_shape(o, p.grid.d, o.batch), plan_title(p))});
    }

    if (!p.fits())
        fail("a rank needs %.1f GB, but %s has %.0f; %s", p.gpu_bytes() * 1e-9,
             h.is_known() ? text("a GPU of %s", h.name).c_str() : "this machine", h.gpu.memory * 1e-9,
             what_would_fit(run, h).c_str());
}
