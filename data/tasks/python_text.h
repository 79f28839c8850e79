// python_text.h   text as Python's str has it: code points, white space, capitals, json.dumps
#pragma once
#include <locale.h>
#include <wctype.h>
#include <string>
#include <string_view>
#include <vector>
#include "../json.h"
#include "../tokenizer.h"

// code points of UTF-8; invalid bytes are refused
inline std::vector<uint32_t> code_points(std::string_view s, const std::string& where) {
    std::vector<uint32_t> out;
    for (size_t i = 0, bytes; i < s.size(); i += bytes) {
        if (!utf8_bytes(s.substr(i)))
            fail("%s: has a byte 0x%02x that is not UTF-8, %zu bytes into a text: convert the file to UTF-8",
                 where.c_str(), (unsigned char)s[i], i);
        out.push_back(decode_at(s, i, &bytes));
    }
    return out;
}

inline std::string from_code_points(const std::vector<uint32_t>& codes) {
    std::string out;
    for (uint32_t c : codes) append_utf8(out, c);
    return out;
}

// str.isspace: white space, and the four separators U+001C to U+001F
inline bool python_space(uint32_t c) { return char_classes()[c] == Space || (c >= 0x1C && c <= 0x1F); }

// str.strip()
inline std::string python_strip(const std::string& s, const std::string& where) {
    std::vector<uint32_t> codes = code_points(s, where);
    size_t begin = 0, end = codes.size();
    while (begin < end && python_space(codes[begin])) begin++;
    while (end > begin && python_space(codes[end - 1])) end--;
    return from_code_points({codes.begin() + begin, codes.begin() + end});
}

// str.capitalize(): the first character upper case, all others lower case. Unlike in Python, a character
// never becomes several (Python: "ß" -> "Ss")
inline std::string python_capitalize(const std::string& s, const std::string& where) {
    static locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    std::vector<uint32_t> codes = code_points(s, where);
    for (size_t i = 0; i < codes.size(); i++) {
        uint32_t c = codes[i];
        if (c < 0x80)
            codes[i] = i ? (c >= 'A' && c <= 'Z' ? c + 32 : c) : (c >= 'a' && c <= 'z' ? c - 32 : c);
        else if (utf8) codes[i] = (uint32_t)(i ? towlower_l(c, utf8) : towupper_l(c, utf8));
    }
    return from_code_points(codes);
}

// s.replace(from, to)
inline std::string replace_all(const std::string& s, std::string_view from, std::string_view to) {
    std::string out;
    for (size_t at = 0;;) {
        size_t found = s.find(from, at);
        out.append(s, at, found == s.npos ? found : found - at);
        if (found == s.npos) return out;
        out += to;
        at = found + from.size();
    }
}

// json.dumps(s): all but printable ASCII is escaped
inline std::string python_json(std::string_view s, const std::string& where) {
    std::string out = "\"";
    for (uint32_t c : code_points(s, where)) {
        if (c == '"' || c == '\\') out += {'\\', (char)c};
        else if (c == '\n') out += "\\n";
        else if (c == '\r') out += "\\r";
        else if (c == '\t') out += "\\t";
        else if (c == '\b') out += "\\b";
        else if (c == '\f') out += "\\f";
        else if (c >= ' ' && c <= '~') out += (char)c;
        else if (c < 0x10000) out += text("\\u%04x", c);
        else out += text("\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
    }
    return out + "\"";
}
