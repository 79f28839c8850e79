// checkpoint.h   a run on disk (written by save.h), independent of the layouts that write and read it
//   DIR/step-00000100/    a checkpoint; DIR/.step-00000100.partial while it is being written
//     rank-00000.bin      the rank's values of its shards, fp32 (fp64 in fp64 builds), concatenated
//     rank-00000.json     {"pieces": [{"tensor", "kind": master|m|v, "dtype", "shape", "start", "count",
//                         "first", "offset", "bytes", "checksum"}…]}: [start, start + count) of the tensor is
//                         a rank's shard; the piece holds the shard's values from index `first` on, in
//                         row-major order (version 1: no "first", the whole shard)
//     vocab.bpe           the vocabulary, if the tokens are BPE's
//     index.json          written last: the run's state (run.h), its options, and for each rank: its
//                         file names, checksum of its table, bytes of its values, and the tensors that have
//                         values there (indices into parameter_table's list, e.g. 0-11,24)
//     DAMAGED             verify_older (save.h) found the checkpoint damaged: it no longer counts as complete
//   Shapes are those of whole tensors: q, k and v per head, the vocabulary unpadded. m and v may be missing
//   (an imported model): they start at 0. Without index.json, or with wrong checksums, a folder is not a
//   checkpoint. Opening reads the index; tables are read when a tensor is requested, data when values are.
#pragma once
#include <dirent.h>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include "../../data/json.h"
#include "../../data/tokenizer.h"
#include "../base/whole_file.h"
#include "../base/file_writer.h"
#include "../model/optimizer.h"
#include "config.h"
#include "run.h"

constexpr const char* shard_kinds[] = {"master", "m", "v"};
constexpr const char* real_name = sizeof(real) == 8 ? "float64" : "float32";

inline std::string json_numbers(const std::vector<long>& v) {
    std::string out = "[";
    for (size_t i = 0; i < v.size(); i++) out += text(i ? ", %ld" : "%ld", v[i]);
    return out + "]";
}

inline std::string step_name(long step) { return text("step-%08ld", step); }
inline std::string partial_folder(const std::string& dir, long step) {
    return dir + "/." + step_name(step) + ".partial";
}

// in index.json: mean, variance and count of the losses, then of the norms; spikes in a row
inline std::string spikes_text(const RunState& s) {
    std::string out = "[";
    for (const RunningStatistics* r : {&s.losses, &s.norms})
        out += text("%.17g, %.17g, %ld, ", r->mean, r->variance, r->seen);
    return out + text("%d]", s.spikes_since_progress);
}

inline void read_spikes(RunState& s, const Json& array, const std::string& name) {
    if (array.items.size() != 7)
        fail("%s: has %zu numbers in spikes, expected 7", name.c_str(), array.items.size());
    for (int i = 0; i < 2; i++)
        (i ? s.norms : s.losses) = {array.items[3 * i].number(name), array.items[3 * i + 1].number(name),
                                    array.items[3 * i + 2].integer(name)};
    s.spikes_since_progress = (int)array.items[6].integer(name);
}

inline std::string index_text(const RunState& s, const std::string& options, const std::string& files) {
    std::string choices;
    for (auto& [hash, way] : s.choices)
        choices += text("%s\"%016llx\": %d", choices.empty() ? "" : ", ", (unsigned long long)hash, way);

    std::string body = text(
        "{\"format\": \"train_gpt checkpoint\", \"version\": 2, \"program\": \"%s\",\n"
        "\"step\": %ld, \"updates\": %ld, \"samples\": %llu, "
        "\"tokens\": %llu, \"seed\": %ld, \"set_samples\": %llu, \"set_checksum\": \"%016llx\",\n"
        "\"model\": {\"layers\": %d, \"hidden\": %d, \"heads\": %d, \"sequence\": %d, \"vocabulary\": %d},\n"
        "\"tokenizer\": %s, \"vocabulary_checksum\": \"%016llx\",\n"
        "\"choices\": {%s},\n\"spikes\": %s,\n\"options\": %s,\n"
        "\"files\": %s",
        program_version, s.step, s.updates, (unsigned long long)s.samples_seen,
        (unsigned long long)s.tokens_seen, s.seed, (unsigned long long)s.training_set_size,
        (unsigned long long)s.training_set_sum,
        s.shape.L, s.shape.C, s.shape.NH, s.shape.T, s.shape.V,
        json_quote(s.tokenizer).c_str(), (unsigned long long)s.vocabulary_sum, choices.c_str(),
        spikes_text(s).c_str(), options.c_str(), files.c_str());

    return body + text(",\n\"checksum\": \"%016llx\"}\n",
                       (unsigned long long)checksum(body.data(), body.size()));
}

