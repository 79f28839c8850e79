// warc.h   WARC files (ISO 28500): records, whatever state they are in
//   WARC/1.0 CRLF  Name: value CRLF …  CRLF  Content-Length bytes  CRLF CRLF      and the next record
//   Usually each record is a gzip member of its own. Nothing that is wrong ends the reading:
//     a member ends inside a record      the record is cut there            "records cut short"
//     Content-Length is wrong            cut where the next record begins   "records of wrong length"
//     what is no record at all           skipped, up to the next "WARC/"    "bytes that are no record"
//     content above `longest`            read past without being held  "records longer than --longest-page"
#pragma once
#include <strings.h>
#include <algorithm>
#include <string>
#include <vector>
#include "documents.h"

// "Name: value" lines; names are compared without case
struct HeaderFields {
    std::vector<std::pair<std::string_view, std::string_view>> fields;

    explicit HeaderFields(std::string_view lines = {}) {
        while (!lines.empty()) {
            size_t end = std::min(lines.find('\n'), lines.size());
            std::string_view line = lines.substr(0, end);
            lines.remove_prefix(std::min(end + 1, lines.size()));
            size_t colon = line.find(':');
            if (colon == line.npos) continue;
            fields.push_back({strip(line.substr(0, colon)), strip(line.substr(colon + 1))});
        }
    }

    std::string_view get(std::string_view name) const {
        for (auto& [key, value] : fields)
            if (same(key, name)) return value;
        return {};
    }

    static bool same(std::string_view a, std::string_view b) {  // without case
        return a.size() == b.size() && !strncasecmp(a.data(), b.data(), a.size());
    }

    static std::string_view strip(std::string_view s) {
        while (!s.empty() && (unsigned char)s.front() <= ' ') s.remove_prefix(1);
        while (!s.empty() && (unsigned char)s.back() <= ' ') s.remove_suffix(1);
        return s;
    }
};

// where the blank line behind a header ends, or npos
inline size_t header_end(std::string_view s) {
    for (size_t i = s.find('\n'); i != s.npos; i = s.find('\n', i + 1)) {
        if (i + 1 < s.size() && s[i + 1] == '\n') return i + 2;
        if (i + 2 < s.size() && s[i + 1] == '\r' && s[i + 2] == '\n') return i + 3;
    }
    return s.npos;
}

struct WarcRecord {
    HeaderFields fields;
    std::string_view content;  // both hold until the next record is read
};

struct WarcReader {
    ByteReader bytes;
    size_t longest;
    Counts& counts;

    WarcReader(const std::string& path, size_t longest, Counts& counts)
        : bytes(path), longest(longest), counts(counts) {}

    bool next(WarcRecord& record) {
        for (;;) {
            if (!to_record()) {
                if (bytes.damaged && !std::exchange(told, true))
                    counts["damaged gzip members"] += bytes.damaged;
                return false;
            }
            size_t head = header();
            if (!head) continue;
            record.fields = HeaderFields(view().substr(0, head));

            std::string_view length = record.fields.get("Content-Length");
            uint64_t n = 0;
            bool number = !length.empty() && length.size() < 19;
            for (char c : length) {
                number = number && c >= '0' && c <= '9';
                n = n * 10 + (uint64_t)(c - '0');
            }
            if (!number) {
                junk(5);
                continue;
            }

            counts["records"]++;
            if (n > longest) {
                bool wrong = bytes.packing == Packing::Plain && n > view().size() + bytes.left();
                if (wrong) junk(5);
                else wrong = !skip(head + n);
                counts[wrong ? "records of wrong length" : "records longer than --longest-page"]++;
                continue;
            }

            std::string head_copy(view().substr(0, head));  // need() may move what is held
            bool whole = need(head + n);
            head_text = std::move(head_copy);
            record.fields = HeaderFields(head_text);
            n = std::min(n, view().size() - head);

            bool cut = false;
            if (!whole || !well_ended(head + n)) {  // it is cut short, or its length is wrong
                size_t other = view().substr(head, n + 8).find("\nWARC/1.");
                counts[whole || other != view().npos ? "records of wrong length" : "records cut short"]++;
                cut = other != view().npos;
                if (cut) n = std::min(n, other + 1);
            }

            record.content = view().substr(head, n);
            consumed = head + n;
            for (int i = 0; i < 2 && cut && record.content.ends_with('\n'); i++)  // those behind a record
                record.content.remove_suffix(record.content.ends_with("\r\n") ? 2 : 1);
            return true;
        }
    }

private:
    std::string buffer, head_text;
    size_t begin = 0, end = 0, limit = 0;  // limit: where the next member begins in the buffer, 0: not yet
    size_t consumed = 0;                   // of view(), by the record handed out last
    bool told = false, exhausted = false;
    bool begins = false;  // what was read last begins a member, with a record

