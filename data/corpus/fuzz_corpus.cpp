// fuzz_corpus.cpp   damaged input of every kind, for minutes: build/…/fuzz_corpus TARGET SECONDS [FILE…]
//   TARGET: warc (records, gzip, HTTP, HTML, charsets, languages), documents (JSON), tokens (token, signature
//   and index files), settings (configurations), text (Unicode repair, min-hash, decontamination), or all
//   Inputs are small valid ones and the files given, mutated. An Error is a valid outcome; a crash, a
//   sanitizer's finding, or more than 20 s for one input is not: the input is left at /tmp/fuzz-TARGET.
#include <unistd.h>
#include "decontaminate.h"
#include "minhash.h"
#include "quality.h"
#include "token_files.h"

namespace {

std::string compress_gzip(const std::string& s) {
    std::string path = text("/tmp/fuzz-%d.gz", (int)getpid());
    ByteWriter out(path);
    out.write(s);
    out.finish();
    std::string all(MappedFile(path).view());
    unlink(path.c_str());
    return all;
}

std::string response_record(const std::string& headers, const std::string& body) {
    std::string content = "HTTP/1.1 200 OK\r\n" + headers + "\r\n" + body;
    return text(
               "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a/\r\nContent-Length: %zu\r\n\r\n",
               content.size()) +
        content + "\r\n\r\n";
}

const char page[] =
    "<!DOCTYPE html><html><head><title>a</title><meta charset=utf-8></head><body class='b'><form><div><h1>One"
    "</h1><p>The history of the town is known from letters that were written by its people.<br><br>More "
    "&amp; &#x41; &copy; <a href=\"x\">link</a><!-- c --></p></div></form><script>if (a<b) c();</script>"
    "<select><option>x</select><table><tr><td>1</table><?php x ?></body></html>";

// ---- targets: what is done with an input in a file -------------------------------------------------------

void read_warc(const std::string& path) {
    static StopWords stop("");
    Counts counts;
    WarcReader reader(path, 1 << 22, counts);
    for (WarcRecord record; reader.next(record);) {
        std::string charset;
        const char* why;
        std::string found = page_of(record.content, 1 << 22, counts, &charset, &why);
        if (found.empty()) continue;
        detect_language(found, true);
        main_text(found, stop, &counts);
    }
}

void read_documents(const std::string& path) {
    Counts counts;
    DocumentReader reader(path, 1 << 22, counts);
    for (Document d; reader.next(d);) {
        DocumentReader::meta_value(d, "quality");
        d.meta = with_meta(d.meta, "quality", "1");
        std::string out;
        append_json(out, d.text);
    }
}

void read_text(const std::string& path) {
    static MinHash full{Settings()};
    static Keys keys = [] {
        Keys k;
        k.add_question("the history of the town is known from letters that were written by its people", "x");
        return k;
    }();

    size_t wrong = 0;
    std::string s = valid_utf8(MappedFile(path).view(), &wrong);
    repair_unicode(s);
    std::vector<uint32_t> signature((size_t)full.n);
    full.signature(s, signature.data());

    std::vector<size_t> hits;
    Cutter{keys, 20, 5, 10}.cut(s, hits);

    CleaningRules rules{Settings()};
    Counts counts;
    rules.clean(s, counts);
    classifier_line(s);
}

template <class Open>
void attempt(Open open) {
    try {
        open();
    } catch (const Error&) {
    }
}

void read_tokens(const std::string& path) {
    attempt([&] {
        TokenFile file(path);
        std::vector<int> out((size_t)std::min(file.count, (uint64_t)1000));
        file.read(out.data(), 0, out.size(), 257);
    });
    attempt([&] {
        SignatureFile file(path);
        std::vector<uint32_t> out((size_t)std::min(file.n, 1 << 20));
        for (uint64_t i = 0; i < file.documents && file.n <= 1 << 20; i++) file.read(i, 1, out.data());
    });
    attempt([&] {
        DocumentTokens file(path);
        for (uint64_t i = 0; i < file.documents; i++) file.entry(i);
    });
    attempt([&] { EvalFile::open(path); });
    attempt([&] { Json::parse(MappedFile(path).view(), path); });
}

void read_settings(const std::string& path) {
    Settings settings;
    Corpus corpus;
    read_corpus_config(path, settings, corpus);
    MinHash hasher(settings);
}

struct Target {
    const char* name;
    void (*read)(const std::string& path);
    std::vector<std::string> seeds;
};

std::string made_by(const std::string& path, auto make) {
    make(path);
    std::string all(MappedFile(path).view());
    unlink(path.c_str());
    return all;
}

std::vector<Target> targets() {
    std::string html = "Content-Type: text/html; charset=utf-8\r\n", plain = response_record(html, page);
    std::string chunks = "40\r\n" + std::string(page, 64) + "\r\n" + "5;x=y\r\nabcde\r\n0\r\n\r\n";
    std::vector<std::string> warcs = {
        plain + plain, compress_gzip(plain) + compress_gzip(plain),
        response_record(html + "Transfer-Encoding: chunked\r\n", chunks),
        response_record(html + "Content-Encoding: gzip\r\n", compress_gzip(page)),
        response_record("Content-Type: text/html; charset=shift_jis\r\n", page),
        response_record("Content-Type: text/html\r\n", "\xFF\xFE" "<\0p\0>\0a\0")};

    std::vector<std::string> documents = {
        "{\"text\": \"a\\u00e9\\ud83d\\ude00\", \"id\": \"x\", "
        "\"meta\": {\"quality\": 0.5, \"a\": [1, {\"b\": null}]}}\n"
        "{\"text\": \"b\"}\n",
        "{\"id\": 5, \"meta\": {}, \"text\": \"\"}"};
    documents.push_back(compress_gzip(documents[0]));

    std::string temporary = text("/tmp/fuzz-%d-seed", (int)getpid());
    std::vector<std::string> tokens = {
        made_by(temporary,
                [](const std::string& p) {
                    TokenWriter w(p, "bytes", 257, 256);
                    uint32_t some[] = {1, 2, 3};
                    w.add(some, 3);
                    w.end_document();
                    w.finish();
                }),
        made_by(temporary,
                [](const std::string& p) {
                    SignatureWriter w(p, 4);
                    uint32_t some[] = {1, 2, 3, 4};
                    w.add(some);
                    w.add(some);
                    w.finish();
                }),
        std::string("GPTDOCS1\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0abcdefgh", 32) + std::string(8, 1) +
            std::string(8, 0) + std::string("\2\0\0\0\0\0\0\0", 8),
    };

    return {
        {"warc", read_warc, warcs},
        {"documents", read_documents, documents},
        {"tokens", read_tokens, tokens},
        {"settings", read_settings, {"output x\nset a jsonl /etc/host*  weight 0.5\nbands 3\n# c\nseed 1\n"}},
        {"text",
         read_text,
         {"caf\xC3\x83\xC2\xA9 e\xCC\x81 The History of the town is known from letters that "
          "were written by its people. x",
          page}}};
}

// ---- mutation --------------------------------------------------------------------------------------------

struct Dice {
    uint64_t n = 0, seed;
    size_t below(size_t most) {
        return most ? (size_t)(uniform(seed, purpose("fuzz"), n++) * (double)most) : 0;
    }
};
std::string mutate(std::string s, const std::vector<std::string>& seeds, Dice& dice) {
    static const char* words[] = {"\r\n\r\n", "WARC/1.0\r\n", "Content-Length: 99999999999\r\n",
                                  "-1",       "<div>",        "</p>",
                                  "\xFF",     "\xE2\x80",     "\"",
                                  "{\"",      "\x1f\x8b\x08", "0\r\n",
                                  "<script>", "&#",           "\\ud800"};
    for (size_t times = 1 + dice.below(6); times > 0; times--) {
        size_t at = dice.below(s.size() + 1), n = dice.below(1 + std::min(s.size() - at, (size_t)64));
        switch (dice.below(7)) {
            case 0: if (at < s.size()) s[at] = (char)dice.below(256); break;
            case 1: if (at < s.size()) s[at] = (char)(s[at] ^ (1 << dice.below(8))); break;
            case 2: s.erase(at, n); break;
            case 3: s.insert(at, words[dice.below(std::size(words))]); break;
            case 4: s.resize(at); break;
            case 5: {
                std::string part = s.substr(at, n), all;
                for (size_t i = dice.below(200); i > 0; i--) all += part;
                s.insert(at, all);
                break;
            }
            default: {
                const std::string& other = seeds[dice.below(seeds.size())];
                size_t from = dice.below(other.size());
                s.insert(at, other, from, dice.below(other.size() - from + 1));
            }
        }
    }
    if (s.size() > 1 << 20) s.resize(1 << 20);
    return s;
}

long fuzz(const Target& target, double seconds) {
    std::string path = std::string("/tmp/fuzz-") + target.name;
    Dice dice = {0, (uint64_t)time(nullptr)};
    long inputs = 0, refused = 0;
    for (Clock::time_point start = Clock::now(); seconds_since(start) < seconds; inputs++) {
        std::string s = target.seeds[dice.below(target.seeds.size())];
        if (inputs >= (long)target.seeds.size()) s = mutate(s, target.seeds, dice);

        FileWriter out(path);
        out.write(s);
        if (close(std::exchange(out.fd, -1)) || rename(out.partial.c_str(), path.c_str()))
            fail("%s", path.c_str());

        alarm(20);
        try {
            target.read(path);
        } catch (const Error&) {
            refused++;
        }
        alarm(0);
    }
    printf("%s: %ld inputs, %ld of them refused, none did harm\n", target.name, inputs, refused);
    fflush(stdout);
    unlink(path.c_str());
    return inputs;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) {
        fprintf(
            stderr,
            "fuzz_corpus: give TARGET SECONDS [FILE…]; targets: warc documents tokens settings text all\n");
        return 1;
    }
    bool any = false;
    for (auto& target : targets()) {
        if (std::string(argv[1]) != "all" && std::string(argv[1]) != target.name) continue;
        for (int i = 3; i < argc; i++) target.seeds.emplace_back(MappedFile(argv[i]).view());
        any = fuzz(target, atof(argv[2])) > 0;
    }
    if (!any) fprintf(stderr, "fuzz_corpus: unknown target %s\n", argv[1]);
    return !any;
}
