// download.h   downloads a file over HTTP by libcurl; an interrupted download resumes where it stopped
//   Received bytes are in PATH.partial; PATH.source says of which version of the file: its URL, the server's
//   ETag or date, the length. A later attempt, or a later run, asks for the rest of that version (Range,
//   If-Range). After any other answer the file is downloaded from its beginning:
//     200 for a range              the file has changed, or the server does not support ranges
//     206 from another offset      the server is wrong
//     206 of another length        the file has changed
//     416                          the file has changed; or it is complete, and nothing is downloaded again
//   A failed attempt is repeated after a pause that doubles (or the server's Retry-After), until --attempts
//   in a row brought nothing; an error that repetition cannot mend (404, a certificate) is final.
#pragma once
#include <curl/curl.h>
#include <unistd.h>
#include <functional>
#include <thread>
#include "../json.h"
#include "digest.h"
#include "steps.h"
#include "warc.h"

struct DownloadSettings {
    double rate;         // bytes a second of this rank; 0: no bound
    long attempts;       // in a row, that bring nothing
    double pause;        // seconds, after the first of them
    long stall;          // seconds below 1 KB/s that end an attempt
    explicit DownloadSettings(const Settings& s, int ranks)
        : rate(s.number("rate") / ranks), attempts((long)s.whole("attempts")), pause(s.number("pause")),
          stall((long)s.whole("stall")) {
        if (rate > 0 && rate < 10e3)
            fail("--rate %g over %d ranks: wants at least 10 KB/s a rank, or 0 for no bound",
                 s.number("rate"), ranks);
    }
};

// holds what is received to a rate, over one file and the next; idle time is no credit
class RateBound {
    double rate;
    Clock::time_point next = Clock::now();

public:
    explicit RateBound(double rate) : rate(rate) {}
    void take(size_t bytes) {
        if (rate <= 0) return;
        Clock::time_point now = Clock::now();
        next = std::max(next, now) +
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>((double)bytes / rate));
        std::this_thread::sleep_until(next);
    }
};

// a version of a file on a server
struct SourceVersion {
    std::string url, validator;  // validator: its ETag, else its date; "": the server sends neither
    int64_t length = -1;         // -1: unknown
};

class Download {
    static constexpr double longest_pause = 300;
    static constexpr size_t progress_bytes = 64 << 10;  // an attempt that brings fewer brought nothing

    const DownloadSettings& settings;
    RateBound& bound;
    std::function<void(double)> report;  // bytes of the file that are here
    std::string path;
    FileWriter file;
    SourceVersion source;
    std::unique_ptr<CURL, void (*)(CURL*)> curl{curl_easy_init(), curl_easy_cleanup};

    // of the response that is being read
    long status = 0;
    size_t asked_from = 0;
    bool begun = false;            // its header has been judged
    std::string etag, date, range, refused;
    int64_t length = -1;
    std::string write_error;       // of our own disk: no attempt mends it

public:
    std::optional<Digest> stated;  // by the server, of the whole file

    Download(const DownloadSettings& settings, RateBound& bound, const std::string& url,
             const std::string& path, std::function<void(double)> report)
        : settings(settings), bound(bound), report(report), path(path), file(path, Partial::Resume),
          source{url, "", -1} {
        if (!curl) fail("libcurl cannot start");
        if (!read_source()) restart();
    }

    // the whole file under PATH.partial, for finish() or again()
    void run() {
        for (long barren = 0, attempt = 1; !is_complete(); attempt++) {
            size_t had = file.written;
            std::string error = attempt_once();
            if (error.empty()) return;
            barren = file.written >= had + progress_bytes ? 0 : barren + 1;
            if (barren >= settings.attempts)
                fail("%s: %s, after %ld attempts in a row that brought nothing", source.url.c_str(),
                     error.c_str(), barren);
            double seconds = pause_after(barren, attempt);
            fprintf(stderr, "%s: %s: again in %.1f s, from byte %zu\n", source.url.c_str(), error.c_str(),
                    seconds, file.written);
            usleep((useconds_t)(seconds * 1e6));
        }
    }

