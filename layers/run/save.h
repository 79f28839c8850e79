// save.h   writes checkpoints while training continues
//   A save begins with a snapshot: the master weights and moments that this rank will write are copied to the
//   host. Replicas write equal shares of the state, so that no two ranks write the same values and nothing
//   has to be gathered. The rest runs in a background thread on each rank, in stages. A stage begins when all
//   ranks have finished the previous one; ranks exchange their status at the end of each step
//   (run.h):
//     prepare   rank 0: makes the folder, if this run still holds DIR's lock
//     write     every rank: its values and its table, in DIR/.step-N.partial
//     publish   rank 0: vocabulary and index; then the folder is renamed
//     verify    every rank: reads its file back, bypassing the page cache if possible, and compares values;
//               then verifies its share of the newest older checkpoint, unless --keep is 1
//     drop      rank 0: removes checkpoints beyond --keep
//     tidy      rank 0, only after a failure: removes what the save left behind
//   Each stage takes a step at least: a checkpoint appears during the third step after its own, or later.
//   A failed save is reported and tried again with a new snapshot at a later step; after --save-attempts
//   failures in a row the run ends. Only one run at a time may use a --save folder (FolderLock).
#pragma once
#include <future>
#include "folder_lock.h"
#include "same_run.h"
#include "values.h"

// ---- a snapshot ------------------------------------------------------------------------------------------

// values [first, first + n) of a rank's shard of a tensor, in the shard's own order
struct ShardRange {
    Parameter parameter;
    StateKind kind;
    long first, n;
    long state_offset;  // offset in low_bits, m and v; -1: there is no optimizer
    size_t at;          // offset in the snapshot's values

    long in_buffers() const { return parameter.offset + first; }
};

// the i-th of n equal parts of a range
inline void cut_range(long& first, long& last, int i, int n) {
    long size = last - first, begin = first;
    first = begin + size * i / n;
    last = begin + size * (i + 1) / n;
}

// the state that this rank owns; if to_write, only what it is to write: values that several ranks hold are
// divided among them
inline std::vector<ShardRange> state_ranges(const Model& model, const Optimizer& optimizer, bool to_write) {
    const Grid& grid = model.grid;
    std::vector<ShardRange> out;
    size_t at = 0;
    for (StateKind kind : {Master, MomentM, MomentV})
        for (auto& part : owned_tensor_parts(model.table, optimizer.slices)) {
            const Parameter& p = model.table.list[part.parameter];
            long begin = part.at - p.offset, first = begin, last = std::min(begin + part.n, p.stored());

            if (to_write && p.is_copy) continue;
            bool all_replicas_hold_it = model.setup.optimizer_shards == 1;
            if (to_write && all_replicas_hold_it) cut_range(first, last, grid.data, grid.d);
            if (to_write && !p.is_split()) cut_range(first, last, grid.tensor, grid.t);
            if (first >= last) continue;
            out.push_back({p, kind, first, last - first, part.state_offset + (first - begin), at});
            at += (size_t)(last - first);
        }
    return out;
}

struct Snapshot {
    std::vector<ShardRange> ranges;
    const real* values = nullptr;
};

// ---- files -----------------------------------------------------------------------------------------------

struct WrittenFile {
    uint64_t table_sum;
    size_t bytes;
    std::vector<uint64_t> tensors;  // bit i: the file has values of tensor i of the model
    double seconds = 0;             // for checksums, writing and fsync
};

inline std::string rank_file(int rank) { return text("rank-%05d", rank); }

inline std::vector<uint64_t> tensor_bits(const Snapshot& snapshot) {
    std::vector<uint64_t> bits;
    for (auto& range : snapshot.ranges) {
        size_t id = (size_t)range.parameter.global_id;
        bits.resize(std::max(bits.size(), id / 64 + 1), 0);
        bits[id / 64] |= 1ull << id % 64;
    }
    return bits;
}

