// test_checkpoint.h   checks of checkpoints: what is saved comes back, what is damaged is named
#pragma once
#include "monitor.h"
#include "resume.h"
#include "../model/test_training.h"

// as between steps; returns when it is done
void save_alone(const RunState& state, Trial& trial, const std::string& dir, long keep) {
    Run run;
    run.options.save = dir;
    run.options.keep = keep;
    run.state = state;
    std::filesystem::create_directories(dir);
    CheckpointWriter writer(run, trial.model, trial.optimizer, nullptr);
    writer.begin(trial.model);

    while (!writer.is_idle()) {
        usleep(1000);
        writer.advance({writer.status()});
    }
}

// moments of bf16 come back as they were, and are rounded on as in the unbroken run
void check_bf16_moments(const char* master_weights) {
    Options o;
    o.moments = "bf16";
    o.master_weights = master_weights;
    o.clip = 0.1;  // the norm counts, and with it what a save leaves between the tensors of the gradients
    ModelShape shape = {2, 12, 3, 5, 11, 16};
    std::string dir = scratch_folder + "/bf16-moments";
    std::vector<int> samples = some_samples(2, 5, 11);
    Options with_wide = o;
    with_wide.moments = "fp32";
    Trial trial(o, shape, 2), other(o, shape, 2), wide(with_wide, shape, 2);
    for (int i = 0; i < 4; i++) trial.train(samples, 1e-2);
    save_alone({trial.step, 8, 40, 7, 3, 5, shape, "bytes", 0, {}}, trial, dir, 2);
    double next = trial.train(samples, 1e-2), after = trial.train(samples, 1e-2);

    for (Trial* resumed : {&other, &wide}) {
        load_checkpoint(find_checkpoints(dir)[0], resumed->model, &resumed->optimizer);
        resumed->step = 4;
    }
    check(other.train(samples, 1e-2) == next && other.train(samples, 1e-2) == after,
          "bf16 moments: goes on to the last bit");

    // an update uses the moments before they are rounded: the first is the same, however they are stored
    wide.train(samples, 1e-2);
    check(wide.train(samples, 1e-2) == after, "bf16 moments, resumed with those of fp32: the first update");
    double third = other.train(samples, 1e-2);
    check(wide.train(samples, 1e-2) != third, "…and from there on others");
}

// --save-seconds and --mtbf
void check_save_interval() {
    auto interval = [](double seconds, double hours, double blocked, double took) {
        Options o;
        o.save_seconds = seconds;
        o.mtbf = hours;
        return save_interval(o, blocked, took);
    };
    check(std::isinf(interval(0, 0, 1, 1)), "neither: by steps only");
    check(interval(300, 0, 1, 1000) == 300, "--save-seconds alone");
    check(interval(0, 2, 4, 100) == 240, "Young's: sqrt(2 * 4 s * 7200 s)");
    check(interval(0, 2, 4, 1000) == 1000, "never sooner than a save takes");
    check(interval(200, 2, 4, 100) == 200 && interval(300, 2, 4, 100) == 240, "both: the shorter");
}

// --spike-z's mean and variance: of all values up to the hundredth, then each new one counts for 1/100
void check_running_statistics() {
    RunningStatistics s;
    double sum = 0, squares = 0;
    for (int i = 0; i < 100; i++) {
        double x = uniform(1, 2, i);
        sum += x;
        squares += x * x;
        s.add(x);
        check(std::isinf(s.limit(3)) == (i + 1 < 30), text("a limit after %d values", i + 1));
    }
    double mean = sum / 100, variance = squares / 100 - mean * mean;
    std::vector<double> wanted = {mean, variance};
    close("of 100 values", std::vector<double>{s.mean, s.variance}, wanted, 1e-12);
    check(s.limit(2) == s.mean + 2 * std::sqrt(s.variance) && std::isinf(s.limit(0)), "--spike-z 2, and 0");
    for (int i = 0; i < 200; i++) s.add(3);  // the distance from 3 falls by 1/100 each time
    double rest = std::pow(0.99, 200), away = mean - 3;
    close("of 200 more, all 3", std::vector<double>{s.mean, s.variance},
          std::vector<double>{3 + away * rest, rest * (variance + away * away * (1 - rest))}, 1e-12);
}

