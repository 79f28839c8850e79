// checkpoint.h   a run on disk, independent of the layout that wrote it and of the one that reads it
//   DIR/step-00000100/    a checkpoint; while it is being written it is DIR/.step-00000100.partial
//     rank-00000.bin      values of the pieces, fp32 (fp64 in fp64 builds), one after the other
//     rank-00000.json     {"pieces": [{"tensor", "kind": master|m|v, "dtype", "shape", "start", "count",
//                         "offset", "bytes", "checksum"}…]}: each piece is a box in a named tensor
//     vocab.bpe           where the tokens are a bpe's
//     index.json          written last: step, samples, tokens, seed, model, tokenizer, options, and the name,
//                         size and checksum of every other file's table
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

struct RunState {
    long step = 0;
    uint64_t samples = 0, tokens = 0;  // consumed; samples is also the position in the data
    long seed = 0;
    uint64_t windows = 0;  // of the training set, to notice another one
    ModelShape shape;
    std::string tokenizer;  // "bytes", "bpe" or ""
};

// what a checkpoint is made from, whoever holds it: a model in training, or convert
struct TensorSource {
    ParameterTable table;
    bool moments;
    // the stored() values of kind 0 master, 1 m, 2 v
    std::function<void(std::vector<real>& out, const Parameter& p, int kind)> read;
};

constexpr const char* piece_kinds[] = {"master", "m", "v"};
constexpr const char* real_name = sizeof(real) == 8 ? "float64" : "float32";

inline std::string json_numbers(const std::vector<long>& v) {
    std::string out = "[";
    for (size_t i = 0; i < v.size(); i++) out += text(i ? ", %ld" : "%ld", v[i]);
    return out + "]";
}

inline std::string step_name(long step) { return text("step-%08ld", step); }

inline void write_pieces(const std::string& folder, const TensorSource& source, std::string& files) {
    FileWriter data(folder + "/rank-00000.bin");
    std::string pieces;
    std::vector<real> values;
    for (auto& p : source.table.list)
        for (int kind = 0; kind < (source.moments ? 3 : 1); kind++) {
            source.read(values, p, kind);
            size_t bytes = values.size() * sizeof(real);
            pieces += text("%s{\"tensor\": %s, \"kind\": \"%s\", \"dtype\": \"%s\", \"shape\": %s, "
                           "\"start\": %s, \"count\": %s, \"offset\": %zu, \"bytes\": %zu, \"checksum\": "
                           "\"%016llx\"}", pieces.empty() ? "\n" : ",\n", json_quote(p.name).c_str(),
                           piece_kinds[kind], real_name, json_numbers(p.shape).c_str(),
                           json_numbers(std::vector<long>(p.shape.size(), 0)).c_str(),
                           json_numbers(p.shape).c_str(), data.written, bytes,
                           (unsigned long long)checksum(values.data(), bytes));
            data.write(values.data(), bytes);
        }
    pieces = "{\"pieces\": [" + pieces + "\n]}\n";
    size_t size = data.written;
    data.finish();
    FileWriter table(folder + "/rank-00000.json");
    table.write(pieces);
    table.finish();
    files = text("[{\"table\": \"rank-00000.json\", \"checksum\": \"%016llx\", \"data\": "
                 "\"rank-00000.bin\", \"bytes\": %zu}]",
                 (unsigned long long)checksum(pieces.data(), pieces.size()), size);
}

inline std::string index_text(const RunState& s, const std::string& options, const std::string& files) {
    std::string body = text(
        "{\"format\": \"train_gpt checkpoint\", \"version\": 1,\n\"step\": %ld, \"samples\": %llu, "
        "\"tokens\": %llu, \"seed\": %ld, \"windows\": %llu,\n\"model\": {\"layers\": %d, \"hidden\": %d, "
        "\"heads\": %d, \"sequence\": %d, \"vocabulary\": %d},\n\"tokenizer\": %s,\n\"options\": "
        "%s,\n\"files\": %s", s.step, (unsigned long long)s.samples, (unsigned long long)s.tokens, s.seed,
        (unsigned long long)s.windows, s.shape.L, s.shape.C, s.shape.NH, s.shape.T, s.shape.V,
        json_quote(s.tokenizer).c_str(), options.c_str(), files.c_str());
    return body + text(",\n\"checksum\": \"%016llx\"}\n",
                       (unsigned long long)checksum(body.data(), body.size()));
}

