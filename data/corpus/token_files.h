// token_files.h   documents -> token files for training, shuffled by documents, and the blend of all sets
//   1  each file: documents to tokens, kept in FOLDER/encoded with an index    (any rank)
//   2  each set: its documents, in the order of random numbers keyed by the documents, each followed by an
//      end-of-text token, to SET.bin; with --validation to SET.train.bin and SET.validation.bin
//   3  train.blend: a line `WEIGHT FILE` for each set, for train_gpt --train. A set without a weight has the
//      share of its tokens; weights must be given for all sets or for none
//   The index of a set's documents (24 bytes each) is sorted in --memory, or through files.
#pragma once
#include <deque>
#include "../../layers/base/random.h"
#include "../tokenizer.h"
#include "../formats/token_writer.h"
#include "sorting.h"

// "GPTDOCS1", uint64 documents, uint64 tokens; tokens of 4 bytes; then (key, first token, how many) of each
struct DocumentTokens {
    MappedFile file;
    uint64_t documents, tokens;
    struct Entry { uint64_t key, first, count; };

    explicit DocumentTokens(const std::string& path) : file(path) {
        documents = file.read<uint64_t>(8, "documents");
        tokens = file.read<uint64_t>(16, "tokens");
        bool fits = documents <= file.size && tokens <= file.size &&
            padded(tokens) + documents * sizeof(Entry) + 24 == file.size;
        if (memcmp(file.data, "GPTDOCS1", 8) || !fits)
            fail("%s: is not a corpus token file, or damaged: remove it and start again", path.c_str());
    }

    static uint64_t padded(uint64_t tokens) { return (tokens + 1) / 2 * 8; }
    const uint32_t* at(uint64_t token) const { return (const uint32_t*)(file.data + 24) + token; }
    Entry entry(uint64_t i) const {
        Entry e;
        memcpy(&e, file.data + 24 + padded(tokens) + i * sizeof e, sizeof e);
        if (e.first > tokens || e.count > tokens - e.first)
            fail("%s: damaged: remove it and start again", file.path.c_str());
        return e;
    }
};

inline Corpus encode_files(const Ranks& ranks, const Settings& settings, const Corpus& in,
                           const std::string& folder, const Vocabulary& v) {
    Stage stage(ranks, settings, "encode", folder + "/encoded", ".tokens",
                XXH3_64bits(v.source.data(), v.source.size()));
    Encoder encoder(v);
    return stage.each_file(in, every_file, [&](const CorpusFile& f, const std::string& to, Counts& counts) {
        DocumentReader reader(f.path, settings.whole("longest"), counts);
        FileWriter writer(to);

        uint64_t header[3] = {0, 0, 0};
        memcpy(header, "GPTDOCS1", 8);
        writer.write(header, sizeof header);

        std::vector<DocumentTokens::Entry> index;
        std::vector<uint32_t> tokens;
        for (Document d; reader.next(d);) {
            if (tokens.size() < d.text.size() + 4) tokens.resize(d.text.size() + 4);
            uint64_t n = (uint64_t)(encoder.encode(tokens.data(), d.text) - tokens.data());
            index.push_back({d.key(), header[2], n});
            writer.write(tokens.data(), n * 4);
            header[1]++;
            header[2] += n;
            counts["characters"] += characters(d.text);
            stage.progress.at(stage.progress.done + (double)reader.bytes.at);
        }

        writer.write(std::string(DocumentTokens::padded(header[2]) - header[2] * 4, 0));
        writer.write(index.data(), index.size() * sizeof index[0]);
        writer.write_at(header, sizeof header, 0);
        writer.finish();

        counts["kept"] = (int64_t)header[1];
        counts["tokens"] = (int64_t)header[2];
    });
}

struct ShuffledDocument {
    uint64_t key, file, index;
};

// files that are opened when they are first read, and at most so many at once: a system maps some 65,000
class OpenTokenFiles {
    static constexpr size_t most = 16384;
    const std::vector<std::string>& paths;
    std::map<uint64_t, std::unique_ptr<DocumentTokens>> files;
    std::deque<uint64_t> opened;

public:
    explicit OpenTokenFiles(const std::vector<std::string>& paths) : paths(paths) {}
    const DocumentTokens& at(uint64_t f) {
        auto& file = files[f];
        if (file) return *file;
        file = std::make_unique<DocumentTokens>(paths[f]);
        opened.push_back(f);
        if (opened.size() > most) {
            files.erase(opened.front());
            opened.pop_front();
        }
        return *files[f];
    }
};

