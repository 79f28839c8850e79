// test_gpt.cu   the table of test chapters; each test_*.h is next to the code it tests; run from the root
//   ./test_gpt                     all chapters          ./test_gpt kernels plan    only these
//   ./test_gpt bench               speed of a training step against its GEMMs alone
//   ./test_gpt profile             time per operation against its floor; options of train_gpt may follow
//   ./test_gpt bench-evaluate      evaluation against training; shared contexts against separate ones
//   ./test_gpt bench-kernels       each kernel: GB/s against a device copy, or TFLOP/s
//   ./test_gpt bench-gemms         each GEMM of a step: the algorithm chosen and others, under load
//   mpirun -n 4 ./test_gpt ranks   communication between ranks
//   A CPU build tests ref (in fp64, against finite differences and PyTorch); a build with kernels, emulated
//   or on a GPU, tests gpu against ref. The last line is `N passed, N failed`.
#define WITH_REF
#include "layers/compute.cu"  // here, as checks launch kernels one by one, and hold them against ref
#include "comm/mpi/sum_over.h"
#include "comm/test_ranks.h"
#include "comm/test_schedule.h"
#include "data/tasks/test_tasks.h"
#include "data/test_data.h"
#include "layers/base/test_base.h"
#include "layers/emulator/test_cublaslt.h"
#include "layers/emulator/test_emulated.h"
#include "layers/base/test_gemm.h"
#include "layers/emulator/test_watch.h"
#include "layers/base/process.h"
#include "layers/inference/test_scoring.h"
#include "layers/run/bench_gemms.h"
#include "layers/run/bench_kernels.h"
#include "layers/run/test_checkpoint.h"
#include "layers/model/test_counts.h"
#include "layers/run/test_options.h"
#include "layers/run/test_program.h"
#include "layers/run/test_recipe.h"
#include "layers/run/test_replicas.h"
#include "layers/model/test_training.h"
#include "layers/plan/test_invariants.h"
#include "layers/plan/test_plan.h"
#include "layers/plan/test_record.h"
#include "layers/test_adamw.h"
#include "layers/test_gradients.h"
#include "layers/fast/test_hopper.h"
#include "layers/fast/test_kernels_attention.h"

#if defined(AND_TRAIN_GPT)  // in builds for checks, see the Makefile: all in one compilation
#include "layers/inference/evaluate.cpp"
#include "layers/plan/observe.cpp"
#include "layers/run/trainer.cpp"
#include "layers/start/start.cpp"
#define main train_gpt
#include "train_gpt.cu"
#undef main
#endif

struct Chapter {
    const char* name;
    void (*run)();
    const char* wants = "";  // elsewhere it checks nothing
};
const Chapter chapters[] = {
    {"rng", test_rng},
    {"options", test_options},
    {"json", test_json},
    {"gemm", test_gemm},
#if defined(DEVICE_EMULATED)
    {"emulated", test_emulated},
#if defined(WATCHED)
    {"watch", test_watch},
    {"counts", test_counts},
#endif
    {"cublaslt", test_cublaslt},
#endif
    {"gradients", test_gradients, "make DEVICE=cpu PRECISION=fp64"},
    {"adamw", test_adamw},
#if HAS_KERNELS
    {"kernels", test_kernels},
    {"packed", test_packed_kernels},
    {"hopper", test_hopper},
#endif
    {"pytorch", test_pytorch},
    {"training", test_training},
    {"overfit", test_overfit},
    {"segments", test_segments, "make DEVICE=cpu"},
    {"scores", test_scores},
    {"tasks", test_tasks},
    {"schedule", test_schedule},
    {"plan", test_plan},
    {"invariants", test_invariants},
    {"layouts", test_layouts},
    {"ranks", test_ranks},
    {"replicas", test_replicas, "mpirun -n 4"},
    {"loader", test_loader},
    {"recipe", test_recipe},
    {"tokenizer", test_tokenizer},
    {"checkpoint", test_checkpoint},
    {"resume", test_resume},
    {"program", test_program},
};

struct Benchmark {
    const char* name;
    void (*run)(const std::vector<std::string>& options);
};
const Benchmark benchmarks[] = {
    {"bench", [](auto&) { bench_step(); }},
    {"profile", print_profile},
    {"check-record", check_record},
    {"bench-evaluate", [](auto&) { bench_evaluate(); }},
#if HAS_KERNELS
    {"bench-kernels", [](auto&) { bench_kernels(); }},
    {"bench-gemms", bench_gemms},
#endif
};

void run_chapter(const Chapter& c) {
    chapter = c.name;
    int passed_before = passed, failed_before = failed;
    double start = seconds();
    c.run();
    int good = passed - passed_before, bad = failed - failed_before;
    if (comm::everyone().rank == 0) {
        if (good + bad == 0 && c.wants[0]) printf("%-11s checks nothing here: wants %s\n", c.name, c.wants);
        else printf("%-11s %5d passed, %d failed, %.1f s\n", c.name, good, bad, seconds() - start);
    }
    fflush(stdout);
}

int main(int argc, char** argv) {
#if defined(AND_TRAIN_GPT)
    if (fs::path(argv[0]).filename() != "test_gpt") return train_gpt(argc, argv);
#endif
    start_all_threads();
    let_waiting_threads_sleep(argv);
    setvbuf(stdout, nullptr, _IOLBF, 0);  // so that a hang does not swallow earlier output
    comm::start(&argc, &argv);
    std::vector<std::string> words(argv + 1, argv + argc);
    programs = fs::absolute(argv[0]).parent_path();
    scratch_folder = fs::temp_directory_path() / text("test_gpt.%d", getpid());
    try {
        for (auto& benchmark : benchmarks)
            if (!words.empty() && words[0] == benchmark.name) {
                benchmark.run({words.begin() + 1, words.end()});
                return failed > 0;
            }
        fs::create_directories(scratch_folder);
        for (auto& word : words) {
            auto is_named = [&](const Chapter& c) { return word == c.name; };
            bool is_there = std::any_of(std::begin(chapters), std::end(chapters), is_named);
            std::string all;
            for (auto& c : chapters) all += std::string(" ") + c.name;
            if (!is_there) fail("no chapter %s: ./test_gpt [CHAPTER…], of%s", word.c_str(), all.c_str());
        }
        for (auto& c : chapters)
            if (words.empty() || std::count(words.begin(), words.end(), c.name)) run_chapter(c);
    } catch (const std::exception& e) {
        check(false, std::string("stopped: ") + e.what());
    }
    fs::remove_all(scratch_folder);
    std::vector<double> all =
        comm::sum_over(comm::everyone(), {(double)passed, (double)failed}, "passed and failed");
    bool is_rank0 = comm::everyone().rank == 0;
    comm::finish();
    if (is_rank0)
        printf("%s, %s: %d passed, %d failed\n", DEVICE_NAME, PRECISION_NAME, (int)all[0], (int)all[1]);
    return all[1] > 0 || all[0] == 0;  // what checks nothing has not passed
}