// folders of checkpoints in dir, newest first
inline std::vector<std::string> list_checkpoints(const std::string& dir) {
    std::vector<std::string> out;
    std::error_code ignored;
    for (auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
        std::string name = entry.path().filename();
        if (name.size() == 13 && name.rfind("step-", 0) == 0) out.push_back(name);
    }
    std::sort(out.rbegin(), out.rend());
    return out;
}

// appears whole or not at all; then the oldest beyond `keep` go
inline void save_checkpoint(const std::string& dir, const RunState& state, const TensorSource& source,
                            const std::string& options, const Vocabulary* vocabulary, long keep) {
    namespace fs = std::filesystem;
    std::string whole = dir + "/" + step_name(state.step),
        partial = dir + "/." + step_name(state.step) + ".partial";
    try {
        fs::create_directories(dir);
        fs::remove_all(partial);
        fs::create_directory(partial);
        std::string files;
        write_pieces(partial, source, files);
        if (vocabulary && vocabulary->kind == "bpe") {
            FileWriter copy(partial + "/vocab.bpe");
            copy.write(vocabulary->source);
            copy.finish();
        }
        FileWriter index(partial + "/index.json");
        index.write(index_text(state, options, files));
        index.finish();
        sync_folder(partial);
        fs::remove_all(whole);  // stands there only if it was not whole
        fs::rename(partial, whole);
        sync_folder(dir);
    } catch (const std::exception& e) {
        std::error_code ignored;
        fs::remove_all(partial, ignored);
        fail("checkpoint %s was not saved: %s; older checkpoints are untouched: make room or choose another "
             "--save", whole.c_str(), e.what());
    }
    auto all = list_checkpoints(dir);
    for (size_t i = keep; i < all.size(); i++) {
        fs::remove(dir + "/" + all[i] + "/index.json");  // from here on it is no checkpoint
        fs::remove_all(dir + "/" + all[i]);
    }
}

// ---- reading ----------------------------------------------------------------------------------------------

