// settings.h   settings of ./corpus: the one table of its options, and the sets of files
//   An option is --NAME VALUE on the command line, or a line `NAME VALUE` in a configuration; --help prints
//   the table. A set is a name and files; an output keeps its input's name, in the set's folder. Sets are
//   given as SET=PATTERN (or PATTERN alone), in a configuration as
//     set NAME warc|jsonl PATTERN [weight W]
//   with the shell's * and ? in patterns. A set with several patterns is given once for each.
#pragma once
#include <glob.h>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>
#include "../../layers/base/arguments.h"
#include "documents.h"

struct CorpusOption : OptionForm {
    const char* steps;  // that take it
};

inline const std::vector<CorpusOption> corpus_options = {
    {{"output", OptionForm::Text, "output folder", ""},
     "extract clean score filter dedup decontaminate tokens"},
    {{"longest", OptionForm::Whole,
      "maximum bytes of a document's line; longer ones are counted and skipped", "268435456", 1, 4e9},
     "clean train score filter dedup decontaminate tokens minhash encode count-hits"},
    {{"unreadable", OptionForm::Number,
      "share of a set's lines that may be unreadable before a step ends with an error", "0.1", 0, 1},
     "clean score filter dedup decontaminate tokens"},
    {{"longest-page", OptionForm::Whole, "maximum bytes of a decoded page or its record; skips longer ones",
      "16777216", 1, 1e9}, "extract"},
    {{"compress", OptionForm::Text, "compression of the documents written: zst, gz or none", "zst"},
     "extract clean score filter dedup decontaminate"},
    {{"memory", OptionForm::Number, "bytes that a rank may use for sorting; the rest spills to files", "2e9",
      1e6, 1e15}, "dedup tokens"},
    {{"progress", OptionForm::Number, "seconds between progress lines", "10", 0, 1e9}, "all"},
    {{"seed", OptionForm::Whole, "seed of all random choices, each keyed by the document", "1234", 0, 9e15},
     "train filter tokens"},
    {{"language", OptionForm::Text, "CLD2 code of the language to keep, or any", "en"}, "extract clean"},
    {{"share", OptionForm::Number, "minimum share of a page that is in that language", "0.5", 0, 1},
     "extract"},
    {{"stopwords", OptionForm::Text, "file with one word per line [built in: English]", ""}, "extract"},
    {{"short-foreign", OptionForm::Whole,
      "drop documents in another language with fewer characters than this", "512", 0, 1e9}, "clean"},
    {{"short-javascript", OptionForm::Whole,
      "drop documents that mention javascript with fewer characters than this", "256", 0, 1e9}, "clean"},
    {{"shortest", OptionForm::Whole, "drop all documents with fewer characters than this", "0", 0, 1e9},
     "clean"},
    {{"positives", OptionForm::Text, "good documents: files or set names, separated by commas", ""}, "train"},
    {{"negatives", OptionForm::Text, "the other documents, likewise [the sets given]", ""}, "train"},
    {{"model", OptionForm::Text, "classifier file", ""}, "train score"},
    {{"epochs", OptionForm::Whole, "training epochs of the classifier", "5", 1, 1000}, "train"},
    {{"learning-rate", OptionForm::Number, "the classifier's learning rate", "0.1", 0, 10}, "train"},
    {{"dimensions", OptionForm::Whole, "size of its word vectors", "100", 1, 10000}, "train"},
    {{"buckets", OptionForm::Whole, "hash buckets for word bigrams; 4 * dimensions bytes each", "2000000", 1,
      1e9}, "train"},
    {{"held-out", OptionForm::Number, "share of the documents held out to measure accuracy", "0.1", 0, 0.9},
     "train"},
    {{"pareto", OptionForm::Number, "alpha: a document is kept with probability (2 - score)^-alpha", "3",
      0.01, 1000}, "filter"},
    {{"bands", OptionForm::Whole, "LSH bands: two documents are compared if any of their bands are equal",
      "20", 1, 1000}, "minhash dedup"},
    {{"rows", OptionForm::Whole, "min-hashes per band", "13", 1, 1000}, "minhash dedup"},
    {{"shingle", OptionForm::Whole, "shingle length in characters", "24", 1, 10000}, "minhash dedup"},
    {{"fast", OptionForm::Text, "yes: one-permutation hashing for all min-hashes", "no"}, "minhash dedup"},
    {{"jaccard", OptionForm::Number,
      "estimated similarity above which compared documents are near-duplicates", "0.8", 0, 1}, "dedup"},
    {{"priority", OptionForm::Text, "sets to keep first, in order, separated by commas [built-in order]", ""},
     "dedup"},
    {{"pairs", OptionForm::Text, "file for the matched pairs, with their estimated Jaccard similarity", ""},
     "dedup"},
    {{"against", OptionForm::Text, "TASK=FOLDER, or .eval files, separated by commas", ""}, "decontaminate"},
    {{"common", OptionForm::Whole, "keys with this many hits or more are common language, and not cut out",
      "10", 1, 1e15}, "decontaminate"},
    {{"margin", OptionForm::Whole, "characters removed on each side of a hit", "200", 0, 1e9},
     "decontaminate"},
    {{"shortest-piece", OptionForm::Whole, "drop pieces with no more characters than this", "200", 0, 1e9},
     "decontaminate"},
    {{"most-pieces", OptionForm::Whole, "drop documents cut into more pieces than this", "10", 1, 1e9},
     "decontaminate"},
    {{"vocabulary", OptionForm::Text, "bytes, or PATH/vocab.bpe", "bytes"}, "decontaminate tokens encode"},
    {{"validation", OptionForm::Number, "share of each set's documents held out for validation", "0", 0,
      0.99}, "tokens"},
};