    bool is_complete() const { return source.length >= 0 && (int64_t)file.written == source.length; }
    const std::string& partial() const { return file.partial; }
    size_t bytes() const { return file.written; }
    void again() { restart(); }
    void finish() {
        file.finish();
        unlink((path + ".source").c_str());
    }

private:
    // ---- the version that PATH.partial is a part of ------------------------------------------------------

    bool read_source() {
        std::string about = path + ".source";
        if (!file.written || access(about.c_str(), F_OK) != 0) return false;
        try {
            Json j = Json::parse(MappedFile(about).view(), about);
            if (j.at("url", about).string("url") != source.url) return false;
            source.validator = j.at("validator", about).string("validator");
            source.length = (int64_t)j.at("length", about).number("length");
            return source.length < 0 || (int64_t)file.written <= source.length;
        } catch (const Error&) {
            return false;  // cut off
        }
    }

    void write_source() const {
        FileWriter about(path + ".source");
        about.write("{\"url\": " + json_quote(source.url) + ", \"validator\": " +
                    json_quote(source.validator) + text(", \"length\": %lld}\n", (long long)source.length));
        about.finish();
    }

    void restart() {
        file.clear();
        source.validator.clear();
        source.length = -1;
        stated.reset();
    }

    // ---- one attempt -------------------------------------------------------------------------------------

