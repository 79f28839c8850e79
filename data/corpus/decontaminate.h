// decontaminate.h   cuts text that occurs in evaluation tasks out of documents (Megatron-LM's n-gram filter)
//   words   runs of letters, digits and underscores of the lower-cased text
//   keys    a question of 8 to 12 words is one key; of 13 or more, every 13 consecutive words are a key; of
//           fewer than 8, none
//   1  hits of each key are counted over all documents; a key with --common hits or more is common language,
//      and is ignored in step 2
//   2  at a hit that begins at character a of a text: the left piece ends with the nearest . ! ? at or before
//      a - margin; the right piece begins after the nearest . ! ? at or beyond a + length + margin; length is
//      that of the key's words joined by blanks. Pieces of no more than --shortest-piece characters are
//      dropped; the right piece is searched in turn. Of keys that begin at the same word the longest counts.
//   3  a document in more than --most-pieces pieces, or in none, is dropped; pieces get the ids ID#1, ID#2, …
//   Text is searched by a hash of every 8 consecutive words, which every key begins with; a possible hit is
//   then compared word by word.
#pragma once
#include "../tasks/evaluation.h"
#include "../tasks/tasks.h"
#include "../tokens.h"
#include "steps.h"

constexpr int key_least = 8, key_most = 13;

// calls word(first byte, one past its last byte, hash of its lower-cased characters) until it returns false
template <class Word>
void each_word(std::string_view s, Word word) {
    static const std::vector<uint8_t>& classes = char_classes();
    constexpr uint64_t odd = 0x9E3779B97F4A7C15ull;
    static const std::vector<uint16_t> ascii = [] {  // 0: no part of a word; else its lower case
        std::vector<uint16_t> t(128, 0);
        for (uint32_t c = 0; c < 128; c++)
            if (char_classes()[c] == Letter || char_classes()[c] == Digit || c == '_')
                t[c] = (uint16_t)lower_code(c);
        return t;
    }();

    for (size_t i = 0; i < s.size();) {
        uint64_t h = 0;
        size_t from = i;
        while (i < s.size()) {
            unsigned char c = (unsigned char)s[i];
            size_t n = 1;
            uint32_t code = c;
            if (c < 0x80) {
                if (!ascii[c]) break;
                code = ascii[c];
            } else {
                code = decode_at(s, i, &n);
                if (classes[code] != Letter && classes[code] != Digit) break;
                code = lower_code(code);
            }
            h = (h ^ code) * odd;
            i += n;
        }

        if (i > from) {
            if (!word(from, i, h ^ h >> 29)) return;
            continue;
        }

        size_t n = 1;
        if ((unsigned char)s[i] >= 0x80) decode_at(s, i, &n);
        i += n;
    }
}

struct Key {
    std::vector<std::string> words;
    std::string task;
    int64_t length = 0;  // characters, a blank between two words
    int64_t hits = 0;
    bool common = false;
};

struct Hit {
    size_t key, at;  // at: byte where it begins
};

struct Keys {
    std::vector<Key> keys;

    // adds a question's keys; a key that several tasks have is counted for the first of them
    void add_question(std::string_view question, const std::string& task) {
        std::vector<std::string> words;
        each_word(question, [&](size_t from, size_t to, uint64_t) {
            words.push_back(lower_word(question.substr(from, to - from)));
            return true;
        });
        if ((int)words.size() < key_least) return;
        size_t length = std::min(words.size(), (size_t)key_most);
        for (size_t i = 0; i + length <= words.size(); i++)
            add({words.begin() + (long)i, words.begin() + (long)(i + length)}, task);
    }

    // each hit in s at or after `from`, in the order of words, longer ones first, until found returns false
    template <class Found>
    void search(std::string_view s, Found found) const {
        struct Place { size_t from, to; uint64_t hash; };

        Place ring[key_most];
        long count = 0;  // words read
        bool more = true;

        auto look = [&](long first) {  // the window that begins with word `first`
            uint64_t h = 0;
            for (long i = first; i < first + key_least; i++) h = h * multiplier + ring[i % key_most].hash;
            if (!(seen[h >> (64 - seen_bits) >> 6] >> (h >> (64 - seen_bits) & 63) & 1)) return;

            uint64_t of_length[key_most + 1] = {};  // hashes of the windows of 8 to 13 words
            of_length[key_least] = h;
            long longest = std::min((long)key_most, count - first);
            for (long n = key_least + 1; n <= longest; n++)
                of_length[n] = of_length[n - 1] * multiplier + ring[(first + n - 1) % key_most].hash;

            for (long n = longest; more && n >= key_least; n--) {
                auto bucket = by_words[n].find(of_length[n]);
                if (bucket == by_words[n].end()) continue;
                for (size_t k : bucket->second) {
                    bool same = true;
                    for (long i = 0; same && i < n; i++) {
                        const Place& w = ring[(first + i) % key_most];
                        same = lower_word(s.substr(w.from, w.to - w.from)) == keys[k].words[(size_t)i];
                    }
                    if (same) more = found(Hit{k, ring[first % key_most].from});
                }
            }
        };

        long looked = 0;
        each_word(s, [&](size_t from, size_t to, uint64_t h) {
            ring[count++ % key_most] = {from, to, h};
            if (count >= key_most) look(looked++);
            return more;
        });
        for (; more && looked + key_least <= count; looked++) look(looked);
    }

