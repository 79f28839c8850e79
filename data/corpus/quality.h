// quality.h   which documents are good: cleaning by rules, a fastText classifier, and the Pareto rule
//   clean    Unicode is repaired (unicode_repair.h); short documents go (the rules of --short-…)
//   train    fastText, word bigrams: positives against as many negatives; a part is held out and measured
//   score    the probability of "positive", as meta's "quality"
//   filter   kept where pareto(alpha) > 1 - p, that is with probability (2 - p)^-alpha
//   What is drawn for a document is keyed by its id, or by its text where it has none: never by its place.
#pragma once
#include <fasttext/fasttext.h>
#include "../../layers/base/rng.h"
#include "extract.h"
#include "unicode_repair.h"

inline Corpus clean(const Ranks& ranks, const Settings& settings, const Corpus& in,
                    const std::string& folder) {
    Stage stage(ranks, settings, "clean", folder, ".jsonl.zst");
    int64_t foreign = (int64_t)settings.whole("short-foreign"),
            script = (int64_t)settings.whole("short-javascript");
    int64_t shortest = (int64_t)settings.whole("shortest");
    std::string language = settings.get("language");
    return stage.each_document(in, every_file, [&](Document& d, Counts& counts) -> const char* {
        counts["Unicode repaired"] += repair_unicode(d.text);
        int64_t n = characters(d.text);
        if (n == 0) return "empty";
        if (n < shortest) return "shorter than --shortest";
        if (n < script) {
            std::string low = lower(d.text);
            if (low.find("javascript") != low.npos) return "short and about javascript";
        }
        if (n < foreign && language != "any" && detect_language(d.text, false).code != language)
            return "short and in another language";
        return nullptr;
    });
}

// ---- the classifier --------------------------------------------------------------------------------------

// words as fastText parts them, on one line; of a very long text its beginning
inline std::string classifier_line(const std::string& s) {
    std::string out(s, 0, std::min(s.size(), (size_t)1 << 20));
    for (char& c : out) {
        if ((unsigned char)c <= ' ') c = ' ';
        else if (c >= 'A' && c <= 'Z') c = (char)(c | 32);
    }
    return out;
}

struct Classifier {
    fasttext::FastText model;
    std::vector<int32_t> words, labels;
    int32_t positive = -1;