    // "", or what went wrong and may go better the next time
    std::string attempt_once() {
        status = 0;
        begun = false;
        etag = date = range = refused = write_error = "";
        length = -1;
        asked_from = file.written;

        CURL* c = curl.get();
        curl_easy_reset(c);
        char message[CURL_ERROR_SIZE] = "";
        curl_easy_setopt(c, CURLOPT_ERRORBUFFER, message);
        curl_easy_setopt(c, CURLOPT_URL, source.url.c_str());
        curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
        curl_easy_setopt(c, CURLOPT_MAXREDIRS, 5L);
        curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(c, CURLOPT_USERAGENT, "corpus-fetch (libcurl)");
        curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, settings.stall);
        curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1000L);
        curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, settings.stall);
        curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
        curl_easy_setopt(c, CURLOPT_HEADERDATA, this);
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, this);

        std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(nullptr, curl_slist_free_all);
        if (asked_from > 0) {
            curl_easy_setopt(c, CURLOPT_RANGE, text("%zu-", asked_from).c_str());
            if (!source.validator.empty())
                headers.reset(curl_slist_append(nullptr, ("If-Range: " + source.validator).c_str()));
            curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers.get());
        }

        CURLcode result = curl_easy_perform(c);
        if (!write_error.empty()) fail("%s", write_error.c_str());
        if (!refused.empty()) {
            restart();
            return refused;
        }
        if (status == 416) return judge_416();
        if (result == CURLE_OK && status != 200 && status != 206) return judge_status();
        if (result != CURLE_OK) return judge_failure(result, *message ? message : curl_easy_strerror(result));

        if (!begun) {  // an empty body: the header alone says what is here
            begin_body();
        }
        if (!refused.empty()) {
            restart();
            return refused;
        }

        if (source.length >= 0 && (int64_t)file.written != source.length)
            return text("ended at byte %zu of %lld", file.written, (long long)source.length);
        return "";
    }

    std::string judge_416() {
        size_t star = range.find("*/");
        if (star != range.npos && range.substr(star + 2) == std::to_string(file.written)) return "";
        restart();
        return "there is no such range: the file has changed";
    }

    std::string judge_status() const {
        for (long final : {400, 401, 404, 405, 410, 414, 451})
            if (status == final) fail("%s: HTTP status %ld", source.url.c_str(), status);
        return text("HTTP status %ld", status);
    }

    std::string judge_failure(CURLcode result, const char* message) const {
        for (CURLcode final : {CURLE_UNSUPPORTED_PROTOCOL, CURLE_URL_MALFORMAT, CURLE_TOO_MANY_REDIRECTS,
                               CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE, CURLE_NOT_BUILT_IN})
            if (result == final) fail("%s: %s", source.url.c_str(), message);
        return message;
    }

    // grows with the attempts in a row that brought nothing; varies, so that ranks do not all retry at once
    double pause_after(long barren, long attempt) const {
        curl_off_t asked = 0;
        curl_easy_getinfo(curl.get(), CURLINFO_RETRY_AFTER, &asked);
        if (asked > 0 && status >= 400) return std::min((double)asked, longest_pause);
        double seconds = settings.pause * std::ldexp(1, (int)std::min(barren, 20L) - 1);
        uint64_t chance = XXH3_64bits_withSeed(source.url.data(), source.url.size(), (uint64_t)attempt);
        return std::min(seconds, longest_pause) * (0.5 + 0.5 * (double)(chance >> 11) * 0x1p-53);
    }

    // ---- what the server sends ---------------------------------------------------------------------------

    static size_t take_header(char* data, size_t, size_t n, void* self) {
        ((Download*)self)->take_header_line({data, n});
        return n;
    }

    void take_header_line(std::string_view line) {
        if (line.starts_with("HTTP/")) {  // of another response, behind a redirection
            size_t blank = std::min(line.find(' '), line.size());
            status = strtol(std::string(line.substr(blank)).c_str(), nullptr, 10);
            etag = date = range = "";
            length = -1;
            stated.reset();
            return;
        }

        HeaderFields field(line);
        if (field.fields.empty()) return;
        auto& [name, value] = field.fields[0];

        auto is = [&](const char* other) { return HeaderFields::same(name, other); };
        if (is("ETag") && !value.starts_with("W/")) etag = value;  // a weak one is for no range
        if (is("Last-Modified")) date = value;
        if (is("Content-Range")) range = value;
        if (is("Content-Length")) length = strtoll(std::string(value).c_str(), nullptr, 10);

        size_t sha256 = value.find("sha-256=");
        if ((is("Repr-Digest") || is("Digest")) && sha256 != value.npos) {
            std::string_view digits = value.substr(sha256 + 8);
            if (digits.starts_with(':')) digits.remove_prefix(1);
            stated = parse_digest("sha256", digits.substr(0, digits.find_first_of(":,; ")));
        }
        if (is("Content-MD5") && status == 200 && !stated) stated = parse_digest("md5", value);
    }

    static size_t take_body(char* data, size_t, size_t n, void* self) {
        Download& d = *(Download*)self;
        try {  // no exception passes through libcurl
            if (d.status != 200 && d.status != 206) return n;  // an error's page
            if (!std::exchange(d.begun, true)) d.begin_body();
            if (!d.refused.empty()) return 0;
            d.file.write(data, n);

            if (d.source.length >= 0 && (int64_t)d.file.written > d.source.length) {
                d.refused = text("sends more than the %lld bytes it announced", (long long)d.source.length);
                return 0;
            }

            d.report((double)d.file.written);
            d.bound.take(n);
        } catch (const std::exception& e) {
            d.write_error = e.what();
            return 0;
        }
        return n;
    }

    // checks that a 206 brings exactly what is missing, else sets `refused`; a 200 starts the file again
    void begin_body() {
        std::string validator = !etag.empty() ? etag : date;
        if (status == 206) {
            unsigned long long first = 0, last = 0, whole = 0;
            int parts = sscanf(range.c_str(), "bytes %llu-%llu/%llu", &first, &last, &whole);
            if (asked_from == 0 || parts < 2 || first != asked_from)
                refused = text("asked from byte %zu, it answers with \"%s\"", asked_from, range.c_str());
            else if (parts == 3 && source.length >= 0 && (int64_t)whole != source.length)
                refused = text("its length was %lld and is %llu now", (long long)source.length, whole);
            else if (!source.validator.empty() && !validator.empty() && source.validator != validator)
                refused = "the file has changed";
            else if (parts == 3 && source.length < 0) {
                source.length = (int64_t)whole;
                write_source();
            }
            return;
        }

        file.clear();
        source.validator = validator;
        source.length = length;
        write_source();
    }
};
