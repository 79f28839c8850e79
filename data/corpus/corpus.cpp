// corpus.cpp   Common Crawl and other texts -> blended tokens: ./corpus STEP, or all steps: ./corpus run FILE
//   Each step reads files and writes others; under mpirun the files are dealt to the ranks, and what is
//   written is the same bytes for any number of them.
#include "decontaminate.h"
#include "dedup.h"
#include "quality.h"
#include "report.h"
#include "token_files.h"

namespace {

struct StepForm {
    const char *name, *takes, *says;
};
constexpr StepForm forms[] = {
    {"extract", "SET=FILE.warc.gz…", "WARC -> documents (JSONL): language, main text"},
    {"clean", "SET=FILE.jsonl.zst…", "Unicode repaired, short documents dropped by rule"},
    {"quality train", "--positives … --model FILE SET=FILE…", "a classifier of good documents"},
    {"quality score", "--model FILE SET=FILE…", "its probability, into each document's meta"},
    {"quality filter", "SET=FILE…", "documents kept by chance, the better the likelier"},
    {"dedup", "SET=FILE…", "one document of each group of near-duplicates, over all sets"},
    {"decontaminate", "--against TASK=FOLDER SET=FILE…", "what stands in evaluation tasks is cut out"},
    {"tokens", "--vocabulary bytes|PATH SET=FILE…", "shuffled token files and train.blend for train_gpt"},
    {"report", "FOLDER", "of a run: what every set lost where (report.md, report.svg)"},
    {"run", "corpus.conf", "all of it, in this order; goes on where it was"},
};

std::string help() {
    std::string out = "usage: ./corpus STEP --output FOLDER [--OPTION VALUE]… SET=PATTERN…\n"
                      "       mpirun -n 8 ./corpus …     the same result, on more cores\n\n";
    for (auto& f : forms) out += text("  %-15s %-38s %s\n", f.name, f.takes, f.says);
    out += "\noptions, their steps and [defaults]:\n";
    for (auto& o : corpus_options)
        out += text("  --%-17s %-14s %s%s\n", o.name, o.steps, o.help,
                    *o.value ? text(" [%s]", o.value).c_str() : "");
    return out;
}

struct Asked {
    std::string step;  // without "quality"
    Settings settings;
    Corpus corpus;
    std::vector<std::string> words;  // that are no options
};

Asked parse(int argc, char** argv) {
    Asked asked;
    std::vector<std::string> words;
    for (int i = 1; i < argc; i++) {
        std::string word = argv[i];
        if (word == "--help") {
            fputs(help().c_str(), stdout);
            comm::finish();
            exit(0);
        }
        if (word.rfind("--", 0) != 0) {
            words.push_back(word);
            continue;
        }
        if (i + 1 == argc) fail("%s: wants a value (--help explains)", word.c_str());
        asked.settings.set(word.substr(2), argv[i + 1], "command line");
        i++;
    }
    if (words.empty()) fail("wants a step (--help lists them)");
    bool quality = words[0] == "quality";
    if (quality) words.erase(words.begin());
    asked.step = words.empty() ? "" : words[0];
    std::vector<std::string> known;
    for (auto& f : forms) {
        std::string name = f.name;
        bool of_quality = name.rfind("quality ", 0) == 0;
        known.push_back(name);
        if (quality == of_quality && asked.step == (of_quality ? name.substr(8) : name)) known.clear();
        if (known.empty()) break;
    }
    if (!known.empty())
        fail("unknown step %s%s: did you mean %s? (--help lists all)", quality ? "quality " : "",
             asked.step.c_str(), nearest((quality ? "quality " : "") + asked.step, known).c_str());
    for (auto& [name, value] : asked.settings.values)
        if (asked.step != "run" && !takes(find_corpus_option(name, ""), asked.step))
            fail("--%s: is for %s, not for %s", name.c_str(), find_corpus_option(name, "").steps,
                 asked.step.c_str());
    asked.words.assign(words.begin() + 1, words.end());
    return asked;
}

// is this file of a set that counts as good?
bool named(const Settings& s, const CorpusFile& f, const Corpus& c) {
    std::vector<std::string> good = parts_of(s.get("positives"), ',');
    return std::find(good.begin(), good.end(), c.sets[(size_t)f.set].name) != good.end();
}

// all steps; each set's files are replaced by what a step made of them
void run_all(const Ranks& ranks, const std::string& path, const Settings& given) {
    Settings s;
    Corpus c;
    read_corpus_config(path, s, c);
    for (auto& [name, value] : given.values) s.values[name] = value;
    std::string out = s.need("output", "FOLDER, or a line output FOLDER");
    std::vector<bool> crawled;
    for (auto& set : c.sets) crawled.push_back(set.warc);
    auto from_crawl = [&](const CorpusFile& f) { return crawled[(size_t)f.set]; };
    if (std::find(crawled.begin(), crawled.end(), true) != crawled.end()) {
        c = extract(ranks, s, c, out + "/extract");
        for (auto& set : c.sets) set.warc = false;
    }
    c = clean(ranks, s, c, out + "/clean");
    if (s.has("positives") || s.has("model")) {
        std::string model = s.has("model") ? s.get("model") : out + "/score/classifier.bin";
        if (!s.has("model")) {
            if (ranks.first()) std::filesystem::create_directories(out + "/score");
            Corpus crawl = c;
            if (s.get("negatives").empty())
                std::erase_if(crawl.files, [&](auto& f) { return !from_crawl(f) && !named(s, f, c); });
            train_classifier(ranks, s, crawl, model);
        }
        c = score(ranks, s, c, out + "/score", model, from_crawl);
        c = filter(ranks, s, c, out + "/filter", from_crawl);
    }
    c = dedup(ranks, s, c, out + "/dedup");
    if (s.has("against")) c = decontaminate(ranks, s, c, out + "/decontaminate");
    tokens(ranks, s, c, out + "/tokens");
    if (ranks.first()) report(out);
}

void run_step(const Ranks& ranks, Asked& asked) {
    Corpus& in = asked.corpus;
    if (asked.step == "run" || asked.step == "report") {
        if (asked.words.size() != 1)
            fail("%s wants %s", asked.step.c_str(), asked.step == "run" ? "one configuration" : "one folder");
        if (asked.step == "run") run_all(ranks, asked.words[0], asked.settings);
        else if (ranks.first()) report(asked.words[0]);
        return;
    }
    for (auto& word : asked.words) {
        size_t is = word.find('=');
        bool named = is != word.npos && word.find('/') > is;
        in.add(named ? word.substr(0, is) : "all", asked.step == "extract", 0,
               named ? word.substr(is + 1) : word);
    }
    if (in.files.empty()) fail("%s wants files: SET=PATTERN… (--help explains)", asked.step.c_str());
    in.finish();
    const Settings& s = asked.settings;
    if (asked.step == "train") return train_classifier(ranks, s, in, s.need("model", "FILE to write"));
    std::string folder = s.need("output", "FOLDER");
    if (asked.step == "extract") extract(ranks, s, in, folder);
    if (asked.step == "clean") clean(ranks, s, in, folder);
    if (asked.step == "score") score(ranks, s, in, folder, s.need("model", "FILE"), every_file);
    if (asked.step == "filter") filter(ranks, s, in, folder, every_file);
    if (asked.step == "dedup") dedup(ranks, s, in, folder);
    if (asked.step == "decontaminate") decontaminate(ranks, s, in, folder);
    if (asked.step == "tokens") tokens(ranks, s, in, folder);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        comm::timeout = 30 * 86400;  // ranks wait for the one with the longest file
        comm::start(&argc, &argv);
        Ranks ranks;
        Asked asked = parse(argc, argv);
        run_step(ranks, asked);
        comm::finish();
        return 0;
    } catch (const std::exception& e) {
        fprintf(stderr, "corpus: %s\n", e.what());
        comm::stop(1);
    }
}
