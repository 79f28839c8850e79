// steps.h   how a step processes its files: dealt to ranks, one output for each input, finished ones skipped
//   An output is written under a temporary name and renamed; then OUTPUT.counts is written, with what was
//   counted and a fingerprint of the settings and the input. A file whose OUTPUT.counts matches is skipped: a
//   killed run resumes where it stopped. An output does not depend on the rank that writes it, nor on the
//   number of ranks. When all files are done, DIR/STEP.json is written: the counts, summed for each set.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include "../../comm/mpi/collective_check.h"
#include "../json.h"
#include "settings.h"

struct Ranks {
    comm::Group all = comm::everyone();
    bool first() const { return all.rank == 0; }
    void wait(const char* label) const { comm::barrier(all, label); }
    // runs what() on every rank; if it fails on any, the error is printed once and all ranks exit
    template <class What>
    auto all_or_fail(What what) const {
        std::optional<decltype(what())> result;
        comm::all_ranks_or_fail([&] { result.emplace(what()); });
        return std::move(*result);
    }

    // what rank 0 has, on every rank
    std::vector<int64_t> from_first(std::vector<int64_t> x, size_t n, const char* label) const {
        x.resize(n);
        std::vector<int64_t> every = comm::gather_numbers(all, x, label);
        every.resize(n);
        return every;
    }

    // the same sum on every rank
    std::vector<int64_t> sum(std::vector<int64_t> x, const char* label) const {
        std::vector<int64_t> every = comm::gather_numbers(all, x, label), out(x.size(), 0);
        for (size_t i = 0; i < every.size(); i++) out[i % x.size()] += every[i];
        return out;
    }
};

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
}

// a progress line now and then on rank 0: what is done, how fast, and how much time is left
struct Progress {
    std::string what;
    double every, total = 0, done = 0;  // bytes of this rank
    bool shown;
    Clock::time_point start = Clock::now(), last = start;

    Progress(const std::string& what, double every, bool shown) : what(what), every(every), shown(shown) {}
    void at(double bytes) {
        if (!shown || every <= 0 || seconds_since(last) < every) return;
        last = Clock::now();
        double rate = bytes / seconds_since(start), left = rate > 0 ? (total - bytes) / rate : 0;
        fprintf(stderr, "%s: %.0f of %.0f MB, %.1f MB/s a rank, %.0f min left\n", what.c_str(), bytes * 1e-6,
                total * 1e-6, rate * 1e-6, std::max(left, 0.0) / 60);
    }
};

using Wanted = std::function<bool(const CorpusFile&)>;
inline bool every_file(const CorpusFile&) { return true; }

// the indices of this rank's files: the largest are dealt first, each to the rank with fewest bytes so far
inline std::vector<size_t> deal(const Ranks& ranks, const Corpus& corpus, const Wanted& wanted) {
    std::vector<size_t> order, out;
    for (size_t i = 0; i < corpus.files.size(); i++)
        if (wanted(corpus.files[i])) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return corpus.files[a].bytes > corpus.files[b].bytes; });

    using Load = std::pair<uint64_t, int>;
    std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
    for (int r = 0; r < ranks.all.size; r++) loads.push({0, r});

    for (size_t i : order) {
        auto [load, rank] = loads.top();
        loads.pop();
        loads.push({load + corpus.files[i].bytes + 1000, rank});
        if (rank == ranks.all.rank) out.push_back(i);
    }
    return out;
}

struct Stage {
    const Ranks& ranks;
    const Settings& settings;
    std::string step, folder, ending;  // of outputs, as .jsonl.zst
    uint64_t fingerprint;
    Progress progress;

    // also: what else the result depends on
    Stage(const Ranks& ranks, const Settings& settings, const std::string& step, const std::string& folder,
          const std::string& ending, uint64_t also = 0)
        : ranks(ranks), settings(settings), step(step), folder(folder), ending(ending),
          fingerprint(settings.fingerprint(step) ^ also * 0x9E3779B97F4A7C15ull),
          progress(step, settings.number("progress"), ranks.first()) {}

    std::string output(const Corpus& corpus, const CorpusFile& f) const {
        return folder + "/" + corpus.sets[f.set].name + "/" + f.name + ending;
    }

