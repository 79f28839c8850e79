// checkpoint.h   a run on disk, independent of the layout that wrote it and of the one that reads it
//   DIR/step-00000100/    a checkpoint; while it is being written it is DIR/.step-00000100.partial
//     rank-00000.bin      values of the shards, fp32 (fp64 in fp64 builds), one after the other
//     rank-00000.json     {"pieces": [{"tensor", "kind": master|m|v, "dtype", "shape", "start", "count",
//                         "offset", "bytes", "checksum"}…]}: each is a shard of a named tensor
//     vocab.bpe           where the tokens are a bpe's
//     index.json          written last: step, samples, tokens, seed, model, tokenizer and the checksum of its
//                         vocab.bpe, choices of the autotuner, options, and the name, size and checksum of
//                         every other file's table
//   Tensors are stored whole: q, k and v per head, the vocabulary unpadded. m and v may be missing (an
//   imported model): they start at 0. A folder without an index.json, or whose sums differ, is no checkpoint.
#pragma once
#include <dirent.h>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include "../../data/json.h"
#include "../../data/tokenizer.h"
#include "../base/checksum.h"
#include "../base/file.h"
#include "optimizer.h"

// what a checkpoint is made from, whoever holds it: a model in training, or convert
struct TensorSource {
    ParameterTable table;
    bool moments;
    comm::Group world;  // that writes it together
    bool replica;       // this rank is of the replica that writes
    // this rank's shard of kind 0 master, 1 m, 2 v; every rank calls it, in the same order
    std::function<void(std::vector<real>& out, const Parameter& p, int kind)> read;
    // of the ranks that hold a shard, one writes it
    bool writes(const Parameter& p) const {
        return replica && !p.is_copy && (p.split || table.layout.tensor == 0);
    }
};

constexpr const char* shard_kinds[] = {"master", "m", "v"};
constexpr const char* real_name = sizeof(real) == 8 ? "float64" : "float32";

inline std::string json_numbers(const std::vector<long>& v) {
    std::string out = "[";
    for (size_t i = 0; i < v.size(); i++) out += text(i ? ", %ld" : "%ld", v[i]);
    return out + "]";
}

inline std::string step_name(long step) { return text("step-%08ld", step); }

// this rank's file and its table; then `files`, the list of all ranks' files for the index
inline void write_shards(const std::string& folder, const TensorSource& source, std::string& files) {
    std::string name = text("rank-%05d", source.world.rank), shards;
    std::optional<FileWriter> data;
    if (source.replica) data.emplace(folder + "/" + name + ".bin");
    std::vector<real> values;
    for (int kind = 0; kind < (source.moments ? 3 : 1); kind++)
        for (auto& p : source.table.list) {
            source.read(values, p, kind);
            if (!source.writes(p)) continue;
            size_t bytes = values.size() * sizeof(real);
            shards += text("%s{\"tensor\": %s, \"kind\": \"%s\", \"dtype\": \"%s\", \"shape\": %s, "
                           "\"start\": %s, \"count\": %s, \"offset\": %zu, \"bytes\": %zu, \"checksum\": "
                           "\"%016llx\"}", shards.empty() ? "\n" : ",\n", json_quote(p.name).c_str(),
                           shard_kinds[kind], real_name, json_numbers(p.shape).c_str(),
                           json_numbers(p.start).c_str(), json_numbers(p.count).c_str(), data->written, bytes,
                           (unsigned long long)checksum(values.data(), bytes));
            data->write(values.data(), bytes);
        }
    std::vector<int64_t> mine = {0, -1};  // checksum of the table, bytes of the data
    if (data) {
        shards = "{\"pieces\": [" + shards + "\n]}\n";
        mine = {(int64_t)checksum(shards.data(), shards.size()), (int64_t)data->written};
        data->finish();
        FileWriter table(folder + "/" + name + ".json");
        table.write(shards);
        table.finish();
    }
    std::vector<int64_t> all = comm::gather_numbers(source.world, mine, "files of a checkpoint");
    for (int rank = 0; rank < source.world.size; rank++)
        if (all[2 * rank + 1] >= 0)
            files += text("%s{\"table\": \"rank-%05d.json\", \"checksum\": \"%016llx\", \"data\": "
                          "\"rank-%05d.bin\", \"bytes\": %lld}", files.empty() ? "[" : ",\n", rank,
                          (unsigned long long)all[2 * rank], rank, (long long)all[2 * rank + 1]);
    files += "]";
}

