// unicode_repair.h   repairs wrongly decoded text and removes invisible characters, as ftfy does
//   1  mojibake      UTF-8 that was read as windows-1252 ("cafÃ©" was "café"), up to three times over: a
//                    run of characters whose windows-1252 bytes are one UTF-8 character becomes it, where it
//                    is more likely damage than text (likely_damage says when)
//   2  C1 controls   are windows-1252's characters, as browsers take them
//   3  line ends     CR LF, CR, U+0085, U+2028 and U+2029 become LF
//   4  invisible     control characters but tab and LF, byte order marks, deprecated format characters go
//   5  NFC           Unicode's canonical composition (UAX #15, by utf8proc)
//   Text that is ASCII passes at memory speed.
#pragma once
#include <utf8proc.h>
#include <string>
#include <vector>
#include "../json.h"
#include "http.h"

// windows-1252's 0x80 to 0x9F; where it has none, the C1 control of that number, as browsers do
constexpr uint16_t windows_1252[32] = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                       0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                       0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                       0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

// the byte of windows-1252 that would have been read as c, or -1
inline int byte_of(uint32_t c) {
    if (c >= 0x80 && c <= 0xFF) return (int)c;
    if (c < 0x100 || c > 0x2122) return -1;
    for (int i = 0; i < 32; i++) if (windows_1252[i] == c) return 0x80 + i;
    return -1;
}

// characters that may be one misread UTF-8 character: their length in the text, and that character's bytes
struct Misread {
    size_t length = 0;  // 0: there is none here
    char bytes[5] = {};
    bool quotes = true;  // all behind its first byte were quotes, dashes or blanks, as real text has them
};
inline Misread misread_at(std::string_view s, size_t i) {
    size_t step = 0;
    int lead = byte_of(decode_at(s, i, &step));
    if (lead < 0xC2 || lead > 0xF4) return {};

    Misread m;
    size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2, at = i + step;
    m.bytes[0] = (char)lead;
    for (size_t k = 1; k < n; k++, at += step) {
        if (at >= s.size()) return {};
        uint32_t c = decode_at(s, at, &step);
        int b = byte_of(c);
        if (lead == 0xC3 && k == 1 && c == ' ') b = 0xA0;  // "Ã " was "à", its no-break space made a blank
        if (b < 0x80 || b > 0xBF) return {};
        bool usual = (c >= 0x2013 && c <= 0x2026 && c != 0x2020 && c != 0x2021 && c != 0x2022) || c == 0xAB ||
            c == 0xBB || c == 0xA0 || c == 0x2039 || c == 0x203A || c == ' ';
        m.quotes = m.quotes && usual;
        m.bytes[k] = (char)b;
    }

    if (utf8_bytes(std::string_view(m.bytes, n)) != n) return {};
    m.length = at - i;
    return m;
}

// Â, Ã and â begin nearly all damage in western text, Ð and Ñ in Cyrillic; words do not have them before such
// characters. Any other letter, if only quotes or dashes follow, may be the end of a word, unless the word
// continues after them; two misread characters in a row are no accident.
inline bool likely_damage(const Misread& m, std::string_view s, size_t i, bool after_another) {
    unsigned char lead = (unsigned char)m.bytes[0];
    size_t end = i + m.length;
    if (lead == 0xC3 && s[end - 1] == ' ') return i > 0 && s[i - 1] == ' ';  // "Ã " stands alone, as "à" does
    if (lead == 0xE2 || lead == 0xC2 || lead == 0xC3 || lead == 0xD0 || lead == 0xD1) return true;
    if (lead == 0xEF) return !memcmp(m.bytes, "\xEF\xBB\xBF", 3) || !memcmp(m.bytes, "\xEF\xBF\xBD", 3);
    if (after_another || !m.quotes) return true;
    if (end < s.size() && misread_at(s, end).length) return true;
    bool apostrophe = m.bytes[1] == (char)0x92 && !m.bytes[2];  // l’Ô’x: a word may go on behind one
    return end < s.size() && isalpha((unsigned char)s[end]) && !apostrophe;
}

