// start.cpp   how a run starts: see start.h
#include "start.h"
#include <omp.h>
#include <signal.h>
#include <sys/resource.h>
#include <set>
#include "../../comm/mpi/make_grid.h"
#include "../base/process.h"
#include "../inference/packed_batch.h"
#include "../inference/prompts.h"
#include "../inference/scoring.h"
#include "../plan/memory.h"
#include "../plan/published.h"
#include "../run/metrics.h"
#include "../run/resume.h"
#include "../run/setup.h"
#include "../run/signals.h"

void prepare_process(char** argv) {
    open_standard_streams();
    start_all_threads();
    let_waiting_threads_sleep(argv);
    signal(SIGXFSZ, SIG_IGN);  // over the file-size limit, write() fails instead of killing the process
    rlimit files;  // as many as may be open: token files, and connections to other ranks
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

// ---- options and files -----------------------------------------------------------------------------------

// Before there is a model: every option is resolved, every file opened and checked
static void resolve_and_check(Run& run, InferenceJobs& jobs, Schedules& schedules, double memory) {
    Options& o = run.options;
    check_plan_options(o);
    jobs = open_jobs(o);
    if (!o.plan.empty()) return resolve_plan(run);

    run.grid = place_in_grid(comm::world_rank(), comm::world_size(), o.tensor_parallel, o.pipeline_parallel);
    resolve(run, jobs.vocabulary());
    check_tasks(jobs, run);
    choose_micro_batch(run, memory);

    if (run.trains()) schedules = make_schedules(o, run.grid, run.grid.stage, run.state.samples_seen);
    if (o.pipeline_chunks > 1 && !schedules.empty())
        o.pipeline_group = schedules.rbegin()->second.shape.interleave_group;

    device_name();      // fails if there is no device
    uses_flash(o, {});  // fails if --attention flash has no kernel
    check_metrics(run);
    check_trace(run);
}

// whether ranks share a GPU. Collective
static bool share_devices() {
    if (host_is_device) return false;
    std::vector<int64_t> mine = {comm::host_id(), device_id()};
    std::vector<int64_t> all = comm::gather_numbers(comm::everyone(), mine, "devices");
    std::set<std::pair<int64_t, int64_t>> devices;
    for (size_t i = 0; i < all.size(); i += 2) devices.insert({all[i], all[i + 1]});
    return devices.size() < all.size() / 2;
}

// Refuses what options and files show to be wrong. What only memory or a checkpoint's bytes can show comes
// later: check_memory_suffices, resume_newest
static Schedules open_run(Run& run, Trainer& trainer, InferenceJobs& jobs, int argc, char** argv) {
    Options& o = run.options;
    Schedules schedules;
    comm::all_ranks_or_fail([&] {
        o = parse_options(argc, argv);
        check_output_files(o);
        constexpr int most_threads = 4096;  // each takes a stack: with many more the run would crash
        if (omp_get_max_threads() > most_threads)
            fail("OMP_NUM_THREADS asks for %d threads: expected at most %d; this machine has %s",
                 omp_get_max_threads(), most_threads, counted(omp_get_num_procs(), "core").c_str());
        comm::timeout = o.comm_timeout;
    });
    comm::check_ranks_agree(program_hash());
    comm::check_ranks_agree(option_hashes(o, "start all ranks with the same options"));
    run.start_times.end("options");
    if (o.help || o.version) return schedules;

    open_checkpoints(run);

    // --micro-batch auto is sized by the memory that communicators leave free: they come first
    std::optional<Grid> grid;
    double memory = 0;
    if (o.micro_batch == automatic && o.plan.empty()) {
        comm::all_ranks_or_fail([&] {
            device_name();
            place_in_grid(comm::world_rank(), comm::world_size(), o.tensor_parallel, o.pipeline_parallel);
        });
        grid = make_grid(o.tensor_parallel, o.pipeline_parallel, o.pipeline_chunks > 1);
        memory = memory_of_a_rank();
    }

    comm::all_ranks_or_fail([&] { resolve_and_check(run, jobs, schedules, memory); });
    if (!o.plan.empty()) return schedules;
    comm::check_ranks_agree(option_hashes(o, "is resolved differently on these machines: set it"));
    comm::check_ranks_agree(file_fingerprints(run));
    comm::check_ranks_agree(job_hashes(jobs, o));
    check_shared_folder(run);
    lock_save_folder(run, trainer);
    run.start_times.end("files");

    run.grid = grid ? *grid : make_grid(o.tensor_parallel, o.pipeline_parallel, o.pipeline_chunks > 1);
    run.hosts = comm::gather_hosts(run.grid.world);
    int devices = share_devices() ? device_count() : 0;
    FILE* out = o.inference() ? stderr : stdout;  // stdout is for answers alone
    if (run.is_rank0()) fprintf(out, "%s", comm::host_notes(run.hosts, run.grid.t, devices).c_str());
    if (!host_is_device && run.grid.world.size > 1 && run.is_rank0() && omp_get_num_procs() < 4)
        fprintf(out, "note: a rank has %s: NCCL's threads, the reader's and the writer's share them: 8 are "
                     "better (Slurm: --cpus-per-task 8)\n", counted(omp_get_num_procs(), "core").c_str());
    run.start_times.end("groups");
    return schedules;
}

// ---- the model and its memory ----------------------------------------------------------------------------

// the model, its memory and values; the choices that are made by timing
static void build(Trainer& trainer, Run& run, Schedules schedules, const StagePlan& planned) {
    const Options& o = run.options;
    bool training = run.trains(), alone = run.grid.world.size == 1;
    if (training && run.is_rank0()) print_run(run);

    // the model and its memory
    trainer.schedules = std::move(schedules);
    trainer.model =
        std::make_unique<Model>(run.state.shape, run.grid, setup_of(o, run.grid, trainer.schedules));
    Model& model = *trainer.model;
    if (alone || o.graph == "yes") model.stream = make_stream();  // the default stream cannot be captured
    comm::compute_stream = model.stream;
    if (training) trainer.optimizer = std::make_unique<Optimizer>(model);
    allocate_memory(model);
    if (training) {
        allocate_memory(*trainer.optimizer, model);
        check_memory(model, *trainer.optimizer, planned);
    }
    run.start_times.end("memory");

    if (run.checkpoints.empty()) initialise_parameters(model, trainer.optimizer.get(), (uint64_t)o.seed);
    else resume_newest(run, model, trainer.optimizer.get());
    if (!run.checkpoints.empty()) trainer.loaded_step = run.state.step;
    if (training) {  // again: the newest checkpoint may have been damaged
        resolve_last_step(run);
        lock_save_folder(run, trainer);
        set_aside_newer(run);
    }
    run.start_times.end("parameters");

    // what is chosen by timing (autotune.h): from the checkpoint or --tuning, else timed below, in tune()
    if (HAS_KERNELS) open_autotuner(o, run.state);
    if (!training) return;

    prepare_training(run, trainer);
    if (!HAS_KERNELS) return;

    // longer steps hide the launch overhead anyway, and graphs take memory
    bool is_short = trainer.schedules.rbegin()->second.shape.micro_batches <= 8;
    bool may_graph = o.graph == "auto" && alone && !host_is_device && is_short && o.loss_on == "all";
    bool is_faster = tune(model, *trainer.optimizer, o, run.state, may_graph);
    trainer.uses_graph = o.graph == "yes" || (o.graph == "auto" && is_faster);
}

// ---- a run -----------------------------------------------------------------------------------------------

// what --help, --version and --plan ask for
static void print_answer(const Run& run) {
    if (!run.is_rank0()) return;
    if (run.options.version) printf("train_gpt %s\n", program_version);
    else if (run.options.help) fputs(help_text().c_str(), stdout);
    else show_plan(run);
}

// what --evaluate and --generate ask for, without training
static void infer(Run& run, Model& model, InferenceJobs& jobs) {
    if (!jobs.tasks.empty()) evaluate_tasks(run, model, jobs);
    else if (!jobs.prompts.empty()) answer_prompts(run, model, jobs);
    else generate_text(run, model);
}

std::unique_ptr<StepObserver> start(Run& run, Trainer& trainer, InferenceJobs& jobs, int argc, char** argv) {
    run.start_times.end("MPI");
    Schedules schedules = open_run(run, trainer, jobs, argc, argv);
    const Options& o = run.options;
    if (o.help || o.version || !o.plan.empty()) {
        print_answer(run);
        check_standard_output();
        return {};
    }

    StagePlan planned;
    if (run.trains()) {
        catch_stop_signals(run.is_rank0(), run.grid.world.size == 1);
        planned = plan_stage(o, run.state.shape, run.grid, run.grid.stage, run.state.samples_seen);
        check_memory_suffices(run, (double)planned.bytes());
    }
    build(trainer, run, std::move(schedules), planned);
    run.start_times.end("tuning");

    if (!run.trains()) {
        infer(run, *trainer.model, jobs);
        check_standard_output();
        return {};
    }
    open_metrics(run);
    std::string times = run.start_times.print(run.grid.world);
    if (run.is_rank0() && run.grid.world.size > 1) printf("%s", times.c_str());
    return std::make_unique<StepObserver>(run, std::move(planned));
}