inline std::string index_text(const RunState& s, const std::string& options, const std::string& files) {
    std::string choices;
    for (auto& [hash, way] : s.choices)
        choices += text("%s\"%016llx\": %d", choices.empty() ? "" : ", ", (unsigned long long)hash, way);
    std::string body = text(
        "{\"format\": \"train_gpt checkpoint\", \"version\": 1,\n\"step\": %ld, \"samples\": %llu, "
        "\"tokens\": %llu, \"seed\": %ld, \"windows\": %llu,\n\"model\": {\"layers\": %d, \"hidden\": %d, "
        "\"heads\": %d, \"sequence\": %d, \"vocabulary\": %d},\n\"tokenizer\": %s, \"vocabulary_checksum\": "
        "\"%016llx\",\n\"choices\": {%s},\n\"options\": %s,\n\"files\": %s",
        s.step, (unsigned long long)s.samples, (unsigned long long)s.tokens, s.seed,
        (unsigned long long)s.set_samples, s.shape.L, s.shape.C, s.shape.NH, s.shape.T, s.shape.V,
        json_quote(s.tokenizer).c_str(), (unsigned long long)s.vocabulary_sum, choices.c_str(),
        options.c_str(), files.c_str());
    return body + text(",\n\"checksum\": \"%016llx\"}\n",
                       (unsigned long long)checksum(body.data(), body.size()));
}

// the number in "step-<digits>", or -1
inline long step_of(const std::string& name) {
    if (name.rfind("step-", 0) != 0 || name.size() < 13 || name.size() > 20) return -1;
    return name.find_first_not_of("0123456789", 5) == name.npos ? atol(name.c_str() + 5) : -1;
}

// folders of checkpoints in dir, newest first
inline std::vector<std::string> list_checkpoints(const std::string& dir) {
    std::vector<std::string> out;
    std::error_code ignored;
    for (auto& entry : std::filesystem::directory_iterator(dir, ignored))
        if (step_of(entry.path().filename()) >= 0 && entry.is_directory(ignored))
            out.push_back(entry.path().filename());
    std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return step_of(a) > step_of(b); });
    return out;
}

inline bool tables_are_whole(const std::string& folder);

// of the checkpoints up to `step` the newest `keep` whole ones stay, and whatever is newer than these
inline void drop_old_checkpoints(const std::string& dir, long step, long keep) {
    namespace fs = std::filesystem;
    long whole = 0;
    for (auto& name : list_checkpoints(dir)) {
        std::string folder = dir + "/" + name;
        if (step_of(name) > step || whole < keep) {
            whole += step_of(name) <= step && tables_are_whole(folder);
            continue;
        }
        std::error_code e;
        // without it, no checkpoint
        if (fs::remove(folder + "/index.json", e), !e) fs::remove_all(folder, e);
        if (e)
            fprintf(stderr, "old checkpoint %s was not removed: %s\n", folder.c_str(), e.message().c_str());
    }
}

// two folders change names in one act, so that at no moment there is none
inline void exchange_folders(const std::string& a, const std::string& b) {
    if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
    std::filesystem::rename(b, b + ".replaced");  // a file system that cannot
    std::filesystem::rename(a, b);
    std::filesystem::remove_all(b + ".replaced");
}

