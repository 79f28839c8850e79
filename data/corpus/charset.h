// charset.h   a page's bytes -> UTF-8, decoded as browsers do (WHATWG Encoding Standard, HTML 13.2.3)
//   The charset is that of a byte order mark; else UTF-16 if every other byte is 0; else UTF-8 if all bytes
//   are valid and none is an escape; else what the header, a <meta> or the XML declaration says, where the
//   bytes agree; else what uchardet detects; else windows-1252. A declared UTF-16 in a page of single bytes
//   means UTF-8. Labels are the standard's and no others: what it calls "replacement" (charsets that are
//   unsafe) or does not know counts as not declared.
#pragma once
#include <cstring>
#include <iconv.h>
#include <strings.h>
#include <uchardet/uchardet.h>
#include <algorithm>
#include <string>
#include <unordered_map>
#include "text.h"

// iconv's name of the decoder, and the standard's labels for it
struct CharsetLabels { const char *decoder, *labels; };
constexpr CharsetLabels charset_labels[] = {
    {"UTF-8", "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8"},
    {"CP866", "866 cp866 csibm866 ibm866"},
    {"ISO-8859-2", "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 "
     "latin2"},
    {"ISO-8859-3", "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 "
     "latin3"},
    {"ISO-8859-4", "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 "
     "latin4"},
    {"ISO-8859-5", "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 "
     "iso_8859-5:1988"},
    {"ISO-8859-6", "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 "
     "iso-8859-6-e iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987"},
    {"ISO-8859-7", "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 "
     "iso88597 iso_8859-7 iso_8859-7:1987 sun_eu_greek"},
    {"ISO-8859-8", "csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 "
     "iso88598 iso_8859-8 iso_8859-8:1988 visual"},
    {"ISO-8859-8", "csiso88598i iso-8859-8-i logical"},
    {"ISO-8859-10", "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6"},
    {"ISO-8859-13", "iso-8859-13 iso8859-13 iso885913"},
    {"ISO-8859-14", "iso-8859-14 iso8859-14 iso885914"},
    {"ISO-8859-15", "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9"},
    {"ISO-8859-16", "iso-8859-16"},
    {"KOI8-R", "cskoi8r koi koi8 koi8-r koi8_r"},
    {"KOI8-U", "koi8-ru koi8-u"},
    {"MACINTOSH", "csmacintosh mac macintosh x-mac-roman"},
    {"CP874", "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874"},
    {"CP1250", "cp1250 windows-1250 x-cp1250"},
    {"CP1251", "cp1251 windows-1251 x-cp1251"},
    {"CP1252", "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 "
     "iso88591 iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252"},
    {"CP1253", "cp1253 windows-1253 x-cp1253"},
    {"CP1254", "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 "
     "iso_8859-9:1989 l5 latin5 windows-1254 x-cp1254"},
    {"CP1255", "cp1255 windows-1255 x-cp1255"},
    {"CP1256", "cp1256 windows-1256 x-cp1256"},
    {"CP1257", "cp1257 windows-1257 x-cp1257"},
    {"CP1258", "cp1258 windows-1258 x-cp1258"},
    {"MAC-CYRILLIC", "x-mac-cyrillic x-mac-ukrainian"},
    {"GB18030", "chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk"},
    {"GB18030", "gb18030"},
    {"BIG5-HKSCS", "big5 big5-hkscs cn-big5 csbig5 x-x-big5"},
    {"EUC-JP", "cseucpkdfmtjapanese euc-jp x-euc-jp"},
    {"ISO-2022-JP", "csiso2022jp iso-2022-jp"},
    {"CP932", "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis"},
    {"CP949", "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 "
     "ksc_5601 windows-949"},
    {"", "csiso2022kr hz-gb-2312 iso-2022-cn iso-2022-cn-ext iso-2022-kr replacement"},
    {"UTF-16BE", "unicodefffe utf-16be"},
    {"UTF-16LE", "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le"},
    {"CP1252", "x-user-defined"},
};

constexpr std::string_view html_blanks = "\t\n\f\r ";

// "get an encoding": iconv's name for a label, or ""
inline std::string charset_of_label(std::string_view label) {
    static const std::unordered_map<std::string, std::string> known = [] {
        std::unordered_map<std::string, std::string> all;
        for (auto& [decoder, labels] : charset_labels)
            for (std::string_view rest = labels; !rest.empty();) {
                size_t n = std::min(rest.find(' '), rest.size());
                all[std::string(rest.substr(0, n))] = decoder;
                rest.remove_prefix(std::min(n + 1, rest.size()));
            }
        return all;
    }();
    size_t first = label.find_first_not_of(html_blanks);
    if (first == label.npos) return "";
    size_t last = label.find_last_not_of(html_blanks);
    auto found = known.find(lower(label.substr(first, last + 1 - first)));
    return found == known.end() ? "" : found->second;
}

