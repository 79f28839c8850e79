// html.h   the main text of an HTML page: jusText (J. Pomikálek, PhD thesis, Masaryk University 2011)
//   1  parse          libxml2's HTML parser, as events; no tree is built
//   2  clean          head, scripts, styles, form fields and comments are removed with their content; form,
//                     object and frame tags are removed, but their content is kept
//   3  paragraphs     begin and end at block tags and at two <br>; blanks are made one
//   4  each alone     by link density, length and the share of stop words: good, near-good, short or bad
//   5  in context     short and near-good ones become what their neighbours are; headings close before a good
//                     paragraph are good
//   The good ones, joined by blank lines, are the text. The published program has another pass over headings
//   before step 5; it has no effect, and is left out here. All passes take time linear in the page's length.
#pragma once
#include <libxml/HTMLparser.h>
#include <xxhash.h>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>
#include "documents.h"
#include "stopwords.h"
#include "text.h"

// jusText's published limits; lengths in characters
constexpr long length_low = 70, length_high = 200, heading_distance = 200;
constexpr double stopwords_low = 0.30, stopwords_high = 0.32, link_density = 0.2;

enum class Kind { Good, NearGood, Short, Bad };
struct Paragraph {
    std::string text;
    long link_characters = 0, length = 0;
    bool heading = false, selects = false;  // inside h0 … h9, inside a tag named …select…
    Kind alone = Kind::Bad, kind = Kind::Bad;
};

// ---- 1-3: the page as paragraphs -------------------------------------------------------------------------

enum class Tag : unsigned char { Inline, Block, Break, Link, Killed, Dropped };
inline Tag tag_of(std::string_view name) {
    struct Hash { size_t operator()(std::string_view s) const { return XXH3_64bits(s.data(), s.size()); } };
    static const std::unordered_map<std::string_view, Tag, Hash> known = [] {
        std::unordered_map<std::string_view, Tag, Hash> all;
        for (auto name : {"body",  "blockquote", "caption",  "center", "col",      "colgroup", "dd", "div",
                          "dl",    "dt",         "fieldset", "legend", "optgroup", "option",   "p",  "pre",
                          "table", "td",         "tfoot",    "th",     "thead",    "tr",       "ul", "li",
                          "h1",    "h2",         "h3",       "h4",     "h5",       "h6"})
            all[name] = Tag::Block;
        for (auto name :
             {"head", "script", "style", "applet", "button", "input", "select", "textarea", "base"})
            all[name] = Tag::Killed;
        for (auto name : {"form", "iframe", "embed", "layer", "object", "param"}) all[name] = Tag::Dropped;
        all["br"] = Tag::Break;
        all["a"] = Tag::Link;
        return all;
    }();

    auto found = known.find(name);
    return found == known.end() ? Tag::Inline : found->second;
}

struct ParagraphMaker {
    std::vector<Paragraph> paragraphs;
    bool too_deep = false;  // and what followed was left out

    explicit ParagraphMaker(std::string_view page) {
        start_paragraph();
        htmlSAXHandler events = {};
        events.startElement = [](void* self, const xmlChar* name, const xmlChar**) {
            ((ParagraphMaker*)self)->open_tag((const char*)name);
        };
        events.endElement = [](void* self, const xmlChar*) { ((ParagraphMaker*)self)->close_tag(); };
        events.characters = events.cdataBlock =
            events.ignorableWhitespace = [](void* self, const xmlChar* s, int n) {
                ((ParagraphMaker*)self)->characters({(const char*)s, (size_t)n});
            };
        events.processingInstruction = [](void* self, const xmlChar*, const xmlChar*) {
            ((ParagraphMaker*)self)->flush();  // unlike comments, these separate text
        };

        context = htmlNewParserCtxt();
        if (!context) fail("not enough memory to parse a page of %zu bytes", page.size());
        htmlSAXHandler* given = context->sax;
        context->sax = &events;
        context->userData = this;

        htmlDocPtr tree = htmlCtxtReadMemory(context, page.data(), (int)page.size(), nullptr, "UTF-8",
                                             HTML_PARSE_RECOVER | HTML_PARSE_NOERROR | HTML_PARSE_NOWARNING |
                                             HTML_PARSE_NONET | HTML_PARSE_COMPACT);
        if (tree) xmlFreeDoc(tree);
        context->sax = given;
        htmlFreeParserCtxt(context);

        flush();
        start_paragraph();
    }

private:
    static constexpr size_t deepest = 256;  // where libxml2 gives up building a tree
    struct Open { Tag tag; bool heading, selects; };
    htmlParserCtxtPtr context = nullptr;
    std::vector<Open> path;
    std::string pending;  // text since the last tag
    Paragraph now;
    long headings = 0, selects = 0, killed = 0;  // that are open
    bool link = false, after_break = false;

