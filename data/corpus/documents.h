// documents.h   documents as they travel between steps: one JSON object a line, plain, .gz or .zst
//   {"text": "…", "id": "…", "meta": {…}}   the Pile's form; id and meta are optional, other keys dropped
//   A line that is not a document is skipped and counted: broken JSON, no "text", invalid UTF-8, or longer
//   than `longest` bytes; where compressed data are damaged, the pieces before and after the gap are no
//   line. A line is held whole, so `longest` bounds a reader's memory. What no field needs is not checked:
//   integers of any size and lone surrogates, which simdjson refuses, are read by json.h.
#pragma once
#include <simdjson.h>
#include <xxhash.h>
#include <map>
#include <string>
#include "../json.h"
#include "streams.h"
#include "text.h"

using Counts = std::map<std::string, int64_t>;  // what was seen, kept and dropped, by name
inline int64_t count_of(const Counts& c, const char* name) {
    auto found = c.find(name);
    return found == c.end() ? 0 : found->second;
}

struct Document {
    std::string text, id;
    std::string meta;  // JSON, "{…}", or ""
    // the key of its random numbers: it does not depend on the document's file, line or rank
    uint64_t key() const {
        return XXH3_64bits_withSeed(text.data(), text.size(), XXH3_64bits(id.data(), id.size()));
    }
};

// compact, as simdjson::minify writes it; numbers as they stood
inline void append_json(std::string& out, const Json& j) {
    if (j.kind == Json::String) return append_json(out, j.text);
    if (j.kind == Json::Null) out += "null";
    else if (j.kind == Json::Array) {
        out += '[';
        for (auto& item : j.items) {
            if (&item != &j.items[0]) out += ',';
            append_json(out, item);
        }
        out += ']';
    } else if (j.kind == Json::Object) {
        out += '{';
        for (auto& [key, value] : j.members) {
            if (&value != &j.members[0].second) out += ',';
            append_json(out, key);
            out += ':';
            append_json(out, value);
        }
        out += '}';
    } else out += j.text;
}

// an object with the member "name": value, in place of one that it had; value is JSON
inline std::string with_meta(const std::string& meta, const std::string& name, const std::string& value) {
    std::string pair = "\"" + name + "\": " + value, kept = meta;
    if (meta.find("\"" + name + "\"") != meta.npos) {
        kept = "{";
        for (auto& [key, member] : Json::parse(meta, "\"meta\"").members) {
            if (key == name) continue;
            if (kept.size() > 1) kept += ", ";
            append_json(kept, key);
            kept += ": ";
            append_json(kept, member);
        }
        kept += "}";
    }

    if (kept.size() <= 2) return "{" + pair + "}";
    return kept.substr(0, kept.size() - 1) + ", " + pair + "}";
}

struct DocumentReader {
    ByteReader bytes;
    size_t longest;
    Counts& counts;
    uint64_t line = 0;

    DocumentReader(const std::string& path, size_t longest, Counts& counts)
        : bytes(path), longest(longest), counts(counts) {}

    bool next(Document& d) {
        std::string_view one;
        while (next_line(one)) {
            if (line++ == 0) one = without_mark(one);
            if (one.find_first_not_of(" \t\r") == one.npos) continue;
            counts["documents"]++;
            if (parse(one, d)) return true;
        }
        if (bytes.damaged && !std::exchange(told, true)) counts["damaged compressed data"] += bytes.damaged;
        return false;
    }

    // "meta"'s member, a string or a number as written; "" where there is none
    static std::string meta_value(const Document& d, const char* name) {
        if (d.meta.size() <= 2) return "";
        simdjson::padded_string padded(d.meta);
        thread_local simdjson::dom::parser parser;
        simdjson::dom::element whole, value;
        if (parser.parse(padded).get(whole)) {
            Json json = Json::parse(d.meta, "\"meta\"");
            const Json* member = json.find(name);
            std::string out;
            if (member && member->kind != Json::String) append_json(out, *member);
            return !member ? "" : member->kind == Json::String ? member->text : out;
        }
        if (whole[name].get(value)) return "";
        std::string_view s;
        return value.get(s) ? simdjson::minify(value) : std::string(s);
    }

private:
    std::string buffer;
    size_t begin = 0, end = 0;
    bool told = false;
    simdjson::dom::parser parser;

