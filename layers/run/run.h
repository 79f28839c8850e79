// run.h   a run, once every setting is resolved: its options, its place in the grid, its data, its progress
#pragma once
#include <memory>
#include <optional>
#include "../../comm/grid.h"
#include "../../data/loader.h"
#include "options.h"
#include "run_state.h"
#include "start_times.h"

struct Checkpoint;  // checkpoint.h
struct Vocabulary;  // data/tokenizer.h

struct Run {
    Options options;
    Grid grid;
    RunState state;           // its progress
    long last_step = 0;
    uint64_t last_tokens = 0;
    std::optional<Blend> train;
    std::optional<Loader> validation;
    std::unique_ptr<Vocabulary> vocabulary;
    std::vector<Checkpoint> checkpoints;  // to resume from, newest first
    std::vector<std::string> hosts;       // by rank
    StartTimes start_times;
    bool automatic_micro_batch = false;

    Run();
    Run(Run&&);
    ~Run();
    bool trains() const { return !options.inference() && options.plan.empty(); }
    bool is_rank0() const { return comm::world_rank() == 0; }  // the rank that prints
};