// a tensor in pieces, of a model of more tensors than a word has bits, in the files of four ranks
void check_pieces_and_files() {
    check(print_bits({1ull << 63 | 7, 1, 0, 5}) == "0-2,63-64,192,194" && print_bits({0, 0}) == "none" &&
              print_bits({}) == "none", "tensors of a file, as ranges");
    Options o;
    ModelShape shape = {7, 12, 3, 5, 11, 16};
    Trial trial(o, shape, 2), other(o, shape, 2);
    trial.train(some_samples(2, 5, 11), 1e-2);
    std::string dir = scratch_folder + "/pieces", whole = dir + "/" + step_name(1);
    fs::create_directories(partial_folder(dir, 1));
    std::vector<ShardRange> ranges = state_ranges(trial.model, trial.optimizer, true);
    std::vector<real> values(ranges.back().at + (size_t)ranges.back().n);
    for (auto& r : ranges)
        copy_state_to_host(&values[r.at], trial.model, trial.optimizer, r.kind, r.in_buffers(),
                           r.state_offset, r.n);
    synchronize(trial.model.stream);
    std::vector<WrittenFile> files;
    for (int rank = 0; rank < 4; rank++) {
        Snapshot part = {{}, values.data()};
        for (size_t i = rank; i < ranges.size(); i += 4) part.ranges.push_back(ranges[i]);
        files.push_back(write_rank_file(partial_folder(dir, 1), rank, part, 33 * sizeof(real)));
    }
    RunState state = {1, 2, 10, 7, 3, 5, shape, "bytes", 0, {}};
    publish_checkpoint(dir, state, files, "{}", nullptr);
    Checkpoint c(whole);
    const Parameter& last = trial.model.table.list.back();
    check(last.global_id > 64 && c.has(last, 0), "a tensor behind the 64th: " + last.name);
    load_checkpoint(c, other.model, &other.optimizer);
    for (auto& p : trial.model.table.list)
        check(trial.weights(p) == other.weights(p), p.name + ", from pieces of 33 values");
    size_t most = 0;
    for (auto& [name, pieces] : c.pieces)
        for (auto& piece : pieces) most = std::max(most, piece.bytes);
    check(most == 33 * sizeof(real) && c.pieces["master " + trial.model.table.block(1, UP_W).name].size() > 9,
          "no piece is larger");

    // each of four ranks verifies its file: the last one's damage is found by the last, and by one alone
    patch(whole + "/rank-00003.bin", 100, "x");
    for (auto [rank, size, finds] : {std::tuple{0, 4, false}, {2, 4, false}, {3, 4, true}, {0, 1, true}}) {
        comm::Group world;
        world.rank = rank;
        world.size = size;
        verify_older(dir, 2, 2, world);
        check(fs::exists(whole + "/DAMAGED") == finds, text("rank %d of %d verifies its files", rank, size));
        fs::remove(whole + "/DAMAGED");
    }
}

// a save that has failed is tried again after a pause, long before the next one is due
void check_failed_save() {
    Options o;
    Trial trial(o, {2, 12, 3, 5, 11, 16}, 2);
    Run run;
    run.options.save = scratch_folder + "/not/there";
    run.options.save_every = 100;
    CheckpointWriter writer(run, trial.model, trial.optimizer, nullptr);
    writer.begin(trial.model);
    while (!writer.is_idle()) {
        usleep(1000);
        writer.advance({writer.status()});
    }
    check(writer.failed_attempts() == 1, "a failed save");
    usleep((useconds_t)(1e6 * writer.seconds_to_wait()) + 1000);
    check(writer.is_due(101), "it is tried again");
}