inline void write_set(const Settings& settings, const Corpus& encoded, size_t set, const std::string& folder,
                      const Vocabulary& v, Counts& counts) {
    std::vector<std::string> paths;
    for (auto& f : encoded.files)
        if (f.set == (int)set) paths.push_back(f.path);
    OpenTokenFiles files(paths);
    uint64_t seed = settings.whole("seed");
    double validation = settings.number("validation"), least = 1, most = 0;
    uint64_t documents = 0;
    auto place = [&](uint64_t key) { return uniform(seed, purpose("validation"), key); };
    ExternalSort<ShuffledDocument> sorter(folder, settings.number("memory"));
    for (uint64_t f = 0; f < paths.size(); f++) {
        const DocumentTokens& file = files.at(f);
        documents += file.documents;
        for (uint64_t i = 0; i < file.documents; i++) {
            Philox r = philox(seed, purpose("shuffle"), file.entry(i).key);
            least = std::min(least, place(file.entry(i).key));
            most = std::max(most, place(file.entry(i).key));
            sorter.add({(uint64_t)r.x[0] << 32 | r.x[1], f, i});
        }
    }

    // of a few documents, at least one is held out and one is not; of a single one, none
    std::string prefix = folder + "/" + encoded.sets[set].name;
    if (validation > 0 && validation <= least) validation = std::nextafter(least, 2);
    if (validation > most) validation = most;
    if (documents < 2 || least == most) validation = 0;
    if (validation == 0) unlink((prefix + ".validation.bin").c_str());

    auto open = [&](const char* ending) {
        return std::make_unique<TokenWriter>(prefix + ending, v.name(), v.size(), v.end_of_text);
    };
    bool is_split = settings.number("validation") > 0;
    std::unique_ptr<TokenWriter> train = open(is_split ? ".train.bin" : ".bin"), held;
    if (validation > 0) held = open(".validation.bin");

    auto less = [](auto& a, auto& b) { return a.file != b.file ? a.file < b.file : a.index < b.index; };
    sorter.each_group(less, [&](ShuffledDocument* p, ShuffledDocument* end) {
        for (; p < end; p++) {
            const DocumentTokens& file = files.at(p->file);
            DocumentTokens::Entry e = file.entry(p->index);
            bool aside = held && place(e.key) < validation;
            TokenWriter& out = aside ? *held : *train;
            out.add(file.at(e.first), e.count);
            out.end_document();
        }
    });

    for (auto* w : {&train, &held}) {
        if (!*w) continue;
        const char* name = w == &train ? "tokens" : "validation tokens";
        counts[name] = (int64_t)(*w)->count;
        counts[w == &train ? "documents" : "validation documents"] = (int64_t)(*w)->documents;
        (*w)->finish();
    }
    if (v.kind != "bpe") return;
    write_file(prefix + ".vocab.bpe", v.source);
}

// also refuses sets of which only some have a weight
inline Vocabulary open_vocabulary(const Settings& settings, const Corpus& in) {
    size_t weighted = 0;
    for (auto& s : in.sets) weighted += s.weight > 0;
    if (weighted && weighted != in.sets.size())
        fail("%zu of %zu sets have a weight: give one to each, or to none", weighted, in.sets.size());
    return Vocabulary::open(settings.get("vocabulary"));
}

inline void tokens(const Ranks& ranks, const Settings& settings, const Corpus& in,
                   const std::string& folder) {
    double validation = settings.number("validation");
    bool weighted = in.sets[0].weight > 0;
    Vocabulary v = ranks.all_or_fail([&] { return open_vocabulary(settings, in); });
    Corpus encoded = encode_files(ranks, settings, in, folder, v);

    Stage stage(ranks, settings, "tokens", folder, "");
    auto mark_of = [&](size_t set) {
        uint64_t h = set;
        for (auto& f : encoded.files) if (f.set == (int)set) h = h * 31 ^ Stage::identity(f.path);
        return h;
    };

    // deals sets, the largest first, to the rank with the least; finished ones have a .counts beside them
    Corpus sets;
    sets.sets = in.sets;
    for (size_t s = 0; s < in.sets.size(); s++) {
        uint64_t bytes = 0;
        for (auto& f : encoded.files) if (f.set == (int)s) bytes += f.bytes;
        sets.files.push_back({"", in.sets[s].name, (int)s, bytes});
    }

    std::string ending = validation > 0 ? ".train.bin" : ".bin";
    auto path = [&](size_t set) { return folder + "/" + in.sets[set].name + ending; };
    for (size_t s : deal(ranks, sets, every_file)) {
        uint64_t mark = mark_of(s);
        std::string held = folder + "/" + in.sets[s].name + ".validation.bin";
        bool is_here = stage.finished(path(s), mark);
        Counts had = is_here ? Stage::read_counts(path(s)) : Counts();
        bool is_split = count_of(had, "validation documents") > 0;
        if (is_here && (!is_split || access(held.c_str(), F_OK) == 0)) continue;
        Counts counts;
        write_set(settings, encoded, s, folder, v, counts);
        stage.finish(path(s), mark, counts);
    }

    ranks.wait("token files");
    if (!ranks.first()) return;

    std::map<std::string, Counts> sums;
    size_t in_blend = 0;
    std::string blend = "# sets with their sampling weights: train_gpt --train " + folder + "/train.blend\n";
    for (size_t s = 0; s < in.sets.size(); s++) {
        Counts counts = sums[in.sets[s].name] = Stage::read_counts(path(s));
        if (counts["documents"] == 0) {
            printf("tokens: set %s has no document left for training and is not in the blend\n",
                   in.sets[s].name.c_str());
            continue;
        }
        in_blend++;
        double weight = weighted ? in.sets[s].weight : (double)counts["tokens"];
        blend += text("%.10g %s\n", weight, (in.sets[s].name + ending).c_str());
    }

    stage.report(sums);
    if (!in_blend) fail("tokens: no set has a document left for training: there is no blend");
    write_file(folder + "/train.blend", blend);
}