// the number in "step-<digits>", or -1
inline long step_of(const std::string& name) {
    if (name.rfind("step-", 0) != 0 || name.size() < 13 || name.size() > 20) return -1;
    long step = name.find_first_not_of("0123456789", 5) == name.npos ? atol(name.c_str() + 5) : -1;
    return step_name(step) == name ? step : -1;  // one name for each step
}

// names of the checkpoints in dir, newest first
inline std::vector<std::string> list_checkpoints(const std::string& dir) {
    std::vector<std::string> out;
    std::error_code ignored;
    std::filesystem::directory_iterator at(dir, ignored), end;
    for (; at != end; at.increment(ignored))
        if (step_of(at->path().filename()) >= 0 && at->is_directory(ignored))
            out.push_back(at->path().filename());
    std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return step_of(a) > step_of(b); });
    return out;
}

inline bool is_complete(const std::string& folder);

// keeps the newest `keep` complete checkpoints up to `step`, and everything newer than the oldest of them
inline void drop_old_checkpoints(const std::string& dir, long step, long keep) {
    namespace fs = std::filesystem;
    long whole = 0;
    for (auto& name : list_checkpoints(dir)) {
        std::string folder = dir + "/" + name;
        if (fs::is_symlink(folder)) continue;  // what it points to is not ours to remove
        if (step_of(name) > step || whole < keep) {
            whole += step_of(name) <= step && is_complete(folder);
            continue;
        }

        std::error_code e;
        // index first: without it, what is left is not a checkpoint
        if (fs::remove(folder + "/index.json", e), !e) fs::remove_all(folder, e);
        if (e)
            fprintf(stderr, "old checkpoint %s was not removed: %s\n", folder.c_str(), e.message().c_str());
    }
}

// Puts folder a in the place of b: atomically if the file system can exchange them. If not, b is missing for
// a moment; should the run die then, FolderLock::remove_leftovers() restores it
inline void swap_folders(const std::string& a, const std::string& b) {
    if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
    std::filesystem::rename(b, b + ".replaced");  // where the file system cannot exchange them
    std::filesystem::rename(a, b);
    std::filesystem::remove_all(b + ".replaced");
}

// ---- reading ---------------------------------------------------------------------------------------------

// not skipped: a run that resumed from an older one would overwrite what a newer program has saved
struct NewerFormat : Error {
    using Error::Error;
};

struct Checkpoint {
    static constexpr int version = 2;  // the newest that is read
    std::string folder;
    uint64_t index_sum = 0;  // of index.json, as it was read
    RunState state;
    struct Piece {
        std::vector<long> shape, start, count;  // shape: of the tensor; start, count: the shard in it
        std::string file;
        size_t offset, bytes;
        uint64_t sum;
        bool wide;   // float64
        long first;  // index in the shard of the piece's first value
        long values() const { return (long)(bytes / (wide ? 8 : 4)); }
    };
    struct RankFile {
        std::string table, data;  // paths
        uint64_t table_sum;
        size_t bytes;
        std::string tensors;      // "0-11,24"; "": unknown, may be any
        bool is_open = false;     // its table has been read into `pieces`
    };
    mutable std::vector<RankFile> files;  // by the rank that wrote it
    int rank = comm::world_rank();        // here, as threads other than the main one make no MPI calls
    mutable std::map<std::string, std::vector<Piece>> pieces;  // of the tables read, key "kind tensor"
    std::map<std::string, int> tensor_ids;
    std::map<std::string, std::string> options;  // of the run that wrote it, by name
    std::set<std::string> given;  // names of those that were given; empty: an imported model, or not recorded
    std::map<std::string, std::string> postponed;  // Options::postponed