    // a hash of a file's size, its beginning and its end
    static uint64_t ends_of(const std::string& path) {
        InputFile file(path);
        std::string first(std::min(file.size, (size_t)1 << 16), 0), last = first;
        file.read(first.data(), 0, first.size(), "its beginning");
        file.read(last.data(), file.size - last.size(), last.size(), "its end");
        uint64_t end = XXH3_64bits(last.data(), last.size());
        return file.size ^ XXH3_64bits(first.data(), first.size()) * 3 ^ end;
    }

    static uint64_t whole_hash(const std::string& path) {
        MappedFile file(path);
        std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
        XXH3_64bits_reset(state.get());
        constexpr size_t part = 16 << 20;
        for (size_t at = 0; at < file.size; at += part) {
            size_t n = std::min(part, file.size - at);
            XXH3_64bits_update(state.get(), file.data + at, n);
            madvise((void*)(file.data + at), n, MADV_DONTNEED);
        }
        return XXH3_64bits_digest(state.get());
    }

    // identifies an input: the hash in INPUT.counts if a step wrote it; else its ends and modification time
    static uint64_t identity(const std::string& path) {
        std::string about = path + ".counts";
        if (access(about.c_str(), F_OK) == 0) {
            Json said = Json::parse(WholeFile(about).view(), about);
            if (said.at("ends", about).string(about) == hex(ends_of(path)))  // else it was changed since
                return strtoull(said.at("hash", about).string(about).c_str(), nullptr, 16);
        }
        struct stat info = {};
        stat(path.c_str(), &info);
        return ends_of(path) ^
            ((uint64_t)info.st_mtim.tv_sec * 1000000000 + (uint64_t)info.st_mtim.tv_nsec) * 7;
    }

    static std::string hex(uint64_t x) { return text("%016llx", (unsigned long long)x); }
    std::string mark(uint64_t of_input) const { return hex(fingerprint ^ of_input * 5); }
    bool finished(const std::string& path, uint64_t of_input) const {
        std::error_code e;
        if (!std::filesystem::exists(path, e) || !std::filesystem::exists(path + ".counts", e)) return false;
        try {
            WholeFile file(path + ".counts");
            Json about = Json::parse(file.view(), path);
            return about.at("mark", path).string("mark") == mark(of_input) &&
                about.at("ends", path).string("ends") == hex(ends_of(path));
        } catch (const Error&) {
            return false;  // cut off or foreign: done again
        }
    }

    void finish(const std::string& path, uint64_t of_input, const Counts& counts) const {
        FileWriter about(path + ".counts");
        about.write("{\"mark\": \"" + mark(of_input) + "\", \"ends\": \"" +
                    hex(ends_of(path)) + "\", \"hash\": \"" + hex(whole_hash(path)) +
                    "\", \"counts\": " + as_json(counts) + "}\n");
        about.finish();
    }

    static std::string as_json(const Counts& counts) {
        std::string out = "{";
        for (auto& [name, n] : counts)
            out += (out.size() > 1 ? ", " : "") + json_quote(name) + ": " + std::to_string(n);
        return out + "}";
    }

    static Counts read_counts(const std::string& path) {
        WholeFile file(path + ".counts");
        Counts counts;
        Json about = Json::parse(file.view(), path + ".counts");
        for (auto& [name, n] : about.at("counts", path).members)
            counts[name] = (int64_t)n.number("count");
        return counts;
    }

    // makes the folders, and refuses to overwrite an input, of this set or another
    int prepare(const Corpus& in, const Wanted& wanted) const {
        std::set<std::string> folders = {folder};
        std::vector<std::string> inputs, outputs;
        for (auto& f : in.files) {
            inputs.push_back(f.path);
            if (!wanted(f)) continue;
            folders.insert(folder + "/" + in.sets[f.set].name);
            outputs.push_back(output(in, f));
        }
        refuse_overwriting(outputs, inputs);

        std::error_code e;
        for (auto& path : folders)
            if (!std::filesystem::create_directories(path, e) && e)
                fail("%s: cannot be created: %s", path.c_str(), e.message().c_str());
        return 0;
    }

