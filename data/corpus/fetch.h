// fetch.h   a crawl's files from a list of paths, as Common Crawl publishes them (warc.paths.gz)
//   A line is a path relative to --base-url, or a URL; "HEX  PATH", as md5sum, sha1sum and sha256sum write
//   it, also gives a digest. The list itself is a file or a URL, plain or compressed. Files are dealt to the
//   ranks, each of which has one connection; FOLDER/NAME appears when the file is complete and matches
//     the length that the server announced, and the server's digest, if it sends one (see digest.h)
//     the digest in the list
//     for WARC: the gzip members' checksums, and each record's WARC-Block-Digest
//   Otherwise the file is fetched once more. If the same bytes arrive again, they are what the server has:
//   damaged WARC is then kept and counted (`extract` reads around the damage); a wrong digest is an error.
#pragma once
#include "download.h"

struct RemoteFile {
    std::string url, name;
    std::optional<Digest> digest;
};

inline bool is_url(const std::string& s) { return s.starts_with("http://") || s.starts_with("https://"); }

// names that the step itself writes
inline bool is_reserved(const std::string& name) {
    bool is_note = name.ends_with(".counts") || name.ends_with(".source") || name.ends_with(".partial");
    return is_note || name == "fetch.json" || name.starts_with("list-");
}

inline std::string file_name_of(const std::string& url) {
    std::string path = url.substr(0, url.find_first_of("?#"));
    return path.substr(path.rfind('/') + 1);
}

// where a list that is a URL is kept: all of Common Crawl's have one name
inline std::string list_name(const std::string& url) {
    uint64_t hash = XXH3_64bits(url.data(), url.size());
    return text("list-%016llx-", (unsigned long long)hash) + file_name_of(url);
}

// one of HEX  PATH, HEX *PATH, PATH
inline RemoteFile parse_list_line(std::string line, const std::string& base_url) {
    RemoteFile file;
    size_t blank = line.find(' ');
    if (blank != line.npos) {
        std::string first = line.substr(0, blank);
        for (const char* algorithm : {"md5", "sha1", "sha256"})
            if (first.size() == 2 * digest_size(algorithm)) file.digest = parse_digest(algorithm, first);
        size_t path = line.find_first_not_of(" *", blank);
        if (file.digest && path != line.npos) line = line.substr(path);
    }

    bool has_control = std::any_of(line.begin(), line.end(), [](unsigned char c) { return c <= ' '; });
    file.url = is_url(line) ? line : base_url + (base_url.ends_with('/') ? "" : "/") +
        line.substr(std::min(line.find_first_not_of('/'), line.size()));
    file.name = file_name_of(file.url);

    bool is_bad = file.name.empty() || file.name[0] == '.' || file.name.size() > 200;
    if (has_control || is_bad || is_reserved(file.name))
        fail("wants a path, or a digest and a path: has %.100s", line.c_str());
    return file;
}

inline std::vector<RemoteFile> read_file_list(const std::string& path, const std::string& base_url) {
    ByteReader bytes(path);
    std::string all, part(1 << 20, 0);
    while (size_t n = bytes.read(part.data(), part.size())) {
        all.append(part, 0, n);
        if (all.size() > ((size_t)1 << 30)) fail("%s: is no list: over 1 GB", path.c_str());
    }
    if (bytes.damaged) fail("%s: is damaged: fetch the list again", path.c_str());

    std::vector<RemoteFile> out;
    long number = 0;
    for (auto& raw : parts_of(all, '\n')) {
        std::string line(HeaderFields::strip(raw));
        number++;
        if (line.empty() || line[0] == '#') continue;
        try {
            out.push_back(parse_list_line(line, base_url));
        } catch (const Error& e) {
            fail("%s, path %ld: %s", path.c_str(), number, e.what());
        }
    }
    return out;
}

// ---- whether it is whole ---------------------------------------------------------------------------------

// checks the gzip members and records of a WARC file; damage is counted under names with "damaged", "cut",
// "wrong" or "no record"
inline Counts check_warc(const std::string& path) {
    Counts counts;
    WarcReader reader(path, (size_t)256 << 20, counts);
    for (WarcRecord record; reader.next(record);) {
        std::string written(record.fields.get("WARC-Block-Digest"));
        size_t colon = written.find(':');
        if (colon == written.npos) continue;
        std::optional<Digest> wants = parse_digest(written.substr(0, colon), written.substr(colon + 1));
        if (!wants) continue;  // of another kind
        counts["records with a digest"]++;
        if (digest_of(record.content, wants->algorithm) != *wants) counts["records of wrong digest"]++;
    }
    return counts;
}

inline int64_t count_wrong(const Counts& counts) {
    int64_t wrong = 0;
    for (auto& [name, n] : counts)
        for (const char* word : {"damaged", "cut", "wrong", "no record"})
            if (name.find(word) != name.npos) wrong += n;
    return wrong;
}

// what disagrees, or ""; whatever is known of the file's content is counted
inline std::string find_disagreement(const Download& download, const RemoteFile& file, Counts& counts,
                                     bool& is_tolerable) {
    counts = {{"bytes", (int64_t)download.bytes()}, {"files", 1}};
    is_tolerable = false;

    for (auto* wants : {&file.digest, &download.stated})
        if (*wants) {
            Digest has = digest_of_file(download.partial(), (*wants)->algorithm);
            if (has != **wants)
                return text("has %s, %s wants %s", has.hex().c_str(),
                            wants == &file.digest ? "the list" : "the server", (*wants)->hex().c_str());
        }

    if (!file.name.ends_with(".warc") && !file.name.ends_with(".warc.gz")) return "";
    Counts warc = check_warc(download.partial());
    counts.insert(warc.begin(), warc.end());
    is_tolerable = count_of(warc, "records") > 0;
    if (!is_tolerable) return "holds no WARC record";
    int64_t wrong = count_wrong(warc);
    return wrong ? text("%lld of its records or gzip members are damaged", (long long)wrong) : "";
}