// as ranges: 0-11,24
inline std::string print_bits(const std::vector<uint64_t>& bits) {
    std::string out;
    auto is_set = [&](size_t i) { return i / 64 < bits.size() && bits[i / 64] >> i % 64 & 1; };
    for (size_t i = 0; i < bits.size() * 64; i++) {
        if (!is_set(i)) continue;
        size_t last = i;
        while (is_set(last + 1)) last++;
        out += text(out.empty() ? "%zu" : ",%zu", i);
        if (last > i) out += text("-%zu", last);
        i = last;
    }
    return out.empty() ? "none" : out;
}

// writes a rank's values, and the table of their pieces, each with a checksum and of piece_bytes at most:
// striped file systems like 64 MiB
inline WrittenFile write_rank_file(const std::string& folder, int rank, const Snapshot& snapshot,
                                   size_t piece_bytes = 64 << 20) {
    double began = seconds();
    FileWriter data(folder + "/" + rank_file(rank) + ".bin");
    std::string pieces;

    for (auto& range : snapshot.ranges) {
        long most = (long)(piece_bytes / sizeof(real));
        for (long done = 0; done < range.n; done += most) {
            const real* values = snapshot.values + range.at + done;
            size_t bytes = (size_t)std::min(most, range.n - done) * sizeof(real);
            const Parameter& p = range.parameter;
            pieces += text("%s{\"tensor\": %s, \"kind\": \"%s\", \"dtype\": \"%s\", \"shape\": %s, "
                           "\"start\": %s, \"count\": %s, \"first\": %ld, \"offset\": %zu, \"bytes\": %zu, "
                           "\"checksum\": \"%016llx\"}", pieces.empty() ? "\n" : ",\n",
                           json_quote(p.name).c_str(), shard_kinds[range.kind], real_name,
                           json_numbers(p.shape).c_str(),
                           json_numbers(p.start).c_str(), json_numbers(p.count).c_str(), range.first + done,
                           data.written, bytes, (unsigned long long)checksum(values, bytes));
            data.write(values, bytes);
        }
    }

    pieces = "{\"pieces\": [" + pieces + "\n]}\n";
    WrittenFile out = {checksum(pieces.data(), pieces.size()), data.written, tensor_bits(snapshot)};
    data.finish();

    write_file(folder + "/" + rank_file(rank) + ".json", pieces);
    out.seconds = seconds() - began;
    return out;
}

// checks that the file on disk holds the values of the snapshot
inline void verify_rank_file(const std::string& folder, int rank, const Snapshot& snapshot) {
    InputFile file(folder + "/" + rank_file(rank) + ".bin");
    posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
    std::vector<char> buffer(1 << 20);  // small enough to stay in a core's cache
    size_t offset = 0;
    for (auto& range : snapshot.ranges)
        for (size_t done = 0, n = 0, bytes = range.n * sizeof(real); done < bytes; done += n, offset += n) {
            n = std::min(buffer.size(), bytes - done);
            file.read(buffer.data(), offset, n, range.parameter.name.c_str());
            if (memcmp(buffer.data(), (const char*)(snapshot.values + range.at) + done, n) != 0)
                fail("%s: reads back other values at offset %zu than were written", file.path.c_str(),
                     offset);
        }
}

// Each rank verifies its share of the newest older checkpoint, so that one that can be read stays: if it is
// damaged it is marked and no longer counts, and the next is verified in its stead. (Those before it were
// verified when they were written, and once more after that.) false: one could not be read, or not marked
inline bool verify_older(const std::string& dir, long step, long keep, const comm::Group& world) {
    bool all_known = true;
    for (auto& name : list_checkpoints(dir)) {
        if (step_of(name) >= step) continue;
        if (keep <= 1) return true;

        std::string folder = dir + "/" + name;
        auto is_gone = [&] { return access((folder + "/index.json").c_str(), F_OK) != 0; };
        if (std::filesystem::is_symlink(folder) || access((folder + "/DAMAGED").c_str(), F_OK) == 0) continue;
        try {
            Checkpoint c(folder);
            for (size_t i = world.rank; i < c.files.size(); i += world.size) c.verify_file(i);
            return all_known;
        } catch (const Damaged& e) {
            fprintf(stderr, "checkpoint %s is damaged, and is not counted: %s\n", folder.c_str(), e.what());
            if (is_gone()) continue;
            FILE* mark = fopen((folder + "/DAMAGED").c_str(), "w");
            if (mark) fprintf(mark, "%s\n", e.what());
            if (!mark || fclose(mark) != 0) all_known = false;
        } catch (const std::exception& e) {  // what cannot be read right now may still be intact
            if (is_gone()) continue;
            all_known = false;
            fprintf(stderr, "checkpoint %s cannot be read, so no older one is removed: %s\n", folder.c_str(),
                    e.what());
        }
    }
    return all_known;
}

