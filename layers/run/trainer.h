// trainer.h   what training keeps from step to step, and what surrounds a step's work (trainer.cpp)
//   At the end of a step (train_gpt.cu) ranks exchange reports (run.h), and all act on them in the same
//   way: begin or advance a save, skip a spike or roll back. A rank that cannot read the next step's samples
//   sets lacks_data; then all ranks save (if there is --save) and exit with 1 (save_and_end).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include "../model/pipeline.h"
#include "run.h"

class CheckpointWriter;  // save.h
class FolderLock;        // folder_lock.h
class RepeatedStep;      // monitor.h
class SampleReader;      // trainer.cpp
class SlowRankMonitor;   // monitor.h
class ProgressReporter;  // metrics.h
struct StepGraphs;       // trainer.cpp

struct Trainer {
    std::unique_ptr<Model> model;
    std::unique_ptr<Optimizer> optimizer;
    Schedules schedules;      // by batch size; executed where there are several stages
    bool stop = false;        // some rank received a signal: all stop after the same step
    bool uses_graph = false;  // a step is a CUDA graph: --graph yes, or auto where that is faster
    long steps_here = 0;      // taken by this process
    long loaded_step = -1;    // step of the checkpoint that was loaded last
    std::string data_error, memory_error;  // this rank's; its report carries only the flags

    std::unique_ptr<SampleReader> reader;
    std::unique_ptr<StepGraphs> graphs;
    std::unique_ptr<RepeatedStep> repeated;  // in a step of --check-every
    std::unique_ptr<ProgressReporter> reporter;
    std::unique_ptr<SlowRankMonitor> slow;
    bool has_folder = false;           // --save is this run's: rank 0 has locked it …
    std::unique_ptr<FolderLock> lock;  // … with this
    std::unique_ptr<CheckpointWriter> writer;  // ends before the lock is let go

    Trainer();
    ~Trainer();
};

// sets up what a trainer has besides model and optimizer, once these hold their values
void prepare_training(Run& run, Trainer& trainer);

// ---- in a step -------------------------------------------------------------------------------------------

// begins to read the samples of the step that starts at sample `first`, in the background
void prefetch_samples(Run& run, Trainer& trainer, uint64_t first);

// the samples of the step that begins now, valid until the next call. They have been read: the last step's
// end (or await_samples, before the first) has waited for it. Their tokens are in
// Model.host_tokens[token_buffer]
const StepSamples& take_samples(Trainer& trainer);

// all ranks wait for their next samples together: a disk may take longer than --comm-timeout allows a call
void await_samples(Trainer& trainer);

// Enqueues a step: the gradients of all micro-batches, then the update. In steps of --check-every, gradients
// are computed twice, and compared. With trainer.uses_graph a step is a CUDA graph
void enqueue_step(const Run& run, Trainer& trainer, const StepSamples& samples,
                  const std::function<void()>& gradients, const std::function<void()>& update);

// What ranks have found after the step: copies the checks of kernels and state from the idle device, waits
// for the next step's samples, copies the losses, and waits for the other ranks. Sets their reports, the mean
// loss over the step's tokens, those of each set, and the slow ranks. start, waited: seconds() and
// comm::waited_seconds() at the step's beginning
void exchange_reports(StepResult& result, Run& run, Trainer& trainer, const StepSamples& samples,
                      double start, double waited);

// ---- after a step ----------------------------------------------------------------------------------------

// The mean validation loss over at most --evaluate-sequences samples; false if any rank cannot read them
bool evaluate_loss(std::optional<double>& loss, Run& run, Trainer& trainer);

// progress lines and --metrics; tokens: in the step
void report_step(const StepResult& result, Trainer& trainer, double tokens);

// acts on what ranks reported about the step: stops, spikes, saves
void act_on_reports(const StepResult& result, Run& run, Trainer& trainer);

// --check-every: replicated state must be the same on all its ranks (replicas.h); step: its seconds
void check_replicas(const Run& run, Trainer& trainer, double step);

// called on all ranks if one cannot read its data; collective
void save_and_end(Run& run, Trainer& trainer, const std::string& error);

// locks --save for this run; collective
void lock_save_folder(const Run& run, Trainer& trainer);

// for a run that is already at its end: says so, and what the validation loss is
void report_nothing_to_do(Run& run, Trainer& trainer);

// after the last step: saves, unless no step was taken and the checkpoint is there already; prints what was
// drawn from each set of a blend
void end_training(Run& run, Trainer& trainer, bool has_begun);
