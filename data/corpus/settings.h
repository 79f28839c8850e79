// settings.h   what ./corpus was asked: the one table of its options, and the sets of files
//   On the command line --NAME VALUE, in a configuration a line `NAME VALUE`; the same table makes the help.
//   A set is a name and files; what is written for a file keeps the file's name, in its set's folder. Sets
//   are given as SET=PATTERN (or PATTERN alone), in a configuration as
//     set NAME warc|jsonl PATTERN [weight W]
//   with the shell's * and ? in patterns. Several patterns: the same set again.
#pragma once
#include <glob.h>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>
#include "../arguments.h"
#include "documents.h"

struct CorpusOption {
    const char *name, *value;  // the default
    const char* steps;         // that take it
    bool shapes;               // the result: a finished step with another value is done again
    double least, most;        // of a number; NAN: a text
    const char* help;
};

inline const CorpusOption corpus_options[] = {
    {"output", "", "extract clean score filter dedup decontaminate tokens", false, NAN, NAN,
     "folder that everything is written to"},
    {"longest", "268435456", "clean train score filter dedup decontaminate tokens minhash encode count-hits",
     true, 1, 4e9, "bytes of a document's line; longer ones are counted and skipped"},
    {"longest-page", "16777216", "extract", true, 1, 1e9,
     "bytes of a page, decoded, or of its record; the same"},
    {"compress", "zst", "extract clean score filter dedup decontaminate", false, NAN, NAN,
     "zst, gz or none: of the documents that are written"},
    {"memory", "2e9", "dedup tokens", false, 1e6, 1e15,
     "bytes that a rank may sort in; the rest goes through files"},
    {"progress", "10", "all", false, 0, 1e9, "seconds between two lines that say how far it is"},
    {"seed", "1234", "train filter tokens", true, 0, 9e15,
     "of all random choices; each is keyed by the document"},
    {"language", "en", "extract clean", true, NAN, NAN, "CLD2's code of the language to keep, or any"},
    {"share", "0.5", "extract", true, 0, 1, "of a page that must be in that language"},
    {"stopwords", "", "extract", true, NAN, NAN, "file with a word a line [built in: English]"},
    {"short-foreign", "512", "clean", true, 0, 1e9,
     "characters: shorter documents in another language are dropped"},
    {"short-javascript", "256", "clean", true, 0, 1e9,
     "characters: shorter ones that say javascript are dropped"},
    {"shortest", "0", "clean", true, 0, 1e9, "characters: all shorter ones are dropped"},
    {"positives", "", "train", true, NAN, NAN,
     "files, or names of sets, of good documents, parted by commas"},
    {"negatives", "", "train", true, NAN, NAN, "the same for the others [the sets given]"},
    {"model", "", "train score", true, NAN, NAN, "the classifier's file"},
    {"epochs", "5", "train", true, 1, 1000, "of its training"},
    {"learning-rate", "0.1", "train", true, 0, 10, "of its training"},
    {"dimensions", "100", "train", true, 1, 10000, "of its word vectors"},
    {"buckets", "2000000", "train", true, 1, 1e9, "for word bigrams; 4 * dimensions bytes each"},
    {"held-out", "0.1", "train", true, 0, 0.9, "share of the documents that measure its accuracy"},
    {"pareto", "3", "filter", true, 0.01, 1000, "alpha: kept with probability (2 - score)^-alpha"},
    {"bands", "20", "minhash dedup", true, 1, 1000,
     "of the signature: two documents meet if one band is equal"},
    {"rows", "13", "minhash dedup", true, 1, 1000, "min-hashes in a band"},
    {"shingle", "24", "minhash dedup", true, 1, 10000, "characters, or words"},
    {"shingle-of", "characters", "minhash dedup", true, NAN, NAN, "characters or words"},
    {"fast", "no", "minhash dedup", true, NAN, NAN, "yes: one permutation of hashes for all min-hashes"},
    {"jaccard", "0.8", "dedup", true, 0, 1, "estimated: those that meet and are not more alike are left"},
    {"priority", "", "dedup", true, NAN, NAN,
     "sets, the one to keep first, parted by commas [MT-NLG's order]"},
    {"pairs", "", "dedup", false, NAN, NAN, "file for what was matched, with the estimated Jaccard"},
    {"against", "", "decontaminate", true, NAN, NAN, "TASK=FOLDER, or .eval files, parted by commas"},
    {"common", "10", "decontaminate", true, 1, 1e15, "hits from which a key counts as common language"},
    {"margin", "200", "decontaminate", true, 0, 1e9, "characters cut away on each side of a hit"},
    {"shortest-piece", "200", "decontaminate", true, 0, 1e9, "characters: pieces of no more are dropped"},
    {"most-pieces", "10", "decontaminate", true, 1, 1e9, "a document in more pieces is dropped"},
    {"vocabulary", "bytes", "decontaminate tokens encode", true, NAN, NAN, "bytes, or PATH/vocab.bpe"},
    {"validation", "0", "tokens", true, 0, 0.99, "share of each set's documents set aside"},
};

