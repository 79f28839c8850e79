// extract.h   WARC -> documents: the page's language by CLD2 on its HTML, its main text by jusText
#pragma once
#include <cstdio>
#include <cld2/public/compact_lang_det.h>
#include <cld2/public/encodings.h>
#include "digest.h"
#include "html.h"
#include "http.h"
#include "steps.h"

struct Language {
    std::string code;  // as "en"; "un": not known
    double share = 0;  // of the text, 0 to 1
};
// false for what CLD2 refuses: control characters and noncharacters
inline bool for_interchange(uint32_t c) {
    bool control = (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || (c >= 0x7F && c < 0xA0);
    return !control && (c & 0xFFFE) != 0xFFFE && !(c >= 0xFDD0 && c <= 0xFDEF);
}

// s: valid UTF-8. The result is pycld2.detect's, except that pycld2 rejects texts with characters that CLD2
// refuses; here these are replaced by blanks
inline Language detect_language(std::string_view s, bool is_html) {
    CLD2::CLDHints hints = {nullptr, nullptr, CLD2::UNKNOWN_ENCODING, CLD2::UNKNOWN_LANGUAGE};
    CLD2::Language three[3] = {CLD2::UNKNOWN_LANGUAGE, CLD2::UNKNOWN_LANGUAGE, CLD2::UNKNOWN_LANGUAGE};
    int percent[3] = {}, bytes = 0, valid = 0, size = (int)std::min(s.size(), (size_t)1 << 30);
    double scores[3];
    bool reliable = false;

    auto detect = [&](const char* text, int n) {
        CLD2::ExtDetectLanguageSummaryCheckUTF8(text, n, !is_html, &hints, 0, three, percent, scores, nullptr,
                                                &bytes, &reliable, &valid);
    };

    detect(s.data(), size);
    if (valid < size) {
        std::string clean;
        for (size_t i = 0, n = 0; i < (size_t)size; i += n) {
            if (for_interchange(decode_at(s, i, &n))) clean.append(s, i, n);
            else clean += ' ';
        }
        detect(clean.data(), (int)clean.size());
    }
    return {CLD2::LanguageCode(three[0]), percent[0] / 100.0};
}

// what a document keeps of its record
inline void describe(Document& d, const WarcRecord& record, const std::string& language,
                     const std::string& charset) {
    size_t wrong = 0;
    auto put = [&](const char* name, std::string_view value) {
        std::string quoted;
        append_json(quoted, valid_utf8(value, &wrong));
        d.meta = with_meta(d.meta, name, quoted);
    };
    std::string_view url = record.fields.get("WARC-Target-URI");
    if (url.starts_with('<') && url.ends_with('>')) url = url.substr(1, url.size() - 2);  // as wget writes it

    d.id = valid_utf8(record.fields.get("WARC-Record-ID"), &wrong);
    put("url", url);
    put("date", record.fields.get("WARC-Date"));
    put("language", language);
    put("charset", charset);
}

inline Corpus extract(const Ranks& ranks, const Settings& settings, const Corpus& in,
                      const std::string& folder) {
    StopWords stop = ranks.all_or_fail([&] { return StopWords(settings.get("stopwords")); });
    Stage stage(ranks, settings, "extract", folder, settings.documents_ending(), stop.fingerprint());
    size_t longest = settings.whole("longest-page");
    std::string language = settings.get("language");
    double share = settings.number("share");
    auto warc = [&](const CorpusFile& f) { return in.sets[f.set].warc; };

    return stage.each_file(in, warc, [&](const CorpusFile& f, const std::string& to, Counts& counts) {
        WarcReader reader(f.path, longest, counts);
        DocumentWriter writer(to);
        for (WarcRecord record; reader.next(record);) {
            stage.progress.at(stage.progress.done + (double)reader.bytes.at);
            if (!HeaderFields::same(record.fields.get("WARC-Type"), "response")) {
                counts["records that are no response"]++;
                continue;
            }

            // counted, and read all the same: crawlers err too
            if (!has_digest(record.content, record.fields.get("WARC-Block-Digest")))
                counts["records of wrong digest"]++;

            std::string charset;
            const char* why = nullptr;
            std::string page = page_of(record.content, longest, counts, &charset, &why);
            if (page.empty()) {
                counts[why]++;
                continue;
            }
            counts["documents"]++;
            counts["characters"] += characters(page);

            Language l = detect_language(page, true);
            if (language != "any" && (l.code != language || l.share < share)) {
                counts["in another language"]++;
                continue;
            }

            Document d;
            d.text = main_text(std::move(page), stop, &counts);
            if (d.text.empty()) {
                counts["without main text"]++;
                continue;
            }

            describe(d, record, l.code, charset);
            counts["kept"]++;
            counts["kept characters"] += characters(d.text);
            writer.write(d);
        }
        writer.finish();
    });
}