    // of all keys, so that a change is noticed
    uint64_t fingerprint() const {
        uint64_t h = keys.size();
        for (auto& k : keys) for (auto& w : k.words) h = h * 31 + XXH3_64bits(w.data(), w.size());
        return h;
    }

private:
    static constexpr uint64_t multiplier = 0xD6E8FEB86659FD93ull;
    static constexpr int seen_bits = 22;  // 512 KB, and in a cache
    std::vector<uint64_t> seen = std::vector<uint64_t>((size_t)1 << (seen_bits - 6));
    std::unordered_map<uint64_t, std::vector<size_t>> by_words[key_most + 1];  // by length: hash -> keys
    std::set<std::vector<std::string>> known;

    void add(std::vector<std::string> words, const std::string& task) {
        if (!known.insert(words).second) return;
        std::string joined;
        uint64_t h = 0;
        for (size_t i = 0; i < words.size(); i++) {
            joined += (i ? " " : "") + words[i];
            each_word(words[i], [&](size_t, size_t, uint64_t one) {
                h = h * multiplier + one;
                return false;
            });
            if (i + 1 == key_least) seen[h >> (64 - seen_bits) >> 6] |= 1ull << (h >> (64 - seen_bits) & 63);
        }
        by_words[words.size()][h].push_back(keys.size());
        keys.push_back({std::move(words), task, characters(joined)});
    }
};

// TASK=FOLDER: the task's own files; else an evaluation file, whose contexts are the questions
inline void add_questions(Keys& keys, const std::string& from, const std::string& vocabulary) {
    size_t is = from.find('=');
    if (is != from.npos) {
        const TaskForm& task = find_task(from.substr(0, is), "");
        for (auto& d : read_task(task, from.substr(is + 1), false))
            for (std::string name : task.questions) {
                if (!name.ends_with('.')) keys.add_question(d.at(name), task.task);
                for (int i = 0; name.ends_with('.') && d.fields.count(name + std::to_string(i)); i++)
                    keys.add_question(d.fields[name + std::to_string(i)], task.task);
            }
        return;
    }

    EvalFile e = EvalFile::open(from);
    if (e.vocabulary_name != "bytes" && vocabulary == "bytes")
        fail("%s: is in tokens of GPT-2's vocabulary: give --vocabulary PATH/vocab.bpe", from.c_str());
    Vocabulary v = Vocabulary::open(e.vocabulary_name == "bytes" ? "bytes" : vocabulary);
    if (e.vocabulary != v.size() || !may_be_one_vocabulary(e.vocabulary_name, v.name()))
        fail("%s: has vocabulary %s of %d, %s is %s of %d: give the one it was made with", from.c_str(),
             e.vocabulary_name.c_str(), e.vocabulary, vocabulary.c_str(), v.name().c_str(), v.size());

    for (auto& d : e.documents) {
        const EvalRequest& r = e.requests[(size_t)d.first];
        std::string question;
        for (int64_t i = 0; i < r.context_tokens; i++)
            if (int t = e.tokens[(size_t)(r.context + i)]; t != v.end_of_text)
                question += v.tokens[(size_t)t];
        keys.add_question(question, e.task);
    }
}

inline Keys read_keys(const Settings& settings) {
    Keys keys;
    for (auto& from : parts_of(settings.get("against"), ','))
        add_questions(keys, from, settings.get("vocabulary"));
    return keys;
}

struct Cutter {
    const Keys& keys;
    int64_t margin, shortest;
    size_t most;

    // the byte that is n characters before byte i (back), or after it (on); npos: s has fewer
    static size_t back(std::string_view s, size_t i, int64_t n) {
        for (; n > 0 && i > 0; n--) do i--; while (i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80);
        return n > 0 ? s.npos : i;
    }

    static size_t on(std::string_view s, size_t i, int64_t n) {
        for (; n > 0 && i < s.size(); n--) do
                i++;
            while (i < s.size() && ((unsigned char)s[i] & 0xC0) == 0x80);
        return n > 0 ? s.npos : i;
    }

    bool longer(std::string_view s) const { return on(s, 0, shortest + 1) != s.npos; }
    // pieces of s; hits: the keys that were found. One piece that is all of s: nothing was found
    std::vector<std::string_view> cut(std::string_view s, std::vector<size_t>& hits) const {
        std::vector<std::string_view> pieces;
        for (;;) {
            Hit hit = {0, s.npos};
            keys.search(s, [&](Hit h) {
                if (!keys.keys[h.key].common) hit = h;
                return hit.at == s.npos;
            });
            if (hit.at == s.npos) break;

            hits.push_back(hit.key);
            size_t left = back(s, hit.at, margin);
            if (left != s.npos) left = s.find_last_of(".!?", left);
            if (left != s.npos && longer(s.substr(0, left + 1)))
                pieces.push_back(s.substr(0, left + 1));

            size_t right = on(s, hit.at, keys.keys[hit.key].length + margin);
            if (right != s.npos) right = s.find_first_of(".!?", right);
            if (right == s.npos || !longer(s.substr(right + 1))) return pieces;
            s = s.substr(right + 1);
            if (pieces.size() > most) return pieces;

        }
        pieces.push_back(s);
        return pieces;
    }
};

