// minhash.h   signatures of documents: two agree in a place with probability Jaccard similarity (Broder 1997)
//   Shingles: every run of k characters (or words), hashed by a rolling polynomial mod 2^64 and mixed. A
//   text shorter than k is one shingle.
//   full   min over shingles of a[i] x + b[i] mod 2^32, for each place i on its own: n multiplications a
//          shingle
//   fast   one-permutation hashing: a shingle falls into one of n bins, and a bin keeps its least hash; an
//          empty bin takes that of another bin, chosen by a hash (optimal densification: Shrivastava, ICML
//          2017). One multiplication per shingle; as accurate if a text has several times n shingles
//   A band is `rows` consecutive places. Two documents are compared if all places of any band are equal: with
//   probability 1 - (1 - s^rows)^bands at Jaccard similarity s.
#pragma once
#include <string>
#include <vector>
#include "../../layers/base/numbers.h"
#include "settings.h"
#include "text.h"

struct MinHash {
    int bands, rows, n, shingle;
    bool fast;
    static constexpr int lanes = 16;
    std::vector<uint32_t> a, b;  // filled up to a multiple of lanes

    explicit MinHash(const Settings& s)
        : bands((int)s.whole("bands")),
          rows((int)s.whole("rows")),
          n(bands * rows),
          shingle((int)s.whole("shingle")),
          fast(s.yes("fast")) {
        if (n > 65536) fail("--bands %d --rows %d: at most 65536 min-hashes are possible", bands, rows);
        for (int i = 0; i < (n + lanes - 1) / lanes * lanes; i++) {
            Philox r = philox(1, purpose("min-hash"), (uint64_t)i);
            a.push_back(r.x[0] | 1);
            b.push_back(r.x[1]);
        }
    }

    // out (n); a text without a single character has all places at their highest
    void signature(std::string_view s, uint32_t* out) {
        lowest.assign(a.size(), ~0u);
        hashes.clear();
        add_shingles(s);
        if (!hashes.empty()) take();
        if (fast) densify();
        std::copy(lowest.begin(), lowest.begin() + n, out);
    }

    uint64_t band(const uint32_t* signature, int i) const {
        return XXH3_64bits_withSeed(signature + (long)i * rows, (size_t)rows * 4, (XXH64_hash_t)i);
    }

    static int equal_places(const uint32_t* x, const uint32_t* y, int n) {
        int equal = 0;
        for (int i = 0; i < n; i++) equal += x[i] == y[i];
        return equal;
    }

private:
    static constexpr uint64_t base = 0x9E3779B97F4A7C15ull;
    static constexpr size_t batch = 4096;
    std::vector<uint32_t> lowest, filled;
    std::vector<uint64_t> hashes, ring;

    void add(uint64_t h) {
        h ^= h >> 32;
        h *= 0xD6E8FEB86659FD93ull;
        h ^= h >> 32;
        h *= 0xD6E8FEB86659FD93ull;
        hashes.push_back(h ^ h >> 32);
        if (hashes.size() == batch) take();
    }

    void take() {
        if (fast) {
            for (uint64_t h : hashes) {
                size_t bin = (size_t)((h >> 32) * (uint64_t)n >> 32);
                lowest[bin] = std::min(lowest[bin], (uint32_t)h);
            }
        } else {
            for (size_t i = 0; i < a.size(); i += lanes) take_lanes(&a[i], &b[i], &lowest[i]);
        }
        hashes.clear();
    }

    void take_lanes(const uint32_t* a_in, const uint32_t* b_in, uint32_t* inout) {
        typedef uint32_t Lanes __attribute__((vector_size(lanes * 4)));  // one register, or a few
        Lanes m, x, y;
        memcpy(&m, inout, sizeof m);
        memcpy(&x, a_in, sizeof x);
        memcpy(&y, b_in, sizeof y);
        for (uint64_t h : hashes) {
            Lanes t = (uint32_t)h * x + y;
            m = t < m ? t : m;
        }
        memcpy(inout, &m, sizeof m);
    }

    void densify() {
        bool any = false;
        for (int i = 0; i < n; i++) any = any || lowest[i] != ~0u;
        if (!any) return;
        filled = lowest;
        for (int i = 0; i < n; i++)
            for (uint64_t attempt = 1; lowest[i] == ~0u; attempt++) {
                uint64_t h = ((uint64_t)i << 32 | attempt) * base;
                lowest[i] = filled[(size_t)((h >> 32) * (uint64_t)n >> 32)];
            }
    }

    // each run of `shingle` values; the values of a text shorter than that are one
    struct Roller {
        std::vector<uint64_t>& ring;
        size_t at = 0, count = 0;
        uint64_t h = 0, power = 1;
        Roller(std::vector<uint64_t>& r, int k) : ring(r) {
            ring.assign((size_t)k, 0);
            for (int i = 0; i < k; i++) power *= base;
        }

        bool push(uint64_t value) {  // true: a whole run ends here
            h = h * base + value - ring[at] * power;
            ring[at] = value;
            at = at + 1 == ring.size() ? 0 : at + 1;
            return ++count >= ring.size();
        }
    };
    void add_shingles(std::string_view s) {
        Roller r(ring, shingle);
        for (size_t i = 0; i < s.size();) {
            size_t bytes = 1;
            unsigned char c = (unsigned char)s[i];
            uint64_t code = c < 0x80 ? c : decode_at(s, i, &bytes);
            i += bytes;
            if (r.push(code + 1)) add(r.h);
        }
        if (r.count > 0 && r.count < ring.size()) add(r.h);
    }
};

// signatures of one file's documents: "GPTMINH1", uint32 n, uint32 0, uint64 documents; (documents, n) uint32
struct SignatureFile {
    InputFile file;
    uint64_t documents = 0;
    int n = 0;

    explicit SignatureFile(const std::string& path) : file(path) {
        char header[24] = {};
        if (file.size >= sizeof header) file.read(header, 0, sizeof header, "the header");
        if (memcmp(header, "GPTMINH1", 8)) refuse("holds no signatures");

        memcpy(&n, header + 8, 4);
        memcpy(&documents, header + 16, 8);
        if (n < 1 || documents > file.size || file.size != 24 + documents * (uint64_t)n * 4)
            refuse("is not as long as its header says");
    }

    // of documents first … first + count - 1: (count, n)
    void read(uint64_t first, uint64_t count, uint32_t* out) const {
        file.read(out, 24 + first * (uint64_t)n * 4, count * (uint64_t)n * 4, "signatures");
    }

private:
    [[noreturn]] void refuse(const char* what) const {
        fail("%s: %s: remove it and start again", file.path.c_str(), what);
    }
};
struct SignatureWriter {
    FileWriter file;
    uint64_t documents = 0;
    uint32_t n;
    std::vector<uint32_t> pending;
    SignatureWriter(const std::string& path, int n) : file(path), n((uint32_t)n) {
        file.write(std::string(24, 0));
    }

    void add(const uint32_t* signature) {
        pending.insert(pending.end(), signature, signature + n);
        documents++;
        if (pending.size() > (1 << 18)) flush();
    }

    void flush() {
        file.write(pending.data(), pending.size() * 4);
        pending.clear();
    }

    void finish() {
        flush();
        char header[24] = "GPTMINH1";
        memcpy(header + 8, &n, 4);
        memcpy(header + 16, &documents, 8);
        file.write_at(header, 24, 0);
        file.finish();
    }
};
