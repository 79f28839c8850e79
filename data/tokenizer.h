// tokenizer.h   text <-> tokens, in two vocabularies
//   bytes   token = byte, 256 = end of text; V = 257
//   bpe     GPT-2's byte-pair encoding (Radford et al. 2019) from its vocab.bpe: text is split into words by
//             's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//           and in each word the neighbouring pair listed first in vocab.bpe is merged until none is listed.
//           Tokens: 256 bytes in the order of GPT-2's alphabet, one for each merge, end of text last.
//   A byte that is not part of valid UTF-8 counts as a character that is neither letter, number nor space.
//   Since tokens are bytes in the end, decoding gives back exactly what was encoded, UTF-8 or not.
#pragma once
#include <algorithm>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "../layers/base/whole_file.h"
#include "json.h"
#include "unicode.h"
#include "utf8.h"

enum CharClass : uint8_t { Other, Letter, Digit, Space };

// a function, not a lambda: g++ would try to evaluate a lambda at compile time, a second for each program
inline std::vector<uint8_t> make_char_classes() {
    std::vector<uint8_t> t(0x110000, Other);
    for (int c = 0; c < 0x80; c++)
        t[c] = (c | 32) >= 'a' && (c | 32) <= 'z' ? Letter : c >= '0' && c <= '9' ? Digit
             : c == ' ' || (c >= 9 && c <= 13) ? Space : Other;
    for (auto r : unicode_letters) std::fill(&t[r.first], &t[r.last] + 1, Letter);
    for (auto r : unicode_numbers) std::fill(&t[r.first], &t[r.last] + 1, Digit);
    for (auto r : unicode_spaces) std::fill(&t[r.first], &t[r.last] + 1, Space);
    return t;
}

inline const std::vector<uint8_t>& char_classes() {
    static const std::vector<uint8_t> table = make_char_classes();
    return table;
}

struct Char {
    CharClass kind;
    int bytes;
};

// the character at s; 1 <= left. Overlong forms, surrogates and stray bytes are single bytes of class Other.
inline Char decode_char(const unsigned char* s, size_t left, const uint8_t* classes) {
    if (s[0] < 0x80) return {(CharClass)classes[s[0]], 1};
    size_t bytes;
    uint32_t code = decode_at({(const char*)s, left}, 0, &bytes);
    return {bytes == 1 ? Other : (CharClass)classes[code], (int)bytes};
}

// the same text with U+FFFD in place of each byte that is not part of valid UTF-8
inline std::string whole_utf8(std::string_view s) {
    std::string out;
    for (size_t i = 0, bytes; i < s.size(); i += bytes) append_utf8(out, decode_at(s, i, &bytes));
    return out;
}

