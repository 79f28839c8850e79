// quality.h   which documents are good: cleaning by rules, a fastText classifier, and the Pareto rule
//   clean    Unicode is repaired (unicode_repair.h); short documents are dropped (the rules of --short-…)
//   train    fastText, word bigrams: positives against as many negatives; a part is held out and measured
//   score    the probability of "positive", as meta's "quality"
//   filter   kept where pareto(alpha) > 1 - p, that is with probability (2 - p)^-alpha
//   Random numbers are keyed by a document's id and text, never by its position.
#pragma once
#include <fasttext/fasttext.h>
#include <array>
#include "../../layers/base/random.h"
#include "../tasks/python_text.h"
#include "extract.h"
#include "unicode_repair.h"

struct CleaningRules {  // lengths in characters
    int64_t foreign, script, shortest;
    std::string language;
    explicit CleaningRules(const Settings& s)
        : foreign((int64_t)s.whole("short-foreign")), script((int64_t)s.whole("short-javascript")),
          shortest((int64_t)s.whole("shortest")), language(s.get("language")) {}

    // repairs the text; returns nullptr, or why it is dropped
    const char* clean(std::string& s, Counts& counts) const {
        counts["Unicode repaired"] += repair_unicode(s);
        int64_t n = characters(s);
        if (n == 0) return "empty";
        if (n < shortest) return "shorter than --shortest";
        if (n < script && lower(s).find("javascript") != s.npos) return "short and about javascript";
        if (n < foreign && language != "any" && detect_language(s, false).code != language)
            return "short and in another language";
        return nullptr;
    }
};

inline Corpus clean(const Ranks& ranks, const Settings& settings, const Corpus& in,
                    const std::string& folder) {
    Stage stage(ranks, settings, "clean", folder, settings.documents_ending());
    CleaningRules rules(settings);
    return stage.each_document(in, every_file,
                               [&](Document& d, Counts& counts) { return rules.clean(d.text, counts); });
}

// ---- the classifier --------------------------------------------------------------------------------------

// the first MiB of a text, lower-cased, as one line that fastText splits into words at blanks
inline std::string classifier_line(const std::string& s) {
    std::string out(s, 0, std::min(s.size(), (size_t)1 << 20));
    for (char& c : out) c = (unsigned char)c <= ' ' ? ' ' : c;
    make_lower(out);
    // what fastText would take for a label, or for the end
    return replace_all(replace_all(out, "__label__", "_ label _"), "</s>", "< s >");
}

struct Classifier {
    fasttext::FastText model;
    std::vector<int32_t> words, labels;
    int32_t positive = -1;
    uint64_t hash;  // of the file

    // fastText may read a damaged file forever, so the file's hash is checked first
    explicit Classifier(const std::string& path) : hash(Stage::whole_hash(path)) {
        if (access((path + ".about.json").c_str(), F_OK) != 0)
            fail(
                "%s: was not made by ./corpus quality train: %s.about.json is missing; make one with it",
                path.c_str(), path.c_str());

        WholeFile about(path + ".about.json");
        Json said = Json::parse(about.view(), about.path);
        if (said.at("hash", about.path).string(about.path) != Stage::hex(hash))
            fail("%s: is not the classifier that %s describes: damaged; make it with ./corpus quality train",
                 path.c_str(), about.path.c_str());

        try {
            model.loadModel(path);
        } catch (const std::exception& e) {
            fail("%s: is not a classifier: %s; make one with ./corpus quality train", path.c_str(), e.what());
        }

        for (int32_t i = 0; i < model.getDictionary()->nlabels(); i++)
            if (model.getDictionary()->getLabel(i) == "__label__positive") positive = i;
        if (positive < 0)
            fail("%s: has no label positive: make it with ./corpus quality train", path.c_str());
    }

    double score(const std::string& text) {
        std::istringstream line(classifier_line(text) + "\n");
        model.getDictionary()->getLine(line, words, labels);
        fasttext::Predictions found;
        if (words.empty()) return 0.5;
        model.predict(model.getDictionary()->nlabels(), words, found);
        for (auto& [log_p, label] : found)
            if (label == positive) return std::min(1.0, std::exp((double)log_p));
        return 0;
    }
};

