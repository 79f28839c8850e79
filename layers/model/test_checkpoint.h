// test_checkpoint.h   checks of checkpoints: what is saved comes back, what is damaged is named
#pragma once
#include "checkpoint.h"
#include "test_training.h"

void test_checkpoint() {
    Options o;
    ModelShape shape = {2, 12, 3, 5, 11, 16};
    std::string dir = scratch_folder + "/checkpoints";
    std::vector<int> samples = some_samples(2, 5, 11);
    Trial trial(o, shape, 2);
    auto save = [&](long keep) {
        RunState s = {
            trial.step, (uint64_t)trial.step * 2, (uint64_t)trial.step * 10, 7, 3, shape, "bytes", 0, {}};
        save_checkpoint(dir, s, source_of(trial.model, trial.optimizer), "{}", nullptr, keep);
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
    double again = other.train(samples, 1e-2);
    check(again == next && other.train(samples, 1e-2) == after, "goes on to the last bit");
    std::string data = dir + "/step-00000004/rank-00000.bin", whole(MappedFile(data).view());
    patch(data, 100, "x");
    refuses("damaged between offsets", [&] { load_checkpoint(found[0], other.model, &other.optimizer); });
    fs::resize_file(data, whole.size() - 1);
    refuses("truncated", [&] { Checkpoint c(dir + "/step-00000004"); });
    write_file(data, whole);
    patch(dir + "/step-00000004/rank-00000.json", 50, "x");
    refuses("its checksum differs", [&] { Checkpoint c(dir + "/step-00000004"); });
    patch(dir + "/step-00000003/index.json", 60, "9");
    refuses("", [&] { Checkpoint c(dir + "/step-00000003"); });
    refuses("holds no whole checkpoint", [&] { find_checkpoints(dir); });
    refuses("holds no whole checkpoint", [&] { find_checkpoints("/nowhere"); });
    // a tensor put together from boxes, as several ranks would have written it
    TensorSource source = source_of(trial.model, trial.optimizer);
    save(2);
    Checkpoint c(dir + "/" + step_name(trial.step));
    const Parameter& p = c.state.shape.L ? trial.model.table.block(1, UP_W) : trial.model.table.list[0];
    std::vector<real> want, got;
    source.read(want, p, 0);
    auto& shards = c.shards["master " + p.name];
    std::string file = scratch_folder + "/file.bin", bytes;
    std::vector<Checkpoint::Shard> halves;
    for (long half = 0; half < 2; half++) {
        long columns = p.shape[1] / 2, at = (long)bytes.size();
        for (long r = 0; r < p.shape[0]; r++)
            bytes.append((const char*)&want[r * p.shape[1] + half * columns], columns * sizeof(real));
        size_t n = bytes.size() - at;
        halves.push_back({p.shape, {0, half * columns}, {p.shape[0], columns}, file, (size_t)at, n,
                       checksum(bytes.data() + at, n), sizeof(real) == 8});
    }
    write_file(file, bytes);
    shards = halves;
    c.read(got, p, 0);
    check(got == want, "a tensor cut in columns comes together");
    shards[1].start = {INT64_MAX, 0};
    refuses("outside its shape", [&] { c.read(got, p, 0); });
    shards[1] = halves[0];
    refuses("two shards over the same values", [&] { c.read(got, p, 0); });
    shards.pop_back();
    refuses("values", [&] { c.read(got, p, 0); });
    // what is kept: the newest that are whole, up to the one just written; nothing that is not a checkpoint
    // goes
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
    check(list_checkpoints(keeps).size() == 4 && tables_are_whole(keeps + "/step-00000003"),
          "saved again over itself");
    Vocabulary v = Vocabulary::bytes();
    v.kind = "bpe";
    v.source = "#version: 0.2\nh e\n";
    RunState spoken = {5, 10, 50, 7, 3, shape, "bpe", 0, {}};
    save_checkpoint(keeps, spoken, source, "{}", &v, 2);
    check(tables_are_whole(keeps + "/step-00000005"), "a checkpoint with its vocabulary");
    patch(keeps + "/step-00000005/vocab.bpe", 15, "x");
    refuses("vocab.bpe: damaged", [&] { Checkpoint damaged(keeps + "/step-00000005"); });
}