// calls word(begin, end) for each word of GPT-2's rule, in order and without gaps
template <class Word>
void split_words(std::string_view given, Word word) {
    const uint8_t* classes = char_classes().data();
    const unsigned char* s = (const unsigned char*)given.data();
    size_t n = given.size(), i = 0;

    auto run = [&](size_t at, CharClass kind) {  // the end of the characters of one class
        for (;;) {
            while (at < n && s[at] < 0x80 && classes[s[at]] == kind) at++;
            if (at >= n || s[at] < 0x80) return at;
            Char c = decode_char(s + at, n - at, classes);
            if (c.kind != kind) return at;
            at += c.bytes;
        }
    };

    while (i < n) {
        size_t start = i;
        if (s[i] == '\'' && i + 1 < n) {
            unsigned char a = s[i + 1], b = i + 2 < n ? s[i + 2] : 0;
            int length = a == 's' || a == 't' || a == 'm' || a == 'd' ? 2
                       : (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
            if (length) {
                word(start, i += length);
                continue;
            }
        }

        size_t at = i + (s[i] == ' ' && i + 1 < n);  // one space may lead a word
        Char c = decode_char(s + at, n - at, classes);
        if (c.kind != Space) {
            word(start, i = run(at + c.bytes, c.kind));
            continue;
        }

        size_t end = i, last = i;  // white space: all of it but the last character, where more follows
        while (end < n) {
            c = decode_char(s + end, n - end, classes);
            if (c.kind != Space) break;
            last = end;
            end += c.bytes;
        }
        word(start, i = end == n || last == start ? end : last);
    }
}

struct Vocabulary {
    std::string kind;                 // "bytes" or "bpe"
    std::vector<std::string> tokens;  // bytes of each; end of text is empty
    int end_of_text = 0;
    std::string source;  // contents of vocab.bpe
    int byte_token[256];
    std::vector<std::pair<uint64_t, uint32_t>> merges;  // hash table: (left << 32 | right) + 1 -> merged
    int size() const { return (int)tokens.size(); }
    size_t longest_token() const {  // in bytes
        size_t most = 0;
        for (auto& token : tokens) most = std::max(most, token.size());
        return most;
    }

    // what token files call it: "bytes", or "bpe 0123abcd" with a checksum, which tells vocabularies of one
    // size apart
    std::string name() const {
        if (kind == "bytes") return kind;
        std::string all;
        for (auto& token : tokens) all += token + '\n';
        return text("%s %08x", kind.c_str(), (unsigned)checksum(all.data(), all.size()));
    }

    // the token that two neighbours become, or UINT32_MAX
    uint32_t merged(uint32_t left, uint32_t right) const {
        uint64_t pair = ((uint64_t)left << 32 | right) + 1, mask = merges.size() - 1;
        for (uint64_t at = pair * 0x9E3779B97F4A7C15ull >> 40 & mask; merges[at].first; at = (at + 1) & mask)
            if (merges[at].first == pair) return merges[at].second;
        return UINT32_MAX;
    }

    void add_merge(uint32_t left, uint32_t right, uint32_t token) {
        uint64_t pair = ((uint64_t)left << 32 | right) + 1, mask = merges.size() - 1;
        uint64_t at = pair * 0x9E3779B97F4A7C15ull >> 40 & mask;
        while (merges[at].first) at = (at + 1) & mask;
        merges[at] = {pair, token};
    }

    static Vocabulary bytes() {
        Vocabulary v;
        v.kind = "bytes";
        for (int b = 0; b < 256; b++) {
            v.tokens.push_back(std::string(1, (char)b));
            v.byte_token[b] = b;
        }
        v.tokens.push_back("");
        v.end_of_text = 256;
        return v;
    }

    static Vocabulary bpe(const std::string& path);  // source: the merges, whatever file they come from
    // spec: "bytes" or the path of a vocab.bpe, merges.txt or tokenizer.json
    static Vocabulary open(const std::string& spec) {
        if (spec == "bytes") return bytes();
        if (access(spec.c_str(), R_OK) != 0)
            fail("%s: cannot be read: %s: expected bytes, GPT-2's vocab.bpe (bash scripts/prepare.sh gpt2 "
                 "fetches it) or a tokenizer.json", spec.c_str(), strerror(errno));
        return bpe(spec);
    }
};

// GPT-2 writes each byte as a printable character: itself where it is one, else the next from U+0100 on
struct PrintedBytes {
    std::vector<int> order;  // bytes, those that print themselves first
    uint32_t code[256];      // the character of each
    PrintedBytes() {
        std::vector<int> rest;
        for (int b = 0; b < 256; b++)
            ((b >= 33 && b < 127) || (b >= 161 && b != 173) ? order : rest).push_back(b);
        for (int b : order) code[b] = (uint32_t)b;
        for (size_t i = 0; i < rest.size(); i++) code[rest[i]] = 256 + (uint32_t)i;
        order.insert(order.end(), rest.begin(), rest.end());
    }
};

// the two tokens of line `number` of the vocab.bpe at `path`, in bytes
inline std::pair<std::string, std::string> read_merge(std::string_view line,
                                                      const std::unordered_map<uint32_t, int>& byte_of,
                                                      const std::string& path, int number) {
    std::string half[2];
    int which = 0;
    for (size_t i = 0, bytes; i < line.size(); i += bytes) {
        uint32_t code = decode_at(line, i, &bytes);
        if (code == ' ' && which == 0 && i > 0) {
            which = 1;
            continue;
        }
        auto found = byte_of.find(code);
        if (found == byte_of.end())
            fail("%s line %d: has a character outside GPT-2's alphabet: expected a vocab.bpe", path.c_str(),
                 number);
        half[which] += (char)found->second;
    }
    return {half[0], half[1]};
}

// a vocabulary's tokens, as vocab.json and tokenizer.json write them
inline std::vector<std::string> printed_tokens(const Vocabulary& v) {
    PrintedBytes printed;
    std::vector<std::string> out(v.size());
    for (int t = 0; t < v.size(); t++)
        for (unsigned char c : v.tokens[t]) append_utf8(out[t], printed.code[c]);
    out[v.end_of_text] = "<|endoftext|>";
    return out;
}

// The merges of a tokenizer.json, as Hugging Face's tokenizers write it, in the form of vocab.bpe. Refuses
// one that would split texts otherwise than GPT-2 does
inline std::string merges_of_json(const Json& all, const std::string& path) {
    const Json &model = all.at("model", path), &splits = all.at("pre_tokenizer", path);
    // absent: what Hugging Face takes where the key is absent or null; nullptr: it must be there
    auto expect = [&](const Json& of, const char* key, const char* wanted, const char* absent = nullptr) {
        const Json* value = of.find(key);
        bool is_absent = !value || value->kind == Json::Null;
        std::string is = is_absent ? (absent ? absent : "none")
            : value->kind == Json::Object ? "an object" : value->text;
        if (is != wanted)
            fail("%s: has \"%s\" %s, expected %s: only tokenizers of GPT-2's kind are supported",
                 path.c_str(), key, is.empty() ? "\"\"" : is.c_str(), *wanted ? wanted : "\"\"");
    };
    expect(all, "normalizer", "none", "none");
    expect(model, "type", "BPE");
    for (const char* key : {"byte_fallback", "fuse_unk", "ignore_merges"})
        expect(model, key, "false", "false");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) expect(model, key, "", "");
    expect(splits, "type", "ByteLevel");
    expect(splits, "add_prefix_space", "false");
    expect(splits, "use_regex", "true", "true");
    if (const Json* added = all.find("added_tokens"))
        for (auto& token : added->items) expect(token, "content", "<|endoftext|>");

    std::string out = "#version: 0.2\n";
    for (auto& merge : model.at("merges", path).items) {  // "a b" or ["a", "b"]
        if (merge.items.size() == 2) out += merge.items[0].text + " " + merge.items[1].text + "\n";
        else out += merge.text + "\n";
    }
    return out;
}