    static bool is_heading(std::string_view name) {  // \bh\d\b
        auto word = [](char c) { return isalnum((unsigned char)c) || c == '_' || (c & 0x80); };
        for (size_t i = 0; i + 1 < name.size(); i++)
            if (name[i] == 'h' && isdigit((unsigned char)name[i + 1]) && (i == 0 || !word(name[i - 1])) &&
                (i + 2 == name.size() || !word(name[i + 2]))) return true;
        return false;
    }

    void start_paragraph() {
        std::string whole;
        now.length = append_normalised(whole, trim_spaces(now.text));
        now.text = std::move(whole);
        if (now.length) paragraphs.push_back(std::move(now));
        now = {};
        now.heading = headings > 0;
        now.selects = selects > 0;
    }

    void flush() {
        if (pending.empty()) return;
        if (!trim_spaces(pending).empty()) {
            long n = append_normalised(now.text, pending);
            if (link) now.link_characters += n;
            after_break = false;
        }
        pending.clear();
    }

    void open_tag(std::string_view name) {
        Open open = {tag_of(name), is_heading(name), name.find("select") != name.npos};
        path.push_back(open);
        if (path.size() > deepest) {
            too_deep = true;
            xmlStopParser(context);
        }

        if (open.tag == Tag::Killed) killed++;
        if (killed || open.tag == Tag::Dropped) return;

        flush();
        headings += open.heading;
        selects += open.selects;
        if (open.tag == Tag::Block || (open.tag == Tag::Break && after_break)) return start_paragraph();
        after_break = open.tag == Tag::Break;
        if (after_break) now.text += ' ';
        if (open.tag == Tag::Link) link = true;
    }

    void close_tag() {
        if (path.empty()) return;
        Open open = path.back();
        path.pop_back();
        if (killed) {
            killed -= open.tag == Tag::Killed;
            return;
        }
        if (open.tag == Tag::Dropped) return;
        flush();
        headings -= open.heading;
        selects -= open.selects;
        if (open.tag == Tag::Block) start_paragraph();
        if (open.tag == Tag::Link) link = false;
    }

    void characters(std::string_view s) {
        if (!killed) pending += s;
    }
};

// Blanks out tags that may have more than `most` attributes (counting blanks, slashes and quotes): libxml2
// compares each attribute with all before it. Scripts, styles and comments hold no tags; they begin and end
// where libxml2 sees their bounds.
inline std::string without_huge_tags(std::string page, int64_t* removed) {
    constexpr int most = 2000;
    auto past = [&](size_t i, std::string_view end) {
        size_t found = page.find(end, i);
        return found == page.npos ? page.size() : found;
    };

    size_t comment_end = 0;  // the first at or after the comment looked at last
    for (size_t i = page.find('<'); i != page.npos; i = page.find('<', i)) {
        size_t from = i++;
        std::string_view rest = std::string_view(page).substr(i);
        if (rest.starts_with("!--")) {
            if (comment_end < i) comment_end = past(i, "-->");
            size_t end = comment_end, other = rest.substr(0, end - i).find("--!>");
            i = other == rest.npos ? end : i + other;
        }
        if (i >= page.size() || !isalpha((unsigned char)page[i])) continue;

        auto is_called = [&](std::string_view name) {
            std::string_view next = rest.substr(std::min(name.size(), rest.size()), 1);
            bool ends = next.empty() || (!isalnum((unsigned char)next[0]) && !(next[0] & 0x80) &&
                                         next.find_first_of("-_:.") == next.npos);
            return begins_as(rest, name) && ends;
        };
        std::string_view raw = is_called("script") ? "script" : is_called("style") ? "style" : "";
        int parts = 0;
        bool bare = false;  // inside a value without quotes, whose last byte may be a slash
        char quote = 0, last = 0;
        for (; i < page.size() && (quote || page[i] != '>'); i++) {
            char c = page[i];
            if (quote) {
                if (c == quote) {
                    quote = 0;
                    parts++;
                }
            } else if ((c == '"' || c == '\'') && last == '=') quote = c;
            else if ((unsigned char)c <= ' ' || c == '/' || c == '"' || c == '\'') parts++;
            bare = !quote && (unsigned char)c > ' ' && (bare || last == '=');
            if ((unsigned char)c > ' ') last = c;
        }

        if (parts > most) {
            std::fill(page.begin() + (long)from, page.begin() + (long)i, ' ');
            ++*removed;
        } else if (!raw.empty() && (bare || page[i - 1] != '/'))  // not <script/>, which is closed
            while ((i = past(i, "</")) < page.size() &&
                   !begins_as(std::string_view(page).substr(i + 2), raw)) i += 2;
    }
    return page;
}

// ---- 4 and 5: which of them are text ---------------------------------------------------------------------