// where: of a configuration, or "" for the command line
inline const CorpusOption& find_corpus_option(const std::string& name, const std::string& where) {
    std::vector<std::string> known;
    for (auto& o : corpus_options) {
        if (name == o.name) return o;
        known.push_back(o.name);
    }
    const char* dashes = where.empty() ? "--" : "";
    fail("%s%sunknown option %s%s: did you mean %s%s? (--help lists all)", where.c_str(),
         where.empty() ? "" : ": ", dashes, name.c_str(), dashes, nearest(name, known).c_str());
}
// for a reader: without the steps that are part of others
inline std::string steps_of(const CorpusOption& o) {
    std::string out;
    std::istringstream words(o.steps);
    for (std::string word; words >> word;)
        if (word != "minhash" && word != "encode" && word != "count-hits")
            out += (out.empty() ? "" : " ") + word;
    return out;
}
inline bool takes(const CorpusOption& o, const std::string& step) {
    return !strcmp(o.steps, "all") ||
        (" " + std::string(o.steps) + " ").find(" " + step + " ") != std::string::npos;
}

inline std::vector<std::string> parts_of(const std::string& s, char separator) {
    std::vector<std::string> out;
    for (size_t at = 0; at < s.size();) {
        size_t end = std::min(s.find(separator, at), s.size());
        if (end > at) out.push_back(s.substr(at, end - at));
        at = end + 1;
    }
    return out;
}

struct Settings {
    std::map<std::string, std::string> values;

    bool has(const char* name) const { return values.count(name) && !values.at(name).empty(); }
    std::string get(const char* name) const {
        auto found = values.find(name);
        return found == values.end() ? find_corpus_option(name, "").value : found->second;
    }
    std::string need(const char* name, const char* wants) const {
        if (get(name).empty()) fail("wants --%s %s (--help explains)", name, wants);
        return get(name);
    }
    double number(const char* name) const { return checked(find_corpus_option(name, ""), get(name), false); }
    size_t whole(const char* name) const {
        return (size_t)checked(find_corpus_option(name, ""), get(name), true);
    }
    static bool is_whole(const CorpusOption& o) {  // as its default, and what steps read with whole()
        std::string name = o.name;
        for (const char* real :
             {"memory", "progress", "share", "learning-rate", "held-out", "pareto", "jaccard", "validation"})
            if (name == real) return false;
        return true;
    }
    static double checked(const CorpusOption& o, const std::string& value, bool whole) {
        double x = parse_number(o.name, value, o.least, whole);
        if (x > o.most) fail("--%s %s: wants at most %g", o.name, value.c_str(), o.most);
        return x;
    }
    bool yes(const char* name) const { return choice(name, {"yes", "no"}) == "yes"; }
    std::string documents_ending() const {
        std::string packing = choice("compress", {"zst", "gz", "none"});
        return packing == "none" ? ".jsonl" : ".jsonl." + packing;
    }
    std::string choice(const char* name, const std::vector<std::string>& known) const {
        std::string value = get(name), all;
        for (auto& k : known) all += (all.empty() ? "" : " or ") + k;
        if (std::find(known.begin(), known.end(), value) == known.end())
            fail("--%s %s: wants %s", name, value.c_str(), all.c_str());
        return value;
    }
    void set(const std::string& name, const std::string& value, const std::string& where) {
        const CorpusOption& o = find_corpus_option(name, where);
        if (!std::isnan(o.least)) checked(o, value, is_whole(o));
        values[name] = value;
    }
    // of everything that shapes a step's result
    uint64_t fingerprint(const std::string& step) const {
        std::string all = "2 " + step;
        for (auto& o : corpus_options) if (o.shapes && takes(o, step)) all += "\n" + get(o.name);
        return XXH3_64bits(all.data(), all.size());
    }
};

// ---- sets ------------------------------------------------------------------------------------------------