// A tokenizer.json must number its tokens as GPT-2 does: bytes, merges in their order, the end of text. (A
// trainer that is given special tokens numbers those first.)
inline void check_numbers(const Json& all, const Vocabulary& v, const std::string& path) {
    std::vector<std::string> ours = printed_tokens(v);
    auto expect = [&](const std::string& token, int64_t number) {
        std::string own = number >= 0 && number < v.size() ? ours[(size_t)number] : "";
        if (own != token)
            fail("%s: has token %lld \"%s\", GPT-2's order (bytes, merges, the end of text) has \"%s\": "
                 "only tokenizers of GPT-2's kind are supported", path.c_str(), (long long)number,
                 token.c_str(), own.c_str());
    };
    const Json& vocabulary = all.at("model", path).at("vocab", path);
    for (auto& [token, number] : vocabulary.members) expect(token, number.integer(path));
    if (const Json* added = all.find("added_tokens"))
        for (auto& token : added->items) expect("<|endoftext|>", token.at("id", path).integer(path));

    size_t with_end = vocabulary.members.size() + !vocabulary.find("<|endoftext|>");
    if (with_end != (size_t)v.size())
        fail("%s: has %zu tokens, but its merges make %d: only tokenizers of GPT-2's kind are supported",
             path.c_str(), with_end, v.size());
}

inline Vocabulary Vocabulary::bpe(const std::string& path) {
    WholeFile file(path);
    Vocabulary v;
    v.kind = "bpe";
    Json json;
    if (file.text().starts_with('{')) json = Json::parse(file.text(), path);
    bool is_json = json.kind == Json::Object;
    v.source = is_json ? merges_of_json(json, path) : std::string(file.text());
    PrintedBytes printed;
    std::unordered_map<uint32_t, int> byte_of;
    for (int b = 0; b < 256; b++) byte_of[printed.code[b]] = b;

    // the first 256 tokens are the bytes
    std::unordered_map<std::string, uint32_t> id;
    for (int b : printed.order) {
        v.byte_token[b] = v.size();
        id[std::string(1, (char)b)] = (uint32_t)v.size();
        v.tokens.push_back(std::string(1, (char)b));
    }

    size_t lines = std::count(v.source.begin(), v.source.end(), '\n') + 1, slots = 1024;
    while (slots < 4 * lines) slots *= 2;
    v.merges.assign(slots, {0, 0});

    // each line makes a token of two that stand above it
    size_t at = 0;
    for (int line = 1; at < v.source.size(); line++) {
        size_t end = std::min(v.source.find('\n', at), v.source.size());
        std::string_view words(v.source.data() + at, end - at);
        at = end + 1;
        if (words.ends_with('\r')) words.remove_suffix(1);
        if ((line == 1 && words.starts_with("#version")) || words.empty()) continue;

        auto [first, second] = read_merge(words, byte_of, path, line);
        auto left = id.find(first), right = id.find(second);
        if (left == id.end() || right == id.end() || id.count(first + second))
            fail("%s line %d: \"%.*s\": expected two tokens of earlier lines that make a new one",
                 path.c_str(), line, (int)std::min(words.size(), (size_t)60), words.data());
        v.add_merge(left->second, right->second, (uint32_t)v.size());
        id[first + second] = (uint32_t)v.size();
        v.tokens.push_back(first + second);
    }

    if (v.tokens.size() == 256) fail("%s: has no merges: expected GPT-2's vocab.bpe", path.c_str());
    v.end_of_text = v.size();
    v.tokens.push_back("");
    if (is_json) check_numbers(json, v, path);
    return v;
}