// ---- what is declared ------------------------------------------------------------------------------------

// from "text/html; charset=…", in a header or in a <meta content>: "extract an encoding from a meta element"
inline std::string charset_in_content(std::string_view s) {
    std::string small = lower(s);
    for (size_t at = 0;;) {
        at = small.find("charset", at);
        if (at == s.npos) return "";
        at = s.find_first_not_of(html_blanks, at + 7);
        if (at == s.npos) return "";
        if (s[at] != '=') continue;
        at = s.find_first_not_of(html_blanks, at + 1);
        if (at == s.npos) return "";
        std::string_view value = s.substr(at);
        if (value[0] == '"' || value[0] == '\'') {
            size_t end = value.find(value[0], 1);
            return end == value.npos ? "" : charset_of_label(value.substr(1, end - 1));
        }
        return charset_of_label(value.substr(0, value.find_first_of("\t\n\f\r ;")));
    }
}

// "prescan a byte stream to determine its encoding", with its steps in the standard's order
class Prescan {
    std::string_view s;
    size_t at = 0;

    bool ended() const { return at >= s.size(); }
    void skip(std::string_view these) {
        while (!ended() && these.find(s[at]) != these.npos) at++;
    }
    void skip_to(std::string_view these) {
        while (!ended() && these.find(s[at]) == these.npos) at++;
    }

    // "get an attribute": false at the end of the tag
    bool attribute(std::string& name, std::string& value) {
        name.clear();
        value.clear();
        skip("\t\n\f\r /");
        if (ended() || s[at] == '>') return false;
        size_t from = at;
        while (!ended() && html_blanks.find(s[at]) == html_blanks.npos && s[at] != '/' && s[at] != '>' &&
               (s[at] != '=' || at == from)) at++;
        name = lower(s.substr(from, at - from));

        skip(html_blanks);
        if (ended() || s[at] != '=') return true;
        at++;
        skip(html_blanks);
        if (ended()) return true;
        char quote = s[at];
        if (quote == '"' || quote == '\'') {
            from = ++at;
            skip_to(std::string_view(&quote, 1));
            value = lower(s.substr(from, at - from));
            if (!ended()) at++;
        } else {
            from = at;
            skip_to("\t\n\f\r >");
            value = lower(s.substr(from, at - from));
        }
        return true;
    }

    // the charset of a <meta>, from behind its name on; "" if it names none that is known
    std::string meta() {
        std::string name, value, found, seen = " ";
        bool is_pragma = false, needs_pragma = false, decided = false;
        while (attribute(name, value)) {
            if (seen.find(" " + name + " ") != seen.npos) continue;
            seen += name + " ";
            if (name == "http-equiv") is_pragma = value == "content-type";
            else if (name == "charset") {
                found = charset_of_label(value);
                needs_pragma = false;
                decided = true;
            } else if (name == "content" && !decided) {
                found = charset_in_content(value);
                needs_pragma = decided = !found.empty();
            }
        }
        return ended() || (needs_pragma && !is_pragma) ? "" : found;
    }

    // "get an XML encoding": <?xml … encoding="…"?> at the very beginning
    std::string xml() const {
        if (!s.starts_with("<?xml")) return "";
        std::string_view head = s.substr(0, s.find('>'));
        size_t i = head.find("encoding");
        if (head.size() == s.size() || i == head.npos) return "";
        auto skip_blanks = [&] { while (i < head.size() && (unsigned char)head[i] <= 0x20) i++; };
        i += 8;
        skip_blanks();
        if (i >= head.size() || head[i] != '=') return "";
        i++;
        skip_blanks();
        if (i >= head.size() || (head[i] != '"' && head[i] != '\'')) return "";
        size_t end = head.find(head[i], i + 1);
        if (end == head.npos) return "";
        std::string_view label = head.substr(i + 1, end - i - 1);
        for (unsigned char c : label) if (c <= 0x20) return "";
        return charset_of_label(label);
    }

public:
    explicit Prescan(std::string_view page) : s(page) {}

    std::string charset() {
        auto letter = [](char c) { return isalpha((unsigned char)c) && !(c & 0x80); };
        for (at = 0; !ended(); at++) {
            std::string_view rest = s.substr(at);
            if (rest[0] != '<') continue;
            if (rest.starts_with("<!--")) {  // whose two hyphens may be those of the end
                size_t end = s.find("-->", at + 2);
                if (end == s.npos) break;
                at = end + 2;
            } else if (rest.size() > 5 && !strncasecmp(rest.data(), "<meta", 5) &&
                       std::string_view("\t\n\f\r /").find(rest[5]) != std::string_view::npos) {
                at += 5;
                if (std::string found = meta(); !found.empty()) return found;
            } else if (rest.size() > 1 && (letter(rest[1]) || (rest[1] == '/' && rest.size() > 2 &&
                                                               letter(rest[2])))) {
                skip_to("\t\n\f\r >");
                for (std::string name, value; attribute(name, value);) {}
            } else if (rest.size() > 1 && (rest[1] == '!' || rest[1] == '/' || rest[1] == '?')) {
                skip_to(">");
            }
        }
        return xml();
    }
};

