// resume.h   loads a checkpoint into a model
//   Each rank reads the state it owns in a background thread, while all ranks exchange their status, so that
//   a slow disk is not mistaken for a hang. If the optimizer is sharded, a data-parallel rank reads only its
//   slice of the master weights and moments; parameters are rounded from the slices and all-gathered. If the
//   layout is unchanged, each byte of the sharded state is read once, except what is replicated over t, or on
//   the first and last stage; for another layout, Checkpoint::read assembles each new shard. If a rank finds
//   damage, nothing of that checkpoint is used: all ranks fall back to the next older one.
#pragma once
#include "../../comm/mpi/sum_over.h"
#include "resolve.h"
#include "save.h"

struct LoadedState {
    std::vector<ShardRange> ranges;
    std::vector<real> values;
};

// reads into host memory only
inline LoadedState read_state(const Checkpoint& c, const Model& model, const Optimizer* optimizer) {
    LoadedState out;
    size_t count = 0;
    auto add = [&](ShardRange range) {
        if (range.kind != Master && !c.has(range.parameter, range.kind)) return;  // imported model: stays 0
        range.at = count;
        count += (size_t)range.n;
        out.ranges.push_back(std::move(range));
    };

    if (optimizer)
        for (auto& range : state_ranges(model, *optimizer, false)) add(range);
    else
        for (auto& p : model.table.list) add({p, Master, 0, p.stored(), -1, 0});

    out.values.resize(count);
    for (auto& range : out.ranges)
        c.read(out.values.data() + range.at, range.parameter, range.kind, range.first,
               range.first + range.n);
    return out;
}

// collective over data-parallel ranks
inline void store_state(const LoadedState& state, Model& model, Optimizer* optimizer) {
    if (optimizer) clear_state(*optimizer, model);
    for (auto& range : state.ranges) {
        const real* values = state.values.data() + range.at;
        if (range.state_offset < 0) write_parameters(model, range.in_buffers(), values, range.n);
        else
            write_state(model, *optimizer, range.kind, range.in_buffers(), range.state_offset, values,
                        range.n);
    }

    // each rank has set only its own slice of the parameters: all-gather them
    if (!optimizer || model.setup.optimizer_shards == 1) return;
    for (auto& bucket : model.table.buckets) {
        long slice = bucket.elements / model.grid.d;
        floatX* w = model.weights + bucket.offset;
        comm::all_gather(model.grid.dp, w, w + model.grid.data * slice, slice, "parameters", model.stream);
    }
}

inline void load_checkpoint(const Checkpoint& c, Model& model, Optimizer* optimizer) {
    store_state(read_state(c, model, optimizer), model, optimizer);
}

// Renames the checkpoints that --resume-before skips; otherwise the next start would resume from them. Called
// by a run that has begun or locked --save
inline void set_aside_newer(const Run& run) {
    const Options& o = run.options;
    const std::string& dir = o.save;
    bool saves_there = run.trains() && run.state.step < run.last_step && dir == o.resume;
    if (!o.resume_before || !saves_there || !run.is_rank0()) return;
    for (auto& name : list_checkpoints(dir)) {
        if (step_of(name) < o.resume_before) continue;
        std::error_code ignored, failed;
        std::string from = dir + "/" + name, aside = dir + "/diverged-" + name;
        std::filesystem::remove_all(aside, ignored);
        std::filesystem::rename(from, aside, failed);
        if (!failed) printf("set aside %s, as %s\n", from.c_str(), aside.c_str());
        else
            fprintf(stderr, "%s: cannot be renamed: %s: the next start would resume from it: remove it\n",
                    from.c_str(), failed.message().c_str());
    }
}

// options of the checkpoint's run that this one does not have: those of the machine and those that name files
inline std::string options_left_behind(const Run& run, const Checkpoint& checkpoint) {
    static const std::set<std::string> own = {"train", "save", "resume", "config", "tuning", "seed", "layers",
                                              "hidden", "heads", "sequence", "vocabulary", "other-data",
                                              "resume-before", "verbose", "trace", "trace-step", "record"};
    std::string out;
    for (auto& option : option_table) {
        const std::string name = option.name;
        auto before = checkpoint.options.find(name);
        if (!checkpoint.given.count(name) || before == checkpoint.options.end()) continue;
        if (option.inherit == Inherit::always || own.count(name) || run.options.has(option.name)) continue;
        if (print_value(run.options, option) != before->second) out += " --" + name + " " + before->second;
    }
    return out;
}