// the files that a list of paths and set names means
inline std::vector<std::string> files_of(const std::string& list, const Corpus& in) {
    std::vector<std::string> out;
    for (auto& part : parts_of(list, ',')) {
        int set = in.find(part);
        if (set >= 0) {
            for (auto& f : in.files) if (f.set == set) out.push_back(f.path);
            continue;
        }
        Corpus found;
        found.add("files", false, 0, part);
        found.finish();
        for (auto& f : found.files) out.push_back(f.path);
    }
    return out;
}

struct TrainingSet {
    std::vector<std::string> files;
    const char* label;
    int64_t documents = 0;
    double taken = 1;  // share of them

    template <class Each>
    void each(const Settings& settings, Each one) const {
        for (auto& path : files) {
            Counts counts;
            DocumentReader reader(path, settings.whole("longest"), counts);
            for (Document d; reader.next(d);) if (d.text.find_first_not_of(" \n\t\r") != d.text.npos) one(d);
        }
    }
};

// fastText's lines of two files in one: classes alternate, so that none is learned last
inline void alternate_lines(const std::string& path, const std::string from[2]) {
    FileWriter out(path);
    MappedFile files[2] = {MappedFile(from[0]), MappedFile(from[1])};
    size_t at[2] = {0, 0};
    while (at[0] < files[0].size || at[1] < files[1].size) {
        int i = (double)at[0] * (double)files[1].size <= (double)at[1] * (double)files[0].size ? 0 : 1;
        if (at[i] >= files[i].size) i = 1 - i;
        size_t end = files[i].view().find('\n', at[i]) + 1;
        out.write(files[i].view().substr(at[i], end - at[i]));
        at[i] = end;
    }
    out.finish();
}

// on one thread: the same model each time
inline void train_on(const std::string& lines, const Settings& settings, const std::string& path) {
    fasttext::Args a;
    a.input = lines;
    a.output = path;
    a.model = fasttext::model_name::sup;
    a.loss = fasttext::loss_name::softmax;
    a.lr = settings.number("learning-rate");
    a.dim = (int)settings.whole("dimensions");
    a.epoch = (int)settings.whole("epochs");
    a.wordNgrams = 2;
    a.minCount = 1;
    a.minn = a.maxn = 0;
    a.bucket = (int)settings.whole("buckets");
    a.thread = 1;
    a.verbose = 0;

    fasttext::FastText model;
    model.train(a);
    model.saveModel(path + ".partial");
    // fastText does not say when the disk is full
    double rows = (double)model.getInputMatrix()->size(0) + (double)model.getOutputMatrix()->size(0);
    if ((double)std::filesystem::file_size(path + ".partial") < 4.0 * a.dim * rows)
        fail("%s: could not be written completely: is the disk full?", path.c_str());
    if (rename((path + ".partial").c_str(), path.c_str())) fail("%s: %s", path.c_str(), strerror(errno));
}

// the good ones, and the others: --negatives, or all other files
inline std::array<TrainingSet, 2> training_sets(const Settings& settings, const Corpus& in) {
    std::array<TrainingSet, 2> sets = {
        {{files_of(settings.get("positives"), in), "positive"}, {{}, "negative"}}};
    std::string negatives = settings.get("negatives");
    if (!negatives.empty()) sets[1].files = files_of(negatives, in);
    const auto& good = sets[0].files;
    for (auto& f : in.files)
        if (negatives.empty() && std::find(good.begin(), good.end(), f.path) == good.end())
            sets[1].files.push_back(f.path);
    return sets;
}

// whether `path` holds a classifier that was trained and measured with these settings and files
inline bool is_trained(const std::string& path, const std::string& stamp) {
    std::string about = path + ".about.json";
    try {
        Json said = Json::parse(WholeFile(about).view(), about);
        return said.find("right") && said.at("mark", about).string("mark") == stamp &&
               said.at("hash", about).string("hash") == Stage::hex(Stage::whole_hash(path));
    } catch (const Error&) {
        return false;  // none, or not whole
    }
}

// sets the share that is taken of each set, so that both give equally many documents
inline void balance(std::array<TrainingSet, 2>& sets, const Settings& settings) {
    for (auto& s : sets) {
        s.each(settings, [&](Document&) { s.documents++; });
        if (s.documents < 20)
            fail("%lld %s documents: the classifier needs at least 20 of each; give --%ss other files",
                 (long long)s.documents, s.label, s.label);
    }
    for (int i = 0; i < 2; i++)
        sets[i].taken = std::min(1.0, (double)sets[1 - i].documents / (double)sets[i].documents);
}

