// setup.h   what a rank derives from the resolved options: sizes, which --plan uses too, and the choices
//   that training makes by timing before its first step
#pragma once
#include <map>
#include <vector>
#include "../fast/autotune.h"
#include "../fast/graph.h"
#include "../base/hardware.h"
#include "../base/random.h"
#include "allocate.h"
#include "checkpoint.h"
#include "../model/pipeline.h"
#include "schedules.h"

// ---- sizes -----------------------------------------------------------------------------------------------

// the build to plan for; by default this one
struct Target {
    Precision precision = {};
    size_t workspace = dev::gemm_workspace();
    bool kernels = HAS_KERNELS;
};
constexpr Target gpu_target = {{"bf16", 2, 4}, cublas_workspace, true};

// flash kernels need bf16 and certain head sizes; builds without kernels accept every head size, but with
// --attention auto they use flash for the same ones
inline bool uses_flash(const Options& o, const Target& target) {
    int HS = o.hidden / o.heads;
    bool has_kernel = has_flash_kernels(HS) && (target.precision.x == 2 || !target.kernels);
    if (o.attention == "flash" && !has_kernel && target.kernels)
        fail("--attention flash with a head size of %d in %s: requires bf16 and a head size of 64, 80, 96, "
             "128 or 160: choose --attention auto", HS, target.precision.name);
    return o.attention == "flash" || (o.attention == "auto" && has_kernel);
}

inline Recompute recompute_of(const Options& o) {
    if (o.recompute == "full") return Recompute::Full;
    return o.recompute == "light" ? Recompute::Light : Recompute::None;
}

// most micro-batches of a replica in a round of evaluation: many, to keep the pipeline full
inline int evaluation_round(int p) { return std::max(64, 8 * p); }

inline Setup setup_of_generation(const Options& o) {
    int v = o.pipeline_chunks, B = o.prompts() ? o.batch : 1;
    return {.B = B, .training = false, .packs = true, .inference_cache = true,
            .logit_rows = o.serves() ? std::max(B, 256) : B,  // rows of a prompt that are scored at once
            .chunks = v, .slots = v, .dx_buffers = 0};
}

inline Setup setup_of_evaluation(const Options& o, const Grid& grid) {
    int v = o.pipeline_chunks, round = evaluation_round(grid.p);
    Schedule s = make_schedule(grid.stage, {grid.p, round, v, grid.p, false});
    return {.B = o.micro_batch, .training = false, .packs = true, .notes_greedy = true,
            .micro_batches = round, .chunks = v, .slots = s.slots, .inputs = s.inputs, .dx_buffers = 0};
}

inline Setup setup_of(const Options& o, const Grid& grid, const Schedules& schedules,
                      const Target& target = {}) {
    int d = grid.d;
    bool flash = uses_flash(o, target);
    if (!o.generate.empty()) return setup_of_generation(o);
    if (o.inference()) return setup_of_evaluation(o, grid);

    Setup s = {.B = o.micro_batch,
               .sequence_parallel = o.sequence_parallel == "yes",
               .samples_text = o.sample_every > 0,
               .packs = o.sample_every > 0 || !o.evaluate.empty(),
               .notes_greedy = !o.evaluate.empty(),
               .recompute = recompute_of(o),
               .flash = flash,
               .fp8 = o.fp8 == "yes",
               .fp8_lm_head = o.fp8_lm_head == "yes",
               .bf16_moments = o.moments == "bf16",
               .master_weights = o.master_weights == "yes",
               .loss_in_backward = o.loss_chunk > 0,
               .logit_rows_held = o.loss_chunk,
               .optimizer_shards = o.zero == 1 ? d : 1,
               .chunks = o.pipeline_chunks,
               .precision = target.precision,
               .workspace = target.workspace};

    if (!o.validation.empty())
        s.micro_batches = (int)std::min((o.evaluate_sequences + d * s.B - 1) / (d * s.B),
                                        (long)evaluation_round(grid.p));
    for (auto& [batch, schedule] : schedules) {
        s.several_micro_batches |= schedule.shape.micro_batches > 1;
        s.loss_in_backward |= !loss_meets_backward(schedule);
        s.micro_batches = std::max(s.micro_batches, schedule.shape.micro_batches);
        s.slots = std::max(s.slots, schedule.slots);
        s.inputs = std::max(s.inputs, schedule.inputs);
        s.dx_buffers = std::max(s.dx_buffers, schedule.dx_buffers);
    }
    return s;
}

// ---- what is timed at the start --------------------------------------------------------------------------

// opens the file of choices that were timed on a machine like this before
inline void open_autotuner(const Options& o, const RunState& state) {
    std::string folder = o.tuning, file;
    std::string machine = device_name() + ", " + driver_name() + ", " + dev::gemm_library();
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (folder.empty() && !host_is_device && (cache || home))
        folder = cache ? std::string(cache) + "/train_gpt" : std::string(home) + "/.cache/train_gpt";

    if (!folder.empty() && folder != "none") {
        std::error_code e;
        std::filesystem::create_directories(folder, e);  // failures are reported by save()
        uint64_t hash = checksum(machine.data(), machine.size());
        file = text("%s/choices-%016llx", folder.c_str(), (unsigned long long)hash);
    }

    autotuner.open(file, machine);
    autotuner.run_choices = state.choices;
}

