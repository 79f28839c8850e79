// utf8.h   characters of UTF-8, as Unicode defines it (Table 3-7)
#pragma once
#include <stdint.h>
#include <string>
#include <string_view>

// bytes of the character at s, 0 if there is none
inline size_t utf8_bytes(std::string_view s) {
    unsigned char c = (unsigned char)s[0];
    if (c < 0x80) return 1;
    size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || s.size() < n) return 0;
    for (size_t i = 1; i < n; i++) if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
    unsigned char d = (unsigned char)s[1];
    bool bad = (c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) ||
        (c == 0xF4 && d > 0x8F);
    return bad ? 0 : n;
}

// the character at s[i], and its bytes; U+FFFD and 1 if there is none
inline uint32_t decode_at(std::string_view s, size_t i, size_t* bytes) {
    size_t n = utf8_bytes(s.substr(i));
    *bytes = n ? n : 1;
    unsigned char c = (unsigned char)s[i];
    if (n <= 1) return n ? c : 0xFFFD;
    uint32_t code = c & (0xFFu >> (n + 1));
    for (size_t k = 1; k < n; k++) code = code << 6 | ((unsigned char)s[i + k] & 0x3F);
    return code;
}

inline void append_utf8(std::string& out, uint32_t c) {
    if (c < 0x80) out += (char)c;
    else if (c < 0x800) out += {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 63))};
    else if (c < 0x10000)
        out += {(char)(0xE0 | c >> 12), (char)(0x80 | (c >> 6 & 63)), (char)(0x80 | (c & 63))};
    else out += {(char)(0xF0 | c >> 18), (char)(0x80 | (c >> 12 & 63)), (char)(0x80 | (c >> 6 & 63)),
                 (char)(0x80 | (c & 63))};
}
