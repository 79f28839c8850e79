// dedup.h   removes near-duplicates across all sets: of each group of similar documents, one is kept
//   1  min-hashes of every document are written to FOLDER/minhash, one file per input      (minhash.h)
//   2  four bands at a time: a record (hash of the band, document) for each document and band; records are
//      exchanged so that all of one hash are on one rank, and sorted. Documents of equal hashes are a bucket
//   3  in a bucket, the first document is the pivot; documents of estimated Jaccard similarity to it above
//      --jaccard are joined to it and leave the bucket, as the pivot does. This repeats until the bucket is
//      empty, or 1000 pivots were taken (the documents left then are counted)
//   4  each rank's joins, reduced to a spanning forest, go to rank 0, which finds the connected components
//   5  the files are read again, and the first document of each component is written
//   Documents are numbered in order of priority: sets as --priority says, then files, then lines. The lowest
//   number of a component is its representative, so the result is the same on any number of ranks.
//   Memory of a rank: at most --memory for records (16 bytes, held twice, 4 bands at a time; what does not
//   fit is sorted in files), and 24 bytes per document of its forest; on rank 0 also 4 bytes per document of
//   all ranks (8 from 2^32 documents on), and some 70 per document removed.
#pragma once
#include <bit>
#include <deque>
#include "minhash.h"
#include "sorting.h"

// this program's own judgement of MT-NLG's sets, the best first: its order was not published
inline const char* default_priority =
    "openwebtext2,wikipedia,books3,bookcorpus2,pubmed,nih-exporter,stackexchange,realnews,pile-cc,gutenberg,"
    "cc-stories,cc-2021-04,cc-2020-50,github,arxiv";

inline void check_priority(const Settings& settings, const Corpus& in) {
    for (auto& name : parts_of(settings.get("priority"), ','))
        if (in.find(name) < 0) fail("--priority %s: there is no such set", name.c_str());
}

struct BandRecord {
    uint64_t key, document;
};
struct Join {
    uint64_t key, other;  // the pivot and one like it: documents
    double alike;         // estimated Jaccard
};

// union by the least number; paths are halved (Tarjan and van Leeuwen 1984)
template <class Number>
struct Components {
    std::vector<Number> parent;
    explicit Components(size_t n) : parent(n) {
        for (size_t i = 0; i < n; i++) parent[i] = (Number)i;
    }

    Number root(Number x) {
        for (; parent[x] != x; x = parent[x]) parent[x] = parent[parent[x]];
        return x;
    }

    bool join(Number a, Number b) {
        a = root(a);
        b = root(b);
        if (a == b) return false;
        parent[std::max(a, b)] = std::min(a, b);
        return true;
    }
};

// fewer joins with the same components: each document is joined to the lowest one of its component
inline void reduce_to_forest(std::vector<Join>& joins) {
    std::vector<uint64_t> names;
    for (auto& j : joins) {
        names.push_back(j.key);
        names.push_back(j.other);
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());

    auto index = [&](uint64_t name) {
        return (uint64_t)(std::lower_bound(names.begin(), names.end(), name) - names.begin());
    };

    Components<uint64_t> components(names.size());
    for (auto& j : joins) components.join(index(j.key), index(j.other));
    joins.clear();
    for (uint64_t i = 0; i < names.size(); i++)
        if (uint64_t root = components.root(i); root != i) joins.push_back({names[root], names[i], 0});
}

constexpr int bands_at_once = 4;     // records per document that are held at once
constexpr int most_pivots = 1000;    // per bucket: a million texts of one template would have too many pairs

// calls found(pivot, other, similarity) where the estimate is above `least`; returns how many documents were
// left when the pivots ran out
template <class Read, class Found>
size_t join_bucket(std::vector<uint64_t>& left, int n, double least, Read read, Found found) {
    std::vector<uint32_t> of_pivot((size_t)n), of_other((size_t)n);
    for (int pivots = 0; left.size() > 1; pivots++) {
        if (pivots == most_pivots) return left.size();
        uint64_t pivot = left[0];
        read(pivot, of_pivot.data());

        size_t kept = 0;
        for (size_t i = 1; i < left.size(); i++) {
            read(left[i], of_other.data());
            double alike = (double)MinHash::equal_places(of_pivot.data(), of_other.data(), n) / n;
            if (alike > least) found(pivot, left[i], alike);
            else left[kept++] = left[i];
        }
        left.resize(kept);
    }
    return 0;
}