// one thread's encoder: it remembers the words it has met
struct Encoder {
    const Vocabulary& v;
    struct Entry {  // words of up to 15 bytes that make up to 3 tokens
        uint64_t low = 0, high = 0;  // the bytes; the length in the highest
        uint32_t tokens[3] = {};
        uint32_t count = 0;
    };
    static constexpr int cache_bits = 17;
    std::vector<Entry> cache{(size_t)1 << cache_bits};
    std::vector<uint32_t> symbols;

    explicit Encoder(const Vocabulary& v) : v(v) {}

    std::vector<int> tokens_of(std::string_view text) {
        std::vector<uint32_t> tokens(text.size() + 4);
        return {tokens.data(), encode(tokens.data(), text)};
    }

    // tokens of the text, at `out`, which has room for one per byte and 2 more; returns their end
    uint32_t* encode(uint32_t* out, std::string_view text) {
        if (v.kind == "bytes") {
            for (unsigned char c : text) *out++ = c;
            return out;
        }
        split_words(text, [&](size_t begin, size_t end) {
            const char* p = text.data() + begin;
            size_t n = end - begin;
            if (n > 15) return void(out = merge(out, p, n));

            // a word of up to 15 bytes is the key of a cache; words of more than three tokens are not stored
            uint64_t low = 0, high = 0;
            if (text.size() - begin >= 16) {
                memcpy(&low, p, 8);
                memcpy(&high, p + 8, 8);
                if (n < 8) {
                    low &= (1ull << 8 * n) - 1;
                    high = 0;
                } else high &= (1ull << 8 * (n - 8)) - 1;
            } else {
                char copy[16] = {};
                memcpy(copy, p, n);
                memcpy(&low, copy, 8);
                memcpy(&high, copy + 8, 8);
            }
            high |= (uint64_t)n << 56;

            uint64_t hash = (low ^ high * 0xC2B2AE3D27D4EB4Full) * 0x9E3779B97F4A7C15ull;
            Entry& e = cache[hash >> (64 - cache_bits)];
            if (e.low != low || e.high != high) {
                uint32_t* last = merge(out, p, n);
                if (last - out > 3) return void(out = last);
                e = {low, high, {}, (uint32_t)(last - out)};
                std::copy(out, last, e.tokens);
            }

            for (int i = 0; i < 3; i++) out[i] = e.tokens[i];
            out += e.count;
        });
        return out;
    }

    uint32_t* merge(uint32_t* out, const char* p, size_t n) {
        symbols.resize(n);
        for (size_t i = 0; i < n; i++) symbols[i] = (uint32_t)v.byte_token[(unsigned char)p[i]];
        n > 64 ? merge_long() : merge_short();
        return std::copy(symbols.begin(), symbols.end(), out);
    }

    void merge_short() {
        for (;;) {
            uint32_t best = UINT32_MAX;
            size_t at = 0;
            for (size_t i = 0; i + 1 < symbols.size(); i++) {
                uint32_t token = v.merged(symbols[i], symbols[i + 1]);
                if (token < best) {
                    best = token;
                    at = i;
                }
            }

            if (best == UINT32_MAX) return;
            symbols[at] = best;
            symbols.erase(symbols.begin() + at + 1);
        }
    }

    // the same in n log n: a linked list of symbols and a heap of the pairs that can be merged
    void merge_long() {
        struct Pair {
            uint32_t token, left, right;
            size_t at;
            bool operator<(const Pair& o) const { return token != o.token ? token > o.token : at > o.at; }
        };
        constexpr size_t none = SIZE_MAX;
        size_t n = symbols.size();
        std::vector<size_t> next(n), previous(n);
        std::priority_queue<Pair> heap;

        auto push = [&](size_t at) {
            if (at == none || next[at] == none) return;
            uint32_t token = v.merged(symbols[at], symbols[next[at]]);
            if (token != UINT32_MAX) heap.push({token, symbols[at], symbols[next[at]], at});
        };

        for (size_t i = 0; i < n; i++) {
            next[i] = i + 1 < n ? i + 1 : none;
            previous[i] = i ? i - 1 : none;
        }
        for (size_t i = 0; i < n; i++) push(i);

        while (!heap.empty()) {
            Pair p = heap.top();
            heap.pop();
            size_t right = next[p.at];
            // stale: one of the two has been merged since
            if (symbols[p.at] != p.left || right == none || symbols[right] != p.right) continue;
            symbols[p.at] = p.token;
            symbols[right] = UINT32_MAX;
            next[p.at] = next[right];
            if (next[right] != none) previous[next[right]] = p.at;
            push(p.at);
            push(previous[p.at]);
        }
        symbols.erase(std::remove(symbols.begin(), symbols.end(), UINT32_MAX), symbols.end());
    }
};

inline std::vector<int> encode_text(const Vocabulary& v, std::string_view text) {
    return Encoder(v).tokens_of(text);
}