// a number to ten digits, to hide the noise in its last bits; other values as they are
inline std::string brief(const std::string& value) {
    char* end;
    double number = strtod(value.c_str(), &end);
    return value.empty() || *end ? value : text("%.10g", number);
}

// prints where this run's recipe differs from the one that the checkpoint was trained with
inline void note_recipe_changes(const Run& run, const Checkpoint& checkpoint) {
    for (auto& option : option_table) {
        auto before = checkpoint.options.find(option.name);
        if (option.inherit != Inherit::always || before == checkpoint.options.end()) continue;
        std::string now = print_value(run.options, option);
        if (now != before->second)
            printf("note: --%s is %s, the checkpoint was trained with %s\n", option.name,
                   brief(now).c_str(), brief(before->second).c_str());
    }
    if (run.last_tokens > (uint64_t)run.options.decay_tokens && !run.options.has("decay-tokens"))
        printf("note: the learning rate stays at %.2e after %ld tokens, where its decay ends "
               "(--decay-tokens)\n", run.options.min_learning_rate, run.options.decay_tokens);
    std::string left = options_left_behind(run, checkpoint);
    if (!left.empty())
        printf("note: given to the checkpoint's run and not to this one:%s\n", left.c_str());
}

// loads the newest of run.checkpoints that all ranks can read undamaged; false: there is none. Collective
// over the world
inline bool load_newest(Run& run, Model& model, Optimizer* optimizer) {
    const Options& o = run.options;
    const comm::Group world = comm::everyone();
    for (auto& checkpoint : run.checkpoints) {
        double began = seconds();
        LoadedState loaded;

        std::future<void> reading = std::async(std::launch::async, [&] {
            loaded = read_state(checkpoint, model, optimizer);
        });
        std::string error;
        bool all_intact = comm::await_all_ranks(reading, "reading a checkpoint", error);
        if (!error.empty()) fprintf(stderr, "passed over: %s\n", error.c_str());
        if (!all_intact) continue;

        store_state(loaded, model, optimizer);
        bool at_start = run.state.step == run.checkpoints[0].state.step;
        int batch = batch_after(o, checkpoint.state.samples_seen);
        if (at_start && batch < batch_after(o, run.state.samples_seen))
            comm::all_end_on_error(
                text("--resume %s: newer checkpoints are damaged, and %s is of an earlier part of "
                     "the batch ramp: give --resume-before %ld",
                     o.resume.c_str(), checkpoint.folder.c_str(), checkpoint.state.step + 1));

        uint64_t training_set_size = run.state.training_set_size;
        uint64_t training_set_sum = run.state.training_set_sum, vocabulary_sum = run.state.vocabulary_sum;
        std::string tokenizer = run.state.tokenizer;  // of the checkpoint, or given where that names none
        run.state = checkpoint.state;
        if (!checkpoint.has_moments()) run.state.updates = 0;
        run.state.tokenizer = tokenizer;
        run.state.vocabulary_sum = vocabulary_sum;
        run.state.shape = model.shape;
        run.state.training_set_size = training_set_size;
        run.state.training_set_sum = training_set_sum;

        double bytes = comm::sum_over(world, {(double)loaded.values.size() * sizeof(real)}, "bytes read")[0];
        double took = seconds() - began;
        if (run.trains() && run.is_rank0()) {
            printf("resumed   %s: step %ld, %.3g GB in %.1f s, %.2g GB/s\n", checkpoint.folder.c_str(),
                   run.state.step, bytes * 1e-9, took, bytes * 1e-9 / took);
            note_recipe_changes(run, checkpoint);
        }

        return true;
    }
    return false;
}

// load_newest(), or the run ends. Inference looks again: a training run may have dropped what was opened
inline void resume_newest(Run& run, Model& model, Optimizer* optimizer) {
    bool loaded = load_newest(run, model, optimizer);
    for (int look = 0; !loaded && !run.trains() && look < 3; look++) {
        open_checkpoints(run);
        loaded = load_newest(run, model, optimizer);
    }
    if (!loaded)
        comm::all_end_on_error(
            text("--resume %s: no checkpoint is intact (each is named above): give a copy of one from "
                 "elsewhere, or start anew with another --save", run.options.resume.c_str()));
}
