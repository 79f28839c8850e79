// start.h   how a run starts: everything before the first step (start.cpp)
//   Options are resolved, every file is opened and checked, communicators are made, the plan is compared with
//   the available memory, parameters are initialised or loaded, and algorithms are chosen by timing them.
//   Errors found on the way end all ranks, before the first step. Runs that do not train (--plan, --evaluate,
//   --generate, --help) end here as well.
#pragma once
#include <memory>
#include "../inference/evaluate.h"
#include "../plan/observe.h"
#include "../run/trainer.h"

// before anything else, even before MPI starts
void prepare_process(char** argv);

// Returns what observes this rank's steps, or nothing: the run does not train, and has done what it was asked
std::unique_ptr<StepObserver> start(Run& run, Trainer& trainer, InferenceJobs& jobs, int argc, char** argv);