// files: one per rank
inline void publish_checkpoint(const std::string& dir, RunState state, const std::vector<WrittenFile>& files,
                               const std::string& options, const Vocabulary* vocabulary) {
    namespace fs = std::filesystem;
    std::string whole = dir + "/" + step_name(state.step), partial = partial_folder(dir, state.step), list;

    if (vocabulary && vocabulary->kind == "bpe") {
        write_file(partial + "/vocab.bpe", vocabulary->source);
        state.vocabulary_sum = checksum(vocabulary->source.data(), vocabulary->source.size());
    }

    for (size_t rank = 0; rank < files.size(); rank++)
        list += text("%s{\"table\": \"%s.json\", \"checksum\": \"%016llx\", \"data\": \"%s.bin\", \"bytes\": "
                     "%zu, \"tensors\": \"%s\"}", list.empty() ? "[" : ",\n", rank_file((int)rank).c_str(),
                     (unsigned long long)files[rank].table_sum, rank_file((int)rank).c_str(),
                     files[rank].bytes, print_bits(files[rank].tensors).c_str());

    write_file(partial + "/index.json", index_text(state, options, list + "]"));
    sync_folder(partial);
    if (!fs::exists(whole)) fs::rename(partial, whole);
    else swap_folders(partial, whole);
    sync_folder(dir);
    fs::remove_all(partial);
}

// writes a whole checkpoint from one process that has all of it in memory
inline void save_whole(const std::string& dir, const RunState& state, const Snapshot& snapshot,
                       const std::string& options, const Vocabulary* vocabulary) {
    std::filesystem::create_directories(partial_folder(dir, state.step));
    WrittenFile file = write_rank_file(partial_folder(dir, state.step), 0, snapshot);
    publish_checkpoint(dir, state, {file}, options, vocabulary);
}

// ---- while training goes on ------------------------------------------------------------------------------

// Seconds from one save to the next, by --save-seconds and --mtbf; infinite with neither. blocked, took: how
// long the last save held up training, and lasted. Young (1974): the square root of twice the cost of a save
// times the mean time between failures; but never so short that a save is due before the last one has ended
inline double save_interval(const Options& o, double blocked, double took) {
    double by_time = o.save_seconds > 0 ? o.save_seconds : INFINITY;
    if (o.mtbf <= 0) return by_time;
    return std::min(by_time, std::max(took, std::sqrt(2 * std::max(blocked, 1e-3) * o.mtbf * 3600)));
}

class CheckpointWriter {
public:
    enum Status { Busy, Done, Failed, Unsure };  // Unsure: done, but an older checkpoint could not be read

private:
    enum Stage { Idle, Prepare, Write, Publish, Verify, Drop, Tidy };
    static constexpr const char* doing[] = {"idle",      "preparing", "writing",          "publishing",
                                            "verifying", "dropping",  "tidying up behind"};
    const Run& run;
    const Optimizer& optimizer;
    const FolderLock* lock;
    Stage stage = Idle;
    std::future<void> job;
    std::string error;
    std::unique_ptr<real, decltype(&host_free)> buffer = {nullptr, host_free};
    Snapshot snapshot;
    RunState state;
    WrittenFile file = {};
    size_t all_bytes = 0;    // written by all ranks
    double all_seconds = 0;  // taken by the slowest rank
    int tensors;             // in the whole model
    int failures = 0;
    double began, due_since, stage_began = 0, not_before = 0, blocked = 0, took = 0;
    bool was_named = false, stuck = false, unsure = false;
    long last_saved = -1;

    template <class Work>
    void start(Stage next, bool mine, Work work) {
        stage = next;
        stage_began = seconds();
        was_named = false;
        if (mine) job = std::async(std::launch::async, work);
    }

