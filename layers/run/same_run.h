// same_run.h   what must be the same on every rank: the program, options, files, folders
#pragma once
#include <unistd.h>
#include "../../comm/mpi/collective_check.h"
#include "../../data/sets.h"
#include "checkpoint.h"
#include "config.h"
#include "run.h"

inline uint64_t file_sum(const std::string& path) {
    WholeFile file(path);
    return checksum(file.data, file.size);
}

// compared first, on its own: another build may have other options
inline std::vector<comm::RankHash> program_hash() {
    return {{"the program", file_sum("/proc/self/exe"), "copy one build to all hosts"}};
}

// compared as given, and once they are resolved
inline std::vector<comm::RankHash> option_hashes(const Options& o, const char* advice) {
    std::vector<comm::RankHash> hashes;
    for (auto& option : option_table) {
        std::string value = print_value(o, option);
        hashes.push_back({text("--%s", option.name), checksum(value.data(), value.size()),
                         advice});
    }
    return hashes;
}

inline std::vector<comm::RankHash> file_fingerprints(const Run& run) {
    uint64_t train = run.train ? run.state.training_set_sum : 0;  // resolve() has just computed it
    uint64_t validation = run.validation ? fingerprint_of(*run.validation) : 0;
    uint64_t resumed = 0;  // of all checkpoints: if the newest is damaged, an older one is loaded
    for (auto& c : run.checkpoints) resumed = resumed * 31 + c.index_sum;
    return {{"the training set", train, "copy the same files to all hosts"},
            {"the validation set", validation, "copy the same files to all hosts"},
            {"the folder of --resume", resumed, "give a folder that all hosts share"}};
}

// --save must be the same folder on all ranks: rank 0 creates a file there, which all must see. Collective.
inline void check_shared_folder(const Run& run) {
    if (run.options.save.empty() || comm::world_size() == 1) return;

    // a file that rank 0 writes: do all see it?
    std::string probe = run.options.save + "/.seen-by-all-ranks", error;
    if (run.is_rank0()) {
        FILE* file = fopen(probe.c_str(), "w");
        if (!file || fclose(file)) error = text("--save %s: cannot be written", run.options.save.c_str());
    }
    comm::all_end_on_error(error);

    if (access(probe.c_str(), F_OK) != 0)
        error = text("--save %s: is not the folder that rank 0 has under this name: give a folder that "
                     "all hosts share", run.options.save.c_str());

    comm::barrier(comm::everyone(), "all have looked");
    if (run.is_rank0()) remove(probe.c_str());
    comm::all_end_on_error(error);
}

// Opens the checkpoints to resume from: those that all ranks can read. Collective
inline void open_checkpoints(Run& run, int exit_code = 1) {
    Options& o = run.options;
    for (std::string* folder : {&o.save, &o.resume})  // so that the same folder compares equal
        while (folder->size() > 1 && folder->ends_with('/')) folder->pop_back();
    if (o.resume.empty()) return;
    comm::all_ranks_or_fail([&] {
        for (int look = 0;; look++) {
            try {
                std::vector<std::string> there = list_checkpoints(o.resume);
                run.newest_listed = there.empty() ? -1 : step_of(there[0]);
                run.checkpoints = find_checkpoints(o.resume, o.resume_before);
                return;
            } catch (const NewerFormat&) {
                throw;
            } catch (const Error&) {
                if (run.trains() || look == 3) throw;
                usleep(100000);  // a run that trains there may just have dropped what was listed
            }
        }
    }, exit_code);

    // ranks that see other folders under this name are refused later, by check_ranks_agree
    std::string listed;
    for (auto& name : list_checkpoints(o.resume)) listed += name + "\n";
    int64_t most = 0, seen = (int64_t)checksum(listed.data(), listed.size());
    const comm::Group everyone = comm::everyone();
    std::vector<int64_t> mine = {seen, (int64_t)run.checkpoints.size()};
    std::vector<int64_t> numbers = comm::gather_numbers(everyone, mine, "checkpoints");
    for (size_t i = 0; i < numbers.size(); i += 2) {
        if (numbers[i] != numbers[0]) return;
        most = std::max(most, numbers[i + 1]);
    }
    std::vector<int64_t> steps;
    for (auto& c : run.checkpoints) steps.push_back(c.state.step);
    steps.resize((size_t)most, -1);
    std::vector<int64_t> all = comm::gather_numbers(everyone, steps, "checkpoints");
    std::erase_if(run.checkpoints, [&](const Checkpoint& c) {
        bool lacking = std::count(all.begin(), all.end(), c.state.step) < everyone.size;
        if (lacking && run.is_rank0())
            fprintf(stderr, "passed over: %s: not all ranks can read it\n", c.folder.c_str());
        return lacking;
    });
    if (run.checkpoints.empty())
        comm::all_end_on_error(text("--resume %s: no checkpoint there can be read by all ranks: give a "
                                    "folder that all hosts share", o.resume.c_str()), exit_code);
}

// options as checkpoints record them: every value, and the names of those that were given
inline std::string options_json(const Options& o) {
    std::string out, given, postponed;
    for (auto& option : option_table)
        out += text("%s: %s, ", json_quote(option.name).c_str(), json_quote(print_value(o, option)).c_str());
    for (auto& name : o.given) given += (given.empty() ? "" : " ") + name;
    for (auto& [name, value] : o.postponed) postponed += (postponed.empty() ? "" : " ") + name + " " + value;
    if (!postponed.empty()) out += text("\"postponed\": %s, ", json_quote(postponed).c_str());
    return "{" + out + "\"given\": " + json_quote(given) + "}";
}