// ---- the step --------------------------------------------------------------------------------------------

inline void fetch_file(const DownloadSettings& settings, RateBound& bound, const RemoteFile& file,
                       const std::string& path, Counts& counts, const std::function<void(double)>& report) {
    Download download(settings, bound, file.url, path, report);
    uint64_t before = 0;

    for (bool first = true;; first = false) {
        download.run();
        bool is_tolerable = false;
        std::string wrong = find_disagreement(download, file, counts, is_tolerable);
        if (wrong.empty()) break;

        uint64_t now = Stage::whole_hash(download.partial());
        bool is_same = !first && now == before;
        before = now;
        if (is_same && is_tolerable) {
            fprintf(stderr, "%s: %s, twice the same: kept as the server has it\n", file.url.c_str(),
                    wrong.c_str());
            counts["files damaged at their source"] = 1;
            break;
        }

        download.again();
        if (!first) fail("%s: %s, twice", file.url.c_str(), wrong.c_str());
        fprintf(stderr, "%s: %s: fetched once more\n", file.url.c_str(), wrong.c_str());
    }
    download.finish();
}

// rank 0 downloads the lists that are URLs; then all ranks read the lists
inline std::vector<RemoteFile> fetch_lists(const Ranks& ranks, const Settings& settings,
                                           const std::vector<std::string>& lists, const std::string& folder) {
    std::vector<RemoteFile> all;
    std::string base_url = settings.get("base-url");

    ranks.together([&] {
        if (!is_url(base_url)) fail("--base-url %s: wants http:// or https://", base_url.c_str());
        std::error_code e;
        if (ranks.first() && !std::filesystem::create_directories(folder, e) && e)
            fail("%s: cannot be made: %s", folder.c_str(), e.message().c_str());

        for (auto& list : lists) {
            if (!ranks.first() || !is_url(list)) continue;
            if (file_name_of(list).empty()) fail("%s: names no list", list.c_str());
            RemoteFile file = {list, list_name(list), {}};
            DownloadSettings alone(settings, 1);
            RateBound bound(alone.rate);
            Counts counts;
            fetch_file(alone, bound, file, folder + "/" + file.name, counts, [](double) {});
        }
        return 0;
    });
    return ranks.together([&] {
        for (auto& list : lists) {
            std::string path = is_url(list) ? folder + "/" + list_name(list) : list;
            for (auto& file : read_file_list(path, base_url)) all.push_back(file);
        }

        std::map<std::string, std::string> urls;
        for (auto& file : all)
            if (auto [had, is_new] = urls.insert({file.name, file.url}); !is_new)
                fail("two files are called %s: %s and %s: give lists that have one of each name",
                     file.name.c_str(), had->second.c_str(), file.url.c_str());

        size_t files = settings.whole("files"), n = all.size();
        if (!n) fail("the lists name no file");
        std::vector<RemoteFile> some;
        for (size_t i = 0; i < std::min(files, n); i++) some.push_back(all[i * n / std::min(files, n)]);
        return files ? some : all;
    });
}

inline void fetch(const Ranks& ranks, const Settings& settings, const std::vector<std::string>& lists,
                  const std::string& folder) {
    std::vector<RemoteFile> files = fetch_lists(ranks, settings, lists, folder);
    DownloadSettings download = ranks.together([&] { return DownloadSettings(settings, ranks.all.size); });
    RateBound bound(download.rate);
    Stage stage(ranks, settings, "fetch", folder, "");

    auto path_of = [&](const RemoteFile& file) { return folder + "/" + file.name; };
    auto input_of = [](const RemoteFile& file) {  // the file's URL and listed digest
        std::string about = file.url + (file.digest ? file.digest->hex() : "");
        return XXH3_64bits(about.data(), about.size());
    };

    std::vector<RemoteFile> wanted;  // of this rank
    for (size_t i = (size_t)ranks.all.rank; i < files.size(); i += (size_t)ranks.all.size)
        if (!stage.finished(path_of(files[i]), input_of(files[i]))) wanted.push_back(files[i]);

    double files_done = 0;
    int64_t missing = 0;
    for (auto& file : wanted) {
        std::string to = path_of(file);
        try {
            unlink((to + ".counts").c_str());
            Counts counts;
            fetch_file(download, bound, file, to, counts, [&](double bytes) {
                double each = std::max((stage.progress.done + bytes) / (files_done + 1), bytes);
                stage.progress.total = each * (double)wanted.size();  // as long as those so far
                stage.progress.at(stage.progress.done + bytes);
            });
            stage.finish(to, input_of(file), counts);
            stage.progress.done += (double)count_of(counts, "bytes");
            files_done++;
        } catch (const Error& e) {
            fprintf(stderr, "[rank %d] corpus: %s\n", ranks.all.rank, e.what());
            missing++;
        }
    }

    missing = ranks.sum({missing}, "files that are missing")[0];
    if (ranks.first()) {
        std::map<std::string, Counts> sums;
        for (auto& file : files)
            if (stage.finished(path_of(file), input_of(file)))
                for (auto& [name, n] : Stage::read_counts(path_of(file))) sums["all"][name] += n;
        stage.report(sums);
    }

    ranks.together([&] {
        if (missing)
            fail("%lld of %zu files are not here, for the reasons above: run it again to fetch the rest",
                 (long long)missing, files.size());
        return 0;
    });
}
