// bench.h   ./corpus bench [FILE.warc.gz]: the speed of each step's inner work on one core; floors are noted
//   Pages come from the file, over and over; without one, pages of generated text are used, and it is said.
#pragma once
#include "decontaminate.h"
#include "dedup.h"
#include "quality.h"

struct Bench {
    // runs work() until a second has passed; prints what it handled a second
    template <class Work>
    static void time(const char* what, double amount, const char* unit, const char* floor, Work work) {
        int times = 0;
        Clock::time_point start = Clock::now();
        double seconds = 0;
        for (work(), start = Clock::now(); seconds < 1; times++) work(), seconds = seconds_since(start);
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

inline void bench(const std::string& path) {
    std::vector<std::string> pages, texts;
    StopWords stop("");
    JusText rules;
    Counts counts;
    size_t page_bytes = 0, text_bytes = 0;
    auto read_warc = [&](bool keep) {
        Counts ignored;
        WarcReader reader(path, 1 << 28, ignored);
        for (WarcRecord record; reader.next(record);) {
            std::string charset;
            const char* why;
            std::string page = page_of(record.content, 1 << 28, ignored, &charset, &why);
            if (page.empty()) continue;
            if (keep) pages.push_back(page);
            Language l = detect_language(page, true);
            if (l.code == "en" || keep)
                ignored[l.code] += (int64_t)main_text(std::move(page), stop, rules).size();
        }
    };
    if (!path.empty()) read_warc(true);
    else {
        printf("no WARC file was given: pages of generated text\n");
        for (int i = 0; i < 20; i++) {
            std::string page = "<html><head><title>x</title></head><body>",
                        all = Bench::generated_text(30000);
            for (auto& part : parts_of(all, '\n'))
                page += "<div class=\"a\"><p id=\"b\">" + part + "</p></div>\n";
            pages.push_back(page + "</body></html>");
        }
    }
    for (auto& p : pages) page_bytes += p.size(), texts.push_back(main_text(p, stop, rules));
    for (auto& t : texts) text_bytes += t.size();
    double page_mb = (double)page_bytes * 1e-6, text_mb = (double)text_bytes * 1e-6;
    printf("%zu pages of %.2f MB of HTML, %.2f MB of text; one core\n", pages.size(), page_mb, text_mb);
    Bench::time("extract", page_mb, "MB", "30 of HTML", [&] {
        if (!path.empty()) return read_warc(false);
        for (auto& p : pages) if (detect_language(p, true).code == "en") main_text(p, stop, rules);
    });
    Bench::time("  of it, language of HTML", page_mb, "MB", "-", [&] {
        for (auto& p : pages) detect_language(p, true);
    });
    Bench::time("  of it, main text", page_mb, "MB", "-", [&] {
        for (auto& p : pages) main_text(p, stop, rules);
    });
    CleaningRules cleaning{Settings()};
    Bench::time("cleaning, and the language of short texts", text_mb, "MB", "60 of text", [&] {
        for (auto t : texts) cleaning.clean(t, counts);
    });
    Bench::time("  the language of all texts", text_mb, "MB", "-", [&] {
        for (auto& t : texts) detect_language(t, false);
    });
    for (const char* fast : {"no", "yes"}) {
        Settings s;
        s.values["fast"] = fast;
        MinHash hasher(s);
        std::vector<uint32_t> signature((size_t)hasher.n);
        Bench::time(*fast == 'n' ? "min-hash, 20 x 13, 24 characters" : "  fast: one permutation", text_mb,
                    "MB", *fast == 'n' ? "60" : "200", [&] {
                        for (auto& t : texts) hasher.signature(t, signature.data());
                    });
    }
    Keys keys;
    for (int i = 0; i < 20000; i++)
        keys.add_question(Bench::generated_text(60 + (size_t)i % 60).substr((size_t)i % 30), "bench");
    for (size_t i = 0; i + 200 < texts[0].size(); i += 100)
        keys.add_question(texts[0].substr(i, 100), "bench");
    Bench::time("decontamination", text_mb, "MB", "200", [&] {
        int64_t hits = 0;
        for (auto& t : texts) keys.search(t, [&](Hit) { return ++hits > 0; });
    });
    // buckets and components: a tenth of the documents are near-copies of the one before
    constexpr uint64_t documents = 400000;
    uint64_t edges = 0;
    Bench::time("LSH and components, 5 bands", documents * 5e-6, "M records", "10", [&] {
        ExternalSort<BandRecord> sorter("/tmp", 1e9);
        for (uint64_t d = 0; d < documents; d++)
            for (uint64_t b = 0; b < 5; b++)
                sorter.add({((d % 10 ? d : d ^ 1) * 5 + b) * 0x9E3779B97F4A7C15ull, d});
        Components<uint32_t> components(documents);
        std::vector<uint64_t> bucket;
        uint32_t same[260] = {};
        sorter.each_group([](auto& a, auto& b) { return a.document < b.document; },
                          [&](BandRecord* p, BandRecord* end) {
                              if (end - p < 2) return;
                              bucket.clear();
                              for (; p < end; p++) bucket.push_back(p->document);
                              join_bucket(
                                  bucket, 260, 0.8, [&](uint64_t) { return same; },
                                  [&](uint64_t a, uint64_t b, double) {
                                      edges += components.join((uint32_t)a, (uint32_t)b);
                                  });
                          });
    });
}