// hits in one file's documents: pairs of uint64, (key, number of hits), of the keys that have any
inline void write_hits(const std::string& path, const std::vector<int64_t>& hits) {
    FileWriter file(path);
    for (uint64_t k = 0; k < hits.size(); k++) {
        uint64_t pair[2] = {k, (uint64_t)hits[k]};
        if (hits[k]) file.write(pair, sizeof pair);
    }
    file.finish();
}

inline void count_hits(const Ranks& ranks, const Settings& settings, const Corpus& in,
                       const std::string& folder, Keys& keys) {
    Stage stage(ranks, settings, "count-hits", folder + "/hits", ".hits", keys.fingerprint());
    Corpus counted =
        stage.each_file(in, every_file, [&](const CorpusFile& f, const std::string& to, Counts& counts) {
            std::vector<int64_t> hits(keys.keys.size(), 0);
            DocumentReader reader(f.path, settings.whole("longest"), counts);
            for (Document d; reader.next(d);) {
                keys.search(d.text, [&](Hit h) {
                    hits[h.key]++;
                    counts["hits"]++;
                    return true;
                });
                stage.progress.at(stage.progress.done + (double)reader.bytes.at);
            }
            write_hits(to, hits);
        });

    for (auto& f : counted.files) {
        MappedFile file(f.path);
        for (size_t at = 0; at < file.size; at += 16) {
            uint64_t k = file.read<uint64_t>(at, "a key"), n = file.read<uint64_t>(at + 8, "its hits");
            if (k >= keys.keys.size())
                fail("%s: is for other keys: remove it and start again", f.path.c_str());
            keys.keys[k].hits += (int64_t)n;
        }
    }

    int64_t least = (int64_t)settings.whole("common");
    for (auto& k : keys.keys) k.common = k.hits >= least;
    if (!ranks.first()) return;

    FileWriter report(folder + "/keys.tsv");
    report.write("hits\tcommon\ttask\tkey\n");
    for (auto& k : keys.keys) {
        if (!k.hits) continue;
        std::string line = text("%lld\t%s\t%s\t", (long long)k.hits, k.common ? "yes" : "no", k.task.c_str());
        for (size_t i = 0; i < k.words.size(); i++) line += (i ? " " : "") + k.words[i];
        report.write(line + "\n");
    }
    report.finish();
}

inline Corpus decontaminate(const Ranks& ranks, const Settings& settings, const Corpus& in,
                            const std::string& folder) {
    Keys keys = ranks.all_or_fail([&] { return read_keys(settings); });
    if (ranks.first()) printf("decontaminate: %zu keys\n", keys.keys.size());

    count_hits(ranks, settings, in, folder, keys);
    uint64_t everywhere = keys.fingerprint();
    for (auto& k : keys.keys) everywhere = everywhere * 3 + k.common;

    Stage stage(ranks, settings, "decontaminate", folder, settings.documents_ending(), everywhere);
    Cutter cutter = {keys, (int64_t)settings.whole("margin"), (int64_t)settings.whole("shortest-piece"),
                     settings.whole("most-pieces")};

    return stage.each_file(in, every_file, [&](const CorpusFile& f, const std::string& to, Counts& counts) {
        DocumentReader reader(f.path, settings.whole("longest"), counts);
        DocumentWriter writer(to);
        FileWriter report(to.substr(0, to.size() - stage.ending.size()) +
                          ".cut.tsv");  // id, pieces, first key
        for (Document d; reader.next(d);) {
            stage.progress.at(stage.progress.done + (double)reader.bytes.at);
            counts["characters"] += characters(d.text);

            std::vector<size_t> hits;
            std::vector<std::string_view> pieces = cutter.cut(d.text, hits);
            bool many = pieces.size() > cutter.most, whole = hits.empty();

            if (!whole) {
                std::string words, id;
                for (auto& w : keys.keys[hits[0]].words) words += (words.empty() ? "" : " ") + w;
                append_json(id, d.id);
                report.write(
                    id +
                    text("\t%zu\t%zu\t%s\t", pieces.size(), hits.size(), keys.keys[hits[0]].task.c_str()) +
                    words + "\n");
            }

            counts[many ? "in too many pieces" : pieces.empty() ? "nothing left" : whole ? "untouched"
                   : pieces.size() > 1 ? "split" : "trimmed"]++;
            if (many) continue;

            for (size_t i = 0; i < pieces.size(); i++) {
                // without an id its pieces have none either: random numbers are keyed by their texts
                std::string id = whole || d.id.empty() ? d.id : d.id + text("#%zu", i + 1);
                Document piece = {std::string(pieces[i]), id, d.meta};
                counts["kept"]++;
                counts["kept characters"] += characters(piece.text);
                writer.write(piece);
            }
        }
        report.finish();
        writer.finish();
    });
}