    explicit Checkpoint(const std::string& folder) : folder(folder) {
        std::string name = folder + "/index.json";
        WholeFile file(name);
        index_sum = checksum(file.data, file.size);
        size_t end = file.view().rfind(",\n\"checksum\": ");
        Json index = Json::parse(file.view(), name);
        const Json* format = index.find("format");
        if (!format || format->text != "train_gpt checkpoint")
            fail("%s: is not a checkpoint of this program", name.c_str());
        check_version(index, name);
        if (end == std::string_view::npos || parse_sum(index, name) != checksum(file.data, end))
            throw Damaged(text("%s: damaged: its checksum differs", name.c_str()));

        auto number = [&](const Json& object, const char* key, int64_t least, int64_t most) {
            int64_t value = object.at(key, name).integer(name);
            if (value < least || value > most)
                fail("%s: has %s %lld, expected %lld to %lld", name.c_str(), key, (long long)value,
                     (long long)least, (long long)most);
            return value;
        };

        state.step = number(index, "step", 0, 1L << 50);
        state.updates = index.find("updates") ? number(index, "updates", 0, state.step) : state.step;
        state.samples_seen = number(index, "samples", 0, 1L << 60);
        state.tokens_seen = number(index, "tokens", 0, 1L << 60);
        state.seed = number(index, "seed", 0, INT64_MAX);
        state.training_set_size =
            number(index, index.find("set_samples") ? "set_samples" : "windows", 0, 1L << 60);
        if (index.find("set_checksum")) state.training_set_sum = parse_sum(index, name, "set_checksum");
        check_name();

        state.tokenizer = index.at("tokenizer", name).string(name);
        state.vocabulary_sum = parse_sum(index, name, "vocabulary_checksum");
        if (state.tokenizer != "" && state.tokenizer != "bytes" && state.tokenizer != "bpe")
            fail("%s: has tokenizer %s, expected bytes or bpe", name.c_str(), state.tokenizer.c_str());
        if (state.tokenizer == "bpe") {
            WholeFile vocabulary(folder + "/vocab.bpe");
            if (checksum(vocabulary.data, vocabulary.size) != state.vocabulary_sum)
                throw Damaged(text("%s: damaged: its checksum differs", vocabulary.path.c_str()));
        }

        if (const Json* choices = index.find("choices"))
            for (auto& [hash, way] : choices->members)
                state.choices[strtoull(hash.c_str(), nullptr, 16)] = (int)way.integer(name);
        if (const Json* spikes = index.find("spikes")) read_spikes(state, *spikes, name);
        if (const Json* recorded = index.find("options")) read_options(*recorded);

        const Json& m = index.at("model", name);
        state.shape = {(int)number(m, "layers", 1, 10000), (int)number(m, "hidden", 1, 1 << 20),
                       (int)number(m, "heads", 1, 1 << 20), (int)number(m, "sequence", 1, 1 << 24),
                       (int)number(m, "vocabulary", 2, 1 << 28), 0};
        if (state.shape.C % state.shape.NH) fail("%s: its heads do not divide its hidden size", name.c_str());

        for (auto& f : index.at("files", name).items) add_file(f, name);
        ModelShape whole = state.shape;
        whole.Vp = whole.V;
        for (auto& p : parameter_table(whole).list) tensor_ids[p.name] = p.global_id;
        if (access((folder + "/DAMAGED").c_str(), F_OK) == 0)
            fail("%s: its data were found damaged: see the file DAMAGED in it", folder.c_str());
    }

    void read_options(const Json& recorded) {
        for (auto& [option, value] : recorded.members) options[option] = value.text;
        std::istringstream names(options["given"]);
        for (std::string option; names >> option;) given.insert(option);
        std::istringstream waiting(options["postponed"]);
        for (std::string option; waiting >> option;) waiting >> postponed[option];
    }

    static void check_version(const Json& index, const std::string& name) {
        int64_t its = index.at("version", name).integer(name);
        const Json* program = index.find("program");
        if (its > version)
            throw NewerFormat(text("%s: has version %lld of the format, this program reads 1 to %d: continue "
                                   "with the program that wrote it (%s), or give another folder",
                                   name.c_str(), (long long)its, version,
                                   program ? program->text.c_str() : "newer"));
    }

    void check_name() const {
        long named = step_of(folder.substr(folder.rfind('/') + 1));
        if (named >= 0 && named != state.step)
            fail("%s/index.json: is of step %ld, its folder's name says %ld: was it renamed? restore its "
                 "name", folder.c_str(), state.step, named);
    }

    static uint64_t parse_sum(const Json& object, const std::string& name, const char* key = "checksum") {
        return strtoull(object.at(key, name).string(name).c_str(), nullptr, 16);
    }

    static std::vector<long> numbers(const Json& array, const std::string& name) {
        std::vector<long> out;
        for (auto& item : array.items) out.push_back(item.integer(name));
        return out;
    }

