// evaluate.cpp   --evaluate and --generate: see evaluate.h
#include "evaluate.h"
#include <unistd.h>
#include <iostream>
#include <iterator>
#include "../run/resolve.h"
#include "../run/setup.h"
#include "generate.h"
#include "scoring.h"
#include "serve.h"
#include "task_report.h"

InferenceJobs::InferenceJobs() = default;
InferenceJobs::InferenceJobs(InferenceJobs&&) = default;
InferenceJobs& InferenceJobs::operator=(InferenceJobs&&) = default;
InferenceJobs::~InferenceJobs() = default;
int InferenceJobs::vocabulary() const { return tasks.empty() ? 0 : tasks[0].vocabulary; }

// ---- the start -------------------------------------------------------------------------------------------

InferenceJobs open_jobs(const Options& o) {
    InferenceJobs jobs;
    bool prints = comm::world_rank() == 0;
    if (!o.generate.empty() && o.resume.empty()) fail("--generate needs a trained model: give --resume DIR");
    if (!o.generate.empty() && !o.evaluate.empty()) fail("--generate and --evaluate: give one of them");
    bool reads_file = o.prompts() && !o.serves();
    if (!o.results.empty() && o.evaluate.empty() && !reads_file)
        fail("--results %s: requires --evaluate FILE.eval, or --generate FILE.jsonl", o.results.c_str());
    if (reads_file) jobs.prompts = read_prompts(o);
    if (!o.generate.empty() && !o.train.empty() && prints)
        fprintf(stderr, "note: with --generate nothing is trained, and --train is not read\n");
    std::error_code none;
    bool takes_text = !o.generate.empty() && !o.prompts() && o.generate != "-";
    if (takes_text && std::filesystem::is_regular_file(o.generate, none))
        fail("--generate %s: is a file, but this option takes text: --generate - < %s continues the file's "
             "text; FILE.jsonl has one prompt per line", o.generate.c_str(), o.generate.c_str());

    bool is_named = o.generate.find_first_of(" \t\n") == std::string::npos &&
        (o.generate.ends_with(".txt") || o.generate.ends_with(".json"));
    if (takes_text && is_named)
        fail("--generate %s: there is no such file, and it does not look like text: --generate - < FILE "
             "continues a file's text; FILE.jsonl has one prompt per line", o.generate.c_str());

    if (!o.results.empty() && prints) FileWriter probe(o.results);
    if (!o.evaluate.empty() && o.inference() && o.resume.empty() && prints)
        printf("note: without --resume the model's weights are random\n");

    if (o.plan.empty())
        for (auto& path : o.evaluate) jobs.tasks.push_back(EvalFile::open(path));
    return jobs;
}

void check_tasks(InferenceJobs& jobs, const Run& run) {
    const Options& o = run.options;
    std::set<std::string> names;
    for (auto& task : jobs.tasks) {
        if (!names.insert(task_name(task)).second)
            fail("--evaluate %s: another file already has the name %s: give one of them, or rename one",
                 task.path.c_str(), task_name(task).c_str());
        if (task.vocabulary != o.vocabulary)
            fail(
                "%s: has vocabulary size %d, the model %d: make it again with the model's vocabulary "
                "(./tasks --vocabulary)",
                task.path.c_str(), task.vocabulary, o.vocabulary);
        check_vocabulary_name(task.path, task.vocabulary_name, "the model",
                              run.vocabulary ? run.vocabulary->name() : "");
        leave_out_long(task, o.sequence, o.long_continuations == "refuse");
    }
}

std::vector<comm::RankHash> job_hashes(const InferenceJobs& jobs, const Options& o) {
    uint64_t tasks = 0, prompts = jobs.prompts.empty() ? 0 : file_sum(o.generate);
    for (auto& task : jobs.tasks) tasks = tasks * 31 + file_sum(task.path);
    return {{"a file of --evaluate", tasks, "copy the same files to all hosts"},
            {"the file of prompts", prompts, "copy the same files to all hosts"}};
}

// ---- scores ----------------------------------------------------------------------------------------------

// how far a long job is, on rank 0, every ten seconds
class Progress {
    const char* what;
    size_t all;
    double began = seconds(), told = began;

public:
    Progress(const char* what, size_t all) : what(what), all(all) {}
    void report(size_t done) {
        if (comm::world_rank() != 0 || seconds() - told < 10 || done == 0) return;
        told = seconds();
        fprintf(stderr, "progress  %zu of %zu %s, %.0f s left\n", done, all, what,
                (told - began) * (double)(all - done) / (double)done);
    }
};

std::vector<Score> score_file(Model& model, const ScoreBatches& plan) {
    const Grid& grid = model.grid;
    std::vector<Score> scores(plan.file.requests.size());
    size_t round = (size_t)model.setup.micro_batches * grid.d;
    Progress progress("batches of continuations", plan.batches.size());
    for (size_t first = 0; first < plan.batches.size(); first += round) {
        progress.report(first);
        size_t end = std::min(plan.batches.size(), first + round);
        auto batch_of = [&](int micro_batch) -> const ScoreBatch& {
            return plan.batches[first + (size_t)micro_batch * grid.d + grid.data];
        };

        int mine = (int)((end - first + grid.d - 1 - grid.data) / grid.d);
        std::vector<int> rows;
        for (int i = 0; i < mine; i++) rows.push_back(batch_of(i).rows);
        auto load = [&](MicroBatch& mb) {
            load_packed(model, mb.in_flight, plan.pack_batch(batch_of(mb.index)));
        };
        auto pass = [&](MicroBatch& mb) { packed_forward(model, mb); };

        clear_losses(model);
        Schedule schedule = make_schedule(grid.stage, {grid.p, mine, model.setup.chunks, grid.p, false});
        run_schedule(model, schedule, rows, nullptr, 0, load, pass);

        for (int i = 0; grid.is_last_stage() && i < mine; i++)
            collect_scores(model, plan, batch_of(i), i, scores);
        share_scores(grid, plan, first, end, scores);
        refuse_expired_waits("--evaluate", model.stream);
    }
    return scores;
}