// for --help: without the steps that are part of others
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
        return found == values.end() ? find_form(corpus_options, name).value : found->second;
    }

    std::string need(const char* name, const char* wants) const {
        if (get(name).empty()) fail("missing --%s %s (--help explains)", name, wants);
        return get(name);
    }

    // checked when it was given
    double number(const char* name) const { return strtod(get(name).c_str(), nullptr); }
    size_t whole(const char* name) const { return (size_t)number(name); }
    bool yes(const char* name) const { return choice(name, {"yes", "no"}) == "yes"; }
    std::string documents_ending() const {
        std::string packing = choice("compress", {"zst", "gz", "none"});
        return packing == "none" ? ".jsonl" : ".jsonl." + packing;
    }

    std::string choice(const char* name, const std::vector<std::string>& known) const {
        std::string value = get(name), all;
        for (auto& k : known) all += (all.empty() ? "" : " or ") + k;
        if (std::find(known.begin(), known.end(), value) == known.end())
            fail("--%s %s: expected %s", name, value.c_str(), all.c_str());
        return value;
    }

    void take(const std::vector<GivenOption<CorpusOption>>& all) {
        for (auto& given : all) values[given.form->name] = given.values[0];
    }

    // of everything that shapes a step's result: a finished step with another value is done again
    uint64_t fingerprint(const std::string& step) const {
        static const std::set<std::string> others = {"output", "unreadable", "compress", "memory", "progress",
                                                     "pairs"};
        std::string all = "2 " + step;
        for (auto& o : corpus_options)
            if (!others.count(o.name) && takes(o, step)) all += "\n" + get(o.name);
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
                fail("set %s: expected a name of letters, digits, - and _", set.c_str());
        for (const char* ours :
             {"minhash", "hits", "encoded", "removed"})  // stand beside the folders of sets
            if (set == ours) fail("set %s: this name is reserved: choose another", ours);
        if (set.empty()) fail("%s: expected a name for its set", pattern.c_str());

        int at = find(set);
        if (at < 0) {
            at = (int)sets.size();
            sets.push_back({set, warc, weight});
        }
        if (sets[at].warc != warc) fail("set %s: has WARC and JSONL files: split it into two", set.c_str());
        if (weight > 0) sets[at].weight = weight;

        if (pattern.size() > 4096) fail("%.60s…: expected a path of at most 4096 bytes", pattern.c_str());
        glob_t found = {};
        int result = glob(pattern.c_str(), GLOB_TILDE, nullptr, &found);
        std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
        globfree(&found);
        if (result && access(pattern.c_str(), F_OK) == 0) paths = {pattern};  // a name with brackets
        else if (result) fail("%s: there is no such file", pattern.c_str());

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
                fail("%s and %s: have the same name in one set: rename one of them",
                     files[i - 1].path.c_str(), files[i].path.c_str());
    }
};

// a configuration: a line `set …` or `NAME VALUE`; paths are as given, from where the program was started.
// Options that were given on the command line stay as they are.
inline void read_corpus_config(const std::string& path, Settings& settings, Corpus& corpus) {
    std::set<std::string> named;
    for (auto& [name, value] : settings.values) named.insert(name);
    settings.take(read_option_file(path, corpus_options, named, [&](auto& words, const std::string& where) {
        if (words[0] != "set") {
            if (words.size() != 2)
                fail("%sexpected NAME VALUE, or set NAME warc|jsonl PATTERN", where.c_str());
            return false;
        }

        bool weighted = words.size() == 6 && words[4] == "weight";
        if ((words.size() != 4 && !weighted) || (words[2] != "warc" && words[2] != "jsonl"))
            fail("%sexpected set NAME warc|jsonl PATTERN [weight W]", where.c_str());
        double weight = weighted ? parse_number("weight", words[5], 0, false) : 0;
        if (weighted && weight == 0)
            fail("%sweight %s: expected one above 0", where.c_str(), words[5].c_str());
        corpus.add(words[1], words[2] == "warc", weight, words[3]);
        return true;
    }));

    if (corpus.files.empty())
        fail("%s: names no set: expected a line set NAME warc|jsonl PATTERN", path.c_str());
    corpus.finish();
}