    // work(file, path to write, counts) makes one output; the result holds outputs for what was wanted, and
    // all other files as they were
    template <class Work>
    Corpus each_file(const Corpus& in, const Wanted& wanted, Work work) {
        ranks.all_or_fail([&] { return ranks.first() ? prepare(in, wanted) : 0; });
        std::vector<size_t> files = deal(ranks, in, wanted);
        for (size_t i : files) progress.total += (double)in.files[i].bytes;

        for (size_t i : files) {
            const CorpusFile& f = in.files[i];
            std::string to = output(in, f);
            uint64_t input = identity(f.path);
            if (finished(to, input)) {  // no work: not counted as speed
                progress.total -= (double)f.bytes;
                continue;
            }

            unlink((to + ".counts").c_str());
            Counts counts;
            work(f, to, counts);
            finish(to, input, counts);
            progress.done += (double)f.bytes;
            progress.at(progress.done);
        }

        ranks.wait("a step");

        Corpus out = in;
        std::map<std::string, Counts> sums;
        std::vector<int64_t> sizes;
        for (auto& f : out.files) {
            if (!wanted(f)) continue;
            f.path = output(in, f);
            if (!ranks.first()) continue;
            sizes.push_back((int64_t)std::filesystem::file_size(f.path));
            Counts& sum = sums[in.sets[f.set].name];
            for (auto& [name, n] : read_counts(f.path)) sum[name] += n;
        }

        sizes =
            ranks.from_first(sizes, (size_t)std::count_if(in.files.begin(), in.files.end(), wanted), "sizes");
        size_t next = 0;
        for (size_t i = 0; i < in.files.size(); i++)
            if (wanted(in.files[i])) out.files[i].bytes = (uint64_t)sizes[next++];
        ranks.all_or_fail([&] {
            if (ranks.first()) report(sums);
            return 0;
        });
        return out;
    }

    // keep(document, counts) returns nullptr if the document is to be written, else a reason to be counted
    template <class Keep>
    Corpus each_document(const Corpus& in, const Wanted& wanted, Keep keep) {
        return each_file(in, wanted, [&](const CorpusFile& f, const std::string& to, Counts& counts) {
            DocumentReader reader(f.path, settings.whole("longest"), counts);
            DocumentWriter writer(to);
            for (Document d; reader.next(d);) {
                int64_t had = characters(d.text);
                counts["characters"] += had;
                const char* why = keep(d, counts);
                if (why) counts[why]++;
                else {
                    counts["kept"]++;
                    counts["kept characters"] += characters(d.text);
                    writer.write(d);
                }

                progress.at(progress.done + (double)reader.bytes.at);
            }
            writer.finish();
        });
    }

    // a line that is no document is only counted, but many of them probably mean another format
    void refuse_unreadable(const std::string& set, const Counts& counts) const {
        int64_t damaged =
            count_of(counts, "damaged compressed data") + count_of(counts, "damaged gzip members");
        if (damaged)
            fprintf(stderr, "WARNING: %s: %s: %lld damaged or truncated parts of compressed files: what they "
                    "held is lost; fetch these files again\n", step.c_str(), set.c_str(), (long long)damaged);
        int64_t junk = count_of(counts, "bytes that are no record");
        if (junk && counts.size() == 1)
            fail("%s: %s: %lld bytes without a record: expected WARC files", step.c_str(), set.c_str(),
                 (long long)junk);
        int64_t lines = count_of(counts, "documents"), none = 0;
        std::string why;
        for (const char* name : {"not JSON", "without \"text\"", "longer than --longest"})
            if (int64_t n = count_of(counts, name)) {
                none += n;
                why += text("%s%s %lld", why.empty() ? "" : ", ", name, (long long)n);
            }
        if (!none) return;
        double share = (double)none / (double)lines;
        if (share > settings.number("unreadable"))
            fail("%s: %lld of %lld lines of %s are not documents (%s): expected JSON lines with \"text\"; "
                 "give --unreadable %.2g to leave out that many", step.c_str(), (long long)none,
                 (long long)lines, set.c_str(), why.c_str(), std::min(1.0, share + 0.01));
        if (share > 0.001)
            fprintf(stderr, "WARNING: %s: %lld of %lld lines of %s are not documents: left out (%s)\n",
                    step.c_str(), (long long)none, (long long)lines, set.c_str(), why.c_str());
    }

    void report(const std::map<std::string, Counts>& sums) const {
        std::string all;
        for (auto& [set, counts] : sums) {
            all += (all.empty() ? "" : ",\n") + json_quote(set) + ": " + as_json(counts);
            printf("%s %s:", step.c_str(), set.c_str());
            bool first = true;
            for (auto& [name, n] : counts)
                printf("%s %s %lld", std::exchange(first, false) ? "" : ",", name.c_str(), (long long)n);
            printf("\n");
        }
        fflush(stdout);
        write_file(folder + "/" + step + ".json", "{" + all + "}\n");
        for (auto& [set, counts] : sums) refuse_unreadable(set, counts);
    }
};
