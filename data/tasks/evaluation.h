// evaluation.h   evaluation files: a task's documents as tokens, each with its continuations
//   little-endian:
//      0  8  "GPTEVALS"
//      8  4  version, 1
//     12  4  vocabulary V: every token is below it
//     16  8  documents D
//     24  8  continuations R, of all documents together
//     32  8  tokens N
//     40  8  bytes of the description M
//     48  8  checksum of everything behind these 64 bytes
//     56  8  checksum of the 56 bytes above
//     64     M bytes JSON, filled with blanks to a multiple of 8: {"task", "form", "version", "shots",
//            "metric": greedy|choice|none, "normalised", "priors", "kind": the vocabulary's name,
//            "from": the file or folder of the documents, "hash": SHA-256 of all requests as Python writes
//            them, "groups": […]}
//            D documents of 6 int64: first continuation, how many, the gold one (-1: there is none), two
//            groups (-1: none), line in the source file
//            R continuations of 5 int64: first token and length of the context, then of the continuation,
//            the continuation's characters (without the leading blank)
//            N tokens of 4 bytes
//   Continuations of the same context refer to the same tokens. With priors, a document's continuations are
//   listed twice, the second time after a neutral context. metric none: no continuation is right or
//   wrong; only log-likelihoods are wanted.
#pragma once
#include <map>
#include <string>
#include <vector>
#include "../../layers/base/whole_file.h"
#include "../../layers/base/file_writer.h"
#include "../json.h"

struct EvalDocument {
    int64_t first, count, gold, groups[2], line;
};
struct EvalRequest {
    int64_t context, context_tokens, continuation, continuation_tokens, characters;
};

struct EvalFile {
    std::string path, task, form, metric, vocabulary_name, from, hash;
    int version = 0, shots = 0, vocabulary = 0;
    bool normalised = false, priors = false;
    long left_out = 0;  // documents that the model cannot score (scoring.h)
    std::vector<std::string> groups;
    std::vector<EvalDocument> documents;
    std::vector<EvalRequest> requests;
    std::vector<int> tokens;

    int choices(const EvalDocument& d) const { return (int)d.count / (priors ? 2 : 1); }

    void save(const std::string& to) const {
        std::string names;
        for (auto& g : groups) names += (names.empty() ? "" : ", ") + json_quote(g);

        std::string about = text(
            "{\"task\": %s, \"form\": %s, \"version\": %d, \"shots\": %d, \"metric\": %s, ",
            json_quote(task).c_str(), json_quote(form).c_str(), version, shots, json_quote(metric).c_str());
        about += text("\"normalised\": %s, \"priors\": %s, \"kind\": %s, \"from\": %s, \"hash\": %s, ",
                      normalised ? "true" : "false", priors ? "true" : "false",
                      json_quote(vocabulary_name).c_str(), json_quote(from).c_str(),
                      json_quote(hash).c_str());
        about += text("\"groups\": [%s]}", names.c_str());
        about.resize((about.size() + 7) / 8 * 8, ' ');

        std::string body = about;
        auto add = [&](const auto& list) {
            body.append((const char*)list.data(), list.size() * sizeof list[0]);
        };
        add(documents);
        add(requests);
        add(tokens);

        char header[64] = "GPTEVALS";
        auto put = [&](size_t at, auto value) { memcpy(header + at, &value, sizeof value); };
        put(8, (uint32_t)1);
        put(12, (uint32_t)vocabulary);
        put(16, (uint64_t)documents.size());
        put(24, (uint64_t)requests.size());
        put(32, (uint64_t)tokens.size());
        put(40, (uint64_t)about.size());
        put(48, checksum(body.data(), body.size()));
        put(56, checksum(header, 56));

        FileWriter file(to);
        file.write(std::string_view(header, 64));
        file.write(body);
        file.finish();
    }