inline bool repair_mojibake(std::string& s) {
    std::string out;
    size_t from = 0;
    bool another = false;

    for (size_t i = 0; i < s.size();) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x80) {
            i++;
            another = false;
            continue;
        }

        Misread m =
            c == 0xC3 ? misread_at(s, i) : Misread();  // all leads are U+00C2 to U+00F4: C3 82 to C3 B4
        if (m.length && likely_damage(m, s, i, another)) {
            out.append(s, from, i - from);
            out += m.bytes;
            i += m.length;
            from = i;
            another = true;
            continue;
        }

        size_t n = 0;
        decode_at(s, i, &n);
        i += n;
        another = false;
    }

    if (from == 0) return false;
    out.append(s, from, s.npos);
    s = std::move(out);
    return true;
}

// what is never seen, or has no meaning in text
inline bool invisible(uint32_t c) {
    return (c < 0x20 && c != '\t' && c != '\n') || c == 0x7F || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC) ||
        (c >= 0x206A && c <= 0x206F) || (c >= 0xE0000 && c <= 0xE007F);
}

// May composition change this character, or one before it? Never below U+0300, nor in these common ranges:
// they have no combining marks, and NFC_Quick_Check is Yes (DerivedNormalizationProps)
inline bool may_compose(uint32_t c) {
    auto within = [&](uint32_t first, uint32_t last) { return c >= first && c <= last; };
    return c >= 0x300 && !within(0x400, 0x482) && !within(0x48A, 0x52F) && !within(0x2002, 0x20CF) &&
        !within(0x2100, 0x2125) && !within(0x3400, 0x9FFF);
}

// Marks on one character in the order of their classes (Unicode, D109): the library would do it by swapping
// neighbours, in a time that is quadratic in their number.
inline void order_marks(std::string& s) {
    struct Mark { int order; uint32_t code; };
    std::vector<Mark> run;
    std::string out;
    out.reserve(s.size());

    auto end_run = [&] {
        auto less = [](const Mark& a, const Mark& b) { return a.order < b.order; };
        std::stable_sort(run.begin(), run.end(), less);
        for (auto& m : run) append_utf8(out, m.code);
        run.clear();
    };

    for (size_t i = 0, n = 0; i < s.size(); i += n) {
        uint32_t c = decode_at(s, i, &n);
        int order = c < 0x300 ? 0 : utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
        if (order) run.push_back({order, c});
        else {
            if (!run.empty()) end_run();
            out.append(s, i, n);
        }
    }

    end_run();
    s = std::move(out);
}

// true: something was changed
inline bool repair_unicode(std::string& s) {
    bool plain = true, marks = false;  // marks: what composition could change
    for (unsigned char c : s) plain = plain && (c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7F));
    if (plain) return false;

    std::string given = s;
    // misread characters begin with U+00C2 to U+00F4, whose first byte is C3
    for (int times = 0; times < 3 && s.find('\xC3') != s.npos; times++) if (!repair_mojibake(s)) break;

    std::string out;
    out.reserve(s.size());
    for (size_t i = 0; i < s.size();) {
        size_t n = 0;
        while (i + n < s.size() && (unsigned char)s[i + n] >= 0x20 && (unsigned char)s[i + n] < 0x7F) n++;
        out.append(s, i, n);
        i += n;
        if (i == s.size()) break;

        uint32_t c = decode_at(s, i, &n);
        if (c >= 0x80 && c < 0xA0 && c != 0x85) c = windows_1252[c - 0x80];
        bool line = c == '\r' || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (line) {
            if (c == '\r' && i + 1 < s.size() && s[i + 1] == '\n') i++;
            out += '\n';
        } else if (!invisible(c)) append_utf8(out, c);
        marks = marks || may_compose(c);
        i += n;
    }

    s = std::move(out);
    if (marks) {
        order_marks(s);
        utf8proc_uint8_t* composed = nullptr;
        utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t*)s.data(), (utf8proc_ssize_t)s.size(),
                                          &composed, (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        if (n >= 0) s.assign((const char*)composed, (size_t)n);
        free(composed);
    }
    return s != given;
}