    // without its line end; the view is valid until the next call
    bool next_line(std::string_view& one) {
        size_t seen = begin;
        for (bool skipping = false;;) {
            const char* p =
                begin < end ? (const char*)memchr(buffer.data() + seen, '\n', end - seen) : nullptr;
            if (p) {
                one = {buffer.data() + begin, (size_t)(p - buffer.data()) - begin};
                begin = (size_t)(p - buffer.data()) + 1;
                if (!skipping && one.size() <= longest) return true;
                counts["longer than --longest"]++;
                counts["documents"]++;
                skipping = false;
                line++;
                seen = begin;
                continue;
            }

            if (end - begin > longest) {
                skipping = true;
                begin = end;
            }
            if (begin > 0) {
                memmove(buffer.data(), buffer.data() + begin, end - begin);
                end -= begin;
                begin = 0;
            }

            seen = end;
            size_t want = std::max((size_t)256 << 10, std::min(end, (size_t)64 << 20));
            size_t room = end + 1 + want + simdjson::SIMDJSON_PADDING;
            if (buffer.size() < room) buffer.resize(room);
            size_t got = bytes.read(buffer.data() + end, want);
            if (got && bytes.behind_damage) {  // or one line would be made of the halves of two
                memmove(buffer.data() + end + 1, buffer.data() + end, got);
                buffer[end++] = '\n';
            }
            end += got;

            if (got) continue;
            if (skipping) {
                counts["longer than --longest"]++;
                counts["documents"]++;
            }
            if (skipping || begin == end) return false;
            one = {buffer.data() + begin, end - begin};
            begin = end;
            return true;
        }
    }

    bool parse(std::string_view one, Document& d) {
        simdjson::dom::element root, id, meta;
        std::string_view s;
        // the line stands in our buffer with padding behind it
        if (one.size() > simdjson::SIMDJSON_MAXSIZE_BYTES ||
            parser.parse(one.data(), one.size(), false).get(root)) return parse_any(one, d);
        if (root["text"].get(s)) {
            counts["without \"text\""]++;
            return false;
        }

        d.text = s;
        d.id.clear();
        d.meta.clear();
        if (!root["id"].get(id)) {
            if (!id.get(s)) d.id = s;
            else if (id.is_number()) d.id = simdjson::minify(id);
        }
        if (!root["meta"].get(meta) && meta.is_object()) d.meta = simdjson::minify(meta);
        return true;
    }

    // the same by json.h
    bool parse_any(std::string_view one, Document& d) {
        Json root;
        try {
            if (!simdjson::validate_utf8(one.data(), one.size())) throw Error("invalid UTF-8");
            root = Json::parse(one, "a line");
        } catch (const Error&) {
            counts["not JSON"]++;
            return false;
        }
        const Json *given = root.find("text"), *id = root.find("id"), *meta = root.find("meta");
        if (!given || given->kind != Json::String) {
            counts["without \"text\""]++;
            return false;
        }

        d.text = given->text;
        d.id = id && (id->kind == Json::String || id->kind == Json::Number) ? id->text : "";
        d.meta.clear();
        if (meta && meta->kind == Json::Object) append_json(d.meta, *meta);
        return true;
    }
};

struct DocumentWriter {
    ByteWriter bytes;
    std::string line;

    explicit DocumentWriter(const std::string& path) : bytes(path) {}
    void write(const Document& d) {
        line = "{\"text\": ";
        append_json(line, d.text);
        if (!d.id.empty()) {
            line += ", \"id\": ";
            append_json(line, d.id);
        }
        if (d.meta.size() > 2) line += ", \"meta\": " + d.meta;
        line += "}\n";
        bytes.write(line);
    }

    void finish() { bytes.finish(); }
};
