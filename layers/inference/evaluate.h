// evaluate.h   --evaluate and --generate: requests, checked at the start, answered by all ranks
#pragma once
#include <string>
#include <vector>
#include "../run/run.h"

namespace comm { struct RankHash; }  // comm/mpi/collective_check.h
struct EvalFile;    // data/tasks/evaluation.h
struct TaskResult;  // task_report.h
struct Prompt;      // prompts.h

struct InferenceJobs {
    std::vector<EvalFile> tasks;
    std::vector<TaskResult> results;  // of the last evaluation
    std::vector<Prompt> prompts;

    InferenceJobs();
    InferenceJobs(InferenceJobs&&);
    InferenceJobs& operator=(InferenceJobs&&);
    ~InferenceJobs();
    int vocabulary() const;
};

// opens the files of --evaluate, or of prompts; whether results can be written is checked now, not at the end
InferenceJobs open_jobs(const Options& o);

// checks them against the model, once its shape is known
void check_tasks(InferenceJobs& jobs, const Run& run);

std::vector<comm::RankHash> job_hashes(const InferenceJobs& jobs, const Options& o);

// scores the files of --evaluate, if there are any: prints a table, writes --results; returns their metrics
NamedValues evaluate_tasks(const Run& run, Model& model, InferenceJobs& jobs);

// prints one text as it is drawn; draw: the number of its first random number. Returns the number of tokens
int print_sample(const Run& run, Model& model, const std::string& prompt, uint64_t draw);

// --generate TEXT, or - for standard input: all of it or, on a terminal, a line at a time; or -.jsonl
void generate_text(const Run& run, Model& model);

// writes each prompt's answer as a line of JSON, in order; some at a time, so that little is lost
void answer_prompts(const Run& run, Model& model, const InferenceJobs& jobs);