    bool is_first() const { return run.grid.world.rank == 0; }
    std::string folder() const { return run.options.save + "/" + step_name(state.step); }

public:
    // allocates the snapshot's memory now, not in the middle of a run
    // lock: on --save, on the rank that holds it; elsewhere nullptr
    CheckpointWriter(const Run& run, const Model& model, const Optimizer& optimizer, const FolderLock* lock)
        : run(run), optimizer(optimizer), lock(lock), tensors(model.table.tensors), began(seconds()),
          due_since(began) {
        if (run.options.save.empty()) return;
        snapshot.ranges = state_ranges(model, optimizer, true);
        size_t count = snapshot.ranges.empty() ? 0 : snapshot.ranges.back().at + snapshot.ranges.back().n;
        buffer.reset((real*)host_malloc(count * sizeof(real), "a snapshot for checkpoints"));
        snapshot.values = buffer.get();
    }

    ~CheckpointWriter() {
        if (job.valid()) job.wait();
    }

    bool is_idle() const { return stage == Idle; }
    bool is_stuck() const { return stuck && !is_idle(); }  // training no longer waits for it
    double seconds_under_way() const { return seconds() - began; }
    // skips the save that is due because the previous one is still running; the skipped one counts as failed
    void leave_out() {
        stuck = true;
        failures++;
        due_since = seconds();
    }

    long saved_step() const { return last_saved; }  // the newest that was verified; -1: none
    void forget() { last_saved = -1; }              // the run went back to an earlier step
    int failed_attempts() const { return failures; }
    // until the next attempt
    double seconds_to_wait() const { return std::max(0.0, not_before - seconds()); }

    // whether a save is due, by time or by steps; rank 0's answer counts
    bool is_due(long step) const {
        const Options& o = run.options;
        if (o.save.empty() || seconds_to_wait() > 0) return false;
        if (failures > 0 && stage == Idle) return true;
        if (o.save_every && step % o.save_every == 0) return true;
        constexpr double patience = 600;  // extra seconds for a save that is still running
        return seconds() - due_since >= save_interval(o, blocked, took) + (stage == Idle ? 0 : patience);
    }

    // this rank's part of the current stage
    Status status() {
        if (job.valid() && job.wait_for(std::chrono::seconds(0)) == std::future_status::timeout) return Busy;
        if (job.valid()) {
            try {
                job.get();
            } catch (const std::exception& e) {
                error = e.what();
            }
        }
        return !error.empty() ? Failed : unsure ? Unsure : Done;
    }

    // takes the snapshot; the rest runs during the next steps. Called on all ranks together, when idle
    void begin(Model& model) {
        began = due_since = seconds();
        stuck = false;
        state = run.state;
        model.await_parameters();  // in bf16 they are the master weights' upper halves, rounded
        for (auto& range : snapshot.ranges)
            copy_state_to_host(buffer.get() + range.at, model, optimizer, range.kind, range.in_buffers(),
                               range.state_offset, range.n);

        blocked = seconds() - began;
        unsure = false;
        start(Prepare, is_first(), [this] { make_partial(); });  // before any rank writes there
    }

    // what each rank has written; sets all_bytes and all_seconds. Collective
    std::vector<WrittenFile> gather_files() {
        size_t words = tensors / 64 + 1, each = words + 3;
        std::vector<int64_t> mine = {(int64_t)file.table_sum, (int64_t)file.bytes,
                                     std::bit_cast<int64_t>(file.seconds)};
        mine.insert(mine.end(), file.tensors.begin(), file.tensors.end());
        mine.resize(each, 0);
        std::vector<int64_t> all = comm::gather_numbers(run.grid.world, mine, "files of a checkpoint");

        std::vector<WrittenFile> files;
        all_bytes = 0;
        all_seconds = 0;
        for (auto entry = all.begin(); entry != all.end(); entry += (long)each) {
            files.push_back({(uint64_t)entry[0], (size_t)entry[1], {entry + 3, entry + (long)each},
                             std::bit_cast<double>(entry[2])});
            all_bytes += files.back().bytes;
            all_seconds = std::max(all_seconds, files.back().seconds);
        }
        return files;
    }