struct Checkpoint {
    std::string folder;
    RunState state;
    struct Piece {
        std::vector<long> shape, start, count;
        std::string file;
        size_t offset, bytes;
        uint64_t sum;
        bool wide;  // float64
    };
    std::map<std::string, std::vector<Piece>> pieces;  // by "kind tensor"

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
        state.step = index.at("step", name).integer(name);
        state.samples = index.at("samples", name).integer(name);
        state.tokens = index.at("tokens", name).integer(name);
        state.seed = index.at("seed", name).integer(name);
        state.windows = index.at("windows", name).integer(name);
        state.tokenizer = index.at("tokenizer", name).string(name);
        const Json& model = index.at("model", name);
        auto number = [&](const char* key) { return (int)model.at(key, name).integer(name); };
        state.shape = {number("layers"), number("hidden"), number("heads"), number("sequence"),
                       number("vocabulary"), 0};
        for (auto& f : index.at("files", name).items) read_table(f, name);
    }
    static uint64_t parse_sum(const Json& object, const std::string& name) {
        return strtoull(object.at("checksum", name).string(name).c_str(), nullptr, 16);
    }
    static std::vector<long> numbers(const Json& array, const std::string& name) {
        std::vector<long> out;
        for (auto& item : array.items) out.push_back(item.integer(name));
        return out;
    }
    void read_table(const Json& f, const std::string& index_name) {
        std::string name = folder + "/" + f.at("table", index_name).string(index_name);
        std::string data = folder + "/" + f.at("data", index_name).string(index_name);
        MappedFile file(name);
        if (checksum(file.data, file.size) != parse_sum(f, index_name))
            fail("%s: damaged: its checksum differs", name.c_str());
        size_t size = f.at("bytes", index_name).integer(index_name);
        std::error_code missing;
        if (std::filesystem::file_size(data, missing) != size || missing)
            fail("%s: truncated: wants %zu bytes", data.c_str(), size);
        Json table = Json::parse(file.view(), name);
        for (auto& p : table.at("pieces", name).items) {
            Piece piece = {numbers(p.at("shape", name), name), numbers(p.at("start", name), name),
                           numbers(p.at("count", name), name), data,
                               (size_t)p.at("offset", name).integer(name),
                               (size_t)p.at("bytes", name).integer(name), parse_sum(p, name),
                               p.at("dtype", name).string(name) == "float64"};
            pieces[p.at("kind", name).string(name) + " " +
                   p.at("tensor", name).string(name)].push_back(piece);
        }
    }
    bool has(const Parameter& p, int kind) const {
        return pieces.count(piece_kinds[kind] + (" " + p.name)) > 0;
    }

    // the whole tensor, put together from its boxes
    void read(std::vector<real>& out, const Parameter& p, int kind) const {
        auto found = pieces.find(piece_kinds[kind] + (" " + p.name));
        if (found == pieces.end())
            fail("%s: has no tensor %s (%s)", folder.c_str(), p.name.c_str(), piece_kinds[kind]);
        out.assign(p.stored(), 0);
        long filled = 0;
        for (auto& piece : found->second) {
            if (piece.shape != p.shape || piece.count.size() != p.shape.size() ||
                piece.start.size() != p.shape.size())
                fail("%s: tensor %s has shape %s, wants %s", folder.c_str(), p.name.c_str(),
                     json_numbers(piece.shape).c_str(), json_numbers(p.shape).c_str());
            filled += place(out, p, piece);
        }
        if (filled != p.stored())
            fail("%s: tensor %s has %ld of %ld values", folder.c_str(), p.name.c_str(), filled, p.stored());
    }
    long place(std::vector<real>& out, const Parameter& p, const Piece& piece) const {
        MappedFile data(piece.file);
        long n = 1;
        for (size_t d = 0; d < p.shape.size(); d++) {
            if (piece.start[d] < 0 || piece.count[d] < 0 || piece.start[d] + piece.count[d] > p.shape[d])
                fail("%s: tensor %s has a piece outside its shape", folder.c_str(), p.name.c_str());
            n *= piece.count[d];
        }
        if (piece.bytes != (size_t)n * (piece.wide ? 8 : 4))
            fail("%s: tensor %s has a piece of %zu bytes for %ld values", folder.c_str(), p.name.c_str(),
                 piece.bytes, n);
        const char* from = data.range(piece.offset, piece.bytes, p.name.c_str());
        if (checksum(from, piece.bytes) != piece.sum)
            fail("%s: damaged between offsets %zu and %zu: its checksum differs", piece.file.c_str(),
                 piece.offset, piece.offset + piece.bytes);
        long row = piece.count.back();  // runs of neighbours in both
        for (long at = 0; row && at < n; at += row) {
            long to = 0, rest = at / row;
            std::vector<long> index(p.shape.size(), 0);
            for (int d = (int)p.shape.size() - 2; d >= 0; d--)
                index[d] = rest % piece.count[d], rest /= piece.count[d];
            for (size_t d = 0; d < p.shape.size(); d++) to = to * p.shape[d] + piece.start[d] + index[d];
            for (long i = 0; i < row; i++) {
                if (piece.wide) {
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
        return n;
    }
};

// the newest checkpoint in dir that opens, or dir itself if it is one; says what it passes over
inline std::vector<Checkpoint> find_checkpoints(const std::string& dir) {
    std::vector<Checkpoint> out;
    auto consider = [&](const std::string& folder) {
        try {
            out.emplace_back(folder);
        } catch (const Error& e) {
            fprintf(stderr, "passed over: %s\n", e.what());
        }
    };
    if (access((dir + "/index.json").c_str(), F_OK) == 0) consider(dir);
    else for (auto& name : list_checkpoints(dir)) consider(dir + "/" + name);
    if (out.empty())
        fail("--resume %s: holds no whole checkpoint: choose a folder that --save wrote", dir.c_str());
    return out;
}

// device <-> host, for a model in training
inline TensorSource source_of(Model& model, Optimizer& o) {
    return {model.table, true, [&](std::vector<real>& out, const Parameter& p, int kind) {
        real* from[] = {o.master, o.m, o.v};
        out.resize(p.stored());
        copy_to_host(out.data(), from[kind] + p.offset, out.size() * sizeof(real), model.stream);
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
            copy_to_device((kind == 1 ? o->m : o->v) + p.offset, values.data(), values.size() * sizeof(real),
                           model.stream);
            synchronize(model.stream);
        }
    }
}