// ---- conversion ------------------------------------------------------------------------------------------

// false: the charset is unknown here
inline bool convert(std::string_view in, const std::string& charset, std::string& out, size_t* wrong) {
    iconv_t state = iconv_open("UTF-8", charset.c_str());
    if (state == (iconv_t)-1) return false;
    out.clear();
    out.reserve(in.size() + in.size() / 4);
    char* from = (char*)in.data();
    size_t left = in.size();
    char piece[32 << 10];
    auto flush = [&] {  // iconv holds back a letter that a mark after it might change
        char* to = piece;
        size_t space = sizeof piece;
        iconv(state, nullptr, nullptr, &to, &space);
        out.append(piece, sizeof piece - space);
    };

    while (left) {
        char* to = piece;
        size_t space = sizeof piece;
        size_t result = iconv(state, &from, &left, &to, &space);
        out.append(piece, sizeof piece - space);
        if (result != (size_t)-1 || errno == E2BIG) continue;
        if (charset != "ISO-2022-JP") flush();  // there it would also forget the escape state
        unsigned char byte = (unsigned char)*from;
        bool is_windows = charset.starts_with("CP125") || charset == "CP874";
        // as browsers do: a byte that Windows leaves unused is a control character, GBK's 0x80 the euro sign
        if (is_windows && byte >= 0x80 && byte < 0xA0) out += {'\xC2', (char)byte};
        else if (charset == "GB18030" && byte == 0x80) out += "€";
        else {
            out += "\xEF\xBF\xBD";
            ++*wrong;  // an invalid byte, or a character cut off
        }
        from++;
        left--;
    }
    flush();
    iconv_close(state);
    return true;
}

// text that is mostly ASCII has a 0 in every other byte of UTF-16; "": it is not UTF-16
inline std::string utf16_of(std::string_view s) {
    s = s.substr(0, 1024);
    size_t zeros[2] = {};
    for (size_t i = 0; i < s.size(); i++) zeros[i % 2] += s[i] == 0;
    size_t pairs = s.size() / 2;
    if (pairs < 4) return "";
    if (zeros[1] > pairs / 2 && zeros[0] < pairs / 8) return "UTF-16LE";
    return zeros[0] > pairs / 2 && zeros[1] < pairs / 8 ? "UTF-16BE" : "";
}

// the page as UTF-8; charset: the one it was decoded from
inline std::string to_utf8(std::string_view body, std::string_view content_type, std::string* charset) {
    size_t wrong = 0;
    std::string other;
    auto is_in = [&](const std::string& name) {  // then `other` is the page
        size_t errors = 0;
        if (name.empty() || !convert(body, name, other, &errors) || errors > body.size() / 100) return false;
        *charset = name;
        other = valid_utf8(other, &errors);
        return true;
    };

    for (auto [mark, name] :
         {std::pair{"\xEF\xBB\xBF", "UTF-8"}, {"\xFF\xFE", "UTF-16LE"}, {"\xFE\xFF", "UTF-16BE"}})
        if (body.starts_with(mark)) {
            body.remove_prefix(strlen(mark));
            *charset = name;
            return name[4] == '8' || !convert(body, name, other, &wrong) ? valid_utf8(body, &wrong)
                : valid_utf8(other, &wrong);
        }
    if (is_in(utf16_of(body))) return other;

    std::string out = valid_utf8(body, &wrong);
    *charset = "UTF-8";
    bool may_be_7_bit = body.find('\x1b') != body.npos;  // ISO-2022-JP: ASCII bytes and escapes
    if (!wrong && !may_be_7_bit) return out;

    for (std::string name : {charset_in_content(content_type), Prescan(body.substr(0, 4096)).charset()}) {
        if (name.starts_with("UTF-16")) name = "UTF-8";  // it is not, or it would have been found above
        if (name == "UTF-8" && wrong > body.size() / 100) continue;  // it is not what it says
        if (name == "UTF-8") return out;
        if (is_in(name)) return other;
    }

    // what the bytes look like
    uchardet_t detector = uchardet_new();
    uchardet_handle_data(detector, body.data(), std::min(body.size(), (size_t)64 << 10));
    uchardet_data_end(detector);
    std::string found = uchardet_get_charset(detector);
    uchardet_delete(detector);
    size_t high = (size_t)std::count_if(body.begin(), body.end(), [](char c) { return (c & 0x80) != 0; });
    // it saw only ASCII, and the rest is UTF-8 except for a cut or a stray byte
    bool mostly_utf8 = (found == "ASCII" || found.empty()) && 2 * wrong < high;
    if (found == "UTF-8" || mostly_utf8) return out;
    return is_in(found) || is_in("CP1252") ? other : out;
}