// what a save has written is compared to its end, of more than one buffer too
void check_read_back() {
    std::string folder = scratch_folder + "/read-back";
    fs::create_directories(folder);
    std::vector<real> values(3 << 20, 1);
    Parameter p = {};
    p.name = "long";
    p.shape = p.count = {(long)values.size()};
    p.start = {0};
    Snapshot snapshot = {{{p, Master, 0, (long)values.size(), -1, 0}}, values.data()};
    write_rank_file(folder, 0, snapshot);
    verify_rank_file(folder, 0, snapshot);
    patch(folder + "/rank-00000.bin", values.size() * sizeof(real) - 3, "x");
    refuses("reads back other values", [&] { verify_rank_file(folder, 0, snapshot); });
}

// --check-every: a parameter that changes within a step, and a gradient that differs when computed again
void check_repeated_step() {
    Options o;
    Trial trial(o, {2, 12, 3, 5, 11, 16}, 2);
    Model& m = trial.model;
    std::vector<int> samples = some_samples(2, 5, 11);
    auto error_if = [&](int call, void* at, size_t size) {  // changes what is there after that many calls
        int calls = 0;
        RepeatedStep repeated(m, trial.optimizer, [&] {
            clear_gradients(m);
            trial.train(samples, 0, false);
            std::vector<char> value(size);
            if (++calls != call) return;
            copy_to_host(value.data(), at, size, m.stream);
            value[0] ^= 1;
            copy_to_device(at, value.data(), size, m.stream);
            synchronize(m.stream);
        });
        return repeated.error(5);
    };
    void *weight = m.weights + m.table.block(1, UP_W).offset,
         *gradient = m.gradients + m.table.block(1, UP_W).offset;
    check(error_if(0, weight, sizeof(floatX)).empty(), "a step computed twice");
    check(error_if(2, gradient, sizeof(real)).find("step 5, computed twice, gave different gradients") == 0,
          "another gradient");
    check(error_if(2, weight, sizeof(floatX)).find("parameters have changed within step 5") == 0,
          "another parameter");
}