// rank 0 does it; the model appears at `path`, and what was measured at path.about.json
inline void train_and_measure(const Settings& settings, const Corpus& in, const std::string& path) {
    std::array<TrainingSet, 2> sets = training_sets(settings, in);
    uint64_t mark = settings.fingerprint("train");
    for (auto& s : sets) for (auto& f : s.files) mark = mark * 31 ^ Stage::identity(f);
    std::string stamp = Stage::hex(mark), about = path + ".about.json";
    if (is_trained(path, stamp)) return;

    balance(sets, settings);
    uint64_t seed = settings.whole("seed");
    double held_out = settings.number("held-out");
    auto held = [&](const Document& d) { return uniform(seed, purpose("held out"), d.key()) < held_out; };
    auto taken = [&](const TrainingSet& s, const Document& d) {
        return uniform(seed, purpose("balance"), d.key()) < s.taken;
    };

    std::string lines[3] = {path + ".lines.positive", path + ".lines.negative", path + ".lines"};
    for (int i = 0; i < 2; i++) {
        ByteWriter out(lines[i]);
        sets[i].each(settings, [&](Document& d) {
            if (taken(sets[i], d) && !held(d))
                out.write(std::string("__label__") + sets[i].label + " " + classifier_line(d.text) + "\n");
        });
        out.finish();
    }

    alternate_lines(lines[2], lines);
    train_on(lines[2], settings, path);
    for (auto& name : lines) unlink(name.c_str());

    std::string hash = Stage::hex(Stage::whole_hash(path));
    auto write_about = [&](const std::string& measured) {
        FileWriter file(about);
        file.write("{\"mark\": \"" + stamp + "\", \"hash\": \"" + hash + "\"" +
                   measured + "}\n");
        file.finish();
    };
    write_about("");

    Classifier classifier(path);
    long right = 0, all = 0;
    for (int i = 0; i < 2; i++)
        sets[i].each(settings, [&](Document& d) {
            if (!taken(sets[i], d) || !held(d)) return;
            all++;
            right += (classifier.score(d.text) > 0.5) == (i == 0);
        });

    printf("train: %lld positive and %lld negative documents, accuracy %.1f %% on %ld held out\n",
           (long long)sets[0].documents, (long long)sets[1].documents,
           all ? 100.0 * (double)right / (double)all : 0.0, all);
    write_about(text(", \"positives\": %lld, \"negatives\": %lld, \"held_out\": %ld, \"right\": %ld",
                     (long long)sets[0].documents, (long long)sets[1].documents, all, right));
}

inline void train_classifier(const Ranks& ranks, const Settings& settings, const Corpus& in,
                             const std::string& path) {
    ranks.all_or_fail([&] { return ranks.first() ? (train_and_measure(settings, in, path), 0) : 0; });
}

inline Corpus score(const Ranks& ranks, const Settings& settings, const Corpus& in, const std::string& folder,
                    const std::string& model, const Wanted& wanted) {
    auto classifier = ranks.all_or_fail([&] { return std::make_unique<Classifier>(model); });
    Stage stage(ranks, settings, "score", folder, settings.documents_ending(),
                classifier->hash);
    return stage.each_document(in, wanted, [&](Document& d, Counts&) -> const char* {
        d.meta = with_meta(d.meta, "quality", text("%.6f", classifier->score(d.text)));
        return nullptr;
    });
}

inline Corpus filter(const Ranks& ranks, const Settings& settings, const Corpus& in,
                     const std::string& folder, const Wanted& wanted) {
    Stage stage(ranks, settings, "filter", folder, settings.documents_ending());
    double alpha = settings.number("pareto");
    uint64_t seed = settings.whole("seed");
    return stage.each_document(in, wanted, [&](Document& d, Counts&) -> const char* {
        std::string p = DocumentReader::meta_value(d, "quality");
        char* end = nullptr;
        double score = strtod(p.c_str(), &end);
        if (p.empty() || *end || !(score >= 0 && score <= 1)) return "without a quality from 0 to 1";
        // Lomax: u^(-1/alpha) - 1 for u in (0, 1]
        double draw = std::pow(1 - uniform(seed, purpose("pareto"), d.key()), -1 / alpha) - 1;
        return draw > 1 - score ? nullptr : "of low quality";
    });
}