    std::string_view view() const { return {buffer.data() + begin, (limit ? limit : end) - begin}; }

    void take(size_t n) {
        begin += n;
        if (limit && begin >= limit) limit = 0;
    }

    // n bytes of this member, or false with as many as there are
    bool need(size_t n) {
        while (view().size() < n && !limit && !exhausted) {
            if (begin > 0) {
                memmove(buffer.data(), buffer.data() + begin, end - begin);
                end -= begin;
                begin = 0;
            }

            size_t want = std::max((size_t)128 << 10, std::min(end, (size_t)16 << 20));
            if (buffer.size() < end + want) buffer.resize(end + want);
            size_t got = bytes.read(buffer.data() + end, want);
            exhausted = !got;
            if (!got) return false;

            // a member that begins with "WARC/" ends the record before; any other continues it (blocked gzip)
            begins = bytes.starts_part && !memcmp(buffer.data() + end, "WARC/", std::min(got, (size_t)5));
            if (begins && end > 0) limit = end;
            end += got;
        }
        return view().size() >= n;
    }

    // n may be more bytes than should be held at once. false: another record begins among them, as in a file
    // of one member where the length is wrong, and is next
    bool skip(size_t n) {
        constexpr std::string_view other = "\r\n\r\nWARC/1.";
        while (n > 0) {
            size_t here = std::min(n, view().size()), at = view().substr(0, here).find(other);
            if (at != view().npos) {
                take(at);
                return false;
            }
            bool ends = n == here || limit;  // with this record, or with its member
            size_t kept = ends ? 0 : std::min(here, other.size() - 1);  // `other` may go on behind it
            take(here - kept);
            n -= here - kept;
            if (n == 0) break;
            if (!need(kept + 1)) take(kept);
            if (view().size() <= kept || (!kept && begins)) break;
        }
        return true;
    }

    void junk(size_t n) {
        counts["bytes that are no record"] += (int64_t)n;
        take(n);
    }

    // to the beginning of a record; false at the end of the file
    bool to_record() {
        take(std::exchange(consumed, 0));
        for (;;) {
            if (!need(1) && view().empty() && end == begin) return false;
            if (view().empty()) {  // a member is used up
                limit = 0;
                continue;
            }

            if (view()[0] == '\r' || view()[0] == '\n') {
                take(1);
                continue;
            }

            need(8);
            if (view().starts_with("WARC/1.") || view().starts_with("WARC/0.")) return true;
            need(64 << 10);
            size_t next = view().find("\nWARC/", 1);
            size_t n =
                next == view().npos ? view().size() - std::min(view().size() - 1, (size_t)5) : next + 1;
            junk(n);
        }
    }

    size_t header() {  // its length; 0 and junk if it never ends
        for (size_t have = 4096;; have *= 2) {
            bool more = need(have);
            std::string_view here = view().substr(0, have);
            size_t other = here.find("\nWARC/", 5), n = header_end(here.substr(0, other));
            if (n != view().npos) return n;
            if (other != view().npos || !more || have >= (256 << 10)) {
                junk(other != view().npos ? other : here.size());
                return 0;
            }
        }
    }

    // behind a record: line ends, and then another one or nothing
    bool well_ended(size_t at) {
        need(at + 9);
        std::string_view rest = view().substr(std::min(at, view().size()));
        while (!rest.empty() && (rest[0] == '\r' || rest[0] == '\n')) rest.remove_prefix(1);
        return rest.empty() || rest.starts_with("WARC/") || std::string_view("WARC/").starts_with(rest);
    }
};