void test_checkpoint() {
    check_save_interval();
    check_running_statistics();
    check_pieces_and_files();
    check_read_back();
    check_failed_save();
    check_repeated_step();
    check_bf16_moments("yes");
    if (!master_is_parameter) check_bf16_moments("no");
    Options o;
    ModelShape shape = {2, 12, 3, 5, 11, 16};
    std::string dir = scratch_folder + "/checkpoints";
    std::vector<int> samples = some_samples(2, 5, 11);

    Trial trial(o, shape, 2);
    auto save = [&](long keep) {
        RunState s = {
            trial.step, (uint64_t)trial.step * 2, (uint64_t)trial.step * 10, 7, 3, 5, shape, "bytes", 0, {}};
        s.losses = {0.1 * (double)trial.step, 1e-3, trial.step};
        s.norms = {2, 1.0 / 3, trial.step};
        s.spikes_since_progress = 2;
        s.updates = trial.step - 1;
        save_alone(s, trial, dir, keep);
    };

    for (int i = 0; i < 4; i++) {
        trial.train(samples, 1e-2);
        save(2);
    }
    check(list_checkpoints(dir) == std::vector<std::string>({"step-00000004", "step-00000003"}),
          "the newest two are kept");
    double next = trial.train(samples, 1e-2), after = trial.train(samples, 1e-2);
    Trial other(o, shape, 2);
    std::vector<Checkpoint> found = find_checkpoints(dir);
    load_checkpoint(found[0], other.model, &other.optimizer);
    other.step = found[0].state.step;
    check(found.size() == 2 && other.step == 4 && found[0].state.shape.V == 11, "the newest is found");
    const RunState& state = found[0].state;
    check(state.losses.mean == 0.1 * 4.0 && state.losses.variance == 1e-3 && state.losses.seen == 4 &&
              state.norms.mean == 2 && state.norms.variance == 1.0 / 3 && state.spikes_since_progress == 2 &&
              state.updates == 3,
          "what --spike-z knows, to the last bit");
    double again = other.train(samples, 1e-2);
    check(again == next && other.train(samples, 1e-2) == after, "goes on to the last bit");
    check(find_checkpoints(dir, 4).size() == 1 && find_checkpoints(dir + "/step-00000003", 4).size() == 1,
          "those of earlier steps");
    refuses("--resume-before 4 requires an earlier one",
            [&] { find_checkpoints(dir + "/step-00000004", 4); });
    refuses("no readable checkpoint of a step before 3", [&] { find_checkpoints(dir, 3); });

    std::string data = dir + "/step-00000004/rank-00000.bin", whole(MappedFile(data).view());
    patch(data, 100, "x");
    refuses("damaged between offsets", [&] { load_checkpoint(found[0], other.model, &other.optimizer); });
    fs::resize_file(data, whole.size() - 1);
    refuses("truncated", [&] { load_checkpoint(Checkpoint(dir + "/step-00000004"), other.model, nullptr); });
    check(!is_complete(dir + "/step-00000004"), "a truncated file of values");
    write_file(data, whole);
    patch(dir + "/step-00000004/rank-00000.json", 50, "x");
    refuses("its checksum differs",
            [&] { load_checkpoint(Checkpoint(dir + "/step-00000004"), other.model, nullptr); });
    check(!is_complete(dir + "/step-00000004"), "a damaged table");
    patch(dir + "/step-00000003/index.json", 60, "9");
    refuses("index.json: not JSON at offset", [&] { Checkpoint c(dir + "/step-00000003"); });
    patch(dir + "/step-00000004/index.json", 60, "9");
    refuses("holds no readable checkpoint", [&] { find_checkpoints(dir); });
    refuses("/nowhere: does not exist", [&] { find_checkpoints("/nowhere"); });

    // a tensor assembled from shards and parts of shards, as several ranks would have written it
    save(2);
    Checkpoint c(dir + "/" + step_name(trial.step));
    const Parameter& p = trial.model.table.block(1, UP_W);
    std::vector<real> want, got;
    c.read(want, p, 0);
    auto& pieces = c.pieces["master " + p.name];
    std::string file = scratch_folder + "/file.bin", bytes;
    std::vector<Checkpoint::Piece> parts;

    for (long half = 0; half < 2; half++) {
        long columns = p.shape[1] / 2, rows = p.shape[0], cut = half ? 5 * columns + 3 : rows * columns;
        std::vector<real> box;
        for (long r = 0; r < rows; r++)
            box.insert(box.end(), &want[r * p.shape[1] + half * columns],
                       &want[r * p.shape[1] + (half + 1) * columns]);
        for (auto [first, last] : {std::pair(0L, cut), std::pair(cut, rows * columns)}) {
            size_t at = bytes.size(), n = (size_t)(last - first) * sizeof(real);
            bytes.append((const char*)&box[first], n);
            if (n)
                parts.push_back({p.shape, {0, half * columns}, {rows, columns}, file, at, n,
                                 checksum(bytes.data() + at, n), sizeof(real) == 8, first});
        }
    }

    write_file(file, bytes);
    pieces = parts;
    c.read(got, p, 0);
    check(parts.size() == 3 && got == want, "a tensor cut in columns comes together");

    // a shard of it, and only some of the shard's values
    Parameter mine = p;
    mine.start = {7, 2};
    mine.count = {9, 4};
    std::vector<real> some(17), expected;
    c.read(some.data(), mine, 0, 6, 23);
    for (long i = 6; i < 23; i++) expected.push_back(want[(7 + i / 4) * p.shape[1] + 2 + i % 4]);
    check(some == expected, "values 6 to 22 of a box in the middle");
    pieces[1].start = {INT64_MAX, 0};
    refuses("outside its shape", [&] { c.read(got, p, 0); });
    pieces[1] = pieces[0];
    refuses("two pieces over the same values", [&] { c.read(got, p, 0); });
    pieces[1] = parts[1];
    pieces[1].start = {1, p.shape[1] / 2 - 1};  // another box, over one corner of the first
    pieces[1].count = {1, 2};
    pieces[1].bytes = 2 * sizeof(real);
    refuses("two pieces over the same values", [&] { c.read(got, p, 0); });
    pieces.erase(pieces.begin() + 1);
    long missing = parts[1].values();
    refuses(text("has %ld of %ld values", p.stored() - missing, p.stored()), [&] { c.read(got, p, 0); });
    pieces[0].first = 1;
    refuses("from value 1 of", [&] { c.read(got, p, 0); });

    // what is kept: the newest complete ones, up to the one just written; what is not a checkpoint is never
    // removed
    std::string keeps = scratch_folder + "/keeps", old = dir;
    dir = keeps;
    fs::create_directories(keeps + "/step-by-step1");
    fs::create_directories(keeps + "/step-99999999");
    write_file(keeps + "/step-00000000", "a file");
    for (trial.step = 1; trial.step <= 4; trial.step++) save(9);
    patch(keeps + "/step-00000004/rank-00000.json", 30, "x");
    trial.step = 3;
    save(2);
    std::string left;
    for (auto& name : list_checkpoints(keeps)) left += " " + std::to_string(step_of(name));
    check(left == " 99999999 4 3 2", "damaged and newer folders neither count nor go, left are" + left);
    check(fs::exists(keeps + "/step-by-step1") && fs::exists(keeps + "/step-00000000"),
          "nor does anything else");
    patch(keeps + "/step-00000002/rank-00000.json", 30, "x");
    save(2);
    check(list_checkpoints(keeps).size() == 4 && is_complete(keeps + "/step-00000003"),
          "saved again over itself");

    // a checkpoint damaged after it was written no longer counts, so an older one is kept in its stead
    patch(keeps + "/step-00000003/rank-00000.bin", 50, "x");
    trial.step = 5;
    save(2);
    check(fs::exists(keeps + "/step-00000003/DAMAGED") && !is_complete(keeps + "/step-00000003"),
          "a checkpoint that is kept is read again");
    Vocabulary v = Vocabulary::bytes();
    v.kind = "bpe";
    v.source = "#version: 0.2\nh e\n";
    RunState spoken = {6, 10, 50, 7, 3, 5, shape, "bpe", 0, {}};
    std::vector<real> values(want);
    save_whole(keeps, spoken, {{{p, Master, 0, p.stored(), -1, 0}}, values.data()}, "{}", &v);
    check(is_complete(keeps + "/step-00000006"), "a checkpoint with its vocabulary");
    Checkpoint one(keeps + "/step-00000006");
    check(one.has(p, 0) && !one.has(p, 1) && !one.has(trial.model.table.list[0], 0), "what it has");
    patch(keeps + "/step-00000006/vocab.bpe", 15, "x");
    refuses("vocab.bpe: damaged", [&] { Checkpoint damaged(keeps + "/step-00000006"); });

    // what cannot be read at the moment is not marked, whatever words are in its path; what is damaged is
    std::string apart = scratch_folder + "/damaged-or-truncated", one_of = apart + "/step-00000006";
    std::string values_file = one_of + "/rank-00000.bin", mark = one_of + "/DAMAGED";
    fs::remove(keeps + "/step-00000006/vocab.bpe");
    write_file(keeps + "/step-00000006/vocab.bpe", v.source);
    fs::create_directories(apart);
    fs::copy(keeps + "/step-00000006", one_of);
    fs::rename(values_file, values_file + ".away");
    check(!verify_older(apart, 7, 2, Grid{}.world) && !fs::exists(mark), "unreadable, it is not marked");
    fs::rename(values_file + ".away", values_file);
    check(verify_older(apart, 7, 2, Grid{}.world) && !fs::exists(mark), "nor intact");
    fs::resize_file(values_file, fs::file_size(values_file) - 1);
    check(verify_older(apart, 7, 2, Grid{}.world) && fs::exists(mark), "but truncated");
}