// the second, where a step has several, adds to gradients
inline int timed_micro_batches(const Model& model) { return model.setup.several_micro_batches ? 2 : 1; }

// Fills in random tokens and, where a stage receives activations or their gradients, random values: on zeros,
// GEMMs run faster than on real data
inline void fill_at_random(Model& model) {
    const ModelShape& shape = model.shape;
    int B = model.setup.B, T = shape.T;
    if (model.loads_tokens())
        for (int index = 0; index < timed_micro_batches(model); index++) {
            std::vector<int> samples((size_t)B * (T + 1));
            for (size_t i = 0; i < samples.size(); i++)
                samples[i] = (int)(uniform(0, purpose("tuning"), i + index * samples.size()) * shape.V);
            put_tokens_on_host(model, model.host_tokens[0], samples, B, index);
        }

    if (model.grid.p == 1) return;  // nothing is received
    std::vector<floatX> values((size_t)model.grid.rows(B * T) * shape.C);
    normals(values.data(), 0, purpose("tuning"), 0, (long)values.size(), 1);
    for (floatX* received : {model.inputs[0].x, model.dx_buffers[0].x})
        copy_to_device(received, values.data(), values.size() * sizeof(floatX), model.stream);
    synchronize(model.stream);  // before `values` is freed
}

// forward and backward of up to two micro-batches, to time GEMMs and load kernels
inline void compute_once(Model& model) {
    // micro-batch 0 sets gradients, micro-batch 1 adds to them
    for (int index = 0; index < timed_micro_batches(model); index++)
        for (int chunk = 0; chunk < model.setup.chunks; chunk++) {
            MicroBatch mb = {.index = index, .chunk = chunk, .N = model.max_rows(),
                             .in_flight = model.in_flight[0], .input = model.inputs[0],
                             .dx_buffer = &model.dx_buffers[0], .host_tokens = model.host_tokens[0],
                             .dloss = 1};
            copy_tokens(model, mb);
            forward(model, mb);
            backward(model, mb);
        }
}

// all ranks take each choice from the lowest rank that made it; collective over the world
inline void share_choices(const comm::Group& world) {
    std::vector<int64_t> mine;
    for (auto& [hash, way] : autotuner.used) {
        mine.push_back((int64_t)hash);
        mine.push_back(way);
    }

    // the ranks may have chosen for different numbers of shapes
    int64_t most = 0;
    for (int64_t n : comm::gather_numbers(world, {(int64_t)mine.size()}, "choices")) most = std::max(most, n);
    mine.resize((size_t)most, 0);
    std::vector<int64_t> all = comm::gather_numbers(world, mine, "choices");

    std::map<uint64_t, int> shared;
    for (size_t i = 0; i + 1 < all.size(); i += 2)
        if (all[i]) shared.emplace((uint64_t)all[i], (int)all[i + 1]);
    autotuner.take_run_choices(shared);
}

// Before the first step: times the choices; with `may_graph`, returns whether a CUDA graph is faster (timed
// without the update, on at most two micro-batches: compute_once). Sets gradients to 0.
// Choices belong to the run: they are the same on all ranks and saved in checkpoints
inline bool tune(Model& model, Optimizer& optimizer, const Options& o, RunState& state, bool may_graph) {
    fill_at_random(model);
    clear_losses(model);
    CapturedStep captured;
    captured.must_capture = true;

    const ModelShape& shape = model.shape;
    std::string key =
        text("graph " PRECISION_NAME
             " %d layers %d hidden %d heads %d x %d of %d recompute %d flash %d "
             "fp8 %d %d rows of logits %d micro-batches %d",
             shape.L, shape.C, shape.NH, model.setup.B, shape.T, shape.Vp, (int)model.setup.recompute,
             model.setup.flash, model.setup.fp8, model.setup.fp8_lm_head, model.lm_head.logit_rows_held,
             timed_micro_batches(model));

    auto run = [&](int way) {
        if (!way) {
            compute_once(model);
            return true;
        }
        try {
            captured.enqueue(model.stream, 1, [&] { compute_once(model); });
        } catch (const DeviceError& e) {
            fprintf(stderr, "note: forward and backward cannot be captured as a CUDA graph: %s\n", e.what());
            return false;
        }
        return true;
    };

    bool graph_is_faster = false;
    {
        TimingChoices here;
        compute_once(model);
        graph_is_faster = may_graph && autotuner.choose(key, 2, 0, model.stream, run) == 1;
    }

    share_choices(model.grid.world);
    state.choices.insert(autotuner.run_choices.begin(), autotuner.run_choices.end());
    autotuner.save();

    if (model.grid.world.size == 1) {  // loads kernels before a capture; by limits of -1 no parameter changes
        optimizer.set_hyper_parameters(o, 0, 1, -1, -1);
        update_parameters(model, optimizer);
    }
    synchronize(model.stream);  // before the host buffer of tokens is written again

    clear_gradients(model);
    return graph_is_faster;
}