struct Dedup {
    const Ranks& ranks;
    const Settings& settings;
    const Corpus& in;
    std::string folder;
    MinHash hasher;
    Corpus hashed;                          // the signature files, in the order of in.files
    std::vector<size_t> order, place;       // the files by priority; each file's place in that order
    std::vector<uint64_t> first;  // number of each file's first document, by place; last: of all documents
    std::map<size_t, std::unique_ptr<SignatureFile>> open;  // by place; few at a time
    std::deque<size_t> opened;                              // the oldest first
    std::vector<Join> joins;
    int64_t left_over = 0;                  // documents left in buckets that ran out of pivots

    Dedup(const Ranks& ranks, const Settings& settings, const Corpus& in, const std::string& folder,
          const MinHash& hasher)
        : ranks(ranks), settings(settings), in(in), folder(folder), hasher(hasher) {}

    Corpus hash_all() {
        Stage stage(ranks, settings, "minhash", folder + "/minhash", ".signatures");
        return stage.each_file(in, every_file,
                               [&](const CorpusFile& f, const std::string& to, Counts& counts) {
                                   DocumentReader reader(f.path, settings.whole("longest"), counts);
                                   SignatureWriter writer(to, hasher.n);
                                   std::vector<uint32_t> signature((size_t)hasher.n);
                                   for (Document d; reader.next(d);) {
                                       hasher.signature(d.text, signature.data());
                                       writer.add(signature.data());
                                       stage.progress.at(stage.progress.done + (double)reader.bytes.at);
                                   }
                                   writer.finish();
                               });
    }

