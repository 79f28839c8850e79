// text.h   UTF-8 text: characters (code points), white space, words
#pragma once
#include <stdint.h>
#include <strings.h>
#include <utf8proc.h>
#include <string>
#include <string_view>
#include "../json.h"

// ASCII control characters but tab, LF, CR and FF become blanks; bytes that are not UTF-8 become U+FFFD
inline std::string valid_utf8(std::string_view in, size_t* wrong) {
    std::string out;
    out.reserve(in.size() + 16);
    for (size_t i = 0; i < in.size();) {
        unsigned char c = (unsigned char)in[i];
        if (c >= 0x20 && c < 0x7F) {
            size_t from = i;
            while (i < in.size() && (unsigned char)in[i] >= 0x20 && (unsigned char)in[i] < 0x7F) i++;
            out.append(in, from, i - from);
            continue;
        }

        size_t n = utf8_bytes(in.substr(i));
        if (n == 0) {
            out += "\xEF\xBF\xBD";
            ++*wrong;
        } else if (n == 1) out += c == '\t' || c == '\n' || c == '\r' || c == '\f' ? (char)c : ' ';
        else out.append(in, i, n);
        i += std::max(n, (size_t)1);
    }
    return out;
}

inline int64_t characters(std::string_view s) {  // code points
    int64_t n = 0;
    for (char c : s) n += ((unsigned char)c & 0xC0) != 0x80;
    return n;
}

// ---- white space and words -------------------------------------------------------------------------------

// bytes of the white space (Python's str.isspace) at s, or 0
inline size_t space_bytes(const char* p, const char* end) {
    unsigned char c = (unsigned char)p[0];
    if (c <= ' ') return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
    if (c < 0xC2 || end - p < 2) return 0;
    unsigned char d = (unsigned char)p[1], e = end - p > 2 ? (unsigned char)p[2] : 0;
    if (c == 0xC2) return d == 0x85 || d == 0xA0 ? 2 : 0;
    bool is = (c == 0xE1 && d == 0x9A && e == 0x80) || (c == 0xE3 && d == 0x80 && e == 0x80) ||
        (c == 0xE2 && d == 0x80 && ((e >= 0x80 && e <= 0x8A) || e == 0xA8 || e == 0xA9 || e == 0xAF)) ||
        (c == 0xE2 && d == 0x81 && e == 0x9F);
    return is ? 3 : 0;
}

// adds s to out, each run of white space as a blank, or as a line end if it has one; returns the characters
inline long append_normalised(std::string& out, std::string_view s) {
    const char *p = s.data(), *end = p + s.size();
    long n = 0;
    while (p < end) {
        const char* from = p;
        while (p < end && (unsigned char)*p > ' ' && (unsigned char)*p < 0xC2) {
            n++;
            p++;
        }
        out.append(from, p);
        if (p == end) break;

        size_t space = space_bytes(p, end);
        if (!space) {
            out += *p++;
            while (p < end && ((unsigned char)*p & 0xC0) == 0x80) out += *p++;
            n++;
            continue;
        }

        bool line = false;
        for (; p < end && (space = space_bytes(p, end)); p += space) line = line || *p == '\n' || *p == '\r';
        out += line ? '\n' : ' ';
        n++;
    }
    return n;
}

inline std::string_view trim_spaces(std::string_view s) {
    const char *p = s.data(), *end = p + s.size();
    while (p < end) {
        size_t n = space_bytes(p, end);
        if (!n) break;
        p += n;
    }
    while (p < end) {
        const char* last = end - 1;
        while (last > p && ((unsigned char)*last & 0xC0) == 0x80) last--;
        if (!space_bytes(last, end)) break;
        end = last;
    }
    return {p, (size_t)(end - p)};
}

// ASCII letters alone: K (U+212A) is no k
inline void make_lower(std::string& s) {
    for (char& c : s) c = c >= 'A' && c <= 'Z' ? (char)(c | 32) : c;
}

inline std::string lower(std::string_view s) {
    std::string out(s);
    make_lower(out);
    return out;
}

// s begins with these ASCII letters, in either case
inline bool begins_as(std::string_view s, std::string_view letters) {
    return s.size() >= letters.size() && !strncasecmp(s.data(), letters.data(), letters.size());
}

// the lower case of any letter
inline uint32_t lower_code(uint32_t c) {
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c | 32 : c;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

inline void append_lower(std::string& out, std::string_view s) {
    for (size_t i = 0, n = 1; i < s.size(); i += n)
        if ((unsigned char)s[i] >= 0x80) append_utf8(out, lower_code(decode_at(s, i, &n)));
        else {
            out += (char)lower_code((unsigned char)s[i]);
            n = 1;
        }
}

inline std::string lower_word(std::string_view s) {
    std::string out;
    append_lower(out, s);
    return out;
}

// calls each(word) for each word between white space
template <class Each>
void for_words(std::string_view s, Each each) {
    const char *p = s.data(), *end = p + s.size();
    while (p < end) {
        size_t space;
        while (p < end && (space = space_bytes(p, end))) p += space;
        const char* from = p;
        while (p < end && !space_bytes(p, end)) p++;
        if (p > from) each(std::string_view(from, (size_t)(p - from)));
    }
}
