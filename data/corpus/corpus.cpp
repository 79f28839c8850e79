// corpus.cpp   Common Crawl and other texts -> blended tokens: ./corpus STEP, or all steps: ./corpus run FILE
//   Each step reads files and writes others; under mpirun the files are dealt to the ranks, and what is
//   written is the same bytes for any number of them.
#include "../../layers/base/process.h"
#include "bench.h"
#include "decontaminate.h"
#include "dedup.h"
#include "quality.h"
#include "report.h"
#include "token_files.h"

namespace {

// the parsed command line; `corpus` has the files given, or those of a run's configuration
struct Command {
    std::string step;
    Settings settings;
    Corpus corpus;
    std::vector<std::string> words;  // that are neither step nor option
    std::string output() const { return settings.get("output"); }
};

void run_all(const Ranks& ranks, Command& command);

struct StepForm {
    const char *name, *takes, *says;
    const char* needs;  // required options, separated by blanks
    void (*run)(const Ranks&, Command&);
};
using A = Command&;
const StepForm forms[] = {
    {"extract", "SET=FILE.warc.gz…", "WARC -> documents (JSONL): language, main text", "output",
     [](const Ranks& r, A a) { extract(r, a.settings, a.corpus, a.output()); }},
    {"clean", "SET=FILE.jsonl.zst…", "repair Unicode, drop short documents by rule", "output",
     [](const Ranks& r, A a) { clean(r, a.settings, a.corpus, a.output()); }},
    {"quality train", "SET=FILE…", "train a classifier of good documents", "positives model",
     [](const Ranks& r, A a) { train_classifier(r, a.settings, a.corpus, a.settings.get("model")); }},
    {"quality score", "SET=FILE…", "write the classifier's probability into meta", "model output",
     [](const Ranks& r, A a) {
         score(r, a.settings, a.corpus, a.output(), a.settings.get("model"), every_file);
     }},
    {"quality filter", "SET=FILE…", "keep documents at random, better ones more often", "output",
     [](const Ranks& r, A a) { filter(r, a.settings, a.corpus, a.output(), every_file); }},
    {"dedup", "SET=FILE…", "keep one of each group of near-duplicates, across all sets", "output",
     [](const Ranks& r, A a) { dedup(r, a.settings, a.corpus, a.output()); }},
    {"decontaminate", "SET=FILE…", "cut out text that occurs in evaluation tasks", "against output",
     [](const Ranks& r, A a) { decontaminate(r, a.settings, a.corpus, a.output()); }},
    {"tokens", "SET=FILE…", "shuffled token files and train.blend for train_gpt", "output",
     [](const Ranks& r, A a) { tokens(r, a.settings, a.corpus, a.output()); }},
    {"report", "FOLDER", "what each set lost at each step (report.md)", "",
     [](const Ranks& r, A a) { r.all_or_fail([&] { return r.first() ? (report(a.words[0]), 0) : 0; }); }},
    {"run", "corpus.conf", "all of these, in this order; resumes where it stopped", "", run_all},
    {"bench", "[FILE.warc.gz]", "speed of each step's inner loop on this core", "",
     [](const Ranks&, A a) { bench(a.words.empty() ? "" : a.words[0]); }},
};
// the name that corpus_options uses
std::string bare_step(const StepForm& f) {
    std::string name = f.name;
    return name.substr(name.rfind(' ') + 1);
}

std::string help() {
    std::string out = "usage: ./corpus STEP [--OPTION VALUE]… SET=PATTERN…\n"
                      "       mpirun -n 8 ./corpus …     the same result, on more cores\n\n";
    for (auto& f : forms) {
        std::string takes;
        for (auto& option : parts_of(f.needs, ' ')) takes += "--" + option + " … ";
        takes += f.takes;
        // %-42s counts bytes, and an … has three
        long more = std::count_if(takes.begin(), takes.end(), [](char c) { return (c & 0xc0) == 0x80; });
        out += text("  %-15s %-*s %s\n", f.name, 42 + (int)more, takes.c_str(), f.says);
    }
    out += "\noptions, their steps and [defaults]:\n";
    for (auto& o : corpus_options)
        out += text("  --%-17s %-14s %s%s\n", o.name,
                    steps_of(o).size() > 24 ? "most" : steps_of(o).c_str(), o.help,
                    *o.value ? text(" [%s]", o.value).c_str() : "");
    return out;
}

const StepForm& find_form(std::vector<std::string>& words) {
    if (words.empty()) fail("expected a step (--help lists them)");
    std::vector<std::string> known;
    for (auto& f : forms) {
        std::vector<std::string> name = parts_of(f.name, ' ');
        known.push_back(f.name);
        if (words.size() < name.size() || !std::equal(name.begin(), name.end(), words.begin())) continue;
        words.erase(words.begin(), words.begin() + (long)name.size());
        return f;
    }
    std::string asked = words[0] + (words[0] == "quality" && words.size() > 1 ? " " + words[1] : "");
    fail("unknown step %s: did you mean %s? (--help lists all)", asked.c_str(),
         nearest(asked, known).c_str());
}

// refuses at once what would otherwise fail hours later
void check_run(Command& command) {
    const Settings& s = command.settings;
    s.need("output", "FOLDER, or a line output FOLDER");
    StopWords stop(s.get("stopwords"));
    MinHash hasher(s);
    check_priority(s, command.corpus);
    open_vocabulary(s, command.corpus);
    if (s.has("against")) read_keys(s);
    if (s.has("model")) Classifier classifier(s.get("model"));
    files_of(s.get("positives"), command.corpus);
    files_of(s.get("negatives"), command.corpus);
    std::filesystem::path pairs = s.get("pairs");
    if (!pairs.empty() && !pairs.parent_path().empty() && !std::filesystem::is_directory(pairs.parent_path()))
        fail("--pairs %s: there is no such folder: create it", pairs.c_str());
}

// beside the files in --output
void refuse_overwriting_inputs(const Command& command) {
    const Settings& s = command.settings;
    bool trains = command.step == "train";
    std::vector<std::string> inputs, outputs = {s.get("pairs"), trains ? s.get("model") : ""};
    for (auto& f : command.corpus.files) inputs.push_back(f.path);
    for (const char* list : {"positives", "negatives"})
        for (auto& path : files_of(s.get(list), command.corpus)) inputs.push_back(path);
    refuse_overwriting(outputs, inputs);
}

const StepForm& parse(int argc, char** argv, Command& command) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") && strcmp(argv[i], "-h")) continue;
        if (comm::world_rank() == 0) {
            fputs(help().c_str(), stdout);
            check_standard_output();
        }
        comm::finish();
        exit(0);
    }

    command.settings.take(parse_command_line(argc, argv, corpus_options, &command.words));
    const StepForm& form = find_form(command.words);
    command.step = bare_step(form);
    bool runs = command.step == "run";
    bool files = !runs && command.step != "report" && command.step != "bench";

    for (auto& [name, value] : command.settings.values)
        if (const CorpusOption& o = find_form(corpus_options, name); !runs && !takes(o, command.step))
            fail("--%s: is for %s, not for %s", o.name, steps_of(o).c_str(), form.name);

    if ((runs || command.step == "report") && command.words.size() != 1)
        fail("%s: expected one %s", form.name, form.takes);
    if (runs) {
        read_corpus_config(command.words[0], command.settings, command.corpus);
        check_run(command);
    }

    for (auto& option : parts_of(form.needs, ' '))
        command.settings.need(option.c_str(), "VALUE");

    for (size_t i = 0; files && i < command.words.size(); i++) {
        const std::string& word = command.words[i];
        size_t is = word.find('=');
        bool named = is != word.npos && word.find('/') > is;
        command.corpus.add(named ? word.substr(0, is) : "all", command.step == "extract", 0,
                         named ? word.substr(is + 1) : word);
    }

    if (files && command.corpus.files.empty())
        fail("%s: missing files SET=PATTERN… (--help explains)", form.name);
    command.corpus.finish();
    refuse_overwriting_inputs(command);
    return form;
}