// appears whole or not at all; then the oldest beyond `keep` go
inline void save_checkpoint(const std::string& dir, const RunState& state, const TensorSource& source,
                            const std::string& options, const Vocabulary* vocabulary, long keep) {
    namespace fs = std::filesystem;
    std::string whole = dir + "/" + step_name(state.step),
        partial = dir + "/." + step_name(state.step) + ".partial";
    try {
        bool first = source.world.rank == 0;
        if (first) {
            fs::create_directories(dir);
            fs::remove_all(partial);
            fs::create_directory(partial);
        }
        comm::barrier(source.world, "a new checkpoint's folder");
        std::string files;
        RunState recorded = state;
        write_shards(partial, source, files);
        if (!first) return comm::barrier(source.world, "a finished checkpoint");
        if (vocabulary && vocabulary->kind == "bpe") {
            FileWriter copy(partial + "/vocab.bpe");
            copy.write(vocabulary->source);
            copy.finish();
            recorded.vocabulary_sum = checksum(vocabulary->source.data(), vocabulary->source.size());
        }
        FileWriter index(partial + "/index.json");
        index.write(index_text(recorded, options, files));
        index.finish();
        sync_folder(partial);
        if (!fs::exists(whole)) fs::rename(partial, whole);
        else exchange_folders(partial, whole);
        sync_folder(dir);
        fs::remove_all(partial);
    } catch (const std::exception& e) {
        std::error_code ignored;
        fs::remove_all(partial, ignored);
        fail("checkpoint %s was not saved: %s; older checkpoints are untouched: make room or choose another "
             "--save", whole.c_str(), e.what());
    }
    drop_old_checkpoints(dir, state.step, keep);
    comm::barrier(source.world, "a finished checkpoint");
}

// ---- reading ---------------------------------------------------------------------------------------------

struct Checkpoint {
    std::string folder;
    RunState state;
    struct Shard {
        std::vector<long> shape, start, count;
        std::string file;
        size_t offset, bytes;
        uint64_t sum;
        bool wide;  // float64
    };
    std::map<std::string, std::vector<Shard>> shards;  // by "kind tensor"

    explicit Checkpoint(const std::string& folder) : folder(folder) {
        std::string name = folder + "/index.json";
        MappedFile file(name);
        size_t end = file.view().rfind(",\n\"checksum\": ");
        Json index = Json::parse(file.view(), name);
        const Json* format = index.find("format");
        if (!format || format->text != "train_gpt checkpoint" || index.at("version", name).integer(name) != 1)
            fail("%s: is no checkpoint of this program", name.c_str());
        if (end == std::string_view::npos || parse_sum(index, name) != checksum(file.data, end))
            fail("%s: damaged: its checksum differs", name.c_str());
        auto number = [&](const Json& object, const char* key, int64_t least, int64_t most) {
            int64_t value = object.at(key, name).integer(name);
            if (value < least || value > most)
                fail("%s: has %s %lld, wants %lld to %lld", name.c_str(), key, (long long)value,
                     (long long)least, (long long)most);
            return value;
        };
        state.step = number(index, "step", 0, 1L << 50);
        state.samples = number(index, "samples", 0, 1L << 60);
        state.tokens = number(index, "tokens", 0, 1L << 60);
        state.seed = number(index, "seed", 0, INT64_MAX);
        state.set_samples = number(index, "windows", 0, 1L << 60);
        state.tokenizer = index.at("tokenizer", name).string(name);
        state.vocabulary_sum = parse_sum(index, name, "vocabulary_checksum");
        if (state.tokenizer != "" && state.tokenizer != "bytes" && state.tokenizer != "bpe")
            fail("%s: has tokenizer %s, wants bytes or bpe", name.c_str(), state.tokenizer.c_str());
        if (state.tokenizer == "bpe") {
            MappedFile vocabulary(folder + "/vocab.bpe");
            if (checksum(vocabulary.data, vocabulary.size) != state.vocabulary_sum)
                fail("%s: damaged: its checksum differs", vocabulary.path.c_str());
        }
        if (const Json* choices = index.find("choices"))
            for (auto& [hash, way] : choices->members)
                state.choices[strtoull(hash.c_str(), nullptr, 16)] = (int)way.integer(name);
        const Json& m = index.at("model", name);
        state.shape = {(int)number(m, "layers", 1, 10000), (int)number(m, "hidden", 1, 1 << 20),
                       (int)number(m, "heads", 1, 1 << 20), (int)number(m, "sequence", 1, 1 << 24),
                       (int)number(m, "vocabulary", 2, 1 << 28), 0};
        if (state.shape.C % state.shape.NH) fail("%s: its heads do not divide its hidden", name.c_str());
        for (auto& f : index.at("files", name).items) read_table(f, name);
        ModelShape whole = state.shape;
        whole.Vp = whole.V;
        for (auto& p : parameter_table(whole).list)
            if (!has(p, 0)) fail("%s: has no tensor %s", name.c_str(), p.name.c_str());
    }
    static uint64_t parse_sum(const Json& object, const std::string& name, const char* key = "checksum") {
        return strtoull(object.at(key, name).string(name).c_str(), nullptr, 16);
    }
    static std::vector<long> numbers(const Json& array, const std::string& name) {
        std::vector<long> out;
        for (auto& item : array.items) out.push_back(item.integer(name));
        return out;
    }
    void read_table(const Json& f, const std::string& index_name) {
        auto inside = [&](const char* key) {
            const std::string& file = f.at(key, index_name).string(index_name);
            if (file.find('/') != file.npos)
                fail("%s: names %s, outside its folder", index_name.c_str(), file.c_str());
            return folder + "/" + file;
        };
        std::string name = inside("table"), data = inside("data");
        MappedFile file(name);
        if (checksum(file.data, file.size) != parse_sum(f, index_name))
            fail("%s: damaged: its checksum differs", name.c_str());
        size_t size = f.at("bytes", index_name).integer(index_name);
        std::error_code missing;
        if (std::filesystem::file_size(data, missing) != size || missing)
            fail("%s: truncated: wants %zu bytes", data.c_str(), size);
        Json table = Json::parse(file.view(), name);
        for (auto& p : table.at("pieces", name).items) {
            const std::string& type = p.at("dtype", name).string(name);
            if (type != "float32" && type != "float64") fail("%s: has dtype %s", name.c_str(), type.c_str());
            Shard shard = {numbers(p.at("shape", name), name), numbers(p.at("start", name), name),
                           numbers(p.at("count", name), name), data,
                               (size_t)p.at("offset", name).integer(name),
                               (size_t)p.at("bytes", name).integer(name), parse_sum(p, name),
                               type == "float64"};
            shards[p.at("kind", name).string(name) + " " +
                   p.at("tensor", name).string(name)].push_back(shard);
        }
    }
    bool has(const Parameter& p, int kind) const {
        return shards.count(shard_kinds[kind] + (" " + p.name)) > 0;
    }