    static EvalFile open(const std::string& path) {
        WholeFile file(path);
        EvalFile e;
        e.path = path;
        if (file.size < 64 || memcmp(file.data, "GPTEVALS", 8))
            fail("%s: is not an evaluation file: make one with ./tasks", path.c_str());
        if (file.read<uint64_t>(56, "a checksum") != checksum(file.data, 56))
            fail("%s: damaged: the header's checksum differs: make it again with ./tasks", path.c_str());
        if (uint32_t version = file.read<uint32_t>(8, "version"); version != 1)
            fail("%s: has version %u, this program reads 1: make it again with ./tasks", path.c_str(),
                 version);

        e.vocabulary = (int)file.read<uint32_t>(12, "vocabulary");
        uint64_t size[4];  // documents, continuations, tokens, bytes of the description
        memcpy(size, file.data + 16, sizeof size);

        bool fits = true;
        for (uint64_t s : size) fits &= s <= file.size;
        size_t want =
            fits ? 64 + size[3] + size[0] * sizeof(EvalDocument) + size[1] * sizeof(EvalRequest) + size[2] * 4
                 : 0;

        if (want != file.size || size[3] % 8)
            fail("%s: has %zu bytes, which is not what its header says: make it again with ./tasks",
                 path.c_str(), file.size);
        if (file.read<uint64_t>(48, "a checksum") != checksum(file.data + 64, file.size - 64))
            fail("%s: damaged: its checksum differs: make it again with ./tasks", path.c_str());

        e.describe(Json::parse(std::string_view(file.data + 64, size[3]), path));
        const char* at = file.data + 64 + size[3];

        auto take = [&](auto& list, uint64_t n) {
            list.resize(n);
            if (n) memcpy(list.data(), at, n * sizeof list[0]);
            at += n * sizeof list[0];
        };
        take(e.documents, size[0]);
        take(e.requests, size[1]);
        take(e.tokens, size[2]);

        e.check();
        return e;
    }

private:
    void describe(const Json& about) {
        auto word = [&](const char* key) { return about.at(key, path).string(path); };
        task = word("task");
        form = word("form");
        metric = word("metric");
        vocabulary_name = word("kind");
        hash = word("hash");
        from = word("from");
        version = (int)about.at("version", path).integer(path);
        shots = (int)about.at("shots", path).integer(path);
        normalised = about.at("normalised", path).text == "true";
        priors = about.at("priors", path).text == "true";
        for (auto& g : about.at("groups", path).items) groups.push_back(g.string(path));

        if (metric != "greedy" && metric != "choice" && metric != "none")
            fail("%s: has metric %s, this program knows greedy, choice and none", path.c_str(),
                 metric.c_str());
    }

    void check() const {
        auto within = [](int64_t from, int64_t n, size_t size) {
            return from >= 0 && n > 0 && (uint64_t)from <= size && (uint64_t)n <= size - (uint64_t)from;
        };
        if (documents.empty() || vocabulary < 1 || vocabulary > 1 << 28 || shots < 0)
            fail("%s: has %zu documents, a vocabulary of %d, %d shots: make it again with ./tasks",
                 path.c_str(), documents.size(), vocabulary, shots);

        int64_t next = 0;
        for (auto& d : documents) {
            bool good = d.first == next && within(d.first, d.count, requests.size()) &&
                        d.gold >= (metric == "none" ? -1 : 0) && d.gold < choices(d) &&
                        !(priors && d.count % 2);
            for (int64_t g : d.groups) good &= g >= -1 && g < (int64_t)groups.size();
            if (!good)
                fail("%s: document %zu is inconsistent", path.c_str(), (size_t)(&d - documents.data()));
            next += d.count;
        }

        for (auto& r : requests)
            if (!within(r.context, r.context_tokens, tokens.size()) ||
                !within(r.continuation, r.continuation_tokens, tokens.size()) || r.characters < 0)
                fail("%s: continuation %zu is inconsistent", path.c_str(), (size_t)(&r - requests.data()));

        for (int t : tokens)
            if (t < 0 || t >= vocabulary)
                fail("%s: has a token %d, its vocabulary has %d", path.c_str(), t, vocabulary);
        if (next != (int64_t)requests.size()) fail("%s: has continuations of no document", path.c_str());
    }
};