// what must be the same on all ranks
std::vector<comm::RankHash> facts(const Command& command) {
    std::string settings = command.step, files;
    for (auto& [name, value] : command.settings.values) settings += "\n" + name + " " + value;
    for (auto& word : command.words) settings += "\n" + word;
    for (auto& f : command.corpus.files)
        files += text("%s %llu\n", f.path.c_str(), (unsigned long long)f.bytes);
    return {{"the settings", checksum(settings.data(), settings.size()), "give all ranks the same"},
            {"the list of files", checksum(files.data(), files.size()),
             "use a file system that all nodes share"}};
}

// all steps; each set's files are replaced by what a step made of them
void run_all(const Ranks& ranks, Command& command) {
    const Settings& s = command.settings;
    Corpus c = command.corpus;
    std::string out = command.output();

    std::vector<bool> crawled;
    for (auto& set : c.sets) crawled.push_back(set.warc);
    auto from_crawl = [&](const CorpusFile& f) { return crawled[(size_t)f.set]; };
    bool any_crawl = std::count(crawled.begin(), crawled.end(), true) > 0;

    if (any_crawl) {
        c = extract(ranks, s, c, out + "/extract");
        for (auto& set : c.sets) set.warc = false;
    }

    c = clean(ranks, s, c, out + "/clean");
    std::string model = s.has("model") ? s.get("model") : out + "/classifier/model.bin";
    if (s.has("positives") && !s.has("model")) {
        std::vector<std::string> good = parts_of(s.get("positives"), ',');
        Corpus crawl = c;  // without --negatives, only crawled documents are negatives
        if (s.get("negatives").empty())
            std::erase_if(crawl.files, [&](auto& f) {
                return !from_crawl(f) && !std::count(good.begin(), good.end(), c.sets[(size_t)f.set].name);
            });
        if (ranks.first()) std::filesystem::create_directories(out + "/classifier");
        train_classifier(ranks, s, crawl, model);
    }

    // otherwise counts left by an earlier run with other settings would be reported as this run's
    bool cuts = s.has("against"), scores = any_crawl && (s.has("positives") || s.has("model"));
    if (ranks.first() && !any_crawl) unlink((out + "/extract/extract.json").c_str());
    if (ranks.first() && !scores) unlink((out + "/filter/filter.json").c_str());
    if (ranks.first() && !cuts) unlink((out + "/decontaminate/decontaminate.json").c_str());

    if (scores) {
        c = score(ranks, s, c, out + "/score", model, from_crawl);
        c = filter(ranks, s, c, out + "/filter", from_crawl);
    }

    c = dedup(ranks, s, c, out + "/dedup");
    if (cuts) c = decontaminate(ranks, s, c, out + "/decontaminate");
    tokens(ranks, s, c, out + "/tokens");
    if (ranks.first()) report(out);
}

}  // namespace

int main(int argc, char** argv) {
    open_standard_streams();
    try {
        comm::program = "corpus";
        comm::timeout = 30 * 86400;  // ranks wait for the one with the longest file
        comm::start(&argc, &argv);
        Ranks ranks;
        Command command;
        const StepForm* form = ranks.all_or_fail([&] { return &parse(argc, argv, command); });
        comm::check_ranks_agree(facts(command));
        form->run(ranks, command);
        comm::finish();
        return 0;
    } catch (const std::exception& e) {
        fprintf(stderr, "[rank %d] corpus: %s\n", comm::world_rank(), e.what());
        comm::abort_all(1);
    }
}