    void number_documents() {
        std::string names = settings.get("priority");
        std::vector<std::string> priority = parts_of(names.empty() ? default_priority : names, ',');

        std::vector<long> rank_of;
        for (auto& set : in.sets)
            rank_of.push_back(std::find(priority.begin(), priority.end(), set.name) - priority.begin());

        for (size_t i = 0; i < in.files.size(); i++) order.push_back(i);
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
            return rank_of[(size_t)in.files[a].set] < rank_of[(size_t)in.files[b].set];
        });
        place.resize(order.size());
        for (size_t f = 0; f < order.size(); f++) place[order[f]] = f;

        std::vector<int64_t> documents;
        for (size_t f = 0; f < order.size() && ranks.first(); f++)
            documents.push_back((int64_t)SignatureFile(hashed.files[order[f]].path).documents);

        first.push_back(0);
        for (int64_t n : ranks.from_first(documents, order.size(), "documents of files"))
            first.push_back(first.back() + (uint64_t)n);
    }

    const SignatureFile& file_at(size_t f) {
        auto& file = open[f];
        if (file) return *file;
        file = std::make_unique<SignatureFile>(hashed.files[order[f]].path);
        if (file->n != hasher.n || file->documents != first[f + 1] - first[f])
            fail("%s: is for other settings or documents: remove it and start again",
                 file->file.path.c_str());
        opened.push_back(f);
        if (opened.size() > 256) {
            open.erase(opened.front());
            opened.pop_front();
        }
        return *open[f];
    }

    size_t file_of(uint64_t document) const {  // its place in `order`
        return (size_t)(std::upper_bound(first.begin(), first.end(), document) - first.begin()) - 1;
    }

    void read_signature(uint64_t document, uint32_t* out) {
        size_t f = file_of(document);
        file_at(f).read(document - first[f], 1, out);
    }

    // Bands [from, to): sends the band hashes of this rank's documents to the ranks that own the hashes, and
    // joins similar documents of each bucket. keep_all: keeps every join, not only a spanning forest
    void meet(int from, int to, double memory, double least, bool keep_all) {
        std::vector<size_t> places;  // of this rank's files
        for (size_t i : deal(ranks, in, every_file)) places.push_back(place[i]);
        std::sort(places.begin(), places.end());

        ExternalSort<BandRecord> sorter(folder, memory * 0.7);
        sorter.reserve(1.05 * (double)first.back() * (to - from) / ranks.all.size + 4096);

        // records that wait to be sent: few, since they are held a second time
        size_t room = std::max((size_t)(std::min(memory * 0.1, 4e6) / sizeof(BandRecord)), (size_t)1024),
               at = 0;
        uint64_t document = 0;
        constexpr uint64_t at_once = 1024;
        std::vector<uint32_t> block(at_once * (uint64_t)hasher.n);

        auto produce = [&](auto add) {
            for (size_t sent = 0; at < places.size(); document = 0, at++) {
                size_t f = places[at];
                for (uint64_t n; document < first[f + 1] - first[f]; document += n) {
                    if (sent > room) return true;
                    n = std::min(at_once, first[f + 1] - first[f] - document);
                    file_at(f).read(document, n, block.data());
                    for (uint64_t d = 0; d < n; d++)
                        for (int b = from; b < to; b++, sent++) {
                            uint64_t key = hasher.band(&block[d * (uint64_t)hasher.n], b);
                            int rank = (int)((unsigned __int128)key * (unsigned)ranks.all.size >> 64);
                            add(rank, BandRecord{key, first[f] + document + d});
                        }
                }
            }
            return false;
        };

        exchange_all<BandRecord>(ranks, produce, [&](const std::vector<BandRecord>& came) {
            for (auto& r : came) sorter.add(r);
        }, "band hashes");

        std::vector<uint64_t> bucket;
        size_t joins_limit = (size_t)(memory * 0.1 / sizeof(Join)) + 1024;
        sorter.each_group([](auto& a, auto& b) { return a.document < b.document; },
                          [&](BandRecord* p, BandRecord* end) {
                              if (end - p < 2) return;
                              bucket.clear();
                              for (; p < end; p++) bucket.push_back(p->document);
                              left_over += (int64_t)join_bucket(
                                  bucket, hasher.n, least,
                                  [&](uint64_t d, uint32_t* out) { read_signature(d, out); },
                                  [&](uint64_t pivot, uint64_t other, double alike) {
                                      joins.push_back({pivot, other, alike});
                                      if (keep_all || joins.size() < joins_limit) return;
                                      reduce_to_forest(joins);
                                      joins_limit = std::max(joins_limit, 2 * joins.size());
                                  });
                          });
    }

    // all joins of all ranks, each once, in order: written by rank 0
    void write_pairs(const std::string& path) {
        std::vector<std::vector<Join>> to((size_t)ranks.all.size);
        for (auto& j : joins)
            to[(size_t)((unsigned __int128)j.key * (unsigned)ranks.all.size / first.back())].push_back(j);
        std::vector<Join> here = exchange(ranks, to, "pairs");

        std::sort(here.begin(), here.end(),
                  [](auto& a, auto& b) { return a.key != b.key ? a.key < b.key : a.other < b.other; });
        here.erase(std::unique(here.begin(), here.end(),
                               [](auto& a, auto& b) { return a.key == b.key && a.other == b.other; }),
                   here.end());

        std::string out;
        auto name = [&](uint64_t d) {
            size_t f = file_of(d);
            const CorpusFile& file = in.files[order[f]];
            return text("%s/%s:%llu", in.sets[file.set].name.c_str(), file.name.c_str(),
                        (unsigned long long)(d - first[f] + 1));
        };
        for (auto& j : here) out += name(j.key) + "\t" + name(j.other) + text("\t%.4f\n", j.alike);

        std::string part = path + text(".part%d", ranks.all.rank);
        write_file(part, out);
        ranks.wait("pairs");

        if (ranks.first()) {
            FileWriter whole(path);
            for (int r = 0; r < ranks.all.size; r++) {
                std::string from = path + text(".part%d", r);
                whole.write(MappedFile(from).view());
                unlink(from.c_str());
            }
            whole.finish();
        }
    }

    // rank 0 writes the numbers of the documents to remove to `path`, ascending, and counts component sizes
    template <class Number>
    void find_components(const std::string& path) {
        reduce_to_forest(joins);

        Components<Number> components(ranks.first() ? first.back() : 0);
        size_t at = 0;
        exchange_all<Join>(ranks, [&](auto add) {
            for (size_t n = 0; at < joins.size(); at++) {
                if (n++ == (4 << 20) / (size_t)ranks.all.size + 1) return true;  // all go to one
                add(0, joins[at]);
            }
            return false;
        }, [&](const std::vector<Join>& came) {
            for (auto& j : came) components.join((Number)j.key, (Number)j.other);
        }, "spanning forests");

        joins = {};
        if (!ranks.first()) return ranks.wait("components");

        std::vector<uint64_t> out = {0, 0};    // a checksum, the count, then the documents
        std::map<uint64_t, uint64_t> size_of;  // root -> other documents of its component
        for (uint64_t d = 0; d < components.parent.size(); d++)
            if (uint64_t root = components.root((Number)d); root != d) {
                size_of[root]++;
                out.push_back(d);
            }

        uint64_t gone = out[1] = out.size() - 2;
        out[0] = checksum(out.data() + 2, gone * 8);
        write_file(path, std::string_view((const char*)out.data(), out.size() * 8));

        std::map<uint64_t, uint64_t> sizes;
        for (auto& [root, others] : size_of) sizes[std::bit_floor(others + 1)]++;
        std::string about =
            text("{\"documents\": %llu, \"removed\": %llu, \"components\": %zu, \"of size\": {",
                 (unsigned long long)first.back(), (unsigned long long)gone, size_of.size());
        bool begun = false;
        for (auto& [size, n] : sizes)
            about +=
                text("%s\"%llu-%llu\": %llu", std::exchange(begun, true) ? ", " : "",
                     (unsigned long long)size, (unsigned long long)(2 * size - 1), (unsigned long long)n);
        FileWriter report(folder + "/components.json");
        about += text("}, \"left over\": %lld", (long long)left_over);
        report.write(about + "}\n");
        report.finish();
        printf("dedup: %s}\n", about.c_str());
        ranks.wait("components");
    }
};

