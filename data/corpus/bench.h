// bench.h   ./corpus bench [FILE.warc.gz]: the speed of each step's inner loop on one core, beside the
//   speed wanted. The file's pages are processed over and over; without a file, pages are generated.
#pragma once
#include "decontaminate.h"
#include "dedup.h"
#include "quality.h"

struct Bench {
    // runs work() until a second has passed; prints the amount that it handled per second
    template <class Work>
    static void time(const char* what, double amount, const char* unit, const char* floor, Work work) {
        int times = 0;
        Clock::time_point start = Clock::now();
        double seconds = 0;
        for (work(), start = Clock::now(); seconds < 1; times++) {
            work();
            seconds = seconds_since(start);
        }
        printf("%-42s %8.1f %s/s  (wanted: %s)\n", what, amount * times / seconds, unit, floor);
        fflush(stdout);
    }

    static std::string generated_text(size_t bytes) {
        std::string out;
        std::vector<std::string> words;
        for_words(english_stopwords, [&](std::string_view w) { words.emplace_back(w); });
        for (uint64_t i = 0; out.size() < bytes; i++) {
            out += words[(size_t)(uniform(1, purpose("bench"), i) * (double)words.size())];
            out += i % 12 == 11 ? i % 60 == 59 ? ".\n\n" : ". " : " ";
        }
        return out;
    }
};

struct BenchPages {
    std::string path;  // "": generated
    std::vector<std::string> pages, texts;
    double page_mb = 0, text_mb = 0;
    StopWords stop{""};

    explicit BenchPages(const std::string& path) : path(path) {
        if (path.empty()) printf("no WARC file was given: using pages of generated text\n");
        for (int i = 0; i < 20 && path.empty(); i++) {
            std::string page = "<html><head><title>x</title></head><body>";
            for (auto& part : parts_of(Bench::generated_text(30000), '\n'))
                page += "<div class=\"a\"><p id=\"b\">" + part + "</p></div>\n";
            pages.push_back(page + "</body></html>");
        }
        if (!path.empty()) extract(&pages);
        for (auto& p : pages) texts.push_back(main_text(p, stop));
        for (auto& p : pages) page_mb += (double)p.size() * 1e-6;
        for (auto& t : texts) text_mb += (double)t.size() * 1e-6;
        printf("%zu pages of %.2f MB of HTML, %.2f MB of text; one core\n", pages.size(), page_mb, text_mb);
        if (pages.empty()) fail("%s: has no pages", path.c_str());
    }

    // the step's work on a file, without writing; with `keep`, the file's pages are only collected there
    void extract(std::vector<std::string>* keep) {
        Counts counts;
        auto one = [&](std::string page) {
            if (detect_language(page, true).code == "en") main_text(std::move(page), stop);
        };
        if (path.empty()) {
            for (auto& p : pages) one(p);
            return;
        }
        WarcReader reader(path, 1 << 28, counts);
        for (WarcRecord record; reader.next(record);) {
            std::string charset;
            const char* why;
            std::string page = page_of(record.content, 1 << 28, counts, &charset, &why);
            if (!page.empty() && keep) keep->push_back(page);
            else if (!page.empty()) one(std::move(page));
        }
    }
};

inline void bench_pages(BenchPages& b) {
    Counts counts;
    Bench::time("extract", b.page_mb, "MB", "30 of HTML", [&] { b.extract(nullptr); });
    Bench::time("  of it, language of HTML", b.page_mb, "MB", "-",
                [&] { for (auto& p : b.pages) detect_language(p, true); });
    Bench::time("  of it, main text", b.page_mb, "MB", "-",
                [&] { for (auto& p : b.pages) main_text(p, b.stop); });

    CleaningRules cleaning{Settings()};
    Bench::time("cleaning, and the language of short texts", b.text_mb, "MB", "60 of text", [&] {
        for (auto t : b.texts) cleaning.clean(t, counts);
    });
    Bench::time("  the language of all texts", b.text_mb, "MB", "-",
                [&] { for (auto& t : b.texts) detect_language(t, false); });

    for (const char* fast : {"no", "yes"}) {
        Settings s;
        s.values["fast"] = fast;
        MinHash hasher(s);
        std::vector<uint32_t> signature((size_t)hasher.n);
        bool full = !strcmp(fast, "no");
        Bench::time(full ? "min-hash, 20 x 13, 24 characters" : "  fast: one permutation", b.text_mb, "MB",
                    full ? "60 of text" : "200 of text",
                    [&] { for (auto& t : b.texts) hasher.signature(t, signature.data()); });
    }

    Keys keys;
    for (size_t i = 0; i < 20000; i++)
        keys.add_question(Bench::generated_text(60 + i % 60).substr(i % 30), "bench");
    for (size_t i = 0; i + 200 < b.texts[0].size(); i += 100)
        keys.add_question(b.texts[0].substr(i, 100), "bench");
    Bench::time("decontamination", b.text_mb, "MB", "200 of text", [&] {
        int64_t hits = 0;
        for (auto& t : b.texts) keys.search(t, [&](Hit) { return ++hits > 0; });
    });
}

// buckets and components: one document in ten has the hashes of the next one
inline void bench_components() {
    constexpr uint64_t documents = 400000, odd = 0x9E3779B97F4A7C15ull;
    Bench::time("LSH and components", documents * 5e-6, "M records", "10", [&] {
        ExternalSort<BandRecord> sorter("/tmp", 1e9);
        for (uint64_t d = 0; d < documents; d++)
            for (uint64_t b = 0; b < 5; b++) sorter.add({((d % 10 ? d : d ^ 1) * 5 + b) * odd, d});
        Components<uint32_t> components(documents);
        std::vector<uint64_t> bucket;
        uint32_t same[260] = {};
        sorter.each_group([](auto& a, auto& b) { return a.document < b.document; },
                          [&](BandRecord* p, BandRecord* end) {
            if (end - p < 2) return;
            bucket.clear();
            for (; p < end; p++) bucket.push_back(p->document);
            join_bucket(bucket, 260, 0.8, [&](uint64_t, uint32_t* out) { std::copy(same, same + 260, out); },
                        [&](uint64_t a, uint64_t b, double) { components.join((uint32_t)a, (uint32_t)b); });
        });
    });
}

inline void bench(const std::string& path) {
    BenchPages pages(path);
    bench_pages(pages);
    bench_components();
}
