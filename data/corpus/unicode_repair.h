// unicode_repair.h   repairs wrongly decoded text and removes invisible characters, as ftfy does
//   1  mojibake      UTF-8 that was read as windows-1252 ("cafÃ©" was "café"), up to three times over: a
//                    run of characters whose windows-1252 bytes are one UTF-8 character becomes that one, but
//                    only where this is certain (see damage_at): correct text has such runs too
//   2  C1 controls   are windows-1252's characters, as browsers take them
//   3  line ends     CR LF, CR, U+0085, U+2028, U+2029 and form feeds (between pages of a book) become LF
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

// What may stand behind a letter in correct text: marks that also stand between words (quotes, dashes, a
// no-break space), Š and Ž of either case, other signs (® and ™, € and °), or nothing of the kind, as ¼, Œ or
// a control character
enum class Behind { Mark, Sign, Nothing };
inline Behind behind_a_word(uint32_t c) {
    for (uint32_t mark : {0x2018, 0x2019, 0x201A, 0x201C, 0x201D, 0x201E, 0x2013, 0x2014, 0x2022, 0x2026,
                          0x2039, 0x203A, 0xA0, 0xAB, 0xAD, 0xB7, 0xBB, 0x20, 0x160, 0x161, 0x17D, 0x17E})
        if (c == mark) return Behind::Mark;
    for (uint32_t sign : {0x2020, 0x2021, 0x2030, 0x20AC, 0x2122, 0xA1, 0xA7, 0xA9, 0xAA, 0xAE, 0xB0, 0xB2,
                          0xB3, 0xB4, 0xB9, 0xBA, 0xBF})
        if (c == sign) return Behind::Sign;
    return Behind::Nothing;
}

enum class Case { None, Small, Capital };
inline Case case_of(uint32_t c) {
    if ((c >= 'a' && c <= 'z') || (c >= 0xDF && c <= 0xFF && c != 0xF7)) return Case::Small;
    return (c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7) ? Case::Capital : Case::None;
}

// characters that may be one misread UTF-8 character: their length in the text, and that character's bytes
struct Misread {
    size_t length = 0;  // 0: there is none here
    char bytes[5] = {};
    uint32_t second = 0;             // the character behind the first
    Behind behind = Behind::Mark;    // the least likely of all behind the first
    bool is_odd = false;             // has ƒ, ˆ, ˜ or a control character, which are hardly ever in a text
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
        if (k == 1) m.second = c;
        m.behind = std::max(m.behind, behind_a_word(c));
        bool odd = c == 0x192 || c == 0x2C6 || c == 0x2DC || (c >= 0x80 && c < 0xA0);
        m.is_odd = m.is_odd || odd;
        m.bytes[k] = (char)b;
    }

    if (utf8_bytes(std::string_view(m.bytes, n)) != n) return {};
    m.length = at - i;
    return m;
}

// the character that ends before i; 0 at the beginning
inline uint32_t character_before(std::string_view s, size_t i) {
    if (i == 0) return 0;
    size_t from = i - 1, step = 0;
    while (from > 0 && ((unsigned char)s[from] & 0xC0) == 0x80) from--;
    return decode_at(s, from, &step);
}