    explicit Classifier(const std::string& path) {
        { MappedFile(std::string(path)); }  // names what is wrong with the file
        try {
            model.loadModel(path);
        } catch (const std::exception& e) {
            fail("%s: is no classifier: %s; make it with ./corpus quality train", path.c_str(), e.what());
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
        model.predict(2, words, found);
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

// writes the model; one rank does it, on one thread: the same model each time
inline void train_classifier(const Ranks& ranks, const Settings& settings, const Corpus& in,
                             const std::string& path) {
    std::string negatives = settings.get("negatives");
    TrainingSet sets[2] = {
        {files_of(settings.need("positives", "files or sets of good documents"), in), "positive"},
        {{}, "negative"}};
    if (!negatives.empty()) sets[1].files = files_of(negatives, in);
    else
        for (auto& f : in.files)  // all that are not the good ones
            if (std::find(sets[0].files.begin(), sets[0].files.end(), f.path) == sets[0].files.end())
                sets[1].files.push_back(f.path);
    uint64_t mark = settings.fingerprint("train");
    for (auto& s : sets) for (auto& f : s.files) mark = mark * 31 ^ Stage::identity({f, "", 0, 0});
    std::string stamp = text("%016llx", (unsigned long long)mark), about = path + ".about.json";
    auto done = [&] {
        try {
            return access(path.c_str(), F_OK) == 0 &&
                Json::parse(MappedFile(about).view(), about).at("mark", about).string("mark") == stamp;
        } catch (const Error&) {
            return false;
        }
    };
    if (!ranks.first() || done()) return ranks.wait("the classifier");
    for (auto& s : sets) {
        s.each(settings, [&](Document&) { s.documents++; });
        if (s.documents < 20)
            fail("%lld %s documents: the classifier wants 20 of each; give --%ss other files",
                 (long long)s.documents, s.label, s.label);
    }
    for (int i = 0; i < 2; i++)
        sets[i].taken = std::min(1.0, (double)sets[1 - i].documents / (double)sets[i].documents);
    uint64_t seed = settings.whole("seed");
    double held_out = settings.number("held-out");
    auto held = [&](const Document& d) { return uniform(seed, purpose("held out"), d.key()) < held_out; };
    auto taken = [&](const TrainingSet& s, const Document& d) {
        return uniform(seed, purpose("balance"), d.key()) < s.taken;
    };
    std::string lines = path + ".lines";
    {
        FileWriter out(lines);
        // alternating, so that no class is learned last
        std::string all[2];
        for (int i = 0; i < 2; i++)
            sets[i].each(settings, [&](Document& d) {
                if (taken(sets[i], d) && !held(d))
                    all[i] += std::string("__label__") + sets[i].label + " " + classifier_line(d.text) + "\n";
            });
        size_t at[2] = {0, 0};
        while (at[0] < all[0].size() || at[1] < all[1].size()) {
            int i = (double)at[0] * (double)all[1].size() <= (double)at[1] * (double)all[0].size() ? 0 : 1;
            if (at[i] >= all[i].size()) i = 1 - i;
            size_t end = all[i].find('\n', at[i]) + 1;
            out.write(std::string_view(all[i]).substr(at[i], end - at[i]));
            at[i] = end;
        }
        out.finish();
    }
    fasttext::Args a;
    a.input = lines, a.output = path;
    a.model = fasttext::model_name::sup, a.loss = fasttext::loss_name::softmax;
    a.lr = settings.number("learning-rate"), a.dim = (int)settings.whole("dimensions");
    a.epoch = (int)settings.whole("epochs"), a.wordNgrams = 2, a.minCount = 1, a.minn = a.maxn = 0;
    a.bucket = (int)settings.whole("buckets"), a.thread = 1, a.verbose = 0;
    fasttext::FastText model;
    model.train(a);
    model.saveModel(path + ".partial");
    if (rename((path + ".partial").c_str(), path.c_str())) fail("%s: %s", path.c_str(), strerror(errno));
    unlink(lines.c_str());
    Classifier classifier(path);
    long right = 0, all = 0;
    for (int i = 0; i < 2; i++)
        sets[i].each(settings, [&](Document& d) {
            if (!taken(sets[i], d) || !held(d)) return;
            all++, right += (classifier.score(d.text) > 0.5) == (i == 0);
        });
    printf("train: %lld positive and %lld negative documents, accuracy %.1f %% on %ld held out\n",
           (long long)sets[0].documents, (long long)sets[1].documents,
           all ? 100.0 * (double)right / (double)all : 0.0, all);
    FileWriter file(about);
    file.write(text(
        "{\"mark\": \"%s\", \"positives\": %lld, \"negatives\": %lld, \"held_out\": %ld, \"right\": %ld}\n",
        stamp.c_str(), (long long)sets[0].documents, (long long)sets[1].documents, all, right));
    file.finish();
    ranks.wait("the classifier");
}

inline Corpus score(const Ranks& ranks, const Settings& settings, const Corpus& in, const std::string& folder,
                    const std::string& model, const std::function<bool(const CorpusFile&)>& wanted) {
    Stage stage(ranks, settings, "score", folder, ".jsonl.zst", Stage::identity({model, "", 0, 0}));
    Classifier classifier(model);
    return stage.each_document(in, wanted, [&](Document& d, Counts&) -> const char* {
        d.meta = with_meta(d.meta, "quality", text("%.6f", classifier.score(d.text)));
        return nullptr;
    });
}

inline Corpus filter(const Ranks& ranks, const Settings& settings, const Corpus& in,
                     const std::string& folder, const std::function<bool(const CorpusFile&)>& wanted) {
    Stage stage(ranks, settings, "filter", folder, ".jsonl.zst");
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