    // the rank's shard of a tensor, put together from the shards that were written
    void read(std::vector<real>& out, const Parameter& p, int kind) const {
        auto found = shards.find(shard_kinds[kind] + (" " + p.name));
        if (found == shards.end())
            fail("%s: has no tensor %s (%s)", folder.c_str(), p.name.c_str(), shard_kinds[kind]);
        long filled = 0;
        for (size_t i = 0; i < found->second.size(); i++) {
            filled += volume(p, found->second[i]);
            for (size_t j = 0; j < i; j++)
                if (overlap(found->second[i], found->second[j]))
                    fail("%s: tensor %s has two shards over the same values", folder.c_str(), p.name.c_str());
        }
        long whole = Parameter::product(p.shape);
        if (filled != whole)
            fail("%s: tensor %s has %ld of %ld values", folder.c_str(), p.name.c_str(), filled, whole);
        std::vector<real> values(whole);
        for (auto& shard : found->second) place(values, p, shard);
        out.resize(p.stored());
        p.for_each_run(
            [&](long from, long shard, long n) { std::copy_n(&values[from], n, out.begin() + shard); });
    }
    // the number of values of a shard, which lies in the tensor
    long volume(const Parameter& p, const Shard& shard) const {
        if (shard.shape != p.shape || shard.count.size() != p.shape.size() ||
            shard.start.size() != p.shape.size())
            fail("%s: tensor %s has shape %s, wants %s", folder.c_str(), p.name.c_str(),
                 json_numbers(shard.shape).c_str(), json_numbers(p.shape).c_str());
        long n = 1;
        for (size_t d = 0; d < p.shape.size(); d++) {
            long start = shard.start[d], count = shard.count[d];
            if (start < 0 || count < 0 || start > p.shape[d] || count > p.shape[d] - start)
                fail("%s: tensor %s has a shard outside its shape", folder.c_str(), p.name.c_str());
            n *= count;
        }
        if (shard.bytes != (size_t)n * (shard.wide ? 8 : 4))
            fail("%s: tensor %s has a shard of %zu bytes for %ld values", folder.c_str(), p.name.c_str(),
                 shard.bytes, n);
        return n;
    }
    static bool overlap(const Shard& a, const Shard& b) {
        for (size_t d = 0; d < a.shape.size(); d++)
            if (a.start[d] + a.count[d] <= b.start[d] || b.start[d] + b.count[d] <= a.start[d]) return false;
        return true;
    }
    void place(std::vector<real>& out, const Parameter& p, const Shard& shard) const {
        MappedFile data(shard.file);
        long n = volume(p, shard);
        const char* from = data.range(shard.offset, shard.bytes, p.name.c_str());
        if (checksum(from, shard.bytes) != shard.sum)
            fail("%s: damaged between offsets %zu and %zu: its checksum differs", shard.file.c_str(),
                 shard.offset, shard.offset + shard.bytes);
        long row = shard.count.back();  // runs of neighbours in both
        for (long at = 0; row && at < n; at += row) {
            long to = 0, rest = at / row;
            std::vector<long> index(p.shape.size(), 0);
            for (int d = (int)p.shape.size() - 2; d >= 0; d--) {
                index[d] = rest % shard.count[d];
                rest /= shard.count[d];
            }
            for (size_t d = 0; d < p.shape.size(); d++) to = to * p.shape[d] + shard.start[d] + index[d];
            for (long i = 0; i < row; i++) {
                if (shard.wide) {
                    double value;
                    memcpy(&value, from + (at + i) * 8, 8);
                    out[to + i] = (real)value;
                } else {
                    float value;
                    memcpy(&value, from + (at + i) * 4, 4);
                    out[to + i] = (real)value;
                }
            }
        }
    }
};