    void add_file(const Json& f, const std::string& index_name) {
        auto inside = [&](const char* key) {
            const std::string& file = f.at(key, index_name).string(index_name);
            if (file.find('/') != file.npos)
                fail("%s: names %s, outside its folder", index_name.c_str(), file.c_str());
            return folder + "/" + file;
        };
        const Json* tensors = f.find("tensors");
        files.push_back({inside("table"), inside("data"), parse_sum(f, index_name),
                         (size_t)f.at("bytes", index_name).integer(index_name),
                         tensors ? tensors->string(index_name) : ""});
    }

    // whether a file with tensors `ranges` has values of tensor `id`
    static bool lists(const std::string& ranges, int id) {
        if (ranges.empty() || ranges == "none") return ranges.empty();
        for (const char* at = ranges.c_str(); *at;) {
            char* end;
            long first = strtol(at, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
            if (id >= first && id <= last) return true;
            if (*end != ',') return false;
            at = end + 1;
        }
        return false;
    }

    // Reads the tables of files that have values of a tensor until enough(), beginning with the one that this
    // rank's number wrote: in an unchanged layout it has all that the rank reads, and of the others (as many
    // as there are replicas, at every rank) none is opened. Another layout needs them all
    template <class Enough>
    void open_tables(const std::string& tensor, Enough enough) const {
        auto known = tensor_ids.find(tensor);
        for (size_t i = 0; i < files.size() && !enough(); i++) {
            RankFile& f = files[((size_t)rank + i) % files.size()];
            if (f.is_open || (known != tensor_ids.end() && !lists(f.tensors, known->second))) continue;
            read_table(f);
        }
    }

    void read_table(RankFile& f) const {
        const std::string& name = f.table;
        WholeFile file(name);
        if (checksum(file.data, file.size) != f.table_sum)
            throw Damaged(text("%s: damaged: its checksum differs", name.c_str()));

        std::error_code missing;
        size_t bytes = std::filesystem::file_size(f.data, missing);
        if (missing) fail("%s: cannot be read: %s", f.data.c_str(), missing.message().c_str());
        if (bytes != f.bytes)
            throw Damaged(text("%s: truncated or damaged: has %zu bytes, expected %zu", f.data.c_str(), bytes,
                               f.bytes));

        Json table = Json::parse(file.view(), name);
        for (auto& p : table.at("pieces", name).items) {
            const std::string& type = p.at("dtype", name).string(name);
            if (type != "float32" && type != "float64") fail("%s: has dtype %s", name.c_str(), type.c_str());
            const Json* first = p.find("first");
            Piece piece = {numbers(p.at("shape", name), name), numbers(p.at("start", name), name),
                           numbers(p.at("count", name), name), f.data,
                           (size_t)p.at("offset", name).integer(name),
                           (size_t)p.at("bytes", name).integer(name), parse_sum(p, name), type == "float64",
                           first ? first->integer(name) : 0};
            pieces[p.at("kind", name).string(name) + " " + p.at("tensor", name).string(name)].push_back(
                piece);
        }
        f.is_open = true;
    }

    // false: an imported model, whose optimizer starts anew
    bool has_moments() const {
        try {
            return has("m wte.weight", "wte.weight");
        } catch (const Error&) {
            return true;  // damage is named where values are read
        }
    }

    bool has(const Parameter& p, int kind) const { return has(shard_kinds[kind] + (" " + p.name), p.name); }
    bool has(const std::string& key, const std::string& tensor) const {
        auto is_there = [&] { return !pieces[key].empty(); };
        open_tables(tensor, is_there);
        return is_there();
    }

    // reads this rank's whole shard of a tensor
    void read(std::vector<real>& out, const Parameter& p, int kind) const {
        out.resize(p.stored());
        read(out.data(), p, kind, 0, p.stored());
    }

    // Reads values [first, last) of this rank's shard of a tensor from whichever pieces hold them. A piece is
    // read, and its checksum verified, only if it holds a requested value.
    void read(real* out, const Parameter& p, int kind, long first, long last) const {
        if (first == last) return;  // a shard of padding alone
        const std::vector<Piece>& all = pieces[shard_kinds[kind] + (" " + p.name)];
        long here = 0;  // values of this shard in the pieces of this very shard
        size_t counted = 0;
        open_tables(p.name, [&] {
            for (; counted < all.size(); counted++)
                if (const Piece& piece = all[counted]; piece.start == p.start && piece.count == p.count) {
                    check_piece(p, piece);
                    for_each_common_run(p, piece, first, last, [&](long, long, long n) { here += n; });
                }
            return here >= last - first;
        });
        if (all.empty())
            fail("%s: has no tensor %s (%s)", folder.c_str(), p.name.c_str(), shard_kinds[kind]);

        long filled = 0;
        for (size_t i = 0; i < all.size(); i++) {
            check_piece(p, all[i]);
            for (size_t j = 0; j < i; j++)
                if (overlap(all[i], all[j]))
                    fail("%s: tensor %s has two pieces over the same values", folder.c_str(), p.name.c_str());
        }

        for (auto& piece : all) filled += place(out, p, piece, first, last);
        if (filled != last - first)
            fail("%s: tensor %s has %ld of %ld values", folder.c_str(), p.name.c_str(), filled, last - first);
    }

    void check_piece(const Parameter& p, const Piece& piece) const {
        if (piece.shape != p.shape || piece.count.size() != p.shape.size() ||
            piece.start.size() != p.shape.size())
            fail("%s: tensor %s has shape %s, expected %s", folder.c_str(), p.name.c_str(),
                 json_numbers(piece.shape).c_str(), json_numbers(p.shape).c_str());

        long n = 1;
        for (size_t d = 0; d < p.shape.size(); d++) {
            long start = piece.start[d], count = piece.count[d];
            if (start < 0 || count < 0 || start > p.shape[d] || count > p.shape[d] - start)
                fail("%s: tensor %s has a piece outside its shape", folder.c_str(), p.name.c_str());
            n *= count;
        }

        if (piece.bytes % (piece.wide ? 8 : 4) || piece.first < 0 || piece.first > n ||
            piece.values() > n - piece.first)
            fail("%s: tensor %s has a piece of %zu bytes from value %ld of %ld on", folder.c_str(),
                 p.name.c_str(), piece.bytes, piece.first, n);
    }

    static bool overlap(const Piece& a, const Piece& b) {
        if (a.start == b.start && a.count == b.count)
            return a.first < b.first + b.values() && b.first < a.first + a.values();
        for (size_t d = 0; d < a.shape.size(); d++)
            if (a.start[d] + a.count[d] <= b.start[d] || b.start[d] + b.count[d] <= a.start[d]) return false;
        return true;
    }

    // copies values [from, from + n) of a piece; Stored: their type on disk
    template <class Stored>
    static void copy_values(real* out, const char* data, long from, long n) {
        for (long i = 0; i < n; i++) {
            Stored value;
            memcpy(&value, data + (from + i) * sizeof value, sizeof value);
            out[i] = (real)value;
        }
    }

    // copies the requested values of one piece; returns how many
    long place(real* out, const Parameter& p, const Piece& piece, long first, long last) const {
        std::vector<char> data;  // read on first use
        long copied = 0;

        for_each_common_run(p, piece, first, last, [&](long from, long to, long n) {
            if (data.empty()) read_piece(data, p.name, piece);
            if (piece.wide) copy_values<double>(out + to, data.data(), from, n);
            else copy_values<float>(out + to, data.data(), from, n);
            copied += n;
        });
        return copied;
    }

    void read_piece(std::vector<char>& data, const std::string& tensor, const Piece& piece) const {
        InputFile file(piece.file);
        data.resize(piece.bytes);
        file.read(data.data(), piece.offset, piece.bytes, tensor.c_str());
        if (checksum(data.data(), data.size()) != piece.sum)
            throw Damaged(text("%s: damaged between offsets %zu and %zu: its checksum differs",
                               piece.file.c_str(), piece.offset, piece.offset + piece.bytes));
    }

    // contiguous runs that a piece shares with values [first, last) of this rank's shard:
    // visit(index in the piece, index relative to `first`, length)
    template <class Visit>
    static void for_each_common_run(const Parameter& p, const Piece& piece, long first, long last,
                                    Visit visit) {
        size_t dims = p.shape.size();

        if (piece.start == p.start && piece.count == p.count) {  // the same shard as was written
            long begin = std::max(first, piece.first), end = std::min(last, piece.first + piece.values());
            if (begin < end) visit(begin - piece.first, begin - first, end - begin);
            return;
        }

        // another layout: walks over the piece row by row
        long row = piece.count.back(), end = piece.first + piece.values();
        if (row == 0) return;

        std::vector<long> index(dims);
        for (long at = piece.first; at < end;) {

            // a run of values within one row; index: the row's position relative to this rank's shard
            long rest = at / row, column = at % row, n = std::min(row - column, end - at), local = 0;
            bool inside = true;
            for (int d = (int)dims - 2; d >= 0; d--) {
                index[d] = piece.start[d] + rest % piece.count[d] - p.start[d];
                rest /= piece.count[d];
                inside &= index[d] >= 0 && index[d] < p.count[d];
            }

            long left = piece.start.back() + column - p.start.back(), right = left + n;
            long from = at - piece.first;
            at += n;
            if (!inside) continue;
            from += std::max(0L, -left);
            left = std::max(0L, left);
            right = std::min(right, p.count.back());

            // the same run's place in the shard, cut to [first, last)
            for (size_t d = 0; d + 1 < dims; d++) local = local * p.count[d] + index[d];
            long begin = local * p.count.back() + left, stop = local * p.count.back() + right;
            from += std::max(0L, first - begin);
            begin = std::max(begin, first);
            stop = std::min(stop, last);
            if (begin < stop) visit(from, begin - first, stop - begin);
        }
    }

    // reads all values of one rank's file, to verify their checksums
    void verify_file(size_t number) const {
        read_table(files[number]);
        std::vector<char> data;
        for (auto& [name, all] : pieces)
            for (auto& piece : all)
                if (piece.file == files[number].data) read_piece(data, name, piece);
    }
};

// checks the index and the tables; data are verified after writing and while loading
inline bool is_complete(const std::string& folder) {
    try {
        Checkpoint c(folder);
        for (auto& f : c.files) c.read_table(f);
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

// advice on what to give instead of a folder that holds no checkpoints
inline std::string folder_with_checkpoints(const std::string& dir) {
    std::error_code ignored;
    for (auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
        std::string name = entry.path().filename();
        if (name.starts_with("step-") && name.ends_with(".replaced"))  // swap_folders() has moved it aside
            return name + " is the one that an interrupted save was to replace: rename it to " +
                   name.substr(0, name.rfind('.'));
        if (!list_checkpoints(entry.path()).empty()) return "did you mean " + entry.path().string() + "?";
    }
    return "nothing has been saved there yet, or choose a folder that --save wrote";
}

// The checkpoints in dir whose index can be read, newest first, or dir itself if it is one; reports those it
// skips. before: only checkpoints of earlier steps; 0: all. option: the one that named dir
inline std::vector<Checkpoint> find_checkpoints(const std::string& dir, long before = 0,
                                                const char* option = "resume") {
    std::vector<Checkpoint> out;
    auto consider = [&](const std::string& folder) {
        try {
            out.emplace_back(folder);
        } catch (const NewerFormat&) {
            throw;
        } catch (const Error& e) {
            if (comm::world_rank() == 0) fprintf(stderr, "passed over: %s\n", e.what());
        }
    };

    if (access(dir.c_str(), F_OK) != 0) {
        std::string parent = std::filesystem::path(dir).parent_path().string(), there;
        for (auto& name : list_checkpoints(parent)) there += (there.empty() ? "" : ", ") + name;
        if (!there.empty())
            fail("--%s %s: does not exist: %s has %s; older ones are removed (--keep)", option, dir.c_str(),
                 parent.c_str(), there.c_str());
        fail("--%s %s: does not exist: choose a folder that --save wrote", option, dir.c_str());
    }
    if (access((dir + "/index.json").c_str(), F_OK) == 0) consider(dir);
    else
        for (auto& name : list_checkpoints(dir))
            if (!before || step_of(name) < before) consider(dir + "/" + name);

    if (before && out.empty() && !list_checkpoints(dir).empty())
        fail("--resume %s: holds no readable checkpoint of a step before %ld: its earliest is %s",
             dir.c_str(), before, list_checkpoints(dir).back().c_str());
    if (before && !out.empty() && out[0].state.step >= before)
        fail("--resume %s is a checkpoint of step %ld, but --resume-before %ld requires an earlier one: give "
             "the folder that holds the checkpoints", dir.c_str(), out[0].state.step, before);
    if (out.empty() && !list_checkpoints(dir).empty())
        fail("--%s %s: holds no readable checkpoint: all are damaged (each is named above): restore a copy, "
             "or start a new run", option, dir.c_str());
    if (out.empty())
        fail("--%s %s: holds no readable checkpoint: %s", option, dir.c_str(),
             folder_with_checkpoints(dir).c_str());
    return out;
}