NamedValues evaluate_tasks(const Run& run, Model& model, InferenceJobs& jobs) {
    if (jobs.tasks.empty()) return {};
    const Options& o = run.options;
    double start = seconds(), rows = 0;
    jobs.results.clear();
    for (auto& file : jobs.tasks) {
        ScoreBatches plan(file, model.shape.T, model.max_rows(), model.max_logit_rows(), rows_unit(model));
        jobs.results.push_back(task_result(file, score_file(model, plan), plan.truncated));
        rows += (double)plan.rows;
    }

    NamedValues metrics;
    for (auto& task : jobs.results)
        for (auto& metric : task.metrics) metrics.push_back({task.name + " " + metric.name, metric.value});
    if (!run.trains()) comm::all_end_on_error(not_finite(jobs.results));
    if (!run.is_rank0()) return metrics;
    double took = seconds() - start;
    printf("%s%.0f tokens in %.1f s, %.0f tokens/s\n", task_table_text(jobs.results).c_str(), rows, took,
           rows / took);
    fflush(stdout);

    if (o.results.empty()) return metrics;
    std::string name = run.trains() ? o.save : o.resume;
    save_results(o.results, task_json(jobs.results, name.empty() ? o.model : name, run.state.step),
                 run.trains());
    return metrics;
}

// ---- text ------------------------------------------------------------------------------------------------

int print_sample(const Run& run, Model& model, const std::string& prompt, uint64_t draw) {
    const Options& o = run.options;
    const Vocabulary& vocabulary = *run.vocabulary;
    std::vector<int> tokens = encode_text(vocabulary, prompt);
    if (tokens.empty()) tokens.push_back(vocabulary.end_of_text);
    Sampling how = {o.temperature, o.top_p, o.top_k, o.repetition, (uint64_t)o.seed, draw};

    int count = 0;
    if (run.is_rank0() && (int)tokens.size() > model.shape.T)
        fprintf(stderr, "note: the prompt has %zu tokens, the model reads %d: only its end counts\n",
                tokens.size(), model.shape.T);
    if (run.is_rank0()) fwrite(prompt.data(), 1, prompt.size(), stdout);
    generate(model, {{tokens, o.sample_tokens, how}}, 1, [&](size_t, int token) {
        count++;
        if (token == vocabulary.end_of_text) return false;
        const std::string& bytes = vocabulary.tokens[token];
        if (run.is_rank0()) {
            fwrite(bytes.data(), 1, bytes.size(), stdout);
            fflush(stdout);
        }
        return true;
    });

    if (run.is_rank0()) printf("\n");
    fflush(stdout);  // before stderr reports on it
    return count;
}

static void print_timed(const Run& run, Model& model, const std::string& prompt, uint64_t draw) {
    double start = seconds();
    int count = print_sample(run, model, prompt, draw);
    double took = seconds() - start;
    if (run.is_rank0()) fprintf(stderr, "%d tokens, %.1f tokens/s\n", count, count / took);
}

// All of rank 0's standard input, on every rank. However long it takes, no rank waits in one call for longer
// than a part of --comm-timeout
static std::string read_standard_input(const Run& run) {
    StandardInput input;
    int64_t has_ended = 0;
    while (!has_ended) {
        if (run.is_rank0()) input.read(std::min(1.0, comm::timeout / 4));
        has_ended = comm::gather_numbers(comm::everyone(), {input.ended}, "standard input")[0];
    }
    return share_text(input.held);
}

void generate_text(const Run& run, Model& model) {
    const std::string& given = run.options.generate;
    if (run.options.serves()) return PromptServer(run, model).serve();
    if (given != "-") return print_timed(run, model, given, 0);
    if (run.grid.world.size > 1 || !isatty(STDIN_FILENO))
        return print_timed(run, model, read_standard_input(run), 0);
    std::string line;
    for (uint64_t n = 0; fputs("> ", stderr), std::getline(std::cin, line); n++)
        print_timed(run, model, line, n << 32);
    fputs("\n", stderr);
}

void answer_prompts(const Run& run, Model& model, const InferenceJobs& jobs) {
    const std::vector<Prompt>& prompts = jobs.prompts;
    const Options& o = run.options;
    std::optional<FileWriter> file;
    if (run.is_rank0() && !o.results.empty()) file.emplace(o.results).keeps_partial = true;
    size_t round = (size_t)o.batch * run.grid.d * 8, right = 0, with_answer = 0;
    Progress progress("answers", prompts.size());

    for (size_t first = 0; first < prompts.size(); first += round) {
        progress.report(first);
        std::vector<Prompt> some(prompts.begin() + (long)first,
                                 prompts.begin() + (long)std::min(first + round, prompts.size()));
        std::vector<Answer> answers = answer_all(model, some, *run.vocabulary, o.batch);
        for (size_t i = 0; run.is_rank0() && i < some.size(); i++) {
            std::string line = answer_json(some[i], answers[i]);
            with_answer += some[i].answer.has_value();
            right += some[i].answer == answers[i].text;
            if (file) {
                file->write(line);
            } else {
                fputs(line.c_str(), stdout);
                check_standard_output();
            }
        }
    }

    if (file) file->finish();
    if (run.is_rank0() && with_answer)
        fprintf(stderr, "right     %zu of %zu answers, to the letter\n", right, with_answer);
}