inline bool tables_are_whole(const std::string& folder) {
    try {
        Checkpoint c(folder);
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

// the checkpoints in dir that open, newest first, or dir itself if it is one; says what it passes over
inline std::vector<Checkpoint> find_checkpoints(const std::string& dir) {
    std::vector<Checkpoint> out;
    auto consider = [&](const std::string& folder) {
        try {
            out.emplace_back(folder);
        } catch (const Error& e) {
            if (comm::world_rank() == 0) fprintf(stderr, "passed over: %s\n", e.what());
        }
    };
    if (access((dir + "/index.json").c_str(), F_OK) == 0) consider(dir);
    else for (auto& name : list_checkpoints(dir)) consider(dir + "/" + name);
    if (out.empty())
        fail("--resume %s: holds no whole checkpoint: choose a folder that --save wrote", dir.c_str());
    return out;
}

// device <-> host, for a model in training. Moments and master weights that data-parallel ranks share are
// gathered bucket by bucket, in the memory of the gradients: call clear_gradients() at the end.
inline TensorSource source_of(Model& model, Optimizer& o) {
    bool replica = model.grid.data == 0;
    model.await_parameters();
    // bucket and kind that were gathered last
    auto gathered = std::make_shared<std::pair<int, int>>(-1, -1);
    return {model.table, true, model.grid.world, replica,
            [&model, &o, gathered](std::vector<real>& out, const Parameter& p, int kind) {
        real* state[] = {o.master, o.m, o.v};
        real* from;
        if (kind == 0 && master_is_parameter) from = (real*)model.weights + p.offset;
        else if (model.table.layout.optimizer_shards == 1) from = state[kind] + p.offset;
        else {
            const Bucket& b = model.table.buckets[p.bucket];
            long slice = b.elements / model.table.layout.optimizer_shards;
            real* whole = model.gradients + b.offset;
            if (*gathered != std::pair(p.bucket, kind))
                comm::all_gather(model.grid.dp, whole,
                                 state[kind] + b.offset / model.table.layout.optimizer_shards, slice,
                                 "optimizer state", model.stream);  // my slice -> all slices
            *gathered = {p.bucket, kind};
            from = whole + (p.offset - b.offset);
        }
        out.resize(p.stored());
        copy_to_host(out.data(), from, out.size() * sizeof(real), model.stream);
    }};
}

inline void load_checkpoint(const Checkpoint& c, Model& model, Optimizer* o) {
    std::vector<real> values;
    for (auto& p : model.table.list) {
        c.read(values, p, 0);
        values.resize(p.size, 0);
        store_parameter(model, o, p, values);
        for (int kind = 1; o && kind < 3; kind++) {
            if (!c.has(p, kind)) continue;
            c.read(values, p, kind);
            values.resize(p.size, 0);
            store_partition(model, *o, kind == 1 ? o->m : o->v, p, values);
        }
    }
}