struct CorpusFile {
    std::string path, name;  // name: without folder and endings
    int set = 0;
    uint64_t bytes = 0;
};
struct CorpusSet {
    std::string name;
    bool warc = false;
    double weight = 0;  // 0: by its tokens
};
struct Corpus {
    std::vector<CorpusSet> sets;
    std::vector<CorpusFile> files;  // in the order of sets, then of paths

    int find(const std::string& name) const {
        for (size_t i = 0; i < sets.size(); i++) if (sets[i].name == name) return (int)i;
        return -1;
    }
    static std::string bare_name(const std::string& path) {
        std::string name = std::filesystem::path(path).filename();
        for (bool cut = true; cut;) {
            cut = false;
            for (std::string ending : {".gz", ".zst", ".jsonl", ".warc"})
                if (name.size() > ending.size() && name.ends_with(ending)) {
                name.resize(name.size() - ending.size());
                cut = true;
            }
        }
        return name;
    }
    void add(const std::string& set, bool warc, double weight, const std::string& pattern) {
        for (char c : set)
            if (!isalnum((unsigned char)c) && !strchr("-_", c))
                fail("set %s: wants a name of letters, digits, - and _", set.c_str());
        for (const char* ours :
             {"minhash", "hits", "encoded", "removed"})  // stand beside the folders of sets
            if (set == ours) fail("set %s: this name is the program's own: give another", ours);
        if (set.empty()) fail("%s: wants a name for its set", pattern.c_str());
        int at = find(set);
        if (at < 0) {
            at = (int)sets.size();
            sets.push_back({set, warc, weight});
        }
        if (sets[at].warc != warc) fail("set %s: has WARC and JSONL files: make it two sets", set.c_str());
        if (weight > 0) sets[at].weight = weight;
        if (pattern.size() > 4096) fail("%.60s…: wants a path of at most 4096 bytes", pattern.c_str());
        glob_t found = {};
        int result = glob(pattern.c_str(), GLOB_TILDE, nullptr, &found);
        std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
        globfree(&found);
        if (result) fail("%s: there is no such file", pattern.c_str());
        for (auto& path : paths) {
            if (path.ends_with(".partial") || path.ends_with(".counts")) continue;
            std::error_code e;
            uint64_t bytes = std::filesystem::file_size(path, e);
            if (e) fail("%s: cannot be read: %s", path.c_str(), e.message().c_str());
            files.push_back({path, bare_name(path), at, bytes});
        }
    }
    void finish() {
        std::stable_sort(files.begin(), files.end(), [](auto& a, auto& b) {
            return a.set != b.set ? a.set < b.set : a.name != b.name ? a.name < b.name : a.path < b.path;
        });
        for (size_t i = 1; i < files.size(); i++)
            if (files[i].set == files[i - 1].set && files[i].name == files[i - 1].name)
                fail("%s and %s: have one name in one set: give one of them another",
                     files[i - 1].path.c_str(), files[i].path.c_str());
    }
};

// a configuration: a line `set …` or `NAME VALUE`; paths are as given, from where the program was started
inline void read_corpus_config(const std::string& path, Settings& settings, Corpus& corpus) {
    MappedFile file(path);
    std::istringstream lines{std::string(file.view())};
    std::string line;
    for (int number = 1; std::getline(lines, line); number++) {
        std::string where = text("%s line %d", path.c_str(), number);
        std::istringstream words(line.substr(0, line.find('#')));
        std::vector<std::string> all;
        for (std::string word; words >> word;) all.push_back(word);
        if (all.empty()) continue;
        if (all[0] != "set") {
            if (all.size() != 2) fail("%s: wants NAME VALUE, or set NAME warc|jsonl PATTERN", where.c_str());
            if (settings.values.count(all[0])) fail("%s: %s is given twice", where.c_str(), all[0].c_str());
            settings.set(all[0], all[1], where);
            continue;
        }
        bool weighted = all.size() == 6 && all[4] == "weight";
        if ((all.size() != 4 && !weighted) || (all[2] != "warc" && all[2] != "jsonl"))
            fail("%s: wants set NAME warc|jsonl PATTERN [weight W]", where.c_str());
        double weight = weighted ? parse_number("weight", all[5], 0, false) : 0;
        corpus.add(all[1], all[2] == "warc", weight, all[3]);
    }
    if (corpus.files.empty())
        fail("%s: names no set: wants a line set NAME warc|jsonl PATTERN", path.c_str());
    corpus.finish();
}