// How sure it is that a misread character is none that was meant. Correct text has a capital letter before a
// sign or mark (NESCAFÉ®, AMANHÃ…, «Ñ»), and a small one before two (café”…): such a run alone says nothing
enum class Damage { No, Maybe, Sure };
inline Damage damage_at(const Misread& m, std::string_view s, size_t i, bool after_another) {
    unsigned char lead = (unsigned char)m.bytes[0];
    size_t end = i + m.length, step = 0, behind = m.second == ' ' && s[end - 1] != ' ' ? end + 1 : end;
    uint32_t before = character_before(s, i), after = behind < s.size() ? decode_at(s, behind, &step) : 0;
    Case left = case_of(before), right = case_of(after);
    bool is_digit = before >= '0' && before <= '9', has_nothing = m.behind == Behind::Nothing;

    if (lead == 0xC3 && (m.second == ' ' || m.second == 0xA0)) {  // "à" stands alone, or ends a word
        bool stands = before < 0x80 ? left == Case::None && !is_digit : before == 0x2019;
        bool alone = stands && right != Case::Capital;
        if (alone || left == Case::Small) return Damage::Sure;
        return m.second == ' ' ? Damage::No : Damage::Maybe;
    }
    if (lead == 0xEF && (m.bytes[1] == '\xBB' || m.bytes[1] == '\xBF'))  // a byte order mark, or U+FFFD
        return m.bytes[2] == '\xBF' || m.bytes[2] == '\xBD' ? Damage::Sure : Damage::Maybe;

    if (after_another) return Damage::Sure;
    // behind another sign of the kind: what is left of worse damage
    if (before >= 0x80 && left == Case::None && byte_of(before) >= 0 && lead >= 0xE0) return Damage::Maybe;

    // two in a row are no accident, unless both could be a letter and a sign; three are none at all
    Misread next = end < s.size() ? misread_at(s, end) : Misread(), third;
    if (next.length && end + next.length < s.size()) third = misread_at(s, end + next.length);
    if (third.length) return Damage::Sure;
    if (next.length && (has_nothing || next.behind == Behind::Nothing)) return Damage::Sure;

    if (lead >= 0xE0) {
        if (lead == 0xE2 && (m.second == 0x20AC || has_nothing || left == Case::None))
            return Damage::Sure;  // â€™ and its like: quotes, dashes, arrows
        if (m.is_odd) return Damage::Sure;
        bool inside = left == Case::Small && right == Case::Small && m.behind != Behind::Mark;
        return inside ? Damage::Sure : Damage::Maybe;
    }

    if (lead == 0xD7 || lead == 0xDF) return Damage::Maybe;  // × and ß stand behind anything
    if (lead == 0xC3 && m.second == 0xA5) return Damage::Maybe;  // in Mac OS Roman it is something else
    if (left == Case::Small) return Damage::Sure;  // a capital inside a word
    if (left == Case::None && right == Case::Small && m.behind != Behind::Mark) return Damage::Sure;
    if (lead > 0xC3) return Damage::Maybe;

    // Ã and Â, of which nearly all damage in western text consists, are no words
    if (left == Case::None && (is_digit || has_nothing)) return Damage::Sure;
    if (lead == 0xC2)
        return left == Case::None && before < 0x80 && m.second < 0x100 ? Damage::Sure : Damage::Maybe;
    if (right == Case::Small && m.behind != Behind::Mark) return Damage::Sure;  // MÃ©xico
    if (left == Case::Capital && has_nothing) return Damage::Sure;
    bool ends = m.second == 0x2018 || m.second == 0x201C || m.second == 0x201D || m.second == 0x2122 ||
        m.second == 0x160 || m.second == 0x161;
    return right == Case::Capital && ends ? Damage::Sure : Damage::Maybe;  // AÃ‘OS
}

// "Ã " is "à" with its blank lost, as in "Ã s" or where another blank follows, or "à" before a blank
inline void keep_blank(Misread& m, std::string_view s) {
    std::string_view rest = s.substr(m.length);
    for (const char* joined : {" ", "quele", "quela", "quilo", "s "})
        if (rest.starts_with(joined)) return;
    m.length--;
}

// false: there is nothing to repair. What may be damage is repaired in a line that surely has some
inline bool repair_mojibake(std::string& s) {
    std::string out;
    size_t from = 0;
    struct Found { size_t at; Misread what; };
    std::vector<Found> doubtful, all;
    bool another = false, sure = false;

    auto end_line = [&] {
        if (sure) all.insert(all.end(), doubtful.begin(), doubtful.end());
        doubtful.clear();
        sure = false;
    };

    for (size_t i = 0; i < s.size();) {
        // what was misread begins with U+00C2 to U+00F4: C3 82 to C3 B4
        size_t next = std::min(s.find('\xC3', i), s.size());
        if (next > i) {
            bool has_found = sure || !doubtful.empty();
            if (has_found && std::string_view(s).substr(i, next - i).find('\n') != s.npos) end_line();
            another = false;
            i = next;
            if (i == s.size()) break;
        }

        Misread m = misread_at(s, i);
        if (m.second == ' ') keep_blank(m, std::string_view(s).substr(i));
        Damage damage = m.length ? damage_at(m, s, i, another) : Damage::No;
        if (damage != Damage::No) {
            (damage == Damage::Sure ? all : doubtful).push_back({i, m});
            sure = sure || damage == Damage::Sure;
            another = damage == Damage::Sure;
            if (another) {
                i += m.length;
                continue;
            }
        } else another = false;

        size_t n = 0;
        decode_at(s, i, &n);
        i += n;
    }
    end_line();

    std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) { return a.at < b.at; });
    for (auto& [at, what] : all) {
        if (at < from) continue;  // inside the one before
        out.append(s, from, at - from);
        out += what.bytes;
        from = at + what.length;
    }
    if (from == 0) return false;
    out.append(s, from, s.npos);
    s = std::move(out);
    return true;
}

// what is never seen, or has no meaning in text
inline bool invisible(uint32_t c) {
    return (c < 0x20 && c != '\t' && c != '\n') || c == 0x7F || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC) ||
        (c >= 0x206A && c <= 0x206F) || c == 0xE0001;  // other tags: flags, as England's
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
        bool line = c == '\r' || c == '\f' || c == 0x85 || c == 0x2028 || c == 0x2029;
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