struct StopWords {
    std::unordered_set<std::string> words;
    static constexpr size_t longest = 120;  // bytes; longer words are no stop words

    explicit StopWords(const std::string& path) {  // "": the English ones that are built in
        std::string all = path.empty() ? english_stopwords : std::string(WholeFile(path).text());
        for_words(all, [&](std::string_view word) { words.insert(lower_word(word)); });
        if (words.empty()) fail("%s: has no words: expected one per line", path.c_str());
    }

    uint64_t fingerprint() const {
        uint64_t sum = 0;
        for (auto& w : words) sum += XXH3_64bits(w.data(), w.size());
        return sum;
    }

    double share(std::string_view s) const {  // of the words of s
        long all = 0, stop = 0;
        std::string lowered;
        for_words(s, [&](std::string_view word) {
            all++;
            if (word.size() > longest) return;
            lowered.clear();
            append_lower(lowered, word);
            stop += (long)words.count(lowered);
        });
        return all ? (double)stop / (double)all : 0;
    }
};

inline Kind judge_alone(const Paragraph& p, const StopWords& stop) {
    if (p.length && (double)p.link_characters / (double)p.length > link_density) return Kind::Bad;
    if (p.text.find("\xC2\xA9") != p.text.npos || p.text.find("&copy") != p.text.npos || p.selects)
        return Kind::Bad;
    if (p.length < length_low) return p.link_characters ? Kind::Bad : Kind::Short;
    double share = stop.share(p.text);
    if (share >= stopwords_high) return p.length > length_high ? Kind::Good : Kind::NearGood;
    return share >= stopwords_low ? Kind::NearGood : Kind::Bad;
}

inline void judge_in_context(std::vector<Paragraph>& all) {
    size_t n = all.size();
    // before[i], after[i]: the nearest good or bad one, and the nearest that is not short; bad at the ends
    struct Near { Kind sure = Kind::Bad, any = Kind::Bad; };
    auto pass = [&](Near near, Kind k) {
        if (k == Kind::Good || k == Kind::Bad) return Near{k, k};
        return k == Kind::NearGood ? Near{near.sure, k} : near;
    };

    std::vector<Near> before(n), after(n);
    Near near;
    for (size_t i = 0; i < n; i++) {
        before[i] = near;
        near = pass(near, all[i].alone);
    }
    near = {};
    for (size_t i = n; i-- > 0;) {
        after[i] = near;
        near = pass(near, all[i].alone);
    }

    // short ones: as their neighbours
    for (size_t i = 0; i < n; i++) {
        all[i].kind = all[i].alone;
        if (all[i].alone != Kind::Short) continue;
        Kind b = before[i].sure, a = after[i].sure;
        bool good = b == a ? b == Kind::Good
                           : (b == Kind::Bad && before[i].any == Kind::NearGood) ||
                (a == Kind::Bad && after[i].any == Kind::NearGood);
        all[i].kind = good ? Kind::Good : Kind::Bad;
    }

    // nearly good ones: bad between two bad ones
    near = {};
    for (size_t i = n; i-- > 0;) {
        after[i] = near;
        near = pass(near, all[i].kind);
    }
    Kind last = Kind::Bad;
    for (size_t i = 0; i < n; i++) {
        if (all[i].kind == Kind::NearGood)
            all[i].kind = last == Kind::Bad && after[i].sure == Kind::Bad ? Kind::Bad : Kind::Good;
        last = all[i].kind;
    }

    // headings: good if a good paragraph follows within heading_distance characters
    bool seen = false;  // a good paragraph follows …
    long distance = 0;  // … this many characters after paragraph i
    std::vector<bool> to_good(n);
    for (size_t i = n; i-- > 0;) {
        bool wants = all[i].heading && all[i].kind == Kind::Bad && all[i].alone != Kind::Bad;
        to_good[i] = wants && seen && distance <= heading_distance;
        if (all[i].kind == Kind::Good) {
            seen = true;
            distance = 0;
        } else distance += all[i].length;
    }

    for (size_t i = 0; i < n; i++) if (to_good[i]) all[i].kind = Kind::Good;
}

// page: UTF-8
inline std::string main_text(std::string page, const StopWords& stop, Counts* counts = nullptr) {
    int64_t removed = 0;
    ParagraphMaker made(without_huge_tags(std::move(page), &removed));
    if (removed && counts) (*counts)["tags with too many attributes"] += removed;
    if (made.too_deep && counts) (*counts)["pages nested too deep, cut there"]++;
    for (auto& p : made.paragraphs) p.alone = judge_alone(p, stop);
    judge_in_context(made.paragraphs);
    std::string out;
    bool first = true;
    for (auto& p : made.paragraphs) {
        if (p.kind != Kind::Good) continue;
        if (!std::exchange(first, false)) out += "\n\n";
        out += p.text;
    }
    return out;
}
