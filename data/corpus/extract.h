// extract.h   WARC -> documents: the page's language by CLD2 on its HTML, its main text by jusText
#pragma once
#include <cstdio>
#include <cld2/public/compact_lang_det.h>
#include <cld2/public/encodings.h>
#include "html.h"
#include "http.h"
#include "steps.h"

struct Language {
    std::string code;  // as "en"; "un": not known
    double share = 0;  // of the text, 0 to 1
};
// of valid UTF-8; as pycld2.detect has it
inline Language detect_language(std::string_view s, bool is_html) {
    CLD2::CLDHints hints = {nullptr, nullptr, CLD2::UNKNOWN_ENCODING, CLD2::UNKNOWN_LANGUAGE};
    CLD2::Language three[3];
    int percent[3], bytes = 0, valid = 0;
    double scores[3];
    bool reliable = false;
    CLD2::ExtDetectLanguageSummaryCheckUTF8(s.data(), (int)std::min(s.size(), (size_t)1 << 30), !is_html,
                                            &hints, 0, three, percent, scores, nullptr, &bytes, &reliable,
                                            &valid);
    return {CLD2::LanguageCode(three[0]), percent[0] / 100.0};
}

inline Corpus extract(const Ranks& ranks, const Settings& settings, const Corpus& in,
                      const std::string& folder) {
    Stage stage(ranks, settings, "extract", folder, settings.documents_ending());
    StopWords stop = ranks.together([&] { return StopWords(settings.get("stopwords")); });
    JusText rules;
    size_t longest = settings.whole("longest");
    std::string language = settings.get("language");
    double share = settings.number("share");
    auto warc = [&](const CorpusFile& f) { return in.sets[f.set].warc; };
    return stage.each_file(in, warc, [&](const CorpusFile& f, const std::string& to, Counts& counts) {
        WarcReader reader(f.path, longest, counts);
        DocumentWriter writer(to);
        for (WarcRecord record; reader.next(record);) {
            stage.progress.at(stage.progress.done + (double)reader.bytes.at);
            if (record.fields.get("WARC-Type") != "response") {
                counts["records that are no response"]++;
                continue;
            }
            std::string charset;
            const char* why = nullptr;
            std::string page = page_of(record.content, longest, counts, &charset, &why);
            if (page.empty()) {
                counts[why]++;
                continue;
            }
            counts["documents"]++, counts["characters"] += characters(page);
            Language l = detect_language(page, true);
            if (language != "any" && (l.code != language || l.share < share)) {
                counts["in another language"]++;
                continue;
            }
            Document d;
            d.text = main_text(std::move(page), stop, rules);
            if (d.text.empty()) {
                counts["without main text"]++;
                continue;
            }
            std::string_view url = record.fields.get("WARC-Target-URI");
            if (url.starts_with('<') && url.ends_with('>'))
                url = url.substr(1, url.size() - 2);  // as wget has it
            auto put = [&](const char* name, std::string_view value) {
                std::string quoted;
                size_t wrong = 0;
                append_json(quoted, valid_utf8(value, &wrong));
                d.meta = with_meta(d.meta, name, quoted);
            };
            size_t wrong = 0;
            d.id = valid_utf8(record.fields.get("WARC-Record-ID"), &wrong);
            put("url", url), put("date", record.fields.get("WARC-Date"));
            put("language", l.code), put("charset", charset);
            counts["kept"]++, counts["kept characters"] += characters(d.text);
            writer.write(d);
        }
        writer.finish();
    });
}