// a checksum, the count, and the numbers of the removed documents, ascending
struct RemovedDocuments {
    MappedFile file;
    const uint64_t *begin, *end;

    explicit RemovedDocuments(const std::string& path) : file(path) {
        uint64_t count = file.read<uint64_t>(8, "count");
        if (count > file.size || file.size != 16 + 8 * count ||
            file.read<uint64_t>(0, "a checksum") != checksum(file.data + 16, 8 * count))
            fail("%s: damaged: remove it and start again", path.c_str());
        begin = (const uint64_t*)(file.data + 16);
        end = begin + count;
    }
};

// writes which documents are removed to `path`, unless that was done before; returns the input's fingerprint
inline uint64_t find_removed(Dedup& d, const Ranks& ranks, const Settings& settings,
                             const std::string& folder, const std::string& path) {
    std::string pairs = settings.get("pairs");
    Stage matching(ranks, settings, "dedup", folder, "");

    // rank 0 decides for all: what is already done, and the fingerprint of all input
    std::vector<int64_t> facts;
    uint64_t stamp = settings.fingerprint("dedup");
    for (size_t i = 0; i < d.order.size() && ranks.first(); i++) {
        const CorpusFile& f = d.hashed.files[d.order[i]];
        stamp = stamp * 31 ^ Stage::identity(f.path) ^ XXH3_64bits(f.name.data(), f.name.size());
    }
    if (ranks.first())
        facts = {(int64_t)stamp, matching.finished(path, stamp),
                 !pairs.empty() && !matching.finished(pairs, stamp)};
    facts = ranks.from_first(facts, 3, "what is done");
    stamp = (uint64_t)facts[0];
    bool done = facts[1], again = facts[2];
    if (done && !again) return stamp;

    double memory = settings.number("memory");
    for (int band = 0; band < d.hasher.bands; band += bands_at_once) {
        d.meet(band, std::min(band + bands_at_once, d.hasher.bands), memory, settings.number("jaccard"),
               !pairs.empty());
        if (pairs.empty()) reduce_to_forest(d.joins);
    }

    d.left_over = ranks.sum({d.left_over}, "documents left over")[0];
    if (!pairs.empty()) d.write_pairs(pairs);
    if (d.first.back() < (1ull << 32)) d.find_components<uint32_t>(path);
    else d.find_components<uint64_t>(path);
    if (ranks.first()) {
        matching.finish(path, stamp, {});
        if (!pairs.empty()) matching.finish(pairs, stamp, {});
    }
    ranks.wait("what is done now");
    return stamp;
}

inline Corpus dedup(const Ranks& ranks, const Settings& settings, const Corpus& in,
                    const std::string& folder) {
    MinHash hasher = ranks.all_or_fail([&] {
        check_priority(settings, in);
        return MinHash(settings);
    });

    Dedup d(ranks, settings, in, folder, hasher);
    d.hashed = d.hash_all();
    d.number_documents();
    std::string path = folder + "/removed";
    uint64_t stamp = find_removed(d, ranks, settings, folder, path);
    RemovedDocuments removed(path);

    Stage stage(ranks, settings, "dedup", folder, settings.documents_ending(), stamp);
    return stage.each_file(in, every_file, [&](const CorpusFile& f, const std::string& to, Counts& counts) {
        size_t place = d.place[(size_t)(&f - in.files.data())];
        const uint64_t* gone = std::lower_bound(removed.begin, removed.end, d.first[place]);
        uint64_t number = d.first[place];
        DocumentReader reader(f.path, settings.whole("longest"), counts);
        DocumentWriter writer(to);

        for (Document doc; reader.next(doc); number++) {
            int64_t n = characters(doc.text);
            counts["characters"] += n;
            stage.progress.at(stage.progress.done + (double)reader.bytes.at);
            if (gone < removed.end && *gone == number) {
                gone++;
                counts["duplicates"]++;
                continue;
            }
            counts["kept"]++;
            counts["kept characters"] += n;
            writer.write(doc);
        }
        writer.finish();
    });
}