    // starts the next stage once all ranks have finished this one; statuses: by rank, the same on all ranks
    void advance(const std::vector<int>& statuses) {
        if (stage == Idle) return;
        if (std::count(statuses.begin(), statuses.end(), (int)Busy)) return name_slow(statuses);
        for (size_t rank = 0; rank < statuses.size(); rank++)
            if (statuses[rank] == Failed) return give_up((int)rank);

        if (stage == Prepare) {
            start(Write, true, [this] {
                make_partial();  // a network file system shows rank 0's folder late
                file = write_rank_file(partial_folder(run.options.save, state.step), run.grid.world.rank,
                                       snapshot);
            });
        } else if (stage == Write) {
            start(Publish, is_first(), [this, files = gather_files()] {
                if (lock) lock->check_folder();
                publish_checkpoint(run.options.save, state, files, options_json(run.options),
                                   run.vocabulary ? &*run.vocabulary : nullptr);
            });
        } else if (stage == Publish) {
            start(Verify, true, [this] {
                verify_rank_file(folder(), run.grid.world.rank, snapshot);
                unsure = !verify_older(run.options.save, state.step, run.options.keep, run.grid.world);
            });
        } else if (stage == Verify) {
            failures = 0;
            last_saved = state.step;
            took = seconds() - began;
            if (is_first()) print_saved();
            bool drops = !std::count(statuses.begin(), statuses.end(), (int)Unsure);
            start(Drop, is_first() && drops, [this] {
                if (lock) lock->check_folder();
                drop_old_checkpoints(run.options.save, state.step, run.options.keep);
            });
        } else {
            stage = Idle;
        }
    }

private:
    void make_partial() const {
        if (lock) lock->check_folder();
        std::string partial = partial_folder(run.options.save, state.step);
        // --save itself is not created again if it was removed or renamed
        if (mkdir(partial.c_str(), 0777) != 0 && errno != EEXIST)
            fail("%s: cannot be created: %s", partial.c_str(), strerror(errno));
    }

    void print_saved() const {
        printf("saved     %s  %.4g MB: copied in %.3f s, written in %.3f s (%.2f GB/s)\n", folder().c_str(),
               (double)all_bytes * 1e-6, blocked, all_seconds,
               (double)all_bytes / std::max(all_seconds, 1e-9) * 1e-9);
    }

    void name_slow(const std::vector<int>& statuses) {
        constexpr double patience = 5;  // seconds
        if (was_named || !is_first() || seconds() - stage_began < patience) return;
        was_named = true;
        std::string slow = comm::ranks_with(statuses, (int)Busy);
        fprintf(stderr, "slow: rank %s still %s %s after %.0f s\n", slow.c_str(), doing[stage],
                folder().c_str(), seconds() - stage_began);
    }

    void give_up(int failed) {
        Stage at = stage;
        if (at < Tidy) failures += at != Drop;
        double pause = 2 * std::pow(3, std::min(failures, 6) - 1);  // seconds: 2, 6, 18, 54, …

        bool is_mine = failed == run.grid.world.rank;
        if (is_mine && at == Drop)
            fprintf(stderr, "[rank %d] checkpoint %s is saved, but older ones could not be removed: %s\n",
                    failed, folder().c_str(), error.c_str());
        else if (is_mine)
            fprintf(stderr, "[rank %d] checkpoint %s was not saved: %s; older checkpoints are untouched; "
                    "failure %d of %ld%s: free space, or repair the file system\n",
                    failed, folder().c_str(), error.c_str(), failures, run.options.save_attempts,
                    failures < run.options.save_attempts ? text(", another attempt in %.0f s", pause).c_str()
                                                         : ", the run ends");
        error.clear();
        not_before = seconds() + pause;

        start(at == Tidy ? Idle : Tidy, is_first() && at != Tidy, [this, at] {
            try {
                if (lock) lock->check_folder();
            } catch (const Error&) {
                return;  // what is there belongs to another run
            }
            FolderLock::remove_leftovers(run.options.save);
            if (at != Verify) return;
            std::filesystem::remove(folder() + "/index.json");  // first: without it, not a checkpoint
            std::filesystem::remove_all(folder());
        });
    }
};
