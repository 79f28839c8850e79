// schedules.h   which pipeline schedules a run's options ask for, and whether they are possible
#pragma once
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include "../../comm/grid.h"
#include "../../comm/schedule.h"
#include "config.h"

// ---- legal group sizes -----------------------------------------------------------------------------------

inline bool legal_group(int p, int m, int g) { return p <= g && g <= m && (m % g == 0 || m % g >= p); }

// the default group size for m micro-batches: p if that is legal, else the next larger legal one; 0: none is
inline int default_group(int p, int m) {
    for (int g = p; g <= m; g++) if (legal_group(p, m, g)) return g;
    return 0;
}

inline void check_pipeline(const PipelineShape& s) {
    if (s.chunks == 1) return;
    if ((long)s.micro_batches * s.chunks > 1 << 24)
        fail("--pipeline-chunks %d with %d micro-batches: too many", s.chunks, s.micro_batches);
    if (!default_group(s.p, s.micro_batches))
        fail("--pipeline-chunks %d over %d stages with %d micro-batch%s a step: needs at least %d "
             "micro-batches: choose a larger --batch (in a ramp: --ramp-start), a smaller --micro-batch, or "
             "--pipeline-chunks 1 without --pipeline-group", s.chunks, s.p,
             s.micro_batches, s.micro_batches == 1 ? "" : "es", s.p);
    // this many messages from the first stage to the last may queue for their receives; each takes at most 6
    // of some 1,000 entries of the device's launch queue, and the host blocks once that is full
    constexpr int most_waiting = 128;
    if (s.interleave_group - s.p > most_waiting)
        fail("--pipeline-group %d over %d stages: must be at most %d: give a smaller one, or "
             "another number of micro-batches", s.interleave_group, s.p, s.p + most_waiting);
    if (legal_group(s.p, s.micro_batches, s.interleave_group)) return;
    std::vector<std::string> good;
    for (int g = s.p; g <= s.micro_batches; g++)
        if (legal_group(s.p, s.micro_batches, g) &&
            (std::abs(g - s.interleave_group) < 12 || s.micro_batches < 24))
            good.push_back(std::to_string(g));
    if (good.empty()) good = {std::to_string(default_group(s.p, s.micro_batches))};
    fail(
        "--pipeline-group %d with %d micro-batches over %d stages: must be %d to %d, and divide %d or leave "
        "a remainder of at least %d: choose %s", s.interleave_group, s.micro_batches, s.p, s.p,
        s.micro_batches, s.micro_batches, s.p, alternatives(good).c_str());
}

// ---- of a run --------------------------------------------------------------------------------------------

// interleave group: --pipeline-group or, without it and at batch sizes of the ramp that do not allow it, the
// default (once resolved, o.pipeline_group is that of the largest batch)
inline PipelineShape pipeline_shape(const Options& o, int d, int batch) {
    PipelineShape s = {o.pipeline_parallel, batch / d / o.micro_batch, o.pipeline_chunks, 1};
    int m = s.micro_batches;
    bool as_asked =
        o.has("pipeline-group") && (batch == o.batch || legal_group(s.p, m, o.pipeline_group));
    if (s.chunks == 1) s.interleave_group = m;
    else s.interleave_group = as_asked ? o.pipeline_group : default_group(s.p, m);
    return s;
}

// one per batch size still to come. samples: consumed so far
inline Schedules make_schedules(const Options& o, const Grid& grid, int stage, uint64_t samples) {
    Schedules all;
    for (int batch : batches_from(o, samples)) {
        PipelineShape s = pipeline_shape(o, grid.d, batch);
        check_pipeline(s);
        all[batch] = make_schedule(stage, s);
    }
    return all;
}

// greatest common divisor of a replica's share of the batches still to come: --micro-batch divides it
inline int common_share(const Options& o, uint64_t samples, int d) {
    int common = 0;
    for (int batch : batches_from(o, samples)) common = std::gcd(common, batch / d);
    return common;
}

// whether on this stage every forward of the model's last chunk is followed at once by its backward: only
// then is memory for the logits of one micro-batch enough
inline bool loss_meets_backward(const Schedule& schedule) {
    const PipelineShape& s = schedule.shape;
    const Instruction* pending = nullptr;
    for (auto& i : schedule.list) {
        if (!i.computes()) continue;
        bool is_loss = schedule.stage == s.p - 1 && i.chunk == s.chunks - 1 && i.kind == Instruction::Forward;
        if (pending && (i.kind != Instruction::Backward || i.micro_batch != pending->micro_batch))
            return false;
        pending = is_loss ? &i : nullptr;
    }
    return true;
}
