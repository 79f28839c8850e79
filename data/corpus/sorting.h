// sorting.h   sorts records by key in bounded memory, and exchanges them between ranks
//   exchange       sends every rank's records to the ranks they are for (all-to-all)
//   ExternalSort   radix sort in memory; what does not fit is written to files as sorted runs and merged (the
//                  files are unlinked at once, and vanish with the process)
//   A record is trivially copyable, a multiple of 8 bytes, and begins with a uint64 `key`.
#pragma once
#include <queue>
#include "steps.h"

// to[r] goes to rank r; returns the records received, in the order of the ranks that sent them
template <class T>
std::vector<T> exchange(const Ranks& ranks, std::vector<std::vector<T>>& to, const char* label) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
    int size = ranks.all.size, me = ranks.all.rank;
    if (size == 1) return std::exchange(to[0], {});

    std::vector<int64_t> counts;
    for (auto& t : to) counts.push_back((int64_t)t.size());
    std::vector<int64_t> all = comm::gather_numbers(ranks.all, counts, label);  // (from, to)
    std::vector<size_t> begin(size + 1, 0);
    for (int r = 0; r < size; r++) begin[r + 1] = begin[r] + (size_t)all[r * size + me];
    std::vector<T> out(begin[size]);

    constexpr long most = 1 << 26, words = sizeof(T) / 8;  // int64s per message, per record
    comm::group_begin();
    for (int r = 0; r < size; r++) {
        if (r == me) {
            std::copy(to[me].begin(), to[me].end(), out.begin() + (long)begin[me]);
            continue;
        }
        long sends = (long)to[r].size() * words, receives = (long)(begin[r + 1] - begin[r]) * words;
        int64_t *from = (int64_t*)to[r].data(), *into = (int64_t*)(out.data() + begin[r]);
        for (long at = 0; at < receives; at += most)
            comm::receive(ranks.all, into + at, std::min(most, receives - at), r, label, nullptr);
        for (long at = 0; at < sends; at += most)
            comm::send(ranks.all, from + at, std::min(most, sends - at), r, label, nullptr);
    }

    comm::group_end();
    for (auto& t : to) t.clear();
    return out;
}

// Repeats until no rank has more records: produce(add) calls add(rank, record) for as many as may be held and
// returns whether it has more; take(records) gets those that this rank received
template <class T, class Produce, class Take>
void exchange_all(const Ranks& ranks, Produce produce, Take take, const char* label) {
    std::vector<std::vector<T>> to((size_t)ranks.all.size);
    for (bool more = true, any = true; any;) {
        if (more) more = produce([&](int rank, const T& record) { to[(size_t)rank].push_back(record); });
        take(exchange(ranks, to, label));
        any = ranks.sum({more}, label)[0] > 0;
    }
}

template <class T>
void radix_sort(std::vector<T>& x, std::vector<T>& spare) {  // by key; stable
    if (x.size() < 256)
        return std::stable_sort(x.begin(), x.end(), [](const T& a, const T& b) { return a.key < b.key; });
    constexpr int bits = 11, digits = 6, values = 1 << bits;
    std::vector<size_t> counts((size_t)digits * values, 0);
    for (auto& r : x)
        for (int d = 0; d < digits; d++)
            counts[(size_t)(d * values) + (r.key >> (d * bits) & (values - 1))]++;
    spare.resize(x.size());
    for (int d = 0; d < digits; d++) {
        size_t* count = &counts[(size_t)(d * values)];
        if (count[x[0].key >> (d * bits) & (values - 1)] == x.size()) continue;  // all the same
        for (size_t sum = 0, i = 0; i < values; i++) sum += std::exchange(count[i], sum);
        for (auto& r : x) spare[count[r.key >> (d * bits) & (values - 1)]++] = r;
        x.swap(spare);
    }
}

template <class T>
struct ExternalSort {
    std::string folder;
    size_t most;  // records in memory

    ExternalSort(const std::string& folder, double bytes)
        : folder(folder), most(std::max((size_t)(bytes / (2 * sizeof(T))), (size_t)1024)) {}
    ExternalSort(const ExternalSort&) = delete;
    ~ExternalSort() {
        for (auto& r : runs) close(r.fd);
    }

    void reserve(double records) { held.reserve(std::min(most, (size_t)records)); }
    void add(const T& record) {
        held.push_back(record);
        if (held.size() >= most) spill();
    }

    // group(first, last) for each key in order, records of a key in the order of less
    template <class Less, class Group>
    void each_group(Less less, Group group) {
        if (runs.empty()) {
            radix_sort(held, spare);
            spare = {};
            for (size_t i = 0, end; i < held.size(); i = end) {
                for (end = i + 1; end < held.size() && held[end].key == held[i].key;) end++;
                if (end - i > 1) std::sort(held.begin() + (long)i, held.begin() + (long)end, less);
                group(held.data() + i, held.data() + end);
            }
            held = {};
            return;
        }

        if (!held.empty()) spill();
        held = {};
        spare = {};
        merge(less, group);
    }

private:
    struct Run {
        int fd;
        size_t records, at = 0, next = 0;  // at: read so far; next: in the buffer
        std::vector<T> buffer = {};
    };
    std::vector<T> held, spare;
    std::vector<Run> runs;

    void spill() {
        radix_sort(held, spare);
        std::string path = folder + "/.sort-XXXXXX";  // a name of its own, on whatever node
        int fd = mkostemp(path.data(), O_CLOEXEC);
        if (fd < 0) fail("%s: cannot be written: %s", path.c_str(), strerror(errno));
        unlink(path.c_str());

        const char* p = (const char*)held.data();
        for (size_t left = held.size() * sizeof(T); left;) {
            ssize_t n = ::write(fd, p, std::min(left, (size_t)1 << 30));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) fail("%s: cannot be written: %s", path.c_str(), strerror(n < 0 ? errno : ENOSPC));
            p += n;
            left -= (size_t)n;
        }
        runs.push_back({fd, held.size()});
        held.clear();
    }

    bool refill(Run& r) {
        size_t n = std::min(std::max(most / (runs.size() + 1), (size_t)64), r.records - r.at);
        r.buffer.resize(n);
        r.next = 0;
        for (size_t had = 0; had < n * sizeof(T);) {
            ssize_t got = pread(r.fd, (char*)r.buffer.data() + had, n * sizeof(T) - had,
                                (off_t)(r.at * sizeof(T) + had));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) fail("%s: a sorted run cannot be read back: %s", folder.c_str(), strerror(errno));
            had += (size_t)got;
        }
        r.at += n;
        return n > 0;
    }

    template <class Less, class Group>
    void merge(Less less, Group group) {
        using Head = std::pair<uint64_t, size_t>;  // key, run
        std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
        for (size_t i = 0; i < runs.size(); i++) if (refill(runs[i])) heads.push({runs[i].buffer[0].key, i});
        std::vector<T> now;
        auto end_group = [&] {
            std::sort(now.begin(), now.end(), less);
            if (!now.empty()) group(now.data(), now.data() + now.size());
            now.clear();
        };
        while (!heads.empty()) {
            auto [key, i] = heads.top();
            heads.pop();
            Run& r = runs[i];
            if (!now.empty() && now[0].key != key) end_group();
            now.push_back(r.buffer[r.next++]);
            if (r.next < r.buffer.size() || refill(r)) heads.push({r.buffer[r.next].key, i});
        }
        end_group();
    }
};
