// json.h   JSON text (RFC 8259) <-> a tree; for headers, metrics and documents
//   Json::parse(text, name) refuses what is not JSON, with the offset; at most 1024 levels, like simdjson.
//   Numbers keep their text, so that integers of any size survive. Strings are bytes: invalid UTF-8 passes
//   through, a lone surrogate escape becomes U+FFFD.
#pragma once
#include <stdint.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "../layers/base/check.h"
#include "utf8.h"

struct Json {
    struct Member;  // of an object: first, its name; second, its value
    enum Kind { Null, Boolean, Number, String, Array, Object } kind = Null;
    std::string text;  // of a string, unescaped; of a number or boolean, as it stood
    std::vector<Json> items;
    std::vector<Member> members;

    const Json* find(std::string_view key) const;
    const Json& at(std::string_view key, const std::string& name) const {
        const Json* value = find(key);
        if (!value) fail("%s: has no \"%.*s\"", name.c_str(), (int)key.size(), key.data());
        return *value;
    }

    int64_t integer(const std::string& name) const {
        char* end = nullptr;
        errno = 0;
        long long value = strtoll(text.c_str(), &end, 10);
        if (kind != Number || *end || errno)
            fail("%s: has %s, expected a whole number", name.c_str(), text.c_str());
        return value;
    }

    double number(const std::string& name) const {
        if (kind != Number) fail("%s: has %s, expected a number", name.c_str(), text.c_str());
        return strtod(text.c_str(), nullptr);
    }

    const std::string& string(const std::string& name) const {
        if (kind != String) fail("%s: expected a string", name.c_str());
        return text;
    }

    static Json parse(std::string_view text, const std::string& name);
};

struct Json::Member {
    std::string first;
    Json second;
};

inline const Json* Json::find(std::string_view key) const {
    for (size_t i = members.size(); i-- > 0;)  // of several with one name, as in Python, the last
        if (members[i].first == key) return &members[i].second;
    return nullptr;
}

struct JsonParser {
    std::string_view s;
    const std::string& name;
    size_t at = 0;

    [[noreturn]] void refuse(const char* want) const {
        fail("%s: not JSON at offset %zu: expected %s", name.c_str(), at, want);
    }

    void space() {
        while (at < s.size() && (s[at] == ' ' || s[at] == '\t' || s[at] == '\n' || s[at] == '\r')) at++;
    }

    bool take(char c) {
        space();
        if (at >= s.size() || s[at] != c) return false;
        at++;
        return true;
    }

    uint32_t hex4() {
        uint32_t value = 0;
        for (int i = 0; i < 4; i++, at++) {
            char c = at < s.size() ? s[at] : 0;
            int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' &&
                c <= 'F' ? c - 'A' + 10 : -1;
            if (digit < 0) refuse("four hexadecimal digits");
            value = value * 16 + (uint32_t)digit;
        }
        return value;
    }

    void escape(std::string& out) {
        char c = at < s.size() ? s[at++] : 0;
        switch (c) {
            case '"': case '\\': case '/': out += c; return;
            case 'b': out += '\b'; return;
            case 'f': out += '\f'; return;
            case 'n': out += '\n'; return;
            case 'r': out += '\r'; return;
            case 't': out += '\t'; return;
            case 'u': break;
            default: refuse("an escape");
        }

        uint32_t code = hex4();
        if (code >= 0xD800 && code < 0xDC00 && s.substr(at, 2) == "\\u") {
            size_t before = at;
            at += 2;
            uint32_t low = hex4();
            if (low >= 0xDC00 && low < 0xE000) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            else at = before;
        }
        append_utf8(out, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
    }

    std::string string() {
        std::string out;
        for (;;) {
            size_t plain = at;
            while (at < s.size() && s[at] != '"' && s[at] != '\\' && (unsigned char)s[at] >= 0x20) at++;
            out.append(s.substr(plain, at - plain));
            if (at >= s.size() || (unsigned char)s[at] < 0x20) refuse("the end of a string");
            if (s[at++] == '"') return out;
            escape(out);
        }
    }

    Json number() {
        size_t start = at;
        auto digits = [&] {
            if (at >= s.size() || s[at] < '0' || s[at] > '9') refuse("a digit");
            while (at < s.size() && s[at] >= '0' && s[at] <= '9') at++;
        };

        if (s[at] == '-') at++;
        if (s.substr(at, 1) == "0") at++;  // no digit may follow a leading zero
        else digits();

        if (at < s.size() && s[at] == '.') {
            at++;
            digits();
        }

        if (at < s.size() && (s[at] == 'e' || s[at] == 'E')) {
            at++;
            if (at < s.size() && (s[at] == '+' || s[at] == '-')) at++;
            digits();
        }

        Json out;
        out.kind = Json::Number;
        out.text = s.substr(start, at - start);
        return out;
    }

    Json word() {
        for (const char* word : {"null", "true", "false"}) {
            if (s.substr(at, strlen(word)) != word) continue;
            at += strlen(word);
            Json out;
            out.kind = word[0] == 'n' ? Json::Null : Json::Boolean;
            out.text = word;
            return out;
        }
        refuse("a value");
    }

    Json value(int depth) {
        if (depth > 1024) refuse("at most 1024 levels");
        space();
        Json out;
        if (take('{')) {
            out.kind = Json::Object;
            if (take('}')) return out;
            do {
                if (!take('"')) refuse("a key");
                std::string key = string();
                if (!take(':')) refuse("a colon");
                out.members.emplace_back(std::move(key), value(depth + 1));
            } while (take(','));
            if (!take('}')) refuse("a comma or }");
        } else if (take('[')) {
            out.kind = Json::Array;
            if (take(']')) return out;
            do out.items.push_back(value(depth + 1));
            while (take(','));
            if (!take(']')) refuse("a comma or ]");
        } else if (take('"')) {
            out.kind = Json::String;
            out.text = string();
        } else if (at < s.size() && (s[at] == '-' || (s[at] >= '0' && s[at] <= '9'))) {
            return number();
        } else {
            return word();
        }
        return out;
    }
};

inline Json Json::parse(std::string_view text, const std::string& name) {
    JsonParser parser = {text, name};
    Json out = parser.value(0);
    parser.space();
    if (parser.at != text.size()) parser.refuse("the end");
    return out;
}

inline void append_json(std::string& out, std::string_view s) {  // quoted; s is UTF-8
    out += '"';
    size_t from = 0;
    for (size_t i = 0; i < s.size(); i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        out.append(s, from, i - from);
        from = i + 1;
        if (c == '\n') out += "\\n";
        else if (c == '\t') out += "\\t";
        else if (c == '\r') out += "\\r";
        else if (c < 0x20) out += ::text("\\u%04x", c);
        else {
            out += '\\';
            out += (char)c;
        }
    }
    out.append(s, from, s.npos);
    out += '"';
}

inline std::string json_quote(std::string_view s) {
    std::string out;
    append_json(out, s);
    return out;
}
