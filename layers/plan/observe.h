// observe.h   observes a run's steps: each is compared with its plan; --trace draws one, --record
//   writes it down, --profile times some (observe.cpp)
#pragma once
#include <memory>
#include "../model/optimizer.h"
#include "../run/run.h"

struct StagePlan;  // stage_plan.h

// refuses before the run, not at its step, what cannot be traced, recorded or profiled
void check_trace(const Run& run);

// checks a step against its plan and its invariants, and does what --trace, --record and --profile ask for
class StepObserver {
    struct Parts;
    std::unique_ptr<Parts> parts;

public:
    // planned: what this rank's steps must consist of. Rank 0 measures the machine if that is needed
    StepObserver(const Run& run, StagePlan&& planned);
    ~StepObserver();

    // print is collective over the world; so is end_step, after a step that is traced or recorded
    void begin_step(Model& model, int batch);
    void end_step(Model& model, int batch, const StepResult& result);
    void print(const Model& model, const Optimizer& optimizer) const;
};
